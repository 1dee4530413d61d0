// The header's size is fixed, so that the rows can be written as they come; the ids, whose number
// is not known before, follow the logits.
#include "cmd/logits_file.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/base/error.h"

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

}  // namespace

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
