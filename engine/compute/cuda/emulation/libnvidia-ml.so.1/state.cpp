// libnvidia-ml stands in for the driver's library for management: the functions that
// engine/gpu calls, as nvml.h declares them, about the emulation's devices. Like the real
// one it ends the process when anything but nvmlErrorString is called without a start
// that succeeded.
//
// OUTRIDER_EMULATION_NVML names a file that says how the devices are, read at each call,
// a line for each thing, which counts when it has its end:
//
//	init RESULT                  nvmlInit_v2 fails with that nvmlReturn_t
//	gpu I busy|temperature|power|memory|ecc VALUE
//	                             %, °C, mW, bytes used, errors; "none": not supported
//	nvlink A B                   the two are joined by NVLink; otherwise by the system
//	deaf I                       the device reports no events
//	event I xid N, event I ecc   an error, which each set of events hears of once
//
// OUTRIDER_EMULATION_NVML_CALLS names a file to which the name of each call is added.
#include "emulation.h"

#include <strings.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

extern "C" {
int cuInit(unsigned flags);
int cuDeviceGetName(char *name, int n, int device);
int cuDeviceGetPCIBusId(char *id, int n, int device);
}

namespace {

enum Return { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

constexpr uint64_t EVENT_ECC = 2, EVENT_XID = 8;  // nvmlEventType…
constexpr uint32_t TOPOLOGY_SYSTEM = 50;          // nvmlGpuTopologyLevel_t
constexpr int P2P_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 4;

struct Device {
  int number;
};

struct Event {
  uint64_t type, data;
  int device;
};

struct Set {
  std::map<int, uint64_t> types;  // by device
  size_t heard = 0;               // events of the file
};

struct EventData {  // nvmlEventData_t
  Device *device;
  uint64_t type, data;
  uint32_t gpuInstance, computeInstance;
};

struct Memory {  // nvmlMemory_t
  uint64_t total, free, used;
};

struct Rates {  // nvmlUtilization_t
  uint32_t gpu, memory;
};

std::mutex mutex;
// As with NVML, what was started twice has to be shut down twice.
int starts;
std::vector<Device> devices;

// entered notes a call, and ends the process if it may not be.
void entered(const char *name, bool anyTime = false) {
  const char *calls = getenv("OUTRIDER_EMULATION_NVML_CALLS");
  if (calls && *calls) std::ofstream(calls, std::ios::app) << name << "\n";
  std::lock_guard<std::mutex> lock(mutex);
  if (anyTime || starts > 0) return;
  fprintf(stderr, "emulation: %s is called without a start of NVML that succeeded\n", name);
  abort();
}

// State is what the file says.
struct State {
  int init = SUCCESS;
  std::map<std::pair<int, std::string>, std::string> figures;
  std::vector<std::pair<int, int>> nvlinks;
  std::vector<int> deaf;
  std::vector<Event> events;
};

State state() {
  State s;
  const char *name = getenv("OUTRIDER_EMULATION_NVML");
  std::ifstream file(name ? name : "");
  for (std::string line; std::getline(file, line) && !file.eof();) {
    std::istringstream in(line);
    std::string what, kind, value;
    int a = 0, b = 0;
    in >> what >> a;
    bool good = false;
    if (what == "init") {
      s.init = a;
      good = true;
    } else if (what == "gpu" && in >> kind >> value) {
      s.figures[{a, kind}] = value;
      good = kind == "busy" || kind == "temperature" || kind == "power" || kind == "memory" || kind == "ecc";
    } else if (what == "nvlink" && in >> b) {
      s.nvlinks.push_back({a, b});
      s.nvlinks.push_back({b, a});
      good = true;
    } else if (what == "deaf") {
      s.deaf.push_back(a);
      good = true;
    } else if (what == "event" && in >> kind) {
      good = kind == "ecc" || (kind == "xid" && in >> b);
      s.events.push_back(kind == "ecc" ? Event{EVENT_ECC, 0, a} : Event{EVENT_XID, (uint64_t)b, a});
    }
    if (!good) {
      fprintf(stderr, "emulation: %s has the line \"%s\", which says nothing\n", name, line.c_str());
      abort();
    }
  }
  return s;
}

// figure is one of a device, with which it answers unless the file says otherwise.
Return figure(const Device *d, const char *kind, uint64_t usual, uint64_t &to) {
  State s = state();
  auto found = s.figures.find({d->number, kind});
  to = usual;
  if (found == s.figures.end()) return SUCCESS;
  if (found->second == "none") return NOT_SUPPORTED;
  to = strtoull(found->second.c_str(), nullptr, 10);
  return SUCCESS;
}

Return text(char *to, unsigned n, const std::string &from) {
  if (!to) return INVALID_ARGUMENT;
  if (n < from.size() + 1) return INSUFFICIENT_SIZE;
  memcpy(to, from.c_str(), from.size() + 1);
  return SUCCESS;
}

std::string pci(int device) {
  char id[64];
  return cuDeviceGetPCIBusId(id, sizeof id, device) == 0 ? id : "";
}

}  // namespace

extern "C" {

Return nvmlInit_v2() {
  entered("nvmlInit_v2", true);
  int failed = state().init;
  if (failed != SUCCESS) return (Return)failed;
  if (cuInit(0) != 0) return (Return)9;  // NVML_ERROR_DRIVER_NOT_LOADED
  std::lock_guard<std::mutex> lock(mutex);
  starts++;
  devices.resize(outrider_emulation_devices());
  for (size_t i = 0; i < devices.size(); i++) devices[i].number = (int)i;
  return SUCCESS;
}

Return nvmlShutdown() {
  entered("nvmlShutdown");
  std::lock_guard<std::mutex> lock(mutex);
  starts--;
  return SUCCESS;
}

const char *nvmlErrorString(Return r) {
  entered("nvmlErrorString", true);
  switch ((int)r) {
    case SUCCESS:
      return "The operation was successful";
    case UNINITIALIZED:
      return "Uninitialized";
    case INVALID_ARGUMENT:
      return "Invalid Argument";
    case NOT_SUPPORTED:
      return "Not Supported";
    case NOT_FOUND:
      return "Not Found";
    case INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case 9:
      return "Driver Not Loaded";
    case TIMEOUT:
      return "Timeout";
    case 18:
      return "Driver/library version mismatch";
  }
  return "Unknown Error";
}

// The address may have a domain of 8 digits, as NVML's own have, or of 4.
Return nvmlDeviceGetHandleByPciBusId_v2(const char *id, Device **d) {
  entered("nvmlDeviceGetHandleByPciBusId_v2");
  if (!id || !d) return INVALID_ARGUMENT;
  std::string wanted = id;
  if (wanted.size() == 16 && wanted.compare(0, 4, "0000") == 0) wanted = wanted.substr(4);
  for (Device &each : devices)
    if (strcasecmp(pci(each.number).c_str(), wanted.c_str()) == 0) {
      *d = &each;
      return SUCCESS;
    }
  return NOT_FOUND;
}

Return nvmlDeviceGetName(const Device *d, char *to, unsigned n) {
  entered("nvmlDeviceGetName");
  char name[256];
  return cuDeviceGetName(name, sizeof name, d->number) == 0 ? text(to, n, name) : INVALID_ARGUMENT;
}

Return nvmlDeviceGetUUID(const Device *d, char *to, unsigned n) {
  entered("nvmlDeviceGetUUID");
  return text(to, n, "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(d->number));
}

// Something is used of every device: a context, at least.
Return nvmlDeviceGetMemoryInfo(const Device *d, Memory *m) {
  entered("nvmlDeviceGetMemoryInfo");
  size_t free, total;
  if (!m || outrider_emulation_memory(d->number, &free, &total) != 0) return INVALID_ARGUMENT;
  uint64_t used;
  Return r = figure(d, "memory", total - free ? total - free : 1, used);
  if (r == SUCCESS) *m = Memory{total, total - used, used};
  return r;
}

Return nvmlDeviceGetTemperature(const Device *d, int sensor, uint32_t *degrees) {
  entered("nvmlDeviceGetTemperature");
  if (!degrees || sensor != 0) return INVALID_ARGUMENT;
  uint64_t v;
  Return r = figure(d, "temperature", 40, v);
  *degrees = (uint32_t)v;
  return r;
}

Return nvmlDeviceGetPowerUsage(const Device *d, uint32_t *milliwatts) {
  entered("nvmlDeviceGetPowerUsage");
  if (!milliwatts) return INVALID_ARGUMENT;
  uint64_t v;
  Return r = figure(d, "power", 75000, v);
  *milliwatts = (uint32_t)v;
  return r;
}

Return nvmlDeviceGetUtilizationRates(const Device *d, Rates *rates) {
  entered("nvmlDeviceGetUtilizationRates");
  if (!rates) return INVALID_ARGUMENT;
  uint64_t v;
  Return r = figure(d, "busy", 0, v);
  *rates = Rates{(uint32_t)v, 0};
  return r;
}

Return nvmlDeviceGetTotalEccErrors(const Device *d, int type, int counter, unsigned long long *n) {
  entered("nvmlDeviceGetTotalEccErrors");
  if (!n || type != 1 || counter != 0) return INVALID_ARGUMENT;  // not corrected, since the driver was loaded
  uint64_t v;
  Return r = figure(d, "ecc", 0, v);
  *n = v;
  return r;
}

Return nvmlDeviceGetP2PStatus(const Device *a, const Device *b, int index, int *status) {
  entered("nvmlDeviceGetP2PStatus");
  if (!status || index != P2P_NVLINK) return INVALID_ARGUMENT;
  *status = P2P_NOT_SUPPORTED;
  for (auto &link : state().nvlinks)
    if (link == std::make_pair(a->number, b->number)) *status = P2P_OK;
  return SUCCESS;
}

Return nvmlDeviceGetTopologyCommonAncestor(const Device *, const Device *, uint32_t *level) {
  entered("nvmlDeviceGetTopologyCommonAncestor");
  if (!level) return INVALID_ARGUMENT;
  *level = TOPOLOGY_SYSTEM;
  return SUCCESS;
}

Return nvmlDeviceGetSupportedEventTypes(const Device *d, unsigned long long *types) {
  entered("nvmlDeviceGetSupportedEventTypes");
  if (!types) return INVALID_ARGUMENT;
  *types = EVENT_ECC | EVENT_XID | 1;  // also of single bits, which were corrected
  for (int deaf : state().deaf)
    if (deaf == d->number) *types = 0;
  return SUCCESS;
}

Return nvmlEventSetCreate(Set **s) {
  entered("nvmlEventSetCreate");
  if (!s) return INVALID_ARGUMENT;
  *s = new Set;
  return SUCCESS;
}

Return nvmlEventSetFree(Set *s) {
  entered("nvmlEventSetFree");
  delete s;
  return SUCCESS;
}

Return nvmlDeviceRegisterEvents(const Device *d, unsigned long long types, Set *s) {
  entered("nvmlDeviceRegisterEvents");
  if (!s) return INVALID_ARGUMENT;
  if (types == 0) return NOT_SUPPORTED;
  s->types[d->number] = types;
  return SUCCESS;
}

// It does not wait: a caller that has no time to wait is the only one.
Return nvmlEventSetWait_v2(Set *s, EventData *e, uint32_t milliseconds) {
  entered("nvmlEventSetWait_v2");
  if (!s || !e || milliseconds != 0) return INVALID_ARGUMENT;
  State now = state();
  while (s->heard < now.events.size()) {
    const Event &next = now.events[s->heard++];
    if (!(s->types.count(next.device) && s->types[next.device] & next.type)) continue;
    *e = EventData{&devices[next.device], next.type, next.data, 0xffffffff, 0xffffffff};
    return SUCCESS;
  }
  return TIMEOUT;
}
}
