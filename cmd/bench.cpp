// `bolt bench`: options, help and order of work. The runs are bench_run.h's, the table
// bench_report.h's; --make writes a package of generated weights, which is core/pack/make.h's work.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <mutex>

#include "cmd/action.h"
#include "cmd/bench_report.h"
#include "cmd/bench_run.h"
#include "cmd/build_info.h"
#include "cmd/options.h"
#include "cmd/status_line.h"
#include "cmd/streams.h"
#include "cmd/values.h"
#include "core/base/interrupt.h"
#include "core/base/json.h"
#include "core/pack/make.h"
#include "core/pack/make_drafter.h"
#include "core/pack/shapes.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

struct BenchCommand {
  MakeOptions make;
  BenchOptions bench;
  BenchFormat format = BenchFormat::md;
};

Exit run_make(BenchCommand& command) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  if (command.bench.say.json) require_stdout();
  catch_interrupts();  // the work unwinds and removes what it had not finished
  StatusLine status(!command.bench.say.quiet && stderr_is_terminal());
  std::mutex lock;
  command.make.bolt_version = build_info().version;
  command.make.progress = [&](const char* phase, std::uint64_t done, std::uint64_t total) {
    const std::lock_guard<std::mutex> hold(lock);
    if (!status.due() || total == 0) return;
    status.show(fmt::format("{} {:3.0f}%", phase,
                            100.0 * static_cast<double>(done) / static_cast<double>(total)));
  };
  BlockKind kind;
  const bool is_drafter = is_drafter_shape(command.make.shape, kind);
  if (is_drafter == command.make.drafter_for.empty()) {
    throw Error(Exit::usage, is_drafter
                                 ? "--make " + command.make.shape +
                                       ": needs --drafter-for, the package whose embedding it has"
                                 : "--drafter-for: goes with --make lightning-dspark or "
                                   "lightning-dflash");
  }
  std::vector<PackageFile> files;
  std::uint64_t bytes = 0;
  if (is_drafter) {
    command.make.format = Format::nvfp4;
    bytes = make_drafter(command.make, command.make.drafter_for, lightning_drafter(kind),
                         kLightningLayers)
                .bytes;
  } else {
    files = make_package(command.make);
  }
  status.clear();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (const PackageFile& file : files) bytes += file.bytes;
  if (command.bench.say.json) {
    JsonWriter json;
    json.begin_object()
        .member(is_drafter ? "drafter" : "package", command.make.target)
        .member("shape", command.make.shape)
        .member("format", format_name(command.make.format))
        .member("seed", command.make.seed)
        .member("bytes", bytes);
    if (!is_drafter) json.member("package_sha256", files.front().sha256);
    json.member("seconds", seconds);
    write_out(json.end_object().take() + "\n");
  } else if (!command.bench.say.quiet) {
    write_err(fmt::format("{}: generated weights, {} in {}, {:.1f} MB in {:.1f} s\n",
                          command.make.target, command.make.shape, format_name(command.make.format),
                          static_cast<double>(bytes) / 1e6, seconds));
  }
  return Exit::ok;
}

// "128" or "1,2,4": whole numbers.
std::vector<std::int64_t> parse_list(const std::string& option, const std::string& text,
                                     std::int64_t high, std::int64_t low = 0) {
  std::vector<std::int64_t> list;
  for (const std::string& part : split_list(text)) {
    list.push_back(parse_integer(option, part, low, high));
  }
  return list;
}

void check(const BenchOptions& bench) {
  const bool has_prompts = !bench.prompts_file.empty();
  const auto refuse = [](bool wrong, const char* line) {
    if (wrong) throw Error(Exit::usage, line);
  };
  refuse(has_prompts && !bench.n_prompt.empty(), "-p: --prompts brings the prompts");
  refuse(has_prompts && !bench.depth.empty(), "-d: --prompts brings the prompts");
  refuse(has_prompts && bench.n_reply.size() > 1, "-n: one limit for the replies to --prompts");
  refuse(bench.null && !bench.against.empty(), "--null and --against: give one of them");
  for (std::size_t i = 0; i < bench.devices.size(); ++i) {
    refuse(bench.devices[i].kind == ModelOptions::Device::Kind::automatic,
           "--devices: name each, cpu, cpu:RANKS, cuda:N or cuda:N+N");
    for (std::size_t k = 0; k < i; ++k) {
      refuse(device_name(bench.devices[i]) == device_name(bench.devices[k]),
             "--devices: one of them is given twice");
    }
  }
  refuse(!bench.devices.empty() && (bench.null || !bench.against.empty()),
         "--devices: not with --null or --against; one comparison at a time");
  refuse(bench.scripted_rate && !bench.against.empty(),
         "--draft scripted: other builds draft by themselves");
  refuse(bench.costs && !bench.against.empty(), "--costs: not with --against; measure each alone");
  refuse(
      !bench.parallel.empty() && (!bench.against.empty() || bench.null || !bench.devices.empty()),
      "--parallel: not with --against, --null or --devices; measure each alone");
  refuse(!bench.parallel.empty() && !bench.depth.empty(), "--parallel: takes no -d");
  for (const std::int64_t n : bench.parallel) {
    refuse(std::ranges::count(bench.parallel, n) > 1, "--parallel: a number is given twice");
  }
  refuse(bench.profile && !bench.against.empty(),
         "--profile: not with --against; measure each alone");
  refuse(bench.receipt.drop_info, "--drop-info: the table is made of the times in the receipts");
  refuse(bench.receipt.redact == receipts::Redaction::Mode::salted,
         "--redact salted: such runs cannot be held against each other");
}

Exit run_bench(BenchCommand& command) {
  BenchOptions& bench = command.bench;
  check(bench);
  if (bench.say.json) command.format = BenchFormat::json;
  if (command.format == BenchFormat::csv && (bench.profile || !bench.parallel.empty())) {
    throw Error(
        Exit::usage,
        "-o csv: a table of runs alone; --parallel and --profile go with md, json or jsonl");
  }
  if (bench.modes.empty()) {
    bench.modes = bench.null ? std::vector<std::string>{"ordinary"}
                             : std::vector<std::string>{"ordinary", "auto"};
  }
  require_stdout();
  catch_interrupts();
  BenchRuns runs(bench);
  const std::int64_t n_left = runs.run();
  BenchTable table = bench_table(runs, bench);
  bool series_left = false;
  if (!bench.parallel.empty() && n_left == 0) {
    BenchParallel together(runs, bench);
    together.run();
    add_throughput(together.results(), table);
    series_left = !together.is_complete();
  }
  if (table.n_found > 0) (void)seal_bench(table, runs, bench);
  write_out(bench_text(table, runs, command.format, stdout_is_terminal() || bench.costs));
  if (n_left > 0 && !bench.say.quiet) {
    write_err(fmt::format("bolt: {} runs are left; go on with the same command and --resume {}\n",
                          n_left, runs.folder()));
  }
  if (series_left && !bench.say.quiet) {
    write_err(
        "bolt: series of --parallel were cut short; the same command with --resume makes them "
        "anew\n");
  }
  if (!table.equal || !table.claims.empty()) return Exit::no;
  if (n_left > 0 || series_left) return Exit::interrupted;
  return table.not_comparable.empty() ? Exit::ok : Exit::unmet;
}

std::string shapes_help() {
  std::string text = "Shapes:\n";
  for (const std::string& name : shape_names()) {
    text += fmt::format("  {:<11} {}\n", name, find_shape(name).about);
  }
  text += "  lightning-dspark, lightning-dflash: checkpoints of drafters, for --drafter-for\n";
  return text;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  auto command = std::make_shared<BenchCommand>();
  BenchOptions& bench = command->bench;
  CLI::App* sub =
      app.add_subcommand("bench", "Time modes, packages and builds, and compare tokens");
  const std::string what = "What is timed", make = "Generated packages";
  sub->add_option("-m,--model", bench.packages, "Package folder; may be given again")
      ->type_name("PACKAGE")
      ->allow_extra_args(false)
      ->group(what);
  add_text(*sub, "--prompts", bench.prompts_file, "FILE",
           "Prompts, one JSON object a line (serve-stdin's or OpenAI's)")
      ->group(what);
  const auto add_list = [&](const std::string& names, std::vector<std::int64_t>& list,
                            const std::string& help) {
    add_parsed(*sub, names, "N,...", help,
               [&list](const std::string& option, const std::string& text) {
                 list = parse_list(option, text, std::int64_t{1} << 31);
               })
        ->group(what);
  };
  add_list("-p,--n-prompt", bench.n_prompt, "Without --prompts: prompts of these lengths (512)");
  add_list("-n,--max-tokens", bench.n_reply,
           "Replies of these lengths (128); the limit with --prompts");
  add_list("-d,--depth", bench.depth, "Ids that are there before each test's clock starts (0)");
  sub->add_option(
         "--modes", bench.modes,
         "ordinary, k1 to k31, auto, copy, mtp, dspark, dflash (ordinary,auto); the first is\n"
         "the base")
      ->type_name("MODE,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->group(what);
  sub->add_option("--against", bench.against, "Executable of another build; may be given again")
      ->type_name("BINARY")
      ->allow_extra_args(false)
      ->check(CLI::Validator(CLI::ExistingFile).description(""))
      ->group(what);
  add_parsed(*sub, "--devices", "DEVICE,...",
             "Devices to hold against each other, cpu or cuda:N, with + between GPUs that share\n"
             "the model; the first is the base",
             [&bench](const std::string& option, const std::string& text) {
               for (const std::string& part : split_list(text)) {
                 bench.devices.push_back(parse_device(option, part));
               }
             })
      ->group(what);
  sub->add_flag("--null", bench.null, "This build against itself: no difference may be found")
      ->group(what);
  add_integer(*sub, "-r,--passes", bench.passes, 1, 1000,
              "Times each run is made, every second pass in reversed order (5)")
      ->group(what);
  sub->add_flag("--costs", bench.costs, "Measure and plot what windows of 1 to 32 rows cost")
      ->group(what);
  add_parsed(*sub, "--parallel", "N,...",
             "After the runs, all prompts with so many answered at once: tokens a second of all",
             [&bench](const std::string& option, const std::string& text) {
               bench.parallel = parse_list(option, text, 256, 1);
             })
      ->group(what);
  sub->add_flag("--profile", bench.profile,
                "After the runs, time the parts of a pass: mamba, attention, experts, head, ...")
      ->group(what);
  add_parsed(*sub, "--draft", "scripted:RATE",
             "Draft the known reply, each token right at this rate, instead of what was learnt",
             [&bench](const std::string& name, const std::string& text) {
               constexpr std::string_view kScripted = "scripted:";
               if (!text.starts_with(kScripted)) throw_unknown_name(name, text, "scripted:RATE");
               bench.scripted_rate = parse_float(name, text.substr(kScripted.size()), 0.0f, 1.0f);
             })
      ->group(what);
  sub->add_flag("--no-think", bench.no_think, "Chat prompts without thinking")->group(what);
  sub->add_flag("--ignore-eos", bench.ignore_eos, "Stop ids are tokens like others")->group(what);
  add_float(*sub, "--temp", bench.temperature, 0.0f, std::numeric_limits<float>::max(),
            "Temperature (0: greedy)")
      ->group(what);
  add_parsed(*sub, "-s,--seed", "N", "Seed of sampling, scripts and generated weights (1)",
             [command](const std::string& option, const std::string& text) {
               command->make.seed = command->bench.seed = parse_u64(option, text);
             })
      ->group(what);
  add_text(*sub, "--resume", bench.resume, "DIR",
           "Make the runs that the bench of this folder has left")
      ->group(what);
  add_choice<BenchFormat>(*sub, "-o,--output", command->format,
                          {{"md", BenchFormat::md},
                           {"json", BenchFormat::json},
                           {"jsonl", BenchFormat::jsonl},
                           {"csv", BenchFormat::csv}},
                          "The table's form (md)")
      ->group("Output");
  add_where_options(*sub, bench.model);
  add_how_options(*sub, bench.how);
  add_say_options(*sub, bench.say);
  add_text(*sub, "--receipts", bench.receipt.folder, "DIR",
           "New folder for the plan and the runs' receipts (one in the receipts folder)")
      ->group("Receipt");
  add_redaction_options(*sub, bench.receipt);

  add_text(*sub, "--make", command->make.shape, "SHAPE",
           "Write a package of generated weights of this shape, or of a config.json's")
      ->group(make);
  Names<Format> formats;
  for (const Format format : {Format::bf16, Format::f32, Format::f16, Format::q8, Format::nvfp4}) {
    formats.emplace_back(format_name(format), format);
  }
  add_text(*sub, "--drafter-for", command->make.drafter_for, "PACKAGE",
           "With lightning-dspark or lightning-dflash: the package that OUT is a drafter for")
      ->group(make);
  add_choice(*sub, "--format", command->make.format, formats, "Format of the linear weights")
      ->group(make);
  add_parsed(*sub, "--experts", "FORMAT", "Format of the routed experts, where theirs is another",
             [command, formats](const std::string& option, const std::string& text) {
               command->make.experts = parse_name(option, text, formats);
             })
      ->group(make);
  sub->add_option("OUT", command->make.target, "Package (or drafter's checkpoint) to make")
      ->group(make);
  sub->add_flag("--force", command->make.force, "Replace a package that is there already")
      ->group(make);
  sub->footer(
      shapes_help() +
      "Generated weights are noise: replies mean nothing, speeds and memory do.\n"
      "Examples:\n"
      "  bolt bench                                     lengths as llama-bench has them\n"
      "  bolt bench -m nano.bolt --prompts set.jsonl --modes ordinary,k7,auto -n 256\n"
      "  bolt bench --prompts set.jsonl --against ./bolt-old --modes ordinary\n"
      "  bolt bench -m nano.bolt --prompts set.jsonl --parallel 1,4,16 --profile\n"
      "  bolt bench --make dense-1b --format q8 gen.bolt; bolt bench -m gen.bolt --costs\n"
      "Exit status: 0 done and all tokens equal, 1 tokens differ or --null found a\n"
      "difference, 2 usage, 3 malformed input, 4 not comparable, 6 fault, 130 interrupted.");
  sub->callback([command, &action] {
    const bool makes = !command->make.shape.empty();
    if (makes == command->make.target.empty()) {
      throw Error(Exit::usage, makes ? "--make needs OUT, the package to make"
                                     : "OUT goes with --make; -m names a package to time");
    }
    command->make.n_threads = command->bench.model.n_threads;
    action = [command, makes] { return makes ? run_make(*command) : run_bench(*command); };
  });
}

}  // namespace bolt
