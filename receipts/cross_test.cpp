// Case 41: a checker written in another language, sharing no code, agrees on goldens and mutants.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "receipts/test_facts.h"

using namespace bolt::receipts;
namespace fs = std::filesystem;

namespace {

const std::string kFolder = std::string(BOLT_SOURCE_DIR) + "/testdata/receipts";

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(in)), {});
}

RunFacts attached_run() {
  RunFacts facts = sample_speculative(50);
  facts.attach.text = facts.attach.logits = facts.attach.state = true;
  facts.out.logits.assign(50, sha256_hex("logits"));
  facts.out.state = {sha256_hex("layer 0"), sha256_hex("layer 1")};
  facts.out.state_boundary = "end";
  facts.out.text = "bytes \xff and \"quotes\"\n";
  facts.task.sampling.kind = "sample";
  facts.task.sampling.rng = "philox4x32-10";
  facts.task.sampling.temperature = 0.3f;
  facts.task.sampling.seed = 0x123456789abcdef0u;
  facts.task.stop_texts = {"END"};
  facts.common.env = {{"CUDA_VISIBLE_DEVICES", "0", ""}};
  return facts;
}

ConversionFacts sample_conversion() {
  ConversionFacts facts;
  const RunFacts run = sample_run();
  facts.common = run.common;
  facts.package = run.package;
  facts.arith = run.arith;
  facts.source_name = "nano-4b";
  facts.source_files = {{"config.json", 10, sha256_hex("c")},
                        {"model.safetensors", 20, sha256_hex("m")}};
  facts.quant = "q8";
  facts.keep = {"lm_head"};
  facts.verified = true;
  facts.tensors = 7;
  facts.values_compared = 100;
  return facts;
}

std::map<std::string, std::string> goldens() {
  return {{"ordinary.bolt.jsonl", sealed_text(sample_run())},
          {"speculative.bolt.jsonl", sealed_text(attached_run())},
          {"conversion.bolt.jsonl", sealed_lines(conversion_body(sample_conversion()), "")}};
}

// Changes to a body that a sealer would seal anew: each value replaced by others, each field taken
// out, each object given one more.
void mutate(const Value& root, Value& at, std::vector<std::string>& out) {
  const auto emit = [&] { out.push_back(canonical(root)); };
  if (at.is_object()) {
    at.object().emplace("zz", true);
    emit();
    at.object().erase("zz");
    std::vector<std::string> keys;
    for (const auto& [key, value] : at.object()) keys.push_back(key);
    for (const std::string& key : keys) {
      Value held = at.object().at(key);
      at.object().erase(key);
      emit();
      at.object().emplace(key, std::move(held));
      mutate(root, at.object().at(key), out);
    }
    return;
  }
  if (at.is_array()) {
    Value::Array held = at.array();
    at = Value::Array();
    emit();
    at = held;
    if (held.size() > 1) {
      std::swap(at.array().front(), at.array().back());
      emit();
      at = held;
    }
    mutate(root, at.array().front(), out);
    return;
  }
  const Value held = at;
  std::vector<Value> others = {Value(true),
                               Value(0),
                               Value(-1),
                               Value(kIntMax),
                               Value(""),
                               Value("x"),
                               Value(sha256_hex("other")),
                               Value::Object(),
                               Value::Array()};
  if (held.is_int()) others.emplace_back(held.as_int() + 1);
  if (held.is_string() && !held.as_string().empty()) {
    std::string s = held.as_string();
    s.back() = s.back() == '0' ? '1' : '0';
    others.emplace_back(s);
    for (char& c : s) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    others.emplace_back(s);
  }
  for (Value& other : others) {
    if (other == held) continue;
    at = std::move(other);
    emit();
  }
  at = held;
}

}  // namespace

TEST_CASE("cross: goldens are written byte for byte as they lie in testdata") {
  for (const auto& [name, text] : goldens()) {
    if (::getenv("BOLT_WRITE_GOLDENS") != nullptr) std::ofstream(kFolder + "/" + name) << text;
    CHECK_MESSAGE(read_all(kFolder + "/" + name) == text, name);
    CHECK(verdict(text) == 0);
  }
}

TEST_CASE("cross: case 41, the Python checker agrees on every golden and mutant") {
  if (std::system("python3 -c '' 2>/dev/null") != 0) {
    MESSAGE("skipped: no python3 here");
    return;
  }
  char folder[] = "/tmp/bolt-cross-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  std::map<std::string, int> expected;
  const auto add = [&](const std::string& text) {
    const std::string path = std::string(folder) + "/" + std::to_string(expected.size());
    std::ofstream(path, std::ios::binary) << text;
    expected[path] = verdict(text);
  };
  for (const auto& [name, text] : goldens()) {
    add(text);
    // Bytes: flips all over the file, cuts at every 37th byte and at every line end.
    for (std::size_t i = 0; i < text.size(); i += 41) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
      add(changed);
    }
    for (std::size_t i = 0; i < text.size(); i += 37) add(text.substr(0, i));
    for (std::size_t i = 0; (i = text.find('\n', i)) != std::string::npos; ++i)
      add(text.substr(0, i + 1));
    // Meanings: a changed body, sealed anew, without attachments.
    Value body = read_canonical(body_of(text), "golden");
    std::vector<std::string> bodies;
    mutate(body, body, bodies);
    for (const std::string& changed : bodies) add(resealed(changed));
  }
  std::FILE* list = std::fopen((std::string(folder) + "/list").c_str(), "w");
  for (const auto& [path, status] : expected) std::fprintf(list, "%s\n", path.c_str());
  std::fclose(list);
  const std::string command =
      "xargs -a " + std::string(folder) + "/list python3 " + kFolder + "/check.py";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char line[4096];
  std::size_t answered = 0, intact = 0, broken = 0;
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    char path[1024];
    int status = -1;
    REQUIRE(std::sscanf(line, "%d %1023s", &status, path) == 2);
    ++answered;
    ++(expected.at(path) == 0 ? intact : broken);
    CHECK_MESSAGE(status == expected.at(path),
                  line << " bolt says " << expected.at(path) << ": " << read_all(path));
  }
  CHECK(::pclose(pipe) == 0);
  CHECK(answered == expected.size());
  CHECK(intact > 20);
  CHECK(broken > 1000);
  fs::remove_all(folder);
}
