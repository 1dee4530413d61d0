// A generated tokenizer for packages of generated weights: every byte is a token, so that any text
// goes in and out. It is not a trained vocabulary and is named as what it is.
#pragma once

#include <string>

namespace bolt {

// Ids 0..19 are the control tokens of the Nemotron 3 vocabularies (<s> 1, </s> 2, <|im_start|> 10
// to
// </tool_response> 17), 20..275 the bytes, the rest two-byte tokens and fillers that no text gives.
inline constexpr int kByteTokenizerIdsMin = 276;

// tokenizer.json with exactly n_tokens >= kByteTokenizerIdsMin ids.
std::string byte_tokenizer_json(int n_tokens);

// A chat template with the v3 markers, to go with it.
std::string generated_chat_template();

}  // namespace bolt
