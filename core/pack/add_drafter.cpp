// Binding a drafter's checkpoint, comparing its embedding with the target's, packing what is new.
#include "core/pack/add_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/base/bits.h"
#include "core/base/contract.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/pack/binding.h"
#include "core/pack/block_drafter.h"
#include "core/pack/convert_steps.h"
#include "core/pack/drafter_config.h"
#include "core/pack/format_choice.h"
#include "core/pack/gguf.h"
#include "core/pack/graph_walk.h"
#include "core/pack/package_writer.h"
#include "core/pack/repackage.h"
#include "core/pack/source_files.h"
#include "core/pack/source_rows.h"

namespace bolt {
namespace {

void refuse_other_options(const ConvertOptions& options) {
  const auto refuse = [](const char* option) {
    throw Error(Exit::usage, fmt::format("{}: does not go with --drafter-for; it is the package's, "
                                         "which stays as it is",
                                         option));
  };
  if (options.geometry) refuse("--geometry");
  if (options.without_mtp) refuse("--without-mtp");
  if (!options.draft_vocab_file.empty() || options.n_draft_vocab > 0) refuse("--draft-vocab");
  if (is_gguf(options.source)) {
    throw Error(Exit::input, options.source +
                                 ": drafters of GGUF are not supported; give the checkpoint of "
                                 "config.json and safetensors");
  }
  if (is_package(options.source)) {
    throw Error(Exit::usage,
                options.source + ": is a package; --drafter-for takes a drafter's checkpoint");
  }
}

// Every row but the mask's is the target's, bit for bit: the package keeps one table.
void compare_embeddings(const Checkpoint& checkpoint, const Tensor& table, int mask_id,
                        const Weight& target, ThreadPool& pool) {
  if (is_integer(target.format)) {
    throw Error(
        Exit::input,
        fmt::format("{}: the package's embedding is {}, so the drafter's cannot be compared "
                    "with it; convert the target from a checkpoint that keeps it in BF16",
                    checkpoint.path, format_name(target.format)));
  }
  const SourceEncoding* const encoding = source_encoding(table.dtype);
  require(encoding != nullptr && !is_integer(encoding->format), "an embedding is of floats");
  const auto n_cols = static_cast<std::size_t>(target.n_cols);
  const auto here = static_cast<std::size_t>(encoding->bytes),
             there = static_cast<std::size_t>(code_bytes(target.format));
  const SourceFile& file = checkpoint.files[static_cast<std::size_t>(table.file)];
  std::vector<std::uint8_t> differs(static_cast<std::size_t>(target.n_rows), 0);
  pool.parallel_for(target.n_rows, 256, [&](int begin, int end, int) {
    std::vector<std::byte> row(n_cols * here);
    for (int r = begin; r < end; ++r) {
      if (r == mask_id) continue;
      const auto at = static_cast<std::uint64_t>(r);
      read_at(file.descriptor, file.path, table.offset + at * row.size(), row);
      const std::byte* const ours = target.data + at * n_cols * there;
      for (std::size_t i = 0; i < n_cols; ++i) {
        const float a = widened(encoding->format, row.data(), i),
                    b = widened(target.format, ours, i);
        if (float_bits(a) != float_bits(b)) {
          differs[static_cast<std::size_t>(r)] = 1;
          break;
        }
      }
    }
  });
  const auto first = std::find(differs.begin(), differs.end(), 1);
  if (first == differs.end()) return;
  throw Error(Exit::input,
              fmt::format("{}: {} of {} rows of {} are not the package's, the first is {}; the "
                          "drafter was made for another model",
                          checkpoint.path, std::count(differs.begin(), differs.end(), 1),
                          target.n_rows - 1, table.name, first - differs.begin()));
}

}  // namespace

ConvertFacts add_drafter(const ConvertOptions& options) {
  refuse_other_options(options);
  if (!is_package(options.drafter_for)) {
    throw Error(Exit::usage, options.drafter_for + ": no package to add a drafter to");
  }
  ConvertFacts facts;
  facts.source = options.source;
  facts.target = options.target;
  facts.source_format = "drafter";
  facts.arith_id = kContractId;
  facts.arith_sha256 = kContractSha256;
  const int n_threads = options.n_threads > 0 ? options.n_threads : usable_cores();
  const auto package =
      Package::open(options.drafter_for, {.n_threads = n_threads, .carry_hashes = true});
  check_conversion_target(options.target, package->path());
  const Graph& target = package->graph();

  const Checkpoint checkpoint = open_checkpoint(options.source, false);
  check_conversion_target(options.target, checkpoint.folder);
  const DrafterConfig config = read_drafter_config(checkpoint.folder, target);
  const char* const kind = kind_name(config.drafter.kind);
  for (const BlockDrafter& there : target.drafters) {
    if (there.kind != config.drafter.kind) continue;
    throw Error(Exit::usage, fmt::format("{}: has a {} drafter already; add this one to the "
                                         "package without it",
                                         options.drafter_for, kind));
  }
  BlockDrafter shaped = config.drafter;
  shape_drafter(shaped, config.n_layers, target);
  BoundGraph bound = bind_drafter(checkpoint, shaped, target);
  check_keep(options, bound);
  choose_formats(options, bound, facts);
  facts.source_name = std::filesystem::path(checkpoint.folder).filename().string();

  PackageWriter writer(options.target, options.force, n_threads);
  compare_embeddings(checkpoint,
                     *bound.bindings.at(std::string(kind) + ".mask_embedding").tensors[0],
                     shaped.mask_id, target.embedding, writer.pool());
  SourceRows source(checkpoint, bound);
  pack_weights(options, writer, source, bound.graph, kind, facts);
  std::vector<PackageFile> drafter_files =
      hash_sources(checkpoint, writer.pool(), options.progress);
  check_unchanged(checkpoint);
  writer.write_text(fmt::format("{}.json", kind), "drafter", drafter_json(bound.graph.drafters[0]));
  link_files(*package, writer, "", facts);
  for (PackageFile& file : drafter_files) {
    facts.source_bytes += file.bytes;
    file.path = "drafter/" + file.path;
    facts.source_files.push_back(std::move(file));
  }

  JsonWriter json;
  json.begin_object()
      .member("drafter", kind)
      .member("drafter_source", facts.source_name)
      .member("quant", options.quant ? format_name(*options.quant) : "")
      .member("keep", options.keep)
      .member("verify", options.verify)
      .member("package_sha256", package->files().front().sha256);
  facts.options = json.end_object().take();
  facts.package_source = package->source();
  finish_package(options, writer, facts);
  facts.n_tensors = checkpoint.tensors.size();
  facts.has_draft_head = target.draft.has_value();
  facts.geometry = target.geometry;
  facts.n_draft_vocab = target.draft ? target.draft->vocab_ids.size() : 0;
  facts.drafters = {kind};
  facts.n_parameters = n_parameters(bound.graph);
  return facts;
}

}  // namespace bolt
