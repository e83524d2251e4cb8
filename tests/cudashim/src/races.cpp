// Races: two accesses to a byte, one of them a write, that nothing orders. Kernels report what they
// access, for g++ compiles them as for its own ThreadSanitizer; it is remembered who was there last.
//
// Accesses of a thread are ordered, and those of a cluster, a block, or a warp, before and after its
// barrier.
// Blocks are ordered by atomics alone: what is done before a fence, which the same thread lets an
// atomic follow, is done before what comes after a fence that follows a later atomic on that place.
#include <algorithm>
#include <cstring>

#include "driver.h"

Here here;

namespace {

enum Kind : uint8_t { READ, WRITE, ATOMIC };
constexpr const char *WORDS[] = {"reads", "writes", "changes by an atomic"};
constexpr unsigned WARP = 32;

struct Access {
  uint32_t block, interval, warp_interval, fences;
  uint16_t thread;
  uint8_t bytes;  // which of the four; 0: there was none
  Kind kind;
};
struct Cell {  // of four bytes
  Access write, reads[2];
};
struct Page {
  static constexpr unsigned BYTES = 256;
  unsigned long long launch;
  uintptr_t first, end;  // of the allocation
  Cell cells[BYTES / 4];
};
// What a launch touches beyond this is not watched: bookkeeping takes fifteen times the memory.
constexpr size_t MOST_PAGES = (8 << 20) / Page::BYTES, SLOTS = 1 << 12;
std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
struct { uintptr_t key; Page *page; } slots[SLOTS];
unsigned long long launch = 0;

// What is known to be over of a block: earlier intervals between barriers; of some threads more.
struct Over {
  unsigned interval = 0;
  std::map<unsigned, unsigned> fences;
};
using Clock = std::map<unsigned, Over>;
struct ThreadClock {
  Clock known, acquired, released;  // acquired: known from the next fence on
  unsigned fences = 0;
};
struct BlockClock {
  Clock known;
  std::map<unsigned, ThreadClock> threads;  // those that had a fence or an atomic
} block_clocks[MOST_CLUSTERED];
std::map<uintptr_t, Clock> places;  // of atomics

Block &block() { return here.blocks[here.rank]; }
BlockClock &clocks() { return block_clocks[here.rank]; }

void join(Clock &into, const Clock &other) {
  for (const auto &[block, over] : other) {
    Over &mine = into[block];
    mine.interval = std::max(mine.interval, over.interval);
    for (auto [thread, fences] : over.fences) {
      unsigned &most = mine.fences[thread];
      most = std::max(most, fences);
    }
  }
}
bool is_over(const Clock &clock, const Access &access) {
  auto over = clock.find(access.block);
  if (over == clock.end()) return false;
  if (access.interval < over->second.interval) return true;
  auto fences = over->second.fences.find(access.thread);
  return fences != over->second.fences.end() && access.fences < fences->second;
}
bool is_ordered(const Access &before, const Access &now) {
  if (before.block == now.block) {
    if (before.thread == now.thread || before.interval < now.interval) return true;
    if (before.thread / WARP == now.thread / WARP && before.warp_interval < now.warp_interval)
      return true;
  }
  if (is_over(clocks().known, before)) return true;
  auto thread = clocks().threads.find(now.thread);
  return thread != clocks().threads.end() && is_over(thread->second.known, before);
}

Page &page_of(uintptr_t key) {
  auto &slot = slots[key % SLOTS];
  if (slot.key != key || !slot.page) {
    auto &page = pages[key];
    if (!page) page.reset(new Page{});
    slot = {key, page.get()};
  }
  if (slot.page->launch != launch) {
    memset(slot.page->cells, 0, sizeof slot.page->cells);
    slot.page->launch = launch;
    const Allocation *near = allocation_near(key * Page::BYTES);
    slot.page->first = near ? near->base : 0;
    slot.page->end = near ? near->base + near->size : ~uintptr_t(0);
  }
  return *slot.page;
}

void check(const Access &before, const Access &now, uintptr_t address) {
  if (!(before.bytes & now.bytes) || (before.kind == ATOMIC && now.kind == ATOMIC)) return;
  if (is_ordered(before, now)) return;
  // Shared memory is another one in each block.
  if (before.block != now.block && !allocation_of(address)) return;
  std::string place = allocation_of(address) ? describe(address) : "shared memory";
  std::string other = before.block == now.block
                          ? "thread " + std::to_string(before.thread) + " of this block"
                          : "a thread of block " + std::to_string(before.block);
  report_race(std::string("a race: a thread ") + WORDS[now.kind] + " " + place + ", which " +
              other + " " + WORDS[before.kind] + ", and nothing orders them");
}

void remember_read(Cell &cell, const Access &now) {
  // Kept are two readers: of different threads, and of different blocks if there are; not those that
  // this one is behind, and whoever is behind this one, too.
  Access &first = cell.reads[0], &second = cell.reads[1];
  for (Access &read : cell.reads)
    if (read.bytes && read.bytes == (read.bytes & now.bytes) && is_ordered(read, now)) read.bytes = 0;
  if (!first.bytes) first = now;
  else if (!second.bytes || first.block != now.block || second.block == now.block) second = now;
}

void access_cell(uintptr_t address, uintptr_t next, Kind kind) {
  uint8_t bytes = ((1 << (next - address)) - 1) << address % 4;
  if (pages.size() >= MOST_PAGES) here.watched = false;
  Access now{block().number, block().interval, block().warp_intervals[here.thread / WARP], 0,
             uint16_t(here.thread), bytes, kind};
  const auto &threads = clocks().threads;
  if (!threads.empty()) {
    auto found = threads.find(here.thread);
    if (found != threads.end()) now.fences = found->second.fences;
  }
  Page &page = page_of(address / Page::BYTES);
  if (address < page.first || next > page.end) report_beside(address);
  Cell &cell = page.cells[address % Page::BYTES / 4];
  check(cell.write, now, address);
  if (kind == READ) return remember_read(cell, now);
  for (const Access &read : cell.reads) check(read, now, address);
  cell.write = now;
}

void access(const void *pointer, size_t size, Kind kind) {
  uintptr_t address = reinterpret_cast<uintptr_t>(pointer), end = address + size;
  if (address - here.stack < here.stack_size) return;
  if (address - reinterpret_cast<uintptr_t>(&cudashim_now) < sizeof cudashim_now) return;
  while (address < end) {
    uintptr_t next = std::min(address / 4 * 4 + 4, end);
    access_cell(address, next, kind);
    address = next;
  }
}

}  // namespace

void watch_launch() {
  ++launch;
  places.clear();
  if (pages.size() < MOST_PAGES / 2) return;
  pages.clear();
  for (auto &slot : slots) slot = {};
}
void watch_block(unsigned number) {
  block() = {number, 0, {}};
  clocks() = {};
}
void watch_barrier() {
  ++block().interval;
  for (auto &[number, thread] : clocks().threads) {
    join(clocks().known, thread.known);
    thread.known.clear();
  }
}
void watch_cluster_barrier(unsigned blocks) {
  Clock all;
  for (here.rank = 0; here.rank < blocks; ++here.rank) {
    watch_barrier();
    join(all, clocks().known);
    join(all, {{block().number, {block().interval, {}}}});
  }
  for (here.rank = 0; here.rank < blocks; ++here.rank) clocks().known = all;
}

// What kernels call.
API void cudashim_fence() {
  if (!here.watched) return;
  ThreadClock &mine = clocks().threads[here.thread];
  join(mine.known, mine.acquired);
  mine.acquired.clear();
  mine.released = clocks().known;
  join(mine.released, mine.known);
  join(mine.released, {{block().number, {block().interval, {{here.thread, ++mine.fences}}}}});
}
API void cudashim_atomic_access(const void *address, size_t size) {
  if (!here.watched) return;
  access(address, size, ATOMIC);
  ThreadClock &mine = clocks().threads[here.thread];
  Clock &place = places[reinterpret_cast<uintptr_t>(address)];
  join(mine.acquired, place);
  join(place, mine.released);
}
#define CUDASHIM_WATCH(name, size, kind) \
  API void __tsan_##name(const void *p) { \
    if (here.watched) access(p, size, kind); \
  }
#define CUDASHIM_WATCH_ALIGNED(name, size, kind) \
  API void __tsan_##name(const void *p) { \
    if (reinterpret_cast<uintptr_t>(p) % size) report_misaligned(p, size); \
    if (here.watched) access(p, size, kind); \
  }
#define CUDASHIM_WATCH_SIZE(size) \
  CUDASHIM_WATCH_ALIGNED(read##size, size, READ) \
  CUDASHIM_WATCH_ALIGNED(write##size, size, WRITE) \
  CUDASHIM_WATCH(unaligned_read##size, size, READ) \
  CUDASHIM_WATCH(unaligned_write##size, size, WRITE)
CUDASHIM_WATCH_SIZE(1)
CUDASHIM_WATCH_SIZE(2)
CUDASHIM_WATCH_SIZE(4)
CUDASHIM_WATCH_SIZE(8)
CUDASHIM_WATCH_SIZE(16)
API void __tsan_read_range(const void *p, size_t size) {
  if (here.watched) access(p, size, READ);
}
API void __tsan_write_range(const void *p, size_t size) {
  if (here.watched) access(p, size, WRITE);
}
API void __tsan_init() {}
