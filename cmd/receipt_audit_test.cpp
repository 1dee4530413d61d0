// `bolt bench` and `bolt receipt audit` over real runs of two builds: clean, then damaged.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "cmd/testing/child.h"
#include "core/base/json.h"
#include "receipts/test_facts.h"

namespace bolt::testing {
namespace {

namespace fs = std::filesystem;
using receipts::Value;

// bolt with a byte more: the same program, another executable.
std::string other_build(const ScratchFolder& home) {
  const std::string path = home.file("bolt-b");
  fs::copy_file(BOLT_BINARY_DIR "/bolt", path);
  std::ofstream(path, std::ios::app | std::ios::binary) << '\n';
  return path;
}

// The first prompts of the frozen set; all 30 with BOLT_FULL_TESTS=1, which takes a minute.
int n_prompts() { return std::getenv("BOLT_FULL_TESTS") != nullptr ? 30 : 3; }

std::string prompts(const ScratchFolder& home, int n) {
  std::ifstream in(BOLT_SOURCE_DIR "/testdata/prompts/real30.jsonl");
  std::string text, line;
  for (int i = 0; i < n && std::getline(in, line); ++i) text += line + "\n";
  write_bytes(home.file("prompts"), text);
  return home.file("prompts");
}

Ended bench(const ScratchFolder& home, const std::string& folder,
            const std::vector<std::string>& more) {
  Start start{.args = {"bench", "-q", "--receipts", folder, "-n", "6", "-o", "json"},
              .limit_s = 1500};
  start.args.insert(start.args.end(), more.begin(), more.end());
  return run_bolt(home, start);
}

// The run of a cell: its file.
std::map<std::int64_t, std::string> files_by_cell(const std::string& folder) {
  std::map<std::int64_t, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".bolt.jsonl")) continue;
    const Value body = receipts::read_receipt(path).body;
    if (body.find("series") != nullptr) files[body.int_at("series.cell")] = path;
  }
  return files;
}

// Seals a receipt's body anew after a change; its attachments name the new rid.
void reseal(const std::string& path, const std::function<void(Value&)>& change) {
  const std::string text = file_bytes(path), before = receipts::body_of(text);
  Value body = receipts::read_canonical(before, path);
  change(body);
  const std::string after = receipts::canonical(body);
  std::string rest = text.substr(text.find('\n', before.size() + 1) + 1);
  const std::string rid = receipts::rid_of(before);
  for (std::size_t at; (at = rest.find(rid)) != std::string::npos;) {
    rest.replace(at, rid.size(), receipts::rid_of(after));
  }
  write_bytes(path, receipts::resealed(after) + rest);
}

TEST_SUITE_BEGIN("binary");

TEST_CASE("bench, audit: 2 builds x 2 modes x prompts x 2 passes, then five damages by name") {
  const ScratchFolder home;
  const std::string folder = home.file("series"), other = home.file("other");
  const int n = n_prompts();
  const Ended ran = bench(home, folder,
                          {"--prompts", prompts(home, n), "--against", other_build(home), "--modes",
                           "ordinary,k7", "-r", "2"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const JsonDocument table = JsonDocument::parse("bench", ran.out);
  CHECK(table.root().at("runs").integer() == 8 * n);
  CHECK(table.root().at("equal").boolean());

  const std::string plan = folder + "/plan.bolt.jsonl";
  const auto audit = [&] { return run_bolt(home, {"receipt", "audit", folder, "--plan", plan}); };
  const Ended clean = audit();
  INFO(clean.out);
  CHECK(clean.status == 0);
  const std::string all = std::to_string(2 * n);
  CHECK(clean.out.find(all + "/" + all) != std::string::npos);
  CHECK(clean.out.find("missing 0 extra 0 broken 0 differing 0 order ok") != std::string::npos);
  for (std::size_t at = 0, end; at < clean.out.size(); at = end + 1) {
    end = clean.out.find('\n', at);
    if (clean.out.compare(at, 5, "root ") != 0) CHECK(end - at <= 80);
  }
  CHECK(clean.out.find('\x1b') == std::string::npos);

  // Runs that another plan lists, to be mixed in.
  REQUIRE(bench(home, other, {"--prompts", prompts(home, 1), "--modes", "ordinary", "-r", "1"})
              .status == 0);
  const std::map<std::int64_t, std::string> files = files_by_cell(folder);
  const std::string& file = files.at(5);
  const std::string bytes = file_bytes(file);
  const auto finds = [&](const std::string& words) {
    const Ended ended = audit();
    INFO(ended.out);
    CHECK(ended.status == 1);
    CHECK(ended.out.find(words) != std::string::npos);
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename().string().starts_with("mixed")) fs::remove(entry.path());
    }
    write_bytes(file, bytes);
    CHECK(audit().status == 0);
  };
  fs::remove(file);
  finds("cell 5 (this k7 ");
  fs::copy_file(file, folder + "/mixed.bolt.jsonl");
  finds("a second time, first in");
  fs::copy_file(files_by_cell(other).at(0), folder + "/mixed.bolt.jsonl");
  finds("a run of another plan");
  reseal(file, [](Value& body) { body.set("series.order", "reversed"); });
  finds("order WRONG");
  reseal(file, [](Value& body) {
    body.set("out.ids", receipts::sha256_hex("other"));
    body.set("out.key", receipts::out_key(body, receipts::Binder()));
  });
  finds("broken 1");
}

TEST_CASE(
    "bench: a build that leaves no receipt is a fault; keyed runs compare; cells are run once") {
  const ScratchFolder home;
  const std::vector<std::string> one = {"--prompts", prompts(home, 1), "--modes", "ordinary", "-r",
                                        "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), one.begin(), one.end());
    return more;
  };
  const Ended silent = bench(home, home.file("silent"), with({"--against", "/bin/true"}));
  CHECK(silent.status == 6);
  CHECK(silent.err.find("/bin/true: ended well and left no receipt") != std::string::npos);
  CHECK(silent.out.empty());

  write_bytes(home.file("key"), std::string(64, 'a'));
  fs::permissions(home.file("key"), fs::perms::owner_read);
  const Ended keyed = bench(home, home.file("keyed"),
                            with({"--against", other_build(home), "--redact", "keyed",
                                  "--redaction-key", home.file("key")}));
  INFO(keyed.err);
  CHECK(keyed.status == 0);

  // The plan's only cell by serve-stdin, after the bench and twice over.
  const std::string folder = home.file("plain");
  REQUIRE(bench(home, folder, one).status == 0);
  const std::string plan = folder + "/plan.bolt.jsonl", run = files_by_cell(folder).at(0);
  JsonWriter ids;
  ids.value(receipts::read_receipt(run).attached.prompt_ids.value());
  const std::string line =
      R"({"cell": 0, "max_tokens": 6, "temperature": 0, "draft": "off", "prompt_ids": )" +
      ids.take() + "}\n";
  fs::remove(run);
  Start start{.args = {"serve-stdin", "-q", "--receipts", home.file("served"), "--plan", plan}};
  start.input = line + line;
  const Ended twice = run_bolt(home, start);
  CHECK(twice.status == 1);
  CHECK(twice.err.find("line 2: not the planned run: cell 0 was run by an earlier line") !=
        std::string::npos);
  const Ended audit = run_bolt(home, {"receipt", "audit", folder, "--plan", plan});
  INFO(audit.out);
  CHECK(audit.status == 0);
}

TEST_CASE("bench: replies at once are those alone, in series that audit clean; parts are timed") {
  const ScratchFolder home;
  const std::string folder = home.file("series");
  const Ended ran = bench(home, folder,
                          {"--prompts", prompts(home, 3), "--modes", "ordinary,k3", "-r", "2",
                           "--parallel", "1,2", "--profile"});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const JsonDocument table = JsonDocument::parse("bench", ran.out);
  const auto series = table.root().at("parallel").items();
  REQUIRE(series.size() == 4);
  for (const JsonValue& one : series) {
    CHECK(one.at("equal").boolean());
    CHECK(one.at("tokens").integer() > 0);
    const std::string where{one.at("folder").string()};
    const auto audit = [&] {
      return run_bolt(home, {"receipt", "audit", where, "--plan", where + "/plan.bolt.jsonl"});
    };
    CHECK(audit().status == 0);
    CHECK(audit().out.find("6/6") != std::string::npos);
    fs::remove(files_by_cell(where).at(4));  // control
    CHECK(audit().status == 1);
  }
  const auto profiles = table.root().at("profiles").items();
  REQUIRE(profiles.size() == 2);
  for (const JsonValue& profile : profiles) {
    const JsonValue decode = profile.at("decode_ns");
    for (const char* part : {"mamba", "attention", "experts", "head", "sampling"}) {
      CHECK(decode.at(part).integer() > 0);
    }
    CHECK((decode.at("draft head").integer() > 0) == (profile.at("mode").string() == "k3"));
    CHECK(profile.at("prompt_ns").at("mamba").integer() > 0);
    CHECK(profile.at("prompt_ns").at("head").integer() == 0);
  }
}

TEST_CASE("bench: interrupted, it keeps what ran and says so; --resume makes the rest") {
  const ScratchFolder home;
  const std::string folder = home.file("series");
  const std::vector<std::string> what = {
      "--prompts", prompts(home, 3), "--modes", "ordinary,auto", "-r", "2"};
  Start start{.args = {"bench", "--receipts", folder, "-n", "6", "-o", "json", "-m",
                       BOLT_BINARY_DIR "/sample.bolt"}};
  start.args.insert(start.args.end(), what.begin(), what.end());
  bool sent = false;
  start.watch = [&](pid_t pid, const std::string&, const std::string&) {
    std::error_code error;
    std::size_t n_files = 0;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      n_files += entry.path().string().ends_with(".bolt.jsonl");
    }
    if (!sent && n_files > 3) sent = ::kill(pid, SIGINT) == 0;
  };
  const Ended first = run_bolt(home, start);
  INFO(first.err);
  const std::size_t n_ran = files_by_cell(folder).size();
  CHECK(n_ran >= 3);
  if (n_ran < 12) {  // a quick machine may be done before the signal comes
    CHECK(first.status == 130);
    CHECK(first.err.find("--resume " + folder) != std::string::npos);
    const Ended audit =
        run_bolt(home, {"receipt", "audit", folder, "--plan", folder + "/plan.bolt.jsonl"});
    CHECK(audit.status == 1);
    CHECK(audit.out.find("missing") != std::string::npos);
  }
  std::vector<std::string> more = {"--resume", folder};
  more.insert(more.end(), what.begin(), what.end());
  Start resume{
      .args = {"bench", "-q", "-n", "6", "-o", "json", "-m", BOLT_BINARY_DIR "/sample.bolt"}};
  resume.args.insert(resume.args.end(), more.begin(), more.end());
  const Ended second = run_bolt(home, resume);
  INFO(second.err);
  CHECK(second.status == 0);
  CHECK(files_by_cell(folder).size() == 12);
  CHECK(
      run_bolt(home, {"receipt", "audit", folder, "--plan", folder + "/plan.bolt.jsonl"}).status ==
      0);
  // Another command is not what was planned.
  resume.args.insert(resume.args.end(), {"--modes", "k3"});
  CHECK(run_bolt(home, resume).status == 4);
}

// Ten nulls and a search for five percent, on whatever else the machine does: BOLT_FULL_TESTS=1.
TEST_CASE("bench: a build against itself claims nothing, one slowed by five percent is found") {
  const ScratchFolder home;
  const bool full = std::getenv("BOLT_FULL_TESTS") != nullptr;
  const std::string set = prompts(home, full ? 10 : 2);
  int n_claims = 0;
  for (int i = 0; i < (full ? 10 : 1); ++i) {
    const Ended ended =
        bench(home, home.file("null" + std::to_string(i)),
              {"--prompts", set, "--null", "-r", full ? "6" : "2", "-n", "32", "--ignore-eos"});
    INFO(ended.err);
    CHECK((ended.status == 0 || ended.status == 1));
    const JsonDocument table = JsonDocument::parse("bench", ended.out);
    CHECK(table.root().at("equal").boolean());
    n_claims += ended.status;
    MESSAGE("null: ", ended.status == 0 ? "no difference claimed" : ended.out);
  }
  CHECK(n_claims <= 1);
  if (!full) return;
  const Ended ended = bench(home, home.file("slow"),
                            {"--prompts", set, "--against", BOLT_BINARY_DIR "/testing/bolt_slow",
                             "--modes", "ordinary", "-r", "6", "-n", "64", "--ignore-eos"});
  INFO(ended.err);
  REQUIRE(ended.status == 0);
  const JsonDocument table = JsonDocument::parse("bench", ended.out);
  const JsonValue speed = table.root().at("rows").items().back().at("speed");
  MESSAGE("slowed by 5%: ", speed.at("times").number(), " (", speed.at("low").number(), " to ",
          speed.at("high").number(), ")");
  CHECK(speed.at("differs").boolean());
  CHECK(speed.at("high").number() < 1.0);
}

TEST_CASE("bench: a build with one reduction reversed is fast, unequal, and told") {
  const ScratchFolder home;
  const std::string folder = home.file("series"), package = home.file("q8.bolt");
  REQUIRE(run_bolt(home, {"convert", "-q", "--quant", "q8",
                          BOLT_SOURCE_DIR "/testdata/sample-model", package})
              .status == 0);
  write_bytes(home.file("prompts"), "{\"prompt\": \"Tell a story.\", \"id\": \"story\"}\n");
  const Ended ended = bench(home, folder,
                            {"--prompts", home.file("prompts"), "-m", package, "--against",
                             BOLT_BINARY_DIR "/testing/bolt_reversed", "--modes", "ordinary", "-r",
                             "1", "--temp", "6", "--ignore-eos", "--seed", "6", "-n", "100"});
  INFO(ended.err);
  CHECK(ended.status == 1);
  const JsonDocument table = JsonDocument::parse("bench", ended.out);
  CHECK_FALSE(table.root().at("equal").boolean());
  CHECK(std::string(table.root().at("divergences").items().at(0).string())
            .find("story: first at token 69") != std::string::npos);
  CHECK(table.root().at("rows").items().at(1).at("decode_tok_per_s").at("median").number() > 0);
}

TEST_CASE("bench: -p, -n and -d as in llama-bench, scripted drafts, costs, formats") {
  const ScratchFolder home;
  const std::string folder = home.file("series");
  const Ended json = bench(home, folder,
                           {"-p", "16,32", "-n", "8", "-d", "0,20", "--modes", "ordinary,k7", "-r",
                            "2", "--draft", "scripted:1", "--costs"});
  INFO(json.err);
  REQUIRE(json.status == 0);
  const JsonDocument table = JsonDocument::parse("bench", json.out);
  const auto rows = table.root().at("rows").items();
  REQUIRE(rows.size() == 12);  // (pp16 pp32 tg8) x 2 depths x 2 modes
  CHECK(rows[0].at("length").string() == "pp16");
  CHECK(rows[11].at("length").string() == "tg8@d20");
  CHECK(rows[11].at("accepted").integer() == rows[11].at("drafted").integer());
  CHECK(rows[11].at("tokens_per_pass").number() == doctest::Approx(7.0));
  CHECK(rows[11].at("tokens").integer() == 8);
  CHECK(rows[0].at("tokens").integer() == 0);
  CHECK(table.root().at("packages").items().at(0).at("costs").at("v_ns").items().size() == 64);
  // A pass of the sample's DSpark reads the target's head, its own weights, and W2 for each draft.
  CHECK(table.root().at("packages").items().at(0).at("dspark_pass_bytes").integer() > 5'000'000);
  CHECK(table.root().at("receipt_ms").number() > 0);
  const Ended plotted =
      bench(home, home.file("plotted"),
            {"-p", "8", "-n", "4", "-r", "1", "--costs", "--profile", "-o", "md"});
  CHECK(plotted.out.find("dspark: a pass for 7 drafts") != std::string::npos);
  CHECK(plotted.out.find("4 tokens decoded, prompt of 7") != std::string::npos);
  // A depth's ids were there before.
  for (const auto& [cell, path] : files_by_cell(folder)) {
    const Value body = receipts::read_receipt(path).body;
    CHECK(body.int_at("task.prompt_n") - body.int_at("sched.cached_n") <= 32);
  }
  for (const std::string format : {"md", "csv", "jsonl"}) {
    const Ended ended =
        bench(home, home.file(format), {"-p", "8", "-n", "4", "-r", "1", "-o", format});
    CHECK(ended.status == 0);
    CHECK(std::count(ended.out.begin(), ended.out.end(), '\n') >= 4);
  }
  CHECK(bench(home, folder, {}).status == 2);  // holds a bench
  CHECK(run_bolt(home, {"bench", "-p", "8", "--prompts", "x"}).status == 2);
  CHECK(run_bolt(home, {"bench", "OUT"}).status == 2);
  CHECK(run_bolt(home, {"bench", "--modes", "k99"}).status == 2);
}

TEST_SUITE_END();

}  // namespace
}  // namespace bolt::testing
