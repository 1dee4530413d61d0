// The options that subcommands share (bolt(1)): which package, how it is run, what is said where,
// and which receipt is left. One function a group, so that a subcommand hangs in only what it
// heeds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cmd/streams.h"
#include "core/engine/engine.h"
#include "receipts/facts.h"
#include "receipts/write.h"

namespace CLI {
class App;
}

namespace bolt {

// -m, --device, -t, -c: what is run and where.
struct ModelOptions {
  std::string package;  // as given; empty: find_package() looks
  struct Device {
    enum class Kind { automatic, cpu, cuda } kind = Kind::automatic;
    // Ranks that share the model: of the CPU; or these GPUs, one each, in this order.
    int n_ranks = 1;
    std::vector<int> gpus;  // of cuda: at least one
  } device;
  int n_threads = 0;
  std::int64_t context = 0;
};

// How, never what: no bit of a reply depends on these, but on --kv, a variant of the contract.
struct HowOptions {
  KvKind kv = KvKind::i16;
  int chunk_rows = 0;
  int window_rows = kWindowRowsMax;
  Isa isa = Isa::automatic;
  bool no_graphs = false;
  std::string cost_table;
  int n_slots = 1;                // sequences at once; --parallel where a command has it
  std::int64_t prefix_bytes = 0;  // --prefix-cache; < 0: as many as the engine sees fit
  double decode_share = 0.25;
};

struct SayOptions {
  bool quiet = false, verbose = false, json = false;
  Color color = Color::automatic;
};

struct ReceiptOptions {
  std::string folder;  // --receipts; empty: receipts::default_folder()
  std::string file;    // --receipt
  receipts::Attach attach;
  std::string challenge;  // hex
  // How digests are bound, --redaction-key's file still to be read (resolve_redaction).
  std::optional<receipts::Redaction::Mode> redact;
  std::string redaction_key_file;
  bool drop_info = false;
  // The planned run that this one is: a plan's receipt and the number of a cell in it.
  std::string plan_file;
  std::optional<std::int64_t> cell;
};

void add_model_options(CLI::App& app, ModelOptions& options);
void add_where_options(CLI::App& app, ModelOptions& options);  // the same without --model
void add_how_options(CLI::App& app, HowOptions& options);
void add_verbosity_options(CLI::App& app, SayOptions& options);  // -q and -v
void add_say_options(CLI::App& app, SayOptions& options);
void add_receipt_options(CLI::App& app, ReceiptOptions& options);
void add_redaction_options(CLI::App& app, ReceiptOptions& options);
void add_plan_options(CLI::App& app, ReceiptOptions& options);

// "ids", "text,logits", "none": Error(usage) naming the part that is unknown.
receipts::Attach parse_attach(std::string_view option, std::string_view text);
// "cpu:2", "cuda:0+1": ranks that share a model. A comma does for the plus, but in a list of
// devices it parts them.
ModelOptions::Device parse_device(std::string_view option, std::string_view text);
std::string device_name(const ModelOptions::Device& device);  // as parse_device takes it

// The package's folder: as given, else $BOLT_MODEL, else the sample package beside the executable,
// in
// ../share/bolt or in ~/.local/share/bolt. Error when there is none, saying how to make one.
std::string find_package(const ModelOptions& options);

// The GPU to run on, or -1 for the CPU. auto takes the first GPU this build and the driver can use.
// Error(usage) for what this build lacks, Error(fault) for a GPU that is not there.
int resolve_device(const ModelOptions& options, const HowOptions& how);

EngineOptions engine_options(const ModelOptions& model, const HowOptions& how);

// Error(usage) where one of --plan and --cell is given without the other.
void check_plan_options(const ReceiptOptions& options);

// --redact, --redaction-key and --drop-info, the key read. Error(usage) where they do not fit.
receipts::Redaction resolve_redaction(const ReceiptOptions& options);

// Where receipts go, tried now: one that cannot be written is an error before the work, not after.
receipts::Where prepare_receipts(const ReceiptOptions& options);

}  // namespace bolt
