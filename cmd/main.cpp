// The one place where what a subcommand threw or returned becomes an exit status and a line on
// stderr. What each does is its own file's; what was built is build_info.h's.
#include <openssl/crypto.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <system_error>

#include "cmd/action.h"
#include "cmd/streams.h"
#include "cmd/unknown_option.h"
#include "cmd/version.h"
#include "receipts/build_facts.h"
#include "receipts/status.h"

namespace bolt {
namespace {

int fail(Exit code, const std::string& line) {
  write_err("bolt: " + line + "\n");
  return static_cast<int>(code);
}

// Ends as if SIGPIPE had not been ignored: no message, and the shell sees the signal.
int end_quietly() {
  std::signal(SIGPIPE, SIG_DFL);
  (void)std::raise(SIGPIPE);
  return 128 + SIGPIPE;
}

// What was printed through stdio reaches its file now, or is reported.
int flush_stdio(int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  if (errno == EPIPE) return end_quietly();
  return fail(Exit::fault, std::string("stdout: cannot write: ") +
                               (errno != 0 ? std::strerror(errno) : "an earlier write failed"));
}

// The words before the options of the subcommand that was given: "bolt run".
std::string command_name(const CLI::App& app) {
  std::string name = "bolt";
  for (const CLI::App* sub = &app; !sub->get_subcommands().empty();) {
    sub = sub->get_subcommands().front();
    name += " " + sub->get_name();
  }
  return name;
}

int parse_and_act(int argc, char** argv) {
  CLI::App app{"bolt: Nemotron-H with lossless speculative decoding and sealed receipts"};
  app.name("bolt");
  app.get_formatter()->column_width(34);
  bool version = false, json = false;
  app.add_flag("--version", version, "Version, commit, contract, devices; all of it with --json");
  app.add_flag("--json", json, "With --version: one JSON object, with this executable's SHA-256");
  app.footer(
      "Examples:\n"
      "  bolt run \"Count from 1 to 20.\"          answer on stdout, receipt in the receipts "
      "folder\n"
      "  bolt run                                chat, when stdin is a terminal\n"
      "  bolt serve-stdin < batch.jsonl          many requests at once, one JSON object a line\n"
      "  bolt convert ./checkpoint nano.bolt     make a package of a Hugging Face checkpoint\n"
      "  bolt run -m nano.bolt -f prompt.txt     run it\n"
      "  bolt receipt verify FILE.bolt.jsonl     check what a run left behind\n"
      "Exit status: 0 done, 1 checked and false, 2 usage, 3 malformed input, 4 not comparable,\n"
      "5 trust, 6 device, I/O or internal fault, 130 interrupted.");
  Action action;
  add_run(app, action);
  add_serve_stdin(app, action);
  add_convert(app, action);
  add_bench(app, action);
  add_receipt(app, action);
  app.set_help_all_flag("--help-all", "Help of every subcommand");
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help
    return flush_stdio(app.exit(asked));
  } catch (const CLI::ParseError& error) {
    std::string line = unknown_option(app);
    if (line.empty()) line = error.what();
    while (!line.empty() && line.back() == '\n') line.pop_back();
    // CLI11 counts what is missing: "--passes: 1 required N missing".
    constexpr std::string_view kOne = ": 1 required ", kMissing = " missing";
    const std::size_t one = line.find(kOne);
    if (one != std::string::npos && line.ends_with(kMissing)) {
      line.resize(line.size() - kMissing.size());
      line.replace(one, kOne.size(), " needs a value: ");
    }
    return fail(Exit::usage, line + "; see `" + command_name(app) + " --help`");
  }
  if (version) {
    print_version(json);
    return flush_stdio(0);
  }
  if (!action) {
    write_err(app.help());
    return static_cast<int>(Exit::usage);
  }
  if (json) return fail(Exit::usage, "--json before the subcommand goes with --version alone");
  return flush_stdio(static_cast<int>(action()));
}

}  // namespace
}  // namespace bolt

int main(int argc, char** argv) {
  using bolt::Exit;
  using bolt::fail;
  bolt::claim_standard_streams();
  // What a digest is does not hang on the machine's openssl.cnf.
  (void)OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  try {
    return bolt::parse_and_act(argc, argv);
  } catch (const bolt::ReaderGone&) {
    return bolt::end_quietly();
  } catch (const bolt::Error& error) {
    return fail(error.code, error.what());
  } catch (const bolt::receipts::Failure& failure) {
    return fail(static_cast<Exit>(failure.status), failure.what());
  } catch (const std::bad_alloc&) {
    return fail(Exit::fault, "out of memory; a smaller --context needs less");
  } catch (const std::system_error& error) {  // fmt's and the standard library's I/O
    if (error.code().value() == EPIPE) return bolt::end_quietly();
    return fail(Exit::fault, error.what());
  } catch (const std::exception& error) {
    return fail(Exit::fault, std::string("internal: ") + error.what());
  }
}
