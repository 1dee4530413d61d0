// A body's line always starts with its _type, so the groups of a pack need no other marks.
#include "receipts/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>

#include "receipts/display.h"
#include "receipts/fields.h"
#include "receipts/seal.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

constexpr std::string_view kBodyStart = R"({"_type":"bolt.receipt/)";
constexpr std::string_view kAttachmentStart = R"({"_type":"bolt.attachment/)";
constexpr std::string_view kEnvelopeStart = R"({"payload":)";

}  // namespace

struct LineReader::Source {
  int fd = -1;
  bool owned = false;
  std::string path;
  std::string buffer;
  std::string_view text;  // what is not taken yet: of the buffer or of the caller's memory
  ~Source() {
    if (owned) ::close(fd);
  }
};

LineReader::LineReader() : source_(std::make_unique<Source>()) {}
LineReader::LineReader(LineReader&&) noexcept = default;
LineReader::~LineReader() = default;

LineReader LineReader::open(const std::string& path) {
  LineReader reader;
  Source& source = *reader.source_;
  source.path = path;
  if (path == "-") {
    source.fd = STDIN_FILENO;
    source.path = "stdin";
    return reader;
  }
  // Without O_NONBLOCK a FIFO that nobody writes to would hang the check.
  source.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (source.fd < 0) {
    const Status status = errno == ENOENT || errno == ENOTDIR ? Status::unmet : Status::fault;
    throw Failure(status, fmt::format("{}: cannot open: {}", path, std::strerror(errno)));
  }
  source.owned = true;
  struct stat info {};
  if (::fstat(source.fd, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode))) {
    throw Failure(Status::malformed, path + ": no file that a receipt could be in");
  }
  if (S_ISFIFO(info.st_mode)) (void)::fcntl(source.fd, F_SETFL, O_RDONLY);
  return reader;
}

LineReader LineReader::over(std::string_view text) {
  LineReader reader;
  reader.source_->text = text;
  return reader;
}

// Appends to the buffer; false at the end of the file.
bool LineReader::fill() {
  Source& source = *source_;
  if (source.fd < 0) return false;
  constexpr std::size_t kChunk = 1 << 16;
  std::string rest(source.text);
  const std::size_t had = rest.size();
  rest.resize(had + std::max(kChunk, had));  // doubles, so a long line costs linear time
  while (true) {
    const ssize_t n = ::read(source.fd, rest.data() + had, rest.size() - had);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Failure(Status::fault,
                    fmt::format("{}: cannot read: {}", source.path, std::strerror(errno)));
    }
    rest.resize(had + static_cast<std::size_t>(n));
    source.buffer = std::move(rest);
    source.text = source.buffer;
    return n > 0;
  }
}

int LineReader::peek() {
  if (source_->text.empty() && !fill()) return -1;
  return static_cast<unsigned char>(source_->text[0]);
}

bool LineReader::next(std::string& line, std::size_t max_bytes, const std::string& what) {
  if (peek() < 0) return false;
  std::size_t searched = 0;
  while (true) {
    const std::size_t end = source_->text.find('\n', searched);
    if (end == std::string_view::npos ? source_->text.size() > max_bytes : end > max_bytes) {
      throw Failure(Status::malformed, fmt::format("{}: longer than {} bytes", what, max_bytes));
    }
    if (end != std::string_view::npos) {
      line.assign(source_->text.substr(0, end));
      source_->text.remove_prefix(end + 1);
      return true;
    }
    searched = source_->text.size();
    if (!fill()) {
      throw Failure(Status::malformed, fmt::format("{}: ends without a line feed: cut off", what));
    }
  }
}

ReceiptReader::ReceiptReader(LineReader lines, std::string what, bool is_pack)
    : lines_(std::move(lines)), what_(std::move(what)), is_pack_(is_pack) {}

bool ReceiptReader::take_line(std::size_t max_bytes) {
  if (has_held_) {
    has_held_ = false;
    return true;
  }
  const bool got =
      lines_.next(held_, max_bytes, fmt::format("{}: line {}", what_, line_number_ + 1));
  if (got) ++line_number_;
  return got;
}

std::optional<Receipt> ReceiptReader::next() {
  if (!take_line(kBodyBytesMax)) {
    if (count_ == 0) throw Failure(Status::malformed, what_ + ": empty, no receipt in it");
    return std::nullopt;
  }
  ++count_;
  Receipt receipt;
  receipt.what = is_pack_ ? fmt::format("{}#{}", what_, count_) : what_;
  const auto here = [&](const char* part) {
    return fmt::format("{}: line {}{}", receipt.what, line_number_, part);
  };
  const std::string body_what = here("");
  receipt.text = std::move(held_);
  const auto read_body = [&] {
    if (!receipt.text.starts_with(kBodyStart)) {
      throw Failure(Status::malformed,
                    body_what + " is no receipt's body (it starts with its _type)");
    }
    receipt.body = read_canonical(receipt.text, body_what + " (body)");
  };
  // The seal is asked first: of bytes that changed, what no longer parses is only a symptom.
  bool sealed = false;
  std::exception_ptr why_no_seal;
  try {
    sealed = take_line(4096);
  } catch (const Failure&) {
    why_no_seal = std::current_exception();
  }
  if (sealed) {
    const std::string changed = changed_since_sealing(receipt.text, held_);
    if (!changed.empty()) {
      std::string also;
      try {
        read_body();
        check_fields(receipt.body, receipt.what);
      } catch (const Failure& failure) {
        also = failure.what();
        if (also.starts_with(receipt.what + ": ")) also.erase(0, receipt.what.size() + 2);
        also = "; also " + also;
      }
      throw Failure(Status::malformed, receipt.what + ": " + changed + also);
    }
  }
  read_body();
  const std::string seal_what = here(" (seal)");
  if (!sealed) {
    if (why_no_seal) std::rethrow_exception(why_no_seal);
    throw Failure(Status::malformed, receipt.what + ": not sealed: line 2 is missing");
  }
  receipt.rid = check_seal(receipt.text, held_, seal_what);
  check_fields(receipt.body, receipt.what);

  int last_rank = 0;
  while (take_line(kLineBytesMax)) {
    if (held_.starts_with(kAttachmentStart)) {
      if (!receipt.envelopes.empty()) {
        throw Failure(Status::malformed, here(": an attachment after a signature"));
      }
      read_attachment(held_, receipt.rid, here(""), receipt.attached, last_rank);
    } else if (held_.starts_with(kEnvelopeStart)) {
      if (receipt.envelopes.size() >= 64) throw Failure(Status::malformed, here(": 65 signatures"));
      receipt.envelopes.push_back(held_);
    } else if (is_pack_ && held_.starts_with(kBodyStart)) {
      if (held_.size() > kBodyBytesMax) {
        throw Failure(Status::malformed,
                      here(fmt::format(": a body longer than {} bytes", kBodyBytesMax).c_str()));
      }
      has_held_ = true;
      break;
    } else if (held_.starts_with(kBodyStart)) {
      throw Failure(Status::malformed, here(fmt::format(": another receipt; of a pack name one, as "
                                                        "{}#1",
                                                        receipt.what)
                                                .c_str()));
    } else {
      throw Failure(Status::malformed, here(": neither attachment nor signature"));
    }
  }
  return receipt;
}

std::pair<std::string, std::size_t> split_pack_name(const std::string& name) {
  const std::size_t hash = name.rfind('#');
  if (hash == std::string::npos || hash + 1 == name.size() || name.size() - hash > 10 ||
      name.find_first_not_of("0123456789", hash + 1) != std::string::npos) {
    return {name, 0};
  }
  return {name.substr(0, hash), std::stoul(name.substr(hash + 1))};
}

Receipt read_receipt(const std::string& name) {
  const auto [path, number] = split_pack_name(name);
  ReceiptReader reader(LineReader::open(path), path == "-" ? "stdin" : path, number > 0);
  if (number == 0) return *reader.next();
  for (std::size_t i = 1;; ++i) {
    std::optional<Receipt> receipt = reader.next();
    if (!receipt) {
      throw Failure(Status::unmet,
                    fmt::format("{}: {} in it, no {}", path,
                                counted(static_cast<std::int64_t>(i) - 1, "receipt"), number));
    }
    if (i == number) return std::move(*receipt);
  }
}

Receipt read_receipt_text(std::string_view text, const std::string& what) {
  return *ReceiptReader(LineReader::over(text), what, false).next();
}

}  // namespace bolt::receipts
