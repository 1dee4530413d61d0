// Separate drafters as users meet them: adding one, drafting with it, checking what it left.
#include <doctest/doctest.h>

#include <filesystem>

#include "cmd/testing/child.h"
#include "core/base/json.h"

namespace bolt::testing {
namespace {

const std::string kDrafters = BOLT_SOURCE_DIR "/testdata/sample-model/drafters/";
const std::string kSample = BOLT_BINARY_DIR "/sample.bolt";

struct Said {
  std::string ids, receipt;
  std::int64_t target = 0, block_passes = 0;
};
Said said(const ScratchFolder& home, const std::string& package,
          const std::vector<std::string>& options) {
  std::vector<std::string> args = {"run", "--json", "-q", "-m", package, "--no-think", "-n", "40"};
  args.insert(args.end(), options.begin(), options.end());
  args.push_back("Count from 1 to 12.");
  const Ended ended = run_bolt(home, args);
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const JsonDocument document = JsonDocument::parse("run --json", ended.out);
  const JsonValue root = document.root(), counters = root.at("counters");
  Said said{root.at("ids").json(), std::string(root.at("receipt").string()),
            counters.at("target").integer(), counters.at("block_passes").integer()};
  return said;
}

}  // namespace

TEST_SUITE_BEGIN("binary");

TEST_CASE("drafters: one is added to a package, drafts, and its receipts verify") {
  const ScratchFolder home;
  const std::string both = home.file("both.bolt");
  const Ended added =
      run_bolt(home, {"convert", "--json", kDrafters + "dflash", both, "--drafter-for", kSample});
  INFO(added.err);
  REQUIRE(added.status == 0);
  const JsonDocument document = JsonDocument::parse("convert --json", added.out);
  CHECK(document.root().at("drafters").json() == "[\"dflash\"]");
  CHECK(document.root().at("verified").boolean());
  CHECK(document.root().at("linked").integer() + document.root().at("copied").integer() == 6);

  const Said plain = said(home, both, {"--draft", "off"});
  CHECK(plain.block_passes == 0);
  for (const std::string source : {"dspark", "dflash"}) {
    const Said drafted = said(home, both, {"--draft", source, "--drafts", "7"});
    CHECK(drafted.ids == plain.ids);
    CHECK(drafted.block_passes > 0);
    CHECK(drafted.target < plain.target);
    const Ended verified =
        run_bolt(home, {"receipt", "verify", "-m", both, "--replay", "--as",
                        source == "dspark" ? "dflash" : "dspark", drafted.receipt});
    INFO(verified.out, verified.err);
    CHECK(verified.status == 0);
  }
  const Ended served = run_bolt(
      home, {.args = {"serve-stdin", "-q", "-m", both, "--parallel", "3"},
             .input = "{\"id\": 1, \"prompt\": \"Count from 1 to 12.\", \"draft\": \"dflash\", "
                      "\"drafts\": 7, \"think\": false, \"max_tokens\": 40}\n"
                      "{\"id\": 2, \"prompt\": \"Count from 1 to 12.\", \"draft\": \"dspark\", "
                      "\"drafts\": 4, \"think\": false, \"max_tokens\": 40}\n"
                      "{\"id\": 3, \"prompt\": \"Count from 1 to 12.\", \"draft\": \"off\", "
                      "\"think\": false, \"max_tokens\": 40}\n"});
  INFO(served.err);
  CHECK(served.status == 0);
  int n_equal = 0;
  for (std::size_t at = served.out.find("\"ids\":"); at != std::string::npos;
       at = served.out.find("\"ids\":", at + 1)) {
    n_equal += served.out.compare(at + 6, plain.ids.size(), plain.ids) == 0;
  }
  CHECK(n_equal == 3);
}

TEST_CASE("drafters: what a package has not is refused, and so are options that do not fit") {
  const ScratchFolder home;
  const auto refused = [&](const std::vector<std::string>& args, const std::string& part) {
    const Ended ended = run_bolt(home, args);
    CHECK(ended.status == 2);
    CHECK_MESSAGE(ended.err.find(part) != std::string::npos, ended.err);
  };
  refused({"run", "--draft", "dflash", "hi"}, "--draft dflash: this package has no such drafter");
  refused({"convert", kDrafters + "dspark", home.file("a.bolt"), "--drafter-for", kSample},
          "has a dspark drafter already");
  refused({"convert", kDrafters + "dflash", home.file("a.bolt"), "--drafter-for", kSample,
           "--geometry", "fixed:8"},
          "--geometry: does not go with --drafter-for");
  refused({"convert", kDrafters + "dflash", home.file("a.bolt"), "--drafter-for", kSample,
           "--quant", "q8", "--keep", "nothing"},
          "--keep \"nothing\": matches no weight or tensor");
  refused({"convert", kDrafters + "dflash", home.file("a.bolt"), "--drafter-for", home.file("no")},
          "no package to add a drafter to");
  refused({"bench", "--make", "lightning-dspark", home.file("a")}, "needs --drafter-for");
  // A bench says so before it seals a plan; a replay does not claim what cannot have been.
  refused(
      {"bench", "-p", "8", "-n", "4", "--modes", "ordinary,dflash", "--receipts", home.file("b")},
      "--draft dflash: this package has no such drafter");
  CHECK_FALSE(std::filesystem::exists(home.file("b") + "/plan.bolt.jsonl"));
  const Said plain = said(home, kSample, {"--draft", "off"});
  refused({"receipt", "verify", "--replay", "--as", "dflash", plain.receipt},
          "--draft dflash: this package has no such drafter");
  refused({"bench", "--make", "sample", "--drafter-for", kSample, home.file("a")},
          "--drafter-for: goes with");
}

}  // namespace bolt::testing
