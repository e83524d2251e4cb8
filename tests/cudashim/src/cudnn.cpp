// cuDNN in plain loops: convolutions of images (N, H, W, C) with filters (F, KH, KW, C / groups), in
// float32 of float32 or bfloat16. Compiled against NVIDIA's headers where they are found.
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#define CUDASHIM_NVIDIAS 1
#else
#define CUDASHIM_NVIDIAS 0
#include "cudnn_prototypes.h"
#endif

#include <cstring>
#include <set>

#include "numbers.h"

#define API extern "C" __attribute__((visibility("default")))
extern "C" int cudashim_enqueue(void *stream, int (*run)(void *), void (*drop)(void *), void *data);
extern "C" int cudashim_touch(const void *address, size_t bytes, const char *what);
extern "C" int cuCtxGetCurrent(void **context);
extern "C" int cuCtxGetDevice(int *device);
extern "C" int cuDeviceGetAttribute(int *value, int attribute, int device);
extern "C" int cudashim_finish();

using Status = cudnnStatus_t;
struct Sizes { int n, c, h, w; };
struct cudnnContext { void *context; void *stream; };
struct cudnnTensorStruct { int type; Sizes sizes; };
struct cudnnFilterStruct { int type; Sizes sizes; };
struct cudnnConvolutionStruct {
  int padding[2], stride[2], dilation[2], groups = 1, math = CUDNN_DEFAULT_MATH;
};

static std::set<const void *> living;  // descriptors and handles
template <class T> static Status create(T **made) {
  living.insert(*made = new T{});
  return CUDNN_STATUS_SUCCESS;
}
template <class T> static Status destroy(T *made) {
  if (!living.erase(made)) return CUDNN_STATUS_BAD_PARAM;
  delete made;
  return CUDNN_STATUS_SUCCESS;
}
#define LIVING(thing) \
  if (!living.count(thing)) return CUDNN_STATUS_BAD_PARAM
API int cudashim_cudnn_living() { return living.size(); }
API int cudashim_cudnn_is_nvidias() { return CUDASHIM_NVIDIAS; }

API size_t cudnnGetVersion() { return 91002; }
API Status cudnnCreate(cudnnHandle_t *handle) {
  void *context = nullptr;
  if (cuCtxGetCurrent(&context) || !context) return CUDNN_STATUS_NOT_INITIALIZED;
  create(handle);
  (*handle)->context = context;
  return CUDNN_STATUS_SUCCESS;
}
API Status cudnnDestroy(cudnnHandle_t handle) {
  cudashim_finish();
  return destroy(handle);
}
API Status cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  LIVING(handle);
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

// Descriptions.
#define DESCRIPTOR(kind)                                                               \
  API Status cudnnCreate##kind(cudnn##kind##_t *made) { return create(made); }         \
  API Status cudnnDestroy##kind(cudnn##kind##_t made) { return destroy(made); }
DESCRIPTOR(TensorDescriptor)
DESCRIPTOR(FilterDescriptor)
DESCRIPTOR(ConvolutionDescriptor)
static bool is_number(int type) { return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_BFLOAT16; }
template <class T> static Status describe(T *made, int type, int axes, const int *sizes) {
  LIVING(made);
  if (!is_number(type) || axes != 4) return CUDNN_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < 4; ++i)
    if (sizes[i] < 1) return CUDNN_STATUS_BAD_PARAM;
  *made = {type, {sizes[0], sizes[1], sizes[2], sizes[3]}};
  return CUDNN_STATUS_SUCCESS;
}
API Status cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t made, cudnnDataType_t type, int axes,
                                      const int sizes[], const int steps[]) {
  if (Status failed = describe(made, type, axes, sizes)) return failed;
  auto [n, c, h, w] = made->sizes;
  const int expected[] = {h * w * c, 1, w * c, c};  // channels lie side by side
  return memcmp(steps, expected, sizeof expected) ? CUDNN_STATUS_NOT_SUPPORTED
                                                  : CUDNN_STATUS_SUCCESS;
}
API Status cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t made, cudnnDataType_t type,
                                      cudnnTensorFormat_t format, int axes, const int sizes[]) {
  if (format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_NOT_SUPPORTED;
  return describe(made, type, axes, sizes);
}
API Status cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t made, int axes,
                                           const int padding[], const int stride[],
                                           const int dilation[], cudnnConvolutionMode_t mode,
                                           cudnnDataType_t type) {
  LIVING(made);
  if (axes != 2 || mode != CUDNN_CROSS_CORRELATION || type != CUDNN_DATA_FLOAT)
    return CUDNN_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < 2; ++i) {
    if (padding[i] < 0 || stride[i] < 1 || dilation[i] < 1) return CUDNN_STATUS_BAD_PARAM;
    made->padding[i] = padding[i], made->stride[i] = stride[i], made->dilation[i] = dilation[i];
  }
  return CUDNN_STATUS_SUCCESS;
}
API Status cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t made, int groups) {
  LIVING(made);
  made->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
API Status cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t made, cudnnMathType_t math) {
  LIVING(made);
  if (math != CUDNN_DEFAULT_MATH && math != CUDNN_TENSOR_OP_MATH && math != CUDNN_FMA_MATH)
    return CUDNN_STATUS_NOT_SUPPORTED;
  made->math = math;
  return CUDNN_STATUS_SUCCESS;
}

// Convolutions: what each of the passes reads and writes.
enum Pass { FORWARD, DATA, FILTERS };
static Type kind(int type) { return type == CUDNN_DATA_FLOAT ? F32 : BF16; }
struct Array {
  void *data;
  int type;
  Sizes sizes;
  size_t count() const { return size_t(sizes.n) * sizes.c * sizes.h * sizes.w; }
  bool reachable() const {
    return !cudashim_touch(data, count() * width(kind(type)), "a convolution of cuDNN");
  }
  size_t at(int n, int h, int w, int c) const {
    return ((size_t(n) * sizes.h + h) * sizes.w + w) * sizes.c + c;
  }
};
struct Convolution {
  Array x, w, y;
  cudnnConvolutionStruct how;
  bool is_possible() const {
    const int image[] = {x.sizes.h, x.sizes.w}, filter[] = {w.sizes.h, w.sizes.w};
    const int output[] = {y.sizes.h, y.sizes.w};
    for (int i = 0; i < 2; ++i) {
      int room = image[i] + 2 * how.padding[i] - how.dilation[i] * (filter[i] - 1) - 1;
      if (room < 0 || room / how.stride[i] + 1 != output[i]) return false;
    }
    return how.groups > 0 && x.sizes.n == y.sizes.n && w.sizes.n == y.sizes.c &&
           w.sizes.n % how.groups == 0 && w.sizes.c * how.groups == x.sizes.c &&
           x.type == w.type && x.type == y.type;
  }
  // Call `term` for all triples of elements of x, w and y that belong together.
  template <class F> void each(F term) const {
    int filters = w.sizes.n / how.groups;
    for (int n = 0; n < y.sizes.n; ++n)
      for (int p = 0; p < y.sizes.h; ++p)
        for (int q = 0; q < y.sizes.w; ++q)
          for (int f = 0; f < w.sizes.n; ++f)
            for (int kh = 0; kh < w.sizes.h; ++kh)
              for (int kw = 0; kw < w.sizes.w; ++kw) {
                int row = p * how.stride[0] - how.padding[0] + kh * how.dilation[0];
                int column = q * how.stride[1] - how.padding[1] + kw * how.dilation[1];
                if (row < 0 || row >= x.sizes.h || column < 0 || column >= x.sizes.w) continue;
                for (int c = 0; c < w.sizes.c; ++c)
                  term(x.at(n, row, column, f / filters * w.sizes.c + c), w.at(f, kh, kw, c),
                       y.at(n, p, q, f));
              }
  }
};
struct Job {
  Convolution what;
  Pass pass;
  float alpha, beta;
  void *workspace;
  size_t bytes;
  std::vector<float> read(const Array &a) const {
    std::vector<float> values(a.count());
    bool rounds = a.type == CUDNN_DATA_FLOAT && what.how.math == CUDNN_DEFAULT_MATH;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = load(a.data, i, kind(a.type));
      if (rounds) values[i] = keep_bits(values[i], 13);  // TensorFloat32
    }
    return values;
  }
  void operator()() const {
    memset(workspace, 0x5a, bytes);
    const Array &out = pass == FORWARD ? what.y : pass == DATA ? what.x : what.w;
    std::vector<float> sums(out.count());
    std::vector<float> x, w, y;
    if (pass != DATA) x = read(what.x);
    if (pass != FILTERS) w = read(what.w);
    if (pass != FORWARD) y = read(what.y);
    what.each([&](size_t i, size_t j, size_t k) {
      if (pass == FORWARD) sums[k] += x[i] * w[j];
      else if (pass == DATA) sums[i] += w[j] * y[k];
      else sums[j] += x[i] * y[k];
    });
    int type = kind(out.type);
    for (size_t i = 0; i < sums.size(); ++i)
      store(out.data, i, type, alpha * sums[i] + (beta ? beta * load(out.data, i, type) : 0));
  }
};
static constexpr size_t WORKSPACE = 40;

// Whether an algorithm is there: others add in an order that varies.
static bool is_known(Pass pass, int algorithm) {
  if (pass == DATA) return algorithm == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  if (pass == FILTERS) return algorithm == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  return algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
         algorithm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
}

static bool has_bfloat16() {  // from compute capability 8.0 on
  int device, major = 0;
  return !cuCtxGetDevice(&device) && !cuDeviceGetAttribute(&major, 75, device) && major >= 8;
}
static Status size_for(cudnnHandle_t handle, Pass pass, const Convolution &what, int algorithm,
                       size_t *size) {
  LIVING(handle);
  if (what.x.type == CUDNN_DATA_BFLOAT16 && !has_bfloat16()) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!is_known(pass, algorithm)) return CUDNN_STATUS_NOT_SUPPORTED;
  if (!what.is_possible()) return CUDNN_STATUS_BAD_PARAM;
  *size = WORKSPACE;
  return CUDNN_STATUS_SUCCESS;
}
static Status run(cudnnHandle_t handle, Pass pass, const Convolution &what, int algorithm,
                  const void *alpha, const void *beta, void *workspace, size_t bytes) {
  size_t needed;
  if (Status failed = size_for(handle, pass, what, algorithm, &needed)) return failed;
  void *context = nullptr;
  if (cuCtxGetCurrent(&context) || context != handle->context) return CUDNN_STATUS_EXECUTION_FAILED;
  if (bytes < needed) return CUDNN_STATUS_BAD_PARAM;
  if (cudashim_touch(workspace, bytes, "the workspace of cuDNN"))
    return CUDNN_STATUS_EXECUTION_FAILED;
  if (!what.x.reachable() || !what.w.reachable() || !what.y.reachable())
    return CUDNN_STATUS_EXECUTION_FAILED;
  auto work = [](void *job) { return (*static_cast<Job *>(job))(), 0; };
  auto drop = [](void *job) { delete static_cast<Job *>(job); };
  Job *job = new Job{what, pass, *static_cast<const float *>(alpha),
                     *static_cast<const float *>(beta), workspace, bytes};
  return cudashim_enqueue(handle->stream, work, drop, job) ? CUDNN_STATUS_EXECUTION_FAILED
                                                           : CUDNN_STATUS_SUCCESS;
}
template <class T> static Array array(const T *described, const void *data = nullptr) {
  return {const_cast<void *>(data), described->type, described->sizes};
}
#define DESCRIBED(first, second, third, how) \
  LIVING(first); LIVING(second); LIVING(third); LIVING(how)

API Status cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t how, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t *size) {
  DESCRIBED(x, w, y, how);
  return size_for(handle, FORWARD, {array(x), array(w), array(y), *how}, algorithm, size);
}
API Status cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t how, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t *size) {
  DESCRIBED(w, dy, dx, how);
  return size_for(handle, DATA, {array(dx), array(w), array(dy), *how}, algorithm, size);
}
API Status cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t how, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *size) {
  DESCRIBED(x, dy, dw, how);
  return size_for(handle, FILTERS, {array(x), array(dw), array(dy), *how}, algorithm, size);
}
API Status cudnnConvolutionForward(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x, const void *x_data,
    const cudnnFilterDescriptor_t w, const void *w_data, const cudnnConvolutionDescriptor_t how,
    cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t bytes, const void *beta,
    const cudnnTensorDescriptor_t y, void *y_data) {
  DESCRIBED(x, w, y, how);
  Convolution what{array(x, x_data), array(w, w_data), array(y, y_data), *how};
  return run(handle, FORWARD, what, algorithm, alpha, beta, workspace, bytes);
}
API Status cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha, const cudnnFilterDescriptor_t w, const void *w_data,
    const cudnnTensorDescriptor_t dy, const void *dy_data, const cudnnConvolutionDescriptor_t how,
    cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace, size_t bytes, const void *beta,
    const cudnnTensorDescriptor_t dx, void *dx_data) {
  DESCRIBED(w, dy, dx, how);
  Convolution what{array(dx, dx_data), array(w, w_data), array(dy, dy_data), *how};
  return run(handle, DATA, what, algorithm, alpha, beta, workspace, bytes);
}
API Status cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void *alpha, const cudnnTensorDescriptor_t x, const void *x_data,
    const cudnnTensorDescriptor_t dy, const void *dy_data, const cudnnConvolutionDescriptor_t how,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void *workspace, size_t bytes, const void *beta,
    const cudnnFilterDescriptor_t dw, void *dw_data) {
  DESCRIBED(x, dy, dw, how);
  Convolution what{array(x, x_data), array(dw, dw_data), array(dy, dy_data), *how};
  return run(handle, FILTERS, what, algorithm, alpha, beta, workspace, bytes);
}
