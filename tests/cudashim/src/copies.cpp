// Copies and fills of memory.
#include <algorithm>
#include <cstring>

#include "driver.h"

static constexpr size_t COMMAND = 64 << 10;

// `kind` is the counter of the direction.
static CUresult copy(bool blocking, CUstream stream, long long &kind, Work work) {
  if (blocking) UNSAFE(true);
  ++kind;
  counters.blocking_copies += blocking;
  return enqueue(blocking ? nullptr : stream, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(work));
}
#define DEVICE_MEMORY(address, bytes) \
  if ((bytes) && !is_device_memory(current(), address, bytes)) return CUDA_ERROR_INVALID_VALUE
static CUresult to_device(bool blocking, CUdeviceptr to, const void *from, size_t n, CUstream s) {
  ENTER();
  DEVICE_MEMORY(to, n);
  std::shared_ptr<char[]> kept;  // a driver copies pageable memory before it returns
  bool captured = !is_legacy(s) && known(s) && s->capture;
  // ... and moves what is more than a command holds to the device afterwards, however it was called.
  bool moves_late = options.late && !captured && !is_pinned(from) && (!blocking || n > COMMAND);
  if (moves_late) {
    kept.reset(new char[n]);
    memcpy(kept.get(), from, n);
    from = kept.get();
  }
  Work work = [=] {
    DEVICE_MEMORY(to, n);
    memcpy(reinterpret_cast<void *>(to), kept ? kept.get() : from, n);
    return CUDA_SUCCESS;
  };
  if (!blocking || !moves_late) return copy(blocking, s, counters.htod, std::move(work));
  UNSAFE(true);
  ++counters.htod, ++counters.blocking_copies;
  return put_off(std::move(work));
}
static CUresult to_host(bool blocking, void *to, CUdeviceptr from, size_t n, CUstream s) {
  ENTER();
  DEVICE_MEMORY(from, n);
  CUresult result = copy(blocking, s, counters.dtoh, [=] {
    DEVICE_MEMORY(from, n);
    memcpy(to, reinterpret_cast<void *>(from), n);
    return CUDA_SUCCESS;
  });
  // a driver waits for copies to pageable memory
  if (result || is_legacy(s) || s->capture || is_pinned(to)) return result;
  return finish(s);
}
static CUresult on_device(bool blocking, CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  ENTER();
  DEVICE_MEMORY(to, n);
  DEVICE_MEMORY(from, n);
  return copy(blocking, s, counters.dtod, [=] {
    DEVICE_MEMORY(to, n);
    DEVICE_MEMORY(from, n);
    memmove(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), n);
    return CUDA_SUCCESS;
  });
}
API CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t n) {
  return to_device(true, to, from, n, nullptr);
}
API CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n) {
  return to_host(true, to, from, n, nullptr);
}
API CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) {
  return on_device(true, to, from, n, nullptr);
}
API CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream s) {
  return to_device(false, to, from, n, s);
}
API CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t n, CUstream s) {
  return to_host(false, to, from, n, s);
}
API CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) {
  return on_device(false, to, from, n, s);
}
static CUresult copy_2d(bool blocking, const CUDA_MEMCPY2D &c, CUstream stream) {
  ENTER();
  bool from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST;
  bool to_host = c.dstMemoryType == CU_MEMORYTYPE_HOST;
  if (!c.WidthInBytes || !c.Height) return CUDA_SUCCESS;
  size_t from_pitch = c.srcPitch ? c.srcPitch : c.WidthInBytes;
  size_t to_pitch = c.dstPitch ? c.dstPitch : c.WidthInBytes;
  CUdeviceptr from = (from_host ? CUdeviceptr(c.srcHost) : c.srcDevice) + c.srcY * from_pitch +
                     c.srcXInBytes;
  CUdeviceptr to = (to_host ? CUdeviceptr(c.dstHost) : c.dstDevice) + c.dstY * to_pitch +
                   c.dstXInBytes;
  if (!from_host) DEVICE_MEMORY(from, (c.Height - 1) * from_pitch + c.WidthInBytes);
  if (!to_host) DEVICE_MEMORY(to, (c.Height - 1) * to_pitch + c.WidthInBytes);
  long long &kind = from_host ? counters.htod : to_host ? counters.dtoh : counters.dtod;
  return copy(blocking, stream, kind, [=, width = c.WidthInBytes, height = c.Height] {
    for (size_t y = 0; y < height; ++y)
      memmove(reinterpret_cast<void *>(to + y * to_pitch),
              reinterpret_cast<void *>(from + y * from_pitch), width);
    return CUDA_SUCCESS;
  });
}
API CUresult cuMemcpy2D(const CUDA_MEMCPY2D *c) { return copy_2d(true, *c, nullptr); }
API CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *c) { return copy_2d(true, *c, nullptr); }
API CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *c, CUstream s) { return copy_2d(false, *c, s); }

template <class T> static CUresult fill(bool blocking, CUdeviceptr to, T v, size_t n, CUstream s) {
  ENTER();
  DEVICE_MEMORY(to, n * sizeof(T));
  if (blocking) UNSAFE(true);
  ++counters.memsets;
  return enqueue(s, CU_GRAPH_NODE_TYPE_MEMSET, [=] {
    DEVICE_MEMORY(to, n * sizeof(T));
    std::fill_n(reinterpret_cast<T *>(to), n, v);
    return CUDA_SUCCESS;
  });
}
API CUresult cuMemsetD8(CUdeviceptr p, unsigned char v, size_t n) {
  return fill(true, p, v, n, nullptr);
}
API CUresult cuMemsetD16(CUdeviceptr p, unsigned short v, size_t n) {
  return fill(true, p, v, n, nullptr);
}
API CUresult cuMemsetD32(CUdeviceptr p, unsigned v, size_t n) {
  return fill(true, p, v, n, nullptr);
}
API CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  return fill(false, p, v, n, s);
}
API CUresult cuMemsetD16Async(CUdeviceptr p, unsigned short v, size_t n, CUstream s) {
  return fill(false, p, v, n, s);
}
API CUresult cuMemsetD32Async(CUdeviceptr p, unsigned v, size_t n, CUstream s) {
  return fill(false, p, v, n, s);
}
