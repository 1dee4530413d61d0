// The contract's test vectors. Operands come from a counter (synthetic.h) with planted extremes:
// odd shapes, both zeros, subnormals, the largest finite number, NaN and infinities. Of a marked
// row only the mark counts, since nothing of it may be emitted.
#include "core/ops/contract.h"

#include <cstring>
#include <memory>
#include <vector>

#include "core/base/bits.h"
#include "core/base/contract.h"
#include "core/base/sha256.h"
#include "core/ops/synthetic.h"
#include "core/pack/tiles.h"

namespace bolt {

namespace {

constexpr float kEps = 1e-5f;

// Rows of one call with their marks, as a sequence's segment.
struct Call {
  std::vector<std::uint8_t> marked;
  std::vector<int> pages, ids;
  Segment segment;
  Batch batch;

  explicit Call(int n_rows, int first_position = 0)
      : marked(static_cast<std::size_t>(n_rows)),
        pages{2, 0, 1},
        ids(static_cast<std::size_t>(n_rows)) {
    segment.n_rows = segment.n_live = segment.n_sure = n_rows;
    segment.first_position = first_position;
    segment.pages = pages;
    batch.n_rows = n_rows;
    batch.segments = {&segment, 1};
    batch.marked = marked;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
};

class Vectors {
 public:
  explicit Vectors(Ops& ops) : ops_(ops) { hash_.update(kContractId); }

  std::string digest() {
    embeddings();
    norms();
    for (Format format : kAllFormats) linears(format);
    for (Format format : kAllFormats) experts(format);
    sums();
    mamba();
    attention();
    samples();
    return hash_.hex();
  }

 private:
  template <class T>
  T* upload(const std::vector<T>& values) {
    const std::uint64_t bytes = values.size() * sizeof(T);
    void* to = ops_.allocate(bytes, "test vectors");
    ops_.write(values.data(), bytes, to);
    return static_cast<T*>(to);
  }
  Rows<float> rows(const std::vector<float>& values, int n_rows) {
    return {upload(values), n_rows, static_cast<int>(values.size()) / n_rows};
  }
  Weight upload(const SyntheticWeight& made) {
    Weight w = made.weight;
    auto* data = static_cast<std::byte*>(ops_.allocate(w.bytes, "test vectors"));
    ops_.write(w.data, w.bytes, data);
    w.data = data;
    if (w.gains != nullptr) w.gains = upload(made.gains);
    return w;
  }
  Weight vector(std::uint64_t seed, int n_rows, int n_cols, float scale = 1.0f) {
    return upload(plain_weight(even_floats(seed, n_rows * n_cols, scale), n_rows, n_cols));
  }

  void begin(Call& call) { ops_.begin(call.batch, call.ids); }
  // Hashes the marks, and the rows that have none.
  void record(const char* name, Call& call, Rows<float> y) {
    ops_.finish(call.batch);
    hash_.update(name);
    hash_.update(call.marked.data(), call.marked.size());
    std::vector<float> row(static_cast<std::size_t>(y.n_cols));
    for (int r = 0; r < y.n_rows; ++r) {
      if (call.marked[static_cast<std::size_t>(r)]) continue;
      ops_.read(y.row(r), row);
      hash_.update(row.data(), row.size() * sizeof(float));
    }
  }

  // Six rows: the second holds a NaN, the third an infinity, the fourth the largest numbers.
  static constexpr int kRows = 6;
  static std::vector<float> extreme_rows(std::uint64_t seed, int n_cols) {
    std::vector<float> x = planted_floats(seed, kRows * n_cols);
    const auto columns = static_cast<std::size_t>(n_cols);
    x[columns + columns / 2] = bits_float(0xffc54321u);
    x[2 * columns + columns - 1] = bits_float(0xff800000u);
    for (std::size_t i = 0; i < columns; ++i) {
      x[3 * columns + i] = bits_float(i % 3 ? 0x7f7fffffu : 0xff7fffffu);
    }
    return x;
  }

  void embeddings() {
    for (Format format : {Format::f32, Format::bf16, Format::f16}) {
      // An embedding is plain: its bytes are halves or floats, row after row.
      const int n_rows = 9, n_cols = 37;
      SyntheticWeight table = plain_weight(planted_floats(101, n_rows * n_cols), n_rows, n_cols);
      table.weight.format = format;
      if (format != Format::f32) {
        std::vector<std::uint16_t> halves;
        for (float v : planted_floats(101, n_rows * n_cols)) {
          halves.push_back(format == Format::f16 ? float_to_f16(v)
                                                 : static_cast<std::uint16_t>(float_bits(v) >> 16));
        }
        table.weight.bytes = halves.size() * 2;
        std::memcpy(table.storage.data(), halves.data(), table.weight.bytes);
      }
      Call call(4);
      call.ids = {8, 0, 3, 3};
      begin(call);
      const Rows<float> x = rows(std::vector<float>(4 * n_cols), 4);
      ops_.embed(upload(table), call.ids, x);
      record("embed", call, x);
    }
    for (Format format : kAllFormats) {  // in tiles, as embeddings of codes are
      const int n_rows = 41, n_cols = 300;
      Call call(4);
      call.ids = {40, 0, 31, 32};
      begin(call);
      const Rows<float> x = rows(std::vector<float>(4 * n_cols), 4);
      ops_.embed(upload(synthetic_weight(format, 1, n_rows, n_cols, 103)), call.ids, x);
      record("embed", call, x);
    }
  }

  void norms() {
    for (const int group : {200, 50, 40}) {
      Call call(kRows);
      begin(call);
      const Rows<float> x = rows(extreme_rows(201, 200), kRows);
      const Rows<float> y = rows(std::vector<float>(kRows * 200), kRows);
      ops_.rms_norm(call.batch, x, vector(202, 1, 200).as_f32(), kEps, group, y);
      record("rms_norm", call, y);
    }
  }

  void linears(Format format) {
    struct Shape {
      int n, k;
    };
    for (const Shape& shape : {Shape{45, 600}, Shape{33, 272}, Shape{7, 31}, Shape{64, 512}}) {
      const Weight w = upload(synthetic_weight(format, 1, shape.n, shape.k, 301, 0.5f));
      const Rows<float> x = rows(extreme_rows(302, shape.k), kRows);
      const auto operand = ops_.operand(kRows, shape.k);
      for (const Epilogue epilogue : {Epilogue::store, Epilogue::add, Epilogue::relu2}) {
        Call call(kRows);
        begin(call);
        const Rows<float> y = rows(even_floats(303, kRows * shape.n), kRows);
        ops_.quantize(x, is_integer(format), *operand);
        ops_.linear(call.batch, *operand, w, epilogue, y);
        record("linear", call, y);
      }
    }
  }

  void experts(Format format) {
    Moe moe;
    moe.n_experts = 12, moe.top_k = 3, moe.d_expert = 72;
    moe.scaling_factor = 2.5f;
    const int width = 90;
    std::vector<float> bias = even_floats(401, moe.n_experts, 0.1f);
    for (std::size_t i = 0; i < bias.size(); i += 2) bias[i + 1] = bias[i];  // for ties below
    moe.router_bias = upload(plain_weight(bias, 1, moe.n_experts));
    moe.experts_up = upload(synthetic_weight(format, 12, moe.d_expert, width, 402, 0.2f));
    moe.experts_down = upload(synthetic_weight(format, 12, width, moe.d_expert, 403, 0.2f));
    const Rows<float> x = rows(extreme_rows(404, width), kRows);
    std::vector<float> router = even_floats(405, kRows * moe.n_experts, 2.0f);
    for (int i = 0; i < moe.n_experts; ++i) router[static_cast<std::size_t>(5 * 12 + i)] = 0.25f;
    const Rows<float> logits = rows(router, kRows);
    const auto operand = ops_.operand(kRows, width);
    for (const int n_groups : {1, 4}) {
      moe.n_router_groups = n_groups, moe.top_k_groups = n_groups / 2 + n_groups % 2;
      moe.norm_top_k = n_groups == 1;
      Call call(kRows);
      begin(call);
      const Rows<float> y =
          rows(std::vector<float>(static_cast<std::size_t>(kRows * width)), kRows);
      ops_.quantize(x, is_integer(format), *operand);
      ops_.experts(call.batch, moe, logits, *operand, y);
      record("experts", call, y);
    }
  }

  void sums() {
    Call call(kRows);
    begin(call);
    std::vector<float> a = planted_floats(501, kRows * 77), b = planted_floats(502, kRows * 77);
    a[3] = b[3] = -0.0f;
    const Rows<float> x = rows(a, kRows), y = rows(b, kRows);
    ops_.add(x, y);
    record("add", call, y);
  }

  // A prompt, a window of which two rows are kept, and the window after it.
  void mamba() {
    Mamba2 node;
    node.n_heads = 4, node.head_dim = 24, node.d_state = 48, node.n_ssm_groups = 2;
    const int d_conv = node.d_conv();
    node.conv_w = vector(601, d_conv, node.conv_kernel, 0.5f);
    node.conv_b = vector(602, 1, d_conv, 0.2f);
    node.A = upload(plain_weight({-0.1f, -1.0f, -4.0f, -16.0f}, 1, 4));
    node.D = vector(603, 1, node.n_heads);
    node.dt_bias = vector(604, 1, node.n_heads, 3.0f);
    node.gate_norm = vector(605, 1, node.d_inner());
    const auto cache = ops_.mamba_cache(node, 2);
    int seed = 606;
    const auto step = [&](int n_rows, int n_sure, int n_lag) {
      Call call(n_rows);
      call.segment.n_sure = n_sure, call.segment.n_lag = n_lag, call.segment.slot = 1;
      begin(call);
      const Rows<float> in = rows(
          even_floats(static_cast<std::uint64_t>(seed++), n_rows * node.d_in_proj(), 2.0f), n_rows);
      const Rows<float> y =
          rows(std::vector<float>(static_cast<std::size_t>(n_rows * node.d_inner())), n_rows);
      ops_.mamba(call.batch, node, kEps, *cache, in, y);
      record("mamba", call, y);
    };
    step(7, 7, 0);
    step(5, 1, 0);
    step(3, 1, 2);
    std::vector<float> state;
    cache->read(1, 1, state);
    hash_.update(state.data(), state.size() * sizeof(float));
  }

  // A prompt that crosses a tile edge, then a window.
  void attention() {
    Attention node;
    node.n_heads = 4, node.n_kv_heads = 2, node.head_dim = 64;
    const auto cache = ops_.kv_cache(node, KvKind::i16, 3);
    int position = 0;
    for (const int n_rows : {140, 5}) {
      Call call(n_rows, position);
      begin(call);
      const auto seed = static_cast<std::uint64_t>(700 + n_rows);
      const Rows<float> q = rows(even_floats(seed, n_rows * 256, 4.0f), n_rows);
      const Rows<float> k = rows(even_floats(seed + 1, n_rows * 128, 4.0f), n_rows);
      const Rows<float> v = rows(planted_floats(seed + 2, n_rows * 128), n_rows);
      const Rows<float> y =
          rows(std::vector<float>(static_cast<std::size_t>(n_rows * 256)), n_rows);
      ops_.attention(call.batch, node, *cache, q, k, v, y);
      record("attention", call, y);
      position += n_rows;
    }
    for (const int page : {0, 2}) {
      std::vector<std::byte> bytes;
      cache->read(page, page == 2 ? kPageKeys : position - kPageKeys, bytes);
      hash_.update(bytes);
    }
  }

  void samples() {
    const int n_vocab = 1003;
    std::vector<SampleSpec> specs(kRows);
    for (int r = 0; r < kRows; ++r) {
      SampleSpec& spec = specs[static_cast<std::size_t>(r)];
      spec.n_vocab = n_vocab - 3;
      spec.seed = 0x123456789abcdefull + static_cast<std::uint64_t>(r);
      spec.position = static_cast<std::uint64_t>(1000 * r);
      spec.temperature = r == 0 ? 0.0f : 0.4f + 0.2f * static_cast<float>(r);
    }
    specs[2].top_k = 20;
    specs[3].top_p = 0.8f;
    specs[4].min_p = 0.05f;
    specs[5].top_k = 50, specs[5].top_p = 0.9f, specs[5].min_p = 0.01f;
    std::vector<float> logits = even_floats(801, kRows * n_vocab, 8.0f);
    logits[7] = logits[500] = 9.0f;  // a tie, and the larger id past the tokenizer's size
    logits[1001] = 10.0f;
    logits[static_cast<std::size_t>(n_vocab) + 3] = bits_float(kNan);
    Call call(kRows);
    begin(call);
    std::vector<Sampled> out(kRows);
    ops_.sample(rows(logits, kRows), specs, call.marked, nullptr, out);
    ops_.finish(call.batch);
    for (const Sampled& one : out) {
      hash_.update(&one.id, sizeof one.id);
      if (one.id >= 0) hash_.update(&one.probability, sizeof one.probability);
    }
  }

  static constexpr std::uint32_t kNan = 0x7fc00000u;

  Ops& ops_;
  Sha256 hash_;
};

}  // namespace

std::string contract_digest(Ops& ops) { return Vectors(ops).digest(); }

}  // namespace bolt
