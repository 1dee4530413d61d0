// Checkpoints in other writers' formats: ModelOpt's layout and GGUF, value by value against what
// numpy and the gguf package decode (testdata/formats), and what is refused.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "core/base/bits.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/base/sha256.h"
#include "core/base/testing/caught.h"
#include "core/pack/byte_tokenizer.h"
#include "core/pack/convert.h"
#include "core/pack/gguf.h"
#include "core/pack/graph_walk.h"
#include "core/pack/modelopt.h"
#include "core/pack/source_blocks.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using testing::caught;
using testing::TemporaryFolder;
using testing::TestTensor;
using testing::TinySpec;

const std::string kData = BOLT_SOURCE_DIR "/testdata/formats";

ConvertOptions options_for(const std::string& source, const std::string& target) {
  ConvertOptions options;
  options.source = source;
  options.target = target;
  options.n_threads = 2;
  options.bolt_version = "test";
  return options;
}

// SHA-256 of a weight's values in float32, row after row; `signless_zero`: -0 counts as +0.
std::string digest_of(const Weight& w, bool signless_zero) {
  Sha256 sha;
  std::vector<float> row(static_cast<std::size_t>(w.n_cols));
  for (int m = 0; m < w.n_matrices; ++m) {
    for (int r = 0; r < w.n_rows; ++r) {
      const float gain = w.gains ? w.gains[m] : 1.0f;
      if (w.layout == Layout::tiles)
        packed_row(w.format, w.matrix(m), w.n_cols, gain, r, row.data());
      for (std::size_t k = 0; k < row.size(); ++k) {
        const std::size_t i = static_cast<std::size_t>(r) * row.size() + k;
        if (w.layout == Layout::plain && w.format == Format::f32) {
          row[k] = w.as_f32()[i];
        } else if (w.layout == Layout::plain) {
          std::uint16_t h = 0;
          std::memcpy(&h, w.data + 2 * i, 2);
          row[k] = w.format == Format::bf16 ? bf16_to_float(h) : f16_to_float(h);
        }
        if (signless_zero) row[k] = row[k] + 0.0f;
      }
      sha.update(row.data(), row.size() * sizeof(float));
    }
  }
  return sha.hex();
}

void check_values(const Package& package, const JsonValue& expected, bool all_signless) {
  std::size_t n = 0;
  each_weight(package.graph(), [&](const std::string& name, const Weight& w) {
    INFO(name, " ", format_name(w.format));
    const bool signless = all_signless || w.format == Format::nvfp4 || w.format == Format::mxfp4;
    const auto found = expected.find(name);
    if (!found) return;  // A, whose exp is the contract's own, has tests of its own
    CHECK(digest_of(w, signless) == found->string());
    ++n;
  });
  CHECK(n == expected.members().size());
}

}  // namespace

TEST_CASE("formats: a ModelOpt checkpoint's values are numpy's, bit for bit") {
  const TemporaryFolder folder;
  fs::copy(kData + "/modelopt", folder / "checkpoint");
  write_file_atomically(folder / "checkpoint/tokenizer.json", byte_tokenizer_json(280));
  const ConvertFacts facts = convert(options_for(folder / "checkpoint", folder / "p.bolt"));
  CHECK(facts.verified);
  CHECK(facts.n_verified_quantised == 0);
  CHECK(facts.disagreeing == std::vector<std::string>{"language_model.backbone.embeddings.weight"});
  const auto package = Package::open(folder / "p.bolt");
  CHECK(package->graph().embedding.format == Format::nvfp4);
  CHECK(package->graph().embedding.layout == Layout::tiles);
  const JsonDocument golden = JsonDocument::load(kData + "/modelopt.json");
  check_values(*package, golden.root(), true);
  // Scales of activations and of keys and values are named among what was left out.
  const auto left_out = [&](const std::string& name) {
    return std::find(facts.skipped.begin(), facts.skipped.end(), name) != facts.skipped.end();
  };
  CHECK(left_out("language_model.backbone.layers.1.mixer.k_proj.k_scale"));
  CHECK(left_out("language_model.backbone.layers.0.mixer.in_proj.input_scale"));
  CHECK(left_out("vision_model.patch.weight"));
}

TEST_CASE("formats: verify catches one code, one block scale and one gain that changed") {
  const TemporaryFolder folder;
  fs::copy(kData + "/modelopt", folder / "checkpoint");
  write_file_atomically(folder / "checkpoint/tokenizer.json", byte_tokenizer_json(280));
  convert(options_for(folder / "checkpoint", folder / "p.bolt"));
  const auto package = Package::open(folder / "p.bolt");
  const Weight& w = package->graph().lm_head;
  const auto right = digest_of(w, true);
  std::vector<std::byte> bytes(w.data, w.data + w.bytes);
  Weight wrong = w;
  wrong.data = bytes.data();
  for (const std::size_t at : {std::size_t{0}, std::size_t{512}, w.bytes - 1200}) {
    bytes[at] ^= std::byte{1};
    CHECK(digest_of(wrong, true) != right);
    bytes[at] ^= std::byte{1};
  }
  const float gain = w.gains[0] * 1.0000001f;
  wrong.gains = &gain;
  CHECK(digest_of(wrong, true) != right);
}

TEST_CASE("formats: other exporters and algorithms are refused by name") {
  const auto conversion = [](const std::vector<TestTensor>& tensors, const TinySpec& spec) {
    const TemporaryFolder folder;
    write_tiny_checkpoint(folder / "checkpoint", spec, tensors);
    const auto error =
        caught([&] { convert(options_for(folder / "checkpoint", folder / "p.bolt")); });
    CHECK(path_exists(folder / "p.bolt") == error.line.empty());
    return error;
  };
  TinySpec spec;
  const auto replaced = [&](const std::string& part, const TestTensor& by) {
    auto tensors = tiny_tensors(spec);
    for (TestTensor& tensor : tensors) {
      if (tensor.name == "backbone.layers.3.mixer.up_proj.weight") {
        tensor = by;
        tensor.name = "backbone.layers.3.mixer.up_proj" + part;
      }
    }
    return tensors;
  };
  const std::string half(96 * 32, '\x11'), whole(96 * 64, '\x11');
  CHECK(conversion(replaced(".weight_packed", {"", "U8", {96, 32}, half}), spec)
            .says("compressed-tensors"));
  CHECK(conversion(replaced(".qweight", {"", "I32", {8, 96}, std::string(8 * 96 * 4, '\0')}), spec)
            .says("GPTQ or AWQ"));
  CHECK(conversion(replaced(".weight", {"", "U8", {96, 32}, half}), spec)
            .says("without weight_scale and weight_scale_2"));
  const auto with = [&](std::vector<TestTensor> tensors, TestTensor more) {
    tensors.push_back(std::move(more));
    return tensors;
  };
  const auto fp8 = replaced(".weight", {"", "F8_E4M3", {96, 64}, whole});
  const std::string scale = "backbone.layers.3.mixer.up_proj.weight_scale";
  CHECK(conversion(fp8, spec).says("F8_E4M3 without a weight_scale"));
  CHECK(conversion(with(fp8, {scale, "U8", {96, 2}, std::string(192, '\x7f')}), spec)
            .says("MXFP8 is not supported"));
  CHECK(conversion(with(fp8, {scale, "F32", {96, 1}, std::string(96 * 4, '\0')}), spec)
            .says("only one a tensor"));
  const std::string one("\0\0\x80\x3f", 4);
  CHECK(conversion(with(fp8, {scale, "F32", {}, one}), spec).line == "");
  auto nan = fp8;
  for (TestTensor& tensor : nan) {
    if (tensor.dtype == "F8_E4M3") tensor.bytes[70] = '\x7f';
  }
  CHECK(conversion(with(nan, {scale, "F32", {}, one}), spec)
            .says("row 1 has no finite number or scale at column 6"));
  for (const auto& [member, text] :
       {std::pair{R"({"quant_method": "gptq", "bits": 4})", "\"modelopt\""},
        {R"({"quant_method": "compressed-tensors"})", "\"modelopt\""},
        {R"({"quant_method": "modelopt", "quant_algo": "INT4_AWQ"})", "FP8, NVFP4"},
        {R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32})",
         "16, NVFP4's"}}) {
    TinySpec named = spec;
    named.config = {{"quantization_config", member}};
    CHECK(conversion(tiny_tensors(named), named).says(text));
  }
}

TEST_CASE("formats: ModelOpt's metadata, both homes, wildcards and mixed layers") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    write_file_atomically(folder / name, text);
  };
  write("config.json", "{}");
  CHECK(read_quant_metadata(folder.path()).algo == "");
  write("config.json",
        R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4",
            "ignore": ["lm_head", "backbone.layers.4.*", "*conv1d*"]}})");
  QuantMetadata metadata = read_quant_metadata(folder.path());
  CHECK(metadata.of("backbone.layers.3.mixer.in_proj") == "NVFP4");
  CHECK(metadata.of("backbone.layers.4.mixer.in_proj") == "none");
  CHECK(metadata.of("backbone.layers.41.mixer.in_proj") == "NVFP4");
  CHECK(metadata.of("lm_head") == "none");
  CHECK(metadata.of("language_model.lm_head") == "none");
  CHECK(metadata.of("backbone.layers.7.mixer.conv1d") == "none");
  write("hf_quant_config.json",
        R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})");
  CHECK(caught([&] { read_quant_metadata(folder.path()); }).says("the checkpoint's other"));
  write("config.json", "{}");
  write("hf_quant_config.json",
        R"({"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "backbone.layers.1.mixer.up_proj": {"quant_algo": "FP8"}}}})");
  metadata = read_quant_metadata(folder.path());
  CHECK(metadata.of("backbone.layers.1.mixer.up_proj") == "FP8");
  CHECK(metadata.of("backbone.layers.1.mixer.down_proj") == "none");
}

TEST_CASE("formats: blocks of every GGUF type decode and pack to the gguf package's values") {
  const std::string bytes = read_file(kData + "/blocks.bin");
  const JsonDocument golden = JsonDocument::load(kData + "/blocks.json");
  CHECK(golden.root().items().size() == 15);
  for (const JsonValue& entry : golden.root().items()) {
    const std::string type(entry.at("type").string());
    INFO(type);
    const SourceEncoding* encoding = source_encoding(type);
    REQUIRE(encoding != nullptr);
    const int n_rows = static_cast<int>(entry.at("rows").integer()),
              n_cols = static_cast<int>(entry.at("cols").integer());
    const auto* data =
        reinterpret_cast<const std::byte*>(bytes.data()) + entry.at("offset").integer();
    const int row_bytes = n_cols / encoding->n_cols * encoding->bytes;
    const bool signless = encoding->format == Format::nvfp4 || encoding->format == Format::mxfp4;
    // As values.
    Sha256 sha;
    std::vector<float> row(static_cast<std::size_t>(n_cols));
    RowCodes rows;
    rows.resize(encoding->format, n_rows, n_cols);
    for (int r = 0; r < n_rows; ++r) {
      read_values(*encoding, data + r * row_bytes, nullptr, 1.0f, n_cols, row.data());
      for (float& x : row) x = signless ? x + 0.0f : x;
      sha.update(row.data(), row.size() * sizeof(float));
      CHECK(
          read_codes(*encoding, data + r * row_bytes, nullptr, n_cols, rows.code_row<std::byte>(r),
                     rows.scales.data() + r * rows.n_scales() * scale_bytes(encoding->format)) < 0);
    }
    CHECK(sha.hex() == entry.at("sha256").string());
    // As codes, through the tiles.
    std::vector<std::byte> tile(tile_bytes(encoding->format, n_cols));
    pack_tile(rows, 0, tile.data());
    const auto packed_digest = [&] {
      Weight w;
      w.format = encoding->format;
      w.layout = Layout::tiles;
      w.n_rows = n_rows, w.n_cols = n_cols;
      w.bytes = tile.size();
      w.data = tile.data();
      const float gain = 128.0f;
      if (has_gain(w.format)) w.gains = &gain;
      return digest_of(w, signless);
    };
    CHECK(packed_digest() == entry.at("sha256").string());
    // A wrong twin, one bit of one code (of a block whose scale is not 0), is seen.
    std::size_t n_seen = 0;
    for (std::size_t at = 0; at < 64; ++at) {
      tile[at] ^= std::byte{1};
      n_seen += packed_digest() != entry.at("sha256").string();
      tile[at] ^= std::byte{1};
    }
    CHECK(n_seen > 0);
  }
}

TEST_CASE("formats: GGUF models, dense, with experts and MTP, split") {
  const JsonDocument golden = JsonDocument::load(kData + "/models.json");
  for (const auto& [name, expected] : golden.root().members()) {
    INFO(std::string(name));
    const TemporaryFolder folder;
    const ConvertFacts facts =
        convert(options_for(kData + "/" + std::string(name), folder / "p.bolt"));
    CHECK(facts.verified);
    CHECK(facts.source_format == "gguf");
    const auto package = Package::open(folder / "p.bolt");
    check_values(*package, expected, false);
    const bool moe = name.starts_with("moe");
    CHECK(package->graph().draft.has_value() == moe);
    CHECK(package->graph().layers.size() == (moe ? 4u : 3u));
    CHECK(facts.source_files.size() == (moe ? 2u : 1u));
    const ModelConfig& config = package->config();
    CHECK(config.n_tokens == 14 + 256 + 2);  // padding is no token
    CHECK(config.vocab_size == 320);
    CHECK(config.stop_ids == std::vector<int>{2, 11});
    CHECK(!config.add_bos);
    CHECK(config.context_limit == 4096);
    const auto tokenizer = read_tokenizer(*package);
    CHECK(tokenizer->encode("abc<|im_end|>", true) == std::vector<int>{271, 11});
  }
}

}  // namespace bolt
