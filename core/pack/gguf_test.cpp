// Hostile and broken GGUF files. Rows of public fault reports are named as "case N".
#include "core/pack/gguf.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>

#include "core/base/output.h"
#include "core/base/testing/caught.h"
#include "core/pack/convert.h"
#include "core/pack/gguf_model.h"
#include "core/pack/testing/tiny_checkpoint.h"

namespace bolt {
namespace {

using testing::caught;
using testing::Caught;
using testing::TemporaryFolder;

const std::string kData = BOLT_SOURCE_DIR "/testdata/formats";

template <class T>
std::string bytes_of(T x) {
  return std::string(reinterpret_cast<const char*>(&x), sizeof x);
}
std::string u32(std::uint32_t x) { return bytes_of(x); }
std::string u64(std::uint64_t x) { return bytes_of(x); }
std::string text(std::string_view t) { return u64(t.size()) + std::string(t); }

std::string header(std::uint64_t n_tensors, std::uint64_t n_keys, std::uint32_t version = 3) {
  return "GGUF" + u32(version) + u64(n_tensors) + u64(n_keys);
}
std::string tensor(const std::string& name, const std::vector<std::uint64_t>& dims,
                   std::uint32_t type, std::uint64_t offset) {
  std::string out = text(name) + u32(static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t d : dims) out += u64(d);
  return out + u32(type) + u64(offset);
}
std::string padded(std::string bytes, std::size_t to = 32) {
  bytes.resize((bytes.size() + to - 1) / to * to);
  return bytes;
}

Caught reading(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x.gguf", bytes);
  return caught([&] { open_gguf(folder / "x.gguf"); });
}

// Two tensors of 8 floats, as they should be.
std::string two_tensors(std::uint64_t second_offset = 32, std::size_t data_bytes = 64,
                        std::uint64_t first_offset = 0) {
  return padded(header(2, 0) + tensor("k_proj", {8}, 0, first_offset) +
                tensor("v_proj", {8}, 0, second_offset)) +
         std::string(data_bytes, '\0');
}

TEST_CASE("gguf: a small file that is right is read") {
  CHECK(reading(two_tensors()).line == "");
  CHECK(reading(header(0, 0)).line == "");
}

TEST_CASE("gguf: dimensions of 0 and empty keys (case 62)") {
  CHECK(reading(padded(header(1, 0) + tensor("t", {4, 0}, 0, 0)) + std::string(32, '\0'))
            .says("tensor t: dimension 1 is 0"));
  CHECK(reading(padded(header(1, 0) + tensor("t", {}, 0, 0))).says("has 0 dimensions"));
  CHECK(reading(header(0, 1) + text("") + u32(4) + u32(1) + std::string(32, '\0'))
            .says("a key is empty"));
}

TEST_CASE(
    "gguf: counts and sizes that overflow or cannot fit are refused before allocating (case 64)") {
  const std::uint64_t most = 0x7fffffffffffffff;
  CHECK(reading(padded(header(1, 0) + tensor("t", {most, 2}, 0, 0))).says("overflows 62 bits"));
  CHECK(reading(padded(header(1, 0) + tensor("t", {1ull << 40, 1ull << 40}, 0, 0)))
            .says("overflows 62 bits"));
  CHECK(reading(padded(header(1, 0) + tensor("t", {32, 1ull << 56}, 2, 0))).code == Exit::input);
  CHECK(reading(header(1ull << 58, 0) + std::string(64, '\0')).says("the number of tensors"));
  CHECK(reading(header(0, 1ull << 58) + std::string(64, '\0')).says("the number of keys"));
  CHECK(reading(header(0, 1) + u64(1ull << 63) + std::string(64, '\0')).says("a key at byte"));
  CHECK(
      reading(header(0, 1) + text("k") + u32(9) + u32(8) + u64(1ull << 61) + std::string(64, '\0'))
          .says("key k at byte"));
  CHECK(reading(header(0, 1) + text("k") + u32(8) + u64(~0ull) + std::string(64, '\0'))
            .says("key k at byte"));
}

TEST_CASE("gguf: what is another kind of file is called so (case 66)") {
  CHECK(reading("<!DOCTYPE html><html></html>").says("looks like an HTML page"));
  CHECK(reading(std::string("tjgg") + std::string(64, '\1')).says("looks like an old ggml file"));
  CHECK(reading("").says("does not start with \"GGUF\""));
  CHECK(reading(header(0, 0, 99)).says("is GGUF version 99, expected 3"));
  CHECK(reading(header(0, 0, 2)).says("is GGUF version 2, expected 3"));
  CHECK(reading("GGUF" + u32(0x03000000) + std::string(16, '\0')).says("big-endian"));
}

TEST_CASE("gguf: a file that is cut short anywhere is refused (case 67)") {
  const std::string whole = two_tensors();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    INFO(n);
    CHECK(reading(whole.substr(0, n)).code == Exit::input);
  }
  CHECK(reading(whole.substr(0, whole.size() - 1))
            .says("is cut short: tensor v_proj takes 32 bytes"));
}

TEST_CASE("gguf: overlaps, holes and bytes of nothing (case 69)") {
  CHECK(reading(two_tensors(0)).says("tensors k_proj and v_proj overlap"));
  CHECK(reading(two_tensors(96, 128)).says("before tensor v_proj belong to no tensor"));
  CHECK(reading(two_tensors(32, 96)).says("32 bytes after the last tensor"));
  CHECK(reading(two_tensors(64, 96, 32)).says("before tensor k_proj belong to no tensor"));
  CHECK(reading(two_tensors(33, 96)).says("expected a multiple of 32"));
  CHECK(reading(two_tensors(~0ull - 31, 64)).says("cut short"));
}

TEST_CASE("gguf: types, names, alignments and arrays that cannot be") {
  const auto one = [&](std::uint32_t type, std::uint64_t k) {
    return reading(padded(header(1, 0) + tensor("t", {k}, type, 0)) + std::string(4096, '\0'));
  };
  CHECK(one(21, 256).says("has the type IQ3_S (21), which bolt has no kernels for"));
  CHECK(one(4, 32).says("has the type ? (4)"));
  CHECK(one(12, 288).says("288 columns are no multiple of Q4_K's 256"));
  const auto key = [&](const std::string& name, const std::string& value) {
    return reading(padded(header(0, 1) + text(name) + value));
  };
  CHECK(key("general.alignment", u32(4) + u32(0)).says("expected 1 to"));
  CHECK(key("general.alignment", u32(4) + u32(24)).says("expected a power of 2"));
  CHECK(key("general.alignment", u32(8) + text("32")).says("is no integer"));
  CHECK(key("k", u32(13) + u32(0)).says("expected 0 to 12"));
  CHECK(key("k", u32(9) + u32(9) + u64(1)).says("is an array of arrays"));
  CHECK(key(std::string("a\nb"), u32(4) + u32(0)).code == Exit::input);
  CHECK(reading(padded(header(0, 2) + text("k") + u32(4) + u32(0) + text("k") + u32(4) + u32(0)))
            .says("key k is there twice"));
  CHECK(reading(padded(header(2, 0) + tensor("t", {8}, 0, 0) + tensor("t", {8}, 0, 32)) +
                std::string(64, '\0'))
            .says("tensor t is there twice"));
}

TEST_CASE("gguf: tokenizers that lie about their arrays (case 45)") {
  const auto tokenizer = [](const std::string& keys, std::uint64_t n) {
    const TemporaryFolder folder;
    write_file_atomically(folder / "x.gguf", padded(header(0, n) + keys));
    return caught([&] { (void)gguf_tokenizer_json(open_gguf(folder / "x.gguf").metadata); });
  };
  const std::string model = text("tokenizer.ggml.model") + u32(8) + text("gpt2") +
                            text("tokenizer.ggml.pre") + u32(8) + text("pixtral");
  const std::string tokens =
      text("tokenizer.ggml.tokens") + u32(9) + u32(8) + u64(2) + text("a") + text("b");
  CHECK(tokenizer("", 0).says("key tokenizer.ggml.model is \"\", expected gpt2"));
  CHECK(tokenizer(model, 2).says("tokenizer.ggml.tokens is missing"));
  CHECK(tokenizer(model + text("tokenizer.ggml.tokens") + u32(9) + u32(0) + u64(2) + "ab", 3)
            .says("is no array of strings"));
  CHECK(tokenizer(model + tokens + text("tokenizer.ggml.token_type") + u32(9) + u32(0) + u64(2) +
                      std::string("\1\1"),
                  4)
            .says("is no array of 32-bit integers"));
  CHECK(
      tokenizer(
          model + tokens + text("tokenizer.ggml.token_type") + u32(9) + u32(5) + u64(1) + u32(1), 4)
          .says("has 1 items, expected 2"));
  CHECK(tokenizer(text("tokenizer.ggml.model") + u32(8) + text("llama"), 1)
            .says("is \"llama\", expected gpt2"));
  CHECK(tokenizer(text("tokenizer.ggml.model") + u32(8) + text("gpt2") +
                      text("tokenizer.ggml.pre") + u32(8) + text("qwen2"),
                  2)
            .says("is \"qwen2\", expected pixtral"));
}

TEST_CASE("gguf: parts of a split that are missing, doubled or mixed; other architectures") {
  const TemporaryFolder folder;
  const std::string first = "moe-00001-of-00002.gguf", second = "moe-00002-of-00002.gguf";
  const auto opening = [&](const std::string& name) {
    return caught([&] { open_gguf(folder / name); });
  };
  std::filesystem::copy_file(kData + "/" + first, folder / first);
  CHECK(opening(first).says("moe-00002-of-00002.gguf: is missing: part 2 of 2"));
  std::filesystem::copy_file(kData + "/" + first, folder / second);
  CHECK(opening(first).says("split.no is 0, expected 1"));
  std::filesystem::remove(folder / second);
  std::filesystem::copy_file(kData + "/" + second, folder / second);
  CHECK(opening(first).line == "");
  CHECK(opening(second).line == "");  // any part names the whole
  CHECK(open_gguf(folder.path()).checkpoint.files.size() == 2);
  std::filesystem::copy_file(kData + "/dense.gguf", folder / "dense.gguf");
  CHECK(caught([&] { open_gguf(folder.path()); }).says("holds several models"));

  ConvertOptions options;
  options.target = folder / "p.bolt";
  options.source = folder / "other.gguf";
  std::string other = read_file(kData + "/dense.gguf");
  const std::size_t arch = other.find("nemotron_h");
  other.replace(arch, 10, "llama_____");
  write_file_atomically(options.source, other);
  CHECK(caught([&] { convert(options); }).says("expected nemotron_h or nemotron_h_moe"));
  CHECK(!path_exists(options.target));
  // The package may lie beside the file, but neither is, nor holds, the other.
  options.source = options.target = folder / "dense.gguf";
  CHECK(caught([&] { convert(options); }).says("source and target are the same"));
  options.target = folder.path();
  CHECK(caught([&] { convert(options); }).says("holds the source"));
}

}  // namespace
}  // namespace bolt
