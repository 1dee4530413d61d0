// `bolt convert`: a Hugging Face checkpoint becomes a package. Streams: memory stays flat whatever
// the checkpoint's size. Nothing stands at the target until everything is written and verified.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/pack/package.h"
#include "core/pack/progress.h"

namespace bolt {

struct ConvertOptions {
  std::string source, target;
  // A package: the source is a separate drafter for its model (add_drafter.h). Empty: none.
  std::string drafter_for;
  std::optional<Format> quant;  // q8, nvfp4: linears are quantised to it; none: formats are kept
  std::optional<Geometry> geometry;  // none: dynamic, or for a package what it has
  std::vector<std::string> keep;  // fnmatch patterns of weights or tensors that are not quantised
  bool without_mtp = false;
  // The draft vocabulary: a file of ids, or how many ids, the most frequent in draft_texts.
  std::string draft_vocab_file;
  int n_draft_vocab = 0;
  std::vector<std::string> draft_texts;
  bool verify = true;
  bool force = false;  // replace a package at the target
  int n_threads = 0;   // 0: all
  std::string bolt_version;
  WorkProgress progress;
};

// What was done, for the summary and the receipt.
struct ConvertFacts {
  std::string source, target;              // as given
  std::string source_name;                 // the checkpoint's folder name
  std::vector<PackageFile> source_files;   // path, bytes, sha256
  std::vector<PackageFile> package_files;  // package.json first
  std::string source_format;               // safetensors, gguf, package or drafter
  std::string options;                     // as JSON, in package.json too
  std::uint64_t n_tensors = 0;             // of the checkpoint, used
  std::vector<std::string> skipped;        // tensors left out: towers, the MTP head if asked
  std::uint64_t source_bytes = 0, package_bytes = 0;
  std::uint64_t n_parameters = 0;      // without the draft vocabulary's copies
  std::vector<std::string> quantised;  // weights whose values changed
  // Tensors whose format is another than the checkpoint's quantisation config says.
  std::vector<std::string> disagreeing;
  bool has_draft_head = false;
  std::string package_source;         // what the package says it was made from
  Geometry geometry;                  // of the package made
  std::vector<std::string> drafters;  // kinds of separate drafters
  std::uint64_t n_draft_vocab = 0;    // ids of the draft vocabulary; 0: none
  std::string template_problem;       // why the chat template is not understood; empty: it is
  bool verified = false;
  std::uint64_t n_verified_values = 0, n_verified_quantised = 0;
  // Of each quantised weight: the root of its squared errors' sum over that of its values, the
  // worst first. Known where verified.
  std::vector<std::pair<std::string, double>> errors;
  std::size_t n_linked = 0, n_copied = 0;  // files of another package
  std::string arith_id, arith_sha256;
};

// A checkpoint to a package, or (repackage.h) a package to one of another geometry, or
// (add_drafter.h) a package and a drafter's checkpoint to one that has both.
// Throws Error(usage) for targets and options that cannot be, Error(input) for a checkpoint that is
// not a whole Nemotron-H, Error(fault) for a disk that fails or a value that does not verify.
ConvertFacts convert(const ConvertOptions& options);

// Throws Error(usage) where the target is the source, in it or around it, or has no folder to be
// in.
void check_conversion_target(const std::string& target, const std::string& source);

}  // namespace bolt
