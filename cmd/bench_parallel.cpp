// Receipts are sealed in planned order, whichever reply ends first, so that the audit of a series
// finds its order kept.
#include "cmd/bench_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "cmd/answering.h"
#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/interrupt.h"
#include "receipts/write.h"

namespace bolt {
namespace {

using receipts::Cell;
using receipts::Plan;
using receipts::PlanFacts;
using Clock = std::chrono::steady_clock;

struct Live {
  Live(const Session& session, Task task, const Cell& planned, std::atomic<bool>& interrupt)
      : cell(planned), answering(session, task, nobody, interrupt) {}
  const Cell cell;
  const Listener nobody;
  Answering answering;
  std::unique_ptr<Sequence> sequence;
  std::unique_ptr<Generation> generation;  // null once it has ended
};

}  // namespace

BenchParallel::BenchParallel(BenchRuns& runs, const BenchOptions& options)
    : runs_(runs), options_(options) {
  for (std::size_t package = 0; package < runs.packages().size(); ++package) {
    for (const std::string& mode : options.modes) {
      for (const std::int64_t n : options.parallel) {
        PlanFacts facts = runs.plan_facts();
        facts.builds = {{fmt::format("x{}", n), facts.builds[0].exe}};
        facts.packages = {facts.packages[package]};
        facts.modes = {mode};
        std::string folder = fmt::format("{}/x{}-{}", runs.folder(), n, mode);
        if (runs.packages().size() > 1) folder += fmt::format("-p{}", package + 1);
        // What a bench that is resumed made of its series is kept; they are made anew beside it.
        const std::string wanted = folder;
        for (int i = 2; path_exists(folder); ++i) folder = fmt::format("{}-{}", wanted, i);
        const std::string path = folder + "/plan.bolt.jsonl";
        std::filesystem::create_directories(folder);
        std::filesystem::permissions(folder, std::filesystem::perms::owner_all);
        receipts::fill_in(facts.common);
        facts.common.parents.push_back({"plan", runs.plan().rid()});
        (void)receipts::write_body(receipts::plan_body(facts), "", {.folder = {}, .file = path});
        series_.push_back(
            {package, mode, folder, n, Plan(receipts::read_receipt(path)), {}, {}, {}});
      }
    }
  }
}

void BenchParallel::run() {
  for (std::int64_t pass = 0; pass < options_.passes; ++pass) {
    for (std::size_t k = 0; k < series_.size(); ++k) {
      if (interrupt_flag()) {
        is_complete_ = false;
        return;
      }
      Series& series = series_[pass % 2 == 0 ? k : series_.size() - 1 - k];
      runs_.show(fmt::format("pass {} of {}: {} {}, {} at once", pass + 1, options_.passes,
                             runs_.packages()[series.package].name, series.mode,
                             series.n_parallel));
      run_pass(series, pass);
    }
  }
  runs_.show({});
}

void BenchParallel::run_pass(Series& series, std::int64_t pass) {
  Session& session = runs_.session(series.package);
  session.use_plan(series.plan);
  std::vector<Cell> cells;
  for (std::int64_t number = 0; number < series.plan.n_cells(); ++number) {
    if (const Cell cell = series.plan.cell(number); cell.pass == pass) cells.push_back(cell);
  }
  std::ranges::sort(cells, {}, &Cell::index);

  std::atomic<bool> never = false;  // a pass is finished once it is begun
  std::vector<std::unique_ptr<Live>> all;
  std::vector<Generation*> going;
  const Clock::time_point start = Clock::now();
  std::size_t next = 0;
  while (next < cells.size() || !going.empty()) {
    while (next < cells.size() && static_cast<std::int64_t>(going.size()) < series.n_parallel) {
      Task task =
          runs_.task_of(series.package, static_cast<std::size_t>(cells[next].prompt), series.mode);
      task.cell = cells[next].number;
      auto live = std::make_unique<Live>(session, std::move(task), cells[next], never);
      const Request request = live->answering.request();
      if (!going.empty() && !session.engine().has_room(request)) break;
      live->sequence = session.engine().new_sequence();
      live->generation = session.engine().start(*live->sequence, request, live->answering.sink());
      going.push_back(live->generation.get());
      all.push_back(std::move(live));
      ++next;
    }
    session.engine().round(going);
    for (const auto& live : all) {
      if (live->generation == nullptr || !live->generation->is_finished()) continue;
      live->answering.finish(live->generation->reply());
      std::erase(going, live->generation.get());
      live->generation.reset();
      live->sequence.reset();
    }
  }
  series.wall_ns.push_back((Clock::now() - start).count());
  std::int64_t n_tokens = 0;
  for (const auto& live : all) {
    const Outcome& outcome = session.seal(live->answering, nullptr, series.folder);
    if (outcome.stop == "error") {
      throw Error(Exit::fault, fmt::format("{}: the logits for position {} are not finite",
                                           series.plan.prompt_name(live->cell.prompt),
                                           outcome.reply.error_position));
    }
    require(outcome.unplanned.empty(), "a run of the bench is what the bench planned");
    n_tokens += static_cast<std::int64_t>(outcome.reply.ids.size());
    compare(series, live->cell, outcome.reply.ids);
  }
  series.n_tokens.push_back(n_tokens);
}

void BenchParallel::compare(Series& series, const Cell& cell, const std::vector<int>& ids) {
  const std::vector<int>& known =
      runs_.reply_of(series.package, static_cast<std::size_t>(cell.prompt), ids);
  if (known == ids) return;
  const auto at = std::ranges::mismatch(known, ids).in1 - known.begin();
  series.divergences.push_back(fmt::format("x{} {} pass {}, {}: first at token {}",
                                           series.n_parallel, series.mode, cell.pass + 1,
                                           series.plan.prompt_name(cell.prompt), at + 1));
}

std::vector<BenchThroughput> BenchParallel::results() const {
  std::vector<BenchThroughput> results;
  const auto rate = [](const Series& s, std::size_t pass) {
    return static_cast<double>(s.n_tokens[pass]) * 1e9 / static_cast<double>(s.wall_ns[pass]);
  };
  for (const Series& series : series_) {
    if (series.wall_ns.empty()) continue;
    BenchThroughput& r = results.emplace_back();
    r.package = runs_.packages()[series.package].name;
    r.mode = series.mode;
    r.plan_rid = series.plan.rid();
    r.folder = series.folder;
    r.n_parallel = series.n_parallel;
    r.n_prompts = series.plan.size("prompts");
    r.n_passes = static_cast<std::int64_t>(series.wall_ns.size());
    r.n_tokens = series.n_tokens[0];
    std::vector<double> rates, walls;
    for (std::size_t pass = 0; pass < series.wall_ns.size(); ++pass) {
      rates.push_back(rate(series, pass));
      walls.push_back(static_cast<double>(series.wall_ns[pass]));
    }
    r.tok_per_s = spread_of(rates);
    r.wall_ns = spread_of(walls);
    r.divergences = series.divergences;
    // The first N of the same package and mode is the base: pairs of the same pass.
    const auto base = std::ranges::find_if(series_, [&](const Series& s) {
      return s.package == series.package && s.mode == series.mode;
    });
    if (&*base == &series) continue;
    std::vector<std::vector<double>> ratios(1);
    for (std::size_t pass = 0; pass < std::min(series.wall_ns.size(), base->wall_ns.size());
         ++pass) {
      ratios[0].push_back(rate(series, pass) / rate(*base, pass));
    }
    r.ratio = paired_ratio(ratios);
  }
  return results;
}

}  // namespace bolt
