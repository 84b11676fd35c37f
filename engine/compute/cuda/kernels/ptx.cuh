// Every PTX instruction that a kernel asks for by name, one function each. It is put
// before all other text: there are no includes, since the machine that compiles has
// no toolkit. A compiler for a machine that has no PTX defines NO_PTX and brings the
// functions itself.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEV __device__ __forceinline__

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
