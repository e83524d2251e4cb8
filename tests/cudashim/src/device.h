// What kernels need to be compiled by a C++ compiler: CUDA C's words, types, built-in variables
// and functions. Threads, barriers and memory are the driver's (driver.h, threads.cpp).
//
// It includes nothing: a compiler takes longer to read the headers of C++ than to compile a kernel.
#pragma once
using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype("" - "");
extern "C" void *memcpy(void *to, const void *from, size_t size) noexcept;
extern "C" void *memset(void *to, int value, size_t size) noexcept;
extern "C" int printf(const char *, ...);

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
#define __cluster_dims__(...)
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
  unsigned rank;                    // of the block in its cluster
};
constexpr unsigned MOST_CLUSTERED = 8;
extern "C" {
extern cudashim_place cudashim_now;
void cudashim_block_barrier(int line);
void cudashim_cluster_barrier(int line);
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
template <class T> struct Members {
  static void visit(unsigned, Found, void *) {}
};
template <class T> struct Members<T *> {
  static void visit(unsigned place, Found found, void *data) { found(data, place); }
};
template <class T, size_t count> struct Members<T[count]> {
  static void visit(unsigned place, Found found, void *data) {
    for (size_t i = 0; i < count; ++i) Members<T>::visit(place + i * sizeof(T), found, data);
  }
};
template <class T> struct Members<const T> : Members<T> {};
template <class T, size_t count> struct Members<const T[count]> : Members<T[count]> {};

// A kernel as the driver sees it.
struct Argument {
  unsigned offset, size;
  void (*pointers)(unsigned place, Found found, void *data);
};
struct KernelInfo {
  void (*thread)(void **arguments);
  bool cooperates;   // has barriers or exchanges values: its threads are fibers
  unsigned cluster;  // blocks of a cluster
  unsigned count, bytes;
  const Argument *arguments;
};

template <size_t... numbers> struct Numbers {};
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
      found.list[i++] = {end, sizeof(A), &Members<A>::visit}, end += sizeof(A)), ...);
    found.bytes = end;
    (void)i;
    return found;
  }
  static constexpr Layout table = layout();
  template <size_t... I> static void call(void **p, Numbers<I...>) {
    F(*static_cast<A *>(p[I])...);
  }
  static void thread(void **p) { call(p, Numbers<__integer_pack(sizeof...(A))...>()); }
  static constexpr KernelInfo info(bool cooperates, unsigned cluster) {
    return {&thread, cooperates, cluster, sizeof...(A), table.bytes, table.list};
  }
};

// A shared variable: it is undefined (all bits set, which is NaN) when a block begins. The blocks of
// a cluster run together, and each has its own.
template <class T> struct Shared {
  struct { alignas(16) char bytes[sizeof(T)]; } of[MOST_CLUSTERED];
  unsigned long long block_number[MOST_CLUSTERED];
  CUDASHIM_UNWATCHED T &get() {
    unsigned rank = cudashim_now.rank;
    if (block_number[rank] != cudashim_now.block_number) {
      memset(of[rank].bytes, 0xff, sizeof(T));
      block_number[rank] = cudashim_now.block_number;
    }
    return *reinterpret_cast<T *>(of[rank].bytes);
  }
};

// T, but not where the compiler infers what T is.
template <class T> struct SameType { using type = T; };
template <class T> using Same = typename SameType<T>::type;
template <class T> constexpr bool is_float = false;
template <> constexpr bool is_float<float> = true;

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
  Members<decltype(name::member)>::visit(place + __builtin_offsetof(name, member), found, data);
#define CUDASHIM_EXPORT(name, cooperates, cluster)                        \
  static_assert(cudashim::Kernel<&name>::table.bytes <= 32764,     \
                "Formal parameter space overflowed (max 32764 bytes allowed) in function " #name); \
  extern "C" __attribute__((visibility("default")))                \
  const cudashim::KernelInfo cudashim_kernel_##name;               \
  const cudashim::KernelInfo cudashim_kernel_##name = cudashim::Kernel<&name>::info(cooperates, cluster);

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
  template <class T> T name(T *p, cudashim::Same<T> v) {                            \
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
template <class T> T atomicCAS(T *p, cudashim::Same<T> expected, cudashim::Same<T> v) {
  return cudashim_atomic(p, [=](T old) { return old == expected ? v : old; });
}

// Loads and stores with hints.
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldca(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcg(T *p, cudashim::Same<T> v) { *p = v; }
template <class T> void __stcs(T *p, cudashim::Same<T> v) { *p = v; }

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
inline unsigned __umulhi(unsigned a, unsigned b) { return 1ull * a * b >> 32; }
inline int __mulhi(int a, int b) { return 1ll * a * b >> 32; }
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
// Where a source includes headers of C++, their functions come first, since they are no templates.
#define CUDASHIM_MATH(name, count)                                                       \
  extern "C" double name(CUDASHIM_TIMES##count(double)) noexcept;                        \
  extern "C" float name##f(CUDASHIM_TIMES##count(float)) noexcept;                       \
  template <class T, class... More> auto name(T x, More... more) {                       \
    if constexpr ((cudashim::is_float<T> && ... && cudashim::is_float<More>))            \
      return name##f(x, more...);                                                        \
    else return name(static_cast<double>(x), static_cast<double>(more)...);              \
  }
#define CUDASHIM_TIMES1(T) T
#define CUDASHIM_TIMES2(T) T, T
#define CUDASHIM_TIMES3(T) T, T, T
CUDASHIM_MATH(acos, 1) CUDASHIM_MATH(acosh, 1) CUDASHIM_MATH(asin, 1) CUDASHIM_MATH(asinh, 1)
CUDASHIM_MATH(atan, 1) CUDASHIM_MATH(atanh, 1) CUDASHIM_MATH(cosh, 1) CUDASHIM_MATH(sinh, 1)
CUDASHIM_MATH(ceil, 1) CUDASHIM_MATH(cos, 1) CUDASHIM_MATH(erf, 1) CUDASHIM_MATH(erfc, 1)
CUDASHIM_MATH(exp, 1) CUDASHIM_MATH(exp2, 1) CUDASHIM_MATH(expm1, 1) CUDASHIM_MATH(fabs, 1)
CUDASHIM_MATH(floor, 1) CUDASHIM_MATH(lgamma, 1) CUDASHIM_MATH(log, 1) CUDASHIM_MATH(log1p, 1)
CUDASHIM_MATH(log2, 1) CUDASHIM_MATH(rint, 1) CUDASHIM_MATH(round, 1) CUDASHIM_MATH(sin, 1)
CUDASHIM_MATH(sqrt, 1) CUDASHIM_MATH(tan, 1) CUDASHIM_MATH(tanh, 1) CUDASHIM_MATH(trunc, 1)
CUDASHIM_MATH(fmax, 2) CUDASHIM_MATH(fmin, 2) CUDASHIM_MATH(fmod, 2) CUDASHIM_MATH(pow, 2)
CUDASHIM_MATH(fma, 3)
extern "C" long lrintf(float x) noexcept;
template <class T> T abs(T x) { return x < 0 ? -x : x == 0 ? 0 : x; }
template <class T> bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> bool isinf(T x) { return __builtin_isinf(x); }
template <class T> bool isnan(T x) { return __builtin_isnan(x); }
template <class T> bool signbit(T x) { return __builtin_signbit(x); }
template <class A, class B> using Either = decltype(true ? A() : B());
template <class A, class B> Either<A, B> min(A a, B b) { return a < b ? a : b; }
template <class A, class B> Either<A, B> max(A a, B b) { return a > b ? a : b; }
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float sinpif(float x) { return sin(3.14159265358979323846 * x); }
inline float cospif(float x) { return cos(3.14159265358979323846 * x); }
inline float normcdff(float x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
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
