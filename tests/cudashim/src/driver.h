// The parts of the driver that its files share. CUDA's handles are pointers to these structures.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "device.h"

#define API extern "C" __attribute__((visibility("default")))

// What can be set, by environment variables CUDASHIM_<NAME> and by cudashim_set.
enum Order { FORWARD, REVERSED, SHUFFLED };
enum Guard { GUARD_END, GUARD_START, GUARD_OFF };
#define CUDASHIM_OPTIONS(X)                                                            \
  X(devices, 1)                                                                        \
  X(memory, 8ll << 30) /* bytes of one device */                                       \
  X(capability, 90)                                                                    \
  X(multiprocessors, 4)                                                                \
  X(parameters, 32764) /* bytes of arguments that a kernel may have */                 \
  X(order, FORWARD)    /* of the threads of a block and of the blocks */               \
  X(guard, GUARD_END)  /* the side on which an unmapped page follows an allocation */  \
  X(late, 0)           /* streams do their work only when they are waited for */       \
  X(races, 1)          /* accesses that nothing orders are a failure */                \
  X(lose_after, -1)    /* launches until the device is lost; -1: never */
#define CUDASHIM_COUNTERS(X)                                                           \
  X(launches) X(graph_launches) X(kernels) X(products) X(allocations) X(frees)         \
  X(live_bytes) X(htod) X(dtoh) X(dtod) X(memsets) X(blocking_copies)                  \
  X(synchronisations) X(captures) X(modules)
#define CUDASHIM_MEMBER(name, ...) long long name;
struct Options { CUDASHIM_OPTIONS(CUDASHIM_MEMBER) };
struct Counters { CUDASHIM_COUNTERS(CUDASHIM_MEMBER) };
extern Options options;
extern Counters counters;

using Work = std::function<CUresult()>;

struct CUctx_st {
  int device;
  unsigned retained;              // how often a primary context is held
  CUresult sticky = CUDA_SUCCESS; // what every call answers once a kernel has failed
};
struct CUmod_st {
  CUcontext context;
  void *library;
  std::map<std::string, CUfunction> functions;
};
struct CUfunc_st {
  CUmodule module;
  std::string name;
  const cudashim::KernelInfo *kernel;
  int dynamic_shared_limit;
};
struct CUgraphNode_st {
  CUgraphNodeType type;
  Work work;
};
using Nodes = std::vector<std::shared_ptr<CUgraphNode_st>>;
struct CUgraph_st {
  CUcontext context;
  Nodes nodes;
};
struct CUgraphExec_st {
  CUcontext context;
  Nodes nodes;
};
struct Capture {
  std::unique_ptr<CUgraph_st> graph;
  CUstream origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
  std::set<CUstream> forked;  // streams that joined the capture and were not waited for since
};
struct CUstream_st {
  CUcontext context;
  unsigned flags;
  std::shared_ptr<Capture> capture;
  std::deque<Work> queue;       // work not done yet (late streams)
  uint64_t given = 0, done = 0; // how much work it got and did
};
struct CUevent_st {
  CUcontext context;
  CUstream stream = nullptr;  // where it was recorded last
  uint64_t position = 0;      // how much work that stream has done when the event happens
  std::weak_ptr<Capture> capture; // in which it was recorded
  timespec time = {};
};

// context.cpp
struct Call {  // the beginning of an entry point: one thread at a time, a context, no lost device
  explicit Call(bool needs_context = true);
  std::lock_guard<std::recursive_mutex> lock;
  CUresult failed;
};
#define ENTER(...)       \
  Call call{__VA_ARGS__}; \
  if (call.failed) return call.failed
CUcontext current();
CUresult fail(CUcontext context, CUresult code, const std::string &message);
void forget(const void *handle);
void remember(const void *handle);
bool known(const void *handle);
#define KNOWN(handle) \
  if (!known(handle)) return CUDA_ERROR_INVALID_HANDLE

// memory.cpp
struct Allocation {
  CUdeviceptr base;
  size_t size;
  CUcontext context;
  char *map;  // null: not made by cuMemAlloc
  size_t mapped;
};
const Allocation *allocation_of(CUdeviceptr address);
const Allocation *allocation_near(CUdeviceptr address);
bool is_device_memory(CUcontext context, CUdeviceptr address, size_t bytes);
bool is_pinned(const void *address);
void add_global(CUcontext context, CUdeviceptr address, size_t bytes);
void release_memory(CUcontext context);
std::string describe(CUdeviceptr address);

// threads.cpp
struct Launch {
  CUfunction function;
  dim3 grid, block;
  unsigned dynamic_shared;
  std::vector<char> arguments;
};
CUresult execute(const Launch &launch);
[[noreturn]] void report_race(const std::string &what);
[[noreturn]] void report_beside(uintptr_t address);
[[noreturn]] void report_misaligned(const void *address, size_t size);

// races.cpp
struct Block {                 // one of those that run
  unsigned number;             // within its launch
  unsigned interval;           // how many barriers it had
  unsigned warp_intervals[32]; // and its warps
};
struct Here {  // the thread that runs
  bool watched;
  unsigned rank, thread;       // of the block in its cluster, of the thread in the block
  Block blocks[MOST_CLUSTERED];
  uintptr_t stack, stack_size; // of all threads, who have no others' memory on it
};
extern Here here;
void watch_launch();
void watch_block(unsigned number);            // of this rank, which begins
void watch_barrier();                         // of the whole block of this rank
void watch_cluster_barrier(unsigned blocks);  // of all blocks of the cluster

// streams.cpp
CUresult unsafe(bool uses_legacy_stream = false);  // calls that a capture forbids
#define UNSAFE(...) \
  if (CUresult forbidden = unsafe(__VA_ARGS__)) return forbidden
CUresult enqueue(CUstream stream, CUgraphNodeType type, Work work);
CUresult finish(CUstream stream);  // do the work of a stream; of all if null
bool is_legacy(CUstream stream);   // the default stream, per thread or not
CUresult put_off(Work work);       // of the default stream: done when somebody waits for that

// modules.cpp
CUresult count_launch(CUcontext context);  // fails where the device is to be lost
