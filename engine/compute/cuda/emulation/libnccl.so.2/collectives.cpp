// libnccl stands in for NVIDIA's collective library: the functions that
// engine/compute/cuda/nccl calls, as nccl.h declares them, for ranks that are
// streams of one process. A collective waits in its stream until every rank has come
// to its own, as the real one does; those of a rank are told apart by their order. So
// a rank that never comes has the others wait until they are aborted. Ranks that come
// to different collectives, at which the real library hangs or mixes their data, have
// an asynchronous error.
//
// OUTRIDER_EMULATION_NCCL names a file, read at each question for asynchronous
// errors: "RANK RESULT" has ncclCommGetAsyncError of that rank answer with that
// ncclResult_t.
#include "bfloat16.h"
#include "emulation.h"

#include <strings.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

enum Result { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6, IN_PROGRESS = 7 };

enum Type { F32 = 7, BF16 = 9 };  // ncclDataType_t

constexpr int SUM = 0;          // ncclRedOp_t
constexpr int VERSION = 22809;  // 2.28.9

enum Kind { ALL_REDUCE, ALL_GATHER, BROADCAST };

const char *const names[] = {"AllReduce", "AllGather", "Broadcast"};

// Call is what the ranks must agree in.
struct Call {
  Kind kind;
  size_t n;
  int type, root;
  bool operator==(const Call &o) const { return kind == o.kind && n == o.n && type == o.type && root == o.root; }
};

// Meeting is a collective that some ranks have come to.
struct Meeting {
  Call call;
  std::vector<const void *> send;
  std::vector<void *> recv;
  int arrived = 0, left = 0;
  bool done = false;
  bool lost = false;  // a rank has left it before it was done, or came for something else
};

struct Comm;

struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint64_t, Meeting> meetings;  // by their number
  std::vector<Comm *> comms;
  std::string algorithms;  // NCCL_ALGO
};

struct Comm {
  std::shared_ptr<Group> group;
  int rank;
  uint64_t begun = 0;  // collectives
  int queued = 0;      // collectives that streams or graphs hold
  bool aborted = false;
  Result async = SUCCESS;
};

std::mutex said;
std::string last;  // error

Result fail(Result r, const std::string &text) {
  std::lock_guard<std::mutex> lock(said);
  last = text;
  return r;
}

size_t bytesOf(int type) { return type == F32 ? 4 : 2; }

// sum adds the ranks' elements as a ring does: each rank's part of them beginning
// with another rank, rounded to their type on the way from one to the next.
void sum(const Meeting &m, std::vector<char> &to) {
  size_t ranks = m.send.size(), n = m.call.n;
  for (size_t i = 0; i < n; i++) {
    size_t first = i * ranks / n;
    if (m.call.type == F32) {
      float s = ((const float *)m.send[first])[i];
      for (size_t k = 1; k < ranks; k++) s += ((const float *)m.send[(first + k) % ranks])[i];
      ((float *)to.data())[i] = s;
    } else {
      uint16_t s = ((const uint16_t *)m.send[first])[i];
      for (size_t k = 1; k < ranks; k++) s = emulated::toBfloat16(emulated::fromBfloat16(s) + emulated::fromBfloat16(((const uint16_t *)m.send[(first + k) % ranks])[i]));
      ((uint16_t *)to.data())[i] = s;
    }
  }
}

// make computes a collective that all ranks have come to. Results may lie where
// what is sent does.
void make(Meeting &m) {
  size_t bytes = m.call.n * bytesOf(m.call.type), ranks = m.send.size();
  std::vector<char> result(m.call.kind == ALL_GATHER ? ranks * bytes : bytes);
  switch (m.call.kind) {
    case ALL_REDUCE:
      sum(m, result);
      break;
    case ALL_GATHER:
      for (size_t r = 0; r < ranks; r++) memcpy(&result[r * bytes], m.send[r], bytes);
      break;
    case BROADCAST:
      memcpy(result.data(), m.send[m.call.root], bytes);
      break;
  }
  for (void *to : m.recv) memcpy(to, result.data(), result.size());
}

// Work is a rank's collective in a stream or in a graph.
struct Work {
  Comm *comm;
  Call call;
  const void *send;
  void *recv;
};

std::string describe(int rank, const Call &c) {
  return "rank " + std::to_string(rank) + " is in " + names[c.kind] + " of " + std::to_string(c.n) + " elements of type " + std::to_string(c.type);
}

// run is a rank's collective in its turn.
void run(void *arg) {
  const Work &w = *(Work *)arg;
  Comm *c = w.comm;
  std::shared_ptr<Group> g = c->group;
  std::unique_lock<std::mutex> lock(g->mutex);
  if (c->aborted) return;
  uint64_t number = c->begun++;
  size_t ranks = g->comms.size();
  Meeting &m = g->meetings[number];  // stays where it is
  if (m.arrived == 0) {
    m.call = w.call;
    m.send.resize(ranks);
    m.recv.resize(ranks);
  } else if (!(m.call == w.call)) {
    for (Comm *o : g->comms)
      if (o) o->async = INVALID_USAGE;
    fail(INVALID_USAGE, "collective " + std::to_string(number) + ": " + describe(c->rank, w.call) + ", another one differs");
    m.lost = true;
  }
  m.send[c->rank] = w.send;
  m.recv[c->rank] = w.recv;
  if (++m.arrived == (int)ranks && !m.lost) {
    make(m);
    m.done = true;
    g->changed.notify_all();
  }
  g->changed.wait(lock, [&] { return m.done || c->aborted; });
  if (!m.done) m.lost = true;
  if (++m.left == (int)ranks) g->meetings.erase(number);
}

// drop ends a stream's or a graph's hold on its work.
void drop(void *arg) {
  Work *w = (Work *)arg;
  std::shared_ptr<Group> g = w->comm->group;
  std::lock_guard<std::mutex> lock(g->mutex);
  w->comm->queued--;
  delete w;
  g->changed.notify_all();
}

// hasRing tells whether NCCL_ALGO leaves a function the algorithm Ring. It is one list for all functions, or some behind their names: "Ring;allreduce:Tree".
bool hasRing(const std::string &algorithms, const std::string &function) {
  bool ring = true;
  for (size_t at = 0; at < algorithms.size();) {
    size_t end = std::min(algorithms.find(';', at), algorithms.size());
    std::string list = algorithms.substr(at, end - at);
    at = end + 1;
    size_t colon = list.find(':');
    if (colon != std::string::npos) {
      if (strcasecmp(list.substr(0, colon).c_str(), function.c_str()) != 0) continue;
      list = list.substr(colon + 1);
    }
    bool without = !list.empty() && list[0] == '^', named = false;
    for (size_t i = without ? 1 : 0; i <= list.size();) {
      size_t comma = std::min(list.find(',', i), list.size());
      named = named || strcasecmp(list.substr(i, comma - i).c_str(), "Ring") == 0;
      i = comma + 1;
    }
    ring = named != without;
  }
  return ring;
}

Result enqueue(Call call, const void *send, void *recv, Comm *c, void *stream) {
  if (!c || !send || !recv || !stream) return fail(INVALID_ARGUMENT, std::string(names[call.kind]) + ": a pointer is NULL");
  if (call.type != F32 && call.type != BF16) return fail(INVALID_ARGUMENT, std::string(names[call.kind]) + ": type " + std::to_string(call.type));
  if (call.root < 0 || call.root >= (int)c->group->comms.size()) return fail(INVALID_ARGUMENT, "Broadcast: root " + std::to_string(call.root));
  if (call.kind != ALL_REDUCE && !hasRing(c->group->algorithms, names[call.kind]))
    return fail(INVALID_USAGE, std::string("no algorithm for ") + names[call.kind] + " in NCCL_ALGO=" + c->group->algorithms);
  if (call.n == 0) return SUCCESS;
  {
    std::lock_guard<std::mutex> lock(c->group->mutex);
    if (c->aborted) return fail(INVALID_USAGE, "the communicator was aborted");
    c->queued++;
  }
  Work *w = new Work{c, call, send, recv};
  if (outrider_emulation_enqueue(stream, run, drop, w) == 0) return SUCCESS;
  drop(w);
  return fail(UNHANDLED_CUDA_ERROR, std::string(names[call.kind]) + " cannot be queued");
}

// release frees a communicator that nothing holds any more.
void release(Comm *c, std::unique_lock<std::mutex> &lock) {
  Group *g = c->group.get();
  g->changed.wait(lock, [&] { return c->queued == 0; });
  g->comms[c->rank] = nullptr;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int *v) {
  if (!v) return INVALID_ARGUMENT;
  *v = VERSION;
  return SUCCESS;
}

const char *ncclGetErrorString(Result r) {
  switch (r) {
    case SUCCESS:
      return "no error";
    case UNHANDLED_CUDA_ERROR:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case SYSTEM_ERROR:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case INTERNAL_ERROR:
      return "internal error - please report this issue to the NCCL developers";
    case INVALID_ARGUMENT:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case INVALID_USAGE:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case REMOTE_ERROR:
      return "remote process exited or there was a network error";
    case IN_PROGRESS:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char *ncclGetLastError(Comm *) {
  static thread_local std::string mine;
  std::lock_guard<std::mutex> lock(said);
  mine = last;
  return mine.c_str();
}

Result ncclCommInitAll(Comm **comms, int n, const int *devices) {
  if (!comms || n < 1) return fail(INVALID_ARGUMENT, "CommInitAll: " + std::to_string(n) + " devices");
  int have = outrider_emulation_devices();
  for (int i = 0; i < n; i++) {
    int device = devices ? devices[i] : i;
    if (device < 0 || device >= have) return fail(UNHANDLED_CUDA_ERROR, "CommInitAll: device " + std::to_string(device) + " of " + std::to_string(have));
    for (int k = 0; k < i; k++)
      if ((devices ? devices[k] : k) == device) return fail(INVALID_USAGE, "CommInitAll: device " + std::to_string(device) + " comes twice");
  }
  auto g = std::make_shared<Group>();
  const char *algorithms = getenv("NCCL_ALGO");
  g->algorithms = algorithms ? algorithms : "";
  for (int i = 0; i < n; i++) {
    comms[i] = new Comm{g, i};
    g->comms.push_back(comms[i]);
  }
  return SUCCESS;
}

// As the real one it waits for the graphs that have work of the communicator.
Result ncclCommDestroy(Comm *c) {
  if (!c) return SUCCESS;
  auto g = c->group;
  std::unique_lock<std::mutex> lock(g->mutex);
  release(c, lock);
  lock.unlock();
  delete c;
  return SUCCESS;
}

// What waits for other ranks ends without a result. Graphs may still have work of the
// communicator, which does nothing: its memory stays for them.
Result ncclCommAbort(Comm *c) {
  if (!c) return SUCCESS;
  std::lock_guard<std::mutex> lock(c->group->mutex);
  c->aborted = true;
  c->group->changed.notify_all();
  return SUCCESS;
}

Result ncclCommGetAsyncError(Comm *c, Result *r) {
  if (!c || !r) return fail(INVALID_ARGUMENT, "CommGetAsyncError: a pointer is NULL");
  std::lock_guard<std::mutex> lock(c->group->mutex);
  *r = c->async;
  const char *name = getenv("OUTRIDER_EMULATION_NCCL");
  FILE *f = name && *name ? fopen(name, "r") : nullptr;
  if (!f) return SUCCESS;
  int rank, result;
  while (fscanf(f, "%d %d", &rank, &result) == 2)
    if (rank == c->rank) *r = (Result)result;
  fclose(f);
  return SUCCESS;
}

Result ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, Comm *c, void *stream) {
  if (op != SUM) return fail(INVALID_ARGUMENT, "AllReduce: operation " + std::to_string(op));
  return enqueue(Call{ALL_REDUCE, n, type, 0}, send, recv, c, stream);
}

Result ncclAllGather(const void *send, void *recv, size_t n, int type, Comm *c, void *stream) { return enqueue(Call{ALL_GATHER, n, type, 0}, send, recv, c, stream); }

Result ncclBroadcast(const void *send, void *recv, size_t n, int type, int root, Comm *c, void *stream) {
  return enqueue(Call{BROADCAST, n, type, root}, send, recv, c, stream);
}
}
