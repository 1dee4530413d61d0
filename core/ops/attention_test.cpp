// Attention (§7) and the KV pages: against float64, every form against the definition, any window,
// thread count and page order, keys never written, marks, canonical bytes, and wrong twins.
#include "core/ops/attention.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

struct Shape {
  int n_heads, n_kv_heads, head_dim;
};

Attention node_of(Shape s) {
  Attention node;
  node.n_heads = s.n_heads, node.n_kv_heads = s.n_kv_heads, node.head_dim = s.head_dim;
  return node;
}

// A sequence of made-up queries, keys and values.
struct Sequence {
  Attention node;
  int n = 0;
  std::vector<float> q, k, v;

  Sequence(Shape s, int n_rows, std::uint64_t seed, float scale = 2.0f)
      : node(node_of(s)),
        n(n_rows),
        q(even_floats(seed, n_rows * s.n_heads * s.head_dim, scale)),
        k(even_floats(seed + 1, n_rows * s.n_kv_heads * s.head_dim, scale)),
        v(even_floats(seed + 2, n_rows * s.n_kv_heads * s.head_dim)) {}
  int q_cols() const { return node.n_heads * node.head_dim; }
  int kv_cols() const { return node.n_kv_heads * node.head_dim; }
};

// The pages of n positions in an order that is not their own, among some never used.
std::vector<int> shuffled_pages(int n, std::uint64_t seed) {
  const int n_pages = (n + kPageKeys - 1) / kPageKeys;
  std::vector<int> pages(n_pages + 2);
  std::iota(pages.begin(), pages.end(), 0);
  for (int i = n_pages + 1; i > 0; --i) std::swap(pages[i], pages[mix64(seed + i) % (i + 1)]);
  pages.resize(n_pages);
  return pages;
}

// A cache whose bytes are poison until they are written.
std::unique_ptr<KvCache> poisoned_cache(HostOps& ops, const Sequence& s, KvKind kind, int n_pages) {
  auto cache = ops.kv_cache(s.node, kind, n_pages);
  auto& host = static_cast<HostKvCache&>(*cache);
  for (int page = 0; page < n_pages; ++page) {
    for (int h = 0; h < s.node.n_kv_heads; ++h) {
      std::memset(host.head(page, h), 0xff, static_cast<std::size_t>(host.layout().head_bytes()));
    }
  }
  return cache;
}

// Rows [first, first + count) of the sequence; y must have room. n_live < count: padding.
std::vector<float> run(HostOps& ops, const Sequence& s, KvCache& cache, std::span<const int> pages,
                       int first, int count, std::vector<std::uint8_t>* marked = nullptr,
                       int n_live = -1) {
  TestBatch batch(count);
  batch.segment.first_position = first, batch.segment.pages = pages;
  if (n_live >= 0) batch.segment.n_live = batch.segment.n_sure = n_live;
  std::vector<float> y(static_cast<std::size_t>(count) * s.q_cols());
  const auto at = static_cast<std::size_t>(first);
  ops.attention(batch.batch, s.node, cache, {&s.q[at * s.q_cols()], count, s.q_cols()},
                {&s.k[at * s.kv_cols()], count, s.kv_cols()},
                {&s.v[at * s.kv_cols()], count, s.kv_cols()}, {y.data(), count, s.q_cols()});
  if (marked != nullptr) *marked = batch.marked;
  return y;
}

// Writes all keys, reads none.
void put_all(HostOps& ops, const Sequence& s, KvCache& cache, std::span<const int> pages) {
  TestBatch batch(s.n);
  batch.segment.pages = pages;
  ops.put_keys(batch.batch, s.node, cache, {s.k.data(), s.n, s.kv_cols()},
               {s.v.data(), s.n, s.kv_cols()});
}

// The sequence, `chunk` rows a call.
std::vector<float> run_whole(Isa isa, int n_threads, const Sequence& s, KvKind kind, int chunk,
                             std::uint64_t page_seed = 1) {
  HostOps ops(n_threads, isa);
  const std::vector<int> pages = shuffled_pages(s.n, page_seed);
  auto cache = poisoned_cache(ops, s, kind, static_cast<int>(pages.size()) + 2);
  std::vector<float> y;
  for (int first = 0; first < s.n; first += chunk) {
    const auto part = run(ops, s, *cache, pages, first, std::min(chunk, s.n - first));
    y.insert(y.end(), part.begin(), part.end());
  }
  return y;
}

std::vector<double> softmax_attention(const Sequence& s, int row) {
  const int dims = s.node.head_dim, ratio = s.node.n_heads / s.node.n_kv_heads;
  std::vector<double> y(s.q_cols());
  for (int h = 0; h < s.node.n_heads; ++h) {
    std::vector<double> score(row + 1);
    double largest = -HUGE_VAL, sum = 0;
    for (int j = 0; j <= row; ++j) {
      for (int d = 0; d < dims; ++d) {
        score[j] +=
            static_cast<double>(s.q[static_cast<std::size_t>(row) * s.q_cols() + h * dims + d]) *
            static_cast<double>(
                s.k[static_cast<std::size_t>(j) * s.kv_cols() + h / ratio * dims + d]);
      }
      score[j] /= std::sqrt(static_cast<double>(dims));
      largest = std::max(largest, score[j]);
    }
    for (double& x : score) sum += x = std::exp(x - largest);
    for (int j = 0; j <= row; ++j) {
      for (int d = 0; d < dims; ++d) {
        y[h * dims + d] +=
            score[j] / sum *
            static_cast<double>(
                s.v[static_cast<std::size_t>(j) * s.kv_cols() + h / ratio * dims + d]);
      }
    }
  }
  return y;
}

// §7 once more for one row and head, written apart from the kernels and able to be wrong: `origin`
// is the position at which tiles start (the contract: 0), `backwards` joins tiles in reverse.
std::vector<float> twin(const Sequence& s, int row, int head, int origin, bool backwards) {
  const int dims = s.node.head_dim, ratio = s.node.n_heads / s.node.n_kv_heads;
  auto quantised = [&](const float* x, int* exponent) {
    std::vector<std::int16_t> codes(dims);
    quantize_codes(x, dims, codes.data(), exponent);
    return codes;
  };
  struct Part {
    float m, l;
    std::vector<float> o;
  };
  auto power = [](float d) { return d < -126.0f ? 0.0f : std::ldexp(1.0f, static_cast<int>(d)); };
  auto join = [&](Part& a, const Part& b) {
    const float m = std::max(a.m, b.m), x = power(a.m - m), y = power(b.m - m);
    a.m = m, a.l = std::fma(a.l, x, b.l * y);
    for (int d = 0; d < dims; ++d) a.o[d] = std::fma(a.o[d], x, b.o[d] * y);
  };
  int eq;
  const auto q = quantised(&s.q[static_cast<std::size_t>(row) * s.q_cols() + head * dims], &eq);
  const auto factor = std::ldexp(
      static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(dims))), eq + 8);
  std::vector<Part> spans;
  std::vector<Part> tiles;
  for (int first = origin - (origin > 0 ? kPageKeys : 0); first <= row; first += kPageKeys) {
    std::vector<std::vector<std::int16_t>> values(kPageKeys);
    float u[kPageKeys], inverse[kPageKeys] = {};
    Part part{-HUGE_VALF, 0.0f, std::vector<float>(dims)};
    for (int j = 0; j < kPageKeys; ++j) {
      const int position = first + j;
      if (position < 0 || position > row) continue;
      const std::size_t at = static_cast<std::size_t>(position) * s.kv_cols() + head / ratio * dims;
      int ek, ev;
      const auto k = quantised(&s.k[at], &ek);
      values[j] = quantised(&s.v[at], &ev);
      std::int64_t D = 0;
      for (int d = 0; d < dims; ++d) {
        const int qh = (q[d] + 128) >> 8, ql = q[d] - 256 * qh, kh = (k[d] + 128) >> 8,
                  kl = k[d] - 256 * kh;
        D += 256 * qh * kh + qh * kl + ql * kh;
      }
      u[j] = std::fma(static_cast<float>(D) * std::ldexp(1.0f, ek), factor, static_cast<float>(ev));
      inverse[j] = std::ldexp(1.0f, -ev);
      part.m = std::max(part.m, u[j]);
    }
    part.m = std::ceil(part.m);
    float leaf[64] = {}, p[kPageKeys] = {};
    std::vector<std::int64_t> o(dims);
    for (int j = 0; j < kPageKeys; ++j) {
      if (values[j].empty()) continue;
      const float c = std::max(u[j], part.m - 126.0f), n = std::nearbyint(c), f = c - n;
      float poly = 1.326472384e-3f;
      for (float a : {9.671512869e-3f, 5.550733754e-2f, 2.402224208e-1f, 6.931469776e-1f, 1.0f})
        poly = std::fma(poly, f, a);
      p[j] = std::ldexp(poly, static_cast<int>(n - part.m));
      const int P = static_cast<int>(std::nearbyint(p[j] * 32768.0f)), ph = (P + 128) >> 8,
                pl = P - 256 * ph;
      for (int d = 0; d < dims; ++d) {
        const int vh = (values[j][d] + 128) >> 8, vl = values[j][d] - 256 * vh;
        o[d] += 256 * ph * vh + ph * vl + pl * vh;
      }
    }
    for (int i = 0; i < 64; ++i) leaf[i] = std::fma(p[i + 64], inverse[i + 64], p[i] * inverse[i]);
    for (int half = 32; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) leaf[i] += leaf[i + half];
    }
    part.l = leaf[0];
    for (int d = 0; d < dims; ++d) part.o[d] = static_cast<float>(o[d]);
    tiles.push_back(part);
  }
  for (std::size_t i = 0; i < tiles.size(); i += kSpanTiles) {
    const std::size_t end = std::min(i + kSpanTiles, tiles.size());
    if (backwards) std::reverse(tiles.begin() + i, tiles.begin() + end);
    Part span = tiles[i];
    for (std::size_t t = i + 1; t < end; ++t) join(span, tiles[t]);
    spans.push_back(span);
  }
  if (backwards) std::reverse(spans.begin(), spans.end());
  Part whole = spans[0];
  for (std::size_t i = 1; i < spans.size(); ++i) join(whole, spans[i]);
  for (float& x : whole.o) x = (x * 0x1p-7f) / whole.l;
  return whole.o;
}

constexpr KvKind kKinds[] = {KvKind::i16, KvKind::f32};

}  // namespace

TEST_CASE("attention: the definition computes softmax attention") {
  const Sequence s({4, 2, 64}, 300, 1);
  for (KvKind kind : kKinds) {
    const std::vector<float> y = run_whole(Isa::scalar, 1, s, kind, 300);
    double largest_error = 0;
    for (int row : {0, 1, 2, 100, 127, 128, 129, 255, 256, 299}) {
      const std::vector<double> expected = softmax_attention(s, row);
      for (int i = 0; i < s.q_cols(); ++i) {
        largest_error = std::max(
            largest_error, std::fabs(static_cast<double>(y[row * s.q_cols() + i]) - expected[i]));
      }
    }
    // Values lie in [-1, 1]; codes have 15 bits, probabilities 15.
    CHECK(largest_error < (kind == KvKind::i16 ? 1e-3 : 2e-6));
  }
}

TEST_CASE("attention: every form gives the definition's bits, at every shape") {
  for (Shape shape : {Shape{4, 1, 128}, Shape{16, 1, 128}, Shape{3, 3, 64}, Shape{10, 2, 80},
                      Shape{2, 1, 96}, Shape{3, 1, 33}, Shape{5, 1, 1}, Shape{2, 2, 256}}) {
    const Sequence s(shape, 140, 3 + shape.head_dim, 3.0f);
    for (KvKind kind : kKinds) {
      const std::vector<float> expected = run_whole(Isa::scalar, 1, s, kind, 140);
      for (Isa isa : isas_here()) {
        CAPTURE(isa_name(isa));
        CAPTURE(shape.head_dim);
        CHECK(same_bits(run_whole(isa, 1, s, kind, 140), expected));
        CHECK(same_bits(run_whole(isa, 2, s, kind, 7, 5), expected));
      }
    }
  }
}

TEST_CASE("attention: any window, thread count and page order, across tiles and spans (case 1)") {
  const Sequence s({2, 1, 32}, 1180, 5);
  for (KvKind kind : kKinds) {
    const std::vector<float> expected = run_whole(Isa::scalar, 1, s, kind, 512);
    for (Isa isa : isas_here()) {
      for (int n_threads : {1, 2, 5}) {
        HostOps ops(n_threads, isa);
        const std::vector<int> pages = shuffled_pages(s.n, 17 + n_threads);
        auto cache = poisoned_cache(ops, s, kind, static_cast<int>(pages.size()) + 2);
        put_all(ops, s, *cache, pages);
        for (int first :
             {0, 1, 63, 64, 120, 126, 127, 128, 129, 1015, 1022, 1023, 1024, 1025, 1147}) {
          for (int count : {1, 8, 32}) {
            CAPTURE(first);
            CAPTURE(count);
            const auto y = run(ops, s, *cache, pages, first, count);
            REQUIRE(same_bits(y.data(), &expected[first * s.q_cols()], y.size()));
          }
        }
      }
    }
  }
}

TEST_CASE("attention: items, spans and tiles shared among threads give the same bits") {
  // 4 kv heads and 32 rows are 4 items: whole items on one thread, 8 spans on two, tiles on eight.
  const Sequence s({4, 4, 16}, 1180, 6);
  const std::vector<float> expected = run_whole(Isa::scalar, 1, s, KvKind::i16, 512);
  for (Isa isa : isas_here()) {
    for (int n_threads : {1, 2, 8}) {
      HostOps ops(n_threads, isa);
      const std::vector<int> pages = shuffled_pages(s.n, 3);
      auto cache = ops.kv_cache(s.node, KvKind::i16, static_cast<int>(pages.size()) + 2);
      put_all(ops, s, *cache, pages);
      for (int first : {1000, 1148}) {
        const auto y = run(ops, s, *cache, pages, first, 32);
        CHECK(same_bits(y.data(), &expected[first * s.q_cols()], y.size()));
      }
    }
  }
}

TEST_CASE("attention: sequences in one call equal sequences alone") {
  const Sequence a({4, 2, 32}, 200, 7), b({4, 2, 32}, 131, 8), c({4, 2, 32}, 1, 9);
  const Sequence* all[] = {&a, &b, &c};
  for (KvKind kind : kKinds) {
    for (Isa isa : isas_here()) {
      HostOps ops(3, isa);
      auto cache = ops.kv_cache(a.node, kind, 8);
      const std::vector<int> pages[] = {{5, 2}, {7, 0}, {3}};
      std::vector<Segment> segments;
      std::vector<float> q, k, v;
      int n_rows = 0;
      for (int i = 0; i < 3; ++i) {
        const Sequence& s = *all[i];
        Segment segment;
        segment.first_row = n_rows, segment.n_rows = segment.n_live = segment.n_sure = s.n;
        segment.pages = pages[i];
        segments.push_back(segment);
        n_rows += s.n;
        q.insert(q.end(), s.q.begin(), s.q.end());
        k.insert(k.end(), s.k.begin(), s.k.end());
        v.insert(v.end(), s.v.begin(), s.v.end());
      }
      std::vector<std::uint8_t> marked(n_rows);
      std::vector<float> y(q.size());
      ops.attention({n_rows, segments, marked}, a.node, *cache, {q.data(), n_rows, a.q_cols()},
                    {k.data(), n_rows, a.kv_cols()}, {v.data(), n_rows, a.kv_cols()},
                    {y.data(), n_rows, a.q_cols()});
      for (int i = 0; i < 3; ++i) {
        const auto alone = run_whole(Isa::scalar, 1, *all[i], kind, 64);
        CHECK(same_bits(alone.data(), &y[segments[i].first_row * a.q_cols()], alone.size()));
      }
      CHECK(std::count(marked.begin(), marked.end(), 0) == n_rows);
    }
  }
}

TEST_CASE("attention: padding rows write nothing, and their page need not exist") {
  const Sequence s({2, 1, 32}, 140, 11);
  for (KvKind kind : kKinds) {
    const std::vector<float> expected = run_whole(Isa::scalar, 1, s, kind, 140);
    for (Isa isa : isas_here()) {
      HostOps ops(1, isa);
      auto cache = poisoned_cache(ops, s, kind, 1);
      const std::vector<int> pages = {0};
      std::vector<std::uint8_t> marked;
      const auto y = run(ops, s, *cache, pages, 0, 140, &marked, 126);
      CHECK(same_bits(y.data(), expected.data(), 126 * s.q_cols()));
      CHECK(std::count(marked.begin(), marked.end(), 0) == 140);
      // Keys 126 and 127 still hold the poison.
      auto fresh = poisoned_cache(ops, s, kind, 1);
      std::vector<std::byte> before, after;
      fresh->read(0, kPageKeys, before), cache->read(0, kPageKeys, after);
      const std::size_t key_bytes = before.size() / 2 / kPageKeys;
      CHECK(std::equal(before.begin() + 126 * key_bytes, before.begin() + 128 * key_bytes,
                       after.begin() + 126 * key_bytes));
      const auto next = run(ops, s, *cache, pages, 126, 2);
      CHECK(same_bits(next.data(), &expected[126 * s.q_cols()], next.size()));
    }
  }
}

TEST_CASE("attention: a page's canonical bytes are its codes, whoever wrote them") {
  const Sequence s({2, 2, 33}, 130, 13);
  for (KvKind kind : kKinds) {
    std::vector<std::byte> first, second;
    for (int variant : {0, 1}) {
      HostOps ops(1 + variant, isas_here()[variant % isas_here().size()]);
      const std::vector<int> pages = variant == 0 ? std::vector<int>{0, 1} : std::vector<int>{3, 2};
      auto cache = poisoned_cache(ops, s, kind, 4);
      for (int row = 0; row < s.n;) {
        const int n = variant == 0 ? s.n : std::min(9, s.n - row);
        run(ops, s, *cache, pages, row, n);
        row += n;
      }
      cache->read(pages[1], 2, variant == 0 ? first : second);
    }
    CHECK(first == second);
    // K, then V; per head and key.
    std::vector<std::byte> expected;
    auto append = [&](const void* p, std::size_t n) {
      const auto* bytes = static_cast<const std::byte*>(p);
      expected.insert(expected.end(), bytes, bytes + n);
    };
    for (const std::vector<float>* x : {&s.k, &s.v}) {
      for (int h = 0; h < 2; ++h) {
        for (int row : {128, 129}) {
          const float* values = &(*x)[row * s.kv_cols() + h * 33];
          std::int16_t codes[33];
          std::int32_t exponent;
          quantize_codes(values, 33, codes, &exponent);
          if (kind == KvKind::f32) append(values, 33 * 4);
          if (kind == KvKind::i16) append(codes, 66), append(&exponent, 4);
        }
      }
    }
    CHECK(first == expected);
  }
}

TEST_CASE("attention: codes round, clamp and keep their exponents") {
  std::int16_t codes[4];
  int exponent;
  const float ordinary[] = {1.0f, -0.5f, 0x1.fffffep0f, -0.0f};
  CHECK(quantize_codes(ordinary, 4, codes, &exponent));
  CHECK(exponent == -14);
  CHECK(codes[0] == 16384);
  CHECK(codes[1] == -8192);
  CHECK(codes[2] == kCodeMax);  // 32768 does not fit two planes
  CHECK(codes[3] == 0);
  const float tiny[] = {0x1p-149f, 0.0f, -0x1p-126f, 0x1p-114f};
  CHECK(quantize_codes(tiny, 4, codes, &exponent));
  CHECK(exponent == -114);
  CHECK(codes[3] == 1);
  const float large[] = {3.4028235e38f, -3.4028235e38f, 1.0f, 0x1p113f};
  CHECK(quantize_codes(large, 4, codes, &exponent));
  CHECK(exponent == 113);
  CHECK(codes[1] == -kCodeMax);
  CHECK(codes[3] == 1);
  for (float bad : {std::nanf(""), -std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    const float x[] = {1.0f, bad, 2.0f, 3.0f};
    CHECK_FALSE(quantize_codes(x, 4, codes, &exponent));
    CHECK(exponent == -114);
    CHECK(std::all_of(codes, codes + 4, [](std::int16_t c) { return c == 0; }));
  }
}

TEST_CASE("attention: values that are not finite, and scores out of range, mark their row alone") {
  const Sequence clean({2, 1, 32}, 8, 15);
  for (KvKind kind : kKinds) {
    for (Isa isa : isas_here()) {
      for (float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
        for (int where : {0, 1, 2}) {
          Sequence s = clean;
          std::vector<float>& x = where == 0 ? s.q : where == 1 ? s.k : s.v;
          x[x.size() / 8 * 5 + 3] = bad;  // in row 5
          HostOps ops(2, isa);
          const std::vector<int> pages = {0};
          auto cache = poisoned_cache(ops, s, kind, 1);
          std::vector<std::uint8_t> marked;
          const auto y = run(ops, s, *cache, pages, 0, 8, &marked);
          CHECK(marked == std::vector<std::uint8_t>{0, 0, 0, 0, 0, 1, 0, 0});
          CHECK(same_bits(y.data(), run_whole(Isa::scalar, 1, clean, kind, 8).data(),
                          5 * s.q_cols()));
        }
      }
      Sequence s = clean;  // finite, but the products are not
      for (int d = 0; d < 32; ++d) s.q[6 * s.q_cols() + d] = s.k[6 * s.kv_cols() + d] = 1e30f;
      HostOps ops(1, isa);
      const std::vector<int> pages = {0};
      auto cache = poisoned_cache(ops, s, kind, 1);
      std::vector<std::uint8_t> marked;
      run(ops, s, *cache, pages, 0, 7, &marked);
      CHECK(marked == std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 1});
    }
  }
}

TEST_CASE("attention: planted extremes give equal bits in every form") {
  Sequence s({4, 2, 48}, 150, 19);
  for (std::vector<float>* x : {&s.q, &s.k, &s.v}) {
    for (std::size_t i = 0; i < x->size(); ++i) {
      const std::uint64_t h = mix64(i * 3 + static_cast<std::size_t>(x - &s.q));
      const bool is_value = x == &s.v;
      const std::size_t row = i / 48;
      if (mix64(row) % 7 == 0)
        (*x)[i] = std::ldexp((*x)[i], -static_cast<int>(mix64(row + 9) % 149));
      if (mix64(row) % 7 == 1)
        (*x)[i] = std::ldexp((*x)[i], static_cast<int>(mix64(row + 9) % (is_value ? 120 : 6)));
      if (h % 17 == 0) (*x)[i] = h & 256 ? 0.0f : -0.0f;
      if (is_value && h % 1999 == 0) (*x)[i] = 3.4028235e38f;
      if (mix64(row) % 29 == 2) (*x)[i] = 0.0f;
    }
  }
  for (KvKind kind : kKinds) {
    if (kind == KvKind::f32) {
      for (float& v : s.v) v = std::clamp(v, -1e30f, 1e30f);  // sums stay finite
    }
    const std::vector<float> expected = run_whole(Isa::scalar, 1, s, kind, 150);
    for (Isa isa : isas_here()) CHECK(same_bits(run_whole(isa, 2, s, kind, 9), expected));
  }
}

TEST_CASE("attention: a twin written apart agrees; relative tiles and reversed joins are caught") {
  const Sequence s({2, 1, 32}, 1200, 23);
  const std::vector<float> y = run_whole(Isa::scalar, 1, s, KvKind::i16, 1200);
  int relative_caught = 0, reversed_caught = 0;
  const int rows[] = {0, 5, 127, 128, 200, 1023, 1024, 1199};
  for (int row : rows) {
    for (int head : {0, 1}) {
      const float* expected = &y[row * s.q_cols() + head * 32];
      CHECK(same_bits(twin(s, row, head, 0, false).data(), expected, 32));
      relative_caught +=
          !same_bits(twin(s, row, head, (row + 1) % kPageKeys, false).data(), expected, 32);
      reversed_caught += !same_bits(twin(s, row, head, 0, true).data(), expected, 32);
    }
  }
  CHECK(relative_caught >= 6);
  CHECK(reversed_caught >= 4);
}

TEST_CASE("attention: log2(e) / sqrt(head_dim) is rounded once") {
  CHECK(static_cast<float>(1.44269504088896340735992468100189214L / std::sqrt(128.0L)) ==
        0x1.0527dcp-3f);
}

TEST_CASE("attention: a head that 32-bit sums cannot hold is refused by name") {
  HostOps ops(1, Isa::scalar);
  CHECK_THROWS_WITH_AS(
      ops.kv_cache(node_of({1, 1, 513}), KvKind::i16, 1),
      "attention: head_dim is 513, expected 1 to 512 (integer sums must fit 32 bits)", Error);
  CHECK(std::int64_t{kHeadDimMax} * (127 * 32639 + 128 * 127) < std::int64_t{1} << 31);
}
