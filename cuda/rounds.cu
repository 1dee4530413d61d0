// The host's side of rounds that the device decides: memory, graphs, the announcement and the one
// wait.
#include <algorithm>
#include <cstring>

#include "core/ops/replay_key.h"
#include "cuda/rounds.h"

namespace bolt::cuda {
namespace {

constexpr std::size_t kPagesMax = std::size_t{1} << 17;
constexpr std::size_t kGraphsMax = 256;

// The announcement, on both sides; pages last, as they vary.
struct Layout {
  explicit Layout(std::byte* base) {
    Parts parts(base);
    control = parts.take<RoundControl>(1);
    level_ids = parts.take<int>(1);
    level_row_segment = parts.take<int>(1);
    level_segment = parts.take<SegmentView>(1);
    level_marks = parts.take<std::uint8_t>(1);
    level_spec = parts.take<SampleSpec>(1);
    level_draft = parts.take<Sampled>(1);
    window_ids = parts.take<int>(kWindowRowsMax);
    window_row_segment = parts.take<int>(kWindowRowsMax);
    window_segment = parts.take<SegmentView>(1);
    window_marks = parts.take<std::uint8_t>(kWindowRowsMax);
    window_specs = parts.take<SampleSpec>(kWindowRowsMax);
    bytes_before_pages = parts.bytes();
    pages = parts.take<int>(kPagesMax);
    bytes = parts.bytes();
  }
  RoundControl* control;
  int *level_ids, *level_row_segment, *window_ids, *window_row_segment, *pages;
  SegmentView *level_segment, *window_segment;
  std::uint8_t *level_marks, *window_marks;
  SampleSpec *level_spec, *window_specs;
  Sampled* level_draft;
  std::size_t bytes_before_pages, bytes;
};

}  // namespace

DeviceRounds::DeviceRounds(CudaOps& ops) : ops_(ops) {
  const std::size_t bytes = Layout(nullptr).bytes;
  memory_ = device_alloc<std::byte>(bytes, "rounds");
  host_ = pinned_alloc<std::byte>(bytes, "rounds");
  report_ = pinned_alloc<RoundReport>(1, "rounds");
  std::memset(report_.get(), 0, sizeof(RoundReport));
  const Layout device(memory_.get());
  level_.batch = {device.level_ids, device.level_row_segment, device.level_segment, device.pages,
                  device.level_marks};
  level_.specs = device.level_spec;
  window_.batch = {device.window_ids, device.window_row_segment, device.window_segment,
                   device.pages, device.window_marks};
  window_.specs = device.window_specs;
  view_ = {device.control,     device.level_ids,  device.level_segment,  device.level_spec,
           device.level_draft, device.window_ids, device.window_segment, report_.get()};
}

std::unique_ptr<DeviceRounds> DeviceRounds::make(CudaOps& ops) {
  try {
    auto rounds = std::make_unique<DeviceRounds>(ops);
    const cudaGraphExec_t probe =
        ops.capture([&] { launch_end_of_level(rounds->view_, ops.stream_); }, true);
    (void)cudaGraphExecDestroy(probe);
    return rounds;
  } catch (const Error&) {
    (void)cudaGetLastError();
    return nullptr;
  }
}

void DeviceRounds::drop_graphs() {
  for (const auto& [key, level] : levels_) (void)cudaGraphExecDestroy(level);
  for (const auto& [key, windows] : windows_) {
    for (const cudaGraphExec_t window : windows) {
      if (window != nullptr) (void)cudaGraphExecDestroy(window);
    }
  }
  levels_.clear();
  windows_.clear();
  n_graphs_ = 0;
}

void DeviceRounds::place_sampling(Side& side, Rows<const float> logits, int n_rows,
                                  const SampleSpec& spec, const int* ids_of) {
  side.needs = needs_of(reduced(spec), logits.n_cols);
  SampleArgs a;
  a.logits = logits.data, a.stride = logits.stride, a.n_cols = logits.n_cols;
  a.specs = side.specs;
  a.marked = side.batch.marked;
  a.ids_of = ops_.id_table(ids_of, logits.n_cols);
  a.choose_later = side.needs.later;
  const auto lay_out = [&](std::byte* base) {
    return lay_out_sampling(base, n_rows, n_rows, logits.n_cols, side.needs, a.scratch);
  };
  bool moved = false;
  const std::size_t bytes = lay_out(nullptr);
  auto* memory = side.scratch.as<std::byte>(bytes, "a round's sampling", moved);
  lay_out(memory);
  if (moved) {
    check(cudaMemsetAsync(memory, 0, bytes, ops_.stream_), "a round's sampling");
    ops_.drop_graphs();
  }
  side.sampling = a;
}

void DeviceRounds::announce(const RoundTask& task, const Windows& windows) {
  const Layout host(host_.get());
  RoundControl& c = *host.control;
  c.max_levels = task.max_levels;
  c.n_stop_ids = static_cast<int>(task.stop_ids.size());
  c.n_given = static_cast<int>(task.given.size());
  c.has_prices = !task.go_on.empty();
  c.levels_only = task.levels_only;
  c.n_drafts = 0;
  c.product = 1.0f;
  std::copy(task.go_on.begin(), task.go_on.end(), c.go_on);
  std::copy(task.row_prices.begin(), task.row_prices.end(), c.row_prices);
  std::copy(task.stop_ids.begin(), task.stop_ids.end(), c.stop_ids);
  std::copy(task.given.begin(), task.given.end(), c.given);
  std::copy(windows.begin(), windows.end(), c.windows);

  std::span<const int> pages;
  if (task.max_levels > 0) {
    host.level_ids[0] = task.level_ids[0];
    host.level_row_segment[0] = 0;
    host.level_segment[0] = view_of(task.level_segments[0], 0);
    host.level_marks[0] = 0;
    host.level_spec[0] = reduced(task.level_sampling);
    pages = task.level_segments[0].pages;
  }
  if (!task.levels_only) {
    std::copy(task.window_ids.begin(), task.window_ids.end(), host.window_ids);
    host.window_segment[0] = view_of(task.window_segments[0], 0);
    for (std::size_t r = 0; r < task.window_ids.size(); ++r) {
      host.window_row_segment[r] = 0;
      host.window_marks[r] = 0;
      SampleSpec spec = task.window_sampling;
      spec.position += r;
      host.window_specs[r] = reduced(spec);
    }
    pages = task.window_segments[0].pages;
  }
  std::copy(pages.begin(), pages.end(), host.pages);
  check(cudaMemcpyAsync(memory_.get(), host_.get(),
                        host.bytes_before_pages + pages.size() * sizeof(int),
                        cudaMemcpyHostToDevice, ops_.stream_),
        "announcing a round");
  if (task.max_levels > 0 && task.hidden.data != task.hidden_place.data) {
    check(cudaMemcpyAsync(task.hidden_place.data, task.hidden.data,
                          static_cast<std::size_t>(task.hidden.n_cols) * sizeof(float),
                          cudaMemcpyDeviceToDevice, ops_.stream_),
          "announcing a round");
  }
}

cudaGraphExec_t DeviceRounds::capture(Side& side, int n_rows, std::span<std::uint8_t> marks,
                                      const std::function<void()>& ops, bool is_level) {
  ops_.view_ = side.batch;
  ops_.host_marks_ = marks;
  ops_.n_rows_ = ops_.max_segment_rows_ = n_rows;
  ops_.n_segments_ = 1;
  const cudaGraphExec_t exec = ops_.capture(
      [&] {
        ops();
        SampleArgs a = side.sampling;
        a.n_rows = n_rows;
        a.block_columns = sample_block_columns(n_rows, a.n_cols);
        a.n_blocks = sample_blocks(n_rows, a.n_cols);
        if (is_level) {
          a.out = view_.level_draft;
        } else {
          a.out = view_.report->sampled;
          a.marks = side.batch.marked, a.marks_out = view_.report->marks, a.n_marks = n_rows;
        }
        launch_sample(a, ops_.stream_);
        if (is_level) launch_end_of_level(view_, ops_.stream_);
      },
      true);
  ++n_graphs_;
  return exec;
}

void DeviceRounds::run_levels(const RoundTask& task, std::uint64_t level_key,
                              std::uint64_t window_key) {
  if (levels_.find(level_key) == levels_.end()) {
    const cudaGraphExec_t level = capture(
        level_, 1, task.level_marks, [&] { task.level_ops(task.hidden_place); }, true);
    levels_[level_key] = level;
  }
  announce(task, windows_[window_key]);
  check(cudaGraphLaunch(levels_.at(level_key), ops_.stream_), "running a round");
  check(cudaStreamSynchronize(ops_.stream_), "running a round");
  check(view_.report->error, "launching a round's graphs");
}

bool DeviceRounds::run(const RoundTask& task, RoundOutcome& outcome) {
  const bool has_levels = task.max_levels > 0, has_window = !task.levels_only;
  const Segment& furthest = has_window ? task.window_segments[0] : task.level_segments[0];
  if (task.stop_ids.size() > kRoundStopsMax || furthest.pages.size() > kPagesMax) return false;
  if (has_window && task.go_on.empty() != task.row_prices.empty()) return false;
  ops_.drop_moved_graphs();
  if (n_graphs_ >= kGraphsMax) drop_graphs();
  if (has_levels) {
    place_sampling(level_, task.level_logits, 1, task.level_sampling, task.level_columns);
  }
  if (has_window) {
    place_sampling(window_, task.window_logits, kWindowRowsMax, task.window_sampling, nullptr);
  }
  const int last_position =
      furthest.first_position + (has_levels ? task.max_levels : furthest.n_rows - 1);
  ops_.max_tiles_ = grid_tiles(last_position);
  const auto key_of = [&](std::uint64_t key, const Side& side) {
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(ops_.max_tiles_), side.needs.bits()}) {
      key = key_with(key, part);
    }
    return key;
  };
  const std::uint64_t window_key = has_window ? key_of(task.window_key, window_) : 0;
  RoundReport& report = *view_.report;
  report.n_drafts = 0;
  report.n_rows = static_cast<int>(task.window_ids.size());
  report.launched = false;
  if (has_levels) {
    run_levels(task, key_of(task.level_key, level_), window_key);
  } else {
    announce(task, windows_[window_key]);
  }
  if (has_window && !report.launched) {
    const int n_rows = report.n_rows;
    const auto rows = static_cast<std::size_t>(n_rows);
    if (windows_[window_key][rows] == nullptr) {
      const cudaGraphExec_t window = capture(
          window_, n_rows, task.window_marks, [&] { task.window_ops(n_rows); }, false);
      windows_[window_key][rows] = window;
    }
    check(cudaGraphLaunch(windows_[window_key][rows], ops_.stream_), "running a round");
    check(cudaStreamSynchronize(ops_.stream_), "running a round");
  }
  outcome.drafts.assign(report.drafts, report.drafts + report.n_drafts);
  outcome.sampled.clear();
  outcome.n_verified = 0;
  if (!has_window) return true;
  outcome.n_verified = report.n_rows - 1;
  outcome.sampled.assign(report.sampled, report.sampled + report.n_rows);
  std::copy_n(report.marks, report.n_rows, task.window_marks.begin());
  // What follows may go on with the window's rows.
  ops_.view_ = window_.batch;
  ops_.host_marks_ = task.window_marks;
  return true;
}

void CudaOps::run_round(const RoundTask& task, RoundOutcome& outcome) {
  if (rounds_ && rounds_->run(task, outcome)) return;
  Ops::run_round(task, outcome);
}

}  // namespace bolt::cuda
