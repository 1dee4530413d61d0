// The header's size is fixed, so that the rows can be written as they come; the ids, whose number
// is not known before, follow the logits.
#include "cmd/logits_file.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <fstream>

#include "core/base/error.h"
#include "core/base/file_map.h"

namespace bolt {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");
constexpr std::size_t kHeaderBytes = 256;  // with its length word; padded with spaces

std::string header(std::uint64_t n, std::uint64_t n_vocab) {
  const std::uint64_t ids_at = n * n_vocab * 4;
  const std::string json =
      fmt::format(R"({{"logits":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}},)"
                  R"("ids":{{"dtype":"I32","shape":[{}],"data_offsets":[{},{}]}}}})",
                  n, n_vocab, ids_at, n, ids_at, ids_at + n * 4);
  std::string bytes(kHeaderBytes, ' ');
  const std::uint64_t length = kHeaderBytes - 8;
  std::memcpy(bytes.data(), &length, sizeof length);
  bytes.replace(8, json.size(), json);
  return bytes;
}

// How every logits file begins, after the length of its header.
constexpr std::string_view kBeginning = R"({"logits":{"dtype":"F32","shape":[)";

}  // namespace

void check_logits_target(const std::string& path) {
  if (!path_exists(path)) return;
  if (!is_regular_file(path)) {
    throw Error(Exit::fault, fmt::format("--logits {}: is no regular file; name a new file", path));
  }
  std::ifstream file(path, std::ios::binary);
  std::string start(8 + kBeginning.size(), '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  const bool empty = file.gcount() == 0;
  if (empty || std::string_view(start).substr(8) == kBeginning) return;
  throw Error(
      Exit::usage,
      fmt::format("--logits {}: a file is there, and no logits file; choose another name or "
                  "remove it",
                  path));
}

LogitsFile::LogitsFile(const std::string& path, int n_vocab) : file_(path), n_vocab_(n_vocab) {
  file_.append(std::string_view(header(0, 0)));
}

void LogitsFile::add(int id, std::span<const float> logits) {
  require(logits.size() == static_cast<std::size_t>(n_vocab_),
          "a row of logits spans the vocabulary");
  ids_.push_back(id);
  file_.append(std::as_bytes(logits));
}

void LogitsFile::commit() {
  file_.append(std::as_bytes(std::span(ids_)));
  const std::string start = header(ids_.size(), static_cast<std::uint64_t>(n_vocab_));
  file_.write_at(0, std::as_bytes(std::span(start)));
  file_.commit();
}

}  // namespace bolt
