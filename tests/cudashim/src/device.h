// What kernels need to be compiled by a C++ compiler: CUDA C's words, types, built-in variables
// and functions. Threads, barriers and memory are the driver's (driver.h, threads.cpp).
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define __CUDASHIM__ 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define __global__
#define __device__ __attribute__((visibility("default")))
#define __host__
#define __constant__ __attribute__((visibility("default")))
#define __managed__ __attribute__((visibility("default")))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __shared__ static  // only where nvcc.py did not recognise the declaration
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((void)0)

#define CUDASHIM_VECTOR(T, name, widest)                                               \
  struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                   \
  struct name##3 { T x, y, z; };                                                       \
  struct alignas(widest) name##4 { T x, y, z, w; };                                    \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                           \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                   \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDASHIM_VECTOR(signed char, char, 4)
CUDASHIM_VECTOR(unsigned char, uchar, 4)
CUDASHIM_VECTOR(short, short, 8)
CUDASHIM_VECTOR(unsigned short, ushort, 8)
CUDASHIM_VECTOR(int, int, 16)
CUDASHIM_VECTOR(unsigned, uint, 16)
CUDASHIM_VECTOR(long long, longlong, 16)
CUDASHIM_VECTOR(unsigned long long, ulonglong, 16)
CUDASHIM_VECTOR(float, float, 16)
CUDASHIM_VECTOR(double, double, 16)
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The thread that runs now. The driver sets it before it calls a kernel.
struct cudashim_place {
  uint3 thread, block;
  dim3 block_size, grid_size;
  char *dynamic_shared;
  unsigned lane;
  unsigned long long block_number;  // counts all blocks that ever ran
};
extern "C" {
extern cudashim_place cudashim_now;
void cudashim_block_barrier(int line);
void cudashim_warp_barrier(unsigned mask, int line);
// Give 8 bytes to the other lanes of a mask, get those of a lane.
unsigned long long cudashim_exchange(unsigned mask, unsigned long long bits, unsigned lane);
unsigned cudashim_ballot(unsigned mask, bool predicate);
[[noreturn]] void cudashim_trap(const char *what);
void cudashim_fence();
void cudashim_atomic_access(const void *address, size_t size);
}
// Of functions whose own accesses are not those of a kernel.
#define CUDASHIM_UNWATCHED __attribute__((no_sanitize("thread")))
#define threadIdx (cudashim_now.thread)
#define blockIdx (cudashim_now.block)
#define blockDim (cudashim_now.block_size)
#define gridDim (cudashim_now.grid_size)
constexpr int warpSize = 32;

namespace cudashim {

// Calls `found` for every pointer among the members of a T at a place among the arguments.
using Found = void (*)(void *data, unsigned place);
template <class T> void pointers_in(unsigned place, Found found, void *data);
template <class T> struct Members {
  static void visit(unsigned, Found, void *) {}
};
template <class T> void pointers_in(unsigned place, Found found, void *data) {
  using Element = std::remove_extent_t<T>;
  if constexpr (std::is_pointer_v<T>) found(data, place);
  else if constexpr (std::is_array_v<T>)
    for (size_t i = 0; i < std::extent_v<T>; ++i)
      pointers_in<Element>(place + i * sizeof(Element), found, data);
  else Members<T>::visit(place, found, data);
}

// A kernel as the driver sees it.
struct Argument {
  unsigned offset, size;
  void (*pointers)(unsigned place, Found found, void *data);
};
struct KernelInfo {
  void (*thread)(void **arguments);
  bool cooperates;  // has barriers or exchanges values: its threads are fibers
  unsigned count, bytes;
  const Argument *arguments;
};

template <auto F> struct Kernel;
template <class... A, void (*F)(A...)> struct Kernel<F> {
  struct Layout {
    Argument list[sizeof...(A) + 1];
    unsigned bytes;
  };
  static constexpr Layout layout() {
    Layout found{};
    unsigned end = 0, i = 0;
    ((end = (end + alignof(A) - 1) / alignof(A) * alignof(A),
      found.list[i++] = {end, sizeof(A), &pointers_in<A>}, end += sizeof(A)), ...);
    found.bytes = end;
    (void)i;
    return found;
  }
  static constexpr Layout table = layout();
  template <size_t... I> static void call(void **p, std::index_sequence<I...>) {
    F(*static_cast<std::remove_cv_t<A> *>(p[I])...);
  }
  static void thread(void **p) { call(p, std::index_sequence_for<A...>()); }
  static constexpr KernelInfo info(bool cooperates) {
    return {&thread, cooperates, sizeof...(A), table.bytes, table.list};
  }
};

// A shared variable: it is undefined (all bits set, which is NaN) when a block begins.
template <class T> struct Shared {
  alignas(16) char bytes[sizeof(T)];
  unsigned long long block_number;
  CUDASHIM_UNWATCHED T &get() {
    if (block_number != cudashim_now.block_number) {
      memset(bytes, 0xff, sizeof(T));
      block_number = cudashim_now.block_number;
    }
    return *reinterpret_cast<T *>(bytes);
  }
};

struct WarpBarrier {
  int line;
  void operator()(unsigned mask = 0xffffffffu) const { cudashim_warp_barrier(mask, line); }
};

template <class T> T exchange(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= 8, "at most 8 bytes go from lane to lane");
  unsigned long long bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = cudashim_exchange(mask, bits, lane);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace cudashim

// A structure of the kernels' source; nvcc.py writes these behind it.
#define CUDASHIM_STRUCTURE(name, members)                               \
  template <> struct cudashim::Members<name> {                          \
    static void visit(unsigned place, Found found, void *data) { members } \
  };
#define CUDASHIM_MEMBER(name, member)                                               \
  pointers_in<decltype(name::member)>(place + offsetof(name, member), found, data);
#define CUDASHIM_EXPORT(name, cooperates)                          \
  static_assert(cudashim::Kernel<&name>::table.bytes <= 32764,     \
                "Formal parameter space overflowed (max 32764 bytes allowed) in function " #name); \
  extern "C" __attribute__((visibility("default")))                \
  const cudashim::KernelInfo cudashim_kernel_##name;               \
  const cudashim::KernelInfo cudashim_kernel_##name = cudashim::Kernel<&name>::info(cooperates);

// Barriers, shuffles and votes.
#define __syncthreads() cudashim_block_barrier(__LINE__)
#define __syncwarp(...) cudashim::WarpBarrier{__LINE__}(__VA_ARGS__)
#define __threadfence() cudashim_fence()
#define __threadfence_block() ((void)0)
#define __threadfence_system() cudashim_fence()
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  unsigned first = cudashim_now.lane & ~(width - 1);
  return cudashim::exchange(mask, value, first + (source & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
  unsigned lane = cudashim_now.lane, source = lane ^ flip;
  return cudashim::exchange(mask, value, source < (lane | (width - 1)) + 1 ? source : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = cudashim_now.lane, source = lane + by;
  return cudashim::exchange(mask, value, source <= (lane | (width - 1)) ? source : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  unsigned lane = cudashim_now.lane, first = lane & ~(width - 1);
  return cudashim::exchange(mask, value, lane >= first + by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned mask, int p) { return cudashim_ballot(mask, p); }
inline int __any_sync(unsigned mask, int p) { return cudashim_ballot(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return cudashim_ballot(mask, !p) == 0; }

// Atomics: one thread runs at a time.
template <class T, class F> CUDASHIM_UNWATCHED T cudashim_atomic(T *p, F change) {
  cudashim_atomic_access(p, sizeof(T));
  T old = *p;
  *p = change(old);
  return old;
}
#define CUDASHIM_ATOMIC(name, expression)                                               \
  template <class T> T name(T *p, std::common_type_t<T> v) {                            \
    return cudashim_atomic(p, [v](T old) { return static_cast<T>(expression); });       \
  }
CUDASHIM_ATOMIC(atomicAdd, old + v)
CUDASHIM_ATOMIC(atomicSub, old - v)
CUDASHIM_ATOMIC(atomicMax, old > v ? old : v)
CUDASHIM_ATOMIC(atomicMin, old < v ? old : v)
CUDASHIM_ATOMIC(atomicAnd, old & v)
CUDASHIM_ATOMIC(atomicOr, old | v)
CUDASHIM_ATOMIC(atomicXor, old ^ v)
CUDASHIM_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
CUDASHIM_ATOMIC(atomicExch, ((void)old, v))
template <class T> T atomicCAS(T *p, std::common_type_t<T> expected, std::common_type_t<T> v) {
  return cudashim_atomic(p, [=](T old) { return old == expected ? v : old; });
}

// Loads and stores with hints.
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldca(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcg(T *p, std::common_type_t<T> v) { *p = v; }
template <class T> void __stcs(T *p, std::common_type_t<T> v) { *p = v; }

// Bits.
template <class To, class From> To cudashim_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline int __float_as_int(float x) { return cudashim_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cudashim_bits<unsigned>(x); }
inline float __int_as_float(int x) { return cudashim_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cudashim_bits<float>(x); }
inline long long __double_as_longlong(double x) { return cudashim_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cudashim_bits<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }
inline int __mulhi(int a, int b) { return int64_t(a) * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned __int128>(a) * b >> 64;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1) << (31 - i);
  return r;
}

// Mathematics. The fast versions are as exact here as the others.
using std::abs; using std::ceil; using std::cos; using std::erf; using std::erfc; using std::exp;
using std::exp2; using std::expm1; using std::fabs; using std::floor; using std::fma;
using std::fmax; using std::fmin; using std::fmod; using std::isfinite; using std::isinf;
using std::isnan; using std::lgamma; using std::log; using std::log1p; using std::log2;
using std::pow; using std::rint; using std::round; using std::signbit; using std::sin;
using std::sqrt; using std::tan; using std::tanh; using std::trunc;
template <class A, class B> std::common_type_t<A, B> min(A a, B b) { return a < b ? a : b; }
template <class A, class B> std::common_type_t<A, B> max(A a, B b) { return a > b ? a : b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float sinpif(float x) { return sin(M_PI * x); }
inline float cospif(float x) { return cos(M_PI * x); }
inline float normcdff(float x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float *s, float *c) { *s = sinf(x), *c = cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float fdividef(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __saturatef(float a) { return a > 1 ? 1 : a > 0 ? a : 0; }
inline int __float2int_rn(float x) { return lrintf(x); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline float __int2float_rn(int x) { return x; }
inline float __uint2float_rn(unsigned x) { return x; }
inline void __trap() { cudashim_trap("__trap()"); }
