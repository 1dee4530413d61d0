// Receipts as they lie on disk: one in a file, or many in a pack, read line by line with bounded
// memory. A Receipt that comes out of here has an intact seal, known fields and bound attachments
// that name it; what its claims are worth is verify.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "receipts/attachments.h"
#include "receipts/canonical.h"

namespace bolt::receipts {

struct Receipt {
  std::string what;  // FILE or FILE#N: how messages begin
  std::string text;  // line 1, raw
  Value body;
  std::string rid;
  Attachments attached;
  std::vector<std::string> envelopes;  // DSSE, raw lines

  std::string kind() const { return body.string_at("kind"); }
};

// Lines of a file, standard input or memory, each at most as long as the caller allows.
class LineReader {
 public:
  // "-" is standard input. Throws Failure: unmet if there is no such file, fault if it cannot be
  // read. Only regular files and pipes are read; a folder or device is refused.
  static LineReader open(const std::string& path);
  // `text` must outlive the reader.
  static LineReader over(std::string_view text);
  LineReader(LineReader&&) noexcept;
  ~LineReader();

  // The next line without its LF; false at the end. Throws Failure(malformed) on a line that is
  // longer than max_bytes or has no LF.
  bool next(std::string& line, std::size_t max_bytes, const std::string& what);
  // The next byte without taking it, -1 at the end.
  int peek();

 private:
  LineReader();
  bool fill();
  struct Source;
  std::unique_ptr<Source> source_;
};

// One receipt after another.
class ReceiptReader {
 public:
  // `what` names the file in messages.
  ReceiptReader(LineReader lines, std::string what, bool is_pack);
  // Empty at the end. Throws Failure(malformed); after that the reader is of no more use.
  std::optional<Receipt> next();

 private:
  bool take_line(std::size_t max_bytes);
  LineReader lines_;
  std::string what_;
  bool is_pack_;
  std::string held_;  // a line that was read and belongs to the next receipt
  bool has_held_ = false;
  std::size_t line_number_ = 0, count_ = 0;
};

// The one receipt of FILE, or the N-th (from 1) of a pack for "FILE#N"; "-" is standard input.
Receipt read_receipt(const std::string& name);
Receipt read_receipt_text(std::string_view text, const std::string& what);

// Splits FILE#N; N is 0 where there is none.
std::pair<std::string, std::size_t> split_pack_name(const std::string& name);

}  // namespace bolt::receipts
