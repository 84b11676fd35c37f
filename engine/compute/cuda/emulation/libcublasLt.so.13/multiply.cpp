// libcublasLt stands in for NVIDIA's library of products: the functions that
// engine/compute/cuda/blas calls, as cublasLt.h declares them, and of each what it
// asks for: D = alpha · op(A) · op(B) + beta · C of column-major matrices with A
// transposed, sums of float32, no epilogue. What else the real library computes is
// CUBLAS_STATUS_NOT_SUPPORTED here. It takes device pointers as the host's.
#include "bfloat16.h"
#include "emulation.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

enum Type { F32 = 0, F16 = 2, BF16 = 14 };  // cudaDataType_t

constexpr int COMPUTE_32F = 68;
constexpr int OP_N = 0, OP_T = 1;
constexpr int DESC_TRANSA = 3, DESC_TRANSB = 4;  // cublasLtMatmulDescAttributes_t
constexpr int PREF_MAX_WORKSPACE = 1;            // cublasLtMatmulPreferenceAttributes_t

struct Handle {};

struct Desc {
  int32_t transA = OP_N, transB = OP_N;
};

struct Layout {
  int32_t type;
  uint64_t rows, cols;
  int64_t ld;
};

struct Preference {
  uint64_t workspace = 0;
};

// cublasLtMatmulAlgo_t and cublasLtMatmulHeuristicResult_t.
struct Algorithm {
  uint64_t data[8];
};

struct Heuristic {
  Algorithm algorithm;
  uint64_t workspace;
  int32_t state;
  float waves;
  int32_t reserved[4];
};

// An algorithm is a mark, which tells it from what was not made here, and the parts
// that the sums are computed in.
constexpr uint64_t MARK = 0x6f7574726964;

uint64_t bytesOf(int32_t type) { return type == F32 ? 4 : 2; }

float fromF16(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000) << 16, e = bits >> 10 & 31, m = bits & 0x3ff, u;
  if (e == 31) {
    u = sign | 0x7f800000 | m << 13;
  } else if (e) {
    u = sign | (e + 112) << 23 | m << 13;
  } else {  // m · 2⁻²⁴
    float f = (float)m * 0x1p-24f;
    memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  memcpy(&f, &u, 4);
  return f;
}

// To the nearest, ties to even.
uint16_t narrowF16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  uint32_t sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return 0x7fff;
  if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);  // 65,520 and up
  if (u < 0x38800000) {                                   // below 2⁻¹⁴: a whole number of 2⁻²⁴
    float a;
    memcpy(&a, &u, 4);
    float r = a * 0x1p24f + 0x1p23f;  // what it is rounded to lies in the lowest bits
    uint32_t v;
    memcpy(&v, &r, 4);
    return (uint16_t)(sign | (v & 0x7ff));
  }
  u += 0xfff + (u >> 13 & 1);
  return (uint16_t)(sign | ((u >> 13) - (112 << 10)));
}

const char *column(const void *p, const Layout &l, uint64_t i) { return (const char *)p + i * (uint64_t)l.ld * bytesOf(l.type); }

// Elements from and up of a column, as float32.
void load(float *to, const void *p, const Layout &l, uint64_t i, uint64_t from, uint64_t n) {
  const char *at = column(p, l, i) + from * bytesOf(l.type);
  if (l.type == F32) {
    memcpy(to, at, 4 * n);
    return;
  }
  const uint16_t *bits = (const uint16_t *)at;
  if (l.type == F16) {
    for (uint64_t k = 0; k < n; k++) to[k] = fromF16(bits[k]);
  } else {
    for (uint64_t k = 0; k < n; k++) to[k] = emulated::fromBfloat16(bits[k]);
  }
}

// LANES neighbours of a sum are added apart, and then with each other.
constexpr int LANES = 8;
typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

constexpr int TILE_M = 4, TILE_N = 2;

// tile sets sums to the products of some rows of a and b, [·][n] each, n a multiple
// of LANES.
void tile(float (*sums)[TILE_N], const float *a, const float *b, uint64_t n) {
  Lanes part[TILE_M][TILE_N] = {};
  for (uint64_t k = 0; k < n; k += LANES) {
    for (int j = 0; j < TILE_N; j++) {
      Lanes y = *(const Lanes *)(b + j * n + k);
      for (int i = 0; i < TILE_M; i++) part[i][j] += *(const Lanes *)(a + i * n + k) * y;
    }
  }
  for (int i = 0; i < TILE_M; i++)
    for (int j = 0; j < TILE_N; j++) {
      float s = 0;
      for (int l = 0; l < LANES; l++) s += part[i][j][l];
      sums[i][j] = s;
    }
}

// Product is a call of cublasLtMatmul that was checked.
struct Product {
  Layout a, b, c, d;
  const void *A, *B, *C;
  void *D;
  float alpha, beta;
  uint64_t parts;
  float *workspace;  // of parts sums of each element of D, where there is more than one
};

uint64_t m(const Product &p) { return p.d.rows; }
uint64_t n(const Product &p) { return p.d.cols; }

// store sets an element of D.
void store(const Product &p, uint64_t i, uint64_t j, float sum) {
  float y = p.alpha * sum;
  if (p.beta != 0) {  // without it C is not read
    float c;
    load(&c, p.C, p.c, j, i, 1);
    y += p.beta * c;
  }
  char *to = (char *)column(p.D, p.d, j) + i * bytesOf(p.d.type);
  if (p.d.type == F32) {
    memcpy(to, &y, 4);
  } else {
    uint16_t bits = p.d.type == F16 ? narrowF16(y) : emulated::toBfloat16(y);
    memcpy(to, &bits, 2);
  }
}

// some computes part of the sums of all elements: those of [from, to).
void some(const Product &p, uint64_t part, uint64_t from, uint64_t to) {
  uint64_t k = to - from, padded = (k + LANES - 1) / LANES * LANES;
  uint64_t columns = (n(p) + TILE_N - 1) / TILE_N * TILE_N;
  std::vector<float> b(columns * padded), a(TILE_M * padded);
  for (uint64_t j = 0; j < n(p); j++) load(&b[j * padded], p.B, p.b, j, from, k);
  for (uint64_t i = 0; i < m(p); i += TILE_M) {
    for (uint64_t r = 0; r < TILE_M && i + r < m(p); r++) load(&a[r * padded], p.A, p.a, i + r, from, k);
    for (uint64_t j = 0; j < n(p); j += TILE_N) {
      float sums[TILE_M][TILE_N];
      tile(sums, a.data(), &b[j * padded], padded);
      for (uint64_t r = 0; r < TILE_M && i + r < m(p); r++)
        for (uint64_t c = 0; c < TILE_N && j + c < n(p); c++) {
          if (p.parts == 1)
            store(p, i + r, j + c, sums[r][c]);
          else
            p.workspace[(part * n(p) + j + c) * m(p) + i + r] = sums[r][c];
        }
    }
  }
}

void compute(void *arg) {
  const Product &p = *(Product *)arg;
  uint64_t k = p.a.rows, each = (k + p.parts - 1) / p.parts;
  for (uint64_t part = 0; part < p.parts; part++) some(p, part, part * each < k ? part * each : k, (part + 1) * each < k ? (part + 1) * each : k);
  if (p.parts == 1) return;
  for (uint64_t j = 0; j < n(p); j++)
    for (uint64_t i = 0; i < m(p); i++) {
      float sum = 0;
      for (uint64_t part = 0; part < p.parts; part++) sum += p.workspace[(part * n(p) + j) * m(p) + i];
      store(p, i, j, sum);
    }
}

void drop(void *arg) { delete (Product *)arg; }

// check tells whether the matrices can be multiplied at all, and here.
Status check(const Desc &desc, const Layout &a, const Layout &b, const Layout &c, const Layout &d) {
  for (const Layout *l : {&a, &b, &c, &d})
    if (l->rows == 0 || l->cols == 0 || l->ld < (int64_t)l->rows) return INVALID_VALUE;
  if (desc.transA != OP_T || desc.transB != OP_N) return NOT_SUPPORTED;
  if (a.rows != b.rows || d.rows != a.cols || d.cols != b.cols || c.rows != d.rows || c.cols != d.cols) return INVALID_VALUE;
  bool types = a.type == b.type && c.type == d.type && (d.type == F32 || d.type == a.type);
  for (const Layout *l : {&a, &b, &c, &d}) {
    types = types && (l->type == F32 || l->type == F16 || l->type == BF16);
    // Rows that begin at odd addresses have no way with tensor cores.
    if (l->type != F32 && l->ld % 2) return NOT_SUPPORTED;
  }
  return types ? SUCCESS : NOT_SUPPORTED;
}

// longSum is from which length on a sum may be computed in two parts, which is
// another way than the usual one.
constexpr uint64_t longSum = 1024;

uint64_t workspaceOf(uint64_t parts, const Layout &d) { return parts > 1 ? 4 * parts * d.rows * d.cols : 0; }

template <class T, class... A>
Status make(T **to, A... a) {
  if (!to) return INVALID_VALUE;
  *to = new (std::nothrow) T{a...};
  return *to ? SUCCESS : ALLOC_FAILED;
}

template <class T>
Status destroy(T *p) {
  delete p;
  return SUCCESS;
}

template <class T>
Status set(T *to, const void *from, size_t size) {
  if (!from || size != sizeof(T)) return INVALID_VALUE;
  memcpy(to, from, size);
  return SUCCESS;
}

}  // namespace

extern "C" {

size_t cublasLtGetCudartVersion(void) { return 13000; }

Status cublasLtCreate(Handle **h) { return make(h); }
Status cublasLtDestroy(Handle *h) { return h ? destroy(h) : NOT_INITIALIZED; }

Status cublasLtMatmulDescCreate(Desc **d, int compute, int scale) { return compute == COMPUTE_32F && scale == F32 ? make(d) : NOT_SUPPORTED; }
Status cublasLtMatmulDescDestroy(Desc *d) { return destroy(d); }

Status cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *value, size_t size) {
  if (!d || (attribute != DESC_TRANSA && attribute != DESC_TRANSB)) return INVALID_VALUE;
  return set(attribute == DESC_TRANSA ? &d->transA : &d->transB, value, size);
}

Status cublasLtMatrixLayoutCreate(Layout **l, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) { return make(l, type, rows, cols, ld); }
Status cublasLtMatrixLayoutDestroy(Layout *l) { return destroy(l); }

Status cublasLtMatmulPreferenceCreate(Preference **p) { return make(p); }
Status cublasLtMatmulPreferenceDestroy(Preference *p) { return destroy(p); }

Status cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *value, size_t size) {
  if (!p || attribute != PREF_MAX_WORKSPACE) return INVALID_VALUE;
  return set(&p->workspace, value, size);
}

Status cublasLtMatmulAlgoGetHeuristic(Handle *h, const Desc *desc, const Layout *a, const Layout *b, const Layout *c, const Layout *d, const Preference *pref, int wanted,
                                      Heuristic *results, int *found) {
  if (!h) return NOT_INITIALIZED;
  if (!desc || !a || !b || !c || !d || !pref || !results || !found || wanted < 1) return INVALID_VALUE;
  *found = 0;
  Status st = check(*desc, *a, *b, *c, *d);
  if (st != SUCCESS) return st;
  for (uint64_t parts = 1; parts <= (a->rows >= longSum ? 2 : 1) && *found < wanted; parts++) {
    uint64_t bytes = workspaceOf(parts, *d);
    if (bytes <= pref->workspace) results[(*found)++] = Heuristic{{{MARK, parts}}, bytes, SUCCESS, 1, {}};
  }
  return SUCCESS;
}

Status cublasLtMatmul(Handle *h, const Desc *desc, const float *alpha, const void *A, const Layout *a, const void *B, const Layout *b, const float *beta, const void *C,
                      const Layout *c, void *D, const Layout *d, const Algorithm *algorithm, void *workspace, size_t size, void *stream) {
  if (!h) return NOT_INITIALIZED;
  if (!desc || !alpha || !A || !a || !B || !b || !beta || !C || !c || !D || !d) return INVALID_VALUE;
  Status st = check(*desc, *a, *b, *c, *d);
  if (st != SUCCESS) return st;
  uint64_t parts = 1;  // the library's own choice
  if (algorithm) {
    parts = algorithm->data[1];
    if (algorithm->data[0] != MARK || parts < 1 || parts > 2) return INVALID_VALUE;
  }
  if (parts > 1 && (!workspace || size < workspaceOf(parts, *d))) return INVALID_VALUE;
  // Tensor cores take 16 bytes of a row at a time.
  if ((uintptr_t)A % 16 || (uintptr_t)B % 16 || (uintptr_t)D % bytesOf(d->type)) return INVALID_VALUE;
  Product *p = new (std::nothrow) Product{*a, *b, *c, *d, A, B, C, D, *alpha, *beta, parts, (float *)workspace};
  if (!p) return ALLOC_FAILED;
  if (outrider_emulation_enqueue(stream, compute, drop, p) == 0) return SUCCESS;
  drop(p);
  return EXECUTION_FAILED;
}
}
