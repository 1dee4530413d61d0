// `bolt convert` as its users meet it: quality of a quantisation, packages of another geometry,
// GGUF.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cmd/testing/child.h"
#include "core/base/json.h"

namespace bolt::testing {
namespace {

namespace fs = std::filesystem;
const std::string kData = BOLT_SOURCE_DIR "/testdata";

// The JSON object that a conversion prints.
JsonDocument converted(const ScratchFolder& home, std::vector<std::string> args) {
  args.insert(args.begin(), {"convert", "--json", "-t", "1"});
  const Ended ended = run_bolt(home, {.args = args, .limit_s = 300});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  return JsonDocument::parse("convert --json", ended.out);
}

struct Said {
  std::string ids;
  std::int64_t target = 0;
};
Said said(const ScratchFolder& home, const std::string& package, const std::string& draft) {
  const Ended ended =
      run_bolt(home, {"run", "--json", "-q", "-m", package, "--no-think", "-n", "24", "--drafts",
                      draft, "--draft", draft == "0" ? "off" : "mtp", "Count from 1 to 8."});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const JsonDocument document = JsonDocument::parse("run --json", ended.out);
  Said said;
  for (const JsonValue& id : document.root().at("ids").items())
    said.ids += std::to_string(id.integer()) + " ";
  said.target = document.root().at("counters").at("target").integer();
  return said;
}

}  // namespace

TEST_CASE("convert: --compare measures what quantising cost; nothing costs nothing") {
  const ScratchFolder home;
  // The first few of real30: all of them take a minute.
  const std::string all = file_bytes(kData + "/prompts/real30.jsonl");
  std::size_t end = 0;
  for (int i = 0; i < 3; ++i) end = all.find('\n', end) + 1;
  const std::string prompts = home.file("prompts.jsonl"), plain = home.file("plain.bolt");
  std::ofstream(prompts) << all.substr(0, end);
  (void)converted(home, {kData + "/sample-model", plain});
  double before = 0.0;
  for (const std::string quant : {"none", "q8", "nvfp4"}) {
    const JsonDocument document =
        converted(home, {"--quant", quant, "--compare", plain, "--prompts", prompts,
                         kData + "/sample-model", home.file(quant + ".bolt")});
    const JsonValue quality = document.root().at("quality");
    const double mean = quality.at("mean_kl").number(), largest = quality.at("largest_kl").number();
    MESSAGE(quant << ": mean KL " << mean << ", largest " << largest << ", same choice "
                  << quality.at("same_choice").integer() << " of "
                  << quality.at("positions").integer());
    CHECK(quality.at("prompts").integer() == 3);
    CHECK(quality.at("positions").integer() > 20);
    CHECK(largest >= mean);
    const auto errors = document.root().at("relative_errors").members();
    if (quant == "none") {
      CHECK(largest == 0.0);
      CHECK(errors.empty());
      continue;
    }
    CHECK(mean > before);  // nvfp4 costs more than q8
    before = mean;
    CHECK(errors.size() > 20);
    CHECK(errors.front().second.number() >= errors.back().second.number());
    CHECK(errors.front().second.number() < (quant == "q8" ? 0.01 : 0.15));
  }
  CHECK(before < 1.0);
}

TEST_CASE("convert: dynamic, fixed:8 and hybrid:8 say the same, drafting or not") {
  const ScratchFolder home;
  const std::string plain = home.file("plain.bolt");
  (void)converted(home, {"--quant", "q8", "--no-verify", kData + "/sample-model", plain});
  const Said off = said(home, plain, "0"), seven = said(home, plain, "7");
  CHECK(off.ids == seven.ids);
  CHECK(seven.target < off.target);
  for (const std::string geometry : {"fixed:8", "hybrid:8"}) {
    const std::string made = home.file(geometry + ".bolt");
    const JsonDocument document = converted(home, {plain, made, "--geometry", geometry});
    CHECK(document.root().at("copied").integer() == 0);
    CHECK(document.root().at("linked").integer() > 0);
    CHECK(fs::hard_link_count(made + "/weights-00001.bin") >= 2);
    for (const std::string draft : {"0", "1", "3", "7"}) {
      const Said here = said(home, made, draft), there = said(home, plain, draft);
      CHECK_MESSAGE(here.ids == off.ids, geometry, " ", draft);
      CHECK_MESSAGE(here.target == there.target, geometry, " ", draft);
    }
    // What it says of itself, in the receipt beside the package.
    const std::string receipt = file_bytes(home.file(geometry + ".bolt.jsonl"));
    const Ended checked =
        run_bolt(home, {"receipt", "verify", home.file(geometry + ".bolt.jsonl")});
    CHECK_MESSAGE(checked.status == 0, checked.err);
    CHECK(receipt.find("\"geometry\":\"" + geometry + "\"") != std::string::npos);
    CHECK(receipt.find("\"how\":\"carried\"") != std::string::npos);
  }
}

TEST_CASE("convert: a GGUF beside its package; killed, it leaves nothing that a next run minds") {
  const ScratchFolder home;
  const std::string source = home.file("moe-00001-of-00002.gguf");
  for (const char* part : {"moe-00001-of-00002.gguf", "moe-00002-of-00002.gguf"})
    fs::copy_file(kData + "/formats/" + part, home.file(part));
  const std::string target = home.file("moe.bolt");
  const JsonDocument document = converted(home, {source, target});
  CHECK(document.root().at("verified").boolean());
  CHECK(document.root().at("mtp").boolean());
  CHECK(run_bolt(home, {"convert", source, target}).status == 2);  // there already
  CHECK(run_bolt(home, {"convert", source, target, "--quant", "q9"}).status == 2);
  const Ended geometry = run_bolt(home, {"convert", target, home.file("b.bolt")});
  CHECK(geometry.status == 2);
  CHECK(geometry.err.find("is a package already") != std::string::npos);
  // SIGKILL in the midst of a larger one: nothing stands at the target, and the next run cleans up.
  const std::string large = home.file("large.bolt");
  const Ended killed = run_bolt(
      home, {.args = {"convert", "-q", "-t", "1", kData + "/sample-model", large},
             .watch = [&](pid_t pid, const std::string&, const std::string&) {
               for (const auto& entry : fs::directory_iterator(home.path())) {
                 if (entry.path().filename().string().find("large.bolt") != std::string::npos)
                   ::kill(pid, SIGKILL);
               }
             }});
  CHECK(killed.signal == SIGKILL);
  CHECK(!fs::exists(large));
  (void)converted(home, {kData + "/sample-model", large});
  std::size_t n = 0;
  for (const auto& entry : fs::directory_iterator(home.path()))
    n += entry.path().filename().string().find("large.bolt") != std::string::npos;
  CHECK(n == 2);  // the package and its receipt
}

}  // namespace bolt::testing
