#include "core/pack/convert.h"

#include <doctest/doctest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/base/bits.h"
#include "core/base/exact_math.h"
#include "core/base/file_map.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/base/sha256.h"
#include "core/base/testing/caught.h"
#include "core/pack/binding.h"
#include "core/pack/byte_tokenizer.h"
#include "core/pack/graph_walk.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"
#include "core/pack/verify.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using testing::caught;
using testing::TemporaryFolder;
using testing::TestTensor;
using testing::TinySpec;

ConvertOptions options_for(const TemporaryFolder& folder) {
  ConvertOptions options;
  options.source = folder / "checkpoint";
  options.target = folder / "p.bolt";
  options.n_threads = 2;
  options.bolt_version = "test";
  return options;
}
// Converts a checkpoint of these tensors and answers what is thrown.
testing::Caught conversion(const TinySpec& spec, const std::vector<TestTensor>& tensors,
                           bool without_mtp = false) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", spec, tensors);
  ConvertOptions options = options_for(folder);
  options.without_mtp = without_mtp;
  const auto error = caught([&] { convert(options); });
  if (error.code != Exit::ok) {
    CHECK(!path_exists(options.target));
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  }
  return error;
}

// Element i of a test tensor, widened by a decoder of its own: sign, exponent and fraction.
double decoded(const TestTensor& tensor, std::size_t i) {
  const int exponent_bits = tensor.dtype == "F16" ? 5 : 8;
  const int fraction_bits = tensor.dtype == "F32" ? 23 : tensor.dtype == "F16" ? 10 : 7;
  const std::size_t width = tensor.dtype == "F32" ? 4 : 2;
  std::uint32_t u = 0;
  std::memcpy(&u, tensor.bytes.data() + i * width, width);
  const std::uint32_t fraction = u & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(u >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                    : std::ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
  return (u >> (8 * width - 1)) != 0 ? -magnitude : magnitude;
}

// One value of an opened package, by the element's address.
double packaged(const Weight& w, int matrix, int row, int column) {
  std::uint32_t code = 0;
  if (w.layout == Layout::plain) {
    const auto width = static_cast<std::size_t>(code_bytes(w.format));
    const auto i = static_cast<std::size_t>(row) * static_cast<std::size_t>(w.n_cols) +
                   static_cast<std::size_t>(column);
    std::memcpy(&code, w.matrix(matrix) + i * width, width);
  } else {
    const std::byte* block =
        w.matrix(matrix) + (row / 32 * n_groups(w.n_cols) + column / 32) * block_bytes(w.format);
    code = packed_code(w.format, block, row % 32, column % 32);
  }
  switch (w.format) {
    case Format::f32:
      return static_cast<double>(bits_float(code));
    case Format::bf16:
      return static_cast<double>(bf16_to_float(static_cast<std::uint16_t>(code)));
    default:
      return static_cast<double>(f16_to_float(static_cast<std::uint16_t>(code)));
  }
}

// The checkpoint's tensor for a weight, by an own list of names.
std::string tail_of(const std::string& name, int matrix) {
  static const std::map<std::string, std::string> kTails = {
      {"norm", "norm.weight"},
      {"in_proj", "mixer.in_proj.weight"},
      {"conv_w", "mixer.conv1d.weight"},
      {"conv_b", "mixer.conv1d.bias"},
      {"A", "mixer.A_log"},
      {"D", "mixer.D"},
      {"dt_bias", "mixer.dt_bias"},
      {"gate_norm", "mixer.norm.weight"},
      {"out_proj", "mixer.out_proj.weight"},
      {"q_proj", "mixer.q_proj.weight"},
      {"k_proj", "mixer.k_proj.weight"},
      {"v_proj", "mixer.v_proj.weight"},
      {"o_proj", "mixer.o_proj.weight"},
      {"up_proj", "mixer.up_proj.weight"},
      {"down_proj", "mixer.down_proj.weight"},
      {"router", "mixer.gate.weight"},
      {"router_bias", "mixer.gate.e_score_correction_bias"},
      {"latent_down", "mixer.fc1_latent_proj.weight"},
      {"latent_up", "mixer.fc2_latent_proj.weight"},
      {"shared_up", "mixer.shared_experts.up_proj.weight"},
      {"shared_down", "mixer.shared_experts.down_proj.weight"}};
  if (name == "embedding") return "embeddings.weight";
  if (name == "final_norm") return "norm_f.weight";
  if (name == "lm_head") return "lm_head.weight";
  std::string part = name.substr(name.rfind('.') + 1);
  std::string at = name.substr(0, name.rfind('.') + 1);
  if (at == "draft.") {
    return part == "final_norm" ? "final_layernorm.weight" : "mtp.layers.0." + part + ".weight";
  }
  if (at.starts_with("draft.")) at = "mtp." + at.substr(6);
  if (part == "experts_up")
    return at + "mixer.experts." + std::to_string(matrix) + ".up_proj.weight";
  if (part == "experts_down")
    return at + "mixer.experts." + std::to_string(matrix) + ".down_proj.weight";
  return at + kTails.at(part);
}

// Converts and compares every value of the package with the tensor it came from.
void round_trip(const TinySpec& spec) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", spec);
  const std::vector<TestTensor> tensors = tiny_tensors(spec);
  const ConvertOptions options = options_for(folder);
  const ConvertFacts facts = convert(options);
  CHECK(facts.verified);
  CHECK(facts.n_tensors == tensors.size());
  const auto package = Package::open(options.target);
  std::size_t n_wrong = 0, n_values = 0;
  each_weight(package->graph(), [&](const std::string& name, const Weight& w) {
    const bool stacked = spec.stacked_experts && w.n_matrices > 1;
    for (int m = 0; m < w.n_matrices; ++m) {
      std::string tail = tail_of(name, m);
      if (stacked)
        tail = tail.substr(0, tail.find(".experts.") + 9) +
               (name.ends_with("up") ? "up_proj" : "down_proj");
      if (spec.tied && name == "lm_head") tail = "embeddings.weight";
      const TestTensor* tensor = nullptr;
      for (const TestTensor& t : tensors) {
        // layers.1. must not match mtp.layers.1.
        const bool mtp = t.name.find("mtp.") != std::string::npos;
        if (t.name.ends_with(tail) && mtp == name.starts_with("draft.")) tensor = &t;
      }
      if (!tensor) {
        CHECK(name.ends_with(".conv_b"));
        CHECK(!spec.conv_bias);
        continue;
      }
      const std::size_t first = stacked ? static_cast<std::size_t>(m) *
                                              static_cast<std::size_t>(w.n_rows) *
                                              static_cast<std::size_t>(w.n_cols)
                                        : 0;
      for (int r = 0; r < w.n_rows; ++r) {
        for (int c = 0; c < w.n_cols; ++c) {
          double should = decoded(
              *tensor, first + static_cast<std::size_t>(r) * static_cast<std::size_t>(w.n_cols) +
                           static_cast<std::size_t>(c));
          if (name.ends_with(".A"))
            should = static_cast<double>(-exact_exp(static_cast<float>(should)));
          n_wrong += packaged(w, m, r, c) != should;
          ++n_values;
        }
      }
    }
  });
  CHECK(n_wrong == 0);
  CHECK(n_values > 10000);
  CHECK(facts.n_parameters >= n_values);
}

TEST_CASE("convert: every value of every kind of model comes through, bit for bit") {
  TinySpec spec;
  SUBCASE("latent experts, MTP head, bf16") {
    spec.pattern = "MEM*EME", spec.draft_pattern = "*E", spec.d_latent = 48;
  }
  SUBCASE("dense, f32, sharded, the other prefix") {
    spec.pattern = "M-M*-", spec.dtype = "F32", spec.prefix = "model.", spec.n_shards = 3;
  }
  SUBCASE("f16, stacked experts, grouped routing, wrapped, MTP") {
    spec.pattern = "ME*E", spec.draft_pattern = "*-", spec.dtype = "F16",
    spec.stacked_experts = true;
    spec.prefix = "language_model.backbone.", spec.n_router_groups = 2, spec.top_k_groups = 1;
    spec.n_shards = 2;
  }
  SUBCASE("odd sizes, no conv bias, tied head, bf16 vectors") {
    spec.d_model = 70, spec.vocab_size = 301, spec.mamba_heads = 3, spec.mamba_head_dim = 10,
    spec.n_ssm_groups = 1;
    spec.d_state = 17, spec.n_heads = 3, spec.n_kv_heads = 3, spec.head_dim = 23, spec.d_ff = 37;
    spec.d_expert = 33, spec.d_shared = 1, spec.conv_bias = false, spec.tied = true,
    spec.vector_dtype = "BF16";
  }
  SUBCASE("large states, eight groups, no shared expert") {
    spec.pattern = "ME", spec.d_state = 256, spec.n_ssm_groups = 8, spec.mamba_heads = 8,
    spec.mamba_head_dim = 8, spec.d_shared = 0;
  }
  round_trip(spec);
}

TEST_CASE("convert: q8 quantises the linears alone, --keep exempts, verify recomputes") {
  const TemporaryFolder folder;
  TinySpec spec;
  spec.draft_pattern = "*E";
  write_tiny_checkpoint(folder / "checkpoint", spec);
  ConvertOptions options = options_for(folder);
  options.quant = Format::q8;
  options.keep = {"*lm_head*", "backbone.layers.0.mixer.in_proj.weight", "layers.1.?_proj"};
  const ConvertFacts facts = convert(options);
  CHECK(facts.n_verified_quantised > 0);
  // Each weight that was quantised has its error, under its name.
  CHECK(facts.errors.size() == facts.quantised.size());
  for (const auto& [name, error] : facts.errors) {
    CHECK(std::count(facts.quantised.begin(), facts.quantised.end(), name) == 1);
    CHECK(error > 0.0);
    CHECK(error < 0.02);
  }
  const auto package = Package::open(options.target);
  each_weight(package->graph(), [&](const std::string& name, const Weight& w) {
    CAPTURE(name);
    const bool kept = name == "lm_head" || name == "layers.0.in_proj" ||
                      name.starts_with("layers.1.") || name == "embedding" ||
                      name.ends_with("router");
    const Format expected = w.layout == Layout::plain && name != "embedding" ? Format::f32
                            : kept                                           ? Format::bf16
                                                                             : Format::q8;
    CHECK(format_name(w.format) == std::string(format_name(expected)));
  });
  options.force = true;
  options.keep = {"no_such_*"};
  CHECK(
      caught([&] { convert(options); }).says("--keep \"no_such_*\": matches no weight or tensor"));
}

TEST_CASE("convert: verify finds planted faults: a swapped row, one bit, a q8 code") {
  for (const bool q8 : {false, true}) {
    const TemporaryFolder folder;
    TinySpec spec;
    write_tiny_checkpoint(folder / "checkpoint", spec);
    ConvertOptions options = options_for(folder);
    if (q8) options.quant = Format::q8;
    convert(options);
    const auto package = Package::open(options.target);
    const Checkpoint checkpoint = open_checkpoint(options.source, false);
    const auto tokenizer = Tokenizer::from_json(package->tokenizer_json(), "tokenizer.json");
    const CheckpointConfig config = read_checkpoint_config(checkpoint.folder, *tokenizer);
    const BoundGraph bound = bind_checkpoint(checkpoint, config, false);
    const SourceRows source(checkpoint, bound);
    // The payload as it lies on the disk, run by run.
    const auto verify = [&] {
      std::vector<std::string> names;
      const std::vector<RowRun> runs = row_runs(package->graph(), names);
      PayloadVerifier verifier(source, package->graph());
      for (std::size_t i = 0; i < runs.size(); ++i) {
        const Weight& w = *runs[i].weight;
        RawRows raw;
        source.read(runs[i], raw);
        const std::string file = read_file(options.target + "/" + w.file);
        const std::uint64_t n_rows = w.layout == Layout::tiles
                                         ? static_cast<std::uint64_t>(n_tiles(w.n_rows)) * kTileRows
                                         : static_cast<std::uint64_t>(w.n_rows);
        const std::uint64_t first =
            w.offset + static_cast<std::uint64_t>(runs[i].matrix) * w.matrix_bytes() +
            static_cast<std::uint64_t>(runs[i].first_row) * (w.matrix_bytes() / n_rows);
        verifier.check(i, runs[i], raw, std::as_bytes(std::span(file)).subspan(first), 1.0f);
      }
    };
    CHECK(caught(verify).line == "");
    const Weight& w = package->graph().lm_head;
    const std::string payload = options.target + "/" + w.file;
    const std::string whole = read_file(payload);
    std::string swapped = whole;
    // Rows 1 and 2 of a tile lie in the same 16-byte chunks, a word apart.
    for (int word = 0; word < 512; word += 4)
      std::swap_ranges(&swapped[w.offset] + 4 * word + 4, &swapped[w.offset] + 4 * word + 8,
                       &swapped[w.offset] + 4 * word + 8);
    write_file_atomically(payload, swapped);
    CHECK(caught(verify).says("verify: weight lm_head matrix 0 row 1"));
    std::string flipped = whole;
    flipped[w.offset + w.bytes - static_cast<std::uint64_t>(block_bytes(w.format)) + 3] ^= 1;
    write_file_atomically(payload, flipped);
    const auto error = caught(verify);
    CHECK(error.code == Exit::fault);
    // The last tile holds rows 288 to 299 of 300; the flipped bit is row 288's (288 = 9 * 32).
    CHECK(error.says("verify: weight lm_head matrix 0 row 288 column"));
    write_file_atomically(payload, whole);
    CHECK(caught(verify).line == "");
  }
}

TEST_CASE("convert: a NaN or an infinity is named by tensor and index (case 79)") {
  TinySpec spec;
  for (const auto& [tensor, dtype, bits, index] :
       {std::tuple{"backbone.layers.0.norm.weight", "BF16", 0x7fc0u, 5u},
        {"backbone.layers.2.mixer.experts.3.up_proj.weight", "BF16", 0xff80u, 2047u},
        {"backbone.layers.0.mixer.A_log", "F32", 0x7f800001u, 3u},
        {"lm_head.weight", "BF16", 0x7f80u, 19199u}}) {
    auto tensors = tiny_tensors(spec);
    for (TestTensor& t : tensors) {
      if (t.name != tensor) continue;
      CHECK(t.dtype == dtype);
      const std::size_t width = t.dtype == "F32" ? 4 : 2;
      std::memcpy(&t.bytes[index * width], &bits, width);
    }
    const auto error = conversion(spec, tensors);
    CHECK(error.code == Exit::input);
    CHECK(error.says("tensor " + std::string(tensor) + " holds "));
    CHECK(error.says(" at index " + std::to_string(index) + ", expected finite weights"));
  }
}

TEST_CASE("convert: tensors absent, of another shape or dtype, twice, or left over are named") {
  TinySpec spec;
  spec.draft_pattern = "*E";
  const auto tensors = tiny_tensors(spec);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto without = tensors;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    const auto error = conversion(spec, without);
    CAPTURE(error.line);
    CHECK(error.code == Exit::input);
    std::string plain = tensors[i].name;
    if (plain.starts_with("backbone.")) plain = plain.substr(9);
    CHECK(error.says("tensor " + plain + " is missing"));
  }
  auto wrong = tensors;
  wrong[3].shape.back() += 1;
  wrong[3].bytes.append(wrong[3].bytes.size() / static_cast<std::size_t>(wrong[3].shape.back() - 1),
                        '\0');
  CHECK(conversion(spec, wrong).says("tensor " + wrong[3].name + " is"));
  // Legal in a file, but the model needs its numbers (case 71).
  wrong = tensors;
  wrong[3].shape.assign(1, 0);
  wrong[3].bytes.clear();
  CHECK(conversion(spec, wrong).says("tensor " + wrong[3].name + " is"));
  wrong = tensors;
  wrong[0].dtype = "I16";
  CHECK(conversion(spec, wrong).says("expected BF16, F16 or F32"));
  wrong = tensors;
  wrong.push_back({"backbone.layers.0.mixer.k_scale", "F32", {1}, std::string(4, '\0')});
  CHECK(conversion(spec, wrong)
            .says("tensor backbone.layers.0.mixer.k_scale F32 [1] is no part of the model"));
  wrong = tensors;
  wrong.push_back(tensors[1]);
  wrong.back().name = "model." + tensors[1].name.substr(9);
  CHECK(conversion(spec, wrong).says("are the same part of the model"));
  wrong = tensors;
  wrong.push_back({"vision_model.x", "F32", {1}, std::string(4, '\0')});
  CHECK(conversion(spec, wrong).line == "");
}

TEST_CASE("convert: the MTP head is packed where its tensors are, or knowingly left out") {
  TinySpec spec;
  spec.draft_pattern = "*E";
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", spec);
  ConvertOptions options = options_for(folder);
  options.without_mtp = true;
  const ConvertFacts facts = convert(options);
  CHECK(!Package::open(options.target)->graph().draft);
  CHECK(!facts.skipped.empty());
  for (const std::string& name : facts.skipped) CHECK(is_mtp_name(name));
  // Declared, but stripped from the files: a model without a head.
  TinySpec stripped = spec;
  stripped.draft_pattern.clear();
  stripped.config = {{"num_nextn_predict_layers", "1"}};
  write_tiny_checkpoint(folder / "stripped", stripped);
  options.source = folder / "stripped";
  options.target = folder / "stripped.bolt";
  options.without_mtp = false;
  CHECK(!convert(options).has_draft_head);
}

TEST_CASE("convert: a tied head that differs from the embedding is refused") {
  TinySpec spec;
  auto tensors = tiny_tensors(spec);
  TinySpec tied = spec;
  tied.tied = true;
  CHECK(conversion(tied, tensors).says("but config.json says tie_word_embeddings"));
  for (TestTensor& t : tensors) {
    if (t.name != "lm_head.weight") continue;
    for (const TestTensor& e : tensors) {
      if (e.name == "backbone.embeddings.weight") t.bytes = e.bytes;
    }
  }
  CHECK(conversion(tied, tensors).line == "");
}

TEST_CASE("convert: targets that cannot be are refused before any work") {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", TinySpec{});
  ConvertOptions options = options_for(folder);
  const auto refused = [&](const std::string& target) {
    options.target = target;
    const auto error = caught([&] { convert(options); });
    CHECK(error.code == Exit::usage);
    return error.line;
  };
  CHECK(refused(folder / "checkpoint").find("same folder") != std::string::npos);
  CHECK(refused(folder / "checkpoint/").find("same folder") != std::string::npos);
  CHECK(refused(folder / "checkpoint/p.bolt").find("lies inside the source") != std::string::npos);
  CHECK(refused(folder.path()).find("holds the source") != std::string::npos);
  CHECK(refused(folder / "no/p.bolt").find("does not exist") != std::string::npos);
  CHECK(refused("").find("empty") != std::string::npos);
  fs::create_directory(folder / "other");
  CHECK(refused(folder / "other").find("exists already; --force replaces it") != std::string::npos);
  options.force = true;
  CHECK(refused(folder / "other").find("is no package") != std::string::npos);
  CHECK(fs::is_empty(folder / "other"));
  options.force = false;
  options.target = folder / "p.bolt";
  convert(options);
  CHECK(refused(folder / "p.bolt").find("exists already") != std::string::npos);
  options.force = true;
  convert(options);
  CHECK(Package::open(options.target)->source() == "checkpoint");
}

TEST_CASE("convert: equal checkpoints give equal bytes, whatever the threads") {
  const TemporaryFolder folder;
  TinySpec spec;
  write_tiny_checkpoint(folder / "checkpoint", spec);
  ConvertOptions options = options_for(folder);
  const ConvertFacts one = convert(options);
  options.target = folder / "q.bolt";
  options.n_threads = 1;
  const ConvertFacts two = convert(options);
  REQUIRE(one.package_files.size() == two.package_files.size());
  for (std::size_t i = 0; i < one.package_files.size(); ++i) {
    CHECK(one.package_files[i].sha256 == two.package_files[i].sha256);
  }
}

TEST_CASE("convert: what stands in a checkpoint's place but is no regular file does not hang") {
  TinySpec spec;
  spec.n_shards = 2;
  for (const char* name : {"config.json", "tokenizer.json", "generation_config.json",
                           "tokenizer_config.json", "chat_template.jinja",
                           "model.safetensors.index.json", "model-00001-of-00002.safetensors"}) {
    CAPTURE(std::string(name));
    const TemporaryFolder folder;
    write_tiny_checkpoint(folder / "checkpoint", spec);
    const std::string path = folder / "checkpoint/" + name;
    fs::remove(path);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    const auto error = caught([&] { convert(options_for(folder)); });
    CHECK(error.code == Exit::input);
    CHECK(error.says(std::string(name) + ": is a FIFO, expected a regular file"));
  }
}

TEST_CASE("convert: a tokenizer with more ids than the model has rows is refused") {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", TinySpec{});
  write_file_atomically(folder / "checkpoint/tokenizer.json", byte_tokenizer_json(301));
  const auto error = caught([&] { convert(options_for(folder)); });
  CHECK(error.code == Exit::input);
  CHECK(error.says("tokenizer.json: has id 300, but config.json's vocab_size is 300"));
}

TEST_CASE("convert: names too long for the file system are one clear line") {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", TinySpec{});
  ConvertOptions options = options_for(folder);
  for (const std::size_t n : {250, 300}) {
    options.target = folder / std::string(n, 'x');
    const auto error = caught([&] { convert(options); });
    CHECK(error.code == Exit::usage);
    CHECK(error.says("File name too long"));
  }
}

TEST_CASE("convert: an interrupt leaves nothing behind") {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", TinySpec{});
  const ConvertOptions options = options_for(folder);
  interrupt_flag().store(true);
  const auto error = caught([&] { convert(options); });
  interrupt_flag().store(false);
  CHECK(error.code == Exit::interrupted);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("convert: a full disk is named, and nothing is left on it (case 77)") {
  const TemporaryFolder folder;
  TinySpec spec;
  spec.vocab_size = 4000;  // a package above 1 MiB
  spec.dtype = "F32";
  write_tiny_checkpoint(folder / "checkpoint", spec);
  fs::create_directory(folder / "disk");
  if (mount("tmpfs", (folder / "disk").c_str(), "tmpfs", 0, "size=1m") != 0) {
    MESSAGE("skipped: no right to mount a small disk");
    return;
  }
  ConvertOptions options = options_for(folder);
  options.target = folder / "disk/p.bolt";
  const auto error = caught([&] { convert(options); });
  const bool empty = fs::is_empty(folder / "disk");
  umount((folder / "disk").c_str());
  CHECK(error.code == Exit::fault);
  CHECK(error.says("the disk is full; free some space and run again"));
  CHECK(empty);
}

TEST_CASE("convert: a snapshot of links into a cache converts like the files (case 73)") {
  const TemporaryFolder folder;
  TinySpec spec;
  spec.n_shards = 2;
  write_tiny_checkpoint(folder / "blobs", spec);
  fs::create_directory(folder / "checkpoint");
  for (const auto& entry : fs::directory_iterator(folder / "blobs")) {
    const std::string name = entry.path().filename().string();
    fs::create_symlink("../blobs/" + name, folder / ("checkpoint/" + name));
  }
  const ConvertFacts facts = convert(options_for(folder));
  CHECK(facts.verified);
  CHECK(facts.source_files.size() == 8);
}

TEST_CASE("convert: stop ids are the union of all sources; defaults come along") {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", TinySpec{});
  write_file_atomically(folder / "checkpoint/generation_config.json",
                        "{\"eos_token_id\": [2, 17], \"do_sample\": true, \"temperature\": 0.6, "
                        "\"top_p\": 0.95, \"top_k\": 40, \"min_p\": 0.01}");
  ConvertOptions options = options_for(folder);
  convert(options);
  const auto package = Package::open(options.target);
  const ModelConfig& model = package->config();
  CHECK(model.stop_ids == std::vector<int>{2, 11, 17});
  CHECK(model.do_sample);
  CHECK(model.temperature == 0.6f);
  CHECK(model.top_p == 0.95f);
  CHECK(model.top_k == 40);
  CHECK(model.min_p == 0.01f);
  CHECK(model.chat_template == "v3");
  CHECK(model.chat_template_sha256.size() == 64);
  CHECK(model.n_tokens == 300);
  CHECK(model.context_limit == 4096);
  for (const char* bad :
       {"{\"temperature\": -1}", "{\"top_p\": 1.5}", "{\"top_p\": NaN}", "{\"min_p\": -0.1}",
        "{\"top_k\": 1.5}", "{\"eos_token_id\": 300}", "{\"do_sample\": \"yes\"}"}) {
    INFO(std::string(bad));
    write_file_atomically(folder / "checkpoint/generation_config.json", bad);
    options.target = folder / "bad.bolt";
    CHECK(caught([&] { convert(options); }).code == Exit::input);
  }
}

TEST_CASE("convert: the sample model, as it is and in q8") {
  const TemporaryFolder folder;
  ConvertOptions options = options_for(folder);
  options.source = BOLT_SOURCE_DIR "/testdata/sample-model";
  const ConvertFacts facts = convert(options);
  CHECK(facts.n_tensors == 301);
  CHECK(facts.has_draft_head);
  CHECK(facts.n_verified_values == facts.n_parameters);
  const auto package = Package::open(options.target);
  CHECK(package->config().stop_ids == std::vector<int>{2, 11});
  CHECK(package->config().chat_template == "v3");
  CHECK(package->config().n_tokens == 3200);
  CHECK(package->config().context_limit == 8192);
  CHECK_FALSE(package->config().add_bos);
  CHECK(package->graph().layers.size() == 12);
  options.target = folder / "q8.bolt";
  options.quant = Format::q8;
  const ConvertFacts q8 = convert(options);
  CHECK(q8.n_verified_quantised > 8'000'000);
  CHECK(q8.package_bytes < facts.package_bytes * 6 / 10);
}

// testdata/pack/make_golden.py: a checkpoint written by Python, and the hash of every weight's
// bytes as numpy packs and quantises it.
TEST_CASE("convert: packed bytes equal an independent packer's, bf16 and q8") {
  const std::string data = BOLT_SOURCE_DIR "/testdata/pack";
  const JsonDocument golden = JsonDocument::load(data + "/golden.json");
  const TemporaryFolder folder;
  fs::copy(data + "/checkpoint", folder / "checkpoint");
  write_file_atomically(folder / "checkpoint/tokenizer.json", byte_tokenizer_json(280));
  for (const bool q8 : {false, true}) {
    ConvertOptions options = options_for(folder);
    options.target = folder / (q8 ? "q8.bolt" : "none.bolt");
    if (q8) options.quant = Format::q8;
    convert(options);
    const auto package = Package::open(options.target);
    const JsonValue expected = golden.root().at(q8 ? "q8" : "none");
    std::size_t n = 0;
    each_weight(package->graph(), [&](const std::string& name, const Weight& w) {
      INFO(name);
      CHECK(sha256_hex(std::span(w.data, w.bytes)) == expected.at(name).string());
      ++n;
    });
    CHECK(n == expected.members().size());
  }
}

}  // namespace
}  // namespace bolt
