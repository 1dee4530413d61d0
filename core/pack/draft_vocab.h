// The draft vocabulary: the ids over which a draft head's level may read the head alone. Which ids
// is decided here; their head rows are copied by convert.h, and when they suffice is core/engine's
// rule.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/text/tokenizer.h"

namespace bolt {

// The ids of a JSON array, ascending. Throws Error(input) for ids outside [0, n_tokens), ids given
// twice and an empty list.
std::vector<int> read_draft_vocab(const std::string& path, int n_tokens);

// The `n` ids most frequent in the texts (whole files, tokenised as raw text), ascending: by count
// falling, then id, so that ids no text holds fill up from the lowest, the oldest merges. `always`
// are in it whatever their count: a chain ends with a stop id. Throws Error(usage) unless
// always.size() <= n <= n_tokens, Error(input) for a text that is not UTF-8.
std::vector<int> frequent_ids(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                              int n, std::span<const int> always);

// The array as a package keeps it, one line.
std::string draft_vocab_json(std::span<const int> ids);

}  // namespace bolt
