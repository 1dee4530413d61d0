// How a check ends. receipts/ includes nothing of bolt's own, so that an auditor can read it alone:
// the numbers below are the exit statuses of `bolt receipt`, and cmd only passes them on.
#pragma once

#include <stdexcept>
#include <string>

namespace bolt::receipts {

// holds: checked and true. false_claim: checked and false. malformed: not an intact receipt.
// unmet: not comparable, inputs missing, nothing checked. trust: key or threshold.
// fault: the gate itself failed. A failure is never mapped to `holds` or `false_claim`.
enum class Status : int {
  holds = 0,
  false_claim = 1,
  usage = 2,
  malformed = 3,
  unmet = 4,
  trust = 5,
  fault = 6,
  interrupted = 130,
};

// One line: which field, where, expected against found.
struct Failure : std::runtime_error {
  Failure(Status s, const std::string& line) : std::runtime_error(line), status(s) {}
  const Status status;
};

}  // namespace bolt::receipts
