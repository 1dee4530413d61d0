// Copies first, then the head; priced by the depth rule or of a fixed depth.
#include "core/engine/drafter.h"

#include <algorithm>

#include "core/engine/copy_source.h"
#include "core/engine/ruled_drafter.h"
#include "core/engine/scripted_drafter.h"

namespace bolt {
namespace {

constexpr std::size_t kCoverageIds = 16;
// Of drafts in a shared round: a copy is verified whole where it pays at all.
constexpr float kCopyGain = 1.0f;

using Source = DraftOptions::Source;

class StandardDrafter final : public RuledDrafter {
 public:
  StandardDrafter(const Request& request, const Model& model, CostSource costs)
      : RuledDrafter(request.draft.drafts, std::move(costs)),
        copies_on_(request.draft.source == Source::copy ||
                   request.draft.source == Source::automatic),
        head_on_(head_drafts(request.draft.source, model)),
        blocks_on_(block_drafters(request.draft.source, model)),
        stop_ids_(request.stop_ids) {
    if (!head_on_ || model.draft_vocab().empty()) return;
    in_vocab_.assign(static_cast<std::size_t>(model.vocab_size()), false);
    for (const int id : model.draft_vocab()) in_vocab_[static_cast<std::size_t>(id)] = true;
  }

  bool uses_head() const override { return head_on_; }
  BlockSet uses_blocks() const override { return blocks_on_; }

  void plan(std::span<const int> known, int max_drafts, DraftPlan& plan) override {
    max_drafts = most_drafts(max_drafts);
    if (max_drafts < 1) return;
    share(plan);
    if (copies_on_ && (!rule() || rule()->copies())) {
      plan.ids = copies_.propose(known, max_drafts);
      end_at_stop(plan.ids);
      plan.is_copy = !plan.ids.empty();
      plan.gains.assign(plan.ids.size(), rule() ? kCopyGain : kUnweighed);
      if (plan.is_copy) return;
    }
    plan.draft_vocab = head_on_ && is_covered(known);
    ask(head_on_, blocks_on_, max_drafts, plan);
  }

  void learn(const DraftPlan& plan, int n_levels, int n_accepted) override {
    if (plan.is_copy) copies_.learn(n_accepted);
    RuledDrafter::learn(plan, n_levels, n_accepted);
  }

 private:
  bool is_covered(std::span<const int> known) const {
    if (in_vocab_.empty()) return false;
    const auto last = known.last(std::min(known.size(), kCoverageIds));
    return std::all_of(last.begin(), last.end(),
                       [&](int id) { return in_vocab_[static_cast<std::size_t>(id)]; });
  }
  // Nothing is worth drafting after an id that ends the reply.
  void end_at_stop(std::vector<int>& ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (std::find(stop_ids_.begin(), stop_ids_.end(), ids[i]) == stop_ids_.end()) continue;
      ids.resize(i + 1);
      return;
    }
  }

  const bool copies_on_, head_on_;
  const BlockSet blocks_on_;
  const std::vector<int> stop_ids_;
  std::vector<bool> in_vocab_;
  CopySource copies_;
};

}  // namespace

bool head_drafts(DraftOptions::Source source, const Model& model) {
  return model.has_head() && (source == Source::mtp || source == Source::automatic);
}

BlockSet block_drafters(DraftOptions::Source source, const Model& model) {
  BlockSet blocks;
  blocks[BlockKind::dspark] = source == Source::dspark || source == Source::automatic;
  blocks[BlockKind::dflash] = source == Source::dflash || source == Source::automatic;
  for (const BlockKind kind : kBlockKinds) {
    blocks[kind] = blocks[kind] && model.block_drafts(kind) > 0;
  }
  return blocks;
}

std::unique_ptr<Drafter> make_drafter(const Request& request, const Model& model,
                                      CostSource costs) {
  if (request.draft.source == Source::off) return nullptr;
  if (request.script) return make_scripted_drafter(request, model, std::move(costs));
  return std::make_unique<StandardDrafter>(request, model, std::move(costs));
}

}  // namespace bolt
