// Blocks of a launch, whose threads are fibers of the stream's thread.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernel.h"
#include "state.h"

namespace emulated {

// Module is a compiled source that was loaded, and Function a kernel of it.
struct Module;
struct Function {
    const Kernel *kernel;
    Device *device;
    int shared = 48 << 10;            // dynamic bytes that a block may have
    std::atomic<bool> releases{false}; // it has called let_next_begin
};

// Launch is a kernel that was queued.
struct Launch : Work {
    Function *function;
    Index blocks, threads;
    unsigned shared; // dynamic bytes
    bool overlap;    // it may begin before the one before it has ended
    std::vector<char> parameter;
    int run(Stream &s, Work *next) override;
};

struct Block;
struct Warp;

// Copying is a copy to shared memory that is under way.
struct Copying {
    void *to;
    const void *from;
    size_t n;
    bool is;
};

struct Fiber : Thread {
    void *stack = nullptr; // where it goes on
    char *memory = nullptr;
    size_t number = 0; // of all that the stream's thread has
    Warp *warp = nullptr;
    std::vector<std::vector<Copying>> groups; // that were committed, and last the open one
};

// Exchange is where lanes of a mask meet; two turns are kept.
struct Exchange {
    unsigned mask, arrived = 0, turn = 0;
    void (*combine)(Slots *) = nullptr;
    Slots slots[2];
};

struct Warp {
    Block *block = nullptr;
    std::vector<Fiber *> lanes;
    unsigned alive = 0;
    // By bit: lanes that can go on, and those that wait: at the block's barrier, at the
    // cluster's, at that of some, for earlier kernels, and for what others write.
    unsigned ready = 0, atBarrier = 0, atSome = 0, atCluster = 0, early = 0, spins = 0;
    std::vector<std::unique_ptr<Exchange>> exchanges;
};

// Unit is blocks that run together: a cluster, or one block.
struct Unit {
    std::vector<std::unique_ptr<Block>> blocks;
    unsigned alive = 0, arrived = 0; // threads; those at the cluster's barrier
    bool held = false;               // the kernel before has not ended
};

struct Variable {
    const void *key;
    size_t at, size;
};

// Pending is copies of a thread that arrives at a barrier when they have been made.
struct Pending {
    std::vector<Copying> copies;
    void *barrier;
};

struct Block {
    Unit *unit = nullptr;
    Index index{};
    int rank = 0; // in its cluster
    std::vector<Warp> warps;
    unsigned alive = 0, arrived = 0; // threads; those at the barrier
    bool late = false;               // copies are made when they are waited for
    char *shared = nullptr;          // of dynamic bytes, then of variables
    size_t used = 0, dynamic = 0;
    std::vector<Variable> variables;
    unsigned some = 0; // threads at the barrier of some
    std::vector<Pending> pending;
};

// leaveFibers frees what the calling thread has for fibers.
void leaveFibers();
} // namespace emulated
