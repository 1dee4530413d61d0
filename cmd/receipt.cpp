// `bolt receipt`: options, help and printing of its verbs. What each checks is receipts/'s, which
// also says the exit status; this file passes it on.
#include "cmd/receipt.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "cmd/action.h"
#include "cmd/options.h"
#include "cmd/replayer.h"
#include "cmd/streams.h"
#include "cmd/values.h"
#include "receipts/library.h"
#include "receipts/prune.h"
#include "receipts/replay.h"
#include "receipts/show.h"
#include "receipts/sign.h"
#include "receipts/sign_file.h"
#include "receipts/verify.h"
#include "receipts/write.h"

namespace bolt {
namespace {

using receipts::Answer;
using receipts::Failure;
using receipts::Line;
using receipts::Status;
using receipts::Tone;
using receipts::Value;

Answer combined(const std::vector<std::string>& files,
                const std::function<Answer(const std::string&)>& each, bool json) {
  if (files.size() == 1) return each(files[0]);
  Answer all;
  Value::Array list;
  for (const std::string& file : files) {
    Answer one;
    try {
      one = each(file);
    } catch (const Failure& failure) {
      one = Answer();
      one.status = failure.status;
      one.lines.push_back({receipts::inert(failure.what()), Tone::bad});
      one.json.set("error", receipts::inert(failure.what()));
      one.json.set("exit", static_cast<std::int64_t>(failure.status));
    }
    all.lines.push_back({receipts::inert(file)});
    for (Line& line : one.lines) all.lines.push_back({"  " + line.text, line.tone});
    if (json) {
      one.json.set("file", receipts::inert(file));
      list.push_back(one.json);
    }
    if (all.status == Status::holds) all.status = one.status;
  }
  all.json.set("receipts", std::move(list));
  return all;
}

// The sealed bytes themselves, so that their SHA-256 is the rid.
Exit show_body(const std::string& file, const VerbOptions& common) {
  std::string text;
  try {
    text = receipts::read_receipt(find_receipt(file, common)).text + "\n";
  } catch (const Failure& failure) {
    return answer(common, [&failure]() -> Answer { throw failure; });
  }
  write_out(text);
  return Exit::ok;
}

void add_show(CLI::App& app, Action& action, const std::shared_ptr<VerbOptions>& common) {
  struct Options {
    std::vector<std::string> files;
    bool whole = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("show", "Say what a receipt says");
  sub->add_option("FILE", options->files,
                  "Receipt, PACK#N, the start of a rid or run_id, or -; the newest if left out");
  sub->add_flag("--all", options->whole, "Every field, one a line");
  add_verb_options(*sub, *common);
  sub->footer(
      "Examples:\n"
      "  bolt receipt show                       the newest in the receipts folder\n"
      "  bolt receipt show bf9964c5 --all        every field of the one with this rid\n"
      "  bolt receipt show S.runs.jsonl#3 --json the body of a pack's third\n"
      "Exit status: 0 shown, 3 not an intact receipt, 4 no such receipt.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      if (options->files.empty()) options->files.push_back(newest_receipt(*common));
      if (common->json && options->files.size() == 1) {  // the sealed bytes themselves
        return show_body(options->files[0], *common);
      }
      return answer(*common, [&] {
        return combined(
            options->files,
            [&](const std::string& file) {
              const receipts::Receipt receipt = receipts::read_receipt(find_receipt(file, *common));
              Answer one;
              const int columns = ::isatty(STDOUT_FILENO) != 0 ? terminal_columns() : 0;
              one.lines = receipts::show(receipt, options->whole, columns);
              one.json.set("rid", receipt.rid);
              one.json.set("body", receipt.body);
              return one;
            },
            common->json);
      });
    };
  });
}

// Puts a further check's answer behind the first.
void append(Answer& to, const char* name, Answer further) {
  for (Line& line : further.lines) to.lines.push_back(std::move(line));
  to.json.set(name, std::move(further.json));
  if (to.status == Status::holds) to.status = further.status;
}

void add_verify(CLI::App& app, Action& action, const std::shared_ptr<VerbOptions>& common) {
  struct Options {
    std::vector<std::string> files, keys;
    std::string redaction_key;
    receipts::VerifyOptions verify;
    bool replay = false, score = false;
    receipts::ReplayOptions again;
    ModelOptions model;
    HowOptions how;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub =
      app.add_subcommand("verify", "Check that a receipt is intact and agrees with itself");
  sub->add_option("FILE", options->files, "Receipt, PACK, PACK#N, the start of a rid, or -")
      ->required();
  sub->add_option("--key", options->keys, "Ed25519 public key (PEM) whose signature is wanted")
      ->type_name("PEM")
      ->allow_extra_args(false);
  sub->add_flag("--require-signed", options->verify.require_signed, "Refuse what no --key signed");
  add_integer(*sub, "--threshold", options->verify.threshold, 1, 64,
              "How many different keys must have signed (1)");
  add_parsed(*sub, "--challenge", "HEX", "The nonce that the receipt must name",
             [options](const std::string& name, const std::string& text) {
               options->verify.challenge = parse_hex(name, text, 1 << 16);
             });
  sub->add_flag("--parents", options->verify.need_parents, "A parent that is not found is exit 4");
  sub->add_option("--redaction-key", options->redaction_key,
                  "Key of a keyed receipt (64 hex digits)")
      ->type_name("FILE");
  sub->add_flag("--replay", options->replay, "Run the task again and compare the tokens");
  sub->add_option("--as", options->again.as,
                  "Replay as ordinary, k1 to k31, auto, copy, mtp, dspark or dflash")
      ->type_name("MODE");
  sub->add_flag("--same-build", options->again.same_build,
                "Replay and score by the recorded build only");
  sub->add_flag("--score", options->score, "Check every attached id in one pass of the target");
  add_choice<KvKind>(*sub, "--kv", options->how.kv, {{"i16", KvKind::i16}, {"f32", KvKind::f32}},
                     "KV variant of the contract to run under (i16)");
  add_model_options(*sub, options->model);
  add_verb_options(*sub, *common);
  sub->footer(
      "A seal says: unchanged since sealing. A signature says who says so. Neither says: true.\n"
      "Examples:\n"
      "  bolt receipt verify run.bolt.jsonl\n"
      "  bolt receipt verify --key k.pub --require-signed run.bolt.jsonl\n"
      "  bolt receipt verify SESSION.runs.jsonl  a whole pack and its root\n"
      "  bolt receipt verify -m nano.bolt --replay --as ordinary run.bolt.jsonl\n"
      "  bolt receipt verify -m nano.bolt --score run.bolt.jsonl\n"
      "Exit status: 0 holds, 1 replay or score says otherwise, 3 malformed, unsealed or unbound, 4 "
      "parent missing or another\n"
      "challenge, 5 signature, key or threshold.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        receipts::VerifyOptions verify = options->verify;
        for (const std::string& key : options->keys) {
          verify.keys.push_back(receipts::read_public_key(key));
        }
        if (!options->redaction_key.empty()) {
          verify.redaction_key = receipts::read_redaction_key(options->redaction_key);
        }
        verify.folders = {receipts_folder(*common)};
        options->again.redaction_key = verify.redaction_key;
        if (!options->again.as.empty()) (void)parse_mode(options->again.as);
        const bool runs = options->replay || options->score;
        if (!runs && (!options->again.as.empty() || options->again.same_build)) {
          throw Failure(Status::usage, "--as and --same-build go with --replay or --score");
        }
        std::unique_ptr<EngineReplayer> replayer;  // opened once the first receipt is found intact
        return combined(
            options->files,
            [&](const std::string& file) {
              const std::string name = find_receipt(file, *common);
              if (!runs) return receipts::verify_file(name, verify);
              const receipts::Receipt receipt = receipts::read_receipt(name);
              Answer one = receipts::verify(receipt, verify);
              if (!replayer) {
                replayer = std::make_unique<EngineReplayer>(options->model, options->how);
              }
              if (options->replay) {
                append(one, "replay", receipts::replay(receipt, *replayer, options->again));
              }
              if (options->score) {
                append(one, "score", receipts::score(receipt, *replayer, options->again));
              }
              return one;
            },
            common->json);
      });
    };
  });
}

void add_sign(CLI::App& app, Action& action, const std::shared_ptr<VerbOptions>& common) {
  struct Options {
    std::string file, key;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("sign", "Verify a receipt and append a signature to its file");
  sub->add_option("FILE", options->file, "Receipt, or the start of a rid")->required();
  sub->add_option("--key", options->key, "Ed25519 private key (PEM, mode 0600)")
      ->type_name("PEM")
      ->required();
  add_verb_options(*sub, *common);
  sub->footer(
      "Make a key: openssl genpkey -algorithm ed25519 -out k.pem && chmod 600 k.pem\n"
      "            openssl pkey -in k.pem -pubout -out k.pub\n"
      "Exit status: 0 signed, 3 not an intact receipt, 5 the key is refused.");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        return receipts::sign_file(find_receipt(options->file, *common),
                                   receipts::read_private_key(options->key));
      });
    };
  });
}

void add_prune(CLI::App& app, Action& action, const std::shared_ptr<VerbOptions>& common) {
  struct Options {
    std::string older_than;
    bool dry_run = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("prune", "Remove old receipts from the receipts folder");
  sub->add_option("--older-than", options->older_than, "Age: 30d, 12h, 2w")
      ->type_name("AGE")
      ->required();
  sub->add_flag("--dry-run", options->dry_run, "Only say what would go");
  add_verb_options(*sub, *common);
  sub->footer("Example: bolt receipt prune --older-than 30d");
  sub->callback([options, common, &action] {
    action = [options, common] {
      return answer(*common, [&] {
        const receipts::Pruned pruned = receipts::prune(
            receipts_folder(*common), receipts::parse_age(options->older_than), options->dry_run);
        Answer result;
        Value::Array names;
        for (const std::string& name : pruned.names) {
          if (options->dry_run) result.lines.push_back({receipts::inert(name)});
          names.emplace_back(receipts::inert(name));
        }
        result.lines.push_back({fmt::format("{} {} ({:.1f} MB), {} kept",
                                            options->dry_run ? "would remove" : "removed",
                                            receipts::counted(std::ssize(pruned.names), "file"),
                                            static_cast<double>(pruned.bytes) / 1e6, pruned.kept)});
        result.json.set("removed", std::move(names));
        result.json.set("bytes", static_cast<std::int64_t>(pruned.bytes));
        result.json.set("kept", pruned.kept);
        result.json.set("dry_run", options->dry_run);
        return result;
      });
    };
  });
}

}  // namespace

Exit answer(const VerbOptions& common, const std::function<Answer()>& work) {
  Answer result;
  try {
    result = work();
  } catch (const Failure& failure) {
    if (!common.json) throw;
    result.status = failure.status;
    result.json = Value();
    result.json.set("error", receipts::inert(failure.what()));
  } catch (const Error& error) {  // of the engine, on a replay
    if (!common.json) throw;
    result.status = static_cast<Status>(error.code);
    result.json = Value();
    result.json.set("error", receipts::inert(error.what()));
  }
  if (common.json) {
    result.json.set("exit", static_cast<std::int64_t>(result.status));
    write_out(receipts::canonical(result.json) + "\n");
  } else {
    write_out(paint(common, result.lines));
  }
  return static_cast<Exit>(result.status);
}

std::string paint(const VerbOptions& common, const std::vector<Line>& lines) {
  const bool color = use_color(common.color, STDOUT_FILENO);
  std::string out;
  for (const Line& line : lines) {
    const char* start = !color                    ? ""
                        : line.tone == Tone::good ? "\033[32m"
                        : line.tone == Tone::bad  ? "\033[31m"
                        : line.tone == Tone::dim  ? "\033[2m"
                                                  : "";
    out += start + line.text + (*start != '\0' ? "\033[0m\n" : "\n");
  }
  return out;
}

void add_verb_options(CLI::App& app, VerbOptions& options) {
  app.add_flag("--json", options.json, "One JSON object on stdout");
  app.add_option("--receipts", options.folder, "Receipts folder ($BOLT_RECEIPTS)")
      ->type_name("DIR");
  add_choice<Color>(
      app, "--color", options.color,
      {{"auto", Color::automatic}, {"always", Color::always}, {"never", Color::never}},
      "Colours (auto: on a terminal, NO_COLOR unset)");
}

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 40) return size.ws_col;
  return 80;
}

std::string receipts_folder(const VerbOptions& common) {
  return common.folder.empty() ? receipts::default_folder() : common.folder;
}

std::string find_receipt(const std::string& name, const VerbOptions& common) {
  const std::string path = receipts::split_pack_name(name).first;
  struct stat info {};
  const bool is_prefix = path.size() >= 4 && path.size() <= 64 && path == name &&
                         path.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (path == "-" || !is_prefix || ::stat(path.c_str(), &info) == 0) return name;
  const std::string folder = receipts_folder(common);
  const auto found = receipts::find_by_prefix(path, {folder});
  if (found.size() == 1) return found.begin()->second;
  if (found.empty()) {
    throw Failure(Status::unmet,
                  fmt::format("{}: no file, and no receipt's rid or run_id in {}", path, folder));
  }
  constexpr std::size_t kListed = 8;
  std::string list;
  std::size_t n = 0;
  for (const auto& [rid, receipt] : found) {
    if (++n > kListed) break;
    list += fmt::format("{}{} ({})", n > 1 ? ", " : "", receipts::short_hex(rid, 16),
                        receipt.substr(receipt.rfind('/') + 1));
  }
  if (found.size() > kListed) list += fmt::format(" and {} more", found.size() - kListed);
  throw Failure(Status::unmet, fmt::format("{}: the start of {} receipts in {}: {}; give more of "
                                           "one",
                                           path, found.size(), folder, receipts::inert(list)));
}

std::string newest_receipt(const VerbOptions& common) {
  // Names begin with the time of sealing, so the last name is the newest.
  const std::string folder = receipts_folder(common);
  std::string newest;
  receipts::each_receipt(folder, [&](const receipts::Listed& listed) {
    if (receipts::is_receipt_name(listed.name)) newest = listed.name;
    return true;
  });
  if (newest.empty()) throw Failure(Status::unmet, folder + ": no receipts in it");
  return newest;
}

void add_receipt(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("receipt", "Check, compare, sign and keep sealed receipts");
  sub->require_subcommand(1);
  auto common = std::make_shared<VerbOptions>();
  add_show(*sub, action, common);
  add_verify(*sub, action, common);
  add_compare(*sub, action, common);
  add_plan(*sub, action, common);
  add_audit(*sub, action, common);
  add_sign(*sub, action, common);
  add_export(*sub, action, common);
  add_prune(*sub, action, common);
  sub->footer(
      "A seal catches accidents, a signature says who says it, only running again says it is "
      "true.\n"
      "Exit status: 0 holds, 1 checked and false, 2 usage, 3 not an intact receipt, 4 not\n"
      "comparable or nothing checked, 5 trust, 6 the check itself failed, 130 interrupted.");
}

}  // namespace bolt
