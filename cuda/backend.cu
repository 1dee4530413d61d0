// Opening a GPU: what the driver offers, refusals that say what to do, and the upload of the
// weights.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/engine/backend.h"
#include "core/pack/graph_walk.h"
#include "core/pack/tile_codec.h"
#include "core/pack/tiles.h"
#include "cuda/check.h"
#include "cuda/ops.h"
#include "cuda/ranks.h"
#include "cuda/uploads.h"

namespace bolt {
namespace cuda {
namespace {

constexpr std::size_t kUploadBytes = std::size_t{32} << 20;
constexpr int kOldestArch = 80;

std::mutex uploaded_lock;  // ranks upload at the same time
Uploads uploaded;

std::string arch_name(const cudaDeviceProp& p) {
  return "sm_" + std::to_string(p.major * 10 + p.minor);
}

std::string cuda_version(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why no GPU can be used.
std::string reason_of(cudaError_t status) {
  if (status == cudaErrorNoDevice) return "no NVIDIA GPU is visible";
  if (status != cudaErrorInsufficientDriver) return cudaGetErrorString(status);
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();
  if (driver == 0) return "no NVIDIA driver is installed";
  return "the NVIDIA driver is too old: it is for CUDA " + cuda_version(driver) +
         ", this build needs one for " + cuda_version(runtime / 1000 * 1000) + " or later";
}

// Bytes of all weights, a tied one once; of its linears those that are larger, as `as`.
std::uint64_t weight_bytes(const Graph& graph, std::optional<Format> as) {
  std::set<const std::byte*> seen;
  std::uint64_t bytes = 0;
  each_weight(graph, [&](const std::string&, const Weight& w) {
    if (!seen.insert(w.data).second) return;
    std::uint64_t n = w.bytes;
    if (as && w.layout == Layout::tiles) {
      n = std::min(n, static_cast<std::uint64_t>(w.n_matrices) *
                          packed_matrix_bytes(*as, w.n_rows, w.n_cols));
    }
    bytes += aligned(n);
    if (w.gains != nullptr) bytes += aligned(static_cast<std::size_t>(w.n_matrices) * 4);
  });
  return bytes;
}

// What of the package's weights would fit.
std::string what_fits(const Graph& graph, std::uint64_t free) {
  for (const Format format : {Format::q8, Format::nvfp4}) {
    const std::uint64_t bytes = weight_bytes(graph, format);
    if (bytes > free) continue;
    return "in " + std::string(format_name(format)) + " they would take " + size_text(bytes) +
           " (bolt convert --quant " + std::string(format_name(format)) + ")";
  }
  return "no format of bolt's makes them fit";
}

// Copies host memory through two pinned buffers, one filled while the other travels.
class Uploader {
 public:
  explicit Uploader(cudaStream_t stream) : stream_(stream) {
    for (Buffer& b : buffers_) {
      b.memory = pinned_alloc<std::byte>(kUploadBytes, "upload buffers");
      check(cudaEventCreateWithFlags(&b.sent, cudaEventDisableTiming), "creating an event");
    }
  }
  ~Uploader() {
    for (Buffer& b : buffers_) (void)cudaEventDestroy(b.sent);
  }
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  void copy(const std::byte* from, std::byte* to, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes; done += kUploadBytes) {
      Buffer& b = buffers_[next_];
      next_ ^= 1;
      const std::size_t n = std::min<std::uint64_t>(kUploadBytes, bytes - done);
      check(cudaEventSynchronize(b.sent), "uploading weights");
      std::memcpy(b.memory.get(), from + done, n);
      check(cudaMemcpyAsync(to + done, b.memory.get(), n, cudaMemcpyHostToDevice, stream_),
            "uploading weights");
      check(cudaEventRecord(b.sent, stream_), "uploading weights");
    }
  }

 private:
  struct Buffer {
    PinnedPtr<std::byte> memory;
    cudaEvent_t sent = nullptr;
  };
  cudaStream_t stream_;
  Buffer buffers_[2];
  int next_ = 0;
};

}  // namespace

Uploads uploads() {
  const std::lock_guard<std::mutex> hold(uploaded_lock);
  return uploaded;
}

Graph CudaOps::place(const Graph& host, const Pieces& pieces) {
  Graph graph = host;
  const std::uint64_t needed = weight_bytes(graph, std::nullopt), free = free_bytes();
  if (needed > free) {
    throw Error(Exit::fault, "cuda: the weights need " + size_text(needed) + ", the GPU has " +
                                 size_text(free) + " free; " + what_fits(graph, free) +
                                 ", or use --device cpu");
  }
  memory_.push_back(device_alloc<std::byte>(needed, "weights"));
  std::byte* next = memory_.back().get();
  Uploader uploader(stream_);
  std::map<const std::byte*, std::byte*> placed;  // a tied weight is uploaded once
  const auto put = [&](const std::byte* from, std::uint64_t bytes) {
    std::byte*& to = placed[from];
    if (to == nullptr) {
      to = next;
      if (const auto parts = pieces.find(from); parts != pieces.end()) {
        std::byte* part_to = to;
        for (const Piece& part : parts->second) {
          uploader.copy(part.from, part_to, part.bytes);
          part_to += part.bytes;
        }
      } else {
        uploader.copy(from, to, bytes);
      }
      next += aligned(bytes);
      const std::lock_guard<std::mutex> hold(uploaded_lock);
      ++uploaded.n;
      uploaded.bytes += bytes;
    }
    return to;
  };
  each_weight(graph, [&](const std::string&, Weight& w) {
    w.data = put(w.data, w.bytes);
    if (w.gains == nullptr) return;
    w.gains = reinterpret_cast<const float*>(
        put(reinterpret_cast<const std::byte*>(w.gains),
            static_cast<std::uint64_t>(w.n_matrices) * sizeof(float)));
  });
  check(cudaStreamSynchronize(stream_), "uploading weights");
  return graph;
}

}  // namespace cuda

bool built_with_cuda() { return true; }

std::vector<CudaDevice> cuda_devices(std::string* why) {
  std::vector<CudaDevice> devices;
  int n = 0;
  const cudaError_t status = cudaGetDeviceCount(&n);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    if (why != nullptr) *why = cuda::reason_of(status);
    return devices;
  }
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    devices.push_back({i, p.name, cuda::arch_name(p), p.totalGlobalMem});
  }
  return devices;
}

Backend open_cuda(const Graph& graph, int ordinal, bool graphs) {
  return cuda::open_part(graph, {}, ordinal, {graphs, graphs});
}

Backend cuda::open_part(const Graph& graph, const Pieces& pieces, int ordinal, CudaGraphs graphs) {
  std::string why;
  const std::vector<CudaDevice> devices = cuda_devices(&why);
  if (devices.empty()) {
    throw Error(Exit::fault,
                "--device cuda: " + (why.empty() ? std::string("no GPU is visible") : why) +
                    "; use --device cpu");
  }
  if (ordinal >= static_cast<int>(devices.size())) {
    throw Error(Exit::usage, "--device cuda:" + std::to_string(ordinal) + ": there are " +
                                 std::to_string(devices.size()) + " GPUs, counted from 0");
  }
  cudaDeviceProp p{};
  cuda::check(cudaGetDeviceProperties(&p, ordinal), "asking for the device");
  if (p.major * 10 + p.minor < cuda::kOldestArch) {
    throw Error(Exit::fault, "--device cuda: " + std::string(p.name) + " is " + cuda::arch_name(p) +
                                 ", at least sm_80 is needed; use --device cpu");
  }
  auto ops = std::make_unique<cuda::CudaOps>(ordinal, graphs);
  Graph placed = ops->place(graph, pieces);
  return {std::move(ops),     std::move(placed),     p.name,
          cuda::arch_name(p), p.multiProcessorCount, ordinal};
}

}  // namespace bolt
