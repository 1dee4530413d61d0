#include "core/pack/safetensors.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "core/base/output.h"
#include "core/base/testing/caught.h"
#include "core/pack/file_kind.h"
#include "core/pack/testing/tiny_checkpoint.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using testing::caught;
using testing::TemporaryFolder;
using testing::write_raw_safetensors;

// What opening a file of this header and data says, without the path before it.
std::string refusal(const std::string& header, const std::string& data) {
  const TemporaryFolder folder;
  write_raw_safetensors(folder / "model.safetensors", header, data);
  const auto error = caught([&] { open_checkpoint(folder.path(), false); });
  if (error.code == Exit::ok) return "nothing";
  CHECK(error.code == Exit::input);
  return error.line.substr(error.line.find("model.safetensors") + 19);
}
std::string refusal_of_bytes(const std::string& bytes) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "model.safetensors", bytes);
  const auto error = caught([&] { open_checkpoint(folder.path(), false); });
  if (error.code == Exit::ok) return "nothing";
  return error.line.substr(error.line.find("model.safetensors") + 19);
}
std::string entry(const char* dtype, const char* shape, const char* offsets) {
  return std::string("{\"dtype\":\"") + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST_CASE("safetensors: a right file, zero-length and scalar tensors included (case 71)") {
  CHECK(refusal("{\"a\":" + entry("F32", "[2]", "[0,8]") + ",\"z\":" +
                    entry("BF16", "[0]", "[8,8]") + ",\"s\":" + entry("U8", "[]", "[8,9]") +
                    ",\"__metadata__\":{\"format\":\"pt\"}}   ",
                std::string(9, 'x')) == "nothing");
}

TEST_CASE("safetensors: lengths, ranges and shapes that disagree (cases 64, 71)") {
  const std::string too_long("\0\0\0\0\0\0\0\x80{}", 10);
  CHECK(refusal_of_bytes(too_long) ==
        "header length is 9223372036854775808 at byte 0, expected at most "
        "100000000; not safetensors");
  CHECK(refusal_of_bytes(std::string("\xff\0\0\0\0\0\0\0{}", 10)) ==
        "header length is 255 at byte 0, but only 2 bytes follow; cut short");
  CHECK(refusal("{\"a\":" + entry("F32", "[1]", "[8,4]") + "}", std::string(8, 'x')) ==
        "tensor a: begins at byte 8 of the data and ends before it, at 4");
  CHECK(refusal("{\"a\":" + entry("F32", "[3]", "[0,8]") + "}", std::string(8, 'x')) ==
        "tensor a: F32 [3] takes 12 bytes, but its range [0, 8) holds 8");
  CHECK(refusal("{\"a\":" + entry("F32", "[4611686018427387904, 4]", "[0,8]") + "}",
                std::string(8, 'x'))
            .find("overflows") != std::string::npos);
  CHECK(refusal("{\"a\":" + entry("F32", "[4611686018427387904, 2, 0]", "[0,0]") + "}", "")
            .find("overflows") != std::string::npos);
  CHECK(refusal("{\"a\":" + entry("F32", "[-1]", "[0,4]") + "}", std::string(4, 'x'))
            .find("shape[0]") != std::string::npos);
  CHECK(refusal("{\"a\":" + entry("F4", "[1]", "[0,4]") + "}", std::string(4, 'x')) ==
        "tensor a: dtype \"F4\" is not known");
  CHECK(refusal("{\"a\":" + entry("F32", "[1]", "[0]") + "}", std::string(4, 'x')) ==
        "tensor a: data_offsets holds 1 numbers, expected 2");
  CHECK(refusal("{\"a\":" + entry("F32", "[1]", "[0,18446744073709551615]") + "}",
                std::string(4, 'x'))
            .find("takes 4 bytes") != std::string::npos);
  CHECK(refusal("{\"a\":{\"dtype\":\"F32\"}}", "").find("\"a.shape\" is missing") !=
        std::string::npos);
  CHECK(refusal("{\"a\":" + entry("F32", "[1]", "[0,4]") +
                    ",\"a\":" + entry("F32", "[1]", "[0,4]") + "}",
                std::string(4, 'x'))
            .find("given twice") != std::string::npos);
  CHECK(refusal("{not json", "").find("not valid JSON") != std::string::npos);
}

TEST_CASE("safetensors: overlaps, holes and trailing bytes (case 69)") {
  const auto two = [](const char* a, const char* b) {
    return "{\"k\":" + entry("F32", "[2]", a) + ",\"v\":" + entry("F32", "[2]", b) + "}";
  };
  CHECK(
      refusal(two("[0,8]", "[0,8]"), std::string(8, 'x')).find("tensors k and v overlap at byte") ==
      0);
  CHECK(refusal(two("[0,8]", "[4,12]"), std::string(12, 'x'))
            .find("tensors k and v overlap at byte") == 0);
  CHECK(refusal(two("[0,8]", "[12,20]"), std::string(20, 'x'))
            .find("before tensor v belong to no tensor") != std::string::npos);
  CHECK(refusal(two("[4,12]", "[12,20]"), std::string(20, 'x'))
            .find("before tensor k belong to no tensor") != std::string::npos);
  CHECK(
      refusal(two("[0,8]", "[8,16]"), std::string(17, 'x')).find("1 bytes after the last tensor") ==
      0);
  CHECK(refusal(two("[0,8]", "[8,16]"), std::string(16, 'x')) == "nothing");
}

TEST_CASE("safetensors: a download cut anywhere is refused (case 67)") {
  const TemporaryFolder folder;
  write_raw_safetensors(folder / "m.safetensors", "{\"a\":" + entry("F32", "[2]", "[0,8]") + "}",
                        std::string(8, 'x'));
  const std::string whole = read_file(folder / "m.safetensors");
  for (std::size_t n = 0; n < whole.size(); ++n) {
    CAPTURE(n);
    CHECK(refusal_of_bytes(whole.substr(0, n)) != "nothing");
  }
  CHECK(refusal_of_bytes(whole) == "nothing");
  const std::string last = refusal_of_bytes(whole.substr(0, whole.size() - 1));
  CHECK(last.find("is cut short: tensor a ends at byte " + std::to_string(whole.size())) == 0);
  CHECK(last.find("the file at " + std::to_string(whole.size() - 1)) != std::string::npos);
}

TEST_CASE("safetensors: files that are something else are called what they look like (case 66)") {
  const std::pair<std::string, const char*> files[] = {
      {"<!DOCTYPE html><html><head>", "an HTML page"},
      {"\n  <HTML>\n<body>not found", "an HTML page"},
      {std::string("GGUF\3\0\0\0\1\0\0\0", 12), "a GGUF file"},
      {std::string("FUGG\0\0\0\3\0\0\0\0", 12), "a big-endian GGUF file"},
      {std::string("tjgg\1\0\0\0aaaaaaaa", 16), "an old ggml file"},
      {std::string("\x80\2}q\1X\0\0\0\0\0\0\0", 13), "a Python pickle"},
      {std::string("PK\3\4\0\0\10\10\0\0\0\0", 12), "a zip archive"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a git-lfs pointer"},
      {"{\"error\": \"Repository not found\"}", "a JSON text"},
  };
  for (const auto& [bytes, kind] : files) {
    INFO(std::string(kind));
    CHECK(refusal_of_bytes(bytes).find(std::string("looks like ") + kind) == 0);
  }
  CHECK(refusal_of_bytes(std::string(64, '\0')).find("header does not start with") == 0);
  CHECK(refusal_of_bytes("") == "has 0 bytes, expected a safetensors header of at least 8");
}

// A folder with an index that names `shard` for one tensor.
std::string index_refusal(const std::string& shard, bool without_mtp = false,
                          const char* tensor = "a") {
  const TemporaryFolder folder;
  write_file_atomically(folder / "model.safetensors.index.json",
                        "{\"weight_map\": {\"b\": \"here.safetensors\", \"" + std::string(tensor) +
                            "\": \"" + shard + "\"}}");
  write_raw_safetensors(folder / "here.safetensors", "{\"b\":" + entry("F32", "[1]", "[0,4]") + "}",
                        "xxxx");
  const auto error = caught([&] { open_checkpoint(folder.path(), without_mtp); });
  return error.code == Exit::ok ? "nothing" : error.line;
}

TEST_CASE("safetensors: an index's names stay inside the folder, as written (case 72)") {
  for (const char* name :
       {"../x", "/etc/passwd", "a/../../x", "./x", "a//x", "", "a\\\\x", "a\\u0000b"}) {
    INFO(std::string(name));
    CHECK(index_refusal(name).find("expected one inside the folder") != std::string::npos);
  }
  CHECK(path_fault("a/b.safetensors").empty());
  CHECK(path_fault("..").size() > 0);
}

TEST_CASE("safetensors: shards may be links into a cache of blobs (case 73)") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "blobs");
  fs::create_directories(folder / "snapshots/rev");
  write_raw_safetensors(folder / "blobs/0123abcd", "{\"b\":" + entry("F32", "[1]", "[0,4]") + "}",
                        "xxxx");
  write_file_atomically(folder / "snapshots/rev/model.safetensors.index.json",
                        "{\"weight_map\": {\"b\": \"model-1.safetensors\"}}");
  fs::create_symlink("../../blobs/0123abcd", folder / "snapshots/rev/model-1.safetensors");
  CHECK(open_checkpoint(folder / "snapshots/rev", false).tensors.size() == 1);
}

TEST_CASE(
    "safetensors: missing shards are listed with their tensors; MTP ones may be left out (case "
    "75)") {
  CHECK(index_refusal("gone.safetensors")
            .find("names shards that are missing: gone.safetensors (1 tensors); fetch them") !=
        std::string::npos);
  CHECK(index_refusal("gone.safetensors", true) != "nothing");
  const std::string mtp = index_refusal("mtp.safetensors", false, "mtp.layers.0.enorm.weight");
  CHECK(mtp.find("mtp.safetensors (1 tensors)") != std::string::npos);
  CHECK(mtp.find("convert --without-mtp") != std::string::npos);
  CHECK(index_refusal("mtp.safetensors", true, "mtp.layers.0.enorm.weight") == "nothing");
}

TEST_CASE("safetensors: index and shards must tell the same") {
  CHECK(index_refusal("here.safetensors")
            .find("tensor a should be in here.safetensors, but is not") != std::string::npos);
  const TemporaryFolder folder;
  write_raw_safetensors(folder / "1.safetensors", "{\"b\":" + entry("F32", "[1]", "[0,4]") + "}",
                        "xxxx");
  write_raw_safetensors(folder / "2.safetensors", "{\"b\":" + entry("F32", "[1]", "[0,4]") + "}",
                        "xxxx");
  const auto open = [&] { open_checkpoint(folder.path(), false); };
  CHECK(caught(open).says("holds 2 safetensors files but no model.safetensors.index.json"));
  write_file_atomically(folder / "model.safetensors.index.json",
                        "{\"weight_map\": {\"b\": \"1.safetensors\", \"c\": \"2.safetensors\"}}");
  CHECK(caught(open).says("tensor b is in 1.safetensors too"));
  write_raw_safetensors(
      folder / "2.safetensors",
      "{\"c\":" + entry("F32", "[1]", "[0,4]") + ",\"d\":" + entry("F32", "[1]", "[4,8]") + "}",
      "xxxxxxxx");
  CHECK(caught(open).says("does not list tensor d, which is in 2.safetensors"));
  write_file_atomically(folder / "model.safetensors.index.json", "{\"weight_map\": {}}");
  CHECK(caught(open).says("weight_map is empty"));
}

TEST_CASE("safetensors: folders without one are told apart") {
  const TemporaryFolder folder;
  const auto open = [&] { open_checkpoint(folder.path(), false); };
  CHECK(caught(open).says("holds no .safetensors file"));
  write_file_atomically(folder / "pytorch_model.bin", "x");
  CHECK(caught(open).says("holds pytorch_model.bin but no .safetensors file"));
  CHECK(caught([&] { open_checkpoint(folder / "none", false); }).code == Exit::usage);
  fs::create_directory(folder / "model.safetensors");
  CHECK(caught(open).says("is a folder, expected a regular file"));
}

TEST_CASE("safetensors: names that would break or flood an error line are refused") {
  const TemporaryFolder folder;
  const auto of = [&](const std::string& name) {
    write_raw_safetensors(
        folder / "f.safetensors",
        "{" + json_quote(name) + ": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]}}",
        "x");
    return caught([&] { open_checkpoint(folder / "f.safetensors", false); });
  };
  CHECK(of(std::string(256, 'n')).line == "");
  CHECK(of(std::string(257, 'n')).says("a name of 257 bytes, expected at most 256"));
  CHECK(of(std::string(100000, 'n')).line.size() < 300);
  CHECK(of("a\nbolt: all is well").says("tensor a\\nbolt: all is well has a control character"));
}

}  // namespace
}  // namespace bolt
