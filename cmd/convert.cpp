// `bolt convert`: options, help, the progress line, the summary and the receipt. The work itself is
// core/pack/convert.h's.
#include "core/pack/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "cmd/action.h"
#include "cmd/build_info.h"
#include "cmd/options.h"
#include "cmd/quality.h"
#include "cmd/status_line.h"
#include "cmd/streams.h"
#include "cmd/values.h"
#include "core/base/file_map.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/pack/repackage.h"
#include "core/pack/tile_codec.h"
#include "core/text/tokenizer.h"
#include "receipts/build_facts.h"
#include "receipts/digest.h"
#include "receipts/status.h"
#include "receipts/write.h"

namespace bolt {
namespace {

struct ConvertCommand {
  ConvertOptions work;
  std::string draft_vocab;            // FILE or N, as given
  std::string compare_with, prompts;  // a package and a file, for quality.h
  SayOptions say;
  ReceiptOptions receipt;
};

receipts::ConversionFacts receipt_facts(const ConvertCommand& command, const ConvertFacts& done,
                                        std::int64_t total_ns) {
  receipts::ConversionFacts facts;
  facts.common.challenge = command.receipt.challenge;
  facts.common.build = receipts::build_facts(compiled_build());
  facts.common.env = receipts::environment_facts();
  facts.common.time.total_ns = total_ns;
  for (const PackageFile& file : done.package_files) {
    facts.package.files.push_back(
        {file.path, file.role, file.bytes, file.sha256, file.how, file.links});
  }
  const std::string tokenizer_path = done.target + "/tokenizer.json";
  const auto tokenizer = Tokenizer::from_json(read_file(tokenizer_path), tokenizer_path);
  facts.package.vocab = receipts::vocab_digest(tokenizer->n_tokens(), [&](int id) {
    return receipts::VocabEntry{tokenizer->bytes_of(id), tokenizer->is_special(id)};
  });
  facts.package.source = done.package_source;
  facts.arith.id = done.arith_id;
  facts.arith.sha256 = done.arith_sha256;
  facts.source_name = done.source_name;
  for (const PackageFile& file : done.source_files) {
    facts.source_files.push_back({file.path, file.bytes, file.sha256});
  }
  facts.quant = command.work.quant ? format_name(*command.work.quant) : "none";
  facts.keep = command.work.keep;
  facts.geometry = geometry_text(done.geometry);
  facts.without_mtp = command.work.without_mtp;
  facts.verified = done.verified;
  facts.tensors = static_cast<std::int64_t>(done.n_tensors);
  facts.values_compared = static_cast<std::int64_t>(done.n_verified_values);
  facts.values_requantised = static_cast<std::int64_t>(done.n_verified_quantised);
  return facts;
}

// The receipt in its folder, and its bytes beside the package as NAME.bolt.jsonl.
std::string write_both(const ConvertCommand& command, const ConvertFacts& done,
                       const receipts::Where& where, std::int64_t total_ns) {
  receipts::ConversionFacts facts = receipt_facts(command, done, total_ns);
  const receipts::Written written = receipts::write_conversion(facts, where);
  if (is_regular_file(written.path)) {
    write_file_atomically(conversion_receipt_path(done.target), read_file(written.path),
                          /*replace=*/true, 0600);
  }
  return written.path;
}

// The package has its name by now, so a receipt that fails must say what stands there.
std::string write_receipts(const ConvertCommand& command, const ConvertFacts& done,
                           const receipts::Where& where, std::int64_t total_ns) {
  const auto described = [&](Exit code, const char* problem) {
    return Error(code, fmt::format("{}: the package is whole, but its receipt could not be "
                                   "written: {}",
                                   done.target, problem));
  };
  try {
    return write_both(command, done, where, total_ns);
  } catch (const receipts::Failure& failure) {
    throw described(static_cast<Exit>(failure.status), failure.what());
  } catch (const Error& error) {
    throw described(error.code, error.what());
  }
}

std::string megabytes(std::uint64_t bytes) {
  return bytes >= 10'000'000'000 ? fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9)
                                 : fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

std::string summary(const ConvertFacts& done, const std::string& receipt, double seconds) {
  std::string text = fmt::format("{} -> {}\n", done.source, done.target);
  std::string with = done.has_draft_head ? ", with an MTP head" : "";
  if (done.source_format == "drafter") with = fmt::format(" of a {} drafter", done.drafters[0]);
  text += fmt::format("tensors   {} of {} read, {} parameters{}\n", done.n_tensors,
                      done.n_tensors + done.skipped.size(), done.n_parameters, with);
  if (!done.skipped.empty()) {
    text += fmt::format("left out  {} tensors, the first {}\n", done.skipped.size(),
                        done.skipped.front());
  }
  if (!done.disagreeing.empty()) {
    text += fmt::format(
        "formats   {} tensors are not what the quantisation config says, the first "
        "{}; the tensors decide\n",
        done.disagreeing.size(), done.disagreeing.front());
  }
  if (!done.template_problem.empty()) {
    text += fmt::format("template  not understood, so only --raw prompts will do: {}\n",
                        done.template_problem);
  }
  if (done.n_draft_vocab > 0) {
    text += fmt::format("drafts    over {} ids where they suffice\n", done.n_draft_vocab);
  }
  if (!done.quantised.empty()) {
    text += fmt::format("quantised {} weights\n", done.quantised.size());
  }
  constexpr std::size_t kWorstShown = 3;
  for (std::size_t i = 0; i < std::min(kWorstShown, done.errors.size()); ++i) {
    text += fmt::format("{} {:.3f}% {}\n", i == 0 ? "error    " : "         ",
                        100.0 * done.errors[i].second, done.errors[i].first);
  }
  if (done.source_format == "package") {
    text += fmt::format("files     {} linked, {} copied; no weight was read\n", done.n_linked,
                        done.n_copied);
    text += fmt::format("size      {}, in {:.2f} s\n", megabytes(done.package_bytes), seconds);
    return text + fmt::format("receipt   {}\n", receipt);
  }
  if (done.source_format == "drafter") {
    text += fmt::format("package   {} files linked, {} copied\n", done.n_linked, done.n_copied);
  }
  text += done.verified ? fmt::format("verified  {} values bit for bit, {} of them requantised\n",
                                      done.n_verified_values, done.n_verified_quantised)
                        : "verified  no (--no-verify)\n";
  text += fmt::format("size      {} from {}, in {:.1f} s\n", megabytes(done.package_bytes),
                      megabytes(done.source_bytes), seconds);
  return text + fmt::format("receipt   {}\n", receipt);
}

std::string quality_line(const Quality& q) {
  return fmt::format(
      "KL        mean {:.6f}, largest {:.6f} nats ({} id {}); {} of {} choices are the same, {} "
      "prompts\n",
      q.mean_kl, q.largest_kl, q.worst_prompt, q.worst_position, q.n_same_choice, q.n_positions,
      q.n_prompts);
}

std::string as_json(const ConvertFacts& done, const std::string& receipt, double seconds,
                    const std::optional<Quality>& quality) {
  JsonWriter json;
  json.begin_object()
      .member("source", done.source)
      .member("package", done.target)
      .member("tensors", done.n_tensors)
      .member("skipped", done.skipped)
      .member("parameters", done.n_parameters)
      .member("source_bytes", done.source_bytes)
      .member("package_bytes", done.package_bytes)
      .member("package_sha256", done.package_files.front().sha256)
      .member("mtp", done.has_draft_head)
      .member("drafters", done.drafters)
      .member("draft_vocab", done.n_draft_vocab)
      .member("template_problem", done.template_problem)
      .member("quantised", done.quantised)
      .member("disagreeing", done.disagreeing)
      .member("verified", done.verified)
      .member("values_compared", done.n_verified_values)
      .member("values_requantised", done.n_verified_quantised)
      .member("linked", done.n_linked)
      .member("copied", done.n_copied);
  json.key("relative_errors").begin_object();
  for (const auto& [name, error] : done.errors) json.member(name, error);
  json.end_object();
  if (quality) {
    json.key("quality")
        .begin_object()
        .member("mean_kl", quality->mean_kl)
        .member("largest_kl", quality->largest_kl)
        .member("worst_prompt", quality->worst_prompt)
        .member("worst_position", quality->worst_position)
        .member("same_choice", quality->n_same_choice)
        .member("positions", quality->n_positions)
        .member("prompts", quality->n_prompts)
        .end_object();
  }
  json.member("seconds", seconds).member("receipt", receipt);
  return json.end_object().take() + "\n";
}

// A number is a count, anything else a file (./123 names a file of digits).
void read_draft_vocab_option(ConvertCommand& command) {
  const std::string& given = command.draft_vocab;
  const bool counted = !given.empty() && given.find_first_not_of("0123456789") == std::string::npos;
  if (counted) {
    if (command.work.draft_texts.empty()) {
      throw Error(Exit::usage,
                  "--draft-vocab " + given + ": needs a text to count in; give --draft-text FILE");
    }
    command.work.n_draft_vocab =
        static_cast<int>(parse_integer("--draft-vocab", given, 1, 1 << 24));
    return;
  }
  if (!command.work.draft_texts.empty()) {
    throw Error(Exit::usage, "--draft-text: is counted for --draft-vocab N, which is not given");
  }
  command.work.draft_vocab_file = given;
}

Exit run_convert(ConvertCommand& command) {
  read_draft_vocab_option(command);
  if (command.compare_with.empty() != command.prompts.empty()) {
    throw Error(Exit::usage, "--compare and --prompts: give both, a package and prompts to try");
  }
  if (!command.compare_with.empty() && !is_package(command.compare_with)) {
    throw Error(Exit::usage, command.compare_with + ": no package to compare with");
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const receipts::Where where = prepare_receipts(command.receipt);
  if (command.say.json) require_stdout();
  catch_interrupts();  // the work unwinds and removes what it had not finished
  StatusLine status(!command.say.quiet && stderr_is_terminal());
  std::mutex lock;
  command.work.bolt_version = build_info().version;
  command.work.progress = [&](const char* phase, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard<std::mutex> hold(lock);
    if (!status.due() || total == 0) return;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    constexpr int kCells = 24;
    const int full = static_cast<int>(share * kCells);
    status.show(fmt::format("{:<18} [{:=<{}}{:<{}}] {:3.0f}%  {} of {}", phase, "", full, "",
                            kCells - full, 100.0 * share, megabytes(done), megabytes(total)));
  };
  const ConvertFacts done = convert(command.work);
  const auto total = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
  status.clear();
  const std::string receipt = write_receipts(command, done, where, total.count());
  const double seconds = static_cast<double>(total.count()) / 1e9;
  if (!command.say.json && !command.say.quiet) write_err(summary(done, receipt, seconds));
  std::optional<Quality> quality;
  if (!command.compare_with.empty()) {
    quality = compare_distributions(command.compare_with, done.target, command.prompts,
                                    command.work.n_threads);
  }
  if (command.say.json)
    write_out(as_json(done, receipt, seconds, quality));
  else if (quality && !command.say.quiet)
    write_err(quality_line(*quality));
  return Exit::ok;
}

}  // namespace

void add_convert(CLI::App& app, Action& action) {
  auto command = std::make_shared<ConvertCommand>();
  CLI::App* sub = app.add_subcommand("convert", "Make a package of a checkpoint");
  sub->add_option(
         "SRC", command->work.source,
         "Hugging Face checkpoint (a folder, or one .safetensors file), GGUF, or a package;\n"
         "a drafter's checkpoint with --drafter-for")
      ->required();
  sub->add_option("DST", command->work.target, "Package to make, NAME.bolt by custom")->required();
  add_parsed(*sub, "--quant", "none|q8|nvfp4",
             "Quantise the linear weights; none keeps every format",
             [command](const std::string& option, const std::string& text) {
               const Names<int> names = {{"none", 0}, {"q8", 1}, {"nvfp4", 2}};
               const int chosen = parse_name(option, text, names);
               command->work.quant.reset();
               if (chosen > 0) command->work.quant = chosen == 1 ? Format::q8 : Format::nvfp4;
             });
  add_parsed(*sub, "--geometry", "dynamic|fixed:R|hybrid:R",
             "Rows of every call: any number, R, or R but one when decoding",
             [command](const std::string& option, const std::string& text) {
               command->work.geometry = parse_geometry(option, text);
             });
  sub->add_option("--keep", command->work.keep,
                  "Do not quantise weights or tensors of this name; * and ? match, repeatable")
      ->type_name("PATTERN")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_text(*sub, "--compare", command->compare_with, "PACKAGE",
           "Compare next-token distributions with this package's, on --prompts");
  add_text(*sub, "--prompts", command->prompts, "FILE",
           "Prompts for --compare: JSON lines with messages or prompt");
  add_text(*sub, "--drafter-for", command->work.drafter_for, "PACKAGE",
           "SRC is a separate drafter (DSpark, DFlash): DST is this package with it");
  sub->add_flag("--without-mtp", command->work.without_mtp, "Leave the MTP draft head out");
  add_text(*sub, "--draft-vocab", command->draft_vocab, "FILE|N",
           "Draft vocabulary: a JSON array of ids, or the N ids most frequent in --draft-text");
  sub->add_option("--draft-text", command->work.draft_texts,
                  "Text whose tokens are counted for --draft-vocab N, repeatable")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  sub->add_flag("--verify,!--no-verify", command->work.verify,
                "Decode source and package and compare every value (default)");
  sub->add_flag("--force", command->work.force, "Replace a package that is there already");
  add_integer(*sub, "-t,--threads", command->work.n_threads, 0, 4096, "Threads; 0: every core");
  add_say_options(*sub, command->say);
  add_receipt_options(*sub, command->receipt);
  sub->footer(
      "The package appears under its name only once it is whole, verified and on the disk.\n"
      "Its receipt lies in the receipts folder and beside the package as NAME.bolt.jsonl.\n"
      "Exit status: 0 converted, 2 usage, 3 not a whole Nemotron-H checkpoint, 6 disk or "
      "verification,\n130 interrupted; nothing is left at DST then, nor a receipt.");
  sub->callback([command, &action] { action = [command] { return run_convert(*command); }; });
}

}  // namespace bolt
