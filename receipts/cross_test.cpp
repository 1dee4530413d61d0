// Case 41: a checker written in another language, sharing no code, agrees on goldens and mutants.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>

#include "receipts/audit.h"
#include "receipts/plan.h"
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

RunFacts redacted_run(Redaction::Mode mode) {
  RunFacts facts = attached_run();
  facts.redaction.mode = mode;
  for (std::size_t i = 0; i < 32; ++i) facts.redaction.key[i] = static_cast<std::uint8_t>(i);
  return facts;
}

SessionFacts sample_session(bool closed) {
  const RunFacts run = sample_run();
  SessionFacts facts;
  facts.common = run.common;
  facts.package = run.package;
  facts.arith = run.arith;
  if (closed) facts.totals = SessionTotals{.lines = 3, .answered = 2, .failed = 1, .rids = {}};
  return facts;
}

Common sample_common() {
  Common common = sample_run().common;
  common.device.reset();
  return common;
}

Value sample_plan() {
  PlanFacts facts;
  facts.common = sample_common();
  facts.builds = {{"old", sha256_hex("old")}, {"new", sha256_hex("new")}};
  facts.packages = {sha256_hex("package")};
  facts.modes = {"ordinary", "k7"};
  facts.prompts = {{"p0", "a line", {}}, {"p1", "", {1, 2, 3}}};
  facts.passes = {"forward", "reversed"};
  facts.max_new = 64;
  return plan_body(facts);
}

Value sample_audit() {
  Value section;
  section.set("plan", sha256_hex("plan"));
  for (const char* name : {"planned", "found", "missing", "extra", "broken", "differing"}) {
    section.set(name, 0);
  }
  section.set("order", true);
  section.set("root", sha256_hex("root"));
  return audit_body(sample_common(), section);
}

Value sample_bench() {
  Value body, row;
  set_common(body, "bench", sample_run().common);
  body.set("bench.passes", 2);
  body.set("bench.null", false);
  row.set("name", "ordinary short");
  row.set("equal", true);
  for (const char* name : {"runs", "tokens", "median_ns", "low_ns", "high_ns"}) row.set(name, 5);
  body.set("bench.rows", Value::Array{row});
  return body;
}

std::map<std::string, std::string> goldens() {
  using Mode = Redaction::Mode;
  return {{"ordinary.bolt.jsonl", sealed_text(sample_run())},
          {"speculative.bolt.jsonl", sealed_text(attached_run())},
          {"keyed.bolt.jsonl", sealed_text(redacted_run(Mode::keyed))},
          {"salted.bolt.jsonl", sealed_text(redacted_run(Mode::salted))},
          {"session-open.bolt.jsonl", sealed_lines(session_body(sample_session(false)), "")},
          {"session-closed.bolt.jsonl", sealed_lines(session_body(sample_session(true)), "")},
          {"plan.bolt.jsonl", sealed_lines(sample_plan(), "")},
          {"audit.bolt.jsonl", sealed_lines(sample_audit(), "")},
          {"bench.bolt.jsonl", sealed_lines(sample_bench(), "")},
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
