// Device memory: pages of this process between pages that nobody may touch, filled with NaN.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

static std::map<CUdeviceptr, Allocation> live;
static std::deque<Allocation> freed;  // kept unmapped for a while, so that late uses are seen
static std::map<const char *, size_t> pinned;
static std::map<int, size_t> used;    // bytes of each device
static constexpr size_t KEPT_FREED = 256, ALIGNMENT = 16, GUARD = 1 << 20;
static const size_t page = sysconf(_SC_PAGESIZE);

static size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

const Allocation *allocation_of(CUdeviceptr address) {
  auto next = live.upper_bound(address);
  if (next == live.begin()) return nullptr;
  const Allocation &found = (--next)->second;
  return address <= found.base + found.size ? &found : nullptr;
}
// The one between whose guards an address lies, perhaps beside it.
const Allocation *allocation_near(CUdeviceptr address) {
  auto next = live.upper_bound(address);
  auto is_near = [&](const Allocation &a) { return address - CUdeviceptr(a.map) < a.mapped; };
  if (next != live.end() && is_near(next->second)) return &next->second;
  return next != live.begin() && is_near((--next)->second) ? &next->second : nullptr;
}
bool is_device_memory(CUcontext context, CUdeviceptr address, size_t bytes) {
  const Allocation *found = allocation_of(address);
  return found && found->context == context &&
         address + bytes <= found->base + found->size;
}
bool is_pinned(const void *address) {
  auto next = pinned.upper_bound(static_cast<const char *>(address));
  if (next == pinned.begin()) return false;
  --next;
  return address < next->first + next->second;
}
void add_global(CUcontext context, CUdeviceptr address, size_t bytes) {
  live[address] = {address, bytes, context, nullptr, 0};
}

// Where an address lies, in words.
std::string describe(CUdeviceptr address) {
  char text[200];
  auto words = [&](const char *what, const Allocation &a) {
    long long offset = address - a.base;
    snprintf(text, sizeof text, "byte %lld of %s of %zu bytes", offset, what, a.size);
    return std::string(text);
  };
  for (const auto &[base, a] : live)
    if (a.map && address >= CUdeviceptr(a.map) && address < CUdeviceptr(a.map) + a.mapped)
      return words("an allocation", a);
  for (const Allocation &a : freed)
    if (address >= CUdeviceptr(a.map) && address < CUdeviceptr(a.map) + a.mapped)
      return words("a freed allocation", a);
  snprintf(text, sizeof text, "address 0x%llx, which is no device memory", address);
  return text;
}

// What lies between an allocation and its pages' borders must keep its bits.
static bool intact(const Allocation &a) {
  if (!a.map) return true;
  const unsigned char *begin = reinterpret_cast<unsigned char *>(a.map) + GUARD;
  const unsigned char *end = begin + a.mapped - 2 * GUARD;
  for (const unsigned char *p = begin; p < end; ++p) {
    if (CUdeviceptr(p) == a.base) p += a.size;
    if (p < end && *p != 0xff) return false;
  }
  return true;
}
static void release(std::map<CUdeviceptr, Allocation>::iterator found) {
  Allocation a = found->second;
  live.erase(found);
  if (!a.map) return;
  used[a.context->device] -= a.size;
  counters.live_bytes -= a.size;
  madvise(a.map, a.mapped, MADV_DONTNEED);
  mprotect(a.map, a.mapped, PROT_NONE);
  freed.push_back(a);
  if (freed.size() <= KEPT_FREED) return;
  munmap(freed.front().map, freed.front().mapped);
  freed.pop_front();
}
void release_memory(CUcontext context) {
  for (auto i = live.begin(); i != live.end();) {
    auto next = std::next(i);
    if (i->second.context == context) release(i);
    i = next;
  }
}
API CUresult cudashim_check() {  // finds what was written beside allocations
  ENTER();
  for (const auto &[base, a] : live)
    if (!intact(a))
      return fail(a.context, CUDA_ERROR_ILLEGAL_ADDRESS,
                  "something was written beside an allocation of " + std::to_string(a.size) +
                      " bytes");
  return CUDA_SUCCESS;
}

API CUresult cuMemAlloc(CUdeviceptr *address, size_t size) {
  ENTER();
  UNSAFE();
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  CUcontext context = current();
  if (used[context->device] + size > size_t(options.memory)) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t inner = rounded(size, page), mapped = inner + 2 * GUARD;
  int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *map = mmap(nullptr, mapped, PROT_NONE, kind, -1, 0);
  if (map == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char *begin = static_cast<char *>(map) + GUARD;
  bool guard = options.guard != GUARD_OFF;
  if (mprotect(guard ? begin : map, guard ? inner : mapped, PROT_READ | PROT_WRITE)) {
    munmap(map, mapped);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  memset(begin, 0xff, inner);
  if (options.guard == GUARD_END) begin += inner - rounded(size, ALIGNMENT);
  *address = CUdeviceptr(begin);
  live[*address] = {*address, size, context, static_cast<char *>(map), mapped};
  used[context->device] += size;
  counters.live_bytes += size;
  ++counters.allocations;
  return CUDA_SUCCESS;
}
API CUresult cuMemFree(CUdeviceptr address) {
  Call call;
  auto found = live.find(address);
  bool allocated = found != live.end() && found->second.map;
  if (call.failed) {  // a lost device does not keep memory
    if (allocated) release(found);
    return call.failed;
  }
  UNSAFE();
  if (!allocated) return CUDA_ERROR_INVALID_VALUE;
  ++counters.synchronisations;  // it waits for everything
  if (CUresult failed = finish(nullptr)) return failed;
  bool whole = intact(found->second);
  CUcontext context = found->second.context;
  release(found);
  ++counters.frees;
  if (whole) return CUDA_SUCCESS;
  return fail(context, CUDA_ERROR_ILLEGAL_ADDRESS, "something was written beside an allocation");
}
API CUresult cuMemAllocPitch(CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned) {
  *pitch = rounded(width, 512);
  return cuMemAlloc(p, *pitch * height);
}
API CUresult cuMemGetInfo(size_t *free, size_t *total) {
  ENTER();
  *total = options.memory;
  *free = options.memory - used[current()->device];
  return CUDA_SUCCESS;
}
API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ENTER();
  const Allocation *found = allocation_of(address);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = found->base;
  if (size) *size = found->size;
  return CUDA_SUCCESS;
}
API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                   CUdeviceptr address) {
  ENTER();
  const Allocation *found = allocation_of(address);
  bool host = is_pinned(reinterpret_cast<void *>(address));
  if (!found && !host) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext *>(value) = found ? found->context : current();
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned *>(value) = found ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr *>(value) = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int *>(value) = found ? found->context->device : current()->device;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Pinned host memory.
API CUresult cuMemHostAlloc(void **p, size_t size, unsigned) {
  ENTER();
  UNSAFE();
  if (!size) return CUDA_ERROR_INVALID_VALUE;
  if (posix_memalign(p, page, size)) return CUDA_ERROR_OUT_OF_MEMORY;
  pinned[static_cast<char *>(*p)] = size;
  return CUDA_SUCCESS;
}
API CUresult cuMemAllocHost(void **p, size_t size) { return cuMemHostAlloc(p, size, 0); }
API CUresult cuMemFreeHost(void *p) {
  ENTER(false);
  if (!pinned.erase(static_cast<char *>(p))) return CUDA_ERROR_INVALID_VALUE;
  if (current()) ++counters.synchronisations, finish(nullptr);
  free(p);
  return current() ? current()->sticky : CUDA_SUCCESS;
}
API CUresult cuMemHostRegister(void *p, size_t size, unsigned) {
  ENTER();
  pinned[static_cast<char *>(p)] = size;
  return CUDA_SUCCESS;
}
API CUresult cuMemHostUnregister(void *p) {
  ENTER();
  return pinned.erase(static_cast<char *>(p)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *p, unsigned) {
  ENTER();
  if (!is_pinned(p)) return CUDA_ERROR_INVALID_VALUE;
  *address = CUdeviceptr(p);
  return CUDA_SUCCESS;
}
API CUresult cuMemHostGetFlags(unsigned *flags, void *) {
  *flags = 0;
  return CUDA_SUCCESS;
}
