// SIGINT while a batch runs: once to finish what is running, twice to cut it short, a third time to
// end the process on the spot. SIGTERM and SIGHUP, which come from those who will not wait, cut
// short at once.
#pragma once

namespace bolt {

class BatchSignals {
 public:
  // Takes over from catch_interrupts(); what came before counts as the word to cut short.
  BatchSignals();
  ~BatchSignals();
  BatchSignals(const BatchSignals&) = delete;
  BatchSignals& operator=(const BatchSignals&) = delete;

  // 0: go on; 1: take no further line; 2: cut short.
  static int level();
};

}  // namespace bolt
