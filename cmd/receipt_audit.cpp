// `bolt receipt plan` and `audit`: every run listed before any is made, and held against the list.
#include <fmt/format.h>

#include <filesystem>

#include "cmd/batch_line.h"
#include "cmd/build_info.h"
#include "cmd/package_facts.h"
#include "cmd/receipt.h"
#include "cmd/replayer.h"
#include "cmd/values.h"
#include "core/pack/package.h"
#include "receipts/audit.h"
#include "receipts/build_facts.h"
#include "receipts/digest.h"
#include "receipts/lines_audit.h"
#include "receipts/plan.h"
#include "receipts/sign_file.h"
#include "receipts/write.h"

namespace bolt {
namespace {

using receipts::Failure;
using receipts::PlanFacts;
using receipts::Status;

// NAME=FILE or FILE: an executable, or another build's 64 hex digits.
PlanFacts::NamedBuild read_build(const std::string& text) {
  const std::size_t equals = text.find('=');
  PlanFacts::NamedBuild build;
  const std::string target = equals == std::string::npos ? text : text.substr(equals + 1);
  build.exe = receipts::digest_from_hex(target) ? target : receipts::sha256_file_hex(target);
  build.name = equals == std::string::npos ? build.exe.substr(0, 8) : text.substr(0, equals);
  if (build.name.empty()) throw Failure(Status::usage, "--build: no name before =");
  return build;
}

// A package's folder, opened and hashed as a run does; a digest; or a receipt whose package is
// meant, which may be all that is here of it (then NAME.bolt takes NAME.bolt.jsonl).
std::string read_package(const std::string& text, const VerbOptions& common) {
  if (receipts::digest_from_hex(text)) return text;
  std::string path = text;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return package_sha256(*Package::open(path));
  if (path.ends_with(".bolt")) {
    const std::string receipt = conversion_receipt_path(path);
    if (!std::filesystem::exists(receipt, error)) {
      throw Failure(Status::unmet, fmt::format("{}: no such package, and no receipt {} of it; name "
                                               "a package's folder, its receipt or its "
                                               "package.sha256",
                                               path, receipt));
    }
    path = receipt;
  }
  const receipts::Receipt receipt = receipts::read_receipt(find_receipt(path, common));
  const std::string digest = receipt.body.string_at("package.sha256");
  if (digest.empty()) throw Failure(Status::unmet, path + ": names no package");
  return digest;
}

std::vector<PlanFacts::Prompt> read_prompts(const std::string& path) {
  receipts::LineReader reader = receipts::LineReader::open(path);
  std::vector<PlanFacts::Prompt> prompts;
  std::string line;
  while (reader.next(line, receipts::kLineBytesMax, path)) {
    if (line.empty()) continue;
    prompts.push_back({fmt::format("#{}", prompts.size() + 1), line, {}});
  }
  return prompts;
}

receipts::Common own_common() {
  receipts::Common facts;
  facts.build = receipts::build_facts(compiled_build());
  facts.env = receipts::environment_facts();
  return facts;
}

}  // namespace

void add_plan(CLI::App& app, Action& action, const Verbs& common) {
  struct Options {
    std::vector<std::string> builds, packages, modes, limits, not_run;
    std::string prompts, output, redaction_key;
    int passes = 2;
    std::int64_t max_new = -1;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("plan", "Seal the list of runs that a comparison will make");
  sub->add_option("-o,--output", options->output, "The plan's file")->type_name("FILE")->required();
  sub->add_option("--build", options->builds,
                  "NAME=EXECUTABLE, or NAME=SHA256; this one if left out")
      ->allow_extra_args(false);
  sub->add_option("--package", options->packages,
                  "NAME.bolt, a receipt of it, or its package.sha256")
      ->required()
      ->allow_extra_args(false);
  sub->add_option("--modes", options->modes, "ordinary, k1 to k31, auto, copy, mtp, dspark, dflash")
      ->delimiter(',')
      ->allow_extra_args(false);
  sub->add_option("--prompts", options->prompts, "One prompt a line")
      ->type_name("FILE")
      ->required();
  add_integer(*sub, "--passes", options->passes, 1, 1000,
              "Times each cell runs; every second pass is reversed (2)");
  add_integer(*sub, "-n,--max-tokens", options->max_new, 0, receipts::kIntMax,
              "Limit of each reply");
  sub->add_option("--limit", options->limits, "What the comparison does not claim, in words")
      ->allow_extra_args(false);
  sub->add_option("--not-run", options->not_run, "What is left out, in words")
      ->allow_extra_args(false);
  sub->add_option("--redaction-key", options->redaction_key, "Bind the prompts under this key")
      ->type_name("FILE");
  add_verb_options(*sub, *common);
  sub->footer(
      "Cells are numbered with modes fastest, then builds, packages, prompts, passes.\n"
      "Example:\n"
      "  bolt receipt plan -o p.bolt.jsonl --build old=./bolt-1 --build new=./bolt-2 \\\n"
      "    --package nano.bolt --modes ordinary,k7 --prompts prompts.jsonl -n 512\n"
      "Exit status: 0 sealed, 2 usage, 4 a package or prompt is missing.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        PlanFacts facts;
        facts.common = own_common();
        facts.common.limits_stated = options->limits;
        facts.common.not_run = options->not_run;
        for (const std::string& build : options->builds) facts.builds.push_back(read_build(build));
        if (facts.builds.empty()) facts.builds.push_back({"this", facts.common.build.exe});
        for (const std::string& package : options->packages) {
          facts.packages.push_back(read_package(package, *common));
        }
        facts.modes = options->modes;
        if (facts.modes.empty()) facts.modes = {"ordinary", "auto"};
        for (const std::string& mode : facts.modes) (void)parse_mode(mode);
        facts.prompts = read_prompts(options->prompts);
        if (facts.prompts.empty()) {
          throw Failure(Status::unmet,
                        options->prompts + ": no prompts: an empty plan checks nothing");
        }
        for (int pass = 0; pass < options->passes; ++pass) {
          facts.passes.emplace_back(pass % 2 == 0 ? "forward" : "reversed");
        }
        facts.max_new = options->max_new;
        if (!options->redaction_key.empty()) {
          facts.redaction.mode = receipts::Redaction::Mode::keyed;
          facts.redaction.key = receipts::read_redaction_key(options->redaction_key);
        }
        receipts::fill_in(facts.common);
        receipts::Where where;
        where.file = options->output;
        const receipts::Written written =
            receipts::write_body(receipts::plan_body(facts), "", where);
        const receipts::Plan plan(receipts::read_receipt(written.path));
        receipts::Answer result;
        result.lines.push_back(
            {fmt::format("planned {}: {}", receipts::short_hex(written.rid), plan.table())});
        result.json.set("rid", written.rid);
        result.json.set("cells", plan.n_cells());
        return result;
      });
    };
  });
}

void add_audit(CLI::App& app, Action& action, const Verbs& common) {
  struct Options {
    std::vector<std::string> folders;
    std::string plan, input, output, redaction_key;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("audit", "Hold folders of runs against their plan, or a batch's input");
  sub->add_option("DIR", options->folders, "Folders with the runs' receipts and packs")->required();
  sub->add_option("--plan", options->plan, "The plan")->type_name("FILE");
  sub->add_option("--lines", options->input, "A batch's input instead: every line answered once")
      ->type_name("FILE");
  sub->add_option("-o,--output", options->output, "Seal what was found, as a receipt of kind audit")
      ->type_name("FILE");
  sub->add_option("--redaction-key", options->redaction_key, "Key of keyed receipts")
      ->type_name("FILE");
  add_verb_options(*sub, *common);
  sub->footer(
      "Every planned cell must be there once, in its order, intact, as planned, and say the same\n"
      "tokens as the other runs of its prompt. There is no tolerance to set.\n"
      "With --lines, the packs of one batch's sessions: every line of the input must be answered\n"
      "once, by an intact run of that line, or be among a session's failed ones.\n"
      "Examples: bolt receipt audit runs/ --plan p.bolt.jsonl\n"
      "          bolt receipt audit shard1/ shard2/ --lines batch.jsonl\n"
      "Exit status: 0 clean, 1 something found, 4 an empty plan or nothing to check.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        if (options->plan.empty() == options->input.empty()) {
          throw Failure(Status::usage, "audit: give --plan or --lines, one of them");
        }
        if (!options->input.empty()) {
          if (!options->output.empty()) {
            throw Failure(Status::usage, "--output seals an audit of a plan, not of lines");
          }
          receipts::LinesAuditOptions lines;
          lines.is_word = is_word_line;
          if (!options->redaction_key.empty()) {
            lines.redaction_key = receipts::read_redaction_key(options->redaction_key);
          }
          return receipts::audit_lines(options->folders, options->input, lines);
        }
        receipts::AuditOptions audit;
        audit.columns = terminal_columns();
        if (!options->redaction_key.empty()) {
          audit.redaction_key = receipts::read_redaction_key(options->redaction_key);
        }
        const receipts::Receipt plan = receipts::read_receipt(find_receipt(options->plan, *common));
        receipts::AuditResult result = receipts::audit(options->folders, plan, audit);
        if (!options->output.empty()) {
          receipts::Common facts = own_common();
          facts.parents.push_back({"plan", plan.rid});
          receipts::fill_in(facts);
          receipts::Value body = receipts::audit_body(facts, result.section);
          receipts::Where where;
          where.file = options->output;
          const receipts::Written written = receipts::write_body(body, "", where);
          result.answer.lines.push_back({"sealed " + receipts::short_hex(written.rid)});
          result.answer.json.set("rid", written.rid);
        }
        return result.answer;
      });
    };
  });
}

}  // namespace bolt
