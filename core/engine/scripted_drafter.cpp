// A coin a position, so that a draft is right or wrong whatever was proposed around it.
#include "core/engine/scripted_drafter.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/error.h"
#include "core/engine/ruled_drafter.h"

namespace bolt {
namespace {

// Uniform in [0, 1), by position: SplitMix64's finaliser.
double uniform(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t z = seed + (position + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// Of a source that names a separate drafter the head is no part.
bool uses_head_as_told(const Request& request, const Model& model) {
  const auto source = request.draft.source;
  return model.has_head() && source != DraftOptions::Source::dspark &&
         source != DraftOptions::Source::dflash;
}

class ScriptedDrafter final : public RuledDrafter {
 public:
  ScriptedDrafter(const Request& request, const Model& model, CostSource costs)
      : RuledDrafter(request.draft.drafts, std::move(costs)),
        script_(*request.script),
        n_prompt_(request.prompt_ids.size()),
        has_head_(uses_head_as_told(request, model)),
        blocks_(block_drafters(request.draft.source, model)),
        most_of_blocks_{model.block_drafts(BlockKind::dspark),
                        model.block_drafts(BlockKind::dflash)},
        n_vocab_(model.vocab_size()) {}

  bool uses_head() const override { return has_head_; }
  BlockSet uses_blocks() const override { return blocks_; }

  void plan(std::span<const int> known, int max_drafts, DraftPlan& plan) override {
    max_drafts = most_drafts(max_drafts);
    share(plan);
    chain_.clear();
    if (max_drafts < 1) return;
    const bool has_source = has_head_ || blocks_[BlockKind::dspark] || blocks_[BlockKind::dflash];
    if (!ask(has_head_ || !has_source, blocks_, max_drafts, plan)) return;
    max_drafts = plan.max_levels;
    if (plan.block) {
      max_drafts = std::min(max_drafts, most_of_blocks_[static_cast<std::size_t>(*plan.block)]);
    }
    // The probability under the head that the rule takes for this chance (depth_rule.h).
    const auto probability = static_cast<float>(std::sqrt(script_.rate));
    float product = 1.0f;
    for (std::size_t at = known.size() - n_prompt_; static_cast<int>(chain_.size()) < max_drafts;
         ++at) {
      if (rule() && !plan.block && !chain_goes_on(product, plan.go_on[chain_.size()])) break;
      const int right = at < script_.reply_ids.size() ? script_.reply_ids[at] : 0;
      const bool is_right = uniform(script_.seed, at) < script_.rate;
      chain_.push_back({is_right ? right : (right + 1) % n_vocab_, probability});
      product *= probability;
    }
    if (!has_source) {
      plan.max_levels = 0;
      return choose(chain_, plan);
    }
    plan.max_levels = static_cast<int>(chain_.size());
    plan.given = chain_;
  }

 private:
  const Script script_;
  const std::size_t n_prompt_;
  const bool has_head_;
  const BlockSet blocks_;
  const std::array<int, 2> most_of_blocks_;
  const int n_vocab_;
  std::vector<Draft> chain_;
};

}  // namespace

std::unique_ptr<Drafter> make_scripted_drafter(const Request& request, const Model& model,
                                               CostSource costs) {
  require(request.script != nullptr, "a scripted request has a script");
  return std::make_unique<ScriptedDrafter>(request, model, std::move(costs));
}

}  // namespace bolt
