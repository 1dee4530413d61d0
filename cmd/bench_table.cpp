// From receipts to rows. Runs are compared as `bolt receipt compare` compares them.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include "cmd/bench_report.h"
#include "cmd/build_info.h"
#include "core/base/error.h"
#include "receipts/body.h"
#include "receipts/build_facts.h"
#include "receipts/compare.h"
#include "receipts/library.h"
#include "receipts/verify.h"

namespace bolt {
namespace {

using receipts::Cell;
using receipts::Value;

struct Run {
  Cell cell;
  receipts::Receipt receipt;
  std::string differs;  // from the first run of its prompt; empty: same tokens, same stop

  std::int64_t at(const char* path) const { return receipt.body.int_at(path); }
  std::int64_t n() const { return at("out.n"); }
  double prompt_rate() const {
    const auto n_new = static_cast<double>(at("task.prompt_n") - at("sched.cached_n"));
    return at("time.prefill_ns") > 0 ? n_new * 1e9 / static_cast<double>(at("time.prefill_ns")) : 0;
  }
  double decode_rate() const {
    return n() > 1 && at("time.decode_ns") > 0
               ? static_cast<double>(n() - 1) * 1e9 / static_cast<double>(at("time.decode_ns"))
               : 0;
  }
  double speed() const { return n() > 1 ? decode_rate() : prompt_rate(); }
};

using Runs = std::map<std::int64_t, Run>;  // by cell

Runs read_runs(const BenchRuns& bench) {
  Runs runs;
  for (const auto& entry : std::filesystem::directory_iterator(bench.folder())) {
    const std::string path = entry.path().string();
    if (!receipts::is_receipt_name(path)) continue;
    receipts::Receipt receipt = receipts::read_receipt(path);
    if (receipt.kind() != "run" || receipt.body.string_at("series.plan") != bench.plan().rid()) {
      continue;
    }
    (void)receipts::verify(receipt, {});
    const std::int64_t number = receipt.body.int_at("series.cell");
    const Cell cell = bench.plan().cell(number);
    if (!runs.try_emplace(number, Run{cell, std::move(receipt), {}}).second) {
      throw Error(Exit::no, fmt::format("{}: cell {} was run twice", bench.folder(), number));
    }
  }
  return runs;
}

// Each run against the first of its prompt and package.
void compare_runs(Runs& runs, const BenchRuns& bench, BenchTable& table) {
  std::map<std::pair<std::int64_t, std::int64_t>, const Run*> first;
  for (auto& [number, run] : runs) {
    const auto [at, fresh] = first.try_emplace({run.cell.package, run.cell.prompt}, &run);
    if (fresh) continue;
    const receipts::Comparison c = receipts::compare_runs(at->second->receipt, run.receipt);
    const std::string name = bench.plan().prompt_name(run.cell.prompt);
    if (!c.other_task.empty()) {
      if (table.not_comparable.empty()) {
        table.not_comparable = fmt::format("{}: {} differs", name, c.other_task[0]);
      }
      continue;
    }
    if (c.tokens == receipts::Tokens::same && c.stop_same && c.barred.empty()) continue;
    run.differs = c.tokens == receipts::Tokens::same ? name + ": the stop differs"
                  : c.tokens == receipts::Tokens::prefix
                      ? fmt::format("{}: token {} is missing", name, c.agreed + 1)
                  : c.first == c.last ? fmt::format("{}: first at token {}", name, c.first)
                                      : fmt::format("{}: first in {}-{}", name, c.first, c.last);
    table.equal = false;
    table.divergences.push_back(
        fmt::format("{} {} pass {}, {}", bench.plan().build_name(run.cell.build),
                    bench.plan().mode(run.cell.mode), run.cell.pass + 1, run.differs));
  }
}

const char* length_class(std::int64_t n_prompt) {
  return n_prompt <= 256 ? "short" : n_prompt <= 1024 ? "medium" : "long";
}

// The arm that another is held against: the first mode of its build; of that mode, the first build;
// of both, the first package.
struct Arm {
  std::int64_t package = 0, build = 0, mode = 0;
  auto operator<=>(const Arm&) const = default;
  bool is_base() const { return package == 0 && build == 0 && mode == 0; }
  Arm base() const {
    if (build != 0) return {package, 0, mode};
    if (mode != 0) return {package, 0, 0};
    return {0, 0, 0};
  }
};

class Table {
 public:
  Table(const BenchRuns& bench, const Runs& runs) : bench_(bench), plan_(bench.plan()) {
    for (const auto& [number, run] : runs) {
      const Arm arm{run.cell.package, run.cell.build, run.cell.mode};
      by_arm_[arm][run.cell.prompt].push_back(&run);
      if (!groups_.contains(run.cell.prompt)) {
        const BenchPrompt& prompt = bench.prompts()[static_cast<std::size_t>(run.cell.prompt)];
        groups_[run.cell.prompt] =
            prompt.test.empty() ? length_class(run.at("task.prompt_n")) : prompt.test;
      }
    }
  }

  std::vector<BenchRow> rows() const {
    std::vector<std::string> names;  // in the order of the prompts
    for (const auto& [prompt, group] : groups_) {
      if (std::ranges::find(names, group) == names.end()) names.push_back(group);
    }
    const bool classes = bench_.prompts()[0].test.empty();
    if (classes) {
      std::ranges::sort(names, {}, [](const std::string& name) {
        return std::string_view("short medium long").find(name);
      });
      if (names.size() > 1) names.emplace_back("all");
    }
    std::vector<BenchRow> rows;
    for (const std::string& name : names) {
      for (const auto& [arm, prompts] : by_arm_) rows.push_back(row(arm, name));
    }
    return rows;
  }

 private:
  bool is_in(std::int64_t prompt, const std::string& group) const {
    return group == "all" || groups_.at(prompt) == group;
  }

  BenchRow row(const Arm& arm, const std::string& group) const {
    BenchRow row;
    const BenchPackage& package = bench_.packages()[static_cast<std::size_t>(arm.package)];
    row.package = package.name;
    row.build = plan_.build_name(arm.build);
    row.mode = plan_.mode(arm.mode);
    row.group = group;
    std::vector<double> ttft, prompt_rate, decode_rate, total, noise, weights, mhz, celsius;
    std::int64_t n_emitted = 0;
    for (const auto& [prompt, runs] : by_arm_.at(arm)) {
      if (!is_in(prompt, group)) continue;
      ++row.n_prompts;
      row.n_tokens += runs[0]->n();
      std::vector<double> ttfts, prompts, decodes;
      for (const Run* run : runs) {
        ++row.n_runs;
        if (run->n() > 0) {
          ttfts.push_back(static_cast<double>(run->at("time.first_token_ns")) / 1e6);
        }
        if (run->prompt_rate() > 0) prompts.push_back(run->prompt_rate());
        if (run->decode_rate() > 0) decodes.push_back(run->decode_rate());
        total.push_back(static_cast<double>(run->at("time.total_ns")));
        count(*run, row);
        const auto& states = bench_.costs().gpu;
        if (const auto state = states.find(run->cell.number); state != states.end()) {
          mhz.push_back(state->second.sm_mhz);
          celsius.push_back(state->second.temperature_c);
          row.gpu_bytes = std::max(row.gpu_bytes, state->second.used_bytes);
        }
        n_emitted += std::max<std::int64_t>(run->n() - 1, 0);
        if (run->differs.empty()) continue;
        row.equal = false;
        if (row.divergence.empty()) row.divergence = run->differs;
      }
      const Spread speeds = spread_of(decodes.empty() ? prompts : decodes);
      if (speeds.median > 0) noise.push_back((speeds.high - speeds.low) / 2 / speeds.median);
      if (!ttfts.empty()) ttft.push_back(spread_of(ttfts).median);
      if (!prompts.empty()) prompt_rate.push_back(spread_of(prompts).median);
      if (!decodes.empty()) decode_rate.push_back(spread_of(decodes).median);
    }
    row.ttft_ms = spread_of(ttft);
    row.prompt_rate = spread_of(prompt_rate);
    row.decode_rate = spread_of(decode_rate);
    row.total_ns = spread_of(total);
    row.sm_mhz = spread_of(mhz);
    row.celsius = spread_of(celsius);
    row.noise = spread_of(noise).median;
    if (row.n_target > 0) {
      row.tokens_per_pass = static_cast<double>(n_emitted) / static_cast<double>(row.n_target);
    }
    if (row.mode == "ordinary" && row.decode_rate.n > 0) {
      row.bytes_per_s = row.decode_rate.median * static_cast<double>(package.bytes_of_row);
      row.ceiling = bench_.ceiling(arm.package, arm.build);
    }
    if (!arm.is_base()) hold_against(arm, group, row);
    return row;
  }

  static void count(const Run& run, BenchRow& row) {
    row.n_target += run.at("count.target");
    row.n_drafted += run.at("count.drafted");
    const Value* list = run.receipt.body.find("count.accepted_at");
    if (list == nullptr) return;
    const auto& items = list->array();
    if (row.accepted_at.size() < items.size()) row.accepted_at.resize(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      row.accepted_at[i] += items[i].as_int();
      row.n_accepted += items[i].as_int();
    }
  }

  // Pairs of the same prompt and pass, which met the machine close together.
  void hold_against(const Arm& arm, const std::string& group, BenchRow& row) const {
    const Arm base = arm.base();
    const auto there = by_arm_.find(base);
    if (there == by_arm_.end()) return;
    row.base = arm.build != base.build ? plan_.build_name(base.build)
               : arm.mode != base.mode ? plan_.mode(base.mode)
                                       : bench_.packages()[0].name;
    std::vector<std::vector<double>> ratios;
    for (const auto& [prompt, runs] : by_arm_.at(arm)) {
      const auto others = there->second.find(prompt);
      if (!is_in(prompt, group) || others == there->second.end()) continue;
      std::vector<double>& of_prompt = ratios.emplace_back();
      for (const Run* run : runs) {
        for (const Run* other : others->second) {
          if (other->cell.pass != run->cell.pass || !(other->speed() > 0) || !(run->speed() > 0)) {
            continue;
          }
          of_prompt.push_back(run->speed() / other->speed());
        }
      }
    }
    row.ratio = paired_ratio(ratios);
  }

  const BenchRuns& bench_;
  const receipts::Plan& plan_;
  std::map<Arm, std::map<std::int64_t, std::vector<const Run*>>> by_arm_;
  std::map<std::int64_t, std::string> groups_;  // by prompt
};

double median_of(const std::vector<double>& values) { return spread_of(values).median; }

}  // namespace

BenchTable bench_table(const BenchRuns& bench, const BenchOptions& options) {
  BenchTable table;
  Runs runs = read_runs(bench);
  table.n_planned = bench.plan().n_cells();
  table.n_found = static_cast<std::int64_t>(runs.size());
  compare_runs(runs, bench, table);
  if (runs.empty()) return table;
  table.rows = Table(bench, runs).rows();
  // One claim at most: over everything that was run, where that is one row.
  const std::string last = table.rows.back().group;
  for (const BenchRow& row : table.rows) {
    if (!options.null || row.build == "A" || (last == "all" && row.group != "all")) continue;
    if (!row.ratio.differs()) continue;
    table.claims.push_back(fmt::format("{} {}: {:.3f} times as fast ({:.3f} to {:.3f})", row.mode,
                                       row.group, row.ratio.value, row.ratio.low, row.ratio.high));
  }
  const BenchCosts& costs = bench.costs();
  std::vector<double> seal_ms, shares;
  for (std::size_t i = 0; i < costs.seal_ns.size(); ++i) {
    seal_ms.push_back(static_cast<double>(costs.seal_ns[i]) / 1e6);
    shares.push_back(static_cast<double>(costs.seal_ns[i]) / static_cast<double>(costs.run_ns[i]));
  }
  table.receipt_ms = median_of(seal_ms);
  table.receipt_share = median_of(shares);
  return table;
}

void add_throughput(std::vector<BenchThroughput> results, BenchTable& table) {
  for (const BenchThroughput& series : results) {
    table.equal = table.equal && series.equal();
    table.divergences.insert(table.divergences.end(), series.divergences.begin(),
                             series.divergences.end());
  }
  table.throughput = std::move(results);
}

std::string seal_bench(const BenchTable& table, const BenchRuns& runs,
                       const BenchOptions& options) {
  receipts::Common common;
  common.build = receipts::build_facts(compiled_build());
  common.env = receipts::environment_facts();
  common.device = runs.device();
  common.parents.push_back({"plan", runs.plan().rid()});
  for (const BenchThroughput& series : table.throughput) {
    common.parents.push_back({"plan", series.plan_rid});
  }
  if (table.n_found < table.n_planned) {
    common.not_run.push_back(
        fmt::format("{} of {} planned runs", table.n_planned - table.n_found, table.n_planned));
  }
  if (runs.is_resumed()) {
    common.limits_stated.emplace_back("resumed: not all runs were made in one go");
  }
  if (options.scripted_rate) {
    common.limits_stated.push_back(
        fmt::format("drafts scripted, right at {:.3f}", *options.scripted_rate));
  }
  receipts::fill_in(common);
  Value body;
  receipts::set_common(body, "bench", common);
  body.set("bench.passes", runs.plan().size("passes"));
  body.set("bench.null", options.null);
  Value::Array rows;
  for (const BenchRow& row : table.rows) {
    Value entry;
    entry.set("name", receipts::inert(
                          fmt::format("{} {} {} {}", row.package, row.build, row.mode, row.group)));
    entry.set("runs", row.n_runs);
    entry.set("tokens", row.n_tokens);
    entry.set("equal", row.equal);
    entry.set("median_ns", static_cast<std::int64_t>(row.total_ns.median));
    entry.set("low_ns", static_cast<std::int64_t>(row.total_ns.low));
    entry.set("high_ns", static_cast<std::int64_t>(row.total_ns.high));
    rows.push_back(std::move(entry));
  }
  for (const BenchThroughput& series : table.throughput) {
    Value entry;
    entry.set("name",
              receipts::inert(fmt::format("{} {} x{}, a pass of {} prompts", series.package,
                                          series.mode, series.n_parallel, series.n_prompts)));
    entry.set("runs", series.n_prompts * series.n_passes);
    entry.set("tokens", series.n_tokens);
    entry.set("equal", series.equal());
    entry.set("median_ns", static_cast<std::int64_t>(series.wall_ns.median));
    entry.set("low_ns", static_cast<std::int64_t>(series.wall_ns.low));
    entry.set("high_ns", static_cast<std::int64_t>(series.wall_ns.high));
    rows.push_back(std::move(entry));
  }
  body.set("bench.rows", std::move(rows));
  return receipts::write_body(body, "", {.folder = runs.folder(), .file = {}}).path;
}

}  // namespace bolt
