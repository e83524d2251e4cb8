// Running a kernel: cluster after cluster on this thread, of which most have one block. The threads of
// its blocks are a loop, or, where they wait for each other, fibers that run from barrier to barrier.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "driver.h"

cudashim_place cudashim_now;

namespace {

constexpr unsigned MAX_THREADS = 1024, WARP = 32, MAX_DYNAMIC_SHARED = 232448;
constexpr size_t PAGE = 4096, STACK = 16 * PAGE + 192;  // tops of stacks in different cache lines
constexpr unsigned MAX_FIBERS = MAX_THREADS * MOST_CLUSTERED;
enum State { READY, AT_CLUSTER_BARRIER, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };

struct Fiber {
  State state;
  int line;       // of the barrier it waits at
  unsigned mask;  // of the lanes it waits for
  unsigned present;                // the lanes that were at its last warp barrier
  unsigned long long given, taken; // its value for the next exchange, and for the last one
#if defined(__x86_64__)
  void *stack;
#else
  ucontext_t context;
#endif
};
Fiber fibers[MAX_FIBERS], *running;
uint3 places[MAX_THREADS];  // threadIdx of each thread
unsigned size;              // threads of a block
unsigned cluster, left;     // blocks of the cluster, and its threads that are not done
unsigned long long first_block, first_number;  // of the cluster: in the launch, of all that ever ran
void (*body)(void **);
void **body_arguments;
const Launch *now;
sigjmp_buf escape;
std::string problem;
CUresult problem_code;

[[noreturn]] void give_up(CUresult code, const std::string &what) {
  char place[160];
  snprintf(place, sizeof place, ", in kernel %s, block (%u, %u, %u), thread (%u, %u, %u)",
           now->function->name.c_str(), blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
           threadIdx.y, threadIdx.z);
  problem = what + place;
  problem_code = code;
  siglongjmp(escape, 1);
}

#if defined(__x86_64__)
void *main_stack;
extern "C" __attribute__((visibility("hidden"))) void cudashim_switch(void **save, void *load);
asm(".text\n.hidden cudashim_switch\n.type cudashim_switch,@function\ncudashim_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "popq %rcx\njmp *%rcx\n"  // not ret, which the processor would predict wrongly
    ".size cudashim_switch,.-cudashim_switch\n");
void leave() { cudashim_switch(&running->stack, main_stack); }
void enter() { cudashim_switch(&main_stack, running->stack); }
#else
ucontext_t main_context;
void leave() { swapcontext(&running->context, &main_context); }
void enter() { swapcontext(&main_context, &running->context); }
#endif

void fiber_main() {
  body(body_arguments);
  running->state = DONE;
  --left;
  for (;;) leave();
}

char *stacks() {
  static char *map = static_cast<char *>(mmap(nullptr, MAX_FIBERS * STACK,
      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return map;
}

void prepare(unsigned i) {
  Fiber &fiber = fibers[i];
  fiber.state = READY;
#if defined(__x86_64__)
  void **top = reinterpret_cast<void **>(stacks() + (i + 1) * STACK);
  *--top = nullptr;  // so that the stack is aligned where fiber_main begins
  *--top = reinterpret_cast<void *>(&fiber_main);
  fiber.stack = top - 6;  // six registers of any value
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stacks() + i * STACK;
  fiber.context.uc_stack.ss_size = STACK;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, fiber_main, 0);
#endif
}

// The k-th of n things in the order that was asked for.
class Turns {
 public:
  explicit Turns(unsigned long long n) : n_(n) {
    if (options.order == REVERSED) first_ = n - 1, step_ = n - 1;
    if (options.order != SHUFFLED) return;
    first_ = random() % n;
    do step_ = 1 + random() % n;
    while (std::gcd(step_, n) != 1);
  }
  unsigned long long operator()(unsigned long long k) const {
    return options.order == FORWARD ? k : (first_ + k * step_) % n_;
  }

 private:
  static unsigned random() {
    static unsigned state = 12345;
    return (state = state * 1664525u + 1013904223u) >> 8;
  }
  unsigned long long n_, first_ = 0, step_ = 1;
};

void set_block_size(const dim3 &block) {
  if (size && !memcmp(&block, &blockDim, sizeof block)) return;
  blockDim = block;
  size = 0;
  for (unsigned z = 0; z < block.z; ++z)
    for (unsigned y = 0; y < block.y; ++y)
      for (unsigned x = 0; x < block.x; ++x) places[size++] = {x, y, z};
}

// Dynamic shared memory ends at a page that cannot be touched; each block of a cluster has its own.
char *dynamic_shared(unsigned rank, unsigned bytes) {
  constexpr size_t room = (MAX_DYNAMIC_SHARED + PAGE - 1) / PAGE * PAGE;
  static char *map = [] {
    int kind = MAP_PRIVATE | MAP_ANONYMOUS;
    size_t size = MOST_CLUSTERED * (room + PAGE);
    char *start = static_cast<char *>(mmap(nullptr, size, PROT_READ | PROT_WRITE, kind, -1, 0));
    for (unsigned i = 0; i < MOST_CLUSTERED; ++i)
      mprotect(start + i * (room + PAGE) + room, PAGE, PROT_NONE);
    return start;
  }();
  return map + rank * (room + PAGE) + room - (bytes + 15) / 16 * 16;
}

void set_place(unsigned rank, unsigned thread) {
  unsigned long long b = first_block + rank, row = b / gridDim.x;
  blockIdx = {unsigned(b % gridDim.x), unsigned(row % gridDim.y), unsigned(row / gridDim.y)};
  threadIdx = places[thread];
  cudashim_now.lane = thread % WARP;
  cudashim_now.rank = here.rank = rank;
  cudashim_now.block_number = first_number + rank;
  cudashim_now.dynamic_shared = dynamic_shared(rank, now->dynamic_shared);
  here.thread = thread;
}

void run_ready() {
  Turns turns(cluster * size);
  for (unsigned k = 0; k < cluster * size; ++k) {
    unsigned i = turns(k);
    if (fibers[i].state != READY) continue;
    running = &fibers[i];
    set_place(i / size, i % size);
    enter();
  }
}

// Let the lanes of one warp go on whose whole mask has arrived.
bool release_warp(unsigned rank, unsigned warp) {
  bool released = false;
  unsigned first = rank * size + warp * WARP, end = std::min((rank + 1) * size, first + WARP);
  for (unsigned i = first; i < end; ++i) {
    if (fibers[i].state != AT_WARP_BARRIER) continue;
    unsigned mask = fibers[i].mask;
    bool all = true;
    unsigned present = 0;
    for (unsigned j = first; j < end; ++j) {
      if (!(mask >> (j - first) & 1) || fibers[j].state == DONE) continue;
      all &= fibers[j].state == AT_WARP_BARRIER && fibers[j].mask == mask;
      present |= 1u << (j - first);
    }
    if (!all) continue;
    for (unsigned j = first; j < end; ++j)
      if (present >> (j - first) & 1) {
        fibers[j].state = READY;
        fibers[j].present = present;
        fibers[j].taken = fibers[j].given;
      }
    if (fibers[i].line) ++here.blocks[rank].warp_intervals[warp];  // an exchange orders no memory
    released = true;
  }
  return released;
}

// Let some threads go on if all of them wait at the same barrier, or are done.
bool release_all(unsigned first, unsigned end, State barrier) {
  int line = 0;
  for (unsigned i = first; i < end; ++i) {
    if (fibers[i].state == DONE) continue;
    if (fibers[i].state != barrier || (line && line != fibers[i].line)) return false;
    line = fibers[i].line;
  }
  for (unsigned i = first; i < end; ++i)
    if (fibers[i].state != DONE) fibers[i].state = READY;
  return line;
}

// Let threads go on after a barrier; false: they wait for each other for ever.
bool release_waiting() {
  bool released = release_all(0, cluster * size, AT_CLUSTER_BARRIER);
  if (released) watch_cluster_barrier(cluster);
  for (unsigned rank = 0; rank < cluster; ++rank) {
    if (release_all(rank * size, (rank + 1) * size, AT_BLOCK_BARRIER)) {
      here.rank = rank;
      watch_barrier();
      released = true;
    }
    for (unsigned warp = 0; warp * WARP < size; ++warp) released |= release_warp(rank, warp);
  }
  return released;
}

void report_divergence() {
  std::map<std::string, int> waiting;
  for (unsigned i = 0; i < cluster * size; ++i)
    if (fibers[i].state != DONE) {
      const char *names[] = {"", "a cluster's barrier", "__syncthreads", "a warp barrier"};
      const char *at = names[fibers[i].state];
      ++waiting[at + std::string(" in line ") + std::to_string(fibers[i].line)];
    }
  std::string text = "divergent barrier:";
  for (const auto &[where, threads] : waiting)
    text += " " + std::to_string(threads) + " threads wait at " + where + ";";
  text.pop_back();
  give_up(CUDA_ERROR_LAUNCH_FAILED, text);
}

void run_fibers() {
  left = cluster * size;
  for (unsigned i = 0; i < left; ++i) prepare(i);
  for (;;) {
    run_ready();
    if (!left) return;
    if (!release_waiting()) report_divergence();
  }
}

void run_loop() {
  Turns turns(cluster * size);
  for (unsigned k = 0; k < cluster * size; ++k) {
    unsigned i = turns(k);
    set_place(i / size, i % size);
    body(body_arguments);
  }
}

void run_blocks(const Launch &launch) {
  static unsigned long long blocks_run = 0;
  unsigned long long blocks = 1ull * launch.grid.x * launch.grid.y * launch.grid.z;
  cluster = launch.function->kernel->cluster;
  running = nullptr;
  bool fibers = launch.function->kernel->cooperates;
  constexpr uintptr_t DEPTH = 1 << 20;
  here.stack = fibers ? uintptr_t(stacks()) : uintptr_t(__builtin_frame_address(0)) - DEPTH;
  here.stack_size = fibers ? MAX_FIBERS * STACK : DEPTH;
  here.watched = options.races;
  watch_launch();
  Turns turns(blocks / cluster);
  for (unsigned long long k = 0; k < blocks / cluster; ++k) {
    first_block = turns(k) * cluster;
    first_number = blocks_run + 1;
    blocks_run += cluster;
    for (here.rank = 0; here.rank < cluster; ++here.rank) {
      memset(dynamic_shared(here.rank, launch.dynamic_shared), 0xff, launch.dynamic_shared);
      watch_block(first_block + here.rank);
    }
    fibers ? run_fibers() : run_loop();
  }
}

void on_signal(int signal, siginfo_t *info, void *) {
  if (signal == SIGFPE) give_up(CUDA_ERROR_LAUNCH_FAILED, "an integer was divided by zero");
  give_up(CUDA_ERROR_ILLEGAL_ADDRESS,
          "illegal access to " + describe(CUdeviceptr(info->si_addr)));
}

// While a kernel runs, faults are its own.
class Faults {
 public:
  Faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &action, &before_[i]);
  }
  ~Faults() {
    for (int i = 0; i < 3; ++i) sigaction(signals[i], &before_[i], nullptr);
  }

 private:
  static constexpr int signals[3] = {SIGSEGV, SIGBUS, SIGFPE};
  struct sigaction before_[3];
};

void must_be_fiber(const char *what) {
  if (!running)
    give_up(CUDA_ERROR_LAUNCH_FAILED, std::string(what) + " that the compiler did not see");
}

}  // namespace

CUresult execute(const Launch &launch) {
  const cudashim::KernelInfo &kernel = *launch.function->kernel;
  std::vector<char> bytes = launch.arguments;  // kernels may change their arguments
  std::vector<void *> arguments(kernel.count);
  for (unsigned i = 0; i < kernel.count; ++i) arguments[i] = &bytes[kernel.arguments[i].offset];
  ++counters.kernels;
  now = &launch;
  body = kernel.thread;
  body_arguments = arguments.data();
  gridDim = launch.grid;
  set_block_size(launch.block);
  Faults faults;
  if (sigsetjmp(escape, 0))
    return fail(launch.function->module->context, problem_code, problem);
  run_blocks(launch);
  return CUDA_SUCCESS;
}

void report_race(const std::string &what) { give_up(CUDA_ERROR_LAUNCH_FAILED, what); }
void report_beside(uintptr_t address) {
  give_up(CUDA_ERROR_ILLEGAL_ADDRESS, describe(address) + ", beside it");
}
void report_misaligned(const void *address, size_t size) {
  give_up(CUDA_ERROR_MISALIGNED_ADDRESS,
          describe(reinterpret_cast<uintptr_t>(address)) + " is no address of " +
              std::to_string(size) + " bytes at once");
}

// What kernels call.
API void cudashim_block_barrier(int line) {
  must_be_fiber("__syncthreads");
  running->state = AT_BLOCK_BARRIER;
  running->line = line;
  leave();
}
API void cudashim_cluster_barrier(int line) {
  must_be_fiber("a cluster's barrier");
  running->state = AT_CLUSTER_BARRIER;
  running->line = line;
  leave();
}
API void cudashim_warp_barrier(unsigned mask, int line) {
  must_be_fiber("a warp barrier");
  if (!(mask >> cudashim_now.lane & 1))
    give_up(CUDA_ERROR_LAUNCH_FAILED, "a warp barrier whose mask lacks the calling lane");
  running->state = AT_WARP_BARRIER;
  running->mask = mask;
  running->line = line;
  leave();
}
// Every lane of a warp reads what the others gave before any of them can give again.
static const Fiber *exchanged(unsigned mask, unsigned long long bits) {
  must_be_fiber("a shuffle or vote");
  running->given = bits;
  cudashim_warp_barrier(mask, 0);
  return fibers + cudashim_now.rank * size + here.thread / WARP * WARP;
}
API unsigned long long cudashim_exchange(unsigned mask, unsigned long long bits, unsigned lane) {
  const Fiber *warp = exchanged(mask, bits);
  bool present = lane < WARP && (running->present >> lane & 1);
  return present ? warp[lane].taken : ~0ull;  // undefined on a device: NaN here
}
API unsigned cudashim_ballot(unsigned mask, bool predicate) {
  const Fiber *warp = exchanged(mask, predicate);
  unsigned found = 0;
  for (unsigned lane = 0; lane < WARP; ++lane)
    if (running->present >> lane & 1) found |= unsigned(warp[lane].taken) << lane;
  return found;
}
API void cudashim_trap(const char *what) { give_up(CUDA_ERROR_LAUNCH_FAILED, what); }
