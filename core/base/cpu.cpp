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

// Cores that the process's affinity mask allows, however many the machine has.
int affinity_cores() {
  for (std::size_t n_bits = 1024; n_bits <= (std::size_t{1} << 20); n_bits *= 2) {
    std::vector<unsigned long> mask(n_bits / (8 * sizeof(unsigned long)));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    const std::size_t n_bytes = n_bits / 8;
    if (sched_getaffinity(0, n_bytes, set) == 0) return CPU_COUNT_S(n_bytes, set);
  }
  return static_cast<int>(std::thread::hardware_concurrency());
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

}  // namespace bolt
