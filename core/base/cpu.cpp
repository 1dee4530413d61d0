// What this processor and its operating system allow: cpuid and xgetbv, affinity and cgroup quota.
#include "core/base/cpu.h"

#include <cpuid.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"

namespace bolt {

namespace {

struct Features {
  bool fma = false, avx2 = false, avx512 = false;
};

std::uint64_t xcr0() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

Features detect() {
  Features found;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return found;
  constexpr std::uint64_t kYmm = 0x06, kZmm = 0xe6;  // state the OS saves and restores
  const std::uint64_t saved = xcr0();
  if ((saved & kYmm) != kYmm || !(c & bit_AVX)) return found;
  found.fma = (c & bit_FMA) != 0;
  const bool f16c = (c & bit_F16C) != 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.avx2 = found.fma && f16c && (b & bit_AVX2);
  constexpr unsigned kFoundation = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  constexpr unsigned kBytes = bit_AVX512VNNI | bit_AVX512VBMI;
  found.avx512 = found.avx2 && (saved & kZmm) == kZmm && (b & kFoundation) == kFoundation &&
                 (c & kBytes) == kBytes;
  return found;
}

const Features& features() {
  static const Features found = detect();
  return found;
}

// A thread's affinity mask, however many cores the machine has.
struct Affinity {
  std::vector<unsigned long> mask;
  std::size_t n_bytes() const { return mask.size() * sizeof(unsigned long); }
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(mask.data()); }
};
bool read_affinity(Affinity& affinity) {
  for (std::size_t n_bits = 1024; n_bits <= (std::size_t{1} << 20); n_bits *= 2) {
    affinity.mask.assign(n_bits / (8 * sizeof(unsigned long)), 0);
    if (sched_getaffinity(0, affinity.n_bytes(), affinity.set()) == 0) return true;
  }
  return false;
}

int affinity_cores() {
  Affinity affinity;
  if (read_affinity(affinity)) return CPU_COUNT_S(affinity.n_bytes(), affinity.set());
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Numbers of a list of the kernel's such as "0-3,8"; empty if there is no such file.
std::vector<int> read_list(const std::string& path) {
  std::vector<int> numbers;
  std::ifstream file(path);
  for (std::string range; std::getline(file, range, ',');) {
    char* end = nullptr;
    const long first = std::strtol(range.c_str(), &end, 10);
    const long last = *end == '-' ? std::strtol(end + 1, nullptr, 10) : first;
    for (long i = first; i <= last; ++i) numbers.push_back(static_cast<int>(i));
  }
  return numbers;
}

// Cores of "quota period" in microseconds, or 0 if there is no limit.
double quota_cores(const std::string& quota, double period) {
  if (quota.empty() || quota == "max" || quota[0] == '-' || period <= 0) return 0;
  return std::strtod(quota.c_str(), nullptr) / period;
}

// The tightest quota on the path from a cgroup to the root; 0 if there is none.
double cgroup_cores() {
  double least = 0;
  const auto note = [&least](double cores) {
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool v2 = controllers == ",,";
    if (!v2 && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      std::string quota;
      double period = 0;
      if (v2) {
        std::ifstream(root + path + "/cpu.max") >> quota >> period;
      } else {
        std::ifstream(root + path + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(root + path + "/cpu.cfs_period_us") >> period;
      }
      note(quota_cores(quota, period));
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

}  // namespace

bool cpu_has(Isa isa) {
  switch (isa) {
    case Isa::automatic:
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return features().avx2;
    case Isa::avx512:
      return features().avx512;
  }
  return false;
}

bool cpu_has_fma() { return features().fma; }

Isa resolve_isa(Isa wanted) {
  if (wanted == Isa::automatic) {
    if (cpu_has(Isa::avx512)) return Isa::avx512;
    return cpu_has(Isa::avx2) ? Isa::avx2 : Isa::scalar;
  }
  if (cpu_has(wanted)) return wanted;
  throw Error(Exit::usage, std::string("--isa ") + isa_name(wanted) +
                               ": this processor lacks it, its best is " +
                               isa_name(resolve_isa(Isa::automatic)) + "; use --isa auto");
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::automatic:
      return "auto";
    case Isa::scalar:
      return "scalar";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "unknown";
}

int usable_cores() {
  const int allowed = std::max(1, affinity_cores());
  const double quota = cgroup_cores();
  if (quota <= 0) return allowed;
  return std::clamp(static_cast<int>(std::ceil(quota)), 1, allowed);
}

void keep_to_node_share(int part, int n_parts) {
  const std::string root = "/sys/devices/system/node/";
  Affinity allowed;
  if (n_parts < 2 || !read_affinity(allowed)) return;
  std::vector<int> cores;  // that are allowed, node by node
  int n_nodes = 0;
  for (const int node : read_list(root + "online")) {
    const std::size_t before = cores.size();
    for (const int core : read_list(root + "node" + std::to_string(node) + "/cpulist")) {
      if (CPU_ISSET_S(core, allowed.n_bytes(), allowed.set())) cores.push_back(core);
    }
    if (cores.size() > before) ++n_nodes;
  }
  if (n_nodes < 2 || cores.size() < static_cast<std::size_t>(n_parts)) return;
  const auto edge = [&](int i) {
    return cores.size() * static_cast<std::size_t>(i) / static_cast<std::size_t>(n_parts);
  };
  Affinity own;
  own.mask.assign(allowed.mask.size(), 0);
  for (std::size_t i = edge(part); i < edge(part + 1); ++i) {
    CPU_SET_S(cores[i], own.n_bytes(), own.set());
  }
  (void)sched_setaffinity(0, own.n_bytes(), own.set());  // else it runs where it may, as before
}

}  // namespace bolt
