// `bolt run`: one reply to a prompt from an argument, a file or stdin; a chat where there is none
// and stdin is a terminal. Replies on stdout, everything else on stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "cmd/action.h"
#include "cmd/chat.h"
#include "cmd/generation.h"
#include "cmd/logits_file.h"
#include "cmd/options.h"
#include "cmd/prompt.h"
#include "cmd/report.h"
#include "cmd/session.h"
#include "cmd/status_line.h"
#include "cmd/streams.h"
#include "cmd/terminal_text.h"
#include "cmd/values.h"
#include "core/base/interrupt.h"

namespace bolt {
namespace {

struct RunOptions {
  ModelOptions model;
  HowOptions how;
  SayOptions say;
  ReceiptOptions receipt;
  GenerationOptions generation;
  PromptOptions prompt;
  std::string logits_file;
};

bool same_place(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  return fs::absolute(a).lexically_normal() == fs::absolute(b).lexically_normal();
}

void say_before(const RunOptions& opts, const Session& session, const Task& task) {
  if (opts.say.quiet) return;
  const std::string idle = ineffective_options(opts.generation, task.sampling);
  if (!idle.empty()) {
    write_err(
        fmt::format("bolt: note: the reply is greedy, so {} changes nothing; give --temp\n", idle));
  }
  const bool drawn = task.sampling.temperature > 0.0f && !opts.generation.seed;
  if (drawn && !opts.say.verbose) {
    write_err(fmt::format("seed {}\n", task.sampling.seed));
  }
  if (opts.say.verbose)
    write_err(session.description() + "sampler   " + sampler_chain(task.sampling) + "\n");
}

Exit exit_of(const Outcome& outcome) {
  if (outcome.stop == "error") {
    throw Error(Exit::fault,
                fmt::format("the logits for position {} are not finite: the reply ends before it; "
                            "receipt {}",
                            outcome.reply.error_position, outcome.receipt.path));
  }
  if (outcome.stop == "interrupted") return Exit::interrupted;
  if (!outcome.unplanned.empty()) {
    throw Error(Exit::no, fmt::format("not the planned run: {}; receipt {}", outcome.unplanned,
                                      outcome.receipt.path));
  }
  return Exit::ok;
}

Exit run_once(const RunOptions& opts) {
  require_stdout();
  if (!opts.logits_file.empty()) {
    check_logits_target(opts.logits_file);
    if (!opts.receipt.file.empty() && same_place(opts.receipt.file, opts.logits_file)) {
      throw Error(Exit::usage, "--logits and --receipt name the same file");
    }
  }
  // Read before the package is opened: a mistake here should not cost a load.
  PromptOptions prompt = opts.prompt;
  if (!prompt.ids_file) prompt.argument = read_prompt(opts.prompt);
  const std::unique_ptr<Session> session =
      open_session(opts.model, opts.how, opts.receipt, opts.say.quiet);
  Task task = session->task(opts.generation);
  set_prompt(task, *session, prompt);
  std::unique_ptr<LogitsFile> logits;
  if (!opts.logits_file.empty()) {
    logits = std::make_unique<LogitsFile>(opts.logits_file, session->config().vocab_size);
  }
  say_before(opts, *session, task);

  const bool terminal = stdout_is_terminal();
  TerminalText shown(terminal, use_color(opts.say.color, STDOUT_FILENO),
                     task.templated && prompt.thinking());
  StatusLine status(!opts.say.quiet);
  LiveLine live(static_cast<std::int64_t>(task.prompt_ids.size()));
  // Through `| tee` the text may be on this very terminal: no live line may then wipe it out, and
  // the last line begins on one of its own.
  const bool may_be_seen = !opts.say.json && stdout_is_pipe() && stderr_is_terminal();
  Listener listener;
  if (!opts.say.json) {
    listener.text = [&](const std::string& piece) {
      status.clear();
      write_out(shown.push(piece));
      if (!may_be_seen) status.again();
    };
  }
  if (logits) {
    listener.wants_logits = true;
    listener.token = [&](int id, std::span<const float> row) { logits->add(id, row); };
  }
  listener.progress = [&](const Progress& progress) {
    check_reader();
    if (may_be_seen && shown.mid_line()) return;
    if (status.due()) status.show(live.text(progress));
  };
  const std::unique_ptr<Sequence> sequence = session->engine().new_sequence();
  const Outcome outcome = session->answer(*sequence, task, listener, interrupt_flag());
  status.clear();
  if (logits) logits->commit();
  if (opts.say.json) {
    JsonWriter json;
    json.begin_object();
    write_done(json, task, outcome);
    json.end_object();
    write_out(json.take() + "\n");
  } else {
    write_out(shown.finish() + (terminal && shown.mid_line() ? "\n" : ""));
  }
  const bool same_place = !terminal && !opts.say.json && stderr_is_stdout();
  if ((may_be_seen || same_place) && shown.mid_line() && !opts.say.quiet) write_err("\n");
  if (opts.say.verbose) write_err(counter_lines(outcome) + session->cost_line());
  if (!opts.say.quiet) write_err(last_line(outcome) + "\n");
  return exit_of(outcome);
}

Exit run_chat(const RunOptions& opts) {
  const auto refuse = [](bool given, const char* option) {
    if (given) {
      throw Error(Exit::usage,
                  fmt::format("{} needs a prompt; a chat has none on the command line", option));
    }
  };
  refuse(opts.say.json, "--json");
  refuse(!opts.logits_file.empty(), "--logits");
  refuse(!opts.receipt.file.empty(), "--receipt");
  refuse(opts.prompt.raw, "--raw");
  refuse(opts.receipt.cell.has_value(), "--plan");
  const std::unique_ptr<Session> session =
      open_session(opts.model, opts.how, opts.receipt, opts.say.quiet);
  if (interrupt_flag()) return Exit::interrupted;
  Task task = session->task(opts.generation);
  say_before(opts, *session, task);
  return chat(*session, task,
              {.system = opts.prompt.system,
               .thinking = opts.prompt.thinking(),
               .quiet = opts.say.quiet,
               .verbose = opts.say.verbose,
               .color = opts.say.color});
}

Exit run(const RunOptions& opts) {
  const DraftOptions& draft = opts.generation.draft;
  if (draft.source == DraftOptions::Source::off && draft.drafts > 0) {
    throw Error(Exit::usage,
                fmt::format("--drafts {}: --draft off makes none; give one of them", draft.drafts));
  }
  check_prompt_options(opts.prompt);
  check_plan_options(opts.receipt);
  catch_interrupts();
  if (!opts.prompt.given() && stdin_is_terminal()) {
    if (!stdout_is_terminal()) {
      throw Error(Exit::usage,
                  "no prompt: a chat needs a terminal on stdout too; give a PROMPT, -f "
                  "FILE, or pipe it in");
    }
    return run_chat(opts);
  }
  return run_once(opts);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto opts = std::make_shared<RunOptions>();
  auto* sub = app.add_subcommand("run", "Answer a prompt, or chat on a terminal");
  add_prompt_options(*sub, opts->prompt);
  add_generation_options(*sub, opts->generation);
  add_model_options(*sub, opts->model);
  add_how_options(*sub, opts->how);
  add_say_options(*sub, opts->say);
  add_text(*sub, "--logits", opts->logits_file, "FILE",
           "Write each emitted position's logits there, as safetensors")
      ->group("Output");
  add_receipt_options(*sub, opts->receipt);
  add_redaction_options(*sub, opts->receipt);
  add_plan_options(*sub, opts->receipt);
  sub->footer(
      "Examples:\n"
      "  bolt run \"Count from 1 to 20.\"             with the sample model\n"
      "  bolt run -m nano.bolt -f question.txt > answer.txt\n"
      "  git diff | bolt run -m nano.bolt --system \"Review this change.\"\n"
      "  bolt run -m nano.bolt --temp 0.8 --top-p 0.95 -s 7 -n 200 \"Tell a story.\"\n"
      "  bolt run --json -p \"2+2=\" | jq -r .text\n"
      "  bolt run                                   chat; /help lists its commands\n"
      "Exit status: 0 done, 2 usage, 3 malformed input, 6 device, I/O or numeric fault,\n"
      "130 interrupted. The man page bolt-run(1) says more.");
  sub->callback([opts, &action] { action = [opts] { return run(*opts); }; });
}

}  // namespace bolt
