// The ops of separate drafters against formulas in float64, alone against among others, a ring
// against pages.
#include "core/ops/block_draft.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "core/base/bits.h"
#include "core/ops/rope_angle.h"
#include "core/ops/test_support.h"
#include "core/pack/tile_codec.h"

using namespace bolt;

namespace {

double wide(float x) { return static_cast<double>(x); }

constexpr int kHeads = 4, kKvHeads = 2, kDim = 32, kCols = kKvHeads * kDim, kDraftLayers = 2;
constexpr float kEps = 1e-6f;

// The numbers of a sequence: context rows and a block, of every layer.
struct Numbers {
  int n_context = 0, block_rows = 0;
  std::vector<float> context, q, kv;  // [n_context, layers * 2 * cols], [block_rows, ...]
  Numbers(int seed, int n, int rows)
      : n_context(n),
        block_rows(rows),
        context(even_floats(seed, n * kDraftLayers * 2 * kCols, 2.0f)),
        q(even_floats(seed + 1, rows * kHeads * kDim, 2.0f)),
        kv(even_floats(seed + 2, rows * 2 * kCols, 2.0f)) {}
};

struct Shared {
  std::vector<float> inv_freq, q_norm = even_floats(11, kDim, 1.0f),
                               k_norms = even_floats(12, kDraftLayers*kDim, 1.0f),
                               sinks = even_floats(13, kHeads, 2.0f);
  RopeTable rope;
  Shared() {
    for (int i = 0; i < kDim / 2; ++i) {
      inv_freq.push_back(static_cast<float>(std::pow(100.0, -2.0 * i / kDim)));
    }
    rope = {inv_freq.data(), 1.25f, kDim};
  }
};

struct Config {
  bool is_causal, has_sinks, is_ring;
  int window, first_key;
};

// The ops over these sequences, in one batch; answers each sequence's attention rows of the last
// layer.
std::vector<std::vector<float>> run(const Config& config, std::span<const Numbers* const> all,
                                    int n_threads = 1) {
  HostOps ops(n_threads, Isa::scalar);
  const Shared shared;
  constexpr int kPages = 8, kSlots = 3;
  std::vector<std::uint16_t> keys(kDraftLayers * kPages * kPageKeys * kCols), values = keys;
  BlockCache cache;
  cache.keys = keys.data(), cache.values = values.data();
  cache.n_cols = kCols, cache.n_layers = kDraftLayers;
  cache.ring_tiles = config.is_ring ? 2 : 0;
  cache.n_cells = kPages * kPageKeys;
  const std::vector<int> pages[kSlots] = {{3, 1}, {0, 2}, {7, 5}};

  std::vector<Segment> segments;
  std::vector<float> q, kv, context;
  int n_rows = 0;
  for (std::size_t s = 0; s < all.size(); ++s) {
    Segment segment;
    segment.first_row = n_rows;
    segment.n_rows = segment.n_live = all[s]->block_rows;
    segment.first_position = all[s]->n_context;
    segment.first_key = config.first_key;
    segment.slot = static_cast<int>(s);
    segment.pages = pages[s];
    segments.push_back(segment);
    n_rows += segment.n_rows;
    q.insert(q.end(), all[s]->q.begin(), all[s]->q.end());
    kv.insert(kv.end(), all[s]->kv.begin(), all[s]->kv.end());
  }
  const int n_block_rows = n_rows;
  for (std::size_t s = 0; s < all.size(); ++s) {
    Segment segment = segments[s];
    segment.first_row = n_rows;
    segment.n_live = all[s]->n_context;
    segment.n_rows = segment.n_live + 1;  // the last row writes nothing
    segment.first_position = 0;
    segments.push_back(segment);
    n_rows += segment.n_rows;
    context.insert(context.end(), all[s]->context.begin(), all[s]->context.end());
    context.resize(context.size() + kDraftLayers * 2 * kCols, NAN);
  }
  std::vector<std::uint8_t> marked(static_cast<std::size_t>(n_rows));
  const Batch batch{n_rows, segments, marked};
  BlockShape shape;
  shape.n_sequences = static_cast<int>(all.size());
  shape.block_rows = all[0]->block_rows;
  shape.n_heads = kHeads, shape.n_kv_heads = kKvHeads, shape.head_dim = kDim;
  shape.window = config.window, shape.is_causal = config.is_causal;

  ops.put_context(batch, n_block_rows, shared.rope, kEps, shared.k_norms.data(), cache,
                  {context.data(), n_rows - n_block_rows, kDraftLayers * 2 * kCols});
  const Rows<float> q_rows{q.data(), n_block_rows, kHeads * kDim},
      kv_rows{kv.data(), n_block_rows, 2 * kCols};
  ops.rope_heads(batch, shared.rope, kEps, q_rows, shared.q_norm.data(), kv_rows.columns(0, kCols),
                 shared.k_norms.data() + kDim);
  std::vector<float> y(q.size());
  ops.block_attention(batch, shape, 1, config.has_sinks ? shared.sinks.data() : nullptr, cache,
                      q_rows, kv_rows, {y.data(), n_block_rows, kHeads * kDim});
  CHECK(std::accumulate(marked.begin(), marked.end(), 0) == 0);
  std::vector<std::vector<float>> answers;
  for (std::size_t s = 0; s < all.size(); ++s) {
    const auto first =
        y.begin() + static_cast<std::ptrdiff_t>(s) * shape.block_rows * kHeads * kDim;
    answers.emplace_back(first, first + shape.block_rows * kHeads * kDim);
  }
  return answers;
}

// rope(rmsnorm(x, w), position) in float64.
std::vector<double> turned(const float* x, const float* w, int position, const Shared& shared) {
  double sum = 0.0;
  for (int i = 0; i < kDim; ++i) sum += wide(x[i]) * wide(x[i]);
  const double r = 1.0 / std::sqrt(sum / kDim + wide(kEps));
  std::vector<double> y(kDim);
  for (int i = 0; i < kDim / 2; ++i) {
    const double angle =
        static_cast<float>(position) * shared.inv_freq[static_cast<std::size_t>(i)];
    const double c = 1.25 * std::cos(angle), s = 1.25 * std::sin(angle);
    const double low = wide(x[i]) * r * wide(w[i]),
                 high = wide(x[i + kDim / 2]) * r * wide(w[i + kDim / 2]);
    y[static_cast<std::size_t>(i)] = low * c - high * s;
    y[static_cast<std::size_t>(i + kDim / 2)] = high * c + low * s;
  }
  return y;
}

double bf16(double x) { return wide(bf16_to_float(float_to_bf16(static_cast<float>(x)))); }

std::vector<float> expected(const Config& config, const Numbers& n) {
  const Shared shared;
  std::vector<float> y;
  for (int r = 0; r < n.block_rows; ++r) {
    const int position = n.n_context + r;
    for (int head = 0; head < kHeads; ++head) {
      const int kv_head = head / (kHeads / kKvHeads);
      const auto q = turned(&n.q[static_cast<std::size_t>((r * kHeads + head) * kDim)],
                            shared.q_norm.data(), position, shared);
      std::vector<double> scores;
      std::vector<std::vector<double>> values;
      const auto add = [&](const float* k, const float* v, int p, bool rounded) {
        std::vector<double> key = turned(k, shared.k_norms.data() + kDim, p, shared),
                            value(v, v + kDim);
        double score = 0.0;
        for (std::size_t i = 0; i < kDim; ++i) {
          score += q[i] * (rounded ? bf16(key[i]) : key[i]);
          if (rounded) value[i] = bf16(value[i]);
        }
        scores.push_back(score / std::sqrt(static_cast<double>(kDim)));
        values.push_back(value);
      };
      for (int p = config.first_key; p < n.n_context; ++p) {
        if (config.window > 0 && p <= position - config.window) continue;
        const float* row = &n.context[static_cast<std::size_t>(p * kDraftLayers * 2 * kCols)];
        const float* k = row + 2 * kCols + kv_head * kDim;  // of layer 1
        add(k, k + kCols, p, true);
      }
      for (int b = 0; b < n.block_rows; ++b) {
        if (config.is_causal && b > r) continue;
        const float* k = &n.kv[static_cast<std::size_t>(b * 2 * kCols + kv_head * kDim)];
        add(k, k + kCols, n.n_context + b, false);
      }
      double total =
          config.has_sinks ? std::exp(wide(shared.sinks[static_cast<std::size_t>(head)])) : 0.0;
      for (const double score : scores) total += std::exp(score);
      for (std::size_t i = 0; i < kDim; ++i) {
        double sum = 0.0;
        for (std::size_t j = 0; j < scores.size(); ++j) {
          sum += std::exp(scores[j]) / total * values[j][i];
        }
        y.push_back(static_cast<float>(sum));
      }
    }
  }
  return y;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::fabs(wide(a[i]) - wide(b[i])));
  }
  return most;
}

}  // namespace

TEST_CASE("drafters' ops: sines and cosines at every position of a long context") {
  double most = 0.0;
  for (int i = 0; i < 400'000; ++i) {
    const auto angle = static_cast<float>(i * 2.62) * (i % 7 ? 1.0f : 0.013f);
    float s, c;
    rope_angle(angle, &s, &c);
    most = std::max({most, std::fabs(wide(s) - std::sin(wide(angle))),
                     std::fabs(wide(c) - std::cos(wide(angle)))});
  }
  CHECK(most < 6e-8);
}

TEST_CASE("drafters' ops: attention over context and block is the formula's") {
  const Numbers a(1, 150, 8), b(4, 61, 8);
  for (const Config config :
       {Config{true, true, true, 100, 0}, Config{false, false, false, 0, 0},
        Config{true, false, true, 64, 120}, Config{false, true, false, 0, 30}}) {
    const Numbers* const alone[] = {&a};
    const auto found = run(config, alone);
    CHECK(difference(found[0], expected(config, a)) < 2e-4);  // keys that BF16 rounds elsewhere
    CHECK(difference(found[0], expected(config, a)) > 0.0);
    // One thing else each: the test sees it.
    for (Config wrong : {config, config, config, config}) {
      static int which = 0;
      switch (which++ % 4) {
        case 0:
          wrong.is_causal = !wrong.is_causal;
          break;
        case 1:
          wrong.has_sinks = !wrong.has_sinks;
          break;
        case 2:
          wrong.window = 20;
          break;
        default:
          wrong.first_key += 140;
      }
      CHECK(difference(found[0], expected(wrong, a)) > 2e-3);
    }
    // Among others, on other threads.
    const Numbers* const both[] = {&b, &a};
    CHECK(same_bits(run(config, both, 3)[1], found[0]));
  }
  // Pages and a ring hold the same.
  const Numbers* const alone[] = {&a};
  CHECK(same_bits(run({true, true, true, 100, 0}, alone)[0],
                  run({true, true, false, 100, 0}, alone)[0]));
}

TEST_CASE("drafters' ops: a Markov head's drafts go left to right, a marked row ends its block") {
  constexpr int kVocab = 70, kRank = 32, kDrafts = 3, kBlockRows = 4, kBlocks = 2;
  HostOps ops(1, Isa::scalar);
  const auto w1 = even_floats(1, kVocab * kRank), w2 = even_floats(2, kVocab * kRank);
  const auto base = even_floats(3, kBlocks * kBlockRows * kVocab, 2.0f);
  Weight table, bias;
  table.n_rows = bias.n_rows = kVocab, table.n_cols = bias.n_cols = kRank;
  table.data = reinterpret_cast<const std::byte*>(w1.data());
  RowCodes codes;
  codes.resize(Format::f32, kVocab, kRank);
  std::memcpy(codes.codes.data(), w2.data(), codes.codes.size());
  bias.layout = Layout::tiles;
  bias.bytes = weight_bytes(bias);
  std::vector<std::byte> tiles(bias.bytes);
  for (int tile = 0; tile < n_tiles(kVocab); ++tile) {
    pack_tile(codes, tile * kTileRows,
              tiles.data() + static_cast<std::size_t>(tile) * tile_bytes(Format::f32, kRank));
  }
  bias.data = tiles.data();
  for (const bool has_markov : {true, false}) {
    for (const int marked_row : {-1, 6}) {
      std::vector<float> logits = base, gathered(kBlocks * kRank);
      std::vector<Segment> segments(kBlocks);
      for (int s = 0; s < kBlocks; ++s) {
        segments[static_cast<std::size_t>(s)].first_row = s * kBlockRows;
        segments[static_cast<std::size_t>(s)].n_rows = kBlockRows;
      }
      std::vector<std::uint8_t> marked(kBlocks * kBlockRows);
      const std::vector<int> ids = {5, 0, 0, 0, 9, 0, 0, 0};
      const std::vector<SampleSpec> specs(kBlocks, [] {
        SampleSpec spec;
        spec.n_vocab = kVocab;
        return spec;
      }());
      const auto operand = ops.operand(kBlocks, kRank);
      BlockTask task;
      task.batch = {kBlocks * kBlockRows, segments, marked};
      task.ids = ids;
      task.ops = [&] {
        if (marked_row >= 0) marked[static_cast<std::size_t>(marked_row)] = 1;
      };
      task.n_sequences = kBlocks, task.block_rows = kBlockRows, task.n_drafts = kDrafts;
      task.logits = {logits.data(), kBlocks * kBlockRows, kVocab};
      task.sampling = specs;
      if (has_markov) {
        task.markov_w1 = &table, task.markov_w2 = &bias;
        task.markov_rows = {gathered.data(), kBlocks, kRank};
        task.markov_operand = operand.get();
      }
      std::vector<Sampled> drafts(kBlocks * kDrafts);
      ops.run_block(task, drafts);
      for (int s = 0; s < kBlocks; ++s) {
        int previous = ids[static_cast<std::size_t>(s * kBlockRows)];
        bool ended = false;
        for (int r = 1; r <= kDrafts; ++r) {
          const int row = s * kBlockRows + r;
          int best = -1;
          double most = -1e30;
          for (int id = 0; id < kVocab; ++id) {
            double x = base[static_cast<std::size_t>(row * kVocab + id)];
            for (int i = 0; has_markov && i < kRank; ++i) {
              x += wide(w1[static_cast<std::size_t>(previous * kRank + i)]) *
                   wide(w2[static_cast<std::size_t>(id * kRank + i)]);
            }
            if (x > most) most = x, best = id;
          }
          ended = ended || row == marked_row;
          CHECK(drafts[static_cast<std::size_t>(s * kDrafts + r - 1)].id == (ended ? -1 : best));
          previous = best;
        }
      }
    }
  }
}
