// Where the records of a batch go: stdout, or a file that can be gone on with. Every record is one
// write of one whole line, so that whoever reads, or a later run, sees whole records only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/file_map.h"

namespace bolt {

// The lines that an output file answers already.
class Answered {
 public:
  // True for an answered line. Error(usage) where the file's record has another id than the line:
  // then the file answers another input.
  bool has(std::int64_t line, const std::string& id_json) const;
  bool contains(std::int64_t line) const { return id_hashes_.contains(line); }
  std::int64_t size() const { return static_cast<std::int64_t>(id_hashes_.size()); }

 private:
  friend class RecordSink;
  std::string file_;
  std::unordered_map<std::int64_t, std::uint64_t> id_hashes_;
};

class RecordSink {
 public:
  // path: empty for stdout. A regular file that holds something is taken on with `resume`, else
  // refused; resuming cuts a torn last line and takes out what was not answered: error records,
  // interrupted replies, tokens without their reply. Those lines are answered anew.
  // Error(usage) for the input's own file, and for a file that another process writes.
  RecordSink(const std::string& path, bool resume);

  const Answered& answered() const { return answered_; }
  // Throws ReaderGone, or Error(fault) naming the cause.
  void write(std::string record);
  // Throws ReaderGone if nobody reads stdout any more.
  void check();
  void sync();  // a file, to the disk

 private:
  void read_answered();
  void append(std::string_view bytes);

  std::string path_;
  FileDescriptor file_;
  Answered answered_;
};

}  // namespace bolt
