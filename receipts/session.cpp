// A group is appended whole or, where the disk says no, cut off again, so a pack holds receipts
// only.
#include "receipts/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "receipts/attachments.h"
#include "receipts/body.h"
#include "receipts/library.h"
#include "receipts/seal.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

PackWriter::PackWriter(SessionFacts facts, const Where& where) : facts_(std::move(facts)) {
  facts_.totals.reset();
  session_ = write_session(facts_, where);
  path_ = session_.path;
  if (is_receipt_name(path_)) path_.resize(path_.size() - std::strlen(kReceiptSuffix));
  path_ += kPackSuffix;
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
  if (fd_ < 0) {
    throw Failure(Status::fault,
                  fmt::format("{}: cannot make the pack: {}", path_, std::strerror(errno)));
  }
}

PackWriter::~PackWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void PackWriter::append(const std::string& bytes, bool sync) {
  const off_t start = ::lseek(fd_, 0, SEEK_END);
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      const int error = errno;
      if (start >= 0) (void)!::ftruncate(fd_, start);
      throw Failure(Status::fault,
                    fmt::format("{}: cannot append: {}", path_, std::strerror(error)));
    }
  }
  constexpr std::int64_t kSyncEvery = 1000000000;
  if (sync || now_ns() - last_sync_ns_ > kSyncEvery) {
    if (::fdatasync(fd_) != 0 && errno != EINVAL) {
      throw Failure(Status::fault, fmt::format("{}: cannot sync: {}", path_, std::strerror(errno)));
    }
    last_sync_ns_ = now_ns();
  }
}

Written PackWriter::add(RunFacts& facts) {
  facts.common.parents.insert(facts.common.parents.begin(), {"session", session_.rid});
  fill_in(facts);
  const Value body = run_body(facts);
  const std::string rid = rid_of(canonical(body));
  const std::string bytes = sealed_lines(body, attachment_lines(facts, rid));
  const std::lock_guard lock(mutex_);
  append(bytes, false);
  rids_.emplace_back(facts.request ? facts.request->line : n_, *digest_from_hex(rid));
  ++n_;
  return {rid, fmt::format("{}#{}", path_, n_)};
}

void PackWriter::add_failed(std::int64_t line) {
  const std::lock_guard lock(mutex_);
  ++n_failed_;
  if (failed_lines_.size() < kFailedLinesMax) failed_lines_.push_back(line);
}

Written PackWriter::close() {
  const std::lock_guard lock(mutex_);
  std::sort(failed_lines_.begin(), failed_lines_.end());
  std::stable_sort(rids_.begin(), rids_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  SessionFacts facts = facts_;
  facts.common.run_id.clear();
  facts.common.time.utc.clear();
  facts.common.parents = {{"session", session_.rid}};
  fill_in(facts.common);
  SessionTotals& totals = facts.totals.emplace();
  totals.lines = n_ + n_failed_;
  totals.answered = n_;
  totals.failed = n_failed_;
  totals.failed_lines = failed_lines_;
  for (const auto& [line, rid] : rids_) totals.rids.push_back(hex(rid));
  const Value body = session_body(facts);
  append(sealed_lines(body, ""), true);
  ::close(std::exchange(fd_, -1));
  return {rid_of(canonical(body)), fmt::format("{}#{}", path_, n_ + 1)};
}

}  // namespace bolt::receipts
