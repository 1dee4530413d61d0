// The operations of the contract `bolt-exact/1`, each stated here, once; the twins refer back to
// it (arithmetic.md has them in full, cited as §N). HostOps (core/ops/host.cpp) is the readable
// definition with its AVX2 and AVX-512 forms; the device twins are cuda/. What order layers run in
// is core/engine.
//
// Row-invariant: a row's bits depend on its own operands and absolute position alone, never on the
// number of rows, the rows beside it, threads or device. Speculation relies on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/rows.h"
#include "core/pack/graph.h"

namespace bolt {

inline constexpr int kWindowRowsMax = 32;  // rows of one sequence that may be rejected: at most 31
inline constexpr int kPageKeys = 128;      // keys of a KV page: the contract's absolute tile
inline constexpr int kSpanTiles = 8;       // tiles of a span (§7)

// How keys and values are kept (§7). f32 is the reference variant, host only.
enum class KvKind { i16, f32 };

// The rows of a call that belong to one sequence, in order of position.
struct Segment {
  int first_row = 0, n_rows = 0;
  int first_position = 0;  // absolute position of the first row
  // Rows that are live: the others (a fixed geometry's padding) write neither keys nor state.
  int n_live = 0;
  // Leading rows that are certain to be kept (all of a prompt chunk, one of a window); the
  // recurrent state is written after them. n_live - n_sure <= 31 rows lag.
  int n_sure = 0;
  int n_lag = 0;  // rows of the last window that were kept and are not yet in the recurrent state
  int slot = 0;   // the sequence's place in the recurrent caches
  std::span<const int> pages;  // page of each tile of 128 absolute positions
  // Of a separate drafter's rows (block_draft.h): positions before it have no context keys.
  int first_key = 0;
};

struct Batch {
  int n_rows = 0;
  std::span<const Segment> segments;
  // One flag a row, set where a value was not finite (§1): nothing of such a row may be emitted.
  std::span<std::uint8_t> marked;
};

// What a linear adds to its sum: nothing, the residual (y = RN(y + sum)), or the activation
// (y = relu2(sum), §2).
enum class Epilogue { store, add, relu2 };

// Recurrent state of every slot for one Mamba-2 layer: h f32 [n_heads, head_dim, d_state], the raw
// conv inputs before it, and the raw rows of the last window that lag: a rejected draft
// is taken back by not replaying its rows.
class MambaCache {
 public:
  virtual ~MambaCache() = default;
  virtual void reset(int slot) = 0;
  // The state after n_lag lagging rows were replayed, without changing the slot:
  // h [n_heads * head_dim * d_state], then conv inputs [conv_kernel - 1, d_conv], oldest first.
  virtual void read(int slot, int n_lag, std::vector<float>& state) const = 0;
  virtual void copy(int from_slot, int to_slot) = 0;
};

// Keys and values of one attention layer in pages of 128 absolute positions.
class KvCache {
 public:
  virtual ~KvCache() = default;
  // Canonical bytes of the first n_keys keys and values of a page, all kv heads: per head and key
  // the codes (little-endian i16) and exponents (i32), or the float32 values; K then V.
  virtual void read(int page, int n_keys, std::vector<std::byte>& bytes) const = 0;
  virtual std::uint64_t page_bytes() const = 0;
  // Makes to_page what from_page is. False, and nothing done, where that is not possible: prefixes
  // are then shared in whole pages only.
  virtual bool copy(int from_page, int to_page) { return (void)from_page, (void)to_page, false; }
};

// Rows quantised as §3, ready for the integer formats; made by Ops::quantize, reused until the next
// call. Float formats read the rows themselves.
class Operand {
 public:
  virtual ~Operand() = default;
};

// One linear of several that read the same rows. quantised: null, or where y's rows go quantised,
// too (§3); then y itself may be left unwritten by a device, for the operand alone is read.
struct LinearTask {
  const Weight* w = nullptr;
  Epilogue epilogue = Epilogue::store;
  Rows<float> y;
  Operand* quantised = nullptr;
};

// Rows that a mixture-of-experts layer works in, each [n, ...]: choice n_experts, routed d_model,
// shared d_shared, latent and latent_out d_latent; and operands for shared and latent rows.
struct MoeScratch {
  Rows<float> choice, routed, shared, latent, latent_out;
  Operand* shared_operand = nullptr;
  Operand* latent_operand = nullptr;
};

// One row's choice of a token (§9).
struct SampleSpec {
  // 0: greedy. So is a temperature at which the best logit's quotient is no longer finite: the
  // noise could not matter there, and every row with a finite logit has an answer.
  float temperature = 0.0f;
  int top_k = 0;       // <= 0: off
  float top_p = 1.0f;  // >= 1: off
  float min_p = 0.0f;  // 0: off
  std::uint64_t seed = 0;
  std::uint64_t position = 0;    // ids before the token in its sequence
  int n_vocab = 0;               // ids at or past the tokenizer's size are never chosen
  bool want_probability = true;  // it costs a second look at the row

  bool operator==(const SampleSpec&) const = default;
};
struct Sampled {
  int id = -1;               // -1: the row was marked, or held a NaN, a +Inf or no finite logit
  float probability = 0.0f;  // softmax probability of id (at the temperature, or at 1 if greedy):
                             // exp(l - max) over the lane sum of exp; for the depth rule only.
                             // 0 where it is not wanted
};

struct RoundTask;  // core/ops/round.h
struct RoundOutcome;
struct BlockShape;  // core/ops/block_draft.h
struct BlockCache;
struct BlockTask;
struct RopeTable;

class Ops {
 public:
  virtual ~Ops() = default;

  // Announces a call before its ops: a device copies segments, pages and ids (the rows' tokens) at
  // once, so that the ops themselves read nothing of the host's. Marks are cleared.
  virtual void begin(const Batch& batch, std::span<const int> ids) = 0;
  // Waits for the call; after it the batch's marks are on the host.
  virtual void finish(const Batch& batch) = 0;
  // Runs `ops`. A device captures their launches under `key` the first time and replays them later,
  // so equal keys must mean equal shapes and buffers; what differs comes through begin().
  virtual void replay(std::uint64_t key, const std::function<void()>& ops) = 0;

  // Memory the ops work on; freed with the Ops. Zeroed. bytes > 0.
  virtual void* allocate(std::uint64_t bytes, const char* purpose) = 0;
  virtual std::uint64_t free_bytes() const = 0;  // that allocate could still give; 0: unknown
  virtual std::unique_ptr<MambaCache> mamba_cache(const Mamba2& node, int n_slots) = 0;
  virtual std::unique_ptr<KvCache> kv_cache(const Attention& node, KvKind kind, int n_pages) = 0;
  virtual std::unique_ptr<Operand> operand(int max_rows, int max_cols) = 0;

  // x[r] = table[ids[r]], widened to f32; of tiles in a format of codes, each element's value in
  // float32 (packed_row of core/pack/tile_codec.h). ids in [0, vocab_size).
  virtual void embed(const Weight& table, std::span<const int> ids, Rows<float> x) = 0;

  // RMSNorm (Zhang & Sennrich, arXiv:1910.07467), §5: y = (x * rsqrt(mean(x^2) + eps)) * w.
  //   x, y f32 [n, n_cols], y may be x; w f32 [n_cols]. group < n_cols: each contiguous group of
  //   columns is normed by itself. Marks a row whose sum of squares is not finite.
  virtual void rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps,
                        int group, Rows<float> y) = 0;

  // The rows of x as linears take them; quantised (§3) if `integer`. x must outlive its use.
  virtual void quantize(Rows<const float> x, bool integer, Operand& operand) = 0;

  // y = W x (§4) for every row, K = w.n_cols, N = w.n_rows. Marks rows whose sum is not finite.
  virtual void linear(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
                      Rows<float> y) = 0;

  // Mamba-2 (Dao & Gu, arXiv:2405.21060), §6, from in_proj's rows to the input of out_proj: conv,
  // step size, recurrence token by token, readout, gate and grouped norm.
  //   zxbcdt f32 [n, d_in_proj], y f32 [n, d_inner].
  // Replays each segment's lagging rows, steps its rows, and writes state after the sure ones; the
  // live rest is kept raw for the next call's replay. A node without a gate_norm leaves the gated
  // rows as they are: a group that ranks share is normed by who has all of it.
  virtual void mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                     Rows<const float> zxbcdt, Rows<float> y) = 0;

  // Causal attention without position encoding, §7: writes k and v of the live rows to their pages,
  // then reads every key at or before the row's position.
  //   q, y f32 [n, n_heads * head_dim]; k, v f32 [n, n_kv_heads * head_dim]
  virtual void attention(const Batch& batch, const Attention& node, KvCache& cache,
                         Rows<const float> q, Rows<const float> k, Rows<const float> v,
                         Rows<float> y) = 0;
  // The first half alone: keys and values are written, nothing is read.
  virtual void put_keys(const Batch& batch, const Attention& node, KvCache& cache,
                        Rows<const float> k, Rows<const float> v) = 0;

  // Routed experts, §8: choice and weights from router logits, then
  //   y = sum over the choice, in order, of weight * down_e(relu2(up_e x)).
  //   logits f32 [n, n_experts]; x, y f32 [n, d_latent or d_model]
  virtual void experts(const Batch& batch, const Moe& node, Rows<const float> logits,
                       const Operand& x, Rows<float> y) = 0;
  // Its two halves, for ranks that hold some rows of every expert (core/engine/rank_ops.h). Of the
  // rows from first_row on, as many as hidden has choices of:
  //   hidden[i * top_k + c] = relu2(up_e x[first_row + i]), e the row's choice c
  //   hidden f32 [n * top_k, experts_up.n_rows], which may be none
  virtual void experts_up(const Batch& batch, const Moe& node, Rows<const float> logits,
                          const Operand& x, int first_row, Rows<float> hidden);
  // y[i] = sum over the choice, in order, of weight * down_e(hidden[i * top_k + c]), of the choices
  // that experts_up made last; y f32 [n, experts_down.n_rows], the rows from first_row on.
  virtual void experts_down(const Batch& batch, const Moe& node, const Operand& hidden,
                            int first_row, Rows<float> y);

  // y = RN(y + x).
  virtual void add(Rows<const float> x, Rows<float> y) = 0;

  // The ops above in the sequences that layers run them in. Each is defined by the ops it is made
  // of (ops.cpp); a device overrides it to save launches, never to change a bit.

  // rms_norm, then quantize(y).
  virtual void norm_quantize(const Batch& batch, Rows<const float> x, const float* w, float eps,
                             Rows<float> y, bool integer, Operand& operand);
  // Every call in order; none reads what another writes.
  virtual void linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls);
  // mamba, then quantize(y).
  virtual void mamba_quantize(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                              Rows<const float> zxbcdt, Rows<float> y, bool integer,
                              Operand& operand);
  // attention, then quantize(y).
  virtual void attention_quantize(const Batch& batch, const Attention& node, KvCache& cache,
                                  Rows<const float> q, Rows<const float> k, Rows<const float> v,
                                  Rows<float> y, bool integer, Operand& operand);
  // A whole mixture-of-experts mixer: x = RN(x + RN(experts(u) + shared(u))), experts through the
  // latent projections where the node has them.
  virtual void moe(const Batch& batch, const Moe& node, const Operand& u, const MoeScratch& scratch,
                   Rows<float> x);

  // Chooses a token for each row of logits, §9. marked[r] makes the row's id -1.
  // ids_of: null, or the vocabulary id of each column (a draft vocabulary), in any order; noise and
  // ties go by id. A NaN or +Inf in any column counts, also past n_vocab.
  virtual void sample(Rows<const float> logits, std::span<const SampleSpec> specs,
                      std::span<const std::uint8_t> marked, const int* ids_of,
                      std::span<Sampled> out) = 0;

  // A round of one sequence: every level of the head and its sample while the chain goes on, then
  // the window of the drafts that are worth it. Its definition is made of the ops above
  // (round.cpp); a device overrides it to wait but once.
  virtual void run_round(const RoundTask& task, RoundOutcome& outcome);

  // Separate drafters, as block_draft.h says. A device without their ops (has_block_ops is false)
  // proposes nothing of theirs; those that are not spelled out in block_draft.cpp throw there.
  virtual bool has_block_ops() const { return false; }
  // y = x rounded to BF16; of rows that are so already, a copy.
  virtual void round_bf16(Rows<const float> x, Rows<float> y);
  // embed, but `row` (f32) where an id is `id`.
  virtual void embed_but(const Weight& table, int id, const float* row, std::span<const int> ids,
                         Rows<float> x);
  virtual void rope_heads(const Batch& batch, const RopeTable& rope, float eps, Rows<float> q,
                          const float* q_norm, Rows<float> k, const float* k_norm);
  virtual void put_context(const Batch& batch, int first_row, const RopeTable& rope, float eps,
                           const float* k_norms, const BlockCache& cache, Rows<const float> kv);
  virtual void block_attention(const Batch& batch, const BlockShape& shape, int layer,
                               const float* sinks, const BlockCache& cache, Rows<const float> q,
                               Rows<const float> kv, Rows<float> y);
  // y = RN(silu(gate) * up), then quantize(y).
  virtual void gate_quantize(Rows<const float> gate, Rows<const float> up, Rows<float> y,
                             bool integer, Operand& operand);
  // A pass of a drafter and the choice of its tokens, as one call.
  virtual void run_block(const BlockTask& task, std::span<Sampled> drafts);
  // How many rows a call of n is best run as, where every number of rows is captured by itself.
  virtual int padded_rows(int n_rows) const { return n_rows; }

  // Where the marks of a batch's rows lie in the Ops' memory while its call runs.
  virtual std::uint8_t* marks(const Batch& batch) const { return batch.marked.data(); }

  // Returns when all that was asked for is done.
  virtual void wait() {}

  // Copies between the Ops' memory and the host.
  virtual void read(const float* from, std::span<float> to) = 0;
  virtual void write(const void* from, std::uint64_t bytes, void* to) = 0;
  // Inside the Ops' memory; bytes is a multiple of 4. By read and write unless a device knows
  // better.
  virtual void copy(const void* from, std::uint64_t bytes, void* to);
};

}  // namespace bolt
