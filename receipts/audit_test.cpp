#include "receipts/audit.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "receipts/test_facts.h"

using namespace bolt::receipts;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/bolt-audit-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() { fs::remove_all(path); }
  std::string path;
};

PlanFacts sample_plan(int n_prompts) {
  PlanFacts facts;
  fill_in(facts.common);
  facts.common.build.exe = sha256_hex("auditor");
  facts.builds = {{"old", sha256_hex("exe old")}, {"new", sha256_hex("exe new")}};
  facts.packages = {package_digest(sample_run().package.files)};
  facts.modes = {"ordinary", "k7"};
  for (int i = 0; i < n_prompts; ++i) {
    const std::string name = "p" + std::to_string(i);
    facts.prompts.push_back({name, "", {i + 1, 2, 3}});
  }
  facts.passes = {"forward", "reversed"};
  facts.common.limits_stated = {"no HF rerun"};
  return facts;
}

// A plan and a folder with a run for each of its cells.
struct Series240 {
  explicit Series240(int n_prompts)
      : plan_receipt(
            read_receipt_text(sealed_lines(plan_body(sample_plan(n_prompts)), ""), "plan")),
        plan(plan_receipt) {
    for (std::int64_t i = 0; i < plan.n_cells(); ++i) write(facts(i), file(i));
  }
  RunFacts facts(std::int64_t number) const {
    const Cell cell = plan.cell(number);
    RunFacts f = cell.mode == 0 ? sample_run() : sample_speculative();
    f.common.run_id = random_run_id();
    f.common.build.exe = sha256_hex(cell.build == 0 ? "exe old" : "exe new");
    f.common.time.sealed_us = 1000000 + cell.index;
    f.task.prompt_ids = {static_cast<int>(cell.prompt) + 1, 2, 3};
    f.series = plan.series(number);
    return f;
  }
  std::string file(std::int64_t number) const {
    return folder.path + "/" + std::to_string(number) + ".bolt.jsonl";
  }
  static void write(const RunFacts& f, const std::string& path) {
    std::ofstream(path, std::ios::binary) << sealed_text(f);
  }
  int status(std::string* said = nullptr) const {
    try {
      const Answer answer = audit({folder.path}, plan_receipt, {}).answer;
      if (said != nullptr) {
        for (const Line& line : answer.lines) *said += line.text + "\n";
      }
      return static_cast<int>(answer.status);
    } catch (const Failure& failure) {
      return static_cast<int>(failure.status);
    }
  }
  Folder folder;
  Receipt plan_receipt;
  Plan plan;
};

}  // namespace

TEST_CASE("audit: cases 17, 28, 30 and 40 on 2 builds x 2 modes x 30 prompts x 2 passes") {
  const Series240 series(30);
  REQUIRE(series.plan.n_cells() == 240);
  std::string said;
  CHECK(series.status(&said) == 0);
  CHECK(said.find("old          60/60       60/60") != std::string::npos);
  CHECK(said.find("missing 0 extra 0 broken 0 differing 0 order ok  limits: no HF rerun") !=
        std::string::npos);

  const auto finds = [&](std::int64_t cell, const std::function<void(RunFacts&)>& change,
                         const std::string& what) {
    RunFacts facts = series.facts(cell);
    change(facts);
    Series240::write(facts, series.file(cell));
    std::string words;
    CHECK_MESSAGE(series.status(&words) == 1, what);
    CHECK_MESSAGE(words.find(what) != std::string::npos, words);
    Series240::write(series.facts(cell), series.file(cell));
  };
  // One run deleted.
  fs::remove(series.file(17));
  said.clear();
  CHECK(series.status(&said) == 1);
  CHECK(said.find("cell 17 (old k7 p4 pass 1): missing") != std::string::npos);
  Series240::write(series.facts(17), series.file(17));
  // One a second time, one that answers no plan.
  fs::copy(series.file(3), series.folder.path + "/copy.bolt.jsonl");
  said.clear();
  CHECK(series.status(&said) == 1);
  CHECK(said.find("a second time") != std::string::npos);
  fs::remove(series.folder.path + "/copy.bolt.jsonl");
  finds(
      3, [](RunFacts& f) { f.series.reset(); }, "answers no plan");
  finds(
      3, [](RunFacts& f) { f.series->plan = sha256_hex("other"); }, "a run of another plan");
  finds(
      3, [](RunFacts& f) { f.series->cell = 240; }, "cell 240 is not in the plan");
  // Other tokens, another stop.
  finds(
      5, [](RunFacts& f) { f.out.ids[30] += 1; }, "cell 5 (old k7 p1 pass 1): differs 31-31");
  finds(
      5, [](RunFacts& f) { f.stop.kind = "error", f.task.max_new = 41; }, "a reply was error");
  // Order: claimed reversed, ran forward; sealed before its predecessor.
  finds(
      130, [](RunFacts& f) { f.series->index = 130; }, "order WRONG");
  finds(
      130, [](RunFacts& f) { f.series->order = "forward"; }, "order WRONG");
  finds(
      130, [](RunFacts& f) { f.common.time.sealed_us = 1; }, "order WRONG");
  // Not as planned: another build, another mode; called speculative without a round.
  finds(
      9, [](RunFacts& f) { f.common.build.exe = sha256_hex("exe 3"); }, "another build");
  finds(
      9, [](RunFacts& f) { f.mode.depth = 8; }, "mode k8 where k7 was planned");
  finds(
      9,
      [](RunFacts& f) {
        f.count = CountFacts();
        f.count.prompt_passes = 1;
      },
      "missing 1 ");
  // A body edited and sealed again: its attached ids no longer fit.
  std::ifstream in(series.file(8));
  std::string text((std::istreambuf_iterator<char>(in)), {});
  Value body = read_canonical(body_of(text), "t");
  body.set("out.ids", sha256_hex("other"));
  body.set("out.key", out_key(body, Binder()));
  const std::string sealed_again = canonical(body);
  const std::string rest = text.substr(text.find('\n', text.find('\n') + 1) + 1);
  std::string attachments = rest;
  for (std::size_t at; (at = attachments.find(rid_of(body_of(text)))) != std::string::npos;) {
    attachments.replace(at, 64, rid_of(sealed_again));
  }
  std::ofstream(series.file(8)) << resealed(sealed_again) << attachments;
  said.clear();
  CHECK(series.status(&said) == 1);
  CHECK(said.find("broken 1") != std::string::npos);
  Series240::write(series.facts(8), series.file(8));
  CHECK(series.status() == 0);
}

TEST_CASE("audit: case 29 and mixed tasks: nothing to check is never a success") {
  const Series240 series(1);
  RunFacts other = series.facts(2);
  other.task.stop_ids = {9};
  Series240::write(other, series.file(2));
  CHECK(series.status() == 4);
  for (std::int64_t i = 0; i < 8; ++i) fs::remove(series.file(i));
  CHECK(series.status() == 4);
  Series240::write(sample_run(), series.file(0));  // only a run of no plan
  CHECK(series.status() == 4);
  // A run is no plan; a plan without cells is not even well formed.
  CHECK_THROWS_AS(Plan(sealed(sample_run())), Failure);
  PlanFacts empty = sample_plan(0);
  CHECK_THROWS_AS(sealed_lines(plan_body(empty), ""), Failure);
}

TEST_CASE("audit: a first run of another prompt is named itself, and no measure of the others") {
  const Series240 series(2);
  RunFacts other = series.facts(0);
  other.task.prompt_ids = {7};
  Series240::write(other, series.file(0));
  std::string said;
  CHECK(series.status(&said) == 1);
  CHECK(said.find("cell 0") != std::string::npos);
  CHECK(said.find("another prompt than planned") != std::string::npos);
  CHECK(said.find("cell 1") == std::string::npos);
}

TEST_CASE("plan: cells are numbered with modes fastest, and the second pass runs backwards") {
  const Plan plan(read_receipt_text(sealed_lines(plan_body(sample_plan(3)), ""), "plan"));
  CHECK(plan.n_cells() == 24);
  CHECK(plan.cell(1).mode == 1);
  CHECK(plan.cell(2).build == 1);
  CHECK(plan.cell(4).prompt == 1);
  CHECK(plan.cell(11).index == 11);
  CHECK(plan.cell(12).index == 23);
  CHECK(plan.cell(23).index == 12);
  CHECK(plan.series(12).order == "reversed");
  CHECK_THROWS_AS(plan.cell(24), Failure);
}
