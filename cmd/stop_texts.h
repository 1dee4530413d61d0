// Finds the first stop text in a reply that arrives in pieces. Text that may be the beginning of
// one is held back, so that what was handed out never has to be taken back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace bolt {

// What comes out does not depend on how the text was cut into pieces.
class StopTexts {
 public:
  // None of `texts` is empty.
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Takes the next piece and answers what may be shown. Of several stop texts the one that is
  // complete first counts (of those that end together, the one that starts first); the text ends
  // before it, and matched() is true from then on.
  std::string push(std::string_view piece);
  // The reply has ended without one: what was held back.
  std::string finish();
  bool matched() const { return matched_; }

 private:
  std::vector<std::string> texts_;
  std::string held_;
  bool matched_ = false;
};

}  // namespace bolt
