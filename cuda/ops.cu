// What every op on the device shares: memory, the call's rows, captured graphs; and the thin
// launches of the row-wise ops. Mixers are mixers.cu, sampling is sampling.cu.
#include <algorithm>
#include <cstring>

#include "core/ops/replay_key.h"
#include "cuda/linear.cuh"
#include "cuda/operand.h"
#include "cuda/ops.h"
#include "cuda/rounds.h"
#include "cuda/rows.cuh"

namespace bolt::cuda {
namespace {

constexpr int kCapturedRowsMax = 64;  // prompt chunks come in too many sizes to keep
constexpr std::size_t kCapturedMax = 512;

}  // namespace

CudaOps::CudaOps(int device, CudaGraphs graphs) : device_(device), graphs_(graphs.calls) {
  check(cudaSetDevice(device), "choosing the device");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  n_routed_ = static_cast<unsigned*>(allocate(sizeof(unsigned), "routed rows"));
  for (Staging& s : staging_) {
    check(cudaEventCreateWithFlags(&s.used, cudaEventDisableTiming), "creating an event");
  }
  if (graphs.rounds) rounds_ = DeviceRounds::make(*this);
}

CudaOps::~CudaOps() {
  (void)cudaStreamSynchronize(stream_);
  drop_graphs();
  for (Staging& s : staging_) (void)cudaEventDestroy(s.used);
  (void)cudaStreamDestroy(stream_);
}

void* CudaOps::allocate(std::uint64_t bytes, const char* purpose) {
  memory_.push_back(device_alloc<std::byte>(bytes, purpose));
  check(cudaMemsetAsync(memory_.back().get(), 0, bytes, stream_), purpose);
  return memory_.back().get();
}

std::uint64_t CudaOps::free_bytes() const {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return free;
}

void CudaOps::read(const float* from, std::span<float> to) {
  check(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream_),
        "reading");
  check(cudaStreamSynchronize(stream_), "reading");
}

void CudaOps::write(const void* from, std::uint64_t bytes, void* to) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "writing");
  check(cudaStreamSynchronize(stream_), "writing");
}

std::uint8_t* CudaOps::marks(const Batch& batch) const {
  return view_.marked + (batch.marked.data() - host_marks_.data());
}

void CudaOps::begin(const Batch& batch, std::span<const int> ids) {
  host_marks_ = batch.marked;
  marks_read_ = false;
  upload_batch(batch.segments, ids, batch.n_rows);
}

// What is announced of a call, on both sides: one copy takes it up. Places depend on the capacities
// alone, so that captured graphs find theirs again.
struct CudaOps::Announcement {
  Announcement(std::byte* base, bool is_large) {
    const std::size_t n_rows = is_large ? kRows : kCapturedRowsMax;
    Parts parts(base);
    ids = parts.take<int>(n_rows);
    row_segment = parts.take<int>(n_rows);
    segments = parts.take<SegmentView>(std::min(n_rows, kSegments));
    marks = parts.take<std::uint8_t>(n_rows);
    bytes_before_pages = parts.bytes();
    pages = parts.take<int>(kPages);
    bytes = parts.bytes();
  }
  static constexpr std::size_t kRows = 8192, kSegments = 256, kPages = 1 << 17;
  int *ids, *row_segment, *pages;
  SegmentView* segments;
  std::uint8_t* marks;
  std::size_t bytes_before_pages, bytes;
};

void CudaOps::upload_batch(std::span<const Segment> segments, std::span<const int> ids,
                           int n_rows) {
  const bool is_large = n_rows > kCapturedRowsMax;
  const auto rows = static_cast<std::size_t>(n_rows);
  std::size_t n_pages = 0;
  for (const Segment& s : segments) n_pages += s.pages.size();
  if (rows > Announcement::kRows || segments.size() > Announcement::kSegments ||
      n_pages > Announcement::kPages) {
    throw Error(Exit::usage,
                "a call of " + std::to_string(n_rows) + " rows and " + std::to_string(n_pages) +
                    " pages is larger than the device takes at once (8192 rows, 131072 "
                    "pages); lower --chunk or --context");
  }
  bool moved = false;
  auto* const memory =
      batch_memory_.as<std::byte>(Announcement(nullptr, true).bytes, "the call's rows", moved);
  if (moved) drop_graphs();
  const Announcement device(memory, is_large);

  Staging& staging = staging_[static_cast<std::size_t>(next_staging_)];
  next_staging_ = (next_staging_ + 1) % static_cast<int>(staging_.size());
  check(cudaEventSynchronize(staging.used), "waiting for an upload");
  const std::size_t bytes = device.bytes_before_pages + n_pages * sizeof(int);
  if (staging.bytes < bytes) {
    staging.bytes = aligned(bytes + bytes / 2);
    staging.memory = pinned_alloc<std::byte>(staging.bytes, "staging");
  }
  const Announcement host(staging.memory.get(), is_large);
  std::copy(ids.begin(), ids.end(), host.ids);
  std::fill_n(host.marks, rows, std::uint8_t{0});
  int first_page = 0;
  max_segment_rows_ = 0;
  int last_position = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    host.segments[i] = view_of(s, first_page);
    std::copy(s.pages.begin(), s.pages.end(), host.pages + first_page);
    first_page += static_cast<int>(s.pages.size());
    std::fill_n(host.row_segment + s.first_row, s.n_rows, static_cast<int>(i));
    max_segment_rows_ = std::max(max_segment_rows_, s.n_rows);
    last_position = std::max(last_position, s.first_position + s.n_live - 1);
  }
  check(cudaMemcpyAsync(memory, staging.memory.get(), bytes, cudaMemcpyHostToDevice, stream_),
        "announcing a call");
  check(cudaEventRecord(staging.used, stream_), "announcing a call");

  n_rows_ = n_rows;
  n_segments_ = static_cast<int>(segments.size());
  max_tiles_ = grid_tiles(last_position);
  view_ = {device.ids, device.row_segment, device.segments, device.pages, device.marks};
}

void CudaOps::drop_graphs() {
  for (auto& [key, graph] : captured_) (void)cudaGraphExecDestroy(graph);
  captured_.clear();
  if (rounds_) rounds_->drop_graphs();
}

void CudaOps::drop_moved_graphs() {
  if (!moved_) return;
  drop_graphs();
  moved_ = false;
}

cudaGraphExec_t CudaOps::capture(const std::function<void()>& ops, bool from_device) {
  for (;;) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "capturing a call");
    cudaGraph_t graph = nullptr;
    try {
      ops();
    } catch (...) {
      (void)cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) (void)cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "capturing a call");
    cudaGraphExec_t exec = nullptr;
    const cudaError_t status =
        cudaGraphInstantiate(&exec, graph, from_device ? cudaGraphInstantiateFlagDeviceLaunch : 0);
    (void)cudaGraphDestroy(graph);
    check(status, "instantiating a captured call");
    if (!moved_) {
      if (from_device) check(cudaGraphUpload(exec, stream_), "uploading a captured call");
      return exec;
    }
    (void)cudaGraphExecDestroy(exec);  // it holds an old address; next time the buffers suffice
    drop_moved_graphs();
  }
}

void CudaOps::replay(std::uint64_t key, const std::function<void()>& ops) {
  if (!graphs_ || n_rows_ > kCapturedRowsMax) return ops();
  key = key_with(key, static_cast<std::uint64_t>(max_tiles_));
  drop_moved_graphs();
  auto found = captured_.find(key);
  if (found == captured_.end()) {
    if (++seen_[key] < 2) return ops();
    if (captured_.size() >= kCapturedMax) drop_graphs();
    const cudaGraphExec_t exec = capture(ops, false);
    found = captured_.emplace(key, exec).first;
  }
  check(cudaGraphLaunch(found->second, stream_), "replaying a call");
}

std::unique_ptr<Operand> CudaOps::operand(int max_rows, int max_cols) {
  return std::make_unique<CudaOperand>(max_rows, max_cols);
}

void CudaOps::embed(const Weight& table, std::span<const int> ids, Rows<float> x) {
  require(static_cast<int>(ids.size()) == x.n_rows && x.n_rows <= n_rows_, "ids were announced");
  launch_embed(table, view_.ids, x, stream_);
}

void CudaOps::add(Rows<const float> x, Rows<float> y) { launch_add(x, y, stream_); }

void CudaOps::rms_norm(const Batch& batch, Rows<const float> x, const float* w, float eps,
                       int group, Rows<float> y) {
  norm(batch, x, w, eps, group, y, {});
}

void CudaOps::norm(const Batch& batch, Rows<const float> x, const float* w, float eps, int group,
                   Rows<float> y, const QuantOut& quantised) {
  NormArgs a;
  a.x = x.data, a.x_stride = x.stride;
  a.w = w, a.y = y.data, a.y_stride = y.stride;
  a.n_rows = x.n_rows, a.n_cols = x.n_cols, a.group = group, a.eps = eps;
  a.marked = marks(batch);
  a.quantised = quantised;
  launch_norm(a, stream_);
}

void CudaOps::norm_quantize(const Batch& batch, Rows<const float> x, const float* w, float eps,
                            Rows<float> y, bool integer, Operand& operand) {
  norm(batch, x, w, eps, x.n_cols, y, as_device(operand).hold(y, integer));
}

void CudaOps::quantize(Rows<const float> x, bool integer, Operand& operand) {
  const QuantOut out = as_device(operand).hold(x, integer);
  if (!integer) return;
  QuantArgs a;
  a.x = x.data, a.x_stride = x.stride, a.n_rows = x.n_rows, a.n_cols = x.n_cols;
  a.slots = out.slots, a.halves = out.halves, a.scale = out.scale;
  launch_quantize(a, stream_);
}

LinearArgs CudaOps::linear_args(const Batch& batch, const Operand& x, const LinearTask& call) {
  const CudaOperand& o = as_device(x);
  const Weight& w = *call.w;
  require(w.layout == Layout::tiles && o.n_cols() == w.n_cols && call.y.n_cols >= w.n_rows,
          "a linear's shapes agree");
  require(o.is_integer() || !is_integer(w.format), "integer formats take quantised rows");
  LinearArgs a;
  a.weights = reinterpret_cast<const std::uint8_t*>(w.data);
  a.gains = w.gains;
  a.matrix_bytes = static_cast<std::int64_t>(w.matrix_bytes());
  a.n_groups = n_groups(w.n_cols), a.n_cols = w.n_cols, a.n_out = w.n_rows;
  a.n_rows = call.y.n_rows;
  a.x = o.view();
  a.y = call.y.data, a.y_stride = call.y.stride;
  a.epilogue = call.epilogue;
  a.marked = marks(batch);
  return a;
}

void CudaOps::linear(const Batch& batch, const Operand& x, const Weight& w, Epilogue epilogue,
                     Rows<float> y) {
  launch_linear(linear_args(batch, x, {&w, epilogue, y}), w.format, stream_);
}

// Few rows: the calls run at once.
void CudaOps::linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls) {
  if (batch.n_rows > kFewRows) return Ops::linears(batch, x, calls);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    LinearArgs a = linear_args(batch, x, calls[i]);
    if (calls[i].quantised != nullptr) {
      a.quantised = as_device(*calls[i].quantised).hold(calls[i].y, true);
    }
    if (i > 0) a.order = Order::follower;
    launch_linear(a, calls[i].w->format, stream_);
  }
}

void CudaOps::finish(const Batch& batch) {
  if (marks_read_) return;  // sampling brought them along
  check(cudaMemcpyAsync(batch.marked.data(), marks(batch), batch.marked.size(),
                        cudaMemcpyDeviceToHost, stream_),
        "reading marks");
  check(cudaStreamSynchronize(stream_), "running a call");
}

}  // namespace bolt::cuda
