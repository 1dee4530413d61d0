// `bolt bench --make`: a package of generated weights at disk speed, for measuring on shapes whose
// checkpoint is not at hand. Its replies are noise, and its manifest says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/pack/package.h"
#include "core/pack/progress.h"

namespace bolt {

struct MakeOptions {
  std::string shape;  // a name of shapes.h, or a config.json
  Format format = Format::bf16;
  std::optional<Format> experts;  // of the routed experts, where they differ
  std::string target;
  bool force = false;
  int n_threads = 0;  // 0: all
  std::uint64_t seed = 1;
  std::string drafter_for;  // a package, for shapes of separate drafters (make_drafter.h)
  std::string bolt_version;
  WorkProgress progress;
};

// Linears in `format` (routers bf16 or f32, and under nvfp4 the draft head bf16, as releases have
// it), the embedding in bf16 for quantised formats; a byte tokenizer and a v3 template. Equal
// options give equal bytes. Answers the package's files, package.json first.
std::vector<PackageFile> make_package(const MakeOptions& options);

}  // namespace bolt
