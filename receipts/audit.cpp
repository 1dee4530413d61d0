// Findings are collected, never thrown: an auditor wants all of them at once.
#include "receipts/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "receipts/body.h"
#include "receipts/compare.h"
#include "receipts/digest.h"
#include "receipts/library.h"

namespace bolt::receipts {
namespace {

struct Run {
  Receipt receipt;
  Cell cell;
};

struct Findings {
  std::vector<std::string> lines;
  std::int64_t missing = 0, extra = 0, broken = 0, differing = 0, unlike = 0;
  bool order_ok = true;
  void add(std::int64_t& count, const std::string& line) {
    ++count;
    lines.push_back(line);
  }
};

std::string cell_name(const Plan& plan, const Cell& cell) {
  return fmt::format("cell {} ({} {} {} pass {})", cell.number, inert(plan.build_name(cell.build)),
                     inert(plan.mode(cell.mode)), inert(plan.prompt_name(cell.prompt)),
                     cell.pass + 1);
}

// Reads one file or pack to its end or first fault; runs of this plan are kept.
void collect_file(const std::string& path, const Plan& plan, const AuditOptions& options,
                  std::map<std::int64_t, Run>& runs, Findings& findings) {
  VerifyOptions verify_options;
  verify_options.redaction_key = options.redaction_key;
  try {
    ReceiptReader reader(LineReader::open(path), path, is_pack_name(path));
    while (std::optional<Receipt> receipt = reader.next()) {
      if (receipt->kind() != "run") continue;
      (void)verify(*receipt, verify_options);
      const Value& body = receipt->body;
      if (body.find("series") == nullptr) {
        findings.add(findings.extra, inert(receipt->what) + ": a run that answers no plan");
        continue;
      }
      if (body.string_at("series.plan") != plan.rid()) {
        findings.add(findings.extra,
                     fmt::format("{}: a run of another plan, {}", inert(receipt->what),
                                 short_hex(body.string_at("series.plan"))));
        continue;
      }
      const std::int64_t number = body.int_at("series.cell");
      if (number >= plan.n_cells()) {
        findings.add(findings.extra,
                     fmt::format("{}: cell {} is not in the plan", inert(receipt->what), number));
        continue;
      }
      const Cell cell = plan.cell(number);
      const auto [at, fresh] = runs.try_emplace(number);
      if (!fresh) {
        findings.add(findings.extra,
                     fmt::format("{}: {} a second time, first in {}", inert(receipt->what),
                                 cell_name(plan, cell), inert(at->second.receipt.what)));
        continue;
      }
      at->second = Run{std::move(*receipt), cell};
    }
  } catch (const Failure& failure) {
    findings.add(findings.broken, inert(failure.what()));
  }
}

void check_order(const Plan& plan, const std::map<std::int64_t, Run>& runs, Findings& findings) {
  std::map<std::int64_t, const Run*> by_index;  // planned place -> run
  for (const auto& [number, run] : runs) {
    const Value& body = run.receipt.body;
    const std::int64_t index = body.int_at("series.index"), pass = body.int_at("series.pass");
    if (body.string_at("series.order") != run.cell.order || index != run.cell.index ||
        pass != run.cell.pass) {
      findings.order_ok = false;
      findings.lines.push_back(
          fmt::format("{}: ran as number {} {}, planned as number {} {}", cell_name(plan, run.cell),
                      index, body.string_at("series.order"), run.cell.index, run.cell.order));
    }
    by_index[run.cell.index] = &run;
  }
  // Clocks of one machine; a receipt without the fine one has only its second.
  const Run* before = nullptr;
  for (const auto& [index, run] : by_index) {
    if (before != nullptr) {
      const Value &a = before->receipt.body, &b = run->receipt.body;
      const std::int64_t us_a = a.int_at("time.sealed_us"), us_b = b.int_at("time.sealed_us");
      const bool late =
          us_a > 0 && us_b > 0 ? us_b < us_a : b.string_at("time.utc") < a.string_at("time.utc");
      if (late) {
        findings.order_ok = false;
        findings.lines.push_back(fmt::format("{}: sealed before {}, which was planned earlier",
                                             cell_name(plan, run->cell),
                                             cell_name(plan, before->cell)));
      }
    }
    before = run;
  }
}

// One run, changed in one token, must be found to differ; a gate that cannot find it finds nothing.
void plant_and_find(const Run& run) {
  Receipt changed = run.receipt;
  const std::int64_t n = changed.body.int_at("out.n");
  if (n == 0) return;
  const std::string other = sha256_hex("planted");
  changed.body.set("out.ids", other);
  Value* marks = const_cast<Value*>(changed.body.find("out.chain.marks"));
  marks->array().back() = other;
  if (changed.attached.ids) changed.attached.ids->back() ^= 1;
  if (compare_runs(run.receipt, changed).tokens != Tokens::differ ||
      compare_runs(run.receipt, run.receipt).tokens != Tokens::same) {
    throw Failure(Status::fault, "audit: the planted difference was not found: the gate is broken");
  }
}

struct Tally {
  std::int64_t same = 0, total = 0;
};
using Matrix = std::map<std::pair<std::int64_t, std::int64_t>, Tally>;  // build, mode

// Compares each run with the first of its prompt (and package). Returns the prompts of mixed tasks.
std::string compare_all(const Plan& plan, const std::map<std::int64_t, Run>& runs, Matrix& matrix,
                        Findings& findings) {
  std::map<std::pair<std::int64_t, std::int64_t>, const Run*> references;
  for (const auto& [number, run] : runs) {
    Tally& tally = matrix[{run.cell.build, run.cell.mode}];
    // Before it can be what others are held against.
    if (const std::string why = plan.mismatch(run.cell, run.receipt.body); !why.empty()) {
      findings.add(findings.unlike, cell_name(plan, run.cell) + ": " + why);
      continue;
    }
    const auto [at, first] = references.try_emplace({run.cell.prompt, run.cell.package}, &run);
    const Comparison c = compare_runs(at->second->receipt, run.receipt);
    if (!c.other_task.empty())
      return cell_name(plan, run.cell) + ": " + c.other_task[0] + " differs";
    // Counters repeat within a mode; here only what was answered is compared.
    const bool same = c.tokens == Tokens::same && c.stop_same && c.barred.empty() &&
                      c.logits_same != false && c.state_same != false && c.text_same != false;
    if (same) {
      ++tally.same;
    } else {
      const std::string where = c.tokens == Tokens::differ
                                    ? fmt::format("differs {}-{}", c.first, c.last)
                                : !c.barred.empty() ? c.barred
                                : !c.stop_same      ? "stops otherwise"
                                                    : "differs";
      findings.add(findings.differing, cell_name(plan, run.cell) + ": " + where);
    }
  }
  return {};
}

std::vector<Line> matrix_lines(const Plan& plan, const Matrix& matrix, int columns) {
  const std::int64_t n_modes = plan.size("modes"), n_builds = plan.size("builds");
  std::size_t name_width = 6;
  for (std::int64_t b = 0; b < n_builds; ++b) {
    name_width = std::max(name_width, inert(plan.build_name(b)).size());
  }
  name_width = std::min<std::size_t>(name_width, 24);
  constexpr int kWidth = 12;
  const auto per_block =
      std::max<std::int64_t>(1, (columns - static_cast<std::int64_t>(name_width) - 1) / kWidth);
  std::vector<Line> lines;
  for (std::int64_t first = 0; first < n_modes; first += per_block) {
    const std::int64_t last = std::min(first + per_block, n_modes);
    std::string head = std::string(name_width, ' ');
    for (std::int64_t m = first; m < last; ++m) {
      head += fmt::format("{:>12}", inert(plan.mode(m)).substr(0, kWidth - 1));
    }
    lines.push_back({head, Tone::dim});
    for (std::int64_t b = 0; b < n_builds; ++b) {
      std::string row =
          fmt::format("{:<{}}", inert(plan.build_name(b)).substr(0, name_width), name_width);
      bool clean = true;
      for (std::int64_t m = first; m < last; ++m) {
        const auto tally = matrix.find({b, m});
        const Tally t = tally == matrix.end() ? Tally{} : tally->second;
        row += fmt::format("{:>12}", fmt::format("{}/{}", t.same, t.total));
        clean = clean && t.same == t.total;
      }
      lines.push_back({row, clean ? Tone::good : Tone::bad});
    }
  }
  return lines;
}

}  // namespace

AuditResult audit(const std::vector<std::string>& folders, const Receipt& plan_receipt,
                  const AuditOptions& options) {
  (void)verify(plan_receipt, {});
  const Plan plan(plan_receipt);
  Findings findings;
  std::map<std::int64_t, Run> runs;
  const std::set<std::string> files = list_folders(
      folders, [](const std::string& path) { return is_receipt_name(path) || is_pack_name(path); });
  for (const std::string& file : files) collect_file(file, plan, options, runs, findings);
  if (runs.empty()) {
    throw Failure(Status::unmet,
                  fmt::format("no run of plan {} found in {}: nothing was checked{}",
                              short_hex(plan.rid()), counted(std::ssize(files), "file"),
                              findings.lines.empty() ? "" : "; first: " + findings.lines[0]));
  }
  plant_and_find(runs.begin()->second);

  Matrix matrix;
  for (std::int64_t number = 0; number < plan.n_cells(); ++number) {
    const Cell cell = plan.cell(number);
    ++matrix[{cell.build, cell.mode}].total;
    if (!runs.contains(number)) {
      findings.add(findings.missing, cell_name(plan, cell) + ": missing");
    }
  }
  const std::string mixed = compare_all(plan, runs, matrix, findings);
  if (!mixed.empty()) {
    throw Failure(Status::unmet, "mixed tasks within a prompt: " + mixed);
  }
  check_order(plan, runs, findings);
  std::vector<Digest> rids;
  std::set<std::string> limits;
  for (const auto& [number, run] : runs) {
    rids.push_back(*digest_from_hex(run.receipt.rid));
    for (const char* list : {"limits_stated", "not_run"}) {
      if (const Value* items = run.receipt.body.find(list)) {
        for (const Value& item : items->array()) limits.insert(inert(item.as_string()));
      }
    }
  }
  for (const char* list : {"limits_stated", "not_run"}) {
    if (const Value* items = plan.body().find(list)) {
      for (const Value& item : items->array()) limits.insert(inert(item.as_string()));
    }
  }
  const std::string root = hex(merkle_root(rids));

  AuditResult result;
  Answer& answer = result.answer;
  const bool clean = findings.lines.empty() && findings.order_ok;
  answer.status = clean ? Status::holds : Status::false_claim;
  answer.lines.push_back({fmt::format("plan {}: {}", short_hex(plan.rid()), plan.table())});
  for (Line& line : matrix_lines(plan, matrix, options.columns)) answer.lines.push_back(line);
  for (const std::string& line : findings.lines) answer.lines.push_back({line, Tone::bad});
  std::string said;
  for (const std::string& limit : limits) said += (said.empty() ? "" : "; ") + limit;
  answer.lines.push_back(
      {fmt::format("missing {} extra {} broken {} differing {} order {}  limits: {}",
                   findings.missing, findings.extra, findings.broken,
                   findings.differing + findings.unlike, findings.order_ok ? "ok" : "WRONG",
                   said.empty() ? "none stated" : said),
       clean ? Tone::good : Tone::bad});
  answer.lines.push_back({"root " + root});

  Value& section = result.section;
  section.set("plan", plan.rid());
  section.set("planned", plan.n_cells());
  section.set("found", static_cast<std::int64_t>(runs.size()));
  section.set("missing", findings.missing);
  section.set("extra", findings.extra);
  section.set("broken", findings.broken);
  section.set("differing", findings.differing + findings.unlike);
  section.set("order", findings.order_ok);
  section.set("root", root);
  answer.json.set("audit", section);
  answer.json.set("findings", Value::Array(findings.lines.begin(), findings.lines.end()));
  Value::Array cells;
  for (const auto& [at, tally] : matrix) {
    Value entry;
    entry.set("build", inert(plan.build_name(at.first)));
    entry.set("mode", inert(plan.mode(at.second)));
    entry.set("same", tally.same);
    entry.set("planned", tally.total);
    cells.push_back(std::move(entry));
  }
  answer.json.set("matrix", std::move(cells));
  return result;
}

Value audit_body(const Common& common, const Value& section) {
  Value body;
  set_common(body, "audit", common);
  body.set("audit", section);
  return body;
}

}  // namespace bolt::receipts
