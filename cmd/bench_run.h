// `bolt bench`'s timed runs: seals a plan, warms up, runs every planned cell once in its order, and
// leaves a receipt of each. What they come to is bench_report.h's, which reads those receipts.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cmd/bench_prompts.h"
#include "cmd/child_process.h"
#include "cmd/options.h"
#include "cmd/session.h"
#include "cmd/status_line.h"
#include "receipts/plan.h"

namespace bolt {

struct BenchOptions {
  std::vector<std::string> packages;
  std::string prompts_file;
  // -p, -n, -d. With a prompts file, n_reply is one number, the limit of each reply.
  std::vector<std::int64_t> n_prompt, n_reply, depth;
  std::vector<std::string> modes;
  std::vector<std::string> against;           // executables of other builds
  std::vector<ModelOptions::Device> devices;  // held against each other; empty: model.device alone
  bool null = false;                          // this build against itself
  bool costs = false, profile = false;
  std::vector<std::int64_t> parallel;  // after the runs, all prompts with so many at once
  bool no_think = false, ignore_eos = false;
  int passes = 5;
  std::string resume;                   // folder of an earlier, unfinished bench
  std::optional<double> scripted_rate;  // drafts come from the known reply, right at this rate
  float temperature = 0;
  std::uint64_t seed = 1;
  ModelOptions model;
  HowOptions how;
  SayOptions say;
  ReceiptOptions receipt;
};

// Where the time of a prompt and of a reply goes, of one package in one mode.
struct BenchProfile {
  std::string package, mode;
  Profile prompt, decode;
  std::int64_t n_prompt = 0, n_decoded = 0;  // tokens
};

// What is known of one package besides its runs.
struct BenchPackage {
  std::string name;
  std::uint64_t bytes_of_row = 0;  // weights that an ordinary pass reads
  std::string cost_file;           // with --costs: its table, once it was measured
  // Weights that a pass of each kind of drafter reads for all its drafts; 0: there is none.
  std::array<std::uint64_t, 2> bytes_of_pass{};
};

// What the runs of this invocation cost besides their own time.
struct BenchCosts {
  std::vector<std::int64_t> seal_ns, run_ns;    // of each run made in this process
  std::map<std::int64_t, std::uint64_t> peaks;  // by build: largest resident set
  std::map<std::int64_t, GpuState> gpu;         // by cell, right after its run
};

class BenchRuns {
 public:
  // Opens packages, reads prompts, and makes the plan, or reads it back where a bench is resumed.
  explicit BenchRuns(const BenchOptions& options);

  // Runs what the plan lists and the folder lacks. An interrupt ends it after the run at hand; the
  // number of cells that were not run is what comes back.
  std::int64_t run();

  // For series besides the planned runs (bench_parallel.h): a package's session, a task as a
  // planned run has it, and the ids that the first run of a prompt gave, or these if there was
  // none.
  Session& session(std::size_t package) { return *sessions_[package]; }
  Task task_of(std::size_t package, std::size_t prompt, const std::string& mode) const;
  const std::vector<int>& reply_of(std::size_t package, std::size_t prompt,
                                   const std::vector<int>& ids);
  receipts::PlanFacts plan_facts() const;
  void show(const std::string& line) { line.empty() ? status_.clear() : status_.show(line); }

  const std::string& folder() const { return folder_; }
  const receipts::Plan& plan() const { return *plan_; }
  const std::vector<BenchPackage>& packages() const { return about_; }
  const std::vector<BenchPrompt>& prompts() const { return prompts_; }
  const BenchCosts& costs() const { return costs_; }
  const std::vector<BenchProfile>& profiles() const { return profiles_; }  // with --profile
  // Bytes a second that the memory gives which a package's weights are in, for runs of a build.
  double ceiling(std::int64_t package, std::int64_t build) const;
  // What each of the ranks that share a package holds of its weights; empty if one has them all.
  std::vector<std::uint64_t> rank_bytes(std::int64_t package, std::int64_t build) const;
  std::int64_t n_devices() const {
    return static_cast<std::int64_t>(sessions_.size() / about_.size());
  }
  receipts::Device device() const { return sessions_.front()->device_facts(); }
  bool is_resumed() const { return n_found_ > 0; }

 private:
  void open_sessions();
  void read_prompts();
  void make_tasks();
  void make_plan();
  void measure_ceilings();
  void measure_profiles();
  void warm_up(std::size_t package, const std::string& mode);
  Task task(const receipts::Cell& cell) const;
  void run_here(const receipts::Cell& cell);
  void note_peak(std::int64_t build, std::uint64_t bytes) {
    costs_.peaks[build] = std::max(costs_.peaks[build], bytes);
  }
  void run_elsewhere(const receipts::Cell& cell);
  // The arguments of a child of another build, but for what one run asks for.
  std::vector<std::string> child_args(std::int64_t package) const;
  // The serve-stdin child of a build and package; null where that build's takes no plan.
  LineChild* child_of(const receipts::Cell& cell);
  void ask_child(LineChild& child, const receipts::Cell& cell);
  void run_child_once(const receipts::Cell& cell);
  // Throws where a child's run left no receipt, or one of another run than was planned.
  void check_child_run(const receipts::Cell& cell);
  bool drives_children() const { return !options_.against.empty(); }
  // Which session runs a package for a planned build.
  std::size_t session_of(std::int64_t package, std::int64_t build) const;
  std::size_t n_packages() const { return about_.size(); }

  const BenchOptions options_;
  std::string folder_;
  std::vector<std::string> programs_;       // of each planned build
  std::set<std::string> seen_;              // receipts in the folder that were looked at
  std::map<std::string, bool> takes_plan_;  // by program: whether its serve-stdin does
  std::map<std::pair<std::int64_t, std::int64_t>, std::unique_ptr<LineChild>> children_;
  std::vector<std::unique_ptr<Session>> sessions_;  // [device][package]
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<double> ceilings_;  // of each session
  std::vector<BenchPackage> about_;
  std::vector<BenchPrompt> prompts_;
  std::vector<std::vector<Task>> tasks_;  // [package][prompt]
  std::map<std::pair<std::size_t, std::size_t>, std::shared_ptr<const Script>> scripts_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<int>> replies_;
  std::unique_ptr<receipts::Plan> plan_;
  std::string plan_path_;
  std::int64_t n_found_ = 0;
  BenchCosts costs_;
  std::vector<BenchProfile> profiles_;
  StatusLine status_;
};

}  // namespace bolt
