// Rewriting a package's graph around the payload it has.
#include "core/pack/repackage.h"

#include <fmt/format.h>

#include <charconv>

#include "core/base/contract.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/pack/convert_steps.h"
#include "core/pack/file_kind.h"
#include "core/pack/graph_walk.h"
#include "core/pack/package_text.h"
#include "core/pack/package_writer.h"

namespace bolt {
namespace {

void refuse_other_options(const ConvertOptions& options) {
  const auto refuse = [](const char* option) {
    throw Error(Exit::usage, fmt::format("{}: needs the checkpoint; from a package only --geometry "
                                         "can be changed",
                                         option));
  };
  if (options.quant) refuse("--quant");
  if (!options.keep.empty()) refuse("--keep");
  if (options.without_mtp) refuse("--without-mtp");
  if (!options.draft_vocab_file.empty() || options.n_draft_vocab > 0) refuse("--draft-vocab");
  if (!options.geometry) {
    throw Error(Exit::usage, options.source +
                                 ": is a package already; --geometry makes one of "
                                 "another row geometry of it");
  }
}

}  // namespace

bool is_package(const std::string& path) {
  return is_folder(path) && path_exists(path + "/package.json");
}

std::string geometry_text(const Geometry& geometry) {
  switch (geometry.kind) {
    case Geometry::Kind::dynamic:
      return "dynamic";
    case Geometry::Kind::fixed:
      return fmt::format("fixed:{}", geometry.n_rows);
    case Geometry::Kind::hybrid:
      return fmt::format("hybrid:{}", geometry.n_rows);
  }
  return "";
}

Geometry parse_geometry(const std::string& option, const std::string& text) {
  if (text == "dynamic") return {};
  Geometry geometry;
  std::string_view rows;
  for (const auto& [prefix, kind] :
       {std::pair{"fixed:", Geometry::Kind::fixed}, {"hybrid:", Geometry::Kind::hybrid}}) {
    if (!text.starts_with(prefix)) continue;
    geometry.kind = kind;
    rows = std::string_view(text).substr(std::string_view(prefix).size());
  }
  const auto [end, error] =
      std::from_chars(rows.data(), rows.data() + rows.size(), geometry.n_rows);
  const bool whole = error == std::errc() && end == rows.data() + rows.size();
  if (rows.empty() || !whole || geometry.n_rows < 1 || geometry.n_rows > 32) {
    throw Error(Exit::usage, fmt::format("{}: {}, expected dynamic, fixed:R or hybrid:R with R "
                                         "from 1 to 32",
                                         option, json_quote(text)));
  }
  return geometry;
}

ConvertFacts repackage(const ConvertOptions& options) {
  refuse_other_options(options);
  ConvertFacts facts;
  facts.source = options.source;
  facts.target = options.target;
  facts.source_format = "package";
  facts.arith_id = kContractId;
  facts.arith_sha256 = kContractSha256;
  const int n_threads = options.n_threads > 0 ? options.n_threads : usable_cores();
  const auto package =
      Package::open(options.source, {.n_threads = n_threads, .carry_hashes = true});
  check_conversion_target(options.target, package->path());
  PackageWriter writer(options.target, options.force, n_threads);
  link_files(*package, writer, "graph", facts);
  for (const PackageFile& file : facts.source_files) facts.source_bytes += file.bytes;
  Graph graph = package->graph();
  graph.geometry = *options.geometry;
  writer.write_text("graph.json", "graph", graph_json(graph));
  facts.source_name = package->source();
  JsonWriter json;
  json.begin_object()
      .member("geometry", geometry_text(graph.geometry))
      .member("package_sha256", package->files().front().sha256);
  facts.options = json.end_object().take();
  facts.package_source = package->source();
  finish_package(options, writer, facts);
  facts.has_draft_head = graph.draft.has_value();
  facts.geometry = graph.geometry;
  for (const BlockDrafter& drafter : graph.drafters) {
    facts.drafters.push_back(kind_name(drafter.kind));
  }
  facts.n_draft_vocab = graph.draft ? graph.draft->vocab_ids.size() : 0;
  each_weight(graph, [&](const std::string&, const Weight&) { ++facts.n_tensors; });
  facts.n_parameters = n_parameters(graph);
  return facts;
}

}  // namespace bolt
