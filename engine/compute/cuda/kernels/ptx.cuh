// Every PTX instruction that a kernel asks for by name, one function each. It is put
// before all other text: there are no includes, since the machine that compiles has
// no toolkit. A compiler for a machine that has no PTX defines NO_PTX and brings the
// functions itself.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEV __device__ __forceinline__

// FOUR_WARPS: there are instructions that four warps give together.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FOUR_WARPS
#endif

#ifndef NO_PTX

// A kernel may begin before the one ahead of it in the stream has ended.
// wait_for_earlier is where it waits for that one's results; every thread that
// reads or writes what others write comes by there first, and every kernel
// calls it, so that whoever waits for this kernel waits for all earlier ones.
DEV void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// let_next_begin allows the next kernel's blocks to take places that this one
// leaves free.
DEV void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// pack rounds two numbers to bfloat16, a into the lower half.
DEV u32 pack(float a, float b) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
DEV u16 round16(float a) {
    u16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(a));
    return r;
}

// halves rounds two numbers to float16, a into the lower half.
DEV u32 halves(float a, float b) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
DEV float half(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// halvesOf8 makes float16 numbers of a word's first two float8 codes and of its last two.
#if __CUDA_ARCH__ >= 890
DEV void halvesOf8(u32 w, u32 &first, u32 &last) {
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b; }" : "=r"(first), "=r"(last) : "r"(w));
}
#endif

// fma2 is of two bfloat16 numbers each: a · b + c, rounded once.
DEV u32 fma2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// and_or is a & b | c.
DEV u32 and_or(u32 a, u32 b, u32 c) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// inRegisters has two constants stay in registers: the compiler would else set them
// anew for each use.
DEV void inRegisters(u32 &a, u32 &b) { asm volatile("" : "+r"(a), "+r"(b)); }

// loadWeights reads 16 bytes that are used once. It is no ld.global.nc: the compiler
// moves those behind wait_for_earlier, which they shall come before.
DEV uint4 loadWeights(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// loadNow reads 16 bytes where it stands in the program, and loadNow4 4: the compiler would move
// an ordinary load to where its value is used.
DEV uint4 loadNow(const void *p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEV float loadNow4(const void *p) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

// loadShared reads 16 bytes of shared memory where it stands in the program.
DEV uint4 loadShared(const void *p) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"((u32)__cvta_generic_to_shared(p)) : "memory");
    return v;
}

// mma adds the product of a 16 × 16 and a 16 × 8 matrix to c (m16n8k16).
template <bool HALF> DEV void mma(float *c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (HALF)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#ifdef FOUR_WARPS
// Barriers of a block in shared memory. One is passed when as many threads as it was made
// for have arrived; its parity turns with each time.
DEV u32 shared32(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEV void makeBarrier(u64 *b, u32 threads) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared32(b)), "r"(threads) : "memory"); }

// barriersMade comes between a thread's makeBarrier and the block's __syncthreads.
DEV void barriersMade() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// arrive counts the thread, and arriveCopied does when what it copied by copy4 and copy16
// until then has come.
DEV void arrive(u64 *b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared32(b)) : "memory"); }
DEV void arriveCopied(u64 *b) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared32(b)) : "memory"); }

// passed waits some time for the turn of that parity, and tells whether it is over.
DEV bool passed(u64 *b, u32 parity) {
    u32 is;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(is) : "r"(shared32(b)), "r"(parity) : "memory");
    return is;
}

// someMeet is __syncthreads for the THREADS threads of some of a block's warps.
template <int THREADS> DEV void someMeet() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// Four warps give registers back until they have N each, or get them.
template <int N> DEV void fewerRegisters() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEV void moreRegisters() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// What four warps that follow each other, the first a multiple of four, do together.
// shareWithFour lets such products see what was written to shared memory before. beginFour
// comes between what sets a product's registers and the product. endFour ends a group of
// products, and awaitFour waits until at most LEFT groups, the last ones, are under way; d
// are the sums of the others.
DEV void shareWithFour() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void beginFour() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void endFour() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int ROWS, int LEFT> DEV void awaitFour(float (*d)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int n = 0; n < ROWS / 8; n++) asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

// mmaFour sets d to the product of a 16 × 16 matrix of each warp, as mma has it, and 16
// columns of ROWS rows, and adds what it was (m64nROWSk16). The rows lie 128 bytes apart
// from a multiple of 1,024 on, and x is where the columns of the first would lie, a
// multiple of 32; each 16 bytes lie where the row's last three bits are turned in their
// place (128-byte swizzle). PTX ISA, asynchronous warpgroup level matrix instructions.
#define SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
template <int ROWS> DEV void mmaFour(float (*d)[4], u32 a0, u32 a1, u32 a2, u32 a3, const void *x, bool add) {
    u64 rows = ((u32)__cvta_generic_to_shared(x) & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
    if (ROWS == 16)
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
                     "{%0,%1,%2,%3,%4,%5,%6,%7},{%8,%9,%10,%11},%12,p,1,1,0; }"
                     : SUMS(0), SUMS(1)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(rows), "r"((int)add));
    else if (ROWS == 32)
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,p,1,1,0; }"
                     : SUMS(0), SUMS(1), SUMS(2), SUMS(3)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(rows), "r"((int)add));
    else
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"
                     "{%32,%33,%34,%35},%36,p,1,1,0; }"
                     : SUMS(0), SUMS(1), SUMS(2), SUMS(3), SUMS(4), SUMS(5), SUMS(6), SUMS(7)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(rows), "r"((int)add));
}
#endif

// Copies to shared memory that are made later: of 16 bytes; of 16 bytes that lie in a
// longer stretch to be read, or as many zeros; and of 4 bytes, or zeros.
DEV void copyAsync(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
DEV void copy16(void *to, const void *from, bool is) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(is ? 16 : 0) : "memory");
}
DEV void copy4(void *to, const void *from, bool is) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(is ? 4 : 0) : "memory");
}

// copied ends a group of a thread's copies; await waits until at most GROUPS of its
// groups, the last ones, are under way.
DEV void copied() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GROUPS> DEV void await() { asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory"); }

#if __CUDA_ARCH__ >= 900
// cluster_sync is __syncthreads for all blocks of a cluster.
DEV void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// remote4 reads, in the shared memory of block rank of the cluster, what lies at p here.
DEV float4 remote4(const void *p, int rank) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"((u32)__cvta_generic_to_shared(p)), "r"(rank));
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at));
    return v;
}
#endif

// What GPUs write for each other, and blocks of one GPU. loadGPU reads what kernels
// before have written; storePush and loadPush are of 16 bytes of which each 8 arrive at
// once; storeSign and loadSign are of a sign that what was written before is there, and
// loadSigned of that.
DEV u32 loadGPU(const u32 *p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV void storePush(uint4 *to, u32 a, u32 n, u32 b) { asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(a), "r"(n), "r"(b) : "memory"); }
DEV uint4 loadPush(const uint4 *p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
DEV void storeSign(u32 *to, u32 n) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(n) : "memory"); }
DEV u32 loadSign(const u32 *p) {
    u32 v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV uint4 loadSigned(const uint4 *p) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

#endif
