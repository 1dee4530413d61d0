#include "core/pack/make.h"

#include <doctest/doctest.h>

#include <cmath>

#include "core/base/bits.h"
#include "core/base/file_map.h"
#include "core/base/output.h"
#include "core/base/testing/caught.h"
#include "core/pack/byte_tokenizer.h"
#include "core/pack/graph_walk.h"
#include "core/pack/shapes.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

using testing::caught;
using testing::TemporaryFolder;

// Parameters of linears and embeddings of a shape, the way the published totals count them.
double n_parameters(const std::string& shape) {
  double n = 0;
  const Graph graph = graph_skeleton(find_shape(shape).facts);
  each_weight(graph, [&](const std::string& name, const Weight& w) {
    if (!name.starts_with("draft.")) n += static_cast<double>(w.n_matrices) * w.n_rows * w.n_cols;
  });
  return n;
}

TEST_CASE("make: the shapes have the published numbers of parameters") {
  CHECK(n_parameters("dense-8b") == doctest::Approx(8.10e9).epsilon(0.002));
  CHECK(n_parameters("nano-4b") == doctest::Approx(3.97e9).epsilon(0.002));
  CHECK(n_parameters("nano-30b") == doctest::Approx(31.6e9).epsilon(0.002));
  CHECK(n_parameters("super-120b") == doctest::Approx(120.7e9).epsilon(0.002));
  CHECK(n_parameters("sample") == doctest::Approx(8.25e6).epsilon(0.002));
  for (const std::string& name : shape_names()) check_facts(find_shape(name).facts, name);
  CHECK(caught([] { find_shape("giant"); }).says("expected sample, dense-1b, dense-8b"));
}

// The value of one element, whatever the format.
double value_at(const Weight& w, int m, int r, int c) {
  const std::byte* block =
      w.matrix(m) + (r / 32 * n_groups(w.n_cols) + c / 32) * block_bytes(w.format);
  const std::uint32_t code = packed_code(w.format, block, r % 32, c % 32);
  const std::uint32_t scale = packed_scale(w.format, block, r % 32, c % 32);
  constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  switch (w.format) {
    case Format::f32:
      return static_cast<double>(bits_float(code));
    case Format::bf16:
      return static_cast<double>(bf16_to_float(static_cast<std::uint16_t>(code)));
    case Format::f16:
      return static_cast<double>(f16_to_float(static_cast<std::uint16_t>(code)));
    case Format::q8:
      return static_cast<std::int8_t>(code) *
             static_cast<double>(f16_to_float(static_cast<std::uint16_t>(scale)));
    case Format::nvfp4:
      return (code & 8 ? -1 : 1) * kE2m1[code & 7] *
             static_cast<double>(e4m3_to_float(static_cast<std::uint8_t>(scale))) *
             static_cast<double>(w.gains[m]) / 128.0;
    default:
      return 0;
  }
}

TEST_CASE("make: every format gives a package that opens, with values of the same spread") {
  const TemporaryFolder folder;
  for (const Format format : {Format::bf16, Format::f32, Format::f16, Format::q8, Format::nvfp4}) {
    INFO(std::string(format_name(format)));
    MakeOptions options;
    options.shape = "sample";
    options.format = format;
    options.target = folder / format_name(format);
    options.n_threads = 2;
    make_package(options);
    const auto package = Package::open(options.target);
    CHECK(package->source().starts_with("generated weights, no trained model (sample, "));
    CHECK(package->config().chat_template == "v3");
    const Graph& graph = package->graph();
    REQUIRE(graph.draft);
    const auto& mamba = std::get<Mamba2>(graph.layers[0].mixer);
    CHECK(mamba.in_proj.format == format);
    const bool quantised = format == Format::q8 || format == Format::nvfp4;
    CHECK(graph.embedding.format == (quantised ? Format::bf16 : format));
    double sum = 0, squares = 0;
    int n = 0;
    for (int r = 0; r < mamba.in_proj.n_rows; r += 3) {
      for (int c = 0; c < mamba.in_proj.n_cols; ++c, ++n) {
        const double x = value_at(mamba.in_proj, 0, r, c);
        sum += x;
        squares += x * x;
      }
    }
    // in_proj keeps variance: 1 / K.
    CHECK(std::sqrt(squares / n) == doctest::Approx(1.0 / 16.0).epsilon(0.05));
    CHECK(std::fabs(sum / n) < 0.002);
    for (int i = 0; i < mamba.n_heads; ++i) {
      CHECK(mamba.A.as_f32()[i] <= -1.0f);
      CHECK(mamba.A.as_f32()[i] >= -8.0f);
    }
  }
}

TEST_CASE("make: equal options give equal bytes, another seed others; -0 is never stored") {
  const TemporaryFolder folder;
  MakeOptions options;
  options.shape = "sample";
  options.format = Format::nvfp4;
  options.target = folder / "a";
  options.n_threads = 1;
  const auto a = make_package(options);
  options.target = folder / "b";
  options.n_threads = 2;
  const auto b = make_package(options);
  options.target = folder / "c";
  options.seed = 2;
  const auto c = make_package(options);
  CHECK(a.back().path == "weights-00001.bin");
  CHECK(a.back().sha256 == b.back().sha256);
  CHECK(a.back().sha256 != c.back().sha256);
  const auto package = Package::open(folder / "a");
  int n_minus_zero = 0;
  const Weight& w = package->graph().lm_head;
  for (int r = 0; r < 96; ++r) {
    for (int k = 0; k < w.n_cols; ++k) {
      const std::byte* block =
          w.data + (r / 32 * n_groups(w.n_cols) + k / 32) * block_bytes(w.format);
      n_minus_zero += packed_code(w.format, block, r % 32, k % 32) == 8;
    }
  }
  CHECK(n_minus_zero == 0);
}

TEST_CASE("make: a config.json is a shape") {
  const TemporaryFolder folder;
  testing::TinySpec spec;
  write_file_atomically(folder / "config.json", tiny_config_json(spec));
  MakeOptions options;
  options.shape = folder / "config.json";
  options.target = folder / "p.bolt";
  make_package(options);
  const auto package = Package::open(options.target);
  CHECK(package->graph().layers.size() == 4);
  CHECK(!package->graph().draft);
  CHECK(package->source().find(folder.path()) == std::string::npos);
  CHECK(caught([&] { make_package(options); }).says("exists already"));
}

TEST_CASE("make: the byte tokenizer takes every text and gives it back") {
  for (const int n : {kByteTokenizerIdsMin, 300, 3200}) {
    const auto tokenizer = Tokenizer::from_json(byte_tokenizer_json(n), "tokenizer.json");
    CHECK(tokenizer->n_tokens() == n);
    const std::string text = "<|im_start|>user\nna\xc3\xafve \xf0\x9f\x98\x80 1234\r\n\t<|im_end|>";
    std::string back;
    const auto ids = tokenizer->encode(text, true);
    for (const int id : ids) back += tokenizer->bytes_of(id);
    CHECK(back == text);
    CHECK(ids.front() == 10);
    CHECK(ids.back() == 11);
    CHECK(tokenizer->id_of("</tool_response>") == 17);
    for (int id = 20; id < 276; ++id) {
      CHECK(tokenizer->bytes_of(id) == std::string(1, static_cast<char>(id - 20)));
    }
  }
}

}  // namespace
}  // namespace bolt
