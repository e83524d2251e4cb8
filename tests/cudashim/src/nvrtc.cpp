// A libnvrtc: the stand-in for nvcc as a library. Like NVRTC it knows no header files.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#define API extern "C" __attribute__((visibility("default")))
enum { SUCCESS, INVALID_INPUT = 3, INVALID_PROGRAM, INVALID_OPTION, COMPILATION };

struct Program {
  std::string source, log, image;
};

static std::string bin() {  // the folder of the stand-in for nvcc
  Dl_info info;
  dladdr(reinterpret_cast<void *>(&bin), &info);
  std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/')) + "/bin";
}

static int size_of(const std::string &text, size_t *size) { return *size = text.size(), SUCCESS; }
static int copy_of(const std::string &text, char *into) {
  return memcpy(into, text.data(), text.size()), SUCCESS;
}

// Kernels that an earlier state of the tests' driver has compiled are none of this one: the minor
// version is the beginning of the folder's name.
API int nvrtcVersion(int *major, int *minor) {
  std::string folder = bin();
  folder = folder.substr(0, folder.rfind('/'));
  *minor = std::stoi(folder.substr(folder.rfind('/') + 1, 6), nullptr, 16);
  return *major = 13, SUCCESS;
}
API const char *nvrtcGetErrorString(int code) {
  return code == INVALID_OPTION ? "NVRTC_ERROR_INVALID_OPTION" : "NVRTC_ERROR of the tests";
}
API int nvrtcCreateProgram(Program **program, const char *source, const char *, int headers,
                           const char *const *, const char *const *) {
  if (!source || headers) return INVALID_INPUT;
  *program = new Program{source, std::string(1, '\0'), ""};
  return SUCCESS;
}
API int nvrtcDestroyProgram(Program **program) {
  delete *program;
  *program = nullptr;
  return SUCCESS;
}
API int nvrtcGetProgramLogSize(Program *p, size_t *size) {
  return p ? size_of(p->log, size) : INVALID_PROGRAM;
}
API int nvrtcGetProgramLog(Program *p, char *log) { return copy_of(p->log, log); }
API int nvrtcGetCUBINSize(Program *p, size_t *size) { return size_of(p->image, size); }
API int nvrtcGetCUBIN(Program *p, char *image) { return copy_of(p->image, image); }

API int nvrtcCompileProgram(Program *p, int count, const char *const *options) {
  std::string command = bin() + "/nvcc -cubin";
  for (int i = 0; i < count; ++i) {
    static const std::regex known("--gpu-architecture=sm_[0-9]+|--std=c\\+\\+17");
    if (!std::regex_match(options[i], known)) return INVALID_OPTION;
    command += std::string(" ") + options[i];
  }
  if (p->source.find("#include") != std::string::npos) {
    p->log = "kernels.cu: error: no header files are known" + std::string(1, '\0');
    return COMPILATION;
  }
  const char *base = getenv("TMPDIR");
  std::string folder = std::string(base ? base : "/tmp") + "/nvrtc.XXXXXX";
  if (!mkdtemp(&folder[0])) return INVALID_INPUT;
  const std::string source = folder + "/kernels.cu", out = folder + "/kernels.cubin";
  std::ofstream(source) << p->source;
  FILE *said = popen((command + " -o " + out + " " + source + " 2>&1").c_str(), "r");
  p->log.clear();
  for (int c; (c = fgetc(said)) != EOF;) p->log += static_cast<char>(c);
  p->log += '\0';
  const int failed = pclose(said);
  std::ifstream image(out, std::ios::binary);
  p->image.assign(std::istreambuf_iterator<char>(image), {});
  unlink(source.c_str()), unlink(out.c_str()), rmdir(folder.c_str());
  return failed ? COMPILATION : SUCCESS;
}
