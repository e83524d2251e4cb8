// Devices, contexts, errors, and what tests set and read.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

Options options;
Counters counters;
static std::recursive_mutex mutex;
static bool initialised;
static std::unordered_set<const void *> handles;
static std::map<int, CUctx_st> primary;
static thread_local std::vector<CUcontext> stack;
static std::string message;  // of the last failure

static void read_environment() {
#define CUDASHIM_READ(name, initial)                                          \
  {                                                                           \
    std::string variable = "CUDASHIM_" #name;                                 \
    for (char &c : variable) c = toupper(c);                                  \
    const char *text = getenv(variable.c_str());                              \
    options.name = text ? atoll(text) : static_cast<long long>(initial);      \
  }
  CUDASHIM_OPTIONS(CUDASHIM_READ)
}
static int at_load = (read_environment(), 0);

void remember(const void *handle) { handles.insert(handle); }
void forget(const void *handle) { handles.erase(handle); }
bool known(const void *handle) { return handles.count(handle) != 0; }

CUcontext current() { return stack.empty() ? nullptr : stack.back(); }

Call::Call(bool needs_context) : lock(mutex), failed(CUDA_SUCCESS) {
  if (!initialised) failed = CUDA_ERROR_NOT_INITIALIZED;
  else if (!needs_context) return;
  else if (!current()) failed = CUDA_ERROR_INVALID_CONTEXT;
  else failed = current()->sticky;
}

// A context whose kernel failed answers every later call with that error, as on a device.
CUresult fail(CUcontext context, CUresult code, const std::string &text) {
  message = text;
  fprintf(stderr, "cudashim: %s\n", text.c_str());
  return context->sticky = code;
}

// For tests.
API int cudashim_set(const char *name, long long value) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
#define CUDASHIM_SET(option, initial) \
  if (!strcmp(name, #option)) return options.option = value, 0;
  CUDASHIM_OPTIONS(CUDASHIM_SET)
  return -1;
}
API const char *cudashim_counter_names() {
#define CUDASHIM_NAME(name) #name " "
  return CUDASHIM_COUNTERS(CUDASHIM_NAME);
}
API void cudashim_counters(Counters *into) { *into = counters; }
API const char *cudashim_message() { return message.c_str(); }
API void cudashim_lose_device(int device) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  fail(&primary[device], CUDA_ERROR_LAUNCH_FAILED, "the device was lost on request");
}
API void cudashim_reset() {  // options as at the start, no errors, counters from zero
  std::lock_guard<std::recursive_mutex> lock(mutex);
  read_environment();
  message.clear();
  for (auto &[device, context] : primary) context.sticky = CUDA_SUCCESS;
  counters = Counters{};
}

API CUresult cuInit(unsigned) {
  std::lock_guard<std::recursive_mutex> lock(mutex);
  initialised = options.devices > 0;
  return initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
API CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

struct Described { const char *name, *text; };
#define ERROR(name, text) {CUDA_##name, {"CUDA_" #name, text}}
static const std::map<CUresult, Described> errors = {
    ERROR(SUCCESS, "no error"),
    ERROR(ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    ERROR(ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    ERROR(ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    ERROR(ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(ERROR_NOT_READY, "device not ready"),
    ERROR(ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    ERROR(ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR(ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(ERROR_INVALID_CLUSTER_SIZE, "cluster misconfiguration"),
    ERROR(ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    ERROR(ERROR_STREAM_CAPTURE_INVALIDATED,
          "operation failed due to a previous error during capture"),
    ERROR(ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    ERROR(ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    ERROR(ERROR_STREAM_CAPTURE_IMPLICIT,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR(ERROR_CAPTURED_EVENT,
          "operation not permitted on an event last recorded in a capturing stream"),
    ERROR(ERROR_STREAM_CAPTURE_WRONG_THREAD,
          "attempt to terminate a thread-local capture sequence from another thread"),
};
static CUresult tell(CUresult code, const char **text, const char *Described::*what) {
  auto found = errors.find(code);
  *text = found == errors.end() ? nullptr : found->second.*what;
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
API CUresult cuGetErrorName(CUresult code, const char **text) {
  return tell(code, text, &Described::name);
}
API CUresult cuGetErrorString(CUresult code, const char **text) {
  return tell(code, text, &Described::text);
}

// Devices.
#define ENTER_FOR(d) \
  ENTER(false);      \
  if (d < 0 || d >= options.devices) return CUDA_ERROR_INVALID_DEVICE
API CUresult cuDeviceGetCount(int *count) {
  ENTER(false);
  *count = options.devices;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  ENTER_FOR(ordinal);
  *device = ordinal;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  ENTER_FOR(device);
  snprintf(name, size, "cudashim %d (CPU)", device);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  ENTER_FOR(device);
  *bytes = options.memory;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
  ENTER_FOR(device);
  snprintf(text, size, "0000:%02X:00.0", device);
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  ENTER_FOR(device);
  memset(uuid, 0, sizeof *uuid);
  uuid->bytes[15] = device;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER_FOR(device);
  *major = options.capability / 10, *minor = options.capability % 10;
  return CUDA_SUCCESS;
}
static const std::map<int, int> attributes = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 5120},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 52428800},
};
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  ENTER_FOR(device);
  auto found = attributes.find(attribute);
  *value = found == attributes.end() ? 0 : found->second;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = options.capability / 10;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) *value = options.capability % 10;
  if (attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) *value = options.multiprocessors;
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) *value = device;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice, CUdevice) {
  *can = 0;
  return CUDA_SUCCESS;
}

// Contexts.
API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  ENTER_FOR(device);
  CUctx_st &found = primary[device];
  found.device = device;
  ++found.retained;
  remember(*context = &found);
  return CUDA_SUCCESS;
}
static CUresult give_up(CUcontext context) {
  if (!context->retained) return CUDA_ERROR_INVALID_CONTEXT;
  if (--context->retained == 0) release_memory(context);
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  ENTER_FOR(device);
  return give_up(&primary[device]);
}
API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  ENTER_FOR(device);
  release_memory(&primary[device]);
  primary[device].sticky = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  ENTER_FOR(device);
  *flags = 0, *active = primary[device].retained > 0;
  return CUDA_SUCCESS;
}
API CUresult cuCtxCreate(CUcontext *context, CUctxCreateParams *, unsigned, CUdevice device) {
  ENTER_FOR(device);
  remember(*context = new CUctx_st{device, 0});
  stack.push_back(*context);
  return CUDA_SUCCESS;
}
static bool is_primary(CUcontext context) { return context == &primary[context->device]; }
API CUresult cuCtxDestroy(CUcontext context) {
  ENTER(false);
  KNOWN(context);
  if (is_primary(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (current() == context) stack.pop_back();
  release_memory(context);
  forget(context);
  delete context;
  return CUDA_SUCCESS;
}
API CUresult cuCtxDetach(CUcontext context) {  // PyCUDA gives primary contexts up by it too
  ENTER(false);
  KNOWN(context);
  if (!is_primary(context)) return cuCtxDestroy(context);
  if (current() == context) stack.pop_back();
  return give_up(context);
}
API CUresult cuCtxPushCurrent(CUcontext context) {
  ENTER(false);
  KNOWN(context);
  stack.push_back(context);
  return CUDA_SUCCESS;
}
API CUresult cuCtxPopCurrent(CUcontext *context) {
  ENTER(false);
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
  ENTER(false);
  if (context) KNOWN(context);
  if (!stack.empty()) stack.pop_back();
  if (context) stack.push_back(context);
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *context) {
  ENTER(false);
  *context = current();
  return CUDA_SUCCESS;
}
API CUresult cuCtxAttach(CUcontext *context, unsigned) { return cuCtxGetCurrent(context); }
API CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER(false);
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current()->device;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetApiVersion(CUcontext, unsigned *version) {
  *version = 3020;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetLimit(size_t *value, CUlimit) {
  *value = 0;
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = *greatest = 0;
  return CUDA_SUCCESS;
}
API CUresult cuCtxSynchronize() {
  ENTER();
  UNSAFE();
  ++counters.synchronisations;
  return finish(nullptr);
}
