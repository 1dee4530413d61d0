// Mamba-2 (§6): against float64, every form against the definition, any cut of a sequence into
// calls with any rejections, sequences alone against among others, marks, and wrong twins.
#include "core/ops/mamba.h"

#include <algorithm>
#include <memory>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

constexpr float kEps = 1e-5f;

struct Shape {
  int n_heads, head_dim, d_state, n_groups, conv_kernel;
};

// A layer of made-up weights of plausible sizes.
struct TestLayer {
  Mamba2 node;
  std::vector<SyntheticWeight> storage;

  explicit TestLayer(Shape s, std::uint64_t seed = 1) {
    node.n_heads = s.n_heads, node.head_dim = s.head_dim, node.d_state = s.d_state;
    node.n_ssm_groups = s.n_groups, node.conv_kernel = s.conv_kernel;
    const int d_conv = node.d_conv();
    node.conv_w = plain(even_floats(seed, d_conv * s.conv_kernel, 0.5f), d_conv, s.conv_kernel);
    node.conv_b = plain(even_floats(seed + 1, d_conv, 0.2f), 1, d_conv);
    std::vector<float> A(s.n_heads);
    for (int h = 0; h < s.n_heads; ++h)
      A[h] = -0.1f - 8.0f * static_cast<float>(h) / static_cast<float>(s.n_heads);
    node.A = plain(A, 1, s.n_heads);
    node.D = plain(even_floats(seed + 2, s.n_heads), 1, s.n_heads);
    node.dt_bias = plain(even_floats(seed + 3, s.n_heads, 3.0f), 1, s.n_heads);
    node.gate_norm = plain(even_floats(seed + 4, node.d_inner()), 1, node.d_inner());
  }
  TestLayer(const TestLayer&) = delete;
  TestLayer& operator=(const TestLayer&) = delete;

  Weight plain(std::vector<float> values, int n_rows, int n_cols) {
    storage.push_back(plain_weight(std::move(values), n_rows, n_cols));
    return storage.back().weight;
  }
  std::vector<float> rows(std::uint64_t seed, int n) const {
    return even_floats(seed, n * node.d_in_proj(), 2.0f);
  }
};

struct Call {
  int n_live = 0, n_sure = 0, n_lag = 0, n_rows = 0;  // n_rows 0: n_live
};

// Runs one segment of rows through slot 0.
std::vector<float> step(HostOps& ops, const TestLayer& layer, MambaCache& cache, const float* rows,
                        Call call, int slot = 0, std::vector<std::uint8_t>* marked = nullptr) {
  if (call.n_rows == 0) call.n_rows = call.n_live;
  TestBatch batch(call.n_rows);
  batch.segment.n_live = call.n_live, batch.segment.n_sure = call.n_sure;
  batch.segment.n_lag = call.n_lag, batch.segment.slot = slot;
  std::vector<float> y(static_cast<std::size_t>(call.n_rows) * layer.node.d_inner());
  ops.mamba(batch.batch, layer.node, kEps, cache, {rows, call.n_rows, layer.node.d_in_proj()},
            {y.data(), call.n_rows, layer.node.d_inner()});
  if (marked != nullptr) *marked = batch.marked;
  return y;
}

std::vector<float> state_of(const MambaCache& cache, int n_lag, int slot = 0) {
  std::vector<float> state;
  cache.read(slot, n_lag, state);
  return state;
}

// The whole sequence in one call.
struct Reference {
  std::vector<float> y, state;
  Reference(const TestLayer& layer, const std::vector<float>& rows, int n, Isa isa = Isa::scalar) {
    HostOps ops(1, isa);
    auto cache = ops.mamba_cache(layer.node, 1);
    y = step(ops, layer, *cache, rows.data(), {n, n});
    state = state_of(*cache, 0);
  }
};

double silu(double x) { return x / (1.0 + std::exp(-x)); }

constexpr Shape kSmall = {4, 8, 16, 2, 4};

}  // namespace

TEST_CASE("mamba: the definition computes the recurrence") {
  const TestLayer layer({4, 8, 16, 2, 3});
  const Mamba2& m = layer.node;
  constexpr int kRows = 50;
  const std::vector<float> rows = layer.rows(10, kRows);
  const Reference run(layer, rows, kRows);
  const int d_inner = m.d_inner(), d_conv = m.d_conv();
  std::vector<double> h(static_cast<std::size_t>(d_inner) * m.d_state);
  double largest_error = 0;
  for (int t = 0; t < kRows; ++t) {
    const float* row = &rows[static_cast<std::size_t>(t) * m.d_in_proj()];
    std::vector<double> v(d_conv), y(d_inner);
    for (int c = 0; c < d_conv; ++c) {
      double sum = static_cast<double>(m.conv_b.as_f32()[c]);
      for (int k = 0; k < m.conv_kernel; ++k) {
        const int at = t - (m.conv_kernel - 1) + k;
        if (at < 0) continue;
        sum +=
            static_cast<double>(m.conv_w.as_f32()[c * m.conv_kernel + k]) *
            static_cast<double>(rows[static_cast<std::size_t>(at) * m.d_in_proj() + d_inner + c]);
      }
      v[c] = silu(sum);
    }
    for (int i = 0; i < d_inner; ++i) {
      const int head = i / m.head_dim, group = head / (m.n_heads / m.n_ssm_groups);
      const double dt = std::log1p(std::exp(static_cast<double>(row[d_inner + d_conv + head]) +
                                            static_cast<double>(m.dt_bias.as_f32()[head])));
      const double dA = std::exp(dt * static_cast<double>(m.A.as_f32()[head]));
      double p = 0;
      for (int n = 0; n < m.d_state; ++n) {
        double& state = h[static_cast<std::size_t>(i) * m.d_state + n];
        state = state * dA + dt * v[i] * v[d_inner + group * m.d_state + n];
        p += state * v[d_inner + (m.n_ssm_groups + group) * m.d_state + n];
      }
      y[i] =
          (p + static_cast<double>(m.D.as_f32()[head]) * v[i]) * silu(static_cast<double>(row[i]));
    }
    const int width = d_inner / m.n_ssm_groups;
    for (int i = 0; i < d_inner; ++i) {
      double sum = 0;
      for (int k = i / width * width; k < i / width * width + width; ++k) sum += y[k] * y[k];
      const double expected = y[i] / std::sqrt(sum / width + static_cast<double>(kEps)) *
                              static_cast<double>(m.gate_norm.as_f32()[i]);
      largest_error =
          std::max(largest_error,
                   std::fabs(static_cast<double>(run.y[static_cast<std::size_t>(t) * d_inner + i]) -
                             expected));
    }
  }
  CHECK(largest_error < 2e-5);  // outputs are of size 1
}

TEST_CASE("mamba: every form gives the definition's bits, at every shape") {
  for (Shape s : {Shape{2, 64, 128, 1, 4}, Shape{2, 80, 128, 2, 4}, Shape{1, 128, 256, 1, 4},
                  Shape{8, 64, 64, 8, 4}, Shape{2, 64, 80, 2, 3}, Shape{3, 63, 112, 1, 2},
                  Shape{4, 5, 100, 2, 4}, Shape{9, 7, 13, 3, 1}, Shape{2, 64, 96, 1, 4}}) {
    const TestLayer layer(s, 100 + s.d_state);
    constexpr int kRows = 9;
    const std::vector<float> rows = layer.rows(11, kRows);
    const Reference expected(layer, rows, kRows);
    for (Isa isa : isas_here()) {
      CAPTURE(isa_name(isa));
      CAPTURE(s.d_state);
      const Reference run(layer, rows, kRows, isa);
      CHECK(same_bits(run.y, expected.y));
      CHECK(same_bits(run.state, expected.state));
    }
  }
}

TEST_CASE("mamba: elementary functions on vectors equal the definition's") {
  // Of all 2^32 inputs one in `stride`; BOLT_EXHAUSTIVE takes every one.
  const std::uint32_t stride = std::getenv("BOLT_EXHAUSTIVE") != nullptr ? 1 : 4093;
  constexpr int kBlock = 4096;
  std::vector<float> x(kBlock), zero(kBlock, 0.0f), one(kBlock, 1.0f);
  for (Isa isa : isas_here()) {
    if (isa == Isa::scalar) continue;
    const MambaKernels& kernels = mamba_kernels_for(isa);
    std::uint64_t different = 0;
    for (std::uint64_t first = 0; first < std::uint64_t{1} << 32;
         first += std::uint64_t{kBlock} * stride) {
      for (int i = 0; i < kBlock; ++i)
        x[i] = bits_float(static_cast<std::uint32_t>(first + std::uint64_t(i) * stride));
      std::vector<float> y = one, dt(kBlock), dA(kBlock);
      kernels.gate(x.data(), kBlock, y.data());
      kernels.steps(x.data(), zero.data(), x.data(), kBlock, false, 0, 0, dt.data(), dA.data());
      for (int i = 0; i < kBlock; ++i) {
        const float step = exact_softplus(x[i] + 0.0f);
        different += float_bits(y[i]) != float_bits(1.0f * exact_silu(x[i]));
        different += float_bits(dt[i]) != float_bits(step);
        different += float_bits(dA[i]) != float_bits(exact_exp(step * x[i]));
      }
    }
    CAPTURE(isa_name(isa));
    CHECK(different == 0);
  }
}

TEST_CASE("mamba: any cut into calls, with any rejections, gives the same rows and state") {
  constexpr int kRows = 300;
  const TestLayer layer(kSmall, 7);
  const int cols = layer.node.d_in_proj(), inner = layer.node.d_inner();
  const std::vector<float> rows = layer.rows(12, kRows);
  const Reference expected(layer, rows, kRows);
  for (Isa isa : isas_here()) {
    HostOps ops(2, isa), plain_ops(1, Isa::scalar);
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      auto cache = ops.mamba_cache(layer.node, 1), plain = plain_ops.mamba_cache(layer.node, 1);
      int position = 0, n_lag = 0;  // rows kept; of them not yet in the state
      for (std::uint64_t round = 0; position < kRows; ++round) {
        const std::uint64_t h = mix64(seed * 1000 + round);
        const int left = kRows - position;
        // A prompt chunk is all sure; of a window the first row is, or (h) some are.
        const bool chunk = h % 4 == 0;
        const int n_live = chunk ? std::min<int>(left, 1 + (h >> 8) % 130) : 1 + (h >> 8) % 32;
        const int n_sure =
            chunk ? n_live : std::min<int>(left, h % 4 == 1 ? 1 : (h >> 20) % (n_live + 1));
        if (n_live - n_sure > 31) continue;
        const int right =
            std::min(left, n_live);  // rows of the sequence; the rest is a wrong draft
        const int kept =
            chunk ? n_live : n_sure + static_cast<int>((h >> 32) % (right - n_sure + 1));
        const int n_rows = n_live + static_cast<int>((h >> 40) % 3);  // and padding
        std::vector<float> window(rows.begin() + position * cols,
                                  rows.begin() + (position + right) * cols);
        const std::vector<float> wrong = layer.rows(1000 + round, 40);
        window.resize(static_cast<std::size_t>(n_rows) * cols);
        for (std::size_t i = static_cast<std::size_t>(kept) * cols; i < window.size(); ++i) {
          window[i] = wrong[i % wrong.size()];
        }
        const std::vector<float> y =
            step(ops, layer, *cache, window.data(), {n_live, n_sure, n_lag, n_rows});
        REQUIRE(same_bits(y.data(), &expected.y[static_cast<std::size_t>(position) * inner],
                          static_cast<std::size_t>(kept) * inner));
        if (kept > 0) step(plain_ops, layer, *plain, &rows[position * cols], {kept, kept});
        position += kept;
        n_lag = kept - n_sure;
        REQUIRE(same_bits(state_of(*cache, n_lag), state_of(*plain, 0)));
      }
      CHECK(same_bits(state_of(*cache, n_lag), expected.state));
    }
  }
}

TEST_CASE("mamba: long chunks equal single rows (case 20: chunk sizes 1, 127, 128, 129, 300)") {
  constexpr int kRows = 300;
  const TestLayer layer({4, 16, 48, 1, 4}, 9);
  const std::vector<float> rows = layer.rows(13, kRows);
  const Reference expected(layer, rows, kRows);
  for (Isa isa : isas_here()) {
    HostOps ops(3, isa);
    for (int chunk : {1, 127, 128, 129, 300}) {
      auto cache = ops.mamba_cache(layer.node, 1);
      std::vector<float> y;
      for (int t = 0; t < kRows; t += chunk) {
        const int n = std::min(chunk, kRows - t);
        const auto part = step(ops, layer, *cache, &rows[t * layer.node.d_in_proj()], {n, n});
        y.insert(y.end(), part.begin(), part.end());
      }
      CHECK(same_bits(y, expected.y));
      CHECK(same_bits(state_of(*cache, 0), expected.state));
    }
  }
}

TEST_CASE("mamba: one row equals row 0 of eight, at a state that is not zero (case 2)") {
  const TestLayer layer({2, 64, 128, 1, 4}, 17);
  const std::vector<float> past = layer.rows(14, 5), rows = layer.rows(15, 8);
  for (Isa isa : isas_here()) {
    HostOps ops(2, isa);
    auto one = ops.mamba_cache(layer.node, 1), eight = ops.mamba_cache(layer.node, 1);
    step(ops, layer, *one, past.data(), {5, 5});
    step(ops, layer, *eight, past.data(), {5, 5});
    const auto y1 = step(ops, layer, *one, rows.data(), {1, 1});
    const auto y8 = step(ops, layer, *eight, rows.data(), {8, 1});
    CHECK(same_bits(y1.data(), y8.data(), layer.node.d_inner()));
    CHECK(same_bits(state_of(*one, 0), state_of(*eight, 0)));
  }
}

TEST_CASE("mamba: sequences in one call equal sequences alone") {
  const TestLayer layer(kSmall, 19);
  const int cols = layer.node.d_in_proj(), inner = layer.node.d_inner();
  const int counts[] = {3, 1, 100, 8};
  for (Isa isa : isas_here()) {
    HostOps ops(3, isa);
    auto together = ops.mamba_cache(layer.node, 4), alone = ops.mamba_cache(layer.node, 4);
    // Slots get a past of their own, with lagging rows.
    for (int s = 0; s < 4; ++s) {
      const auto past = layer.rows(30 + s, 6);
      for (MambaCache* cache : {together.get(), alone.get()}) {
        step(ops, layer, *cache, past.data(), {6, 2}, s);
      }
    }
    std::vector<Segment> segments;
    int n_rows = 0;
    for (int s = 0; s < 4; ++s) {
      Segment segment;
      segment.first_row = n_rows, segment.n_rows = segment.n_live = counts[s];
      segment.n_sure = counts[s] > 32 ? counts[s] : 1;
      segment.n_lag = s, segment.slot = 3 - s;
      segments.push_back(segment);
      n_rows += counts[s];
    }
    const auto rows = layer.rows(40, n_rows);
    std::vector<float> y(static_cast<std::size_t>(n_rows) * inner);
    std::vector<std::uint8_t> marked(n_rows);
    ops.mamba({n_rows, segments, marked}, layer.node, kEps, *together, {rows.data(), n_rows, cols},
              {y.data(), n_rows, inner});
    for (const Segment& s : segments) {
      const auto expected = step(ops, layer, *alone, &rows[s.first_row * cols],
                                 {s.n_live, s.n_sure, s.n_lag}, s.slot);
      CHECK(same_bits(expected.data(), &y[s.first_row * inner], expected.size()));
      CHECK(same_bits(state_of(*alone, s.n_live - s.n_sure, s.slot),
                      state_of(*together, s.n_live - s.n_sure, s.slot)));
    }
    CHECK(std::count(marked.begin(), marked.end(), 0) == n_rows);
  }
}

TEST_CASE("mamba: slots are copied and reset whole") {
  const TestLayer layer(kSmall, 21);
  HostOps ops(1, Isa::scalar);
  auto cache = ops.mamba_cache(layer.node, 2);
  const auto rows = layer.rows(50, 9), more = layer.rows(51, 4);
  step(ops, layer, *cache, rows.data(), {9, 3});
  cache->copy(0, 1);
  CHECK(same_bits(state_of(*cache, 5, 0), state_of(*cache, 5, 1)));
  const auto first = step(ops, layer, *cache, more.data(), {4, 4, 5}, 0);
  CHECK(same_bits(first, step(ops, layer, *cache, more.data(), {4, 4, 5}, 1)));
  cache->reset(1);
  for (float x : state_of(*cache, 0, 1)) REQUIRE(float_bits(x) == 0);
  CHECK(same_bits(step(ops, layer, *cache, rows.data(), {9, 9}, 1), Reference(layer, rows, 9).y));
}

TEST_CASE("mamba: a finite time step limit clamps, an infinite or zero one does not") {
  TestLayer layer(kSmall, 23);
  const auto rows = layer.rows(60, 6);
  const Reference free(layer, rows, 6);
  layer.node.dt_max = HUGE_VALF;
  CHECK(same_bits(Reference(layer, rows, 6).y, free.y));
  layer.node.dt_min = 0.05f, layer.node.dt_max = 0.5f;
  const Reference clamped(layer, rows, 6);
  CHECK_FALSE(same_bits(clamped.y, free.y));
  for (Isa isa : isas_here()) CHECK(same_bits(Reference(layer, rows, 6, isa).y, clamped.y));
}

TEST_CASE(
    "mamba: a value that is not finite marks its row and what follows it, no other sequence") {
  const TestLayer layer(kSmall, 25);
  const int cols = layer.node.d_in_proj();
  for (Isa isa : isas_here()) {
    HostOps ops(1, isa);
    for (float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      for (int column : {0, layer.node.d_inner(), layer.node.d_inner() + 40}) {
        auto cache = ops.mamba_cache(layer.node, 1);
        auto rows = layer.rows(70, 5);
        rows[2 * cols + column] = bad;
        std::vector<std::uint8_t> marked;
        step(ops, layer, *cache, rows.data(), {5, 5}, 0, &marked);
        CHECK(marked[0] == 0);
        CHECK(marked[1] == 0);
        CHECK(marked[2] == 1);
      }
    }
  }
}

TEST_CASE("mamba: extreme but finite inputs give equal bits in every form") {
  const TestLayer layer({2, 16, 32, 1, 4}, 27);
  auto rows = layer.rows(80, 12);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::uint64_t h = mix64(i);
    if (h % 11 == 0) rows[i] = std::ldexp(rows[i], -static_cast<int>((h >> 8) % 149));
    if (h % 13 == 0) rows[i] = h & 256 ? 0.0f : -0.0f;
    if (h % 17 == 0) rows[i] *= 1e6f;
  }
  const Reference expected(layer, rows, 12);
  for (Isa isa : isas_here()) {
    const Reference run(layer, rows, 12, isa);
    CHECK(same_bits(run.y, expected.y));
    CHECK(same_bits(run.state, expected.state));
  }
}

TEST_CASE("mamba: the comparison catches a stale state, a lost row and a readout in two sums") {
  const TestLayer layer({2, 16, 64, 1, 4}, 29);
  const auto rows = layer.rows(90, 12);
  const int cols = layer.node.d_in_proj(), inner = layer.node.d_inner();
  const Reference expected(layer, rows, 12);
  HostOps ops(1, resolve_isa(Isa::automatic));
  for (int wrong : {-1, 0, 1}) {
    auto cache = ops.mamba_cache(layer.node, 1);
    step(ops, layer, *cache, rows.data(), {8, 1});  // five rows kept: four lag
    const auto y = step(ops, layer, *cache, &rows[5 * cols], {7, 7, 4 + wrong});
    CHECK(same_bits(y.data(), &expected.y[5 * inner], y.size()) == (wrong == 0));
    CHECK(same_bits(state_of(*cache, 0), expected.state) == (wrong == 0));
  }

  // One step at a state, its readout as the definition's 16 chains and as two partial sums.
  const int n = 64;
  int caught = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<float> h = even_floats(200 + seed, n), copy = h;
    const auto B = even_floats(300 + seed, n), C = even_floats(400 + seed, n);
    const float x = 0.7f, dt = 0.3f, dA = 0.9f;
    float y = 0;
    ScanArgs a;
    a.h = h.data(), a.n_rows = 1, a.n_dims = 1, a.d_state = n;
    a.x = &x, a.B = B.data(), a.C = C.data(), a.dt = &dt, a.dA = &dA, a.D = 0.5f, a.y = &y;
    mamba_kernels_for(ops.isa()).scan(a);
    float half_sum[2] = {};
    for (int k = 0; k < n; ++k) {
      copy[k] = exact_fma(copy[k], dA, dt * x * B[k]);
      half_sum[k / 32] = exact_fma(copy[k], C[k], half_sum[k / 32]);
    }
    CHECK(same_bits(h, copy));
    const float two_sums = exact_fma(0.5f, x, half_sum[0] + half_sum[1]);
    CHECK(std::fabs(two_sums - y) < 1e-5f);
    caught += float_bits(two_sums) != float_bits(y);
  }
  CHECK(caught > 5);
}
