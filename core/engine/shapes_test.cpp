// Tiny models of every class of shapes, in the formats that all devices take: whatever is run how,
// and where, the reply and its logits are the CPU's ordinary ones.
#include <doctest/doctest.h>

#include <filesystem>
#include <optional>
#include <set>

#include "core/engine/testing/sample.h"
#include "core/pack/convert.h"
#include "core/pack/graph_walk.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::answer;
using Source = DraftOptions::Source;

EngineOptions host_options() {
  EngineOptions options;
  options.n_threads = 1;
  options.context = 256;
  return options;
}

Request request_of(int n_prompt, int n_vocab, float temperature) {
  Request request;
  for (int i = 0; i < n_prompt; ++i) request.prompt_ids.push_back((i * 31 + 7) % n_vocab);
  request.max_new = 40;
  request.sampling.temperature = temperature;
  request.sampling.seed = 5;
  request.draft = {Source::off, -1};
  return request;
}

// Whatever is run how, and where: the CPU's ordinary reply.
void check_package(const Package& package, const std::string& label) {
  const auto host = Engine::open(package, host_options());
  const auto on_host = host->new_sequence();
  for (const float temperature : {0.0f, 0.9f}) {
    const Request request = request_of(133, package.config().n_tokens, temperature);
    const Answer plain = answer(*host, *on_host, request);
    const auto check = [&](EngineOptions options, DraftOptions draft, double rate) {
      options.device = testing::test_device();
      const auto engine = Engine::open(package, options);
      const auto sequence = engine->new_sequence();
      Request drafted = request;
      drafted.draft = draft;
      if (rate > 0) drafted.script = std::make_shared<Script>(Script{plain.ids, rate, 3});
      for (int turn = 0; turn < 2; ++turn) {  // a sequence that starts over keeps nothing
        CHECK_MESSAGE(answer(*engine, *sequence, drafted) == plain, label, ", temperature ",
                      temperature, ", drafts ", draft.drafts, ", turn ", turn);
      }
    };
    EngineOptions options = host_options();
    check(options, {Source::off, -1}, 0);
    options.chunk_rows = 7;
    options.n_threads = 2;
    check(options, {Source::automatic, 31}, 0.85);
    options.window_rows = 5;
    options.graphs = false;
    check(options, {Source::mtp, 4}, 0);
  }
  // Control: another prompt's logits are told apart.
  CHECK_FALSE(answer(*host, *on_host, request_of(132, package.config().n_tokens, 0.0f)) ==
              answer(*host, *on_host, request_of(133, package.config().n_tokens, 0.0f)));
}

TEST_CASE("shapes: chunks, windows, drafts, graphs and device change no bit of a tiny model") {
  const testing::TemporaryFolder folder;
  int n_packages = 0;
  std::size_t n_shapes = 0;
  for (const testing::TinyShape& shape : testing::tiny_shapes()) {
    if (!testing::is_of_shard(n_shapes++)) continue;
    testing::write_tiny_checkpoint(folder / "checkpoint", shape.spec);
    for (const std::optional<Format> quant :
         {std::optional<Format>{}, std::optional{Format::q8}, std::optional{Format::nvfp4}}) {
      const auto package =
          testing::converted(folder / "checkpoint",
                             folder / ("tiny-" + std::to_string(n_packages++) + ".bolt"), quant);
      check_package(*package,
                    std::string(shape.name) + ", " + (quant ? format_name(*quant) : "as it is"));
    }
    std::filesystem::remove_all(folder / "checkpoint");
  }
}

TEST_CASE("shapes: models whose weights are in every block format of GGUF") {
  const testing::TemporaryFolder folder;
  std::set<Format> formats;
  std::size_t n_models = 0;
  for (const std::string name : {"dense.gguf", "moe-00001-of-00002.gguf"}) {
    ConvertOptions options;
    options.source = BOLT_SOURCE_DIR "/testdata/formats/" + name;
    options.target = folder / (name + ".bolt");
    options.n_threads = 1;
    convert(options);
    const auto package = Package::open(options.target, {.n_threads = 1, .use_hash_cache = false});
    each_weight(package->graph(), [&](const std::string&, const Weight& w) {
      if (is_block(w.format)) formats.insert(w.format);
    });
    if (testing::is_of_shard(n_models++)) check_package(*package, name);
  }
  CHECK(formats.size() == 13);
}

}  // namespace
}  // namespace bolt
