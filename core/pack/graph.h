// What a package computes: the ordered nodes of graph.json with their shapes and weights, as data.
// Reading and checking the files is package.cpp; what each node computes is core/ops and
// core/engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace bolt {

// How a weight's numbers are stored. What a code means never changes by conversion. From q4_0 on:
// GGUF's blocks by their own names (its Q8_0 is q8, its NVFP4 nvfp4).
enum class Format {
  f32,
  bf16,
  f16,
  q8,
  nvfp4,
  fp8,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  iq2_xxs,
  mxfp4,
};

// Whether a format's linears read their rows as codes (arithmetic.md §3), else as floats.
constexpr bool is_integer(Format format) { return format > Format::f16; }
// Whether a matrix has one float that multiplies its sums.
constexpr bool has_gain(Format format) { return format == Format::nvfp4 || format == Format::fp8; }

// plain: row-major, for vectors and the embedding. tiles: packed for the kernels
// (core/pack/tiles.h).
enum class Layout { plain, tiles };

// One weight of a package: `n_matrices` matrices [n_rows, n_cols] (1, or one an expert), mapped.
// A vector is one row. Linear weights are [out, in], y = W x.
struct Weight {
  Format format = Format::f32;
  Layout layout = Layout::plain;
  int n_matrices = 1;
  int n_rows = 0;            // N
  int n_cols = 0;            // K
  std::string file;          // name inside the package folder
  std::uint64_t offset = 0;  // bytes, a multiple of 4096
  std::uint64_t bytes = 0;
  std::uint64_t gain_offset =
      0;  // of f32 [n_matrices] in the same file, where the format has gains
  const std::byte* data = nullptr;  // host address once the package is mapped
  const float* gains = nullptr;     // one per matrix, null where the format has none

  bool present() const { return n_rows > 0; }
  std::uint64_t matrix_bytes() const { return bytes / static_cast<std::uint64_t>(n_matrices); }
  const std::byte* matrix(int m) const {
    return data + static_cast<std::uint64_t>(m) * matrix_bytes();
  }
  const float* as_f32() const { return reinterpret_cast<const float*>(data); }  // plain f32 only
};

struct Mamba2 {
  int n_heads = 0, head_dim = 0, d_state = 0, n_ssm_groups = 0, conv_kernel = 4;
  float dt_min = 0.0f, dt_max = 0.0f;  // time_step_limit; dt_max 0 or infinite: no clamp
  Weight in_proj;                      // [d_inner + d_conv + n_heads, d_model], rows z | x B C | dt
  Weight conv_w;                       // f32 plain [d_conv, conv_kernel], oldest tap first
  Weight conv_b;     // f32 plain [d_conv]; zeros where the checkpoint has no conv bias
  Weight A;          // f32 plain [n_heads], -exp(A_log)
  Weight D;          // f32 plain [n_heads]
  Weight dt_bias;    // f32 plain [n_heads]
  Weight gate_norm;  // f32 plain [d_inner]
  Weight out_proj;   // [d_model, d_inner]

  int d_inner() const { return n_heads * head_dim; }
  int d_conv() const { return d_inner() + 2 * n_ssm_groups * d_state; }
  int d_in_proj() const { return d_inner() + d_conv() + n_heads; }
};

struct Attention {
  int n_heads = 0, n_kv_heads = 0, head_dim = 0;
  Weight q_proj, k_proj, v_proj, o_proj;
};

struct Mlp {
  int d_ff = 0;
  Weight up_proj, down_proj;  // relu2 between them
};

struct Moe {
  int n_experts = 0, top_k = 0, d_expert = 0, d_shared = 0, d_latent = 0;  // d_latent 0: none
  int n_router_groups = 1, top_k_groups = 1;
  bool norm_top_k = true;
  float scaling_factor = 1.0f;
  Weight router;                  // [n_experts, d_model], a float format
  Weight router_bias;             // f32 plain [n_experts]
  Weight experts_up;              // n_experts x [d_expert, d_latent or d_model]
  Weight experts_down;            // n_experts x [d_latent or d_model, d_expert]
  Weight shared_up, shared_down;  // absent if d_shared is 0
  Weight latent_down, latent_up;  // [d_latent, d_model], [d_model, d_latent]; absent if none
};

using Mixer = std::variant<Mamba2, Attention, Mlp, Moe>;

// x = x + mixer(rmsnorm(x, norm))
struct Layer {
  Weight norm;  // f32 plain [d_model]
  Mixer mixer;
};

// The MTP head (one module, run as a chain): attention and expert or MLP layers only.
struct DraftHead {
  Weight enorm, hnorm;  // f32 plain [d_model]
  Weight eh_proj;       // [d_model, 2 d_model], embedding half first
  std::vector<Layer> layers;
  Weight final_norm;  // f32 plain [d_model]
  // The draft vocabulary: its ids, ascending, and the head rows of those ids alone. Absent if none.
  std::vector<int> vocab_ids;
  Weight vocab_head;  // [vocab_ids.size(), d_model]
};

// A separate drafter that proposes a block of tokens in one pass over [last token, mask, mask,
// ...], going on from residuals tapped in the target (core/engine/block_draft.h).
//   dspark  causal inside the block, a Markov head from token to token; its first k rows alone give
//           the first k drafts
//   dflash  bidirectional inside the block: always all rows
enum class BlockKind { dspark, dflash };

// Rotary positions over all of head_dim, halves paired: (i, i + head_dim / 2).
struct Rope {
  float theta = 10000.0f;
  // YaRN (Peng et al., arXiv:2309.00071); factor 1: plain.
  float factor = 1.0f;
  int original_positions = 0;
  float beta_fast = 32.0f, beta_slow = 1.0f;
};

struct BlockLayer {
  Weight input_norm;  // f32 plain [d_model]
  Weight q_proj;      // [n_heads * head_dim, d_model]
  Weight q_norm;      // f32 plain [head_dim], of each head
  Weight sinks;       // f32 plain [n_heads]; absent if none
  Weight o_proj;
  Weight post_norm;  // f32 plain [d_model]
  Weight gate_proj, up_proj, down_proj;
};

// The target's embedding and head are the drafter's; of its own embedding there is the mask's row.
struct BlockDrafter {
  BlockKind kind = BlockKind::dspark;
  int block_size = 8;  // rows of a pass: the last token and block_size - 1 masks
  int mask_id = 0;
  float norm_eps = 1e-6f;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0, d_ff = 0;
  int window = 0;  // keys that a row sees, itself included; 0: all
  bool has_sinks = false;
  int markov_rank = 0;    // 0: no Markov head
  std::vector<int> taps;  // target layers, ascending
  Rope rope;
  Weight mask_embedding;  // f32 plain [d_model]
  Weight fc;              // [d_model, n_taps * d_model], the lowest layer's columns first
  Weight hidden_norm;     // f32 plain [d_model], of fc's rows
  Weight kv_proj;         // 2 n_layers x [n_kv_heads * head_dim, d_model]: k, v of each layer
  Weight k_norm;          // f32 plain, n_layers x [1, head_dim]
  std::vector<BlockLayer> layers;
  Weight final_norm;  // f32 plain [d_model]
  Weight markov_w1;   // plain [vocab_size, markov_rank]; absent if markov_rank is 0
  Weight markov_w2;   // [vocab_size, markov_rank]

  bool is_causal() const { return kind == BlockKind::dspark; }
  int n_taps() const { return static_cast<int>(taps.size()); }
  int n_kv_cols() const { return n_kv_heads * head_dim; }
};

// dynamic: any window. fixed: every call runs n_rows rows. hybrid: n_rows-row windows, one-row
// decoding.
struct Geometry {
  enum class Kind { dynamic, fixed, hybrid } kind = Kind::dynamic;
  int n_rows = 0;
};

struct Graph {
  int d_model = 0, vocab_size = 0;
  float norm_eps = 1e-5f;
  Geometry geometry;
  Weight embedding;  // [vocab_size, d_model]; plain in a float format, tiles in the others
  std::vector<Layer> layers;
  Weight final_norm;  // f32 plain [d_model]
  Weight lm_head;     // tiles [vocab_size, d_model]
  std::optional<DraftHead> draft;
  std::vector<BlockDrafter> drafters;  // at most one of a kind, in the order of kinds
};

}  // namespace bolt
