// Streams, events and graphs. A stream's work is done by a thread of its own.
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cstdio>

#include "fibers.h"
#include "state.h"

namespace emulated {

thread_local Stream *capturing = nullptr;

int refuse(const char *call) {
    fprintf(stderr, "emulation: %s while the thread records a stream\n", call);
    if (capturing) capturing->invalid = true;
    return CAPTURE_UNSUPPORTED;
}

Stream::Stream(Device *d) : device(d) {
    {
        std::lock_guard<std::mutex> l(d->lock);
        d->streams.push_back(this);
    }
    // Signals are the Go run time's, on its own threads.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    pthread_create(&thread, nullptr, enter, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Stream::~Stream() {
    {
        std::lock_guard<std::mutex> l(lock);
        ends = true;
    }
    came.notify_all();
    pthread_join(thread, nullptr);
    for (auto &[name, s] : spent) fprintf(stderr, "emulation: %8.3f s of a processor, %6zu launches, %9zu threads: %s\n", s.seconds, s.launches, s.threads, name.c_str());
    std::lock_guard<std::mutex> l(device->lock);
    auto &all = device->streams;
    all.erase(std::remove(all.begin(), all.end(), this), all.end());
}

void *Stream::enter(void *s) {
    // Faults of kernels are this thread's to handle.
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    sigaddset(&faults, SIGFPE);
    sigaddset(&faults, SIGILL);
    pthread_sigmask(SIG_UNBLOCK, &faults, nullptr);
    ((Stream *)s)->loop();
    leaveFibers();
    return nullptr;
}

int Stream::add(WorkPtr w) {
    if (capture) {
        capture->parts.push_back(std::move(w));
        return SUCCESS;
    }
    if (device->fault) return device->fault;
    {
        std::lock_guard<std::mutex> l(lock);
        queue.push_back(std::move(w));
    }
    came.notify_one();
    return SUCCESS;
}

void Stream::loop() {
    std::unique_lock<std::mutex> l(lock);
    for (;;) {
        came.wait(l, [&] { return ends || !queue.empty(); });
        if (queue.empty()) return;
        WorkPtr w = std::move(queue.front()), next;
        queue.pop_front();
        if (!queue.empty()) next = queue.front();
        busy = true;
        l.unlock();
        if (!device->fault) w->run(*this, next.get());
        w.reset();
        next.reset();
        l.lock();
        busy = false;
        if (queue.empty()) went.notify_all();
    }
}

int Stream::wait() {
    std::unique_lock<std::mutex> l(lock);
    went.wait(l, [&] { return queue.empty() && !busy; });
    return device->fault;
}

bool Stream::idle() {
    std::lock_guard<std::mutex> l(lock);
    return queue.empty() && !busy;
}

namespace {
struct Call : Work {
    void (*function)(void *), (*drop)(void *);
    void *arg;
    ~Call() override {
        if (drop) drop(arg);
    }
    int run(Stream &, Work *) override {
        function(arg);
        return SUCCESS;
    }
};

// Event is a mark. asked counts how often it was recorded, passed how often a stream
// came by.
struct Event {
    std::mutex lock;
    std::condition_variable came;
    unsigned asked = 0, passed = 0;
    Device *device = nullptr;
    double at = 0; // ms
};

struct Mark : Work {
    std::shared_ptr<Event> event;
    int run(Stream &, Work *) override {
        timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        std::lock_guard<std::mutex> l(event->lock);
        event->at = t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
        event->passed++;
        event->came.notify_all();
        return SUCCESS;
    }
};

// Replay is a launch of a graph.
struct Replay : Work {
    std::shared_ptr<Graph> graph;
    int run(Stream &s, Work *) override {
        for (size_t i = 0; i < graph->parts.size() && !s.device->fault; i++)
            graph->parts[i]->run(s, i + 1 < graph->parts.size() ? graph->parts[i + 1].get() : nullptr);
        return s.device->fault;
    }
};
} // namespace
} // namespace emulated

using namespace emulated;

extern "C" {

int outrider_emulation_enqueue(void *stream, void (*run)(void *), void (*drop)(void *), void *arg) {
    if (!stream) return INVALID_HANDLE;
    auto c = std::make_shared<Call>();
    c->function = run, c->drop = drop, c->arg = arg;
    return ((Stream *)stream)->add(c);
}

int outrider_emulation_fail(void *stream, int code, const char *text) { return fault(((Stream *)stream)->device, code, text); }

int cuStreamCreate(void **to, unsigned) {
    if (!current()) return INVALID_CONTEXT;
    *to = new Stream(current());
    return SUCCESS;
}

int cuStreamDestroy_v2(void *s) {
    if (!s) return INVALID_HANDLE;
    delete (Stream *)s;
    return SUCCESS;
}

int cuStreamSynchronize(void *s) {
    if (!s) return INVALID_HANDLE;
    if (((Stream *)s)->capture) return refuse("cuStreamSynchronize");
    return ((Stream *)s)->wait();
}

int cuStreamQuery(void *s) {
    if (!s) return INVALID_HANDLE;
    Stream *of = (Stream *)s;
    if (of->capture) return refuse("cuStreamQuery");
    bool idle = of->idle();
    return of->device->fault ? of->device->fault.load() : idle ? SUCCESS : NOT_READY;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    Stream *s = (Stream *)stream;
    if (!s) return INVALID_HANDLE;
    if (s->capture || capturing || mode != 1) return ILLEGAL_STATE;
    s->capture = std::make_unique<Graph>();
    s->invalid = false;
    capturing = s;
    return SUCCESS;
}

int cuStreamEndCapture(void *stream, void **graph) {
    Stream *s = (Stream *)stream;
    *graph = nullptr;
    if (!s || !s->capture || capturing != s) return ILLEGAL_STATE;
    capturing = nullptr;
    auto g = std::move(s->capture);
    if (s->invalid) return CAPTURE_INVALIDATED;
    *graph = new std::shared_ptr<Graph>(std::move(g));
    return SUCCESS;
}

// What a node of a graph takes of the device's memory.
static const size_t NODE = 4096;

struct Exec {
    std::shared_ptr<Graph> graph;
    Device *device;
};

int cuGraphInstantiateWithFlags(void **to, void *graph, unsigned long long) {
    Device *d = current();
    if (!d) return INVALID_CONTEXT;
    auto g = *(std::shared_ptr<Graph> *)graph;
    if (!d->take(g->parts.size() * NODE)) return OUT_OF_MEMORY;
    *to = new Exec{g, d};
    return SUCCESS;
}

int cuGraphDestroy(void *graph) {
    delete (std::shared_ptr<Graph> *)graph;
    return SUCCESS;
}

int cuGraphExecDestroy(void *exec) {
    Exec *e = (Exec *)exec;
    e->device->give(e->graph->parts.size() * NODE);
    delete e;
    return SUCCESS;
}

int cuGraphUpload(void *exec, void *stream) { return exec && stream ? SUCCESS : INVALID_HANDLE; }

int cuGraphLaunch(void *exec, void *stream) {
    if (!exec || !stream) return INVALID_HANDLE;
    auto r = std::make_shared<Replay>();
    r->graph = ((Exec *)exec)->graph;
    return ((Stream *)stream)->add(r);
}

int cuEventCreate(void **to, unsigned) {
    if (!current()) return INVALID_CONTEXT;
    *to = new std::shared_ptr<Event>(new Event);
    return SUCCESS;
}

int cuEventDestroy_v2(void *e) {
    delete (std::shared_ptr<Event> *)e;
    return SUCCESS;
}

int cuEventRecord(void *event, void *stream) {
    if (!event || !stream) return INVALID_HANDLE;
    // A GPU takes it as a part of the recording; what waits for one is not emulated.
    if (((Stream *)stream)->capture) return refuse("cuEventRecord");
    auto m = std::make_shared<Mark>();
    m->event = *(std::shared_ptr<Event> *)event;
    {
        std::lock_guard<std::mutex> l(m->event->lock);
        m->event->asked++;
        m->event->device = ((Stream *)stream)->device;
    }
    return ((Stream *)stream)->add(m);
}

int cuEventQuery(void *event) {
    if (capturing) return refuse("cuEventQuery");
    Event &e = **(std::shared_ptr<Event> *)event;
    std::lock_guard<std::mutex> l(e.lock);
    if (e.device && e.device->fault) return e.device->fault;
    return e.passed == e.asked ? SUCCESS : NOT_READY;
}

int cuEventSynchronize(void *event) {
    if (capturing) return refuse("cuEventSynchronize");
    Event &e = **(std::shared_ptr<Event> *)event;
    std::unique_lock<std::mutex> l(e.lock);
    while (e.passed != e.asked && !e.device->fault) e.came.wait_for(l, std::chrono::milliseconds(10));
    return e.device ? e.device->fault.load() : SUCCESS;
}

int cuEventElapsedTime(float *ms, void *from, void *to) {
    Event &a = **(std::shared_ptr<Event> *)from, &b = **(std::shared_ptr<Event> *)to;
    std::scoped_lock l(a.lock, b.lock);
    if (!a.asked || !b.asked) return INVALID_HANDLE;
    if (a.passed != a.asked || b.passed != b.asked) return NOT_READY;
    *ms = (float)(b.at - a.at);
    return SUCCESS;
}
}
