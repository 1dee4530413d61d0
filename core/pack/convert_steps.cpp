#include "core/pack/convert_steps.h"

#include <algorithm>

#include "core/pack/graph_walk.h"
#include "core/pack/source_files.h"
#include "core/pack/verify.h"

namespace bolt {

void pack_weights(const ConvertOptions& options, PackageWriter& writer, SourceRows& source,
                  Graph& graph, const std::string& prefix, ConvertFacts& facts) {
  source.measure(writer.pool(), options.progress);
  writer.place_weights(graph, prefix);
  PayloadVerifier verifier(source, graph);
  pack_rows(writer, graph, source, options.verify ? &verifier : nullptr, options.progress);
  if (!options.verify) return;
  const Verified verified = verifier.result();
  facts.verified = true;
  facts.n_verified_values = verified.n_values;
  facts.n_verified_quantised = verified.n_quantised;
  facts.errors = verified.errors;
}

void link_files(const Package& package, PackageWriter& writer, std::string_view rewritten,
                ConvertFacts& facts) {
  for (const PackageFile& file : package.files()) {
    facts.source_files.push_back(file);
    if (file.role == "manifest" || file.role == rewritten) continue;
    ++(writer.link_file(package.path() + "/" + file.path, file) ? facts.n_linked : facts.n_copied);
  }
}

void finish_package(const ConvertOptions& options, PackageWriter& writer, ConvertFacts& facts) {
  std::sort(facts.source_files.begin(), facts.source_files.end(),
            [](const PackageFile& a, const PackageFile& b) { return a.path < b.path; });
  PackageFacts made;
  made.bolt_version = options.bolt_version;
  made.source = facts.package_source;
  made.source_files = facts.source_files;
  made.options = facts.options;
  facts.package_files = writer.finish(made);
  for (const PackageFile& file : facts.package_files) facts.package_bytes += file.bytes;
}

std::uint64_t n_parameters(const Graph& graph) {
  std::uint64_t n = 0;
  each_weight(graph, [&](const std::string& name, const Weight& w) {
    if (name == "draft.vocab_head") return;  // rows of lm_head once more
    n += static_cast<std::uint64_t>(w.n_matrices) * static_cast<std::uint64_t>(w.n_rows) *
         static_cast<std::uint64_t>(w.n_cols);
  });
  return n;
}

}  // namespace bolt
