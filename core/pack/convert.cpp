// The conversion's steps, in order: check, bind, choose formats, pack, verify, describe, rename.
#include "core/pack/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <memory>

#include "core/base/contract.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/printable.h"
#include "core/base/sha256.h"
#include "core/pack/add_drafter.h"
#include "core/pack/binding.h"
#include "core/pack/chat_source.h"
#include "core/pack/convert_steps.h"
#include "core/pack/draft_vocab.h"
#include "core/pack/drafter_config.h"
#include "core/pack/file_kind.h"
#include "core/pack/format_choice.h"
#include "core/pack/gguf_model.h"
#include "core/pack/graph_walk.h"
#include "core/pack/modelopt.h"
#include "core/pack/package_text.h"
#include "core/pack/package_writer.h"
#include "core/pack/repackage.h"
#include "core/pack/source_files.h"
#include "core/pack/source_rows.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;

bool inside(const fs::path& inner, const fs::path& outer) {
  const auto at = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first;
  return at == outer.end();
}

// The path without its dots and links, as far as it exists.
fs::path canonical_path(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) throw Error(Exit::usage, fmt::format("{}: {}", printable(path), error.message()));
  return canonical;
}

// The draft vocabulary's head: rows of lm_head, copied, so that a level reads them in one run.
void add_draft_vocab(const ConvertOptions& options, const Tokenizer& tokenizer,
                     const std::vector<int>& stop_ids, BoundGraph& bound, ConvertFacts& facts) {
  const bool from_file = !options.draft_vocab_file.empty();
  if (!from_file && options.n_draft_vocab == 0) return;
  if (!bound.graph.draft) {
    throw Error(Exit::usage, "--draft-vocab: the package has no draft head to use it");
  }
  DraftHead& draft = *bound.graph.draft;
  draft.vocab_ids =
      from_file ? read_draft_vocab(options.draft_vocab_file, tokenizer.n_tokens())
                : frequent_ids(tokenizer, options.draft_texts, options.n_draft_vocab, stop_ids);
  draft.vocab_head = bound.graph.lm_head;
  draft.vocab_head.n_rows = static_cast<int>(draft.vocab_ids.size());
  Binding rows = bound.bindings.at("lm_head");
  rows.weight = "draft.vocab_head";
  rows.rows = draft.vocab_ids;
  bound.bindings.emplace(rows.weight, std::move(rows));
  facts.n_draft_vocab = draft.vocab_ids.size();
}

std::string options_json(const ConvertOptions& options, std::uint64_t n_draft_vocab) {
  JsonWriter json;
  json.begin_object()
      .member("quant", options.quant ? format_name(*options.quant) : "")
      .member("keep", options.keep)
      .member("without_mtp", options.without_mtp)
      .member("draft_vocab", n_draft_vocab)
      .member("geometry", geometry_text(options.geometry.value_or(Geometry{})))
      .member("verify", options.verify);
  return json.end_object().take();
}

std::string folder_name(const std::string& folder) {
  const fs::path path = canonical_path(folder);
  return path.filename().string();
}

// A checkpoint with all that is read beside its tensors.
struct Source {
  Checkpoint checkpoint;
  std::string name;  // declared origin: the folder's, or the GGUF file's
  std::string tokenizer_json;
  std::unique_ptr<Tokenizer> tokenizer;
  CheckpointConfig config;
  std::string template_problem;
  QuantMetadata quantisation;
};

Source open_gguf_source(const ConvertOptions& options) {
  Source source;
  GgufCheckpoint opened = open_gguf(options.source);
  // The package may lie beside the file; in a folder of files, that folder is the source.
  check_conversion_target(options.target, options.source);
  const std::string& file = opened.metadata.path;
  source.name = fs::path(file).filename().string();
  source.tokenizer_json = gguf_tokenizer_json(opened.metadata);
  source.tokenizer = Tokenizer::from_json(source.tokenizer_json, file);
  source.config = read_gguf_config(opened, *source.tokenizer);
  const GgufTemplate chat = gguf_template(opened.metadata);
  source.template_problem = use_chat_template(chat.text, chat.bos, chat.eos, source.config.model);
  source.checkpoint = std::move(opened.checkpoint);
  return source;
}

Source open_source(const ConvertOptions& options) {
  if (is_gguf(options.source)) return open_gguf_source(options);
  Source source;
  source.checkpoint = open_checkpoint(options.source, options.without_mtp);
  const std::string& folder = source.checkpoint.folder;
  check_conversion_target(options.target, folder);
  if (is_drafter_checkpoint(folder)) {
    throw Error(Exit::usage, folder +
                                 ": is a separate drafter, no model by itself; --drafter-for "
                                 "PACKAGE adds it to its model's");
  }
  const std::string path = folder + "/tokenizer.json";
  if (!path_exists(path)) {
    throw Error(Exit::input, folder +
                                 ": tokenizer.json is missing; fetch it from the "
                                 "checkpoint's repository");
  }
  source.name = folder_name(folder);
  source.tokenizer_json = read_file(path);
  refuse_other_kinds(path, source.tokenizer_json);
  source.tokenizer = Tokenizer::from_json(source.tokenizer_json, path);
  source.config = read_checkpoint_config(folder, *source.tokenizer);
  source.template_problem = read_chat_template(folder, source.config.model);
  source.quantisation = read_quant_metadata(folder);
  return source;
}

}  // namespace

// The target must not touch the source: replacing or filling it would destroy what is being read.
void check_conversion_target(const std::string& to, const std::string& from) {
  if (to.empty()) throw Error(Exit::usage, "the target's name is empty");
  const fs::path source = canonical_path(from);
  std::string trimmed = to;
  while (trimmed.size() > 1 && trimmed.back() == '/') trimmed.pop_back();
  const fs::path target = canonical_path(trimmed);
  if (source == target) {
    throw Error(Exit::usage, fmt::format("{}: source and target are the same folder", to));
  }
  if (inside(target, source)) {
    throw Error(Exit::usage,
                fmt::format("{}: lies inside the source {}; choose a target outside it", to, from));
  }
  if (inside(source, target)) {
    throw Error(Exit::usage,
                fmt::format("{}: holds the source {}; choose another target", to, from));
  }
  const fs::path parent = target.parent_path();
  if (!is_folder(parent.string())) {
    throw Error(Exit::usage, fmt::format("{}: its folder {} does not exist", to, parent.string()));
  }
}

ConvertFacts convert(const ConvertOptions& options) {
  if (!options.drafter_for.empty()) return add_drafter(options);
  if (is_package(options.source)) return repackage(options);
  ConvertFacts facts;
  facts.source = options.source;
  facts.target = options.target;
  facts.arith_id = kContractId;
  facts.arith_sha256 = kContractSha256;

  const Source from = open_source(options);
  const Checkpoint& checkpoint = from.checkpoint;
  const std::string& tokenizer = from.tokenizer_json;
  CheckpointConfig config = from.config;
  facts.source_format = checkpoint.kind;
  config.model.name = facts.source_name = from.name;
  facts.template_problem = from.template_problem;
  BoundGraph bound = bind_checkpoint(checkpoint, config, options.without_mtp);
  facts.disagreeing = disagreements(from.quantisation, bound);
  add_draft_vocab(options, *from.tokenizer, config.model.stop_ids, bound, facts);
  facts.options = options_json(options, facts.n_draft_vocab);
  check_keep(options, bound);
  choose_formats(options, bound, facts);
  bound.graph.geometry = options.geometry.value_or(Geometry{});

  const int n_threads = options.n_threads > 0 ? options.n_threads : usable_cores();
  PackageWriter writer(options.target, options.force, n_threads);
  SourceRows source(checkpoint, bound);
  pack_weights(options, writer, source, bound.graph, "weights", facts);
  // The disk writes while the source is hashed.
  std::future<void> synced = std::async(std::launch::async, [&] { writer.sync(); });
  facts.source_files = hash_sources(checkpoint, writer.pool(), options.progress);
  check_unchanged(checkpoint);
  synced.get();
  writer.write_text("graph.json", "graph", graph_json(bound.graph));
  writer.write_text("config.json", "config", config_json(bound.facts, config.model));
  writer.write_text("tokenizer.json", "tokenizer", tokenizer);
  if (facts.n_draft_vocab > 0) {
    writer.write_text("draft_vocab.json", "draft_vocab",
                      draft_vocab_json(bound.graph.draft->vocab_ids));
  }

  facts.package_source = config.model.name;
  finish_package(options, writer, facts);

  facts.n_tensors = checkpoint.tensors.size() + checkpoint.absent.size() - bound.skipped.size();
  facts.skipped = bound.skipped;
  facts.has_draft_head = bound.graph.draft.has_value();
  facts.geometry = bound.graph.geometry;
  for (const PackageFile& file : facts.source_files) facts.source_bytes += file.bytes;
  facts.n_parameters = n_parameters(bound.graph);
  return facts;
}

}  // namespace bolt
