// Builds given with --against run as children, and so then does this one: each side pays for the
// same things. A child is one serve-stdin a build and package, or, of builds whose serve-stdin
// takes no plan, one `run` a run. Without --against all runs are made here, over one open session a
// package.
#include "cmd/bench_run.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "cmd/build_info.h"
#include "cmd/child_process.h"
#include "cmd/package_facts.h"
#include "cmd/replayer.h"
#include "core/base/error.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/ops/bench/read_ceiling.h"
#include "core/pack/row_bytes.h"
#include "receipts/build_facts.h"
#include "receipts/digest.h"
#include "receipts/library.h"

namespace bolt {
namespace {

namespace fs = std::filesystem;
using receipts::Cell;
using receipts::Plan;
using receipts::PlanFacts;

constexpr const char* kPlanName = "/plan.bolt.jsonl";

std::string base_name(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::uint64_t own_peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

// A folder of its own for the bench's receipts: plan, runs and table belong together.
std::string new_folder(const ReceiptOptions& options) {
  std::string folder = options.folder;
  if (folder.empty()) {
    std::string stamp = receipts::utc_now();
    std::erase_if(stamp, [](char c) { return c == '-' || c == ':'; });
    folder = receipts::default_folder() + "/bench-" + stamp + "-" +
             receipts::random_run_id().substr(0, 4);
  }
  if (path_exists(folder + kPlanName)) {
    throw Error(Exit::usage, fmt::format("{}: holds a bench already; go on with --resume {}, or "
                                         "name another --receipts folder",
                                         folder, folder));
  }
  return folder;
}

// A task as a line of serve-stdin.
std::string line_of(const Task& task) {
  JsonWriter json;
  json.begin_object().member("id", task.cell.value_or(-1));
  if (task.cell) json.member("cell", *task.cell);
  json.key("prompt_ids").value(task.prompt_ids);
  if (task.max_new >= 0) json.member("max_tokens", task.max_new);
  json.key("temperature").raw(fmt::format("{}", task.sampling.temperature));
  if (task.sampling.temperature > 0) json.key("seed").raw(std::to_string(task.sampling.seed));
  json.member("ignore_eos", task.ignore_eos);
  json.member("draft", draft_source_name(task.draft.source));
  if (task.draft.drafts >= 0 && task.draft.source != DraftOptions::Source::off) {
    json.member("drafts", static_cast<std::int64_t>(task.draft.drafts));
  }
  return json.end_object().take();
}

// Rates that two runs in a row agree on, or enough runs.
constexpr int kWarmUpsMax = 6;
constexpr double kStable = 0.03;
constexpr std::int64_t kWarmUpTokens = 16;

}  // namespace

BenchRuns::BenchRuns(const BenchOptions& options)
    : options_(options),
      folder_(options.resume.empty() ? new_folder(options.receipt) : options.resume),
      plan_path_(folder_ + kPlanName),
      status_(!options.say.quiet) {
  if (!options.resume.empty() && !path_exists(plan_path_)) {
    throw Error(Exit::unmet, fmt::format("{}: no plan.bolt.jsonl in it: not the folder of a bench",
                                         options.resume));
  }
  for (const std::string& mode : options.modes) (void)parse_mode(mode);
  open_sessions();
  read_prompts();
  make_tasks();
  make_plan();
}

void BenchRuns::open_sessions() {
  std::vector<std::string> names = options_.packages;
  if (names.empty()) names.emplace_back();
  std::vector<ModelOptions::Device> devices = options_.devices;
  if (devices.empty()) devices.push_back(options_.model.device);
  std::set<std::string> seen;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    for (std::size_t p = 0; p < names.size(); ++p) {
      status_.show("opening " + (names[p].empty() ? std::string("the sample package") : names[p]));
      ModelOptions model = options_.model;
      model.package = names[p];
      model.device = devices[d];
      HowOptions how = options_.how;
      // Sequences for all that run at once, beside the one of the planned runs.
      if (!options_.parallel.empty()) {
        how.n_slots = 1 + static_cast<int>(std::ranges::max(options_.parallel));
      }
      ReceiptOptions receipt = options_.receipt;
      receipt.folder = folder_;
      if (options_.costs && how.cost_table.empty()) {
        fs::create_directories(folder_);
        how.cost_table = fmt::format("{}/costs-{}.json", folder_, sessions_.size() + 1);
      }
      sessions_.push_back(std::make_unique<Session>(model, how, receipt));
      Session& session = *sessions_.back();
      sequences_.push_back(session.engine().new_sequence());
      for (const std::string& mode : options_.modes) {  // before a plan promises runs of them
        check_draft(parse_mode(mode), session.package().graph(),
                    session.engine().backend().ops->has_block_ops());
      }
      if (d > 0) continue;
      BenchPackage& about = about_.emplace_back();
      about.cost_file = options_.costs ? how.cost_table : "";
      about.name = base_name(session.package().path());
      if (!seen.insert(receipts::package_digest(session.package_facts().files)).second) {
        throw Error(Exit::usage, fmt::format("-m {}: the same package twice", names[p]));
      }
      const Graph& graph = session.package().graph();
      about.bytes_of_row = bytes_of_row(graph);
      for (const BlockDrafter& drafter : graph.drafters) {
        about.bytes_of_pass[static_cast<std::size_t>(drafter.kind)] =
            bytes_of_pass(drafter, graph, drafter.block_size - 1);
      }
    }
  }
  ceilings_.resize(sessions_.size());
  for (std::size_t i = 0; i < about_.size(); ++i) {  // namesakes in different folders
    for (std::size_t k = i + 1; k < about_.size(); ++k) {
      if (about_[k].name == about_[i].name) about_[k].name = sessions_[k]->package().path();
    }
  }
}

std::size_t BenchRuns::session_of(std::int64_t package, std::int64_t build) const {
  const auto device = static_cast<std::size_t>(options_.devices.empty() ? 0 : build);
  return device * n_packages() + static_cast<std::size_t>(package);
}

double BenchRuns::ceiling(std::int64_t package, std::int64_t build) const {
  return ceilings_[session_of(package, build)];
}

std::vector<std::uint64_t> BenchRuns::rank_bytes(std::int64_t package, std::int64_t build) const {
  const Engine& engine = sessions_[session_of(package, build)]->engine();
  return engine.n_ranks() > 1 ? engine.weight_bytes() : std::vector<std::uint64_t>{};
}

void BenchRuns::read_prompts() {
  if (!options_.prompts_file.empty()) {
    prompts_ = read_bench_prompts(options_.prompts_file, !options_.no_think);
    return;
  }
  int n_vocab = sessions_[0]->config().n_tokens;
  for (const auto& session : sessions_) n_vocab = std::min(n_vocab, session->config().n_tokens);
  const bool none = options_.n_prompt.empty() && options_.n_reply.empty();
  const std::vector<std::int64_t> depths =
      options_.depth.empty() ? std::vector<std::int64_t>{0} : options_.depth;
  prompts_ =
      synthetic_prompts(none ? std::vector<std::int64_t>{512} : options_.n_prompt,
                        none ? std::vector<std::int64_t>{128} : options_.n_reply, depths, n_vocab);
  for (const BenchPrompt& prompt : prompts_) {
    if (prompt.depth > 0 && drives_children()) {
      throw Error(Exit::usage, "-d: other builds start cold, so --against takes no depth");
    }
  }
}

void BenchRuns::make_tasks() {
  for (std::size_t package = 0; package < n_packages(); ++package) {
    Session* const session = sessions_[package].get();
    GenerationOptions generation;
    generation.temperature = options_.temperature;
    generation.seed = options_.seed;
    generation.ignore_eos = options_.ignore_eos;
    if (!options_.prompts_file.empty() && !options_.n_reply.empty()) {
      generation.max_tokens = options_.n_reply[0];
    }
    std::vector<Task>& tasks = tasks_.emplace_back();
    for (const BenchPrompt& prompt : prompts_) {
      Task task = session->task(generation);
      set_bench_prompt(task, *session, prompt);
      tasks.push_back(std::move(task));
    }
  }
}

PlanFacts BenchRuns::plan_facts() const {
  PlanFacts facts;
  facts.common.build = receipts::build_facts(compiled_build());
  facts.common.env = receipts::environment_facts();
  facts.redaction = resolve_redaction(options_.receipt);
  const std::string own = receipts::executable_sha256();
  if (options_.null) {
    facts.builds = {{"A", own}, {"B", own}};
  } else if (!options_.devices.empty()) {
    for (const ModelOptions::Device& device : options_.devices) {
      facts.builds.push_back({device_name(device), own});
    }
  } else {
    facts.builds = {{"this", own}};
  }
  for (const std::string& program : options_.against) {
    const std::string exe = receipts::sha256_file_hex(program);
    facts.builds.push_back({base_name(program) + "-" + exe.substr(0, 6), exe});
  }
  for (std::size_t i = 0; i < n_packages(); ++i) {
    facts.packages.push_back(receipts::package_digest(sessions_[i]->package_facts().files));
  }
  facts.modes = options_.modes;
  // By ids where all packages cut the text alike: they say most.
  const bool by_ids = std::ranges::all_of(tasks_, [&](const std::vector<Task>& tasks) {
    return std::ranges::equal(tasks, tasks_[0], {}, &Task::prompt_ids, &Task::prompt_ids);
  });
  if (!by_ids && drives_children()) {
    throw Error(Exit::usage,
                "--against: the packages cut the prompts into other tokens; compare "
                "builds on one package at a time");
  }
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    PlanFacts::Prompt& prompt = facts.prompts.emplace_back();
    prompt.name = prompts_[i].name;
    if (by_ids) {
      prompt.ids = tasks_[0][i].prompt_ids;
    } else {
      prompt.line = prompts_[i].line;
    }
  }
  for (int pass = 0; pass < options_.passes; ++pass) {
    facts.passes.emplace_back(pass % 2 == 0 ? "forward" : "reversed");
  }
  return facts;
}

void BenchRuns::make_plan() {
  PlanFacts facts = plan_facts();
  programs_.assign(facts.builds.size(), "/proc/self/exe");
  std::copy(options_.against.begin(), options_.against.end(), programs_.begin() + 1);
  if (options_.resume.empty()) {
    receipts::fill_in(facts.common);
    fs::create_directories(folder_);
    fs::permissions(folder_, fs::perms::owner_all);
    (void)receipts::write_body(receipts::plan_body(facts), "", {.folder = {}, .file = plan_path_});
  }
  plan_ = std::make_unique<Plan>(receipts::read_receipt(plan_path_));
  if (!options_.resume.empty()) {
    const receipts::Value ours = receipts::plan_body(facts);
    if (!(*ours.find("plan") == *plan_->body().find("plan"))) {
      throw Error(Exit::unmet, fmt::format("{}: lists other runs than this command would make; "
                                           "resume with the same build and options",
                                           plan_path_));
    }
  }
  for (const auto& session : sessions_) session->use_plan(*plan_);
}

void BenchRuns::measure_ceilings() {
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    status_.show("measuring what memory gives");
    if (const Backend& backend = sessions_[i]->engine().backend(); backend.n_multiprocessors > 0) {
      // Ranks on GPUs of their own read at the same time.
      const std::vector<int>& gpus = sessions_[i]->gpus();
      const auto n = std::set<int>(gpus.begin(), gpus.end()).size();
      ceilings_[i] =
          cuda_read_ceiling(backend.ordinal) * static_cast<double>(std::max<std::size_t>(n, 1));
      continue;
    }
    std::vector<std::span<const std::byte>> parts;
    each_weight(sessions_[i]->package().graph(), [&](const std::string&, const Weight& weight) {
      parts.emplace_back(weight.data, weight.bytes);
    });
    ThreadPool pool(sessions_[i]->engine().n_threads());
    ceilings_[i] = read_ceiling(pool, parts, 3);
  }
}

// After the timed runs, and none of them: of the first prompt, all but its last id, then the reply.
void BenchRuns::measure_profiles() {
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    for (const std::string& mode : options_.modes) {
      if (interrupt_flag()) return;
      const std::size_t package = i % n_packages();
      status_.show(fmt::format("profiling {} {}", about_[package].name, mode));
      BenchProfile profile{about_[package].name, mode, {}, {}, 0, 0};
      if (!options_.devices.empty()) {
        profile.package += " on " + device_name(options_.devices[i / n_packages()]);
      }
      Engine& engine = sessions_[i]->engine();
      Sequence& sequence = *sequences_[i];
      // The first with a prompt worth the name, and the first that has a reply.
      const std::vector<Task>& tasks = tasks_[package];
      const auto first = [&](auto&& fits) {
        const auto found = std::find_if(tasks.begin(), tasks.end(), fits);
        return task_of(package,
                       found == tasks.end() ? 0 : static_cast<std::size_t>(found - tasks.begin()),
                       mode);
      };
      Task prompt = first([](const Task& task) { return task.prompt_ids.size() > 1; });
      const Task reply = first([](const Task& task) { return task.max_new > 0; });
      sequence.reset();
      if (prompt.prompt_ids.size() > 1) {
        prompt.prompt_ids.pop_back();
        prompt.max_new = 0;
        engine.set_profile(&profile.prompt);
        (void)sessions_[i]->rehearse(sequence, prompt, interrupt_flag());
        profile.n_prompt = static_cast<std::int64_t>(prompt.prompt_ids.size());
      }
      engine.set_profile(&profile.decode);
      if (reply.max_new > 0) {
        const Reply said = sessions_[i]->rehearse(sequence, reply, interrupt_flag());
        profile.n_decoded = static_cast<std::int64_t>(said.ids.size());
      }
      engine.set_profile(nullptr);
      profiles_.push_back(std::move(profile));
    }
  }
}

Task BenchRuns::task_of(std::size_t package, std::size_t prompt, const std::string& mode) const {
  Task task = tasks_[package][prompt];
  task.draft = parse_mode(mode);
  check_draft(task.draft, sessions_[package]->package().graph(),
              sessions_[package]->engine().backend().ops->has_block_ops());
  const auto script = scripts_.find({package, prompt});
  if (task.draft.source != DraftOptions::Source::off && script != scripts_.end()) {
    task.script = script->second;
  }
  return task;
}

Task BenchRuns::task(const Cell& cell) const {
  Task task = task_of(static_cast<std::size_t>(cell.package), static_cast<std::size_t>(cell.prompt),
                      plan_->mode(cell.mode));
  task.cell = cell.number;
  return task;
}

const std::vector<int>& BenchRuns::reply_of(std::size_t package, std::size_t prompt,
                                            const std::vector<int>& ids) {
  return replies_.try_emplace({package, prompt}, ids).first->second;
}

// Until two replies in a row take the same time, or kWarmUpsMax of them: pages come in, clocks go
// up, costs are measured.
void BenchRuns::warm_up(std::size_t session, const std::string& mode) {
  const std::size_t package = session % n_packages();
  Task task = tasks_[package][0];
  task.draft = parse_mode(mode);
  task.ignore_eos = true;
  task.max_new = task.max_new < 0 ? kWarmUpTokens : std::min(task.max_new, kWarmUpTokens);
  double before = 0;
  for (int i = 0; i < kWarmUpsMax && !interrupt_flag(); ++i) {
    status_.show(fmt::format("warming up {} {}", about_[package].name, mode));
    sequences_[session]->reset();
    const Reply reply = sessions_[session]->rehearse(*sequences_[session], task, interrupt_flag());
    const auto ns = static_cast<double>(reply.prefill_ns + reply.decode_ns);
    if (i > 0 && std::abs(ns - before) <= kStable * before) break;
    before = ns;
  }
}

void BenchRuns::run_here(const Cell& cell) {
  const std::size_t at = session_of(cell.package, cell.build);
  Session& session = *sessions_[at];
  Sequence& sequence = *sequences_[at];
  sequence.reset();
  std::atomic<bool> never = false;  // a run is finished once it is begun: half of one is no figure
  const Task whole = task(cell);
  const std::int64_t depth = prompts_[static_cast<std::size_t>(cell.prompt)].depth;
  if (depth > 0) {
    Task before = whole;
    before.prompt_ids.resize(static_cast<std::size_t>(depth));
    before.max_new = 0;
    (void)session.rehearse(sequence, before, never);
  }
  const Outcome outcome = session.answer(sequence, whole, {}, never);
  if (outcome.stop == "error") {
    throw Error(Exit::fault,
                fmt::format("{}: the logits for position {} are not finite; receipt {}",
                            plan_->prompt_name(cell.prompt), outcome.reply.error_position,
                            outcome.receipt.path));
  }
  require(outcome.unplanned.empty(), "a run of the bench is what the bench planned");
  (void)reply_of(static_cast<std::size_t>(cell.package), static_cast<std::size_t>(cell.prompt),
                 outcome.reply.ids);
  costs_.seal_ns.push_back(outcome.seal_ns);
  costs_.run_ns.push_back(outcome.total_ns);
  note_peak(0, own_peak_bytes());
  if (const int ordinal = session.engine().backend().ordinal; ordinal >= 0) {
    if (const auto state = gpu_state(ordinal)) costs_.gpu[cell.number] = *state;
  }
}

void BenchRuns::run_elsewhere(const Cell& cell) {
  if (LineChild* const child = child_of(cell)) {
    ask_child(*child, cell);
  } else {
    run_child_once(cell);
  }
  check_child_run(cell);
}

void BenchRuns::check_child_run(const Cell& cell) {
  const std::string& program = programs_[static_cast<std::size_t>(cell.build)];
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string path = entry.path().string();
    if (!receipts::is_receipt_name(path) || !seen_.insert(path).second) continue;
    const receipts::Receipt receipt = receipts::read_receipt(path);
    if (receipt.body.string_at("series.plan") != plan_->rid() ||
        receipt.body.int_at("series.cell") != cell.number) {
      continue;
    }
    const std::string why = plan_->mismatch(cell, receipt.body);
    if (why.empty()) return;
    throw Error(Exit::unmet, fmt::format("{}: cell {}, {}: not the planned run: {}", program,
                                         cell.number, path, why));
  }
  throw Error(Exit::fault, fmt::format("{}: ended well and left no receipt of cell {}; is it bolt?",
                                       program, cell.number));
}

std::vector<std::string> BenchRuns::child_args(std::int64_t package) const {
  const auto& how = options_.how;
  Session& session = *sessions_[static_cast<std::size_t>(package)];
  std::vector<std::string> args;
  const auto add = [&args](std::initializer_list<std::string> more) {
    args.insert(args.end(), more);
  };
  add({"-q", "-m", session.package().path(), "--plan", plan_path_});
  add({"--window", std::to_string(how.window_rows)});
  add({"--kv", how.kv == KvKind::i16 ? "i16" : "f32"});
  add({"--context", std::to_string(session.engine().context())});
  if (how.chunk_rows > 0) add({"--chunk", std::to_string(how.chunk_rows)});
  if (options_.model.n_threads > 0) add({"-t", std::to_string(options_.model.n_threads)});
  if (how.isa != Isa::automatic) add({"--isa", isa_name(how.isa)});
  if (options_.model.device.kind != ModelOptions::Device::Kind::automatic) {
    add({"--device", device_name(options_.model.device)});
  }
  if (!options_.receipt.redaction_key_file.empty()) {
    add({"--redaction-key", options_.receipt.redaction_key_file});
  }
  return args;
}

LineChild* BenchRuns::child_of(const Cell& cell) {
  const std::string& program = programs_[static_cast<std::size_t>(cell.build)];
  const auto [takes, fresh] = takes_plan_.try_emplace(program, false);
  if (fresh) {
    // A build whose serve-stdin has the option gets as far as the wrong length of a line.
    const ChildEnd end =
        run_child(program, {"serve-stdin", "--plan", plan_path_, "--max-line", "0"});
    takes->second = end.errors.find("--max-line") != std::string::npos;
  }
  if (!takes->second) return nullptr;
  std::unique_ptr<LineChild>& child = children_[{cell.build, cell.package}];
  if (child != nullptr) return child.get();
  const std::string folder = fmt::format("{}/served-{}-{}", folder_, cell.build, cell.package);
  fs::create_directories(folder);
  std::vector<std::string> args = child_args(cell.package);
  args.insert(args.begin(), "serve-stdin");
  args.insert(args.end(), {"--receipts", folder, "--parallel", "1", "--prefix-cache", "0"});
  child = std::make_unique<LineChild>(program, args, folder + "/stderr");
  for (const std::string& mode : options_.modes) {  // as warm_up(), by number alone
    Task task = task_of(static_cast<std::size_t>(cell.package), 0, mode);
    task.ignore_eos = true;
    task.max_new = task.max_new < 0 ? kWarmUpTokens : std::min(task.max_new, kWarmUpTokens);
    for (int i = 0; i < 2; ++i) (void)child->ask(line_of(task));
  }
  return child.get();
}

void BenchRuns::ask_child(LineChild& child, const Cell& cell) {
  const std::string answer = child.ask(line_of(task(cell)));
  const JsonDocument record = JsonDocument::parse("serve-stdin", answer);
  if (record.root().at("event").string() != "done") {
    throw Error(Exit::fault, fmt::format("{}: {}", programs_[static_cast<std::size_t>(cell.build)],
                                         receipts::inert(answer)));
  }
  note_peak(cell.build, child.peak_bytes());
}

// Another build's `run`, a process a run.
void BenchRuns::run_child_once(const Cell& cell) {
  const Task task = this->task(cell);
  const std::string ids_path = folder_ + "/prompt.json";
  JsonWriter ids;
  ids.value(task.prompt_ids);
  write_file_atomically(ids_path, ids.take());
  std::vector<std::string> args = child_args(cell.package);
  args.insert(args.begin(), "run");
  const auto add = [&args](std::initializer_list<std::string> more) {
    args.insert(args.end(), more);
  };
  add({"--prompt-ids", ids_path, "--receipts", folder_, "--cell", std::to_string(cell.number),
       "--temp", fmt::format("{}", options_.temperature)});
  if (options_.temperature > 0) add({"--seed", std::to_string(options_.seed)});
  if (task.max_new >= 0) add({"-n", std::to_string(task.max_new)});
  if (task.ignore_eos) add({"--ignore-eos"});
  const std::string mode = plan_->mode(cell.mode);
  if (mode == "ordinary") {
    add({"--draft", "off"});
  } else if (task.draft.drafts >= 0) {
    add({"--drafts", std::to_string(task.draft.drafts)});
  } else {
    add({"--draft", mode});
  }
  const std::string& program = programs_[static_cast<std::size_t>(cell.build)];
  const ChildEnd end = run_child(program, args);
  fs::remove(ids_path);
  if (end.status != 0) {
    throw Error(Exit::fault,
                fmt::format("{}: {} with status {}: {}", program,
                            end.signal != 0 ? fmt::format("ended by signal {}", end.signal)
                                            : std::string("ended"),
                            end.status, receipts::inert(end.errors)));
  }
  note_peak(cell.build, end.peak_bytes);
}

std::int64_t BenchRuns::run() {
  std::set<std::int64_t> found;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string path = entry.path().string();
    if (!receipts::is_receipt_name(path)) continue;
    const receipts::Receipt receipt = receipts::read_receipt(path);
    seen_.insert(path);
    if (receipt.body.string_at("series.plan") != plan_->rid()) continue;
    const std::string stop = receipt.body.string_at("stop.kind");
    if (stop == "interrupted" || stop == "cancelled") {  // a run that was cut short is made again
      fs::create_directories(folder_ + "/cut");
      fs::rename(path, folder_ + "/cut/" + entry.path().filename().string());
    } else {
      found.insert(receipt.body.int_at("series.cell"));
    }
  }
  n_found_ = static_cast<std::int64_t>(found.size());
  measure_ceilings();
  if (!drives_children()) {
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      for (const std::string& mode : options_.modes) warm_up(i, mode);
    }
  }
  if (options_.scripted_rate) {
    for (std::size_t i = 0; i < n_packages(); ++i) {
      for (std::size_t k = 0; k < prompts_.size() && !interrupt_flag(); ++k) {
        status_.show(fmt::format("asking for the reply to {}", prompts_[k].name));
        Task ordinary = tasks_[i][k];
        ordinary.draft = parse_mode("ordinary");
        sequences_[i]->reset();
        Reply reply = sessions_[i]->rehearse(*sequences_[i], ordinary, interrupt_flag());
        scripts_[{i, k}] = std::make_shared<Script>(
            Script{std::move(reply.ids), *options_.scripted_rate, options_.seed});
      }
    }
  }
  std::vector<Cell> order(static_cast<std::size_t>(plan_->n_cells()));
  for (std::int64_t number = 0; number < plan_->n_cells(); ++number) {
    const Cell cell = plan_->cell(number);
    order[static_cast<std::size_t>(cell.index)] = cell;
  }
  std::int64_t n_left = 0;
  for (const Cell& cell : order) {
    if (found.contains(cell.number)) continue;
    if (interrupt_flag()) {
      ++n_left;
      continue;
    }
    status_.show(fmt::format("{}/{}  {} {} {}", cell.index + 1, order.size(),
                             receipts::inert(plan_->prompt_name(cell.prompt)),
                             receipts::inert(plan_->build_name(cell.build)),
                             plan_->mode(cell.mode)));
    drives_children() ? run_elsewhere(cell) : run_here(cell);
  }
  if (options_.profile && n_left == 0) measure_profiles();
  status_.clear();
  return n_left;
}

}  // namespace bolt
