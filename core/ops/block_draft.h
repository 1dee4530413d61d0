// Ops of separate drafters (DSpark, DFlash): a block of rows over a context of keys that are made
// of the target's tapped residuals. Stated here, once; HostOps (block_draft_host.cpp) is the
// readable definition. Drafts are guesses that the target checks, so a device may sum in another
// order; each repeats its own bits, so that counters do.
//
// A call's batch holds the blocks first: segment s of n_sequences has block_rows rows from row
// s * block_rows on, its first_position is the anchor's. Behind them may come segments of context
// rows, whose keys are written in the same call before any block reads them; their rows past n_live
// write nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "core/ops/ops.h"

namespace bolt {

// Angles of a position p: RN(p * inv_freq[i]); their cosines and sines are scaled by `magnitude`
// (YaRN's, 1 without). Sines and cosines are rope_angle.h's.
struct RopeTable {
  const float* inv_freq = nullptr;  // [head_dim / 2], in the Ops' memory
  float magnitude = 1.0f;
  int head_dim = 0;
};

struct BlockShape {
  int n_sequences = 0, block_rows = 0;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  int window = 0;  // keys that a row sees, itself included; 0: all
  bool is_causal = false;
};

// Context keys (normed and rotated) and values of every layer, BF16, in cells of n_cols numbers:
// [n_layers][n_cells][n_cols]. Position p of a segment lies in cell
//   pages[p / 128] * 128 + p % 128                            if ring_tiles is 0
//   (slot * ring_tiles + p / 128 % ring_tiles) * 128 + p % 128  else
struct BlockCache {
  std::uint16_t *keys = nullptr, *values = nullptr;
  int n_cols = 0;  // n_kv_heads * head_dim
  int n_layers = 0, ring_tiles = 0;
  std::int64_t n_cells = 0;

  std::int64_t cell(const Segment& s, int position) const {
    const int tile = position / kPageKeys;
    const std::int64_t page = ring_tiles > 0 ? std::int64_t{s.slot} * ring_tiles + tile % ring_tiles
                                             : s.pages[static_cast<std::size_t>(tile)];
    return page * kPageKeys + position % kPageKeys;
  }
  // Of keys or values.
  std::int64_t place(int layer, std::int64_t cell) const {
    return (layer * n_cells + cell) * n_cols;
  }
};

// Ops::rope_heads: of the block rows, in place, each head of q and k by itself:
//   x = rope(rmsnorm(x, norm), position), rope(x)[i] = x[i] c - x[i + h] s,
//   rope(x)[i + h] = x[i + h] c + x[i] s, h = head_dim / 2
//   q f32 [n, n_heads * head_dim], k f32 [n, n_kv_heads * head_dim], norms f32 [head_dim]
//
// Ops::put_context: of the batch's rows from first_row on, all live ones, for every layer l:
//   keys[l] = bf16(rope(rmsnorm(k_l, k_norms[l]), position)), values[l] = bf16(v_l)
//   kv f32 [n, n_layers * 2 * n_cols]: k of layer 0, v of layer 0, k of layer 1, ...
//   k_norms f32 [n_layers, head_dim]
//
// Ops::block_attention: of the block rows of layer `layer`. Row r of a segment, at position p, sees
//   context keys at max(first_key, p - window + 1) .. first_position - 1 (from first_key on, if
//   window is 0), then rows 0..r of its own block if is_causal, else all of them.
//   y = sum_j w_j v_j, w = softmax(q . k_j / sqrt(head_dim)); with sinks, one more column of the
//   softmax whose score is the head's sink and whose value is 0.
//   q, y f32 [n, n_heads * head_dim]; kv f32 [n, 2 * n_cols], k (as rope_heads left it) | v;
//   sinks f32 [n_heads] or null. Heads share kv heads in runs of n_heads / n_kv_heads.

// A pass over n_sequences blocks and the choice of n_drafts tokens for each, left to right:
//   prev = the anchor; for r = 1..n_drafts:
//     logits of draft r += W2 . W1[prev] (where there is a Markov head); draft r = sample; prev =
//     it
struct BlockTask {
  Batch batch;
  std::span<const int> ids;   // of all rows; the anchor of block s is ids[s * block_rows]
  std::function<void()> ops;  // leaves `logits`; between begin() and the choice
  std::uint64_t key = 0;      // as Ops::replay's
  int n_sequences = 0, block_rows = 0, n_drafts = 0;
  // [n_sequences * block_rows, vocab_size]: draft r (from 1) of a block in its row r.
  Rows<float> logits;
  std::span<const SampleSpec> sampling;  // [n_sequences], of draft 1; the next: position + 1
  const Weight *markov_w1 = nullptr, *markov_w2 = nullptr;  // null: no Markov head
  Rows<float> markov_rows;            // [n_sequences, rank], for what is gathered of W1
  Operand* markov_operand = nullptr;  // for the same, quantised
};
// Ops::run_block answers drafts [n_sequences * n_drafts]. A draft whose row is marked is -1, and so
// are those that follow it in its block.

}  // namespace bolt
