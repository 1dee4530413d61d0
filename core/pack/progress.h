// How far long work on files has come.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>

namespace bolt {

// Bytes done of bytes to do; from any thread, at most ten times a second and once at the end.
using WorkProgress =
    std::function<void(const char* phase, std::uint64_t done, std::uint64_t total)>;

// Counts bytes from several threads and calls the report when it is due.
class Meter {
 public:
  Meter(const WorkProgress& report, const char* phase, std::uint64_t total)
      : report_(report), phase_(phase), total_(total) {}

  void add(std::uint64_t bytes) {
    const std::uint64_t done = done_.fetch_add(bytes) + bytes;
    if (!report_) return;
    const std::int64_t now =
        std::chrono::steady_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
    std::int64_t due = due_.load();
    if (done < total_ && now < due) return;
    if (due_.compare_exchange_strong(due, now + 100)) report_(phase_, done, total_);
  }

 private:
  const WorkProgress& report_;
  const char* phase_;
  const std::uint64_t total_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::int64_t> due_{0};
};

}  // namespace bolt
