// A coin a position, so that a draft is right or wrong whatever was proposed around it.
#include "core/engine/scripted_drafter.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/error.h"
#include "core/engine/depth_rule.h"

namespace bolt {
namespace {

// Uniform in [0, 1), by position: SplitMix64's finaliser.
double uniform(std::uint64_t seed, std::uint64_t position) {
  std::uint64_t z = seed + (position + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

class ScriptedDrafter final : public Drafter {
 public:
  ScriptedDrafter(const Request& request, const Model& model, CostSource costs)
      : script_(*request.script),
        n_prompt_(request.prompt_ids.size()),
        fixed_(request.draft.drafts),
        has_head_(model.has_head()),
        n_vocab_(model.vocab_size()),
        costs_(std::move(costs)) {}

  bool uses_head() const override { return has_head_; }

  void plan(std::span<const int> known, int max_drafts, DraftPlan& plan) override {
    if (fixed_ >= 0) max_drafts = std::min(max_drafts, fixed_);
    if (fixed_ < 0) {
      if (!rule_) rule_.emplace(costs_());
      rule_->share(plan.n_sharing);
      plan.rate = rule_->rate();
      plan.costs = &costs_();
    }
    chain_.clear();
    if (max_drafts < 1 || (rule_ && !rule_->asks_head(false))) return;
    std::array<float, kWindowRowsMax> prices{};
    if (rule_) rule_->price_drafts(false, prices);
    const auto rate = static_cast<float>(script_.rate);
    float product = 1.0f;
    for (std::size_t at = known.size() - n_prompt_; static_cast<int>(chain_.size()) < max_drafts;
         ++at) {
      if (rule_ && !chain_goes_on(product, prices[chain_.size()])) break;
      const int right = at < script_.reply_ids.size() ? script_.reply_ids[at] : 0;
      const bool is_right = uniform(script_.seed, at) < script_.rate;
      chain_.push_back({is_right ? right : (right + 1) % n_vocab_, rate});
      product *= rate;
    }
    plan.max_levels = static_cast<int>(chain_.size());
    plan.given = chain_;
    if (rule_) {
      rule_->price_rows(row_prices_);
      plan.row_prices = row_prices_;
    }
    if (!has_head_) choose({}, plan), plan.max_levels = 0;
  }

  void choose(std::span<const Draft>, DraftPlan& plan) override {
    const auto n = rule_ ? static_cast<std::size_t>(rule_->n_verified(chain_)) : chain_.size();
    float product = 1.0f;
    for (std::size_t i = 0; i < n; ++i) {
      plan.ids.push_back(chain_[i].id);
      product *= chain_[i].probability;
      plan.gains.push_back(rule_ ? product * product : 2.0f);
    }
  }

  void learn(const DraftPlan& plan, int n_levels, int n_accepted) override {
    if (!rule_) return;
    rule_->share(plan.n_sharing);
    rule_->learn(false, false, n_levels, static_cast<int>(plan.ids.size()), n_accepted + 1);
  }

 private:
  const Script script_;
  const std::size_t n_prompt_;
  const int fixed_;
  const bool has_head_;
  const int n_vocab_;
  CostSource costs_;
  std::optional<DepthRule> rule_;
  std::vector<Draft> chain_;
  std::array<double, kWindowRowsMax> row_prices_{};
};

}  // namespace

std::unique_ptr<Drafter> make_scripted_drafter(const Request& request, const Model& model,
                                               CostSource costs) {
  require(request.script != nullptr, "a scripted request has a script");
  return std::make_unique<ScriptedDrafter>(request, model, std::move(costs));
}

}  // namespace bolt
