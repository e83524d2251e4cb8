// cuBLAS in plain loops: column-major, any transposes and leading dimensions; products in float32
// of float32, bfloat16 or float16. The work goes through streams, so that captures have it.
#include <algorithm>

#include "numbers.h"

#define API extern "C" __attribute__((visibility("default")))
extern "C" int cudashim_enqueue(void *stream, int (*run)(void *), void (*drop)(void *), void *data);
extern "C" int cudashim_touch(const void *address, size_t bytes, const char *what);
extern "C" int cuCtxGetCurrent(void **context);
extern "C" int cudashim_finish();

enum Status {
  SUCCESS = 0,
  NOT_INITIALIZED = 1,
  INVALID_VALUE = 7,
  EXECUTION_FAILED = 13,
  NOT_SUPPORTED = 15
};
// Of cublasComputeType_t and cublasMath_t.
enum Compute { IN_F32 = 68, IN_F32_PEDANTIC = 69, FAST_BF16 = 75, FAST_TF32 = 77 };
enum { TF32_MATH = 3 };

struct Handle {
  const void *copy;  // of this library that has made it: another one cannot use it
  void *context, *stream;
  int math, pointers;  // pointers: 0 where alpha and beta are in host memory, 1 on the device
};
static const char this_copy = 0;
static bool is_mine(const Handle *handle) { return handle && handle->copy == &this_copy; }
#define MINE(handle) \
  if (!is_mine(handle)) return NOT_INITIALIZED
static void *current() {
  void *context = nullptr;
  return cuCtxGetCurrent(&context) ? nullptr : context;
}

API int cublasCreate_v2(Handle **handle) {
  if (!current()) return NOT_INITIALIZED;
  *handle = new Handle{&this_copy, current()};
  return SUCCESS;
}
API int cublasDestroy_v2(Handle *handle) {
  MINE(handle);
  cudashim_finish();
  delete handle;
  return SUCCESS;
}
API int cublasGetVersion_v2(Handle *, int *version) { return *version = 130001, SUCCESS; }
#define SETTING(set, get, type, member)         \
  API int set(Handle *h, type value) {          \
    MINE(h);                                    \
    return h->member = value, SUCCESS;          \
  }                                             \
  API int get(Handle *h, type *value) {         \
    MINE(h);                                    \
    return *value = h->member, SUCCESS;         \
  }
SETTING(cublasSetStream_v2, cublasGetStream_v2, void *, stream)
SETTING(cublasSetMathMode, cublasGetMathMode, int, math)
SETTING(cublasSetPointerMode_v2, cublasGetPointerMode_v2, int, pointers)
API int cublasSetAtomicsMode(Handle *, int) { return SUCCESS; }
API int cublasSetWorkspace_v2(Handle *h, void *workspace, size_t bytes) {
  MINE(h);
  bool failed = workspace && cudashim_touch(workspace, bytes, "the workspace of cuBLAS");
  return failed ? EXECUTION_FAILED : SUCCESS;
}
API const char *cublasGetStatusString(int status) {
  switch (status) {
    case SUCCESS: return "success";
    case NOT_INITIALIZED: return "the library was not initialized";
    case INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case NOT_SUPPORTED: return "the functionality requested is not supported";
    default: return "unknown";
  }
}

struct Matrix {  // op(stored), where `stored` is column-major
  const void *data;
  int type, transposed, ld;
  long long stride;
  float at(long long batch, int row, int column) const {
    size_t i = transposed ? column + size_t(row) * ld : row + size_t(column) * ld;
    return load(data, i + batch * stride, type);
  }
  bool fits(int rows, int columns) const { return ld >= std::max(1, transposed ? columns : rows); }
  bool reachable(int rows, int columns, int batches, const char *what) const {
    if (!rows || !columns || !batches) return true;
    if (transposed) std::swap(rows, columns);
    size_t count = (batches - 1) * stride + size_t(columns - 1) * ld + rows;
    return cudashim_touch(data, count * width(type), what) == 0;
  }
};
struct Scalar {  // alpha or beta, read when the work is done if it is on the device
  const float *p;
  float host;
  bool on_device;
  Scalar(const Handle *h, const void *number)
      : p(static_cast<const float *>(number)),
        host(h->pointers ? 0 : *p),
        on_device(h->pointers) {}
  float value() const { return on_device ? *p : host; }
};

template <class Work> static int submit(Handle *h, Work work) {
  auto run = [](void *w) { return (*static_cast<Work *>(w))(), 0; };
  auto drop = [](void *w) { delete static_cast<Work *>(w); };
  return cudashim_enqueue(h->stream, run, drop, new Work(work)) ? EXECUTION_FAILED : SUCCESS;
}

struct Product {
  Matrix a, b, c;
  int m, n, k, batches;
  Scalar alpha, beta;
  int dropped;  // bits of the operands' mantissas that are rounded away
  void operator()() const {
    std::vector<float> left(size_t(m) * k), right(k), sum(m);
    for (int batch = 0; batch < batches; ++batch) {
      for (int l = 0; l < k; ++l)
        for (int i = 0; i < m; ++i) left[size_t(l) * m + i] = operand(a.at(batch, i, l));
      for (int j = 0; j < n; ++j) {
        for (int l = 0; l < k; ++l) right[l] = operand(b.at(batch, l, j));
        column(left.data(), right.data(), sum.data());
        for (int i = 0; i < m; ++i) write(batch, i, j, sum[i]);
      }
    }
  }
  float operand(float x) const { return dropped ? keep_bits(x, dropped) : x; }
  void column(const float *left, const float *right, float *__restrict sum) const {
    std::fill_n(sum, m, 0.0f);
    for (int l = 0; l < k; ++l) {
      const float x = right[l], *row = left + size_t(l) * m;
      for (int i = 0; i < m; ++i) sum[i] += row[i] * x;
    }
  }
  void write(int batch, int i, int j, float sum) const {
    size_t at = i + size_t(j) * c.ld + batch * c.stride;
    float old = beta.value() == 0 ? 0 : beta.value() * load(c.data, at, c.type);
    store(const_cast<void *>(c.data), at, c.type, alpha.value() * sum + old);
  }
};
static int multiply(Handle *h, Matrix a, Matrix b, Matrix c, int m, int n, int k, int batches,
                    const void *alpha, const void *beta, int compute) {
  MINE(h);
  if (h->context != current()) return EXECUTION_FAILED;
  if (m < 0 || n < 0 || k < 0 || batches < 0 || !a.fits(m, k) || !b.fits(k, n) || !c.fits(m, n) ||
      !alpha || !beta)
    return INVALID_VALUE;
  if (a.type != b.type || (c.type != F32 && c.type != a.type)) return NOT_SUPPORTED;
  if (!a.reachable(m, k, batches, "A of a product") ||
      !b.reachable(k, n, batches, "B of a product") ||
      !c.reachable(m, n, batches, "C of a product"))
    return EXECUTION_FAILED;
  int dropped = 0;
  if (a.type == F32 && compute != IN_F32_PEDANTIC) {
    if (h->math == TF32_MATH || compute == FAST_TF32) dropped = 13;
    if (compute == FAST_BF16) dropped = 16;
  }
  return submit(h, Product{a, b, c, m, n, k, batches, {h, alpha}, {h, beta}, dropped});
}
API int cublasGemmStridedBatchedEx(Handle *h, int ta, int tb, int m, int n, int k,
                                   const void *alpha, const void *a, int a_type, int lda,
                                   long long a_stride, const void *b, int b_type, int ldb,
                                   long long b_stride, const void *beta, void *c, int c_type,
                                   int ldc, long long c_stride, int batches, int compute, int) {
  return multiply(h, {a, a_type, ta, lda, a_stride}, {b, b_type, tb, ldb, b_stride},
                  {c, c_type, 0, ldc, c_stride}, m, n, k, batches, alpha, beta, compute);
}
API int cublasGemmEx(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha,
                     const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                     const void *beta, void *c, int c_type, int ldc, int compute, int) {
  return multiply(h, {a, a_type, ta, lda, 0}, {b, b_type, tb, ldb, 0}, {c, c_type, 0, ldc, 0}, m, n,
                  k, 1, alpha, beta, compute);
}
API int cublasSgemm_v2(Handle *h, int ta, int tb, int m, int n, int k, const float *alpha,
                       const float *a, int lda, const float *b, int ldb, const float *beta,
                       float *c, int ldc) {
  return multiply(h, {a, F32, ta, lda, 0}, {b, F32, tb, ldb, 0}, {c, F32, 0, ldc, 0}, m, n, k, 1,
                  alpha, beta, IN_F32);
}
API int cublasSgemmStridedBatched(Handle *h, int ta, int tb, int m, int n, int k,
                                  const float *alpha, const float *a, int lda,
                                  long long a_stride, const float *b, int ldb,
                                  long long b_stride, const float *beta, float *c, int ldc,
                                  long long c_stride, int batches) {
  return multiply(h, {a, F32, ta, lda, a_stride}, {b, F32, tb, ldb, b_stride},
                  {c, F32, 0, ldc, c_stride}, m, n, k, batches, alpha, beta, IN_F32);
}
