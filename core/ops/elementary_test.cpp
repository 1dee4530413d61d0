// The elementary functions (§2): every build of them gives the bits that the contract froze, and
// errs by at most 2.5 ulp. All 2^32 inputs with BOLT_EXHAUSTIVE=1 in the environment, else one
// block of 65,536 neighbouring inputs in 257, which meets every exponent of both signs.
#include "core/ops/testing/elementary.h"

#include <atomic>
#include <cstdlib>
#include <functional>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

constexpr int kBlocks = 65536, kBlockInputs = 65536, kStride = 257;

bool exhaustive() { return std::getenv("BOLT_EXHAUSTIVE") != nullptr; }

// Sum of a mixed word per input, so that inputs may be taken in any order.
std::uint64_t hash_one(std::uint32_t input, float result) {
  const std::uint64_t h =
      static_cast<std::uint64_t>(float_bits(result) + 0x9E3779B9u * input) * 0x9E3779B97F4A7C15ull;
  return h ^ (h >> 29);
}

std::uint64_t hash_block(ApplyElementary apply, Elementary f, int block) {
  constexpr int kPart = 1024;
  alignas(64) float x[kPart], y[kPart];
  std::uint64_t sum = 0;
  for (int first = 0; first < kBlockInputs; first += kPart) {
    const auto base = (static_cast<std::uint32_t>(block) << 16) + static_cast<std::uint32_t>(first);
    for (std::uint32_t i = 0; i < kPart; ++i) x[i] = bits_float(base + i);
    apply(f, x, y, kPart);
    for (std::uint32_t i = 0; i < kPart; ++i) sum += hash_one(base + i, y[i]);
  }
  return sum;
}

std::uint64_t hash_all(ThreadPool& pool, ApplyElementary apply, Elementary f, int stride) {
  const int n = (kBlocks + stride - 1) / stride;
  std::vector<std::uint64_t> blocks(static_cast<std::size_t>(n));
  pool.parallel_for(n, 1, [&](int begin, int end, int) {
    for (int i = begin; i < end; ++i)
      blocks[static_cast<std::size_t>(i)] = hash_block(apply, f, i * stride);
  });
  std::uint64_t all = 0;
  for (std::uint64_t block : blocks) all = all * 31 + block;
  return all;
}

// Hashes of the arithmetic's first implementation, over all inputs and over every 257th block: what
// any other must give. It had no silu and relu2; those two are of this implementation.
struct Golden {
  std::uint64_t all, sampled;
};
constexpr Golden kGolden[kElementary] = {
    {0xb104df268c99a623ull, 0xbf6633b603e4c77cull},  // exp
    {0x580246aec0bcd2b8ull, 0xa81dd1f0f3b8a8f9ull},  // log
    {0xc868d1f0c30b00f2ull, 0x27be19402d30d992ull},  // sigmoid
    {0x0556cf0e3f50dfafull, 0x759a59475ac6c5e5ull},  // softplus
    {0x6ee2514604370ec9ull, 0x972c7f31e75dd3acull},  // rsqrt
    {0xa3759d1e4a80d588ull, 0xf08db351920ffd42ull},  // silu
    {0x09fd1f9c5ba0a14bull, 0xfe9780aaff09ce91ull},  // relu2
};

double reference(Elementary f, double x) {
  switch (f) {
    case Elementary::exp:
      return std::exp(x);
    case Elementary::log:
      return std::log(x);
    case Elementary::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Elementary::softplus:
      return (x > 0 ? x : 0) + std::log1p(std::exp(-std::fabs(x)));
    case Elementary::rsqrt:
      return 1 / std::sqrt(x);
    case Elementary::silu:
      return x / (1 + std::exp(-x));
    case Elementary::relu2:
      return x > 0 ? x * x : 0;
  }
  return 0;
}

// Units in the last place of binary32 at `want`, subnormals included.
double ulps(float got, double want) {
  if (want != want) return got != got ? 0 : 1e30;
  const auto rounded = static_cast<float>(want);
  if (std::isinf(rounded)) {
    return got == rounded ? 0 : got == std::copysign(3.4028235e38f, rounded) ? 1 : 1e30;
  }
  if (got != got || std::isinf(got)) return 1e30;
  int exponent = 0;
  std::frexp(std::fabs(want), &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -125) - 24);
  return std::fabs(static_cast<double>(got) - want) / unit;
}

}  // namespace

TEST_CASE("elementary functions: every build gives the frozen bits") {
  ThreadPool pool(usable_cores());
  struct Build {
    const char* name;
    ApplyElementary apply;
    bool here;
  };
  const Build builds[] = {{"portable", apply_portable, true},
                          {"fma", apply_fma, cpu_has_fma()},
                          {"avx2", apply_avx2, cpu_has(Isa::avx2)},
                          {"avx512", apply_avx512, cpu_has(Isa::avx512)}};
  for (const Build& build : builds) {
    if (!build.here) continue;
    for (int f = 0; f < kElementary; ++f) {
      const int stride = exhaustive() ? 1 : kStride;
      const std::uint64_t hash = hash_all(pool, build.apply, static_cast<Elementary>(f), stride);
      const std::uint64_t golden = exhaustive() ? kGolden[f].all : kGolden[f].sampled;
      CHECK_MESSAGE(hash == golden, std::string(build.name), " ", std::string(kElementaryNames[f]));
    }
  }
}

// sigmoid is 1 / (1 + exp(-x)), so below -87.3, where a sigmoid is under 2^-126, it fades to 0
// early: there sigmoid and silu err by less than 2^-120, not by some ulp.
bool right(Elementary f, float x, float got) {
  const double want = reference(f, static_cast<double>(x));
  if ((f == Elementary::sigmoid || f == Elementary::silu) && x < -87.3f) {
    return std::fabs(static_cast<double>(got) - want) < 0x1p-120 || std::isinf(x);
  }
  return ulps(got, want) <= (f == Elementary::silu ? 3.0 : 2.5);  // silu rounds once more
}

TEST_CASE("elementary functions: at most 2.5 ulp from the real value, silu 3") {
  ThreadPool pool(usable_cores());
  const int stride = exhaustive() ? 1 : 4 * kStride;
  for (int f = 0; f < kElementary; ++f) {
    std::atomic<int> n_beyond{0};
    const int n = (kBlocks + stride - 1) / stride;
    pool.parallel_for(n, 1, [&](int begin, int end, int) {
      for (int block = begin; block < end; ++block) {
        for (std::uint32_t i = 0; i < kBlockInputs; i += 16) {
          alignas(64) float x[16], y[16];
          for (std::uint32_t k = 0; k < 16; ++k) {
            x[k] = bits_float((static_cast<std::uint32_t>(block * stride) << 16) + i + k);
          }
          apply_portable(static_cast<Elementary>(f), x, y, 16);
          for (int k = 0; k < 16; ++k) {
            if (x[k] != x[k] && static_cast<Elementary>(f) == Elementary::relu2) continue;
            if (!right(static_cast<Elementary>(f), x[k], y[k])) ++n_beyond;
          }
        }
      }
    });
    CHECK_MESSAGE(n_beyond.load() == 0, std::string(kElementaryNames[f]));
  }
}

TEST_CASE("elementary functions: a tidier formula is caught") {
  // Planted: libm's exp for the contract's, and softplus without Kahan's correction.
  const auto planted = [](Elementary f, const float* x, float* y, int n) {
    apply_portable(f, x, y, n);
    for (int i = 0; i < n; ++i) {
      if (f == Elementary::softplus) {
        y[i] = (x[i] > 0.0f ? x[i] : 0.0f) + exact_log(1.0f + exact_exp(-std::fabs(x[i])));
        if (x[i] != x[i]) y[i] = bits_float(kExactNan);
      }
      if (f == Elementary::exp && y[i] > 1e-3f && y[i] < 1e3f) y[i] = std::exp(x[i]);
    }
  };
  ThreadPool pool(1);
  for (Elementary f : {Elementary::exp, Elementary::softplus}) {
    CHECK(hash_all(pool, planted, f, kStride) != kGolden[static_cast<int>(f)].sampled);
  }
}
