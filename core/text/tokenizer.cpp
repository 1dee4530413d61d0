#include "core/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>

#include "core/base/error.h"
#include "core/text/utf8.h"

namespace bolt {

// One call of encode: its output and buffers.
class Tokenizer::Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, std::string_view text, std::vector<int>& out)
      : tokenizer_(tokenizer), cursor_(*tokenizer.pre_tokenizer_, {}), text_(text), out_(out) {
    const std::size_t n_slots = std::bit_ceil(std::min<std::size_t>(text.size() / 8 + 1, 1 << 13));
    known_.resize(n_slots);
  }

  void span(std::size_t begin, std::size_t end) {
    cursor_.restart(text_.substr(begin, end - begin));
    for (std::string_view piece = cursor_.next(); !piece.empty(); piece = cursor_.next()) {
      this->piece(piece);
    }
  }

 private:
  // A piece met before in this text, and where its ids lie in the output.
  struct Known {
    std::uint32_t hash = 0;
    std::uint32_t length = 0;  // bytes of the piece, 0: none
    std::size_t at = 0;        // where it starts in the text
    std::size_t first = 0;     // its first id in the output
    std::size_t n_ids = 0;
  };
  struct Symbol {
    int id = 0;
    int previous = -1, next = -1;  // in the piece, -1: none
  };
  struct Candidate {
    int rank = 0, at = 0;  // the merge of the symbol at `at` with its next one
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  // Above this, a heap finds the next merge; below, looking at every pair is faster.
  static constexpr std::size_t kShortPieceMax = 40;

  void piece(std::string_view piece) {
    if (piece.size() == 1) {
      out_.push_back(tokenizer_.byte_ids_[static_cast<unsigned char>(piece[0])]);
      return;
    }
    const std::uint32_t hash = hash_bytes(piece);
    Known& known = known_[hash & (known_.size() - 1)];
    if (known.hash == hash && known.length == piece.size() &&
        text_.substr(known.at, known.length) == piece) {
      const std::size_t n = out_.size();
      out_.resize(n + known.n_ids);
      std::copy_n(out_.data() + known.first, known.n_ids, out_.data() + n);
      return;
    }
    const std::size_t first = out_.size();
    const int whole = tokenizer_.ignore_merges_ ? tokenizer_.vocabulary_.find(piece) : -1;
    if (whole >= 0) {
      out_.push_back(whole);
    } else if (piece.size() <= kShortPieceMax) {
      merge_short(piece);
    } else {
      merge_long(piece);
    }
    known = {hash, static_cast<std::uint32_t>(piece.size()),
             static_cast<std::size_t>(piece.data() - text_.data()), first, out_.size() - first};
  }

  // The lowest rank first, the leftmost of equal ones first.
  void merge_short(std::string_view piece) {
    constexpr int kNone = kMergesMax + 1;
    int ids[kShortPieceMax], ranks[kShortPieceMax];  // ranks[i]: of ids[i] with ids[i + 1]
    int n = static_cast<int>(piece.size());
    for (int i = 0; i < n; ++i) {
      ids[i] = tokenizer_.byte_ids_[static_cast<unsigned char>(piece[static_cast<std::size_t>(i)])];
    }
    const auto rank_of = [&](int i) {
      const int rank = tokenizer_.merges_.rank(ids[i], ids[i + 1]);
      return rank < 0 ? kNone : rank;
    };
    for (int i = 0; i + 1 < n; ++i) ranks[i] = rank_of(i);
    while (n > 1) {
      int best = 0;
      for (int i = 1; i + 1 < n; ++i) {
        if (ranks[i] < ranks[best]) best = i;
      }
      if (ranks[best] == kNone) break;
      ids[best] = tokenizer_.merges_.joined(ranks[best]);
      std::copy(ids + best + 2, ids + n, ids + best + 1);
      std::copy(ranks + best + 1, ranks + n - 1, ranks + best);
      --n;
      if (best + 1 < n) ranks[best] = rank_of(best);
      if (best > 0) ranks[best - 1] = rank_of(best - 1);
    }
    out_.insert(out_.end(), ids, ids + n);
  }

  void merge_long(std::string_view piece) {
    symbols_.resize(piece.size());
    const int n = static_cast<int>(piece.size());
    for (int i = 0; i < n; ++i) {
      const auto byte = static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]);
      symbols_[static_cast<std::size_t>(i)] = {tokenizer_.byte_ids_[byte], i - 1,
                                               i + 1 < n ? i + 1 : -1};
    }
    std::vector<Candidate> heap_storage;
    heap_storage.reserve(piece.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(
        std::greater<>(), std::move(heap_storage));
    const auto consider = [&](int at) {
      const Symbol& symbol = symbols_[static_cast<std::size_t>(at)];
      if (symbol.next < 0) return;
      const int rank =
          tokenizer_.merges_.rank(symbol.id, symbols_[static_cast<std::size_t>(symbol.next)].id);
      if (rank >= 0) heap.push({rank, at});
    };
    for (int i = 0; i + 1 < n; ++i) consider(i);
    while (!heap.empty()) {
      const Candidate best = heap.top();
      heap.pop();
      Symbol& left = symbols_[static_cast<std::size_t>(best.at)];
      if (left.id < 0 || left.next < 0) continue;  // gone, or the last one by now
      Symbol& right = symbols_[static_cast<std::size_t>(left.next)];
      if (tokenizer_.merges_.rank(left.id, right.id) != best.rank) continue;  // another pair by now
      left.id = tokenizer_.merges_.joined(best.rank);
      right.id = -1;
      left.next = right.next;
      if (left.next >= 0) symbols_[static_cast<std::size_t>(left.next)].previous = best.at;
      consider(best.at);
      if (left.previous >= 0) consider(left.previous);
    }
    for (int i = 0; i >= 0; i = symbols_[static_cast<std::size_t>(i)].next) {
      out_.push_back(symbols_[static_cast<std::size_t>(i)].id);
    }
  }

  const Tokenizer& tokenizer_;
  PreTokenizer::Cursor cursor_;
  std::string_view text_;
  std::vector<int>& out_;
  std::vector<Known> known_;  // a power of two, by hash
  std::vector<Symbol> symbols_;
};

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special) const {
  // One piece may be the whole text, and its symbols are counted in ints.
  constexpr std::size_t kTextBytesMax = 1u << 30;
  if (text.size() > kTextBytesMax) {
    throw Error(Exit::input, fmt::format("the text has {} bytes, at most {} can be tokenised",
                                         text.size(), kTextBytesMax));
  }
  const std::size_t bad = invalid_utf8_at(text);
  if (bad != kNoOffset) {
    throw Error(
        Exit::input,
        fmt::format("byte {} of the text, 0x{:02X}, is not UTF-8; convert the text to UTF-8", bad,
                    static_cast<unsigned char>(text[bad])));
  }
  std::vector<int> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special) ids = prefix_ids_;
  std::vector<TextSpan> coarse, spans;
  first_matcher_->split(text, 0, text.size(), coarse);
  for (const TextSpan& span : coarse) {
    if (span.id < 0 && !second_matcher_->empty()) {
      second_matcher_->split(text, span.begin, span.end, spans);
    } else {
      spans.push_back(span);
    }
  }
  Encoder encoder(*this, text, ids);
  for (const TextSpan& span : spans) {
    if (span.id >= 0) {
      ids.push_back(span.id);
    } else {
      encoder.span(span.begin, span.end);
    }
  }
  if (add_special) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

bool Tokenizer::is_special(int id) const {
  return id >= 0 && id < static_cast<int>(special_.size()) &&
         special_[static_cast<std::size_t>(id)];
}

std::optional<int> Tokenizer::id_of(std::string_view content) const {
  const auto added = added_ids_.find(std::string(content));
  if (added != added_ids_.end()) return added->second;
  const int id = vocabulary_.find(content);
  return id >= 0 ? std::optional<int>(id) : std::nullopt;
}

}  // namespace bolt
