// Clocks, temperature and memory from NVIDIA's management library, which is opened when it is first
// asked: a machine without it runs all the same. Declarations as in NVML's API reference.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include "core/engine/backend.h"

namespace bolt {
namespace {

constexpr int kOk = 0;
constexpr unsigned kSmClock = 1, kMemoryClock = 2, kGpuSensor = 0;

struct Memory {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    int (*init)() = nullptr;
    find("nvmlInit_v2", init);
    find("nvmlDeviceGetHandleByPciBusId_v2", handle_);
    find("nvmlDeviceGetClockInfo", clock_);
    find("nvmlDeviceGetTemperature", temperature_);
    find("nvmlDeviceGetMemoryInfo", memory_);
    works_ = init != nullptr && handle_ != nullptr && clock_ != nullptr &&
             temperature_ != nullptr && memory_ != nullptr && init() == kOk;
  }

  std::optional<GpuState> state(int ordinal) const {
    char bus_id[32] = "";
    void* device = nullptr;
    if (!works_ || cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), ordinal) != cudaSuccess ||
        handle_(bus_id, &device) != kOk) {
      return std::nullopt;
    }
    unsigned sm = 0, memory_clock = 0, temperature = 0;
    Memory memory{};
    if (clock_(device, kSmClock, &sm) != kOk ||
        clock_(device, kMemoryClock, &memory_clock) != kOk ||
        temperature_(device, kGpuSensor, &temperature) != kOk || memory_(device, &memory) != kOk) {
      return std::nullopt;
    }
    return GpuState{static_cast<int>(sm), static_cast<int>(memory_clock),
                    static_cast<int>(temperature), memory.used};
  }

 private:
  template <class F>
  void find(const char* name, F& function) {
    function = reinterpret_cast<F>(::dlsym(library_, name));
  }

  void* const library_;  // stays open as long as the process runs
  bool works_ = false;
  int (*handle_)(const char*, void**) = nullptr;
  int (*clock_)(void*, unsigned, unsigned*) = nullptr;
  int (*temperature_)(void*, unsigned, unsigned*) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
};

}  // namespace

std::optional<GpuState> gpu_state(int ordinal) {
  static const Nvml nvml;
  return nvml.state(ordinal);
}

}  // namespace bolt
