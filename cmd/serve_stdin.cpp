// `bolt serve-stdin`: options and help. Reading lines is line_source.h's, the work batch.h's.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cmd/action.h"
#include "cmd/batch.h"
#include "cmd/batch_signals.h"
#include "cmd/options.h"
#include "cmd/shard.h"
#include "cmd/values.h"
#include "core/base/error.h"
#include "core/base/interrupt.h"
#include "receipts/plan.h"
#include "receipts/session.h"

namespace bolt {
namespace {

constexpr int kParallelMax = 256, kParallelCpu = 4, kParallelGpu = 8;
constexpr int kLinesAhead = 16;  // beyond those that get the next places: words may be among them
constexpr std::int64_t kLineBytesMax = std::int64_t{1} << 30;

struct ServeOptions {
  ModelOptions model;
  HowOptions how;
  SayOptions say;
  ReceiptOptions receipt;
  BatchDefaults defaults;
  bool think = false, no_think = false;
  std::string system;
  int n_parallel = 0;
  std::int64_t max_line_bytes = std::int64_t{16} << 20;
  std::string shard;
  std::string output;
  bool resume = false;
};

Exit serve(ServeOptions opts) {
  if (opts.think && opts.no_think) {
    throw Error(Exit::usage, "--think and --no-think: give one of them");
  }
  opts.defaults.thinking = !opts.no_think;
  LineSource::Options source_options;
  source_options.max_line_bytes = static_cast<std::size_t>(opts.max_line_bytes);
  if (!opts.shard.empty()) source_options.shard = parse_shard("--shard", opts.shard);
  catch_interrupts();
  // Before the package is opened: a mistake here should not cost a load.
  RecordSink sink(opts.output, opts.resume);
  if (opts.n_parallel == 0) {
    opts.n_parallel = resolve_device(opts.model, opts.how) >= 0 ? kParallelGpu : kParallelCpu;
  }
  opts.how.n_slots = opts.n_parallel;
  const std::string plan_file = std::exchange(opts.receipt.plan_file, {});
  const std::unique_ptr<Session> session =
      open_session(opts.model, opts.how, opts.receipt, opts.say.quiet);
  if (!plan_file.empty()) session->use_plan(receipts::Plan(receipts::read_receipt(plan_file)));
  const BatchSignals signals;
  if (opts.say.verbose) write_err(session->description());
  const LineParser parser(*session, opts.defaults);
  receipts::PackWriter pack(session->session_facts(opts.defaults.generation.draft),
                            session->where());
  source_options.n_ahead = opts.n_parallel + kLinesAhead;
  source_options.is_answered = [&sink](std::int64_t number, const std::string& bytes) {
    const Answered& answered = sink.answered();
    return answered.contains(number) && answered.has(number, LineParser::id_of(bytes));
  };
  LineSource source(parser, source_options);
  BatchServer batch(*session, source, sink, pack,
                    {.n_parallel = opts.n_parallel,
                     .quiet = opts.say.quiet,
                     .verbose = opts.say.verbose,
                     .plan_file = plan_file});
  return batch.run();
}

}  // namespace

void add_serve_stdin(CLI::App& app, Action& action) {
  auto opts = std::make_shared<ServeOptions>();
  opts->how.prefix_bytes = -1;
  auto* sub = app.add_subcommand("serve-stdin", "Answer many requests, one JSON object a line");
  const std::string group = "Batch";
  add_integer(*sub, "--parallel", opts->n_parallel, 1, kParallelMax,
              "Requests answered at once (8 on a GPU, 4 on the CPU)")
      ->group(group);
  add_text(*sub, "-o,--output", opts->output, "FILE",
           "Append the records to this file instead of stdout")
      ->group(group);
  sub->add_flag("--resume", opts->resume, "Go on with FILE: answer only what it does not answer")
      ->group(group);
  add_parsed(*sub, "--prefix-cache", "SIZE",
             "Memory for prefixes that later prompts may begin with; 0: none (eight a request)",
             [opts](const std::string& name, const std::string& text) {
               opts->how.prefix_bytes = parse_bytes(name, text);
             })
      ->group(group);
  add_parsed(*sub, "--decode-share", "X",
             "Of the time while prompts fill, the part for replies alone, 0 to 0.9 (0.25)",
             [opts](const std::string& name, const std::string& text) {
               opts->how.decode_share = static_cast<double>(parse_float(name, text, 0.0f, 0.9f));
             })
      ->group(group);
  add_text(*sub, "--shard", opts->shard, "I/N|slurm",
           "Take every N-th line, from the I-th on; slurm: by srun's variables")
      ->group(group);
  add_integer(*sub, "--max-line", opts->max_line_bytes, 1, kLineBytesMax,
              "Longest line, in bytes (16777216)")
      ->type_name("BYTES")
      ->group(group);
  add_parsed(*sub, "--system", "TEXT", "System turn of lines that bring none",
             [opts](const std::string&, const std::string& text) { opts->defaults.system = text; })
      ->group(group);
  sub->add_flag("--think", opts->think, "Let the model think first (the default)")->group(group);
  sub->add_flag("--no-think", opts->no_think, "Close the think block before the reply")
      ->group(group);
  add_generation_options(*sub, opts->defaults.generation);
  add_model_options(*sub, opts->model);
  add_how_options(*sub, opts->how);
  add_verbosity_options(*sub, opts->say);
  add_receipt_options(*sub, opts->receipt);
  add_redaction_options(*sub, opts->receipt);
  add_text(*sub, "--plan", opts->receipt.plan_file, "FILE",
           "The plan whose cells lines may name: their receipts are files of their own beside it")
      ->group("Receipt");
  sub->footer(
      "Options of the reply are defaults; a line's own keys come first.\n"
      "Examples:\n"
      "  echo '{\"id\": 1, \"prompt\": \"Count from 1 to 5.\"}' | bolt serve-stdin\n"
      "  jq -c '{id: .n, prompt: .question}' q.json | bolt serve-stdin --no-think > answers.jsonl\n"
      "  bolt serve-stdin -o out.jsonl --resume < batch.jsonl     go on where it stopped\n"
      "  srun -n 8 sh -c 'bolt serve-stdin --shard slurm -o out.$SLURM_PROCID < batch.jsonl'\n"
      "Exit status: 0 all answered, 1 some lines failed, 2 usage, 3 malformed input, 6 device or\n"
      "I/O fault, 130 interrupted. The man page bolt-serve-stdin(1) describes lines and records.");
  sub->callback([opts, &action] { action = [opts] { return serve(*opts); }; });
}

}  // namespace bolt
