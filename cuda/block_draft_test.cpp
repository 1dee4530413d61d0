// The ops of separate drafters, device against host: norms, rotations, keys and gates have equal
// bits; attention, which sums in another order, the same numbers; a pass's choice the same tokens.
#include "core/ops/block_draft.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/testing/both.h"

namespace bolt::cuda {
namespace {

const int kRepeats = is_brief() ? 2 : 5;

struct Shape {
  int heads, kv, dim;
  int window;  // 0: all keys, from pages
  bool causal;
  int n_sequences, block_rows;
};

// Two sides of a drafter of three layers, some keys in its context, and blocks behind them.
struct Drafter {
  static constexpr int kLayers = 3, kPages = 16;

  HostOps host{2, cpu_has(Isa::avx2) ? Isa::avx2 : Isa::scalar};
  CudaOps device{0, true};
  DeviceCopies copies;
  Shape shape;
  std::vector<float> inv_freq, q_norm, k_norms, sinks;
  RopeTable host_rope, device_rope;
  const float *q_norm_device, *k_norms_device, *sinks_device;
  std::vector<std::uint16_t> keys, values;
  BlockCache host_cache, device_cache;

  explicit Drafter(const Shape& s) : shape(s) {
    for (int i = 0; i < s.dim / 2; ++i) {
      inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / s.dim));
    }
    host_rope = {inv_freq.data(), 1.25f, s.dim};
    device_rope = {copies.put(inv_freq.data(), inv_freq.size()), 1.25f, s.dim};
    q_norm = even_floats(1, s.dim), k_norms = even_floats(2, kLayers * s.dim);
    sinks = even_floats(3, s.heads, 4.0f);
    q_norm_device = copies.put(q_norm.data(), q_norm.size());
    k_norms_device = copies.put(k_norms.data(), k_norms.size());
    sinks_device = copies.put(sinks.data(), sinks.size());
    host_cache.n_cols = s.kv * s.dim;
    host_cache.n_layers = kLayers;
    host_cache.ring_tiles = s.window > 0 ? (s.window - 1 + kPageKeys - 1) / kPageKeys : 0;
    host_cache.n_cells = std::int64_t{kPageKeys} *
                         (s.window > 0 ? s.n_sequences * host_cache.ring_tiles : 2 * kPages);
    const auto n = static_cast<std::size_t>(host_cache.n_cells * host_cache.n_cols) * kLayers;
    keys.assign(n, 0), values.assign(n, 0);
    device_cache = host_cache;
    host_cache.keys = keys.data(), host_cache.values = values.data();
    device_cache.keys = copies.put(keys.data(), n),
    device_cache.values = copies.put(values.data(), n);
  }

  std::vector<int> pages(int sequence) const {
    std::vector<int> table;
    for (int i = 0; i < kPages; ++i)
      table.push_back(kPages * (sequence % 2) + (i * 7 + 3) % kPages);
    return table;
  }
  bool caches_agree() {
    const auto same = [&](const std::vector<std::uint16_t>& expected,
                          const std::uint16_t* on_device) {
      std::vector<float> words(expected.size() / 2);
      device.read(reinterpret_cast<const float*>(on_device), words);
      return std::memcmp(expected.data(), words.data(), expected.size() * 2) == 0;
    };
    return same(keys, device_cache.keys) && same(values, device_cache.values);
  }
  // Positions [first, first + n) of a sequence get keys on both sides.
  bool put(int sequence, int first, int n, int n_live, std::uint64_t seed) {
    Segment s = BothBatch::whole(n);
    s.first_position = first, s.n_live = n_live, s.slot = sequence;
    BothBatch batch({s}, {pages(sequence)});
    const int cols = 2 * kLayers * host_cache.n_cols;
    DeviceCopies mine;
    const BothRows kv(mine, even_floats(seed, n * cols, 2.0f), n, cols);
    batch.begin(host, device);
    host.put_context(batch.on_host, 0, host_rope, 1e-6f, k_norms.data(), host_cache, kv.on_host);
    device.put_context(batch.on_device, 0, device_rope, 1e-6f, k_norms_device, device_cache,
                       kv.on_device);
    device.finish(batch.on_device);
    return batch.host_marks == batch.device_marks && caches_agree();
  }
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return 1e9;
    if (!std::isnan(a[i]))
      most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

const Shape kShapes[] = {{32, 2, 128, 1024, true, 1, 8}, {32, 2, 128, 0, false, 1, 8},
                         {4, 1, 64, 128, true, 3, 4},    {4, 1, 64, 0, false, 4, 8},
                         {6, 3, 36, 200, true, 2, 32},   {20, 2, 256, 0, true, 1, 2},
                         {3, 3, 10, 2, true, 2, 5}};

}  // namespace

TEST_CASE("drafters: context keys and attention, in rings and pages") {
  for (const Shape& s : kShapes) {
    if (!is_mine()) continue;
    Drafter d(s);
    std::uint64_t seed = 700;
    std::vector<int> context;
    for (int q = 0; q < s.n_sequences; ++q) {
      int n = 0;
      // A ring has a cell for each of a call's rows, no more. Sequences share pages in pairs: then
      // a third would write over the first's.
      for (const int most : {1, 90 + 40 * q, 8, 130, 300, 700, 5}) {
        if (s.window == 0 && q > 1) break;
        const int rows = s.window > 0 ? std::min(most, d.host_cache.ring_tiles * kPageKeys) : most;
        const int n_live = rows - (rows == 8 ? 3 : 0);
        CHECK_MESSAGE(d.put(q, n, rows, n_live, ++seed), s.heads, " x ", s.dim, " ", rows, " rows");
        n += n_live;
      }
      context.push_back(s.window == 0 && q > 1 ? context[static_cast<std::size_t>(q % 2)] - q : n);
    }
    std::vector<Segment> segments;
    std::vector<std::vector<int>> tables;
    for (int q = 0; q < s.n_sequences; ++q) {
      Segment block = BothBatch::whole(s.block_rows);
      block.first_row = q * s.block_rows;
      block.first_position = context[static_cast<std::size_t>(q)];
      block.slot = q;
      block.first_key = q == 1 ? 77 : 0;
      segments.push_back(block);
      tables.push_back(d.pages(q));
    }
    const int n_rows = s.n_sequences * s.block_rows, q_cols = s.heads * s.dim, cols = s.kv * s.dim;
    BothBatch batch(segments, tables);
    const BothRows q(d.copies, even_floats(++seed, n_rows * q_cols, 3.0f), n_rows, q_cols);
    const BothRows kv(d.copies, even_floats(++seed, n_rows * 2 * cols, 2.0f), n_rows, 2 * cols);
    const std::vector<float> q_before = q.host, kv_before = kv.host;
    const BothRows y = BothRows::poisoned(d.copies, n_rows, q_cols);
    BlockShape shape;
    shape.n_sequences = s.n_sequences, shape.block_rows = s.block_rows;
    shape.n_heads = s.heads, shape.n_kv_heads = s.kv, shape.head_dim = s.dim;
    shape.window = s.window, shape.is_causal = s.causal;
    batch.begin(d.host, d.device);
    d.host.rope_heads(batch.on_host, d.host_rope, 1e-6f, q.on_host, d.q_norm.data(),
                      kv.on_host.columns(0, cols), d.k_norms.data() + s.dim);
    const auto run = [&](const BlockShape& how, const float* sinks) {
      // In place: the rows as they were.
      copy_to_device(q.on_device.data, q_before.data(), q_before.size() * sizeof(float));
      copy_to_device(kv.on_device.data, kv_before.data(), kv_before.size() * sizeof(float));
      d.device.begin(batch.on_device, batch.ids);
      d.device.rope_heads(batch.on_device, d.device_rope, 1e-6f, q.on_device, d.q_norm_device,
                          kv.on_device.columns(0, cols), d.k_norms_device + s.dim);
      d.device.block_attention(batch.on_device, how, 1, sinks, d.device_cache, q.on_device,
                               kv.on_device, y.on_device);
      d.device.finish(batch.on_device);
      return y.read_device(d.device);
    };
    const std::vector<float> first = run(shape, d.sinks_device);
    CHECK(rows_that_differ(q, q.read_device(d.device), batch.host_marks) == 0);
    CHECK(rows_that_differ(kv, kv.read_device(d.device), batch.host_marks) == 0);
    for (int i = 1; i < kRepeats; ++i) CHECK(run(shape, d.sinks_device) == first);
    d.host.block_attention(batch.on_host, shape, 1, d.sinks.data(), d.host_cache, q.on_host,
                           kv.on_host, y.on_host);
    CHECK(batch.host_marks == batch.device_marks);
    CHECK_MESSAGE(largest_difference(y.host, first) < 2e-5, s.heads, " x ", s.dim, " window ",
                  s.window);
    // Controls: another window, mask, layer of sinks.
    BlockShape other = shape;
    other.is_causal = !shape.is_causal;
    CHECK(largest_difference(y.host, run(other, d.sinks_device)) > 1e-4);
    if (s.window > 2) {
      other = shape, other.window = s.window - 1;
      CHECK(largest_difference(y.host, run(other, d.sinks_device)) > 1e-6);
    }
    CHECK(largest_difference(y.host, run(shape, nullptr)) > 1e-4);
  }
}

TEST_CASE("drafters: rounding, mask rows, gates, copies") {
  HostOps host{2, cpu_has(Isa::avx2) ? Isa::avx2 : Isa::scalar};
  CudaOps device{0, true};
  for (const int n_cols : {24, 96, 384, 6144}) {
    for (const int n_rows : {1, 8, 40}) {
      DeviceCopies copies;
      BothBatch batch(n_rows);
      const int mask = 5;
      for (int r = 0; r < n_rows; ++r)
        batch.ids[static_cast<std::size_t>(r)] = r % 3 == 0 ? mask : r;
      const auto n_masks = std::count(batch.ids.begin(), batch.ids.end(), mask);
      batch.begin(host, device);
      const BothRows x(copies, planted_floats(11, n_rows * n_cols), n_rows, n_cols);
      const BothRows up(copies, even_floats(12, n_rows * n_cols), n_rows, n_cols);
      const BothRows y = BothRows::poisoned(copies, n_rows, n_cols);
      host.round_bf16(x.on_host, y.on_host);
      device.round_bf16(x.on_device, y.on_device);
      CHECK(rows_that_differ(y, y.read_device(device), batch.host_marks) == 0);
      CHECK(rows_that_differ(x, y.read_device(device), batch.host_marks) == n_rows);  // control

      const SyntheticWeight table = synthetic_weight(Format::bf16, 1, 64, n_cols, 13);
      const Weight on_device = copies.put(table.weight);
      const std::vector<float> row = even_floats(14, n_cols);
      const float* const row_device = copies.put(row.data(), row.size());
      host.embed_but(table.weight, mask, row.data(), batch.ids, y.on_host);
      device.embed_but(on_device, mask, row_device, batch.ids, y.on_device);
      CHECK(rows_that_differ(y, y.read_device(device), batch.host_marks) == 0);
      device.embed(on_device, batch.ids, y.on_device);  // control: the table's row
      CHECK(rows_that_differ(y, y.read_device(device), batch.host_marks) == n_masks);

      // Gates, and the linear that takes their codes.
      const auto operand_host = host.operand(n_rows, n_cols),
                 operand_device = device.operand(n_rows, n_cols);
      const SyntheticWeight down = synthetic_weight(Format::nvfp4, 1, 40, n_cols, 15);
      const Weight down_device = copies.put(down.weight);
      const BothRows out = BothRows::poisoned(copies, n_rows, 40);
      host.gate_quantize(x.on_host, up.on_host, y.on_host, true, *operand_host);
      device.gate_quantize(x.on_device, up.on_device, y.on_device, true, *operand_device);
      CHECK(rows_that_differ(y, y.read_device(device), batch.host_marks) == 0);
      host.linear(batch.on_host, *operand_host, down.weight, Epilogue::store, out.on_host);
      device.linear(batch.on_device, *operand_device, down_device, Epilogue::store, out.on_device);
      CHECK(rows_that_differ(out, out.read_device(device), batch.host_marks) == 0);

      device.copy(up.on_device.data, static_cast<std::uint64_t>(n_rows * n_cols) * sizeof(float),
                  y.on_device.data);
      CHECK(y.read_device(device) == up.host);
      device.finish(batch.on_device);
    }
  }
}

TEST_CASE("drafters: tokens of a block one after the other, with and without a Markov head") {
  constexpr int kVocab = 1000, kRank = 32, kRows = 8;
  for (const int n_sequences : {1, 3, 8}) {
    for (const bool markov : {true, false}) {
      Drafter d(kShapes[0]);
      const int n_rows = n_sequences * kRows, n_drafts = kRows - 1;
      const SyntheticWeight w1 = synthetic_weight(Format::bf16, 1, 1024, kRank, 21),
                            w2 = synthetic_weight(Format::nvfp4, 1, kVocab, kRank, 22);
      Weight w1_host = w1.weight, w1_device = d.copies.put(w1.weight);
      w1_host.layout = w1_device.layout = Layout::plain;
      const Weight w2_device = d.copies.put(w2.weight);
      const auto operand_host = d.host.operand(n_sequences, kRank),
                 operand_device = d.device.operand(n_sequences, kRank);
      const BothRows markov_rows = BothRows::poisoned(d.copies, n_sequences, kRank);
      const BothRows logits = BothRows::poisoned(d.copies, n_rows, kVocab);
      std::vector<Segment> segments;
      std::vector<std::vector<int>> tables;
      std::vector<SampleSpec> specs;
      for (int s = 0; s < n_sequences; ++s) {
        Segment block = BothBatch::whole(kRows);
        block.first_row = s * kRows, block.slot = s;
        segments.push_back(block);
        tables.push_back({0});
        SampleSpec spec;
        spec.n_vocab = kVocab;
        if (s % 2 == 1) {
          spec.temperature = 0.9f, spec.top_p = 0.95f;
          spec.seed = 7, spec.position = static_cast<std::uint64_t>(100 + s);
        }
        specs.push_back(spec);
      }
      BothBatch batch(segments, tables);
      const std::vector<float> made = even_floats(23, n_rows * kVocab, 8.0f);
      const float* const made_device = d.copies.put(made.data(), made.size());
      const auto task_of = [&](const Batch& on, const BothRows& rows, bool is_host) {
        BlockTask task;
        task.batch = on, task.ids = batch.ids, task.key = 99;
        task.n_sequences = n_sequences, task.block_rows = kRows, task.n_drafts = n_drafts;
        task.logits = is_host ? rows.on_host : rows.on_device;
        task.sampling = specs;
        if (!markov) return task;
        task.markov_w1 = is_host ? &w1_host : &w1_device;
        task.markov_w2 = is_host ? &w2.weight : &w2_device;
        task.markov_rows = is_host ? markov_rows.on_host : markov_rows.on_device;
        task.markov_operand = is_host ? operand_host.get() : operand_device.get();
        return task;
      };
      const std::uint64_t bytes = made.size() * sizeof(float);
      std::vector<Sampled> host(static_cast<std::size_t>(n_sequences * n_drafts)), device = host;
      BlockTask task = task_of(batch.on_host, logits, true);
      task.ops = [&] { d.host.copy(made.data(), bytes, logits.on_host.data); };
      batch.ids[0] = 3;
      d.host.run_block(task, host);
      BlockTask twin = task_of(batch.on_device, logits, false);
      twin.ops = [&] { d.device.copy(made_device, bytes, logits.on_device.data); };
      const auto same = [](const Sampled& a, const Sampled& b) {
        return a.id == b.id && std::memcmp(&a.probability, &b.probability, 4) == 0;
      };
      for (int i = 0; i < kRepeats; ++i) {  // run, captured, replayed
        std::fill(device.begin(), device.end(), Sampled{});
        d.device.run_block(twin, device);
        CHECK(std::equal(host.begin(), host.end(), device.begin(), same));
      }
      // Control: another anchor shows where there is a Markov head, another position in any case.
      batch.ids[0] = 4;
      d.device.run_block(twin, device);
      CHECK(std::equal(host.begin(), host.end(), device.begin(), same) == !markov);
      batch.ids[0] = 3;
      if (n_sequences == 1) continue;
      ++specs[1].position;
      d.device.run_block(twin, device);
      CHECK_FALSE(std::equal(host.begin(), host.end(), device.begin(), same));
    }
  }
}

}  // namespace bolt::cuda
