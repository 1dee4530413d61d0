// Scoring: what the target chooses at each position of a reply that is claimed already. Prompt and
// claimed ids are all known, so they run as prompt chunks do, every row of the reply sampled; the
// arithmetic does not depend on the number of rows, so these are the choices of decoding.
#pragma once

#include <atomic>
#include <span>

#include "core/engine/engine.h"
#include "core/engine/model.h"

namespace bolt {

// Runs what the slot does not hold yet of the prompt, then the claimed ids but the last, which
// decides nothing. The slot holds a proper prefix of the prompt. `sink` gets each choice with its
// logits (if request.want_logits); false from it ends the scoring there. request.stop_ids,
// max_new, draft and script have no say.
Scoring score_reply(Model& model, int slot, const Request& request, std::span<const int> claimed,
                    const TokenSink& sink, const std::atomic<bool>* interrupt);

}  // namespace bolt
