// Lines typed on a terminal: editing and history by libedit, pasted text with its newlines, Ctrl-C.
// Where the terminal or the locale cannot do that (no TERM, dumb, no UTF-8 locale) lines are read
// plainly, as the terminal hands them over.
#pragma once

#include <memory>
#include <string>

namespace bolt {

class LineReader {
 public:
  enum class Result { line, interrupted, end };

  // history_file: loaded now, saved (0600) by the destructor; empty: none is kept.
  explicit LineReader(const std::string& history_file);
  ~LineReader();

  // Reads one line into `line`, without its end; newlines inside are those of a paste.
  // `interrupted` when Ctrl-C was pressed: whatever had been typed is gone.
  Result read(const std::string& prompt, std::string& line);
  void remember(const std::string& line);
  bool edits() const;

 private:
  class Editor;
  std::unique_ptr<Editor> editor_;  // null: plain reads
};

}  // namespace bolt
