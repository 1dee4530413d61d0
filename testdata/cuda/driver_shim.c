// A libcuda.so.1 that stands before the machine's own and lies as BOLT_SHIM says, so that refusals
// can be tried with a good driver and card:
//   old         the driver is for CUDA 11.4
//   none        there is no GPU
//   sm_75       the GPU is older than bolt's kernels
//   memory:N    N bytes are free
//   alloc:N     the N-th allocation from now on finds no memory
//   lost:N      the N-th wait for the GPU from now on says that it is gone
// BOLT_SHIM_DRIVER names the machine's libcuda.so.1; without it everything else fails.
// Built and run by refusals.sh.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kOutOfMemory = 2, kNoDevice = 100, kIllegalAddress = 700, kNotFound = 500 };

typedef int (*GetProcAddress2)(const char*, void**, int, uint64_t, int*);
typedef int (*GetProcAddress1)(const char*, void**, int, uint64_t);

static const char* lie(void) {
  const char* s = getenv("BOLT_SHIM");
  return s ? s : "";
}
static long lie_number(const char* name) {  // N of "name:N"; -1: another lie
  const size_t n = strlen(name);
  return strncmp(lie(), name, n) == 0 && lie()[n] == ':' ? atol(lie() + n + 1) : -1;
}
static void* driver(void) {
  static void* handle;
  const char* path = getenv("BOLT_SHIM_DRIVER");
  if (!handle && path) handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return handle;
}
static void* real(const char* name) { return driver() ? dlsym(driver(), name) : NULL; }

static int (*real_attribute)(int*, int, int);
static int (*real_memory)(size_t*, size_t*);
static int (*real_alloc)(uint64_t*, size_t);
static int (*real_wait)(void*);

static int version(int* v) {
  if (strcmp(lie(), "old") == 0) return *v = 11040, 0;
  int (*f)(int*) = (int (*)(int*))real("cuDriverGetVersion");
  return f ? f(v) : (*v = 13000, 0);
}
static int init(unsigned flags) {
  if (strcmp(lie(), "none") == 0) return kNoDevice;
  int (*f)(unsigned) = (int (*)(unsigned))real("cuInit");
  return f ? f(flags) : kNoDevice;
}
static int attribute(int* value, int which, int device) {
  if (strcmp(lie(), "sm_75") == 0 && which == 75) return *value = 7, 0;
  if (strcmp(lie(), "sm_75") == 0 && which == 76) return *value = 5, 0;
  return real_attribute(value, which, device);
}
static int memory(size_t* available, size_t* total) {
  const int status = real_memory(available, total);
  if (lie_number("memory") >= 0) *available = (size_t)lie_number("memory");
  return status;
}
static int alloc(uint64_t* pointer, size_t bytes) {
  static long n;
  if (++n == lie_number("alloc")) return kOutOfMemory;
  return real_alloc(pointer, bytes);
}
static int wait_for(void* stream) {
  static long n;
  if (lie_number("lost") >= 0 && ++n >= lie_number("lost")) return kIllegalAddress;
  return real_wait(stream);
}

static void* stand_in(const char* name, void* found) {
  if (strcmp(name, "cuDriverGetVersion") == 0) return (void*)version;
  if (strcmp(name, "cuInit") == 0) return (void*)init;
  if (!found) return NULL;
  if (strcmp(name, "cuDeviceGetAttribute") == 0) {
    return real_attribute = (int (*)(int*, int, int))found, (void*)attribute;
  }
  if (strcmp(name, "cuMemGetInfo") == 0) {
    return real_memory = (int (*)(size_t*, size_t*))found, (void*)memory;
  }
  if (strcmp(name, "cuMemAlloc") == 0) {
    return real_alloc = (int (*)(uint64_t*, size_t))found, (void*)alloc;
  }
  if (strcmp(name, "cuStreamSynchronize") == 0) {
    return real_wait = (int (*)(void*))found, (void*)wait_for;
  }
  return found;
}

int cuGetProcAddress_v2(const char* name, void** to, int cuda_version, uint64_t flags,
                        int* status) {
  GetProcAddress2 f = (GetProcAddress2)real("cuGetProcAddress_v2");
  int code = kNotFound;
  *to = NULL;
  if (f) code = f(name, to, cuda_version, flags, status);
  void* stand = stand_in(name, *to);
  if (strcmp(name, "cuGetProcAddress") == 0 && *to) stand = (void*)cuGetProcAddress_v2;
  if (stand && stand != *to) {
    *to = stand;
    if (status) *status = 0;
    return 0;
  }
  return code;
}
int cuGetProcAddress(const char* name, void** to, int cuda_version, uint64_t flags) {
  return cuGetProcAddress_v2(name, to, cuda_version, flags, NULL);
}
int cuDriverGetVersion(int* v) { return version(v); }
int cuInit(unsigned flags) { return init(flags); }
