// What a stream's thread has to run launches.
#pragma once
#include <setjmp.h>

#include "fibers.h"

namespace emulated {

// Course is how far a launch has come.
struct Course {
    const Launch *launch = nullptr;
    std::vector<size_t> order; // of its units
    size_t next = 0;           // in order
    std::vector<std::unique_ptr<Unit>> active;
};

struct Engine {
    static constexpr size_t MOST_AT_ONCE = 64; // units

    void *home = nullptr; // the stack of the rounds
    sigjmp_buf out;       // where a fault goes
    bool running = false;
    int code = 0;     // of the fault
    std::string said; // about it
    const Launch *launch = nullptr;
    Device *launching = nullptr;
    Course ahead; // of the next launch
    Course *current = nullptr;

    // here is the calling thread's.
    static Engine &here();
    Engine();
    ~Engine();

    // run runs a launch; next, if any, follows it.
    int run(const Launch &l, const Launch *next, Device *d);

    // Of the thread that runs:
    void body();
    [[noreturn]] void stop(int code, const std::string &what);
    void stopAt(void *address);
    void ended();
    void barrier();
    void clusterBarrier();
    Slots *exchange(unsigned mask, int op, const void *data, size_t n, void (*combine)(Slots *));
    void spin();
    void waitForEarlier();
    void *variable(const void *key, size_t n, size_t align);
    void copy(const Copying &c);
    void commit();
    void makeBarrier(void *b, unsigned threads);
    void arrive(void *b);
    void arriveCopied(void *b);
    bool passed(void *b, unsigned parity);
    void someMeet(unsigned threads);
    void await(unsigned left);

    // For checks: stacked tells whether p is on the thread's stack; sharedAt is 1 if n bytes
    // at p are shared memory that is in use, −1 if it is not, and 0 for other memory.
    bool stacked(uintptr_t p) const;
    int sharedAt(uintptr_t p, size_t n) const;

  private:
    uint64_t seed = 0;
    std::mt19937_64 random;
    void *altstack = nullptr;
    std::vector<Fiber *> all, idle;
    std::vector<char *> arenas, freeArenas;

    Fiber *fiber();
    char *arena();
    std::unique_ptr<Unit> unit(const Launch &l, size_t n);
    void release(Unit &u);
    Course start(const Launch &l);
    void drop(Course &c);
    void enter(Warp &w);
    bool round(Unit &u);
    void early(const Launch &next);
    void finish(Course &c);
    void suspend();
    [[noreturn]] void deadlock(const Unit &u);
    std::string where() const;
};
} // namespace emulated
