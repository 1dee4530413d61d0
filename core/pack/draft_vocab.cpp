// Choosing the draft vocabulary. The contract is draft_vocab.h's.
#include "core/pack/draft_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"

namespace bolt {
namespace {

// Texts are tokenised in pieces that end with a line, so that a large one needs little memory.
constexpr std::size_t kPieceBytes = 1 << 20;

void count_ids(const Tokenizer& tokenizer, const std::string& path,
               std::vector<std::int64_t>& counts) {
  const FileMap file(path);
  std::string_view rest = file.text();
  while (!rest.empty()) {
    check_interrupt();
    std::size_t n = std::min(kPieceBytes, rest.size());
    if (n < rest.size()) {
      const std::size_t line = rest.find('\n', n);
      n = line == std::string_view::npos ? rest.size() : line + 1;
    }
    try {
      for (const int id : tokenizer.encode(rest.substr(0, n), /*add_special=*/false)) {
        ++counts[static_cast<std::size_t>(id)];
      }
    } catch (const Error& error) {
      throw Error(error.code, path + ": " + error.what());
    }
    rest.remove_prefix(n);
  }
}

}  // namespace

std::vector<int> read_draft_vocab(const std::string& path, int n_tokens) {
  const JsonDocument document = JsonDocument::parse(path, read_stream(path));
  std::vector<int> ids;
  for (const JsonValue& item : document.root().items()) {
    ids.push_back(static_cast<int>(item.integer(0, n_tokens - 1)));
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end())
    throw Error(Exit::input, fmt::format("{}: id {} is there twice", path, *twice));
  if (ids.empty()) throw Error(Exit::input, path + ": holds no id, expected an array of token ids");
  return ids;
}

std::vector<int> frequent_ids(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                              int n, std::span<const int> always) {
  const int n_tokens = tokenizer.n_tokens(), least = static_cast<int>(always.size());
  if (n < least || n > n_tokens || n < 1) {
    throw Error(Exit::usage,
                fmt::format("--draft-vocab: {} ids, expected {} to {} (the tokenizer's)", n,
                            std::max(1, least), n_tokens));
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(n_tokens), 0);
  for (const std::string& path : texts) count_ids(tokenizer, path, counts);
  std::vector<int> ids(static_cast<std::size_t>(n_tokens));
  std::iota(ids.begin(), ids.end(), 0);
  const auto is_always = [&](int id) {
    return std::find(always.begin(), always.end(), id) != always.end();
  };
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
    if (is_always(a) != is_always(b)) return is_always(a);
    return counts[static_cast<std::size_t>(a)] > counts[static_cast<std::size_t>(b)];
  });
  ids.resize(static_cast<std::size_t>(n));
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::string draft_vocab_json(std::span<const int> ids) {
  return fmt::format("[{}]\n", fmt::join(ids, ","));
}

}  // namespace bolt
