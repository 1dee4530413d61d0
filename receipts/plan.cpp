// Cell numbers come from the table's sizes alone, so a plan of thousands of cells stays small.
#include "receipts/plan.h"

#include <fmt/format.h>

#include "receipts/body.h"
#include "receipts/digest.h"
#include "receipts/display.h"
#include "receipts/status.h"

namespace bolt::receipts {
namespace {

constexpr std::int64_t kCellsMax = 1000000;

const Value& item(const Value& body, const std::string& list, std::int64_t i) {
  return body.find("plan." + list)->array()[static_cast<std::size_t>(i)];
}

}  // namespace

Value plan_body(const PlanFacts& facts) {
  Value body;
  set_common(body, "plan", facts.common);
  const Binder binder = Binder::of(facts.redaction);
  body.set("redaction.mode", facts.redaction.mode == Redaction::Mode::plain ? "plain" : "keyed");
  if (binder.keyed()) body.set("redaction.key_id", binder.key_id());
  Value::Array builds, prompts;
  for (const auto& build : facts.builds) {
    Value entry;
    entry.set("name", build.name);
    entry.set("exe", build.exe);
    builds.push_back(std::move(entry));
  }
  for (const auto& prompt : facts.prompts) {
    Value entry;
    entry.set("name", prompt.name);
    if (!prompt.line.empty()) entry.set("line", bind_hex(binder, "line", {prompt.line}));
    if (!prompt.ids.empty()) {
      entry.set("prompt_ids", bind_hex(binder, "ids", {ids_bytes(prompt.ids)}));
    }
    prompts.push_back(std::move(entry));
  }
  const auto texts = [](const std::vector<std::string>& list) {
    return Value::Array(list.begin(), list.end());
  };
  body.set("plan.builds", std::move(builds));
  body.set("plan.packages", texts(facts.packages));
  body.set("plan.modes", texts(facts.modes));
  body.set("plan.prompts", std::move(prompts));
  body.set("plan.passes", texts(facts.passes));
  if (facts.max_new >= 0) body.set("plan.max_new", facts.max_new);
  return body;
}

std::string mode_word(const Value& run) {
  if (run.string_at("mode.kind") == "ordinary") return "ordinary";
  if (!run.bool_at("mode.adaptive")) return fmt::format("k{}", run.int_at("mode.depth"));
  constexpr std::string_view kScripted = "scripted-";
  std::string source = run.string_at("mode.source");
  if (source.starts_with(kScripted)) source.erase(0, kScripted.size());
  const bool named =
      source == "copy" || source == "mtp" || source == "dspark" || source == "dflash";
  return named ? source : "auto";
}

Plan::Plan(const Receipt& receipt) : rid_(receipt.rid), body_(receipt.body) {
  if (receipt.kind() != "plan") {
    throw Failure(Status::unmet, fmt::format("{}: a {}, not a plan", receipt.what, receipt.kind()));
  }
  std::int64_t n = 1;
  for (const char* list : {"builds", "packages", "modes", "prompts", "passes"}) {
    n *= size(list);
    if (n > kCellsMax) {
      throw Failure(Status::malformed,
                    fmt::format("{}: more than {} cells", receipt.what, kCellsMax));
    }
  }
  if (n == 0) throw Failure(Status::unmet, receipt.what + ": an empty plan checks nothing");
}

std::string Plan::table() const {
  std::string line;
  for (const char* list : {"build", "mode", "prompt", "package"}) {
    const std::int64_t n = size((std::string(list) + "s").c_str());
    if (n == 1 && list == std::string_view("package")) continue;  // the usual: a line of 80 columns
    line += counted(n, list) + " x ";
  }
  return fmt::format("{}{} = {}", line, counted(size("passes"), "pass", "passes"),
                     counted(n_cells(), "cell"));
}

std::int64_t Plan::size(const char* list) const {
  const Value* values = body_.find(std::string("plan.") + list);
  return values == nullptr ? 0 : static_cast<std::int64_t>(values->array().size());
}

std::int64_t Plan::n_cells() const {
  return size("passes") * size("prompts") * size("packages") * size("builds") * size("modes");
}

Cell Plan::cell(std::int64_t number) const {
  if (number < 0 || number >= n_cells()) {
    throw Failure(Status::usage,
                  fmt::format("cell {}: the plan has cells 0 to {}", number, n_cells() - 1));
  }
  Cell cell;
  cell.number = number;
  std::int64_t rest = number;
  const auto take = [&](const char* list) {
    const std::int64_t i = rest % size(list);
    rest /= size(list);
    return i;
  };
  cell.mode = take("modes");
  cell.build = take("builds");
  cell.package = take("packages");
  cell.prompt = take("prompts");
  cell.pass = rest;
  cell.order = item(body_, "passes", cell.pass).as_string();
  const std::int64_t per_pass = n_cells() / size("passes"), first = cell.pass * per_pass;
  cell.index = cell.order == "reversed" ? first + per_pass - 1 - (number - first) : number;
  return cell;
}

Series Plan::series(std::int64_t number) const {
  const Cell c = cell(number);
  Series series;
  series.plan = rid_;
  series.cell = number;
  series.pass = c.pass;
  series.index = c.index;
  series.order = c.order;
  return series;
}

void Plan::check_redaction(const Redaction& redaction) const {
  const std::string planned = body_.string_at("redaction.key_id");
  const std::string ours =
      redaction.mode == Redaction::Mode::plain ? "" : Binder::of(redaction).key_id();
  if (planned == ours) return;
  throw Failure(
      Status::usage,
      planned.empty()
          ? std::string("the plan's prompts are bound without a key; so must its runs be")
          : fmt::format("the plan's prompts are bound under key {}; give its --redaction-key",
                        short_hex(planned)));
}

std::string Plan::build_name(std::int64_t i) const {
  return item(body_, "builds", i).string_at("name");
}
std::string Plan::mode(std::int64_t i) const { return item(body_, "modes", i).as_string(); }
std::string Plan::prompt_name(std::int64_t i) const {
  return item(body_, "prompts", i).string_at("name");
}

std::string Plan::mismatch(const Cell& cell, const Value& run) const {
  if (run.string_at("build.exe") != item(body_, "builds", cell.build).string_at("exe")) {
    return "made by another build than planned";
  }
  if (run.string_at("package.sha256") != item(body_, "packages", cell.package).as_string()) {
    return "made from another package than planned";
  }
  const std::string wanted = mode(cell.mode), found = mode_word(run);
  if (found != wanted) return fmt::format("mode {} where {} was planned", found, inert(wanted));
  const Value& prompt = item(body_, "prompts", cell.prompt);
  const std::string ids = prompt.string_at("prompt_ids"), line = prompt.string_at("line");
  if (!ids.empty() && ids != run.string_at("task.prompt_ids")) return "another prompt than planned";
  if (!line.empty() && line != run.string_at("request.input")) {
    return run.find("request.input") == nullptr ? "does not say which prompt line it answers"
                                                : "another prompt line than planned";
  }
  if (const std::int64_t limit = body_.int_at("plan.max_new", -1);
      limit >= 0 && limit != run.int_at("limits.max_new", -1)) {
    return "another limit than planned";
  }
  if (run.string_at("mode.kind") == "speculative" && run.int_at("count.rounds", 1) == 0 &&
      run.int_at("out.n") > 1) {
    return "called speculative, but no round was run";
  }
  return {};
}

}  // namespace bolt::receipts
