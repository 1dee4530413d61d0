// Running a receipt's task again, or scoring its ids, by an engine that the caller brings. Only
// this says that a receipt is true, as far as the build that does it is trusted.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "receipts/facts.h"
#include "receipts/verify.h"

namespace bolt::receipts {

// What the engine at hand is, to be held against the receipt.
struct ReplayerFacts {
  std::string exe, package_sha256, vocab;
  Arith arith;
  std::string device_arch;
  std::int64_t device_sms = 0;
};

struct ReplayTask {
  std::vector<int> prompt_ids;
  Sampling sampling;
  std::vector<int> stop_ids;  // empty with ignore_eos
  std::int64_t max_new = -1;  // -1: until a stop or the context's end
  std::int64_t context = 0;
  std::string mode;          // as mode_word() says (plan.h)
  bool want_logits = false;  // digests of each position's logits
};

struct Replayed {
  std::vector<int> ids;
  std::string stop;                 // as stop.kind
  std::vector<std::string> logits;  // SHA-256 of each position's f32 logits, if wanted
};

struct Scored {
  std::vector<int>
      chosen;  // at each claimed position, what the target samples after the ids before
  std::vector<std::string> logits;
  std::int64_t nonfinite = 0;
  std::int64_t passes = 0, ns = 0;
};

// An engine with a package loaded. Throws whatever its faults are; those end the check with fault.
class Replayer {
 public:
  virtual ~Replayer() = default;
  virtual ReplayerFacts facts() const = 0;
  virtual Replayed run(const ReplayTask& task) = 0;
  // One teacher-forced pass over prompt and claimed ids.
  virtual Scored score(const ReplayTask& task, const std::vector<int>& claimed) = 0;
};

struct ReplayOptions {
  std::string as;  // mode; empty: the recorded one
  bool same_build = false;
  std::optional<std::array<std::uint8_t, 32>> redaction_key;
};

// The receipt must have been verified. Throws Failure(unmet) where the engine's package,
// vocabulary, arithmetic or device is another than the receipt's, or the receipt lacks what a
// replay needs. Answers holds or false_claim; Failure(fault) where logits were not finite at
// scoring.
Answer replay(const Receipt& receipt, Replayer& replayer, const ReplayOptions& options);
Answer score(const Receipt& receipt, Replayer& replayer, const ReplayOptions& options);

}  // namespace bolt::receipts
