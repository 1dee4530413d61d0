// What ranks of one model tell each other in the middle of a pass: columns of rows that each has
// summed, marks, and now and then bytes of the host's. Every rank makes the same calls in the same
// order. No sum crosses ranks. ThreadExchange is the threads of one process, each over memory that
// the others can read (the host's, or GPUs'); cuda/peer_exchange.cu has GPUs store into each
// other's memory, cuda/nccl_exchange.cu is NCCL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/rows.h"

namespace bolt {

// Rows whose columns [r * slice_cols, (r + 1) * slice_cols), as far as there are any, rank r has.
struct SharedRows {
  Rows<float> rows;
  int slice_cols = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  virtual const char* name() const = 0;  // how it is done, for people

  // Makes all columns of these rows every rank's. In the memory of the rank's Ops, in the order of
  // its work.
  virtual void all_gather(std::span<const SharedRows> shared) = 0;
  // A mark that one rank has set is set for all: marks [n], in the memory of the Ops.
  virtual void merge_marks(std::uint8_t* marks, int n) = 0;
  // Bytes of the host: parts[r] is what rank r gave.
  virtual void gather_bytes(std::span<const std::byte> own,
                            std::vector<std::vector<std::byte>>& parts) = 0;
  // This rank cannot go on: whoever waits for it now, or later, throws.
  virtual void abandon() = 0;
};

// How long a rank waits for another before it takes it for lost.
inline constexpr int kExchangeDeadlineMs = 10'000;

// What ThreadExchange does to memory of the rank's Ops.
class RankMemory {
 public:
  virtual ~RankMemory() = default;
  // Returns when the rank's work so far is done, so that others may read what it wrote.
  virtual void settle() = 0;
  // to = from, which is another rank's; done with the next settle().
  virtual void copy(Rows<const float> from, Rows<float> to) = 0;
  virtual void read_marks(const std::uint8_t* marks, std::span<std::uint8_t> to) = 0;
  virtual void write_marks(std::span<const std::uint8_t> from, std::uint8_t* marks) = 0;
};
class HostMemory final : public RankMemory {
 public:
  void settle() override {}
  void copy(Rows<const float> from, Rows<float> to) override;
  void read_marks(const std::uint8_t* marks, std::span<std::uint8_t> to) override;
  void write_marks(std::span<const std::uint8_t> from, std::uint8_t* marks) override;
};

// The meeting of the ranks of one process. A rank that does not come within the deadline is lost:
// one line to stderr, and the process ends with 6, so that nothing is sealed. Time in which the
// whole process stood still does not count.
class RankMeeting {
 public:
  // spins: whether waiting ranks have a core each.
  RankMeeting(int n_ranks, bool spins, int deadline_ms = kExchangeDeadlineMs);
  ~RankMeeting();
  RankMeeting(const RankMeeting&) = delete;
  RankMeeting& operator=(const RankMeeting&) = delete;

  int n_ranks() const;
  // Returns when all ranks have come. Throws Abandoned if one never will.
  void wait();
  void abandon();
  // After every rank has abandoned the meeting by itself, at the same place: it may go on.
  void resume();

  // A place for each rank to put what the others read between two waits.
  const void*& post(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Thrown by a rank that waits for one that has failed; the failure itself is what is told.
struct Abandoned {};

class ThreadExchange : public Exchange {
 public:
  ThreadExchange(RankMeeting& meeting, int rank, std::unique_ptr<RankMemory> memory);
  ~ThreadExchange() override;
  int rank() const override { return rank_; }
  int n_ranks() const override { return meeting_.n_ranks(); }
  const char* name() const override { return "copies"; }
  void all_gather(std::span<const SharedRows> shared) override;
  void merge_marks(std::uint8_t* marks, int n) override;
  void gather_bytes(std::span<const std::byte> own,
                    std::vector<std::vector<std::byte>>& parts) override;
  void abandon() override { meeting_.abandon(); }

 private:
  RankMeeting& meeting_;
  const int rank_;
  const std::unique_ptr<RankMemory> memory_;
  std::vector<std::uint8_t> marks_, merged_;
};

}  // namespace bolt
