// Opening, checking and going on with an output file; whole writes.
#include "cmd/record_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "cmd/streams.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/output.h"

namespace bolt {
namespace {

std::uint64_t hash_of(std::string_view id) { return std::hash<std::string_view>()(id); }

// What a record of an earlier run says about its line.
struct Seen {
  std::int64_t line = 0;
  std::string id;
  bool answers = false;  // and so is never made again
  bool is_part = false;  // a piece of a reply: kept only beside the whole
};

Seen read_record(const std::string& path, std::int64_t at, std::string_view text) {
  try {
    const JsonDocument document =
        JsonDocument::parse(fmt::format("{}: line {}", path, at), std::string(text));
    const JsonValue root = document.root();
    Seen seen;
    seen.line = root.at("line").integer(1);
    if (const auto id = root.find("custom_id")) {
      seen.id = id->json();
      seen.answers = root.at("error").is_null();
      return seen;
    }
    if (const auto id = root.find("id")) seen.id = id->json();
    const std::string_view event = root.at("event").string();
    seen.is_part = event == "token";
    const auto stop = root.find("stop");
    const bool is_cut = stop && stop->string() == "interrupted";
    seen.answers = event == "stats" || (event == "done" && !is_cut);
    return seen;
  } catch (const Error& error) {
    throw Error(Exit::usage, fmt::format("{}; it is not a file of `bolt serve-stdin`'s records, "
                                         "so it is left as it is: give another -o",
                                         error.what()));
  }
}

// Calls visit(text of a line without its LF, number) for each whole line.
template <class Visit>
std::size_t each_line(std::string_view text, const Visit& visit) {
  std::size_t at = 0;
  for (std::int64_t number = 1;; ++number) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) return at;
    visit(text.substr(at, end - at), number);
    at = end + 1;
  }
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

bool Answered::has(std::int64_t line, const std::string& id_json) const {
  const auto at = id_hashes_.find(line);
  if (at == id_hashes_.end()) return false;
  if (at->second != hash_of(id_json)) {
    throw Error(Exit::usage,
                fmt::format("--resume: line {} has the id {}, its record in {} another; that file "
                            "answers another input",
                            line, id_json.size() < 80 ? id_json : "of many bytes", file_));
  }
  return true;
}

RecordSink::RecordSink(const std::string& path, bool resume) : path_(path) {
  struct stat in = {}, out = {};
  const bool has_in = ::fstat(STDIN_FILENO, &in) == 0 && S_ISREG(in.st_mode);
  if (path_.empty()) {
    if (resume) throw Error(Exit::usage, "--resume needs -o FILE: it goes on with that file");
    require_stdout();
    if (has_in && ::fstat(STDOUT_FILENO, &out) == 0 && same_file(in, out)) {
      throw Error(Exit::usage, "stdout is the input's own file; write to another");
    }
    return;
  }
  const auto open = [this] {
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file_) {
      throw Error(Exit::usage, fmt::format("{}: cannot write: {}", path_, std::strerror(errno)));
    }
  };
  open();
  if (::fstat(file_.get(), &out) != 0 || !S_ISREG(out.st_mode)) return;  // a pipe, a device
  if (has_in && same_file(in, out)) {
    throw Error(Exit::usage, path_ + ": is the input's own file; write to another");
  }
  if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    throw Error(Exit::usage, path_ + ": another process is writing it; give each its own -o");
  }
  if (out.st_size == 0) return;
  if (!resume) {
    throw Error(Exit::usage, path_ + ": holds something; go on with it by --resume, or remove it");
  }
  read_answered();
  open();  // it may have been replaced
  (void)::flock(file_.get(), LOCK_EX | LOCK_NB);
}

void RecordSink::read_answered() {
  const FileMap map(path_);
  answered_.file_ = path_;
  bool all_stays = true;
  const std::size_t whole = each_line(map.text(), [&](std::string_view text, std::int64_t at) {
    const Seen seen = read_record(path_, at, text);
    if (seen.answers) {
      answered_.id_hashes_.emplace(seen.line, hash_of(seen.id));
    } else if (!seen.is_part) {
      all_stays = false;
    }
  });
  const auto stays = [this](const Seen& seen) {
    return seen.answers || (seen.is_part && answered_.contains(seen.line));
  };
  if (all_stays) {
    each_line(map.text(), [&](std::string_view text, std::int64_t at) {
      all_stays = all_stays && stays(read_record(path_, at, text));
    });
  }
  if (all_stays) {
    if (whole < map.size() && ::ftruncate(file_.get(), static_cast<off_t>(whole)) != 0) {
      throw Error(Exit::fault, fmt::format("{}: cannot cut its torn last line: {}", path_,
                                           std::strerror(errno)));
    }
    return;
  }
  struct stat info = {};
  (void)::fstat(file_.get(), &info);
  AtomicFile kept(path_, /*replace=*/true, static_cast<int>(info.st_mode & 0777));
  std::string block;
  each_line(map.text(), [&](std::string_view text, std::int64_t at) {
    if (!stays(read_record(path_, at, text))) return;
    block.append(text).push_back('\n');
    if (block.size() > (1 << 20)) kept.append(std::exchange(block, {}));
  });
  kept.append(block);
  kept.commit();
}

void RecordSink::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EPIPE) {
      throw ReaderGone();
    } else if (errno != EINTR) {
      throw Error(Exit::fault, fmt::format("{}: cannot write: {}", path_, std::strerror(errno)));
    }
  }
}

void RecordSink::write(std::string record) {
  record += '\n';
  file_ ? append(record) : write_out(record);
}

void RecordSink::check() {
  if (!file_) check_reader();
}

void RecordSink::sync() {
  if (!file_) return;
  if (::fdatasync(file_.get()) != 0 && errno != EINVAL && errno != EROFS) {
    throw Error(Exit::fault, fmt::format("{}: cannot sync: {}", path_, std::strerror(errno)));
  }
}

}  // namespace bolt
