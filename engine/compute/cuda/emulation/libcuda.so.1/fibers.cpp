// How a launch runs: its blocks one after the other, in an order that a seed gives, or
// as many at once as wait for each other.
#include "fibers.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "engine.h"

thread_local emulated::Thread *emulated_self = nullptr;

// outrider_emulation_switch keeps the registers that a call keeps on the present stack,
// where it notes the stack, and goes on where the other one did that.
asm(R"(
.text
.globl outrider_emulation_switch
.type outrider_emulation_switch, @function
outrider_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size outrider_emulation_switch, .-outrider_emulation_switch
)");
extern "C" void outrider_emulation_switch(void **from, void *to) __attribute__((visibility("hidden")));

namespace emulated {
namespace {
constexpr size_t STACK = 128 << 10, PAGE = 4096;
constexpr size_t SHARED = 228 << 10; // of a block, at most; what is beyond is a fault

thread_local Engine *engine __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<uint64_t> launches{0};
struct sigaction before[NSIG];

void handler(int signal, siginfo_t *info, void *context) {
    if (engine && engine->running && emulated_self) {
        engine->stopAt(info->si_addr);
        siglongjmp(engine->out, 1);
    }
    const struct sigaction &old = before[signal];
    if (old.sa_flags & SA_SIGINFO) {
        old.sa_sigaction(signal, info, context);
    } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
        old.sa_handler(signal);
    } else {
        ::signal(signal, SIG_DFL);
        raise(signal);
    }
}

void install() {
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        struct sigaction a = {};
        a.sa_sigaction = handler;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
        sigfillset(&a.sa_mask);
        sigaction(s, &a, &before[s]);
    }
}

// begin is where a fiber's stack begins.
void begin() {
    engine->body();
    engine->ended();
    __builtin_unreachable();
}

void makeCopy(const Copying &c) {
    if (c.is)
        memcpy(c.to, c.from, c.n);
    else
        memset(c.to, 0, c.n);
}
} // namespace

Engine &Engine::here() {
    if (!engine) {
        static std::once_flag once;
        std::call_once(once, install);
        engine = new Engine;
    }
    return *engine;
}

void leaveFibers() {
    delete engine;
    engine = nullptr;
}

Engine::Engine() {
    altstack = malloc(64 << 10);
    stack_t s = {};
    s.ss_sp = altstack;
    s.ss_size = 64 << 10;
    sigaltstack(&s, nullptr);
    seed = setting("OUTRIDER_EMULATION_SEED", 1);
}

Engine::~Engine() {
    stack_t s = {};
    s.ss_flags = SS_DISABLE;
    sigaltstack(&s, nullptr);
    free(altstack);
    for (Fiber *f : all) {
        munmap(f->memory, STACK + PAGE);
        delete f;
    }
    for (char *p : arenas) munmap(p, SHARED + 2 * PAGE);
}

Fiber *Engine::fiber() {
    if (idle.empty()) {
        char *p = (char *)mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            fprintf(stderr, "emulation: no memory for threads' stacks\n");
            abort();
        }
        mprotect(p, PAGE, PROT_NONE);
        Fiber *f = new Fiber;
        f->memory = p;
        f->number = all.size();
        all.push_back(f);
        idle.push_back(f);
    }
    Fiber *f = idle.back();
    idle.pop_back();
    f->groups.clear();
    f->groups.emplace_back();
    // Stacks begin at different lines of the processor's cache.
    void **top = (void **)(f->memory + STACK + PAGE - 64 * (f->number % 64));
    *--top = nullptr;       // a call pushes where to return to: keeps the stack aligned
    *--top = (void *)begin; // of the switch's ret
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    f->stack = top;
    return f;
}

// arena is a block's shared memory, between pages that cannot be touched.
char *Engine::arena() {
    if (freeArenas.empty()) {
        char *p = (char *)mmap(nullptr, SHARED + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) {
            fprintf(stderr, "emulation: no memory for shared memory\n");
            abort();
        }
        mprotect(p, PAGE, PROT_NONE);
        mprotect(p + PAGE + SHARED, PAGE, PROT_NONE);
        arenas.push_back(p);
        freeArenas.push_back(p + PAGE);
    }
    char *p = freeArenas.back();
    freeArenas.pop_back();
    return p;
}

std::unique_ptr<Unit> Engine::unit(const Launch &l, size_t n) {
    const int *c = l.function->kernel->cluster;
    Index size = {(unsigned)std::max(c[0], 1), (unsigned)std::max(c[1], 1), (unsigned)std::max(c[2], 1)};
    Index units = {l.blocks.x / size.x, l.blocks.y / size.y, l.blocks.z / size.z};
    Index first = {(unsigned)(n % units.x) * size.x, (unsigned)(n / units.x % units.y) * size.y, (unsigned)(n / units.x / units.y) * size.z};
    auto u = std::make_unique<Unit>();
    for (unsigned k = 0; k < size.x * size.y * size.z; k++) {
        auto b = std::make_unique<Block>();
        b->unit = u.get();
        b->rank = (int)k;
        b->index = {first.x + k % size.x, first.y + k / size.x % size.y, first.z + k / size.x / size.y};
        b->late = random() & 1;
        b->shared = arena();
        b->dynamic = l.shared;
        b->used = (l.shared + 15) / 16 * 16;
        memset(b->shared, 0xff, b->used);
        unsigned count = l.threads.x * l.threads.y * l.threads.z;
        b->alive = count;
        u->alive += count;
        b->warps.resize((count + 31) / 32);
        for (unsigned t = 0; t < count; t++) {
            Warp &w = b->warps[t / 32];
            w.block = b.get();
            Fiber *f = fiber();
            f->thread = {t % l.threads.x, t / l.threads.x % l.threads.y, t / l.threads.x / l.threads.y};
            f->block = b->index, f->threads = l.threads, f->blocks = l.blocks;
            f->lane = t % 32;
            f->warp = &w;
            w.lanes.push_back(f);
            w.alive |= 1u << f->lane;
        }
        for (Warp &w : b->warps) w.ready = w.alive;
        u->blocks.push_back(std::move(b));
    }
    return u;
}

void Engine::release(Unit &u) {
    for (auto &b : u.blocks) {
        for (Warp &w : b->warps)
            for (Fiber *f : w.lanes) idle.push_back(f);
        freeArenas.push_back(b->shared);
    }
}

Course Engine::start(const Launch &l) {
    Course c;
    c.launch = &l;
    const int *k = l.function->kernel->cluster;
    size_t n = (size_t)l.blocks.x * l.blocks.y * l.blocks.z / (size_t)(std::max(k[0], 1) * std::max(k[1], 1) * std::max(k[2], 1));
    random.seed(seed * 0x9e3779b97f4a7c15u + launches++);
    c.order.resize(n);
    for (size_t i = 0; i < n; i++) c.order[i] = i;
    if (seed) std::shuffle(c.order.begin(), c.order.end(), random);
    return c;
}

// enter runs the lanes of a warp until none can go on.
void Engine::enter(Warp &w) {
    unsigned lane = seed ? random() & 31 : 0, turned = w.ready >> lane << lane;
    Fiber *f = w.lanes[__builtin_ctz(turned ? turned : w.ready)];
    emulated_self = f;
    outrider_emulation_switch(&home, f->stack);
    emulated_self = nullptr;
}

// round lets every warp of a unit go on that can; it says whether there was one.
bool Engine::round(Unit &u) {
    bool any = false;
    for (auto &b : u.blocks) {
        size_t n = b->warps.size(), first = seed ? random() % n : 0;
        for (size_t i = 0; i < n; i++) {
            Warp &w = b->warps[(first + i) % n];
            if (!w.ready) continue;
            any = true;
            enter(w);
        }
    }
    return any;
}

static bool spins(const Unit &u) {
    for (auto &b : u.blocks)
        for (const Warp &w : b->warps)
            if (w.spins) return true;
    return false;
}

// early runs the first units of what comes next up to where they wait for what is before.
void Engine::early(const Launch &next) {
    ahead = start(next);
    for (size_t i = 0; i < 2 && ahead.next < ahead.order.size(); i++) {
        auto u = unit(next, ahead.order[ahead.next++]);
        u->held = true;
        launch = &next;
        while (round(*u)) {
        }
        ahead.active.push_back(std::move(u));
    }
}

// finish runs all units of a course.
void Engine::finish(Course &c) {
    launch = c.launch;
    for (auto &u : c.active) {
        u->held = false;
        for (auto &b : u->blocks)
            for (Warp &w : b->warps) w.ready |= w.early, w.early = 0;
    }
    unsigned tries = 0;
    while (!c.active.empty() || c.next < c.order.size()) {
        if (c.active.empty()) c.active.push_back(unit(*c.launch, c.order[c.next++]));
        bool any = false, waits = false;
        for (size_t i = 0; i < c.active.size();) {
            Unit &u = *c.active[i];
            while (round(u)) any = true;
            if (u.alive == 0) {
                release(u);
                c.active.erase(c.active.begin() + (long)i);
                continue;
            }
            if (spins(u))
                waits = true;
            else
                deadlock(u);
            i++;
        }
        if (!waits) continue;
        if (launching->fault) return;
        if (c.next < c.order.size() && c.active.size() < MOST_AT_ONCE) {
            c.active.push_back(unit(*c.launch, c.order[c.next++]));
        } else if (any && ++tries > 100) {
            usleep(50);
        } else {
            sched_yield();
        }
        for (auto &u : c.active)
            for (auto &b : u->blocks)
                for (Warp &w : b->warps) w.ready |= w.spins, w.spins = 0;
    }
}

int Engine::run(const Launch &l, const Launch *next, Device *d) {
    launching = d;
    running = true;
    Course now;
    if (sigsetjmp(out, 1) == 0) {
        if (ahead.launch == &l && !ahead.active.empty()) {
            now = std::move(ahead);
            ahead = Course{};
        } else {
            drop(ahead);
            now = start(l);
        }
        if (next && next->overlap && l.function->releases) early(*next);
        current = &now;
        finish(now);
    } else {
        emulated_self = nullptr;
        fault(d, code, said);
    }
    if (d->fault) {
        drop(now);
        drop(ahead);
    }
    current = nullptr;
    running = false;
    return d->fault;
}

void Engine::drop(Course &c) {
    for (auto &u : c.active) release(*u);
    c = Course{};
}

bool Engine::stacked(uintptr_t p) const { return p - (uintptr_t)((const Fiber *)emulated_self)->memory < STACK + PAGE; }

int Engine::sharedAt(uintptr_t p, size_t n) const {
    const Block &own = *((const Fiber *)emulated_self)->warp->block;
    for (const auto &b : own.unit->blocks) {
        size_t at = p - (uintptr_t)b->shared;
        if (at < SHARED) return at + n <= b->used ? 1 : -1;
    }
    return 0;
}

// The rest is called by a fiber.

void Engine::body() { launch->function->kernel->run(launch->parameter.data()); }

// suspend goes on with another lane of the warp, or back to the round.
void Engine::suspend() {
    Fiber *f = (Fiber *)emulated_self;
    unsigned ready = f->warp->ready;
    if (ready) {
        unsigned after = f->lane == 31 ? 0 : ready >> (f->lane + 1) << (f->lane + 1);
        Fiber *to = f->warp->lanes[__builtin_ctz(after ? after : ready)];
        if (to == f) return;
        emulated_self = to;
        outrider_emulation_switch(&f->stack, to->stack);
    } else {
        outrider_emulation_switch(&f->stack, home);
    }
}

static void pass(Block &b) {
    b.arrived = 0;
    for (Warp &w : b.warps) w.ready |= w.atBarrier, w.atBarrier = 0;
}

static void passCluster(Unit &u) {
    u.arrived = 0;
    for (auto &b : u.blocks)
        for (Warp &w : b->warps) w.ready |= w.atCluster, w.atCluster = 0;
}

static void complete(Warp &w, Exchange &e) {
    Slots &s = e.slots[e.turn++ & 1];
    s.there = e.arrived;
    if (e.combine) e.combine(&s);
    w.ready |= e.arrived;
    e.arrived = 0;
}

void Engine::ended() {
    Fiber *f = (Fiber *)emulated_self;
    Warp &w = *f->warp;
    Block &b = *w.block;
    unsigned bit = 1u << f->lane;
    w.alive &= ~bit, w.ready &= ~bit;
    b.alive--, b.unit->alive--;
    if (b.alive == 0 && !b.pending.empty()) emulated_stop("a block ends while copies of %zu of its threads are under way", b.pending.size());
    if (b.arrived && b.arrived == b.alive) pass(b);
    if (b.unit->arrived && b.unit->arrived == b.unit->alive) passCluster(*b.unit);
    for (auto &e : w.exchanges)
        if (e->arrived && e->arrived == (e->mask & w.alive)) complete(w, *e);
    suspend();
}

void Engine::barrier() {
    Fiber *f = (Fiber *)emulated_self;
    Warp &w = *f->warp;
    Block &b = *w.block;
    unsigned bit = 1u << f->lane;
    w.atBarrier |= bit, w.ready &= ~bit;
    if (++b.arrived == b.alive)
        pass(b);
    else
        suspend();
}

void Engine::clusterBarrier() {
    Fiber *f = (Fiber *)emulated_self;
    Warp &w = *f->warp;
    Unit &u = *w.block->unit;
    unsigned bit = 1u << f->lane;
    w.atCluster |= bit, w.ready &= ~bit;
    if (++u.arrived == u.alive)
        passCluster(u);
    else
        suspend();
}

Slots *Engine::exchange(unsigned mask, int op, const void *data, size_t n, void (*combine)(Slots *)) {
    Fiber *f = (Fiber *)emulated_self;
    Warp &w = *f->warp;
    unsigned bit = 1u << f->lane;
    if (!(mask & bit)) emulated_stop("lane %u calls an operation of the lanes %08x, which it is not among", f->lane, mask);
    Exchange *e = nullptr;
    for (auto &x : w.exchanges)
        if (x->mask == mask) e = x.get();
    if (!e) {
        w.exchanges.push_back(std::make_unique<Exchange>());
        e = w.exchanges.back().get();
        e->mask = mask;
    }
    Slots *s = &e->slots[e->turn & 1];
    if (e->arrived && s->op != op) emulated_stop("lanes of the mask %08x are at operations of the warp that differ", mask);
    s->op = op;
    if (n == 40)
        memcpy(s->of[f->lane], data, 40); // mma, of which there are many
    else
        memcpy(s->of[f->lane], data, n);
    e->arrived |= bit;
    e->combine = combine;
    if (e->arrived == (mask & w.alive)) {
        complete(w, *e);
    } else {
        w.ready &= ~bit;
        suspend();
    }
    return s;
}

void Engine::spin() {
    Fiber *f = (Fiber *)emulated_self;
    f->warp->spins |= 1u << f->lane;
    f->warp->ready &= ~(1u << f->lane);
    suspend();
}

void Engine::waitForEarlier() {
    Fiber *f = (Fiber *)emulated_self;
    Warp &w = *f->warp;
    if (!w.block->unit->held) return;
    w.early |= 1u << f->lane;
    w.ready &= ~(1u << f->lane);
    suspend();
}

void *Engine::variable(const void *key, size_t n, size_t align) {
    Block &b = *((Fiber *)emulated_self)->warp->block;
    for (const Variable &v : b.variables)
        if (v.key == key) return b.shared + v.at;
    size_t at = (b.used + align - 1) / align * align;
    if (at + n > SHARED) emulated_stop("%zu bytes of shared memory: a block may have %zu", at + n, SHARED);
    b.variables.push_back({key, at, n});
    b.used = at + n;
    memset(b.shared + at, 0xff, n);
    return b.shared + at;
}

void Engine::copy(const Copying &c) {
    Fiber *f = (Fiber *)emulated_self;
    if ((uintptr_t)c.to % c.n || (c.is && (uintptr_t)c.from % c.n)) emulated_stop("a copy of %zu bytes from %p to %p: multiples of that are allowed", c.n, c.from, c.to);
    if (f->warp->block->late)
        f->groups.back().push_back(c);
    else
        makeCopy(c);
}

void Engine::commit() { ((Fiber *)emulated_self)->groups.emplace_back(); }

void Engine::await(unsigned left) {
    auto &g = ((Fiber *)emulated_self)->groups;
    while (g.size() - 1 > left) { // the last one is still open
        for (const Copying &c : g.front()) makeCopy(c);
        g.erase(g.begin());
    }
}

// someMeet: all threads of a warp come, or none.
void Engine::someMeet(unsigned threads) {
    Fiber *f = (Fiber *)emulated_self;
    Warp &w = *f->warp;
    Block &b = *w.block;
    unsigned bit = 1u << f->lane;
    w.atSome |= bit, w.ready &= ~bit;
    if (++b.some == threads) {
        b.some = 0;
        for (Warp &x : b.warps) x.ready |= x.atSome, x.atSome = 0;
    } else {
        suspend();
    }
}

namespace {
// Barrier is one of a block, in its shared memory.
struct Barrier {
    uint16_t threads, left;
    uint32_t turn;
};
static_assert(sizeof(Barrier) == 8);

Barrier &barrierAt(const Engine &e, void *b) {
    if ((uintptr_t)b % 8 || e.sharedAt((uintptr_t)b, 8) != 1) emulated_stop("a barrier at %p, which is no word of the block's shared memory", b);
    return *(Barrier *)b;
}

void count(Barrier &b) {
    if (b.left == 0) emulated_stop("more threads arrive at a barrier than the %d that it is for", b.threads);
    if (--b.left) return;
    b.left = b.threads;
    b.turn ^= 1;
}
} // namespace

void Engine::makeBarrier(void *at, unsigned threads) {
    Barrier &b = barrierAt(*this, at);
    b.threads = b.left = (uint16_t)threads;
    b.turn = 0;
}

void Engine::arrive(void *at) { count(barrierAt(*this, at)); }

// makePending makes the copies of a thread of the block, which then arrives.
static void makePending(Block &b, size_t i) {
    Pending p = std::move(b.pending[i]);
    b.pending.erase(b.pending.begin() + (long)i);
    for (const Copying &c : p.copies) makeCopy(c);
    count(*(Barrier *)p.barrier);
}

void Engine::arriveCopied(void *at) {
    Fiber *f = (Fiber *)emulated_self;
    Block &b = *f->warp->block;
    barrierAt(*this, at);
    Pending p;
    p.barrier = at;
    for (auto &group : f->groups) p.copies.insert(p.copies.end(), group.begin(), group.end());
    f->groups.assign(1, {});
    b.pending.push_back(std::move(p));
    if (!b.late) makePending(b, b.pending.size() - 1);
}

bool Engine::passed(void *at, unsigned parity) {
    Barrier &b = barrierAt(*this, at);
    if (b.turn != parity) return true;
    Block &block = *((Fiber *)emulated_self)->warp->block;
    if (!block.pending.empty()) makePending(block, random() % block.pending.size());
    if (b.turn != parity) return true;
    spin();
    return b.turn != parity;
}
} // namespace emulated
