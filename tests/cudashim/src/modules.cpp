// Modules and launches. A "cubin" is a shared library that nvcc.py has made.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "driver.h"

static CUresult refuse(CUresult code, const char *why) {
  fprintf(stderr, "cudashim: %s\n", why);
  return code;
}

static CUresult load(CUmodule *module, const void *image) {
  ENTER();
  UNSAFE();
  const auto *header = static_cast<const Elf64_Ehdr *>(image);
  if (memcmp(header->e_ident, ELFMAG, SELFMAG))
    return refuse(CUDA_ERROR_INVALID_IMAGE, "this module is no file of the tests' nvcc");
  if (header->e_machine == EM_CUDA)
    return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU,
                  "this module was compiled by NVIDIA's nvcc: the tests' own comes first on PATH "
                  "after cudashim.install()");
  // The table of sections is the last part of the file. The file is gone as soon as it is loaded.
  size_t size = header->e_shoff + size_t(header->e_shnum) * header->e_shentsize;
  char path[] = "/tmp/cudashim-XXXXXX";
  int file = mkstemp(path);
  bool written = file >= 0 && write(file, image, size) == ssize_t(size);
  if (file >= 0) close(file);
  void *library = written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  unlink(path);
  if (!library)
    return refuse(CUDA_ERROR_INVALID_IMAGE, written ? dlerror() : "/tmp is not writable");
  const int *made_for = static_cast<const int *>(dlsym(library, "cudashim_architecture"));
  if (!made_for || *made_for > options.capability ||
      *made_for / 10 != options.capability / 10) {
    dlclose(library);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  remember(*module = new CUmod_st{current(), library, {}});
  ++counters.modules;
  return CUDA_SUCCESS;
}
API CUresult cuModuleLoadData(CUmodule *module, const void *image) { return load(module, image); }
API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned, CUjit_option *,
                                void **) {
  return load(module, image);
}
API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
  return load(module, image);
}
API CUresult cuModuleLoad(CUmodule *module, const char *path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  image.resize(std::max(image.size(), sizeof(Elf64_Ehdr)));
  return load(module, image.data());
}
API CUresult cuModuleUnload(CUmodule module) {
  ENTER(false);
  KNOWN(module);
  for (auto &[name, function] : module->functions) {
    forget(function);
    delete function;
  }
  CUresult sticky = module->context->sticky;
  dlclose(module->library);
  forget(module);
  delete module;
  return sticky;
}
API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  ENTER();
  KNOWN(module);
  void *found = dlsym(module->library, (std::string("cudashim_kernel_") + name).c_str());
  if (!found) return CUDA_ERROR_NOT_FOUND;
  CUfunction &slot = module->functions[name];
  if (!slot) {
    slot = new CUfunc_st{module, name, static_cast<const cudashim::KernelInfo *>(found), 49152};
    remember(slot);
  }
  *function = slot;
  return CUDA_SUCCESS;
}
API CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *bytes, CUmodule module,
                               const char *name) {
  ENTER();
  KNOWN(module);
  void *found = dlsym(module->library, name);
  if (!found) return CUDA_ERROR_NOT_FOUND;
  Dl_info info;
  ElfW(Sym) *symbol = nullptr;
  dladdr1(found, &info, reinterpret_cast<void **>(&symbol), RTLD_DL_SYMENT);
  size_t size = symbol ? symbol->st_size : 0;
  add_global(module->context, CUdeviceptr(found), size);
  if (address) *address = CUdeviceptr(found);
  if (bytes) *bytes = size;
  return CUDA_SUCCESS;
}

// Functions.
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  ENTER();
  KNOWN(function);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = function->dynamic_shared_limit;
      break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  ENTER();
  KNOWN(function);
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value < 0 || value > 232448) return CUDA_ERROR_INVALID_VALUE;
  function->dynamic_shared_limit = value;
  return CUDA_SUCCESS;
}
API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
// Of an old way to launch; what counts is given to cuLaunchKernel.
API CUresult cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }
API CUresult cuFuncSetSharedSize(CUfunction, unsigned) { return CUDA_SUCCESS; }
API CUresult cuFuncGetParamInfo(CUfunction function, size_t i, size_t *offset, size_t *size) {
  ENTER();
  KNOWN(function);
  if (i >= function->kernel->count) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->kernel->arguments[i].offset;
  if (size) *size = function->kernel->arguments[i].size;
  return CUDA_SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction, int threads,
                                                         size_t shared) {
  ENTER();
  if (threads < 1 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  int by_memory = 233472 / (shared + 1024);  // a block's own KiB
  *blocks = std::min({32, 2048 / ((threads + 31) / 32 * 32), by_memory});
  return CUDA_SUCCESS;
}

// Launches.
CUresult count_launch(CUcontext context) {
  if (options.lose_after < 0 || options.lose_after-- > 0) return CUDA_SUCCESS;
  return fail(context, CUDA_ERROR_LAUNCH_FAILED, "the device was lost on request");
}

// The arguments as one block, from either of the two ways to give them.
static CUresult gather(const Launch &launch, std::vector<char> &block, void **one_by_one,
                       void **extra) {
  const cudashim::KernelInfo &kernel = *launch.function->kernel;
  block.resize(kernel.bytes);
  if (one_by_one) {
    for (unsigned i = 0; i < kernel.count; ++i)
      memcpy(&block[kernel.arguments[i].offset], one_by_one[i], kernel.arguments[i].size);
    return CUDA_SUCCESS;
  }
  const void *packed = nullptr;
  size_t size = 0;
  for (void **e = extra; e && *e != CU_LAUNCH_PARAM_END; e += 2)
    if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = e[1];
    else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t *>(e[1]);
  if (size != kernel.bytes) {
    std::string text = "kernel " + launch.function->name + " takes " +
                       std::to_string(kernel.bytes) + " bytes of arguments, got " +
                       std::to_string(size);
    return refuse(CUDA_ERROR_INVALID_VALUE, text.c_str());
  }
  if (kernel.bytes) memcpy(block.data(), packed, kernel.bytes);
  return CUDA_SUCCESS;
}

// Addresses among the arguments, and in structures there, must be of live memory of this context, or
// pinned.
static CUresult check_addresses(const Launch &launch) {
  const cudashim::KernelInfo &kernel = *launch.function->kernel;
  CUcontext context = launch.function->module->context;
  std::vector<unsigned> places;
  auto found = [](void *data, unsigned place) {
    static_cast<std::vector<unsigned> *>(data)->push_back(place);
  };
  for (unsigned i = 0; i < kernel.count; ++i) {
    const cudashim::Argument &argument = kernel.arguments[i];
    places.clear();
    argument.pointers(argument.offset, found, &places);
    for (unsigned place : places) {
      CUdeviceptr address;
      memcpy(&address, &launch.arguments[place], sizeof address);
      if (!address || is_device_memory(context, address, 0)) continue;
      if (is_pinned(reinterpret_cast<void *>(address))) continue;
      std::string which = "argument " + std::to_string(i);
      if (argument.size > sizeof address)
        which = "the pointer at byte " + std::to_string(place - argument.offset) + " of " + which;
      return fail(context, CUDA_ERROR_ILLEGAL_ADDRESS,
                  which + " of kernel " + launch.function->name + " is " + describe(address));
    }
  }
  return CUDA_SUCCESS;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                            unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            CUstream stream, void **one_by_one, void **extra) {
  ENTER();
  KNOWN(function);
  if (function->module->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t threads = uint64_t(bx) * by * bz;
  if (!gx || !gy || !gz || gx > 0x7fffffff || gy > 65535 || gz > 65535 || !threads ||
      threads > 1024 || bz > 64 || shared > unsigned(function->dynamic_shared_limit))
    return CUDA_ERROR_INVALID_VALUE;
  unsigned cluster = function->kernel->cluster;
  if (gx % cluster || cluster > MOST_CLUSTERED || (cluster > 1 && options.capability < 90))
    return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  if (function->kernel->bytes > options.parameters) {
    std::string text = "kernel " + function->name + " takes " +
                       std::to_string(function->kernel->bytes) + " bytes of arguments, of which a "
                       "device takes " + std::to_string(options.parameters) + " at most";
    return refuse(CUDA_ERROR_INVALID_VALUE, text.c_str());
  }
  Launch launch{function, {gx, gy, gz}, {bx, by, bz}, shared, {}};
  if (CUresult failed = gather(launch, launch.arguments, one_by_one, extra)) return failed;
  ++counters.launches;
  if (CUresult failed = count_launch(current())) return failed;
  return enqueue(stream, CU_GRAPH_NODE_TYPE_KERNEL, [launch = std::move(launch)] {
    CUresult failed = check_addresses(launch);
    return failed ? failed : execute(launch);
  });
}
API CUresult cuProfilerStart() { return CUDA_SUCCESS; }
API CUresult cuProfilerStop() { return CUDA_SUCCESS; }
API CUresult cuProfilerInitialize(const char *, const char *, int) { return CUDA_SUCCESS; }
