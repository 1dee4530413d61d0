// The shared options: their names, ranges and help, and what they resolve to.
#include "cmd/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

#include "cmd/values.h"
#include "core/base/file_map.h"
#include "core/engine/backend.h"
#include "core/pack/rank_graph.h"
#include "receipts/sign_file.h"

namespace bolt {
namespace {

constexpr std::int64_t kContextMax = std::int64_t{1} << 31;  // ids; far above any model's
constexpr int kThreadsMax = 1024;
constexpr int kChunkRowsMax = 1 << 16;
constexpr std::size_t kChallengeBytesMax = 256;

std::string executable_folder() {
  char path[4096];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string full(path, n > 0 ? static_cast<std::size_t>(n) : 0);
  return full.substr(0, full.rfind('/'));
}

}  // namespace

receipts::Attach parse_attach(std::string_view option, std::string_view text) {
  receipts::Attach attach{.ids = false};
  bool none = false;
  const Names<bool*> parts = {{"ids", &attach.ids},
                              {"text", &attach.text},
                              {"logits", &attach.logits},
                              {"state", &attach.state},
                              {"none", &none}};
  for (const std::string& part : split_list(text)) *parse_name(option, part, parts) = true;
  if (none && text != "none") {
    throw Error(Exit::usage, fmt::format("{}: none stands alone, not with others", option));
  }
  return attach;
}

ModelOptions::Device parse_device(std::string_view option, std::string_view text) {
  using Kind = ModelOptions::Device::Kind;
  if (text == "auto") return {};
  if (text == "cpu") return {Kind::cpu, 1, {}};
  if (text == "cuda") return {Kind::cuda, 1, {0}};
  constexpr std::string_view kCpu = "cpu:", kCuda = "cuda:";
  if (text.starts_with(kCpu)) {
    return {Kind::cpu,
            static_cast<int>(parse_integer(option, text.substr(kCpu.size()), 1, kRanksMax)),
            {}};
  }
  if (text.starts_with(kCuda)) {
    std::string list(text.substr(kCuda.size()));
    std::replace(list.begin(), list.end(), '+', ',');
    ModelOptions::Device device{Kind::cuda, 0, {}};
    for (const std::string& part : split_list(list)) {
      device.gpus.push_back(static_cast<int>(parse_integer(option, part, 0, 1023)));
    }
    device.n_ranks = static_cast<int>(device.gpus.size());
    if (device.n_ranks > kRanksMax) {
      throw Error(Exit::usage, fmt::format("{}: {} GPUs, at most {} share a model", option,
                                           device.n_ranks, kRanksMax));
    }
    return device;
  }
  throw_unknown_name(option, text, "auto, cpu, cpu:RANKS, cuda, cuda:N, cuda:N+N+...");
}

std::string device_name(const ModelOptions::Device& device) {
  using Kind = ModelOptions::Device::Kind;
  if (device.kind == Kind::automatic) return "auto";
  if (device.kind == Kind::cpu) {
    return device.n_ranks > 1 ? fmt::format("cpu:{}", device.n_ranks) : "cpu";
  }
  return fmt::format("cuda:{}", fmt::join(device.gpus, "+"));
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  add_text(app, "-m,--model", options.package, "PACKAGE",
           "Package folder ($BOLT_MODEL, else the sample model)")
      ->group("Model");
  add_where_options(app, options);
}

void add_where_options(CLI::App& app, ModelOptions& options) {
  add_parsed(app, "--device", "auto|cpu[:RANKS]|cuda[:N[,N...]]",
             "Where to run (auto); several GPUs, or parts of the CPU, share the model",
             [&options](const std::string& name, const std::string& text) {
               options.device = parse_device(name, text);
             })
      ->group("Model");
  add_integer(app, "-t,--threads", options.n_threads, 1, kThreadsMax,
              "Threads (all cores this process may use)")
      ->group("Model");
  add_integer(app, "-c,--context", options.context, 1, kContextMax,
              "Most tokens of prompt and reply (the model's limit, or what fits in memory)")
      ->group("Model");
}

void add_how_options(CLI::App& app, HowOptions& options) {
  const std::string group = "How it is computed (no bit of the reply changes, but by --kv)";
  add_choice<KvKind>(app, "--kv", options.kv, {{"i16", KvKind::i16}, {"f32", KvKind::f32}},
                     "Attention cache (i16); f32 is the slow reference, another contract variant")
      ->group(group);
  add_integer(app, "--chunk", options.chunk_rows, 1, kChunkRowsMax,
              "Prompt rows a pass (512; 2048 on a GPU)")
      ->group(group);
  add_integer(app, "--window", options.window_rows, 1, kWindowRowsMax,
              "Most rows of a decoding pass (32)")
      ->group(group);
  add_choice<Isa>(app, "--isa", options.isa,
                  {{"auto", Isa::automatic},
                   {"scalar", Isa::scalar},
                   {"avx2", Isa::avx2},
                   {"avx512", Isa::avx512}},
                  "Host instruction set (auto)")
      ->group(group);
  if (built_with_cuda()) {
    app.add_flag("--no-graphs", options.no_graphs, "GPU: launch every kernel by itself")
        ->group(group);
  }
  add_text(app, "--cost-table", options.cost_table, "FILE",
           "Pass costs for the depth rule: read if it is there, else measured and written\n"
           "(one a build, device and package, in ~/.cache/bolt)")
      ->group(group);
}

void add_verbosity_options(CLI::App& app, SayOptions& options) {
  const std::string group = "Output";
  const auto check = [&options] {
    if (options.quiet && options.verbose) {
      throw Error(Exit::usage, "--quiet and --verbose: give one of them");
    }
  };
  app.add_flag_callback(
         "-q,--quiet", [&options, check] { options.quiet = true, check(); },
         "Nothing on stderr but errors")
      ->group(group);
  app.add_flag_callback(
         "-v,--verbose", [&options, check] { options.verbose = true, check(); },
         "Counters, sampler and load times on stderr")
      ->group(group);
}

void add_say_options(CLI::App& app, SayOptions& options) {
  const std::string group = "Output";
  app.add_flag("--json", options.json, "Answer as one JSON object")->group(group);
  add_verbosity_options(app, options);
  add_choice<Color>(
      app, "--color", options.color,
      {{"auto", Color::automatic}, {"always", Color::always}, {"never", Color::never}},
      "Colours and dimmed thinking (auto: on a terminal, NO_COLOR unset)")
      ->group(group);
}

void add_receipt_options(CLI::App& app, ReceiptOptions& options) {
  const std::string group = "Receipt";
  add_text(app, "--receipts", options.folder, "DIR",
           "Folder for receipts ($BOLT_RECEIPTS, else ~/.local/state/bolt/receipts)")
      ->group(group);
  add_text(app, "--receipt", options.file, "FILE", "This receipt's file, which must be new")
      ->group(group);
  add_parsed(app, "--attach", "PARTS",
             "What stands beside the seal, of ids,text,logits,state, or none (ids)",
             [&options](const std::string& name, const std::string& text) {
               options.attach = parse_attach(name, text);
             })
      ->group(group);
  add_parsed(app, "--challenge", "HEX", "An auditor's nonce, sealed into the receipt",
             [&options](const std::string& name, const std::string& text) {
               options.challenge = parse_hex(name, text, kChallengeBytesMax);
             })
      ->group(group);
}

void add_redaction_options(CLI::App& app, ReceiptOptions& options) {
  const std::string group = "Receipt";
  using Mode = receipts::Redaction::Mode;
  const Names<Mode> modes = {
      {"plain", Mode::plain}, {"keyed", Mode::keyed}, {"salted", Mode::salted}};
  add_parsed(app, "--redact", joined_names(modes, "|"),
             "Who can check the digests of prompt and reply: anyone, holders of a key, or whoever\n"
             "gets the salt (plain; keyed with --redaction-key)",
             [&options, modes](const std::string& name, const std::string& text) {
               options.redact = parse_name(name, text, modes);
             })
      ->group(group);
  add_text(app, "--redaction-key", options.redaction_key_file, "FILE",
           "Key of --redact keyed: 64 hex digits in a file of mode 0600")
      ->group(group);
  app.add_flag("--drop-info", options.drop_info,
               "Seal no times, counters, environment or device names")
      ->group(group);
}

void add_plan_options(CLI::App& app, ReceiptOptions& options) {
  const std::string group = "Receipt";
  add_text(app, "--plan", options.plan_file, "FILE",
           "The plan that lists this run, as `bolt receipt plan` sealed it")
      ->group(group);
  add_integer(app, "--cell", options.cell, 0, std::numeric_limits<std::int64_t>::max(),
              "Number of the planned cell that this run is")
      ->type_name("I")
      ->group(group);
}

std::string find_package(const ModelOptions& options) {
  const char* variable = std::getenv("BOLT_MODEL");
  const bool from_variable = options.package.empty() && variable != nullptr && *variable != '\0';
  const std::string given = from_variable ? variable : options.package;
  if (!given.empty()) {
    if (!path_exists(given)) {
      throw Error(Exit::input, fmt::format("{}{}: no such package; make one with `bolt convert "
                                           "CHECKPOINT {}`",
                                           from_variable ? "BOLT_MODEL: " : "", given, given));
    }
    return given;
  }
  const std::string folder = executable_folder();
  std::vector<std::string> places = {folder + "/sample.bolt",
                                     folder + "/../share/bolt/sample.bolt"};
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    places.push_back(std::string(home) + "/.local/share/bolt/sample.bolt");
  }
  for (const std::string& place : places) {
    if (path_exists(place + "/package.json")) return place;
  }
  throw Error(
      Exit::usage,
      "no package: give one with -m PACKAGE or $BOLT_MODEL, or make one with "
      "`bolt convert CHECKPOINT NAME.bolt`; no sample.bolt is installed beside this program");
}

int resolve_device(const ModelOptions& options, const HowOptions& how) {
  using Kind = ModelOptions::Device::Kind;
  const bool wants_gpu = options.device.kind == Kind::cuda;
  if (options.device.kind == Kind::cpu) return -1;
  if (!built_with_cuda()) {
    if (!wants_gpu) return -1;
    throw Error(
        Exit::usage,
        "--device cuda: this build runs on the CPU alone; build with -DBOLT_CUDA=ON, or use "
        "--device cpu");
  }
  if (how.kv == KvKind::f32) {
    if (!wants_gpu) return -1;
    throw Error(Exit::usage, "--kv f32: the reference runs on the CPU alone; use --device cpu");
  }
  std::string why;
  const auto n_devices = static_cast<int>(cuda_devices(&why).size());
  if (!wants_gpu) return n_devices > 0 ? 0 : -1;
  for (const int gpu : options.device.gpus) {
    if (gpu < n_devices) continue;
    throw Error(
        Exit::fault,
        fmt::format("--device cuda:{}: {}", gpu,
                    n_devices > 0 ? fmt::format("GPUs here are cuda:0 to cuda:{}", n_devices - 1)
                    : why.empty() ? "there is no GPU; use --device cpu"
                                  : why + "; use --device cpu"));
  }
  return options.device.gpus[0];
}

EngineOptions engine_options(const ModelOptions& model, const HowOptions& how) {
  EngineOptions options;
  options.device = resolve_device(model, how);
  options.n_ranks = model.device.n_ranks;
  if (options.n_ranks > 1) options.rank_devices = model.device.gpus;
  options.graphs = !how.no_graphs;
  options.n_threads = model.n_threads;
  options.isa = how.isa;
  options.kv = how.kv;
  options.chunk_rows = how.chunk_rows;
  options.window_rows = how.window_rows;
  options.context = model.context;
  options.cost_table = how.cost_table;
  options.n_slots = how.n_slots;
  options.prefix_bytes = how.prefix_bytes;
  options.decode_share = how.decode_share;
  return options;
}

void check_plan_options(const ReceiptOptions& options) {
  if (options.plan_file.empty() == options.cell.has_value()) {
    throw Error(Exit::usage, "--plan and --cell: give both or neither");
  }
}

receipts::Redaction resolve_redaction(const ReceiptOptions& options) {
  using Mode = receipts::Redaction::Mode;
  const bool has_key = !options.redaction_key_file.empty();
  receipts::Redaction redaction;
  redaction.mode = options.redact.value_or(has_key ? Mode::keyed : Mode::plain);
  redaction.drop_info = options.drop_info;
  if (has_key != (redaction.mode == Mode::keyed)) {
    throw Error(Exit::usage,
                has_key ? "--redaction-key goes with --redact keyed, not with plain or salted"
                        : "--redact keyed needs --redaction-key FILE; make one with `openssl rand "
                          "-hex 32 > FILE; chmod 600 FILE`");
  }
  if (has_key) redaction.key = receipts::read_redaction_key(options.redaction_key_file);
  return redaction;
}

receipts::Where prepare_receipts(const ReceiptOptions& options) {
  receipts::Where where;
  where.file = options.file;
  where.folder = options.folder.empty() ? receipts::default_folder() : options.folder;
  receipts::check_where(where);
  return where;
}

}  // namespace bolt
