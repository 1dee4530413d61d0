// Where a sequence's drafts come from, and how many are made. Drafts are guesses: whatever a
// drafter says, the target's samples decide. One object a reply.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/engine/cost_table.h"
#include "core/engine/engine.h"
#include "core/engine/model.h"

namespace bolt {

// What one round is to try.
struct DraftPlan {
  std::vector<int> ids;  // to verify: a copy at once, the head's drafts after choose()
  bool is_copy = false;
  int max_levels = 0;              // > 0: head or drafter is asked for so many drafts
  std::optional<BlockKind> block;  // a separate drafter is; none: the head
  bool draft_vocab = false;        // over the draft vocabulary alone
  // DraftAsk's and RoundAsk's of the same names; they live in the drafter.
  std::span<const float> go_on;
  std::span<const Draft> given;
  std::span<const double> row_prices;

  // Of a round that several sequences share: how many do (set before plan()), and what the loop
  // needs to see which of all drafts are worth a row together.
  int n_sharing = 1;
  std::vector<float> gains;  // [draft]: expected tokens, never rising; above 1: not to be weighed
  double rate = 0.0;         // tokens for a nanosecond (depth_rule.h); 0: no rule weighs
  const CostTable* costs = nullptr;
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // Whether the head must follow the sequence, and which separate drafters.
  virtual bool uses_head() const = 0;
  virtual BlockSet uses_blocks() const { return {}; }
  // known: all ids of the sequence, the last not run yet. max_drafts >= 1.
  virtual void plan(std::span<const int> known, int max_drafts, DraftPlan& plan) = 0;
  // Takes the head's answer to a plan that asked, and fills in plan.ids.
  virtual void choose(std::span<const Draft> chain, DraftPlan& plan) = 0;
  // After every round, drafted or not.
  virtual void learn(const DraftPlan& plan, int n_levels, int n_accepted) = 0;
};

// Asked for once, when a depth rule first needs it.
using CostSource = std::function<const CostTable&()>;

// Who drafts under a source, of what the model has.
bool head_drafts(DraftOptions::Source source, const Model& model);
BlockSet block_drafters(DraftOptions::Source source, const Model& model);

// The drafter of a request, null for Source::off. A source that the package lacks proposes nothing.
std::unique_ptr<Drafter> make_drafter(const Request& request, const Model& model, CostSource costs);

}  // namespace bolt
