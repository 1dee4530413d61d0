// The engine as receipts/replay.h wants it: a package opened to run a receipt's task again, or to
// score the ids that it claims.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cmd/options.h"
#include "receipts/replay.h"

namespace bolt {

class EngineReplayer final : public receipts::Replayer {
 public:
  // Throws as find_package, Package::open and Engine::open do.
  EngineReplayer(const ModelOptions& model, const HowOptions& how);
  ~EngineReplayer() override;

  receipts::ReplayerFacts facts() const override;
  receipts::Replayed run(const receipts::ReplayTask& task) override;
  // The claimed ids go through the target as a prompt does, every row sampled: each position's
  // choice is made after the claimed ids before it, so all misses are found, whatever came before.
  receipts::Scored score(const receipts::ReplayTask& task,
                         const std::vector<int>& claimed) override;

 private:
  struct Opened;
  std::unique_ptr<Opened> opened_;
};

// ordinary, k1 to k31, auto, copy, mtp, dspark, dflash; throws Failure(usage) otherwise.
DraftOptions parse_mode(const std::string& mode);

}  // namespace bolt
