// What drafters that follow the depth rule share, wherever their drafts come from.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/engine/depth_rule.h"
#include "core/engine/drafter.h"

namespace bolt {

class RuledDrafter : public Drafter {
 public:
  // Those of the chain that are worth their rows.
  void choose(std::span<const Draft> chain, DraftPlan& plan) override {
    if (rule_) rule_->note(plan.block, chain);
    n_made_ = plan.max_levels;
    likely_.clear();
    const auto n =
        rule_ ? static_cast<std::size_t>(rule_->n_verified(plan.block, chain)) : chain.size();
    float product = 1.0f, gain = 1.0f;
    for (const Draft& draft : chain.first(n)) {
      plan.ids.push_back(draft.id);
      product *= draft.probability;
      likely_.push_back(product * product);
      const auto k = static_cast<int>(likely_.size());
      if (rule_) gain = std::min(gain, rule_->gain(plan.block, k, likely_.back()));
      plan.gains.push_back(rule_ ? gain : kUnweighed);
    }
  }
  void learn(const DraftPlan& plan, int n_levels, int n_accepted) override {
    if (plan.block && n_levels == 0) unable_[*plan.block] = true;
    if (!rule_) {
      if (n_levels > 0) kept_of(plan.block) += (n_accepted - kept_of(plan.block)) / 8;
      return;
    }
    rule_->share(plan.n_sharing);
    if (plan.is_copy || n_levels == 0) {
      return rule_->learn(plan.is_copy, static_cast<int>(plan.ids.size()), n_accepted);
    }
    // A shared round may have cut the chain.
    const auto likely = std::span<const float>(likely_).first(plan.ids.size());
    if (plan.block) return rule_->learn_block(*plan.block, n_made_, likely, n_accepted);
    rule_->learn_head(plan.draft_vocab, n_levels, likely, n_accepted);
  }

 protected:
  // The gain of drafts of a fixed number, which a shared round does not weigh.
  static constexpr float kUnweighed = 2.0f;

  // fixed: drafts at most, without a rule; < 0: the rule decides.
  RuledDrafter(int fixed, CostSource costs) : fixed_(fixed), costs_(std::move(costs)) {
    kept_.fill(static_cast<float>(fixed) / 4);  // tried where another keeps fewer
  }

  int most_drafts(int max_drafts) const {
    return fixed_ >= 0 ? std::min(max_drafts, fixed_) : max_drafts;
  }
  // Tells the rule, if there is one, who shares the round, and the loop what the rule knows.
  void share(DraftPlan& plan) {
    if (fixed_ >= 0) return;
    if (!rule_) rule_.emplace(costs_());
    rule_->share(plan.n_sharing);
    plan.rate = rule_->rate();
    plan.costs = &costs_();
  }
  // Asks head or separate drafter for at most so many drafts, at what levels and rows cost if a
  // rule weighs them. Of the sources in question, which and how many is the rule's to say; without
  // one it is that whose last rounds kept the most. False where none is worth asking.
  bool ask(bool head, BlockSet blocks, int max_drafts, DraftPlan& plan) {
    for (const BlockKind kind : kBlockKinds) {
      blocks[kind] = blocks[kind] && !unable_[kind] && (!rule_ || rule_->asks(kind));
    }
    if (rule_) {
      head = head && rule_->asks_head(plan.draft_vocab);
      plan.block = rule_->best(head, blocks);
    } else {
      bool found = head;
      for (const BlockKind kind : kBlockKinds) {
        if (!blocks[kind] || (found && kept_of(kind) <= kept_of(plan.block))) continue;
        plan.block = kind;
        found = true;
      }
    }
    if (!head && !plan.block) return false;
    plan.max_levels = plan.block && rule_ ? rule_->n_made(*plan.block, max_drafts) : max_drafts;
    if (plan.block) plan.draft_vocab = false;
    if (!rule_) return true;
    rule_->price_rows(plan.block, row_prices_);
    plan.row_prices = row_prices_;
    if (plan.block) return true;
    rule_->price_drafts(plan.draft_vocab, prices_);
    plan.go_on = prices_;
    return true;
  }
  const std::optional<DepthRule>& rule() const { return rule_; }

 private:
  float& kept_of(std::optional<BlockKind> block) {
    return kept_[block ? 1 + static_cast<std::size_t>(*block) : 0];
  }

  const int fixed_;
  CostSource costs_;
  std::optional<DepthRule> rule_;
  int n_made_ = 0;               // drafts that were asked for last
  std::vector<float> likely_;    // [draft]: P^2 of those that were chosen last
  BlockSet unable_;              // could not draft for this sequence
  std::array<float, 3> kept_{};  // drafts kept of a round, smoothed: the head's, then by kind
  std::array<float, kWindowRowsMax> prices_{};
  std::array<double, kWindowRowsMax> row_prices_{};
};

}  // namespace bolt
