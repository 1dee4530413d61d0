// Opens a package on this machine and answers requests with it.
#include "core/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include "core/base/error.h"
#include "core/engine/cost_table.h"
#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/score.h"
#include "core/ops/host.h"
#include "core/pack/graph_walk.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

// A chunk reads all weights once: a GPU, whose arithmetic is faster, needs more rows to be worth
// it.
constexpr int kHostChunkRows = 512, kDeviceChunkRows = 2048;
constexpr int kChunkRowsMax = 8192;  // larger chunks are run as several: buffers have to end

std::int64_t resolve_context(Ops& ops, const Package& package, const EngineOptions& options) {
  const std::int64_t limit = package.config().context_limit;
  if (options.context > limit) {
    throw Error(Exit::usage, "--context: " + std::to_string(options.context) +
                                 " is more than the model's limit of " + std::to_string(limit));
  }
  const std::uint64_t per_position = kv_bytes_per_position(ops, package.graph(), options.kv);
  const std::uint64_t available = ops.free_bytes();
  if (per_position == 0 || available == 0) return options.context > 0 ? options.context : limit;
  const std::uint64_t each = per_position * static_cast<std::uint64_t>(options.n_slots);
  if (options.context > 0) {
    const auto most = static_cast<std::int64_t>(available / each);
    if (options.context > most) {
      throw Error(Exit::usage, "--context: keys and values of " + std::to_string(options.context) +
                                   " ids do not fit the free memory; at most " +
                                   std::to_string(most) + " would");
    }
    return options.context;
  }
  const auto fits = static_cast<std::int64_t>(available / 2 / each);
  return std::max<std::int64_t>(1, std::min(limit, fits / kPageKeys * kPageKeys));
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "cpu";
}

// The GPU's kernels read f32, bf16, f16, q8 and nvfp4, and a plain embedding.
void refuse_host_only_formats(const Package& package) {
  each_weight(package.graph(), [&](const std::string& name, const Weight& w) {
    const bool known = w.format <= Format::nvfp4;
    if (known && (name != "embedding" || w.layout == Layout::plain)) return;
    throw Error(Exit::usage,
                package.path() + ": weight " + name + " is " + format_name(w.format) +
                    ", which runs on the CPU only so far; give --device cpu, or convert the "
                    "original bf16 checkpoint with --quant q8 or nvfp4");
  });
}

Backend open_backend(const Package& package, const EngineOptions& options, int n_threads) {
  if (options.device >= 0) refuse_host_only_formats(package);
  if (options.device >= 0) return open_cuda(package.graph(), options.device, options.graphs);
  const Isa isa = resolve_isa(options.isa);
  return {std::make_unique<HostOps>(n_threads, isa), package.graph(), processor_name(),
          isa_name(isa), 0};
}

class OpsSequence final : public Sequence {
 public:
  explicit OpsSequence(Model& model) : model_(model), slot_(model.open_slot()) {}
  ~OpsSequence() override { model_.close_slot(slot_); }
  const std::vector<int>& ids() const override { return model_.ids(slot_); }
  void reset() override { model_.reset_slot(slot_); }
  std::string state_digest() const override { return model_.state_digest(slot_); }
  int slot() const { return slot_; }

 private:
  Model& model_;
  const int slot_;
};

class OpsEngine final : public Engine {
 public:
  OpsEngine(const Package& package, const EngineOptions& options)
      : package_(package),
        options_(options),
        n_threads_(options.n_threads > 0 ? options.n_threads : usable_cores()),
        backend_(open_backend(package, options, n_threads_)),
        context_(resolve_context(*backend_.ops, package, options)),
        model_(*backend_.ops, backend_.graph, sizes()) {
    // A table that was named is read (or made) before anything runs: a bad one must not end a
    // reply.
    if (!options.cost_table.empty()) costs();
  }

  std::unique_ptr<Sequence> new_sequence() override {
    return std::make_unique<OpsSequence>(model_);
  }

  std::unique_ptr<Generation> start(Sequence& sequence, const Request& request, TokenSink sink,
                                    const std::atomic<bool>* interrupt) override {
    const int slot = ready_slot(sequence, request);
    return std::make_unique<Stream>(
        model_, slot, request, std::move(sink),
        make_drafter(request, model_, [this]() -> const CostTable& { return costs(); }), context_,
        model_.max_window_rows() - 1, interrupt, &costs_ns_);
  }

  void round(std::span<Generation* const> generations) override {
    streams_.clear();
    for (Generation* generation : generations) streams_.push_back(static_cast<Stream*>(generation));
    rounds_.run(streams_);
  }

  Reply generate(Sequence& sequence, const Request& request, const TokenSink& sink,
                 const std::atomic<bool>* interrupt) override {
    const auto generation = start(sequence, request, sink, interrupt);
    Generation* const only = generation.get();
    while (!only->is_finished()) round({&only, 1});
    return only->reply();
  }

  Scoring score(Sequence& sequence, const Request& request, std::span<const int> claimed,
                const TokenSink& sink, const std::atomic<bool>* interrupt) override {
    const int slot = ready_slot(sequence, request);
    for (const int id : claimed) check_id("claimed reply", id);
    if (static_cast<std::int64_t>(request.prompt_ids.size() + claimed.size()) > context_) {
      throw Error(Exit::usage, "claimed reply: its " + std::to_string(claimed.size()) +
                                   " ids do not fit behind the prompt in a context of " +
                                   std::to_string(context_) + "; raise --context");
    }
    return score_reply(model_, slot, request, claimed, sink, interrupt);
  }

  std::int64_t context() const override { return context_; }
  int n_threads() const override { return n_threads_; }
  const Backend& backend() const override { return backend_; }
  const std::string& cost_digest() const override { return cost_digest_; }
  bool costs_measured() const override { return costs_measured_; }

 private:
  ModelSizes sizes() const {
    ModelSizes sizes;
    sizes.kv = options_.kv;
    sizes.n_slots = options_.n_slots;
    sizes.context = context_;
    const int usual = options_.device >= 0 ? kDeviceChunkRows : kHostChunkRows;
    const int chunk_rows = options_.chunk_rows > 0 ? options_.chunk_rows : usual;
    sizes.chunk_rows = static_cast<int>(
        std::min({std::int64_t{chunk_rows}, context_, std::int64_t{kChunkRowsMax}}));
    sizes.window_rows = options_.window_rows;
    sizes.n_vocab = package_.config().n_tokens;
    return sizes;
  }

  void check_id(const char* of, int id) const {
    if (id >= 0 && id < model_.vocab_size()) return;
    throw Error(Exit::usage, std::string(of) + ": id " + std::to_string(id) + " is outside [0, " +
                                 std::to_string(model_.vocab_size()) + ")");
  }

  // The sequence's slot, holding a proper prefix of the request's prompt.
  int ready_slot(Sequence& sequence, const Request& request) {
    check(request);
    const int slot = static_cast<OpsSequence&>(sequence).slot();
    const std::vector<int>& held = model_.ids(slot);
    const std::vector<int>& prompt = request.prompt_ids;
    // The last prompt id must be run, for its logits.
    const bool extends =
        held.size() < prompt.size() && std::equal(held.begin(), held.end(), prompt.begin());
    if (!extends || model_.is_broken(slot)) model_.reset_slot(slot);
    return slot;
  }

  void check(const Request& request) const {
    const auto n_prompt = static_cast<std::int64_t>(request.prompt_ids.size());
    if (n_prompt == 0) throw Error(Exit::usage, "prompt: it is empty, expected at least one id");
    for (const int id : request.prompt_ids) check_id("prompt", id);
    if (n_prompt >= context_) {
      throw Error(Exit::usage, "prompt: its " + std::to_string(n_prompt) +
                                   " ids leave no room for a reply in a context of " +
                                   std::to_string(context_) + "; shorten it or raise --context");
    }
  }

  // Measuring happens in the middle of a first reply; its time is no reply's.
  const CostTable& costs() {
    if (!costs_) {
      const auto start = std::chrono::steady_clock::now();
      costs_ = load_costs(model_, options_.cost_table, cost_key(), &costs_measured_);
      cost_digest_ = costs_->digest();
      costs_ns_ += (std::chrono::steady_clock::now() - start).count();
    }
    return *costs_;
  }
  // Everything that costs depend on, but the clock.
  std::string cost_key() const {
    if (options_.build_id.empty()) return {};
    std::string key = options_.build_id + " " + backend_.name + " " + backend_.arch + " threads " +
                      std::to_string(n_threads()) + (options_.kv == KvKind::f32 ? " f32" : " i16");
    for (const PackageFile& file : package_.files()) {
      if (file.role == "graph" || file.role == "config") key += " " + file.sha256;
    }
    return key;
  }
  const Package& package_;
  const EngineOptions options_;
  const int n_threads_;
  const Backend backend_;
  const std::int64_t context_;
  OpsModel model_;
  Rounds rounds_{model_};
  std::vector<Stream*> streams_;  // of the round at hand
  std::optional<CostTable> costs_;
  std::string cost_digest_;
  bool costs_measured_ = false;
  std::int64_t costs_ns_ = 0;  // spent in costs()
};

}  // namespace

std::unique_ptr<Engine> Engine::open(const Package& package, const EngineOptions& options) {
  require(options.chunk_rows >= 0 && options.window_rows >= 1 &&
              options.window_rows <= kWindowRowsMax && options.n_slots >= 1 && options.context >= 0,
          "engine options are in range");
  return std::make_unique<OpsEngine>(package, options);
}

}  // namespace bolt
