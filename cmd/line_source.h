// The lines of a batch, read and parsed on a thread of their own, a stated number ahead of the
// engine and no further: memory does not grow with the input.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "cmd/batch_line.h"

namespace bolt {

// Which lines are this process's: those whose number is index modulo count, lines counted from 1.
struct Shard {
  std::int64_t index = 1, count = 1;  // 1 <= index <= count
  bool takes(std::int64_t line) const { return (line - index) % count == 0; }
};

class LineSource {
 public:
  struct Options {
    int descriptor = 0;
    std::size_t max_line_bytes = std::size_t{16} << 20;
    Shard shard;
    int n_ahead = 4;  // lines that may wait
    // Whether a line was answered before (number, bytes); may throw Error, which ends the source.
    std::function<bool(std::int64_t, const std::string&)> is_answered = {};
  };

  // Starts to read. The parser must outlive the source.
  LineSource(const LineParser& parser, Options options);
  ~LineSource();
  LineSource(const LineSource&) = delete;
  LineSource& operator=(const LineSource&) = delete;

  // Moves what has been read to `lines`; waits up to wait_ms where nothing has. Rethrows what ended
  // the reading, I/O errors say. False once the input has ended and all of it was handed out.
  bool take(std::deque<BatchLine>& lines, int wait_ms);
  // n lines that were taken no longer wait: as many more may be read.
  void settle(int n = 1);
  // No further line is read; what was read and not taken is dropped.
  void stop();

  std::int64_t n_lines() const;    // read so far, of every shard
  std::int64_t n_skipped() const;  // answered before
  // How much of a regular file lies behind, 0 to 1; negative for a pipe.
  double fraction() const;

 private:
  void read_all();
  void end_line();
  void push(BatchLine line);

  const LineParser& parser_;
  const Options options_;
  int wake_ = -1;                 // an eventfd that stop() writes
  std::uint64_t file_bytes_ = 0;  // of a regular file
  std::string line_;              // of the reader's thread, as far as it has come
  bool over_ = false;             // line_ passed the cap and is no longer kept
  std::int64_t number_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable some_, room_;
  std::deque<BatchLine> ready_;
  int n_waiting_ = 0;
  bool ended_ = false, stopped_ = false;
  std::exception_ptr failure_;
  std::int64_t n_lines_ = 0, n_skipped_ = 0;
  std::uint64_t n_bytes_ = 0;

  std::thread reader_;
};

}  // namespace bolt
