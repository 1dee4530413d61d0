// The host's side of choosing tokens on the device: the rows' specs go up, the choices and the
// call's marks come down. The kernels are sample.cu.
#include <cstring>

#include "cuda/ops.h"
#include "cuda/sample.cuh"

namespace bolt::cuda {

void CudaOps::sample(Rows<const float> logits, std::span<const SampleSpec> specs,
                     std::span<const std::uint8_t> marked, const int* ids_of,
                     std::span<Sampled> out) {
  const auto n = static_cast<std::size_t>(logits.n_rows);
  const std::size_t specs_bytes = aligned(n * sizeof(SampleSpec)),
                    out_bytes = aligned(n * sizeof(Sampled)), marks_bytes = host_marks_.size();
  bool moved = false;  // no graph holds these addresses
  auto* device = sample_memory_.as<std::byte>(specs_bytes + out_bytes, "sampling", moved);
  if (sample_host_bytes_ < specs_bytes + out_bytes + marks_bytes) {
    sample_host_bytes_ = specs_bytes + out_bytes + marks_bytes;
    sample_host_ = pinned_alloc<std::byte>(sample_host_bytes_, "sampling");
  }
  std::memcpy(sample_host_.get(), specs.data(), n * sizeof(SampleSpec));
  check(cudaMemcpyAsync(device, sample_host_.get(), specs_bytes, cudaMemcpyHostToDevice, stream_),
        "sampling");
  SampleArgs a;
  a.logits = logits.data, a.stride = logits.stride, a.n_rows = logits.n_rows,
  a.n_cols = logits.n_cols;
  a.specs = reinterpret_cast<const SampleSpec*>(device);
  a.marked = view_.marked + (marked.data() - host_marks_.data());
  if (ids_of != nullptr) {
    DevicePtr<int>& table = id_tables_[ids_of];
    if (table == nullptr) {
      table = device_alloc<int>(static_cast<std::size_t>(logits.n_cols), "the draft vocabulary");
      check(cudaMemcpyAsync(table.get(), ids_of,
                            static_cast<std::size_t>(logits.n_cols) * sizeof(int),
                            cudaMemcpyHostToDevice, stream_),
            "uploading the draft vocabulary");
    }
    a.ids_of = table.get();
  }
  a.out = reinterpret_cast<Sampled*>(device + specs_bytes);
  launch_sample(a, stream_);
  std::byte* host_out = sample_host_.get() + specs_bytes;
  check(cudaMemcpyAsync(host_out, a.out, out_bytes, cudaMemcpyDeviceToHost, stream_), "sampling");
  check(cudaMemcpyAsync(host_out + out_bytes, view_.marked, marks_bytes, cudaMemcpyDeviceToHost,
                        stream_),
        "sampling");
  check(cudaStreamSynchronize(stream_), "running a call");
  std::memcpy(out.data(), host_out, n * sizeof(Sampled));
  std::memcpy(host_marks_.data(), host_out + out_bytes, marks_bytes);
  marks_read_ = true;
}

}  // namespace bolt::cuda
