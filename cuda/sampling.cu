// The host's side of choosing tokens on the device: specs go up when they changed; choices and the
// call's marks are written to pinned memory by the kernels (sample.cu), so that a call is their
// launches and one wait.
#include <algorithm>
#include <cmath>

#include "cuda/ops.h"
#include "cuda/parts.h"
#include "cuda/sample.cuh"

namespace bolt::cuda {

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

SampleNeeds needs_of(const SampleSpec& spec, int n_cols) {
  return {has_cut(spec) && n_cols > kSmallColumns, spec.want_probability,
          spec.want_probability || has_cut(spec) || spec.min_p > 0.0f};
}

int sample_blocks(int n_rows, int n_cols) {
  const int columns = sample_block_columns(n_rows, n_cols);
  return (n_cols + columns - 1) / columns;
}

std::size_t lay_out_sampling(std::byte* base, int n_held, int n_rows, int n_cols,
                             const SampleNeeds& needs, SampleScratch& s) {
  const auto held = static_cast<std::size_t>(n_held), n = static_cast<std::size_t>(n_rows);
  // Fewer rows may have more blocks, each.
  std::size_t n_partials = 0;
  for (int r = 1; r <= n_rows; ++r) {
    n_partials = std::max(n_partials, static_cast<std::size_t>(r * sample_blocks(r, n_cols)));
  }
  Parts parts(base);
  s.arrived = parts.take<unsigned>(3 * held);
  s.states = parts.take<SampleRowState>(held);
  s.partials = parts.take<SamplePartial>(n_partials);
  if (needs.bins) {
    s.bin_count = parts.take<unsigned>(n * kSampleBins);
    s.bin_weight = parts.take<unsigned long long>(n * kSampleBins);
    s.listed = parts.take<int>(n * static_cast<std::size_t>(n_cols));
  }
  if (needs.terms) {
    s.terms_stride = (n_cols + kTermsStep - 1) / kTermsStep * kTermsStep;
    s.terms = parts.take<float>(n * static_cast<std::size_t>(s.terms_stride));
  }
  return parts.bytes();
}

const int* CudaOps::id_table(const int* ids_of, int n_cols) {
  if (ids_of == nullptr) return nullptr;
  DevicePtr<int>& table = id_tables_[{ids_of, n_cols}];
  if (table == nullptr) {
    const auto n_ids = static_cast<std::size_t>(n_cols);
    table = device_alloc<int>(n_ids, "the draft vocabulary");
    check(
        cudaMemcpyAsync(table.get(), ids_of, n_ids * sizeof(int), cudaMemcpyHostToDevice, stream_),
        "uploading the draft vocabulary");
  }
  return table.get();
}

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
  a.n_blocks = sample_blocks(a.n_rows, a.n_cols);
  SampleNeeds needs;
  for (std::size_t r = 0; r < n; ++r) needs |= needs_of(reduced(specs[r]), a.n_cols);
  a.choose_later = needs.later;

  const std::size_t spec_bytes = aligned(rows * sizeof(SampleSpec));
  const auto lay_out = [&](std::byte* base) {
    return lay_out_sampling(base, static_cast<int>(rows), a.n_rows, a.n_cols, needs, a.scratch);
  };
  bool moved = false;  // no graph holds these addresses
  auto* device = sample_memory_.as<std::byte>(spec_bytes + lay_out(nullptr), "sampling", moved);
  lay_out(device + spec_bytes);
  auto* const device_specs = reinterpret_cast<SampleSpec*>(device);
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
  a.ids_of = id_table(ids_of, logits.n_cols);
  a.out = chosen, a.marks_out = marks_out;
  launch_sample(a, stream_);
  check(cudaStreamSynchronize(stream_), "running a call");
  std::copy_n(chosen, n, out.begin());
  std::copy_n(marks_out, host_marks_.size(), host_marks_.begin());
  marks_read_ = true;
}

}  // namespace bolt::cuda
