// How far a quantised package's next-token distributions lie from its original's, on prompts:
// Kullback-Leibler divergences over the reference's own greedy replies.
#pragma once

#include <cstdint>
#include <string>

namespace bolt {

struct Quality {
  std::int64_t n_prompts = 0, n_positions = 0;
  double mean_kl = 0.0, largest_kl = 0.0;  // KL(reference || other), in nats
  std::int64_t n_same_choice = 0;          // positions where both prefer the same id
  std::string worst_prompt;                // custom_id or line of the prompt with the largest
  std::int64_t worst_position = 0;         // of that reply's id
};

// prompts: JSON lines with "messages" or "prompt", as serve-stdin and OpenAI's batches have them.
// Each prompt's first ids, kPositions of the reference's greedy reply, are given to both.
// Throws Error(input) for prompts that are malformed, Error(usage) for packages of other
// vocabularies.
Quality compare_distributions(const std::string& reference, const std::string& other,
                              const std::string& prompts, int n_threads);

}  // namespace bolt
