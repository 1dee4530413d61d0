// read(2) behind poll(2), so that the reader can be woken; lines are cut where LF stands.
#include "cmd/line_source.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace bolt {
namespace {

constexpr std::size_t kReadBytes = 1 << 16;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string::npos;
}

}  // namespace

LineSource::LineSource(const LineParser& parser, Options options)
    : parser_(parser), options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC)) {
  require(wake_ >= 0, "an eventfd is made");
  struct stat info = {};
  if (::fstat(options_.descriptor, &info) == 0 && S_ISREG(info.st_mode)) {
    file_bytes_ = static_cast<std::uint64_t>(info.st_size);
  }
  reader_ = std::thread([this] {
    try {
      read_all();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    some_.notify_all();
  });
}

LineSource::~LineSource() {
  stop();
  reader_.join();
  ::close(wake_);
}

void LineSource::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    ready_.clear();
  }
  const std::uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
  room_.notify_all();
}

void LineSource::read_all() {
  std::array<char, kReadBytes> buffer;
  for (;;) {
    std::array<pollfd, 2> waits = {{{options_.descriptor, POLLIN, 0}, {wake_, POLLIN, 0}}};
    if (::poll(waits.data(), waits.size(), -1) < 0) {
      if (errno == EINTR) continue;
      throw Error(Exit::fault, std::string("stdin: cannot wait: ") + std::strerror(errno));
    }
    if (waits[1].revents != 0) return;
    const ssize_t n = ::read(options_.descriptor, buffer.data(), buffer.size());
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      throw Error(Exit::fault, std::string("stdin: cannot read: ") + std::strerror(errno));
    }
    if (n == 0) {
      if (!line_.empty() || over_) end_line();
      return;
    }
    std::string_view rest(buffer.data(), static_cast<std::size_t>(n));
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      const bool wanted = options_.shard.takes(number_ + 1);
      if (wanted && !over_) {
        over_ = line_.size() + part.size() > options_.max_line_bytes;
        if (over_) {
          line_ = std::string();
        } else {
          line_ += part;
        }
      } else if (!wanted && line_.empty()) {
        line_ = "\n";  // begun: its end may come without an LF
      }
      rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
      {
        const std::lock_guard lock(mutex_);
        n_bytes_ += part.size() + (end != std::string_view::npos);
        if (stopped_) return;
      }
      if (end != std::string_view::npos) end_line();
    }
  }
}

void LineSource::end_line() {
  ++number_;
  std::string bytes = std::exchange(line_, {});
  const bool over = std::exchange(over_, false);
  {
    const std::lock_guard lock(mutex_);
    n_lines_ = number_;
  }
  if (!options_.shard.takes(number_)) return;
  if (bytes.ends_with('\r')) bytes.pop_back();
  if (number_ == 1 && bytes.starts_with(kByteOrderMark)) bytes.erase(0, kByteOrderMark.size());
  if (!over && is_blank(bytes)) return;
  if (options_.is_answered && options_.is_answered(number_, bytes)) {
    const std::lock_guard lock(mutex_);
    ++n_skipped_;
    return;
  }
  if (over) {
    BatchLine line;
    line.number = number_;
    line.what = LineError{"line_too_long",
                          fmt::format("line {}: is over {} bytes; raise --max-line, or split it",
                                      number_, options_.max_line_bytes),
                          ""};
    push(std::move(line));
    return;
  }
  push(parser_.parse(number_, std::move(bytes)));
}

void LineSource::push(BatchLine line) {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [this] { return stopped_ || n_waiting_ < options_.n_ahead; });
  if (stopped_) return;
  ++n_waiting_;
  ready_.push_back(std::move(line));
  some_.notify_all();
}

bool LineSource::take(std::deque<BatchLine>& lines, int wait_ms) {
  std::unique_lock lock(mutex_);
  some_.wait_for(lock, std::chrono::milliseconds(wait_ms),
                 [this] { return ended_ || !ready_.empty(); });
  while (!ready_.empty()) {
    lines.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return !ended_;
}

void LineSource::settle(int n) {
  {
    const std::lock_guard lock(mutex_);
    n_waiting_ -= n;
  }
  room_.notify_all();
}

std::int64_t LineSource::n_lines() const {
  const std::lock_guard lock(mutex_);
  return n_lines_;
}

std::int64_t LineSource::n_skipped() const {
  const std::lock_guard lock(mutex_);
  return n_skipped_;
}

double LineSource::fraction() const {
  const std::lock_guard lock(mutex_);
  if (file_bytes_ == 0) return -1.0;
  return std::min(1.0, static_cast<double>(n_bytes_) / static_cast<double>(file_bytes_));
}

}  // namespace bolt
