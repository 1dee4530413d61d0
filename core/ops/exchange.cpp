// Ranks as threads: a barrier that knows of failures and deadlines, and copies between their rows.
#include "core/ops/exchange.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "core/base/error.h"
#include "core/base/spin.h"
#include "core/pack/rank_graph.h"

namespace bolt {
namespace {

using Clock = std::chrono::steady_clock;

// A longer sleep than asked for by this much is the process's, not another rank's.
constexpr std::chrono::milliseconds kNap{100}, kNapMost{200};

[[noreturn]] void end_process(int deadline_ms) {
  std::fprintf(stderr,
               "bolt: a rank has not come to an exchange within %d ms; it is taken for lost, "
               "nothing of this run is sealed\n",
               deadline_ms);
  std::_Exit(static_cast<int>(Exit::fault));
}

}  // namespace

void HostMemory::copy(Rows<const float> from, Rows<float> to) {
  for (int r = 0; r < to.n_rows; ++r) {
    std::memcpy(to.row(r), from.row(r), static_cast<std::size_t>(to.n_cols) * sizeof(float));
  }
}
void HostMemory::read_marks(const std::uint8_t* marks, std::span<std::uint8_t> to) {
  std::copy_n(marks, to.size(), to.data());
}
void HostMemory::write_marks(std::span<const std::uint8_t> from, std::uint8_t* marks) {
  std::copy(from.begin(), from.end(), marks);
}

// --- the meeting

struct RankMeeting::State {
  int n_ranks = 1;
  std::chrono::milliseconds deadline{0};
  std::chrono::microseconds spin_time{0};
  std::atomic<std::uint64_t> n_met{0};  // meetings that all have come to
  std::atomic<bool> abandoned{false};
  std::mutex lock;
  std::condition_variable changed;
  int n_here = 0;
  std::vector<const void*> posts;
};

RankMeeting::RankMeeting(int n_ranks, bool spins, int deadline_ms)
    : state_(std::make_unique<State>()) {
  require(n_ranks >= 1 && n_ranks <= kRanksMax, "there are ranks to meet");
  state_->n_ranks = n_ranks;
  state_->deadline = std::chrono::milliseconds(deadline_ms);
  if (spins) state_->spin_time = kSpin;
  state_->posts.resize(static_cast<std::size_t>(n_ranks));
}
RankMeeting::~RankMeeting() = default;

int RankMeeting::n_ranks() const { return state_->n_ranks; }
const void*& RankMeeting::post(int rank) { return state_->posts[static_cast<std::size_t>(rank)]; }

void RankMeeting::wait() {
  State& s = *state_;
  std::uint64_t before;
  {
    const std::lock_guard<std::mutex> hold(s.lock);
    before = s.n_met.load();
    if (++s.n_here == s.n_ranks) {
      s.n_here = 0;
      s.n_met.store(before + 1);
      s.changed.notify_all();
      return;
    }
  }
  // A meeting that all came to counts, whatever happened since: so ranks that fail at the same
  // place all fail by themselves.
  const auto is_over = [&] { return s.n_met.load() != before || s.abandoned.load(); };
  (void)spin(s.spin_time, is_over);
  std::chrono::nanoseconds waited{0};
  std::unique_lock<std::mutex> hold(s.lock);
  while (!is_over()) {
    const auto start = Clock::now();
    s.changed.wait_for(hold, std::min<std::chrono::milliseconds>(kNap, s.deadline));
    waited += std::min<std::chrono::nanoseconds>(Clock::now() - start, kNapMost);
    if (waited >= s.deadline && !is_over()) end_process(static_cast<int>(s.deadline.count()));
  }
  if (s.n_met.load() != before) return;
  throw Abandoned{};
}

void RankMeeting::abandon() {
  const std::lock_guard<std::mutex> hold(state_->lock);
  state_->abandoned.store(true);
  state_->changed.notify_all();
}

void RankMeeting::resume() {
  const std::lock_guard<std::mutex> hold(state_->lock);
  require(state_->n_here == 0, "nobody waits at a meeting that goes on");
  state_->abandoned.store(false);
}

// --- the exchange

ThreadExchange::ThreadExchange(RankMeeting& meeting, int rank, std::unique_ptr<RankMemory> memory)
    : meeting_(meeting), rank_(rank), memory_(std::move(memory)) {}
ThreadExchange::~ThreadExchange() = default;

void ThreadExchange::all_gather(std::span<const SharedRows> shared) {
  meeting_.post(rank_) = shared.data();
  memory_->settle();
  meeting_.wait();
  for (int i = 1; i < n_ranks(); ++i) {
    const int other = (rank_ + i) % n_ranks();  // not all from the same one at once
    const auto* theirs = static_cast<const SharedRows*>(meeting_.post(other));
    for (std::size_t k = 0; k < shared.size(); ++k) {
      const Rows<float>& rows = shared[k].rows;
      const ColumnRange part = part_of_columns(rows.n_cols, shared[k].slice_cols, other);
      if (part.n == 0 || rows.n_rows == 0) continue;
      memory_->copy(theirs[k].rows.columns(part.first, part.n), rows.columns(part.first, part.n));
    }
  }
  memory_->settle();
  meeting_.wait();  // before what others read is written again
}

void ThreadExchange::merge_marks(std::uint8_t* marks, int n) {
  marks_.assign(static_cast<std::size_t>(n), 0);
  memory_->settle();
  memory_->read_marks(marks, marks_);
  meeting_.post(rank_) = marks_.data();
  meeting_.wait();
  merged_.assign(marks_.size(), 0);
  for (int r = 0; r < n_ranks(); ++r) {
    const auto* theirs = static_cast<const std::uint8_t*>(meeting_.post(r));
    for (std::size_t i = 0; i < merged_.size(); ++i) merged_[i] |= theirs[i];
  }
  if (merged_ != marks_) memory_->write_marks(merged_, marks);
  meeting_.wait();
}

void ThreadExchange::gather_bytes(std::span<const std::byte> own,
                                  std::vector<std::vector<std::byte>>& parts) {
  meeting_.post(rank_) = &own;
  meeting_.wait();
  parts.resize(static_cast<std::size_t>(n_ranks()));
  for (int r = 0; r < n_ranks(); ++r) {
    const auto& theirs = *static_cast<const std::span<const std::byte>*>(meeting_.post(r));
    parts[static_cast<std::size_t>(r)].assign(theirs.begin(), theirs.end());
  }
  meeting_.wait();
}

}  // namespace bolt
