// Devices, streams and memory of the emulation.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulation.h"

namespace emulated {

// CUresults that are told apart.
enum Code {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
    PEER_ENABLED = 704, PEER_UNSUPPORTED = 217, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, OUT_OF_RESOURCES = 701,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, ILLEGAL_STATE = 401,
};

// setting is a whole number of the environment, or otherwise what is given. It ends the
// process where it is none.
long long setting(const char *name, long long otherwise);

struct Stream;

// Work is what a stream does in its order, and what a graph holds.
struct Work {
    virtual ~Work() = default;
    // run does it, on the stream's thread; its result is a fault or SUCCESS. next is
    // what follows in the stream, or null.
    virtual int run(Stream &s, Work *next) = 0;
};
typedef std::shared_ptr<Work> WorkPtr;

struct Graph {
    std::vector<WorkPtr> parts;
};

struct Device {
    int ordinal = 0;
    size_t total = 0;
    std::atomic<size_t> used{0};
    std::atomic<int> fault{0};
    std::atomic<unsigned> peers{0}; // bit i: it may reach device i's memory
    std::mutex lock;                // of streams
    std::vector<Stream *> streams;

    // take counts n bytes as used, or says that there are not so many.
    bool take(size_t n);
    void give(size_t n) { used -= n; }
    // settle waits until no stream has work.
    void settle();
};

// device is the device of that number, or null.
Device *device(int ordinal);
int devices();

// current is the device of the calling thread's context, or null.
Device *current();

// Spent is the processor's time that a kernel took: OUTRIDER_EMULATION_PROFILE.
struct Spent {
    double seconds = 0;
    size_t launches = 0, threads = 0;
};

struct Stream {
    Device *device;
    std::map<std::string, Spent> spent;
    std::unique_ptr<Graph> capture; // what is recorded, if it is
    bool invalid = false;           // the capture has failed

    explicit Stream(Device *d);
    ~Stream();
    // add queues work, or records it.
    int add(WorkPtr w);
    // wait returns the device's fault when all work has ended.
    int wait();
    bool idle();

  private:
    std::mutex lock;
    std::condition_variable came, went;
    std::deque<WorkPtr> queue;
    bool busy = false, ends = false;
    pthread_t thread;
    void loop();
    static void *enter(void *s);
};

// capturing is the stream that the calling thread records, or null: what may wait for a
// device is not allowed then. refuse says so, and ends the recording.
extern thread_local Stream *capturing;
int refuse(const char *call);

// fault ends a device, once; the text is for standard error.
int fault(Device *d, int code, const std::string &text);

// Region is a piece of memory that was given away.
struct Region {
    uintptr_t at = 0;
    size_t size = 0;
    enum Kind { NONE, DEVICE, HOST, RESERVED } kind = NONE;
    int device = 0;
};

// regionOf is the region that an address lies in, or NONE; near, if not null, is set to
// the one before it.
Region regionOf(uintptr_t at, Region *near = nullptr);

// beside is the region that an address lies in, or that begins or ends at most a page
// from it, where nothing else can lie; or NONE.
Region beside(uintptr_t at);

// within tells whether n bytes at p are memory that was given away.
bool within(uintptr_t p, size_t n);
} // namespace emulated
