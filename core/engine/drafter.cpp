// Copies first, then the head; priced by the depth rule or of a fixed depth.
#include "core/engine/drafter.h"

#include <algorithm>
#include <optional>

#include "core/engine/copy_source.h"
#include "core/engine/depth_rule.h"
#include "core/engine/scripted_drafter.h"

namespace bolt {
namespace {

constexpr std::size_t kCoverageIds = 16;
// Of drafts in a shared round: a copy is verified whole where it pays at all, and drafts of a fixed
// number are not weighed.
constexpr float kCopyGain = 1.0f, kUnweighed = 2.0f;

class StandardDrafter final : public Drafter {
 public:
  StandardDrafter(const Request& request, const Model& model, CostSource costs)
      : copies_on_(request.draft.source != DraftOptions::Source::mtp),
        head_on_(request.draft.source != DraftOptions::Source::copy && model.has_head()),
        fixed_(request.draft.drafts),
        stop_ids_(request.stop_ids),
        costs_(std::move(costs)) {
    if (!head_on_ || model.draft_vocab().empty()) return;
    in_vocab_.assign(static_cast<std::size_t>(model.vocab_size()), false);
    for (const int id : model.draft_vocab()) in_vocab_[static_cast<std::size_t>(id)] = true;
  }

  bool uses_head() const override { return head_on_; }

  void plan(std::span<const int> known, int max_drafts, DraftPlan& plan) override {
    if (fixed_ >= 0) max_drafts = std::min(max_drafts, fixed_);
    if (max_drafts < 1) return;
    if (fixed_ < 0) share(plan);
    if (copies_on_ && (!rule_ || rule_->copies())) {
      plan.ids = copies_.propose(known, max_drafts);
      end_at_stop(plan.ids);
      plan.is_copy = !plan.ids.empty();
      plan.gains.assign(plan.ids.size(), rule_ ? kCopyGain : kUnweighed);
      if (plan.is_copy) return;
    }
    if (!head_on_) return;
    plan.draft_vocab = is_covered(known);
    if (rule_ && !rule_->asks_head(plan.draft_vocab)) return;
    plan.max_levels = max_drafts;
    if (!rule_) return;
    rule_->price_drafts(plan.draft_vocab, prices_);
    rule_->price_rows(row_prices_);
    plan.go_on = prices_;
    plan.row_prices = row_prices_;
  }

  void choose(std::span<const Draft> chain, DraftPlan& plan) override {
    const auto n = rule_ ? static_cast<std::size_t>(rule_->n_verified(chain)) : chain.size();
    float product = 1.0f;
    for (const Draft& draft : chain.first(n)) {
      plan.ids.push_back(draft.id);
      product *= draft.probability;
      plan.gains.push_back(rule_ ? product * product : kUnweighed);
    }
  }

  void learn(const DraftPlan& plan, int n_levels, int n_accepted) override {
    if (plan.is_copy) copies_.learn(n_accepted);
    if (!rule_) return;
    rule_->share(plan.n_sharing);
    rule_->learn(plan.is_copy, plan.draft_vocab, n_levels, static_cast<int>(plan.ids.size()),
                 n_accepted + 1);
  }

 private:
  void share(DraftPlan& plan) {
    if (!rule_) rule_.emplace(costs_());
    rule_->share(plan.n_sharing);
    plan.rate = rule_->rate();
    plan.costs = &costs_();
  }
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
  const int fixed_;  // drafts at most, no rule; < 0: the rule decides
  const std::vector<int> stop_ids_;
  CostSource costs_;
  std::vector<bool> in_vocab_;
  CopySource copies_;
  std::optional<DepthRule> rule_;
  std::array<float, kWindowRowsMax> prices_{};
  std::array<double, kWindowRowsMax> row_prices_{};
};

}  // namespace

std::unique_ptr<Drafter> make_drafter(const Request& request, const Model& model,
                                      CostSource costs) {
  using Source = DraftOptions::Source;
  if (request.draft.source == Source::off) return nullptr;
  if (request.script) return make_scripted_drafter(request, model, std::move(costs));
  return std::make_unique<StandardDrafter>(request, model, std::move(costs));
}

}  // namespace bolt
