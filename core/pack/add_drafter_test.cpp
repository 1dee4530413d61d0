// Separate drafters in packages: what a checkpoint becomes, what is shared, and what is refused.
#include "core/pack/add_drafter.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/output.h"
#include "core/pack/block_drafter.h"
#include "core/pack/graph_walk.h"
#include "core/pack/make_drafter.h"
#include "core/pack/model_facts.h"
#include "core/pack/repackage.h"
#include "core/pack/shapes.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

using testing::TemporaryFolder;
using testing::TestTensor;

constexpr int kLayers = 2;

BlockDrafter small_drafter(BlockKind kind) {
  BlockDrafter d = lightning_drafter(kind);
  d.mask_id = 17;
  d.n_heads = 4;
  d.head_dim = 32;
  d.d_ff = 96;
  d.taps = {0, 2};
  if (d.window > 0) d.window = 64;
  if (d.markov_rank > 0) d.markov_rank = 16;
  return d;
}

// A tiny package, and checkpoints of drafters for it.
struct Place {
  TemporaryFolder folder;
  std::string package = folder / "target.bolt";
  Place() { testing::make_tiny_package(package, {}); }

  std::string make(BlockKind kind, std::uint64_t seed = 1) {
    MakeOptions options;
    options.shape = kind_name(kind);
    options.target = folder / fmt::format("{}-{}", kind_name(kind), seed);
    options.seed = seed;
    options.n_threads = 1;
    make_drafter(options, package, small_drafter(kind), kLayers);
    return options.target;
  }
  ConvertFacts add(const std::string& drafter, const std::string& to, const std::string& name) {
    ConvertOptions options;
    options.source = drafter;
    options.drafter_for = to;
    options.target = folder / name;
    options.n_threads = 1;
    options.bolt_version = "test";
    return convert(options);
  }
};

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::vector<TestTensor> tensors_of(const std::string& checkpoint) {
  const FileMap file(checkpoint + "/model.safetensors");
  std::vector<TestTensor> tensors;
  for (const auto& [name, tensor] : open_checkpoint(checkpoint, false).tensors) {
    tensors.push_back({name, tensor.dtype, tensor.shape,
                       std::string(file.text().substr(tensor.offset, tensor.bytes))});
  }
  return tensors;
}

TEST_CASE("drafters: the checkpoints made for Lightning have its count of tensors and its bytes") {
  const Graph target = graph_skeleton(find_shape("nano-30b").facts);
  for (const BlockKind kind : {BlockKind::dspark, BlockKind::dflash}) {
    BlockDrafter d = lightning_drafter(kind);
    check_drafter(d, kLightningLayers, target, "lightning");
    shape_drafter(d, kLightningLayers, target);
    const DrafterFile file = plan_drafter_file(d, target);
    std::uint64_t data = 0;
    int n_nvfp4 = 0;
    for (const Tensor& tensor : file.tensors) {
      data += tensor.bytes;
      n_nvfp4 += tensor.dtype == "U8";
    }
    CHECK(file.bytes == file.header.size() + data);
    if (kind == BlockKind::dspark) {
      CHECK(file.tensors.size() == 118);
      CHECK(n_nvfp4 == 20);
      CHECK(data == 1'349'045'200);
      CHECK(file.bytes == 1'349'057'504);
    } else {
      CHECK(file.tensors.size() == 108);
      CHECK(data == 1'177'078'348);
    }
    // The header is one that the reader takes for a file of this size.
    CHECK(parse_safetensors_header("plan", std::string_view(file.header).substr(8), file.bytes, 0)
              .size() == file.tensors.size());
  }
}

TEST_CASE("drafters: a package keeps its files, and gets the drafter's") {
  Place place;
  const ConvertFacts one = place.add(place.make(BlockKind::dspark), place.package, "one.bolt");
  CHECK(one.verified);
  CHECK(one.n_linked == 4);
  CHECK(one.drafters == std::vector<std::string>{"dspark"});
  const ConvertFacts two =
      place.add(place.make(BlockKind::dflash), place.folder / "one.bolt", "two.bolt");
  CHECK(two.n_linked == 6);
  const auto before = Package::open(place.package), package = Package::open(two.target);
  REQUIRE(package->graph().drafters.size() == 2);
  for (const PackageFile& file : before->files()) {
    if (file.role == "manifest") continue;
    const auto same = std::find_if(package->files().begin(), package->files().end(),
                                   [&](const PackageFile& f) { return f.path == file.path; });
    REQUIRE(same != package->files().end());
    CHECK(same->sha256 == file.sha256);
  }
  const BlockDrafter& d = package->graph().drafters[0];
  CHECK(d.kind == BlockKind::dspark);
  CHECK(d.window == 64);
  CHECK(d.fc.format == Format::nvfp4);
  CHECK(d.kv_proj.n_matrices == 2 * kLayers);
  CHECK(d.markov_w1.layout == Layout::plain);
  // The mask's row, and a matrix of each layer, are the checkpoint's.
  for (const TestTensor& tensor : tensors_of(place.folder / "dspark-1")) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(tensor.bytes.data());
    if (tensor.name == "embed_tokens.weight") {
      for (int i = 0; i < 64; ++i) {
        CHECK(d.mask_embedding.as_f32()[i] == bf16_to_float(halves[17 * 64 + i]));
      }
    } else if (tensor.name == "layers.1.self_attn.v_proj.weight") {
      CHECK(packed_code(Format::bf16, d.kv_proj.matrix(3), 5, 7) == halves[5 * 64 + 7]);
    } else if (tensor.name == "layers.1.self_attn.k_norm.weight") {
      CHECK(d.k_norm.as_f32()[32 + 9] == bf16_to_float(halves[9]));
    }
  }
  // Another geometry keeps the drafters.
  ConvertOptions again;
  again.source = two.target;
  again.target = place.folder / "hybrid.bolt";
  again.geometry = parse_geometry("--geometry", "hybrid:8");
  CHECK(convert(again).drafters == std::vector<std::string>{"dspark", "dflash"});
  CHECK(Package::open(again.target)->graph().drafters.size() == 2);
  // By itself it is no model.
  ConvertOptions alone;
  alone.source = place.folder / "dspark-1";
  alone.target = place.folder / "alone.bolt";
  CHECK(refusal([&] { convert(alone); }).find("no model by itself") != std::string::npos);
  write_file_atomically(place.folder / "drafter.gguf", "GGUF");
  CHECK(refusal([&] {
          place.add(place.folder / "drafter.gguf", place.package, "x.bolt");
        }).find("GGUF are not supported") != std::string::npos);
  // One of a kind.
  CHECK(refusal([&] {
          place.add(place.folder / "dspark-1", two.target, "three.bolt");
        }).find("has a dspark drafter already") != std::string::npos);
}

TEST_CASE("drafters: a file that says something else than its package is refused") {
  Place place;
  (void)place.add(place.make(BlockKind::dflash), place.package, "one.bolt");
  const auto package = Package::open(place.folder / "one.bolt");
  const std::string text = drafter_json(package->graph().drafters[0]);
  const auto parse = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return refusal([&] { (void)parse_drafter_json("d.json", changed, package->graph()); });
  };
  CHECK(parse("{", "{").empty());
  CHECK(parse("\"mask_id\": 17", "\"mask_id\": 300").find("the mask's id is 300") !=
        std::string::npos);
  CHECK(parse("\"taps\": [0, 2]", "\"taps\": [0, 4]").find("tapped layer 1 is 4") !=
        std::string::npos);
  CHECK(parse("\"n_heads\": 4", "\"n_heads\": 5").find("5 attention heads") != std::string::npos);
  CHECK(parse("\"d_ff\": 96", "\"d_ff\": 128").find("as config.json says") != std::string::npos);
  CHECK(parse("\"kind\": \"dflash\"", "\"kind\": \"eagle\"").find("dspark or dflash") !=
        std::string::npos);
  CHECK(parse("\"window\": 0,", "\"window\": 0, ").find("differs from what its own facts spell") !=
        std::string::npos);
}

TEST_CASE("drafters: what cannot be a drafter of the package is refused by name") {
  Place place;
  const std::string made = place.make(BlockKind::dspark);
  const std::string config = read_file(made + "/config.json");
  const std::vector<TestTensor> tensors = tensors_of(made);
  int n = 0;
  const auto try_with = [&](const std::string& text, const std::vector<TestTensor>& with) {
    const std::string folder = place.folder / fmt::format("changed-{}", n++);
    std::filesystem::create_directories(folder);
    write_file_atomically(folder + "/config.json", text);
    testing::write_safetensors(folder + "/model.safetensors", with);
    std::string problem =
        refusal([&] { place.add(folder, place.package, fmt::format("out-{}.bolt", n)); });
    CHECK(path_exists(place.folder / fmt::format("out-{}.bolt", n)) == problem.empty());
    return problem;
  };
  const auto says = [](const std::string& problem, const std::string& part) {
    CHECK_MESSAGE(problem.find(part) != std::string::npos, "\"", problem, "\" lacks ", part);
  };
  const auto configured = [&](const std::string& from, const std::string& to,
                              const std::string& part) {
    std::string changed = config;
    const auto at = changed.find(from);
    REQUIRE_MESSAGE(at != std::string::npos, from);
    changed.replace(at, from.size(), to);
    says(try_with(changed, tensors), part);
  };
  configured("Qwen3DSparkModel", "DFlash2DraftModel", "DFlash2 (a convolution");
  configured("Qwen3DSparkModel", "LiLiCorrForCausalLM", "LiLiCorr is not supported");
  configured("Qwen3DSparkModel", "LlamaForCausalLMEagle3", "EAGLE-3");
  configured("Qwen3DSparkModel", "Qwen3ForCausalLM", "Qwen3DSparkModel (DSpark) or");
  configured("\"hidden_size\": 64", "\"hidden_size\": 128", "the target's width");
  configured("\"vocab_size\": 300", "\"vocab_size\": 320", "the target's vocabulary");
  configured("\"sample_from_anchor\": false", "\"sample_from_anchor\": true",
             "\"sample_from_anchor\" is true");
  configured("\"has_lm_head\": false", "\"has_lm_head\": true", "head of their own");
  configured("\"target_layer_ids\": [0, 2]", "\"target_layer_ids\": [0, 9]", "target_layer_ids");
  configured("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "\"silu\"");
  configured("\"dflash_query_causal\": true", "\"dflash_query_causal\": false", "as DSpark is");
  configured("\"markov_head_type\": \"vanilla\"", "\"markov_head_type\": \"gated\"", "vanilla");
  configured("\"head_dim\": 32", "\"head_dim\": 64", "q_proj.weight is BF16 [128, 64]");
  configured("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", "layer_types");
  configured("\"mask_token_id\": ", "\"mask_token_id\": 42949672", "mask_token_id");
  {  // sliding by use_swa alone, without a window
    std::string changed = config;
    for (const std::string field : {"layer_types", "sliding_window", "swa_window_size"}) {
      for (std::size_t at = 0; (at = changed.find("\"" + field + "\"", at)) != std::string::npos;) {
        changed.insert(at + 1, "no_");
      }
    }
    changed.insert(changed.find('{') + 1, "\"use_swa\": true,");
    says(try_with(changed, tensors), "sliding_window");
  }
  {
    std::string changed = config;
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>("[0, 2]", "[0, 7]"), {"[1, 3]", "[1, 8]"}}) {
      changed.replace(changed.find(from), from.size(), to);
    }
    says(try_with(changed, tensors), "tapped layer 1 is 7, expected 1 to 3");
  }

  const auto changed = [&](const std::string& name, const std::function<void(TestTensor&)>& f) {
    std::vector<TestTensor> all = tensors;
    for (TestTensor& tensor : all) {
      if (tensor.name == name) f(tensor);
    }
    return try_with(config, all);
  };
  says(changed("embed_tokens.weight",
               [](TestTensor& t) { t.bytes[5 * 128] ^= 1, t.bytes[40 * 128 + 3] ^= 1; }),
       "2 of 299 rows of embed_tokens.weight are not the package's, the first is 5");
  CHECK(changed("embed_tokens.weight", [](TestTensor& t) { t.bytes[17 * 128] ^= 1; }).empty());
  says(changed("norm.weight", [](TestTensor& t) { t.name = "lm_head.weight"; }), "lm_head.weight");
  says(changed("norm.weight", [](TestTensor& t) { t.name = "normal.weight"; }),
       "norm.weight is missing");
  says(changed("layers.0.self_attn.attention_sink_bias",
               [](TestTensor& t) { t.shape = {2}, t.bytes.resize(4); }),
       "attention_sink_bias is BF16 [2], expected BF16 [4]");
  std::vector<TestTensor> more = tensors;
  more.push_back({"d2t", "I64", {1}, std::string(8, '\0')});
  says(try_with(config, more), "d2t");
  more.back() = {"extra.weight", "BF16", {1}, std::string(2, '\0')};
  says(try_with(config, more), "extra.weight");
  std::erase_if(more, [](const TestTensor& t) {
    return t.name == "embed_tokens.weight" || t.name == "extra.weight";
  });
  says(try_with(config, more), "embed_tokens.weight is missing");
}

}  // namespace
}  // namespace bolt
