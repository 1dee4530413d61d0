// `--logits FILE`: the reply's ids and each emitted position's logits as a safetensors file,
//   ids I32 [n], logits F32 [n, vocab]
// whose bytes depend on nothing else, so that two runs compare with cmp.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/output.h"

namespace bolt {

// Throws unless nothing is at `path`, or an earlier logits file: what else is there was not meant
// to be replaced. Error(fault) for a folder or device, Error(usage) for another file.
void check_logits_target(const std::string& path);

class LogitsFile {
 public:
  // Opens a temporary file beside `path`; without commit() nothing appears there.
  LogitsFile(const std::string& path, int n_vocab);

  void add(int id, std::span<const float> logits);
  void commit();

 private:
  AtomicFile file_;
  int n_vocab_;
  std::vector<int> ids_;
};

}  // namespace bolt
