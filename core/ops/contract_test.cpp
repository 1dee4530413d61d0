// The contract's digest: one value for every instruction set and thread count, and the one that
// packages and receipts carry.
#include "core/ops/contract.h"

#include "core/base/contract.h"
#include "core/ops/test_support.h"

using namespace bolt;

namespace {

enum class Wrong { nothing, add, marks, routing, rejection };

// Host ops with one rule broken, each in the least way that could happen.
class WrongOps final : public Ops {
 public:
  explicit WrongOps(Wrong wrong) : wrong_(wrong) {}

  void add(Rows<const float> x, Rows<float> y) override {
    right_.add(x, y);
    if (wrong_ != Wrong::add) return;
    for (int row = 0; row < y.n_rows; ++row) {
      for (int i = 0; i < y.n_cols; ++i) y.row(row)[i] += 0.0f;  // -0 becomes +0
    }
  }
  void linear(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
              Rows<float> y) override {
    right_.linear(batch, x, w, epilogue, y);
    if (wrong_ == Wrong::marks && w.format == Format::nvfp4) batch.marked[2] = 0;
  }
  void experts(const Batch& batch, const Moe& node, Rows<const float> logits, const Operand& x,
               Rows<float> y) override {
    // Prefer the higher of equal ids.
    if (wrong_ == Wrong::routing) logits.data = tie_broken(logits);
    right_.experts(batch, node, logits, x, y);
  }
  void mamba(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
             Rows<const float> zxbcdt, Rows<float> y) override {
    Segment segment = batch.segments[0];
    if (wrong_ == Wrong::rejection && segment.n_lag > 0) ++segment.n_lag;  // a rejected row is kept
    right_.mamba({batch.n_rows, {&segment, 1}, batch.marked}, node, eps, cache, zxbcdt, y);
  }

  void begin(const Batch& batch, std::span<const int> ids) override { right_.begin(batch, ids); }
  void finish(const Batch& batch) override { right_.finish(batch); }
  void replay(std::uint64_t key, const std::function<void()>& ops) override {
    right_.replay(key, ops);
  }
  void* allocate(std::uint64_t bytes, const char* purpose) override {
    return right_.allocate(bytes, purpose);
  }
  std::uint64_t free_bytes() const override { return right_.free_bytes(); }
  std::unique_ptr<MambaCache> mamba_cache(const Mamba2& node, int n_slots) override {
    return right_.mamba_cache(node, n_slots);
  }
  std::unique_ptr<KvCache> kv_cache(const Attention& node, KvKind kind, int n_pages) override {
    return right_.kv_cache(node, kind, n_pages);
  }
  std::unique_ptr<Operand> operand(int max_rows, int max_cols) override {
    return right_.operand(max_rows, max_cols);
  }
  void embed(const Weight& table, std::span<const int> ids, Rows<float> x) override {
    right_.embed(table, ids, x);
  }
  void rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps, int group,
                Rows<float> y) override {
    right_.rms_norm(batch, x, w, eps, group, y);
  }
  void quantize(Rows<const float> x, bool integer, Operand& operand) override {
    right_.quantize(x, integer, operand);
  }
  void attention(const Batch& batch, const Attention& node, KvCache& cache, Rows<const float> q,
                 Rows<const float> k, Rows<const float> v, Rows<float> y) override {
    right_.attention(batch, node, cache, q, k, v, y);
  }
  void put_keys(const Batch& batch, const Attention& node, KvCache& cache, Rows<const float> k,
                Rows<const float> v) override {
    right_.put_keys(batch, node, cache, k, v);
  }
  void sample(Rows<const float> logits, std::span<const SampleSpec> specs,
              std::span<const std::uint8_t> marked, const int* ids_of,
              std::span<Sampled> out) override {
    right_.sample(logits, specs, marked, ids_of, out);
  }
  void read(const float* from, std::span<float> to) override { right_.read(from, to); }
  void write(const void* from, std::uint64_t bytes, void* to) override {
    right_.write(from, bytes, to);
  }

 private:
  // In the last row, whose logits are all equal, odd ids come out a little ahead.
  const float* tie_broken(Rows<const float> logits) {
    const auto n =
        static_cast<std::size_t>(logits.n_rows) * static_cast<std::size_t>(logits.n_cols);
    logits_.assign(logits.data, logits.data + n);
    const std::size_t last = n - static_cast<std::size_t>(logits.n_cols);
    for (std::size_t i = last + 1; i < n; i += 2) logits_[i] += 1e-5f;
    return logits_.data();
  }

  Wrong wrong_;
  HostOps right_{1, Isa::scalar};
  std::vector<float> logits_;
};

}  // namespace

TEST_CASE("contract: every instruction set and thread count gives the digest that is published") {
  for (Isa isa : isas_here()) {
    for (int n_threads : {1, 2, 3}) {
      HostOps ops(n_threads, isa);
      CHECK_MESSAGE(contract_digest(ops) == kContractSha256, std::string(isa_name(isa)), ", ",
                    n_threads, " threads");
    }
  }
}

TEST_CASE("contract: the digest tells a broken rule") {
  const auto digest_of = [](Wrong wrong) {
    WrongOps ops(wrong);
    return contract_digest(ops);
  };
  CHECK(digest_of(Wrong::nothing) == kContractSha256);
  for (Wrong wrong : {Wrong::add, Wrong::marks, Wrong::routing, Wrong::rejection}) {
    CHECK_MESSAGE(digest_of(wrong) != kContractSha256, static_cast<int>(wrong));
  }
}
