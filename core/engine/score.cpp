// One slot, one window a call; a row that is not finite ends the scoring, as it ends a reply.
#include "core/engine/score.h"

#include <algorithm>
#include <vector>

#include "core/base/error.h"

namespace bolt {

Scoring score_reply(Model& model, int slot, const Request& request, std::span<const int> claimed,
                    const TokenSink& sink, const std::atomic<bool>* interrupt) {
  Scoring scoring;
  if (claimed.empty()) return scoring;
  std::vector<int> known = request.prompt_ids;
  known.insert(known.end(), claimed.begin(), claimed.end() - 1);
  std::size_t done = model.ids(slot).size();
  const std::size_t first_choice = request.prompt_ids.size() - 1;  // the row that gives choice 0
  require(done <= first_choice, "the slot holds less than the prompt");

  std::vector<float> logits;
  if (request.want_logits) logits.resize(static_cast<std::size_t>(model.vocab_size()));
  const auto chunk_rows = static_cast<std::size_t>(model.max_chunk_rows()),
             scored_rows = std::min(chunk_rows, static_cast<std::size_t>(model.max_scored_rows()));
  std::vector<WindowResult> results;
  while (done < known.size()) {
    if (interrupt && interrupt->load(std::memory_order_relaxed)) {
      scoring.interrupted = true;
      return scoring;
    }
    Window window;
    window.slot = slot;
    window.sure = true;
    window.sampling = request.sampling;
    // The prompt's rows before the first choice are not sampled, and go in whole chunks.
    const bool in_prompt = done < first_choice;
    const std::size_t end = in_prompt ? std::min(first_choice, done + chunk_rows)
                                      : std::min(known.size(), done + scored_rows);
    window.ids = std::span(known).subspan(done, end - done);
    window.n_sampled = in_prompt ? 0 : static_cast<int>(window.ids.size());
    model.run({&window, 1}, results);
    ++scoring.passes;
    const WindowResult& result = results[0];
    if (result.first_marked >= 0) {
      ++scoring.n_nonfinite;
      return scoring;
    }
    bool goes_on = true;
    for (int i = 0; goes_on && i < window.n_sampled; ++i) {
      const int id = result.sampled[static_cast<std::size_t>(i)].id;
      if (id < 0) {
        ++scoring.n_nonfinite;
        return scoring;
      }
      scoring.chosen.push_back(id);
      if (request.want_logits) model.read_logits(0, i, logits);
      goes_on = !sink || sink(id, logits);
    }
    model.commit(slot, static_cast<int>(window.ids.size()));
    done = end;
    if (!goes_on) return scoring;
  }
  return scoring;
}

}  // namespace bolt
