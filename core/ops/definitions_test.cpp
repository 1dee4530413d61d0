// The definitions built without hardware fma, which a machine that has it never runs, give the bits
// of those built with it.
#include "core/ops/attention.h"
#include "core/ops/mamba.h"
#include "core/ops/sample.h"
#include "core/ops/test_support.h"

using namespace bolt;

TEST_CASE("definitions: Mamba-2's steps, with and without hardware fma") {
  if (!cpu_has_fma()) return;
  constexpr int kRows = 3, kCols = 40, kTaps = 4, kDims = 5, kState = 37;
  const auto x = even_floats(1, (kRows + kTaps - 1) * kCols, 3.0f),
             w = even_floats(2, kTaps * kCols);
  const auto wide = even_floats(3, kRows * 2 * kState, 2.0f);
  std::vector<const float*> raw;
  for (int r = 0; r < kRows + kTaps - 1; ++r) raw.push_back(&x[r * kCols]);
  std::vector<float> results[2];
  for (int i = 0; i < 2; ++i) {
    const MambaKernels& k = i == 0 ? kMambaPortable : kMambaFma;
    std::vector<float> v(kRows * kCols), dt(kCols), dA(kCols), h = even_floats(4, kDims * kState);
    std::vector<float> y(kRows * kDims), gated = even_floats(5, kCols);
    k.conv(&raw[kTaps - 1], kRows, kTaps, w.data(), x.data(), kCols, 0, kCols, v.data(), kCols);
    k.steps(x.data(), w.data(), w.data(), kCols, false, 0, 0, dt.data(), dA.data());
    k.gate(x.data(), kCols, gated.data());
    ScanArgs a;
    a.h = h.data(), a.n_rows = kRows, a.n_dims = kDims, a.d_state = kState;
    a.x = v.data(), a.B = wide.data(), a.C = wide.data() + kState, a.stride = kCols;
    a.dt = dt.data(), a.dA = dA.data(), a.head_stride = 1, a.D = 0.3f;
    a.y = y.data(), a.y_stride = kDims;
    k.scan(a);
    for (const auto* part : {&v, &dt, &dA, &h, &y, &gated}) {
      results[i].insert(results[i].end(), part->begin(), part->end());
    }
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("definitions: attention's tiles and joins, with and without hardware fma") {
  if (!cpu_has_fma()) return;
  constexpr int kDims = 21, kQueries = 3;
  Attention node;
  node.n_heads = node.n_kv_heads = 1, node.head_dim = kDims;
  for (KvKind kind : {KvKind::i16, KvKind::f32}) {
    HostKvCache cache(node, kind, 1);
    for (int key = 0; key < kPageKeys; ++key) {
      const auto k = even_floats(10 + key, kDims, 2.0f), v = even_floats(200 + key, kDims);
      cache.put(0, 0, key, k.data(), v.data());
    }
    const KvLayout& layout = cache.layout();
    const int stride = 2 * layout.dim_pairs(), sums = kQueries * layout.v_dims();
    const auto q = even_floats(7, kQueries * kDims, 2.0f);
    std::vector<std::int16_t> qh(kQueries * stride), ql(kQueries * stride);
    std::vector<float> factor(kQueries);
    for (int i = 0; i < kQueries; ++i) {
      int e;
      quantize_codes(&q[i * kDims], kDims, &qh[i * stride], &e);
      for (int d = 0; d < stride; ++d) {
        const int code = qh[i * stride + d];
        qh[i * stride + d] = static_cast<std::int16_t>((code + 128) >> 8);
        ql[i * stride + d] = static_cast<std::int16_t>(code - 256 * qh[i * stride + d]);
      }
      factor[i] = std::ldexp(0.3f, e + 8);
    }
    const int n_visible[] = {1, 77, 128};
    std::vector<float> results[2];
    for (int i = 0; i < 2; ++i) {
      const AttentionKernels& k = kind == KvKind::i16
                                      ? (i == 0 ? kAttentionPortable : kAttentionFma)
                                      : (i == 0 ? kAttentionF32Portable : kAttentionF32Fma);
      std::vector<float> m(kQueries), l(kQueries), o(sums);
      std::vector<std::uint8_t> marked(kQueries);
      TileArgs a;
      a.layout = &layout, a.base = cache.head(0, 0), a.n_queries = kQueries;
      a.n_visible = n_visible, a.qh = qh.data(), a.ql = ql.data(), a.factor = factor.data();
      a.q = q.data(), a.m = m.data(), a.l = l.data(), a.o = o.data(), a.marked = marked.data();
      k.tile(a);
      k.merge(layout.v_dims(), &m[1], &l[1], &o[layout.v_dims()], m[2], l[2],
              &o[2 * layout.v_dims()]);
      CHECK(std::vector<std::uint8_t>(kQueries) == marked);
      for (const auto* part : {&m, &l, &o}) {
        results[i].insert(results[i].end(), part->begin(), part->end());
      }
    }
    CHECK(same_bits(results[0], results[1]));
  }
}

TEST_CASE("definitions: the sampler's loops, with and without hardware fma") {
  if (!cpu_has_fma()) return;
  const auto x = even_floats(9, 1000, 12.0f);
  std::vector<std::uint32_t> bits(1000);
  for (int i = 0; i < 1000; ++i) bits[i] = static_cast<std::uint32_t>(mix64(i) >> 41);
  std::vector<float> results[2];
  for (int i = 0; i < 2; ++i) {
    const SampleKernels& k = i == 0 ? kSamplePortable : kSampleFma;
    std::vector<float> e(1000), g(1000);
    k.exp_below(x.data(), 1000, 12.0f, e.data());
    k.gumbel(bits.data(), 1000, g.data());
    results[i] = e;
    results[i].insert(results[i].end(), g.begin(), g.end());
    results[i].push_back(k.sum_exp(x.data(), 1000, 12.0f));
  }
  CHECK(same_bits(results[0], results[1]));
}
