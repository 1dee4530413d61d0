// The host's side of choosing tokens on the device: specs go up when they changed; choices and the
// call's marks are written to pinned memory by the kernels (sample.cu), so that a call is their
// launches and one wait.
#include <algorithm>
#include <cmath>

#include "cuda/ops.h"
#include "cuda/sample.cuh"

namespace bolt::cuda {
namespace {

// Hands out parts of a buffer whose size is found by handing out parts of none.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t n) {
    const std::size_t at = bytes_;
    bytes_ += aligned(n * sizeof(T));
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t bytes_ = 0;
};

// Refuses what no row may ask for. A greedy row is left without seed, position and filters, so that
// its spec stays the same from call to call and need not go up again.
SampleSpec reduced(const SampleSpec& spec) {
  require(spec.temperature >= 0.0f && std::isfinite(spec.temperature),
          "a temperature is finite, >= 0");
  require(!std::isnan(spec.top_p) && spec.min_p >= 0.0f && spec.min_p <= 1.0f,
          "top_p is a number, min_p in 0..1");
  if (spec.temperature > 0.0f) return spec;
  SampleSpec greedy;
  greedy.n_vocab = spec.n_vocab;
  greedy.want_probability = spec.want_probability;
  return greedy;
}

bool has_cut(const SampleSpec& spec) { return spec.top_k > 0 || spec.top_p < 1.0f; }

}  // namespace

void CudaOps::sample(Rows<const float> logits, std::span<const SampleSpec> specs,
                     std::span<const std::uint8_t> marked, const int* ids_of,
                     std::span<Sampled> out) {
  const auto n = static_cast<std::size_t>(logits.n_rows);
  require(specs.size() >= n && out.size() >= n && marked.size() >= n,
          "every row has its spec and place");
  if (n == 0) return;
  const bool grows = n > sample_rows_;
  const std::size_t rows = std::max(sample_rows_, n);  // so that what lies first stays in place

  SampleArgs a;
  a.logits = logits.data, a.stride = logits.stride, a.n_rows = logits.n_rows,
  a.n_cols = logits.n_cols;
  a.marked = view_.marked + (marked.data() - host_marks_.data());
  a.marks = view_.marked, a.n_marks = static_cast<int>(host_marks_.size());
  a.block_columns = sample_block_columns(a.n_rows, a.n_cols);
  a.n_blocks = (a.n_cols + a.block_columns - 1) / a.block_columns;
  bool bins = false, terms = false;
  for (std::size_t r = 0; r < n; ++r) {
    const SampleSpec spec = reduced(specs[r]);
    terms = terms || spec.want_probability;
    bins = bins || (has_cut(spec) && a.n_cols > kSmallColumns);
    a.choose_later = a.choose_later || spec.want_probability || has_cut(spec) || spec.min_p > 0.0f;
  }

  SampleSpec* device_specs = nullptr;
  const auto lay_out = [&](Parts parts) {
    device_specs = parts.take<SampleSpec>(rows);
    SampleScratch& s = a.scratch;
    s.arrived = parts.take<unsigned>(3 * rows);
    s.states = parts.take<SampleRowState>(rows);
    s.partials = parts.take<SamplePartial>(n * static_cast<std::size_t>(a.n_blocks));
    if (bins) {
      s.bin_count = parts.take<unsigned>(n * kSampleBins);
      s.bin_weight = parts.take<unsigned long long>(n * kSampleBins);
      s.listed = parts.take<int>(n * static_cast<std::size_t>(a.n_cols));
    }
    if (terms) {
      s.terms_stride = (a.n_cols + kTermsStep - 1) / kTermsStep * kTermsStep;
      s.terms = parts.take<float>(n * static_cast<std::size_t>(s.terms_stride));
    }
    return parts.bytes();
  };
  const std::size_t device_bytes = lay_out(Parts(nullptr));
  bool moved = false;  // no graph holds these addresses
  auto* device = sample_memory_.as<std::byte>(device_bytes, "sampling", moved);
  lay_out(Parts(device));
  a.specs = device_specs;
  if (moved || grows) {
    check(cudaMemsetAsync(a.scratch.arrived, 0, 3 * rows * sizeof(unsigned), stream_), "sampling");
    sample_specs_ = 0;
  }

  SampleSpec* sent = nullptr;
  Sampled* chosen = nullptr;
  std::uint8_t* marks_out = nullptr;
  const auto lay_out_host = [&](Parts parts) {
    sent = parts.take<SampleSpec>(rows);
    chosen = parts.take<Sampled>(rows);
    marks_out = parts.take<std::uint8_t>(host_marks_.size());
    return parts.bytes();
  };
  const std::size_t host_bytes = lay_out_host(Parts(nullptr));
  if (sample_host_bytes_ < host_bytes) {
    sample_host_ = pinned_alloc<std::byte>(host_bytes, "sampling");
    sample_host_bytes_ = host_bytes;
    sample_specs_ = 0;
  }
  lay_out_host(Parts(sample_host_.get()));
  sample_rows_ = rows;

  bool changed = sample_specs_ < n;
  for (std::size_t r = 0; r < n; ++r) {
    const SampleSpec spec = reduced(specs[r]);
    if (!changed && spec == sent[r]) continue;
    changed = true;
    sent[r] = spec;
  }
  if (changed) {
    check(cudaMemcpyAsync(device_specs, sent, n * sizeof(SampleSpec), cudaMemcpyHostToDevice,
                          stream_),
          "sampling");
    sample_specs_ = std::max(sample_specs_, n);
  }
  if (ids_of != nullptr) {
    DevicePtr<int>& table = id_tables_[{ids_of, logits.n_cols}];
    if (table == nullptr) {
      const auto n_ids = static_cast<std::size_t>(logits.n_cols);
      table = device_alloc<int>(n_ids, "the draft vocabulary");
      check(cudaMemcpyAsync(table.get(), ids_of, n_ids * sizeof(int), cudaMemcpyHostToDevice,
                            stream_),
            "uploading the draft vocabulary");
    }
    a.ids_of = table.get();
  }
  a.out = chosen, a.marks_out = marks_out;
  launch_sample(a, stream_);
  check(cudaStreamSynchronize(stream_), "running a call");
  std::copy_n(chosen, n, out.begin());
  std::copy_n(marks_out, host_marks_.size(), host_marks_.begin());
  marks_read_ = true;
}

}  // namespace bolt::cuda
