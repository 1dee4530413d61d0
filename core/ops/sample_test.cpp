// Choosing a token (§9): Philox's known answers, the noise at all its inputs, every form against
// the definition and against a sampler written apart, ties, filters, and rows nothing may come
// from.
#include "core/ops/sample.h"

#include <algorithm>
#include <numeric>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/ops/philox.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

constexpr float kInf = HUGE_VALF;

Sampled choose(Isa isa, const std::vector<float>& logits, SampleSpec spec,
               const int* ids_of = nullptr, std::uint8_t mark = 0) {
  HostOps ops(1, isa);
  if (spec.n_vocab == 0) spec.n_vocab = static_cast<int>(logits.size());
  Sampled out;
  ops.sample({logits.data(), 1, static_cast<int>(logits.size())}, {&spec, 1}, {&mark, 1}, ids_of,
             {&out, 1});
  return out;
}

// The id on every form, which must agree.
int id_of(const std::vector<float>& logits, const SampleSpec& spec, const int* ids_of = nullptr) {
  const Sampled expected = choose(Isa::scalar, logits, spec, ids_of);
  for (Isa isa : isas_here()) {
    const Sampled got = choose(isa, logits, spec, ids_of);
    CHECK(got.id == expected.id);
    CHECK(float_bits(got.probability) == float_bits(expected.probability));
  }
  return expected.id;
}

SampleSpec at(float temperature, int top_k = 0, float top_p = 1.0f, float min_p = 0.0f,
              std::uint64_t seed = 1, std::uint64_t position = 0) {
  SampleSpec spec;
  spec.temperature = temperature, spec.top_k = top_k, spec.top_p = top_p, spec.min_p = min_p;
  spec.seed = seed, spec.position = position;
  return spec;
}

float noise(std::uint64_t seed, std::uint64_t position, int id) {
  const auto words =
      philox4x32_10({static_cast<std::uint32_t>(id / 4), 0, static_cast<std::uint32_t>(position),
                     static_cast<std::uint32_t>(position >> 32)},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const float u = (static_cast<float>(words[id % 4] >> 9) + 0.5f) * 0x1p-23f;
  return -exact_log(-exact_log(u));
}

// §9 once more: sorts everything, draws for everything, and keeps nothing back.
int plain_choice(const std::vector<float>& logits, const SampleSpec& spec) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<float> l = logits;
  for (float& x : l) x = spec.temperature > 0 ? x / spec.temperature : x;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return l[a] > l[b]; });
  if (spec.temperature == 0) return order[0];
  if (spec.top_k > 0 && spec.top_k < static_cast<int>(order.size())) order.resize(spec.top_k);
  const float best = l[order[0]];
  auto weight = [&](int id) {
    return static_cast<std::uint64_t>(std::floor(exact_exp(l[id] - best) * 0x1p28f));
  };
  if (spec.top_p < 1.0f) {
    std::uint64_t all = 0, sum = 0;
    for (int id : order) all += weight(id);
    const auto share = static_cast<std::uint64_t>(std::nearbyint(spec.top_p * 65536.0f));
    std::size_t n = 0;
    do {
      sum += weight(order[n++]);
    } while (n < order.size() && sum * 65536 < all * share);
    order.resize(n);
  }
  std::erase_if(order, [&](int id) { return exact_exp(l[id] - best) < spec.min_p; });
  std::sort(order.begin(), order.end());
  int chosen = -1;
  float top = -kInf;
  for (int id : order) {
    const float value = l[id] + noise(spec.seed, spec.position, id);
    if (value > top) top = value, chosen = id;
  }
  return chosen;
}

std::vector<float> logits_of(std::uint64_t seed, int n, float scale) {
  std::vector<float> x = even_floats(seed, n, 1.0f);
  for (float& v : x) v = v * v * v * scale;        // a few far above the rest
  for (int i = 3; i < n; i += 7) x[i] = x[i - 2];  // ties
  return x;
}

}  // namespace

TEST_CASE("sample: Philox4x32-10 gives Random123's known answers") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE(
    "sample: noise at all 2^23 draws lies in (-2.82, 16.64), its u below 1, alike in every form") {
  constexpr int kBlock = 1 << 16;
  std::vector<std::uint32_t> x(kBlock);
  std::vector<float> expected(kBlock), g(kBlock);
  float least = kInf, most = -kInf, largest_u = 0;
  int different = 0, falling = 0;
  float last = -kInf;
  for (std::uint32_t first = 0; first < 1u << 23; first += kBlock) {
    std::iota(x.begin(), x.end(), first);
    sample_kernels_for(Isa::scalar).gumbel(x.data(), kBlock, expected.data());
    for (int i = 0; i < kBlock; ++i) {
      least = std::min(least, expected[i]), most = std::max(most, expected[i]);
      falling += expected[i] < last - 1e-5f;
      last = expected[i];
    }
    largest_u = std::max(largest_u, (static_cast<float>(x.back()) + 0.5f) * 0x1p-23f);
    for (Isa isa : isas_here()) {
      sample_kernels_for(isa).gumbel(x.data(), kBlock, g.data());
      different += !same_bits(g, expected);
    }
  }
  CHECK(least > -2.82f);
  CHECK(most < 16.64f);
  CHECK(largest_u < 1.0f);
  CHECK(different == 0);
  CHECK(falling == 0);
}

TEST_CASE("sample: the lowest id among equal maxima (cases 10 and 12)") {
  CHECK(id_of({0, 1, 1}, at(0)) == 1);
  for (auto [low, high] : {std::pair{5, 256}, {0, 131071}, {1023, 1024}, {17, 18}, {63, 127}}) {
    std::vector<float> x = even_floats(1, 131072);
    x[low] = x[high] = 2.0f;
    CHECK(id_of(x, at(0)) == low);
    CHECK(id_of(x, at(1.0f, 1)) == low);
    // A twin that keeps the last maximum is another sampler.
    const auto last = std::max_element(x.begin(), x.end(), [](float a, float b) { return a <= b; });
    CHECK(last - x.begin() == high);
  }
  CHECK(id_of({-0.0f, 0.0f, -1.0f}, at(0)) == 0);
  CHECK(id_of({-1.0f, 0.0f, -0.0f}, at(0)) == 1);
}

TEST_CASE(
    "sample: temperature 0 and a tiny one with top-k 1 share their tie rule (cases 13 and 24)") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> x = even_floats(seed, 500);
    x[mix64(seed) % 500] = x[mix64(seed + 50) % 500] = 1.5f;
    const int greedy = id_of(x, at(0));
    CHECK(greedy == std::max_element(x.begin(), x.end()) - x.begin());
    CHECK(id_of(x, at(1e-4f, 1)) == greedy);
    CHECK(id_of(x, at(0.7f, 1, 1.0f, 0.0f, seed)) == greedy);
    CHECK(id_of(x, at(0.7f, 0, 0.0f, 0.0f, seed)) == greedy);   // top-p keeps at least one
    CHECK(id_of(x, at(0.0f, 50, 0.9f, 0.1f, seed)) == greedy);  // greedy, whatever else is set
  }
}

TEST_CASE("sample: a temperature whose best quotient overflows is greedy") {
  CHECK(id_of({1.0f, 3.0f, 2.0f}, at(1e-45f)) == 1);
  CHECK(id_of({-3.0f, -1.0f, -2.0f}, at(1e-45f)) == 1);
  CHECK(id_of({3e38f, 3.1e38f, -3e38f}, at(1e-3f)) == 1);
  CHECK(id_of({3e38f, -3e38f}, at(0)) == 0);  // l - l_max overflows to -inf
  CHECK(id_of({3e38f, -3e38f}, at(1.0f)) == 0);
  CHECK(id_of({-kInf, -1.0f, 0.0f, -kInf}, at(1e-45f)) == 2);
  CHECK(choose(Isa::scalar, {1.0f, 3.0f}, at(1e-45f)).probability > 0.88f);  // as at temperature 1
}

TEST_CASE(
    "sample: no id from a row with a NaN, a +Inf or nothing finite, or a marked one (cases 7, 8)") {
  for (Isa isa : isas_here()) {
    for (float temperature : {0.0f, 0.8f, 1e-45f}) {
      for (int n : {1, 5, 16, 100}) {
        for (int where : {0, n / 2, n - 1}) {
          std::vector<float> x = even_floats(3, n);
          for (float bad : {std::nanf(""), -std::nanf(""), kInf}) {
            x[where] = bad;
            CHECK(choose(isa, x, at(temperature)).id == -1);
          }
          x[where] = -kInf;
          CHECK(choose(isa, x, at(temperature)).id ==
                (n == 1 ? -1 : choose(isa, x, at(temperature)).id));
          CHECK((n == 1) == (choose(isa, x, at(temperature)).id < 0));
        }
        CHECK(choose(isa, std::vector<float>(n, -kInf), at(temperature)).id == -1);
        CHECK(choose(isa, even_floats(3, n), at(temperature), nullptr, 1).id == -1);
      }
      // Also where the bad one is past the tokenizer's ids.
      SampleSpec spec = at(temperature);
      spec.n_vocab = 2;
      CHECK(choose(isa, {1.0f, 2.0f, std::nanf("")}, spec).id == -1);
      CHECK(choose(isa, {-kInf, -kInf, 1.0f}, spec).id == -1);
    }
  }
}

TEST_CASE("sample: other rows of the call are untouched by a bad one (case 7)") {
  const int n = 300;
  std::vector<float> x = even_floats(5, 4 * n, 4.0f);
  const std::vector<float> clean = x;
  x[n + 7] = std::nanf("");
  std::vector<SampleSpec> specs(4, at(0.9f));
  for (int r = 0; r < 4; ++r) specs[r].n_vocab = n, specs[r].seed = r, specs[r].position = 100 * r;
  for (Isa isa : isas_here()) {
    HostOps ops(3, isa);
    std::vector<Sampled> out(4);
    ops.sample({x.data(), 4, n}, specs, {}, nullptr, out);
    CHECK(out[1].id == -1);
    for (int r : {0, 2, 3}) {
      const std::vector<float> row(clean.begin() + r * n, clean.begin() + (r + 1) * n);
      CHECK(out[r].id == choose(Isa::scalar, row, specs[r]).id);
    }
  }
}

TEST_CASE("sample: filters and draws equal a sampler that sorts and draws everything") {
  int distinct = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const int n = 1 + static_cast<int>(mix64(seed) % 700);
    const std::vector<float> x = logits_of(seed, n, 1.0f + static_cast<float>(seed % 5) * 8.0f);
    for (SampleSpec spec : {at(1.0f), at(0.6f, 5), at(1.5f, 0, 0.9f), at(0.8f, 40, 0.95f, 0.05f),
                            at(2.0f, 0, 0.5f, 0.01f), at(1e6f), at(1e6f, 0, 0.3f),
                            at(0.05f, 3, 0.99f), at(1.0f, 0, 0.99999f), at(1.0f, 0, 1e-9f),
                            at(1.0f, 0, 1.0f, 1.0f), at(0.9f, 100000), at(1e-3f, 0, 0.9f)}) {
      spec.seed = seed * 0x9e3779b97f4a7c15u, spec.position = seed * 77 + (seed << 33);
      const int id = id_of(x, spec);
      CHECK(id == plain_choice(x, spec));
      distinct += id != plain_choice(x, at(0));
    }
  }
  CHECK(distinct > 100);
}

TEST_CASE(
    "sample: logits so large that rounding swallows noise still draw as the definition says") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    for (float base : {0x1p19f, 0x1p20f, 0x1p22f, 0x1p23f, 0x1p25f, 0x1p28f, -0x1p23f}) {
      std::vector<float> x = even_floats(seed, 40, 40.0f);
      for (float& v : x) v += base;
      SampleSpec spec = at(1.0f, 0, 1.0f, 0.0f, seed, seed);
      CHECK(choose(resolve_isa(Isa::automatic), x,
                   [&] {
                     spec.n_vocab = 40;
                     return spec;
                   }())
                .id == plain_choice(x, spec));
    }
  }
}

TEST_CASE("sample: a huge temperature is legal and spreads over the vocabulary (case 48)") {
  const std::vector<float> x = even_floats(9, 4096, 10.0f);
  std::vector<int> ids;
  for (int position = 0; position < 200; ++position) {
    ids.push_back(choose(resolve_isa(Isa::automatic), x, at(1e6f, 0, 1.0f, 0.0f, 7, position)).id);
  }
  std::sort(ids.begin(), ids.end());
  CHECK(std::unique(ids.begin(), ids.end()) - ids.begin() > 180);
}

TEST_CASE("sample: parameters that are no numbers never reach the draw (case 46)") {
  for (SampleSpec spec :
       {at(std::nanf("")), at(kInf), at(-1.0f), at(1.0f, 0, std::nanf("")),
        at(1.0f, 0, 1.0f, std::nanf("")), at(1.0f, 0, 1.0f, 1.5f), at(1.0f, 0, 1.0f, -0.1f)}) {
    CHECK_THROWS_AS(choose(Isa::scalar, {1.0f, 2.0f}, spec), Error);
  }
}

TEST_CASE("sample: frequencies follow the softmax") {
  const std::vector<float> x = {1.0f, 0.0f, -1.0f, 2.0f, -3.0f};
  std::vector<int> counts(5);
  constexpr int kDraws = 40000;
  HostOps ops(1, resolve_isa(Isa::automatic));
  for (int position = 0; position < kDraws; ++position) {
    SampleSpec spec = at(1.0f, 0, 1.0f, 0.0f, 3, position);
    spec.n_vocab = 5;
    Sampled out;
    ops.sample({x.data(), 1, 5}, {&spec, 1}, {}, nullptr, {&out, 1});
    ++counts[out.id];
  }
  double sum = 0;
  for (float v : x) sum += std::exp(static_cast<double>(v));
  for (int i = 0; i < 5; ++i) {
    const double p = std::exp(static_cast<double>(x[i])) / sum;
    CHECK(std::fabs(counts[i] - kDraws * p) < 4 * std::sqrt(kDraws * p * (1 - p)) + 1);
  }
}

TEST_CASE("sample: the draw depends on seed, position and id alone") {
  const std::vector<float> x = even_floats(11, 1000, 3.0f);
  const int id = id_of(x, at(1.0f, 0, 1.0f, 0.0f, 5, 9));
  // Removing other ids from reach leaves the winner, as long as it is there.
  std::vector<float> fewer = x;
  for (int i = 0; i < 1000; i += 2) fewer[i] = i == id ? x[i] : -kInf;
  CHECK(id_of(fewer, at(1.0f, 0, 1.0f, 0.0f, 5, 9)) ==
        (id % 2 == 0 ? plain_choice(fewer, at(1.0f, 0, 1.0f, 0.0f, 5, 9)) : id));
  int moved = 0;
  for (std::uint64_t other = 0; other < 20; ++other) {
    moved += id_of(x, at(1.0f, 0, 1.0f, 0.0f, 100 + other, 9)) != id;
    moved += id_of(x, at(1.0f, 0, 1.0f, 0.0f, 5, 100 + other)) != id;
    moved += id_of(x, at(1.0f, 0, 1.0f, 0.0f, 5, 9 + ((other + 1) << 32))) != id;
    moved += id_of(x, at(1.0f, 0, 1.0f, 0.0f, 5 + ((other + 1) << 32), 9)) != id;
  }
  CHECK(moved > 60);
}

TEST_CASE("sample: ids past the tokenizer's size are never chosen") {
  std::vector<float> x = even_floats(13, 64);
  x[60] = 100.0f;
  for (float temperature : {0.0f, 0.7f, 1e6f}) {
    SampleSpec spec = at(temperature);
    spec.n_vocab = 60;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      spec.seed = seed;
      CHECK(id_of(x, spec) < 60);
    }
  }
}

TEST_CASE("sample: columns of a draft vocabulary are chosen, tied and drawn by their ids") {
  const int n = 50;
  std::vector<int> ids(n);
  for (int c = 0; c < n; ++c) ids[c] = 7 * c + 2;
  std::vector<float> x = even_floats(15, n, 2.0f), whole(400, -kInf);
  for (int c = 0; c < n; ++c) whole[ids[c]] = x[c];
  for (float temperature : {0.0f, 0.9f}) {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      SampleSpec spec = at(temperature, 0, 0.9f, 0.0f, seed, 3);
      spec.n_vocab = 300;  // some columns lie past it
      CHECK(id_of(x, spec, ids.data()) == id_of(whole, spec));
    }
  }
  // Ties go to the lower id, wherever its column lies.
  const int reversed[] = {9, 8, 3, 4};
  SampleSpec spec = at(0);
  spec.n_vocab = 10;
  CHECK(id_of({1.0f, 1.0f, 1.0f, 0.0f}, spec, reversed) == 3);
}

TEST_CASE("sample: the probability is the softmax's, by columns") {
  for (int n : {1, 3, 64, 100, 3200}) {
    const std::vector<float> x = even_floats(17, n, 5.0f);
    for (float temperature : {0.0f, 0.5f, 2.0f}) {
      const Sampled expected = choose(Isa::scalar, x, at(temperature));
      const double t = temperature == 0.0f ? 1.0 : static_cast<double>(temperature);
      double sum = 0;
      for (float v : x)
        sum += std::exp((static_cast<double>(v) - static_cast<double>(x[expected.id])) / t);
      CHECK(static_cast<double>(expected.probability) == doctest::Approx(1.0 / sum).epsilon(1e-5));
      for (Isa isa : isas_here())
        CHECK(float_bits(choose(isa, x, at(temperature)).probability) ==
              float_bits(expected.probability));
      SampleSpec unwanted = at(temperature);
      unwanted.want_probability = false;
      CHECK(choose(Isa::scalar, x, unwanted).id == expected.id);
      CHECK(choose(Isa::scalar, x, unwanted).probability == 0.0f);
    }
  }
}
