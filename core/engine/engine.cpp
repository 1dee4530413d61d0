// Opens a package on this machine and answers requests with it.
#include "core/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "core/base/error.h"
#include "core/engine/cost_table.h"
#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/open_ranks.h"
#include "core/engine/ops_model.h"
#include "core/engine/ranked_model.h"
#include "core/engine/score.h"
#include "core/pack/graph_walk.h"
#include "core/pack/tiles.h"

namespace bolt {
namespace {

// A chunk reads all weights once: a GPU, whose arithmetic is faster, needs more rows to be worth
// it.
constexpr int kHostChunkRows = 512, kDeviceChunkRows = 2048;
constexpr int kPagesPerPrefix = 4;  // a chunk's, of 512 rows
constexpr int kPrefixesMax = 4096;
constexpr int kChunkRowsMax = 8192;  // larger chunks are run as several: buffers have to end

// What a sequence takes of a rank's memory, and what is free there.
struct Memory {
  std::uint64_t position_bytes = 0;  // keys and values of one position
  std::uint64_t state_bytes = 0;
  std::uint64_t free_bytes = 0;  // 0: unknown
};

// What a kept prefix takes: its state and a few pages of its own.
std::uint64_t bytes_of_prefix(const Memory& memory) {
  return memory.state_bytes + kPagesPerPrefix * kPageKeys * memory.position_bytes;
}

int resolve_prefixes(const Memory& memory, const EngineOptions& options) {
  const std::uint64_t each = bytes_of_prefix(memory);
  if (options.prefix_bytes == 0 || each == 0) return 0;
  if (options.prefix_bytes < 0) {
    const std::uint64_t free_bytes = memory.free_bytes;
    const auto wanted = static_cast<std::uint64_t>(8 * options.n_slots);
    return static_cast<int>(free_bytes == 0 ? wanted : std::min(wanted, free_bytes / 8 / each));
  }
  const std::uint64_t n = static_cast<std::uint64_t>(options.prefix_bytes) / each;
  if (n == 0) {
    throw Error(Exit::usage, "--prefix-cache: " + std::to_string(options.prefix_bytes) +
                                 " bytes hold no prefix; one needs " + std::to_string(each));
  }
  return static_cast<int>(std::min<std::uint64_t>(n, kPrefixesMax));
}

// prefix_bytes: of the free memory, what is spoken for.
std::int64_t resolve_context(const Memory& memory, const Package& package,
                             const EngineOptions& options, std::uint64_t prefix_bytes) {
  const std::int64_t limit = package.config().context_limit;
  if (options.context > limit) {
    throw Error(Exit::usage, "--context: " + std::to_string(options.context) +
                                 " is more than the model's limit of " + std::to_string(limit));
  }
  const std::uint64_t per_position = memory.position_bytes;
  const std::uint64_t free_bytes = memory.free_bytes;
  const std::uint64_t available = free_bytes - std::min(free_bytes, prefix_bytes);
  if (per_position == 0 || available == 0) return options.context > 0 ? options.context : limit;
  if (options.context > 0) {
    const auto most = static_cast<std::int64_t>(available / per_position);
    if (options.context > most) {
      throw Error(Exit::usage, "--context: keys and values of " + std::to_string(options.context) +
                                   " ids do not fit the free memory; at most " +
                                   std::to_string(most) + " would");
    }
    return options.context;
  }
  const auto fits = static_cast<std::int64_t>(available / 2 / per_position);
  return std::max<std::int64_t>(1, std::min(limit, fits / kPageKeys * kPageKeys));
}

// Pages for all sequences: a whole context for each, or what fits half of the free memory if that
// is less, but never less than one sequence needs.
int resolve_pages(const Memory& memory, const EngineOptions& options, std::int64_t context,
                  std::uint64_t prefix_bytes) {
  const std::int64_t each = pages_of_sequence(context), wanted = each * options.n_slots;
  const std::uint64_t page = kPageKeys * memory.position_bytes;
  const std::uint64_t free_bytes = memory.free_bytes;
  if (page == 0 || free_bytes == 0) return static_cast<int>(wanted);
  const std::uint64_t available = free_bytes - std::min(free_bytes, prefix_bytes);
  const auto fits = static_cast<std::int64_t>(available / 2 / page);
  return static_cast<int>(std::max(each, std::min(wanted, fits)));
}

// Each of the CPU's ranks has at least one thread.
int resolve_threads(const EngineOptions& options) {
  const int n = options.n_threads > 0 ? options.n_threads : usable_cores();
  return options.rank_devices.empty() ? std::max(n, options.n_ranks) : n;
}

Backend open_backend(const Package& package, const EngineOptions& options, int n_threads) {
  if (options.device >= 0) {
    Backend gpu = open_cuda(package.graph(), options.device, options.graphs);
    gpu.ordinal = options.device;
    return gpu;
  }
  return open_host(package.graph(), n_threads, options.isa);
}

std::uint64_t bytes_of_weights(const Graph& graph) {
  std::set<const std::byte*> seen;  // a tied one counts once
  std::uint64_t bytes = 0;
  each_weight(graph, [&](const std::string&, const Weight& w) {
    if (!seen.insert(w.data).second) return;
    bytes += w.layout == Layout::tiles ? static_cast<std::uint64_t>(w.n_matrices) *
                                             packed_matrix_bytes(w.format, w.n_rows, w.n_cols)
                                       : w.bytes;
  });
  return bytes;
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
        n_threads_(resolve_threads(options)),
        ranks_(options.n_ranks > 1 ? open_ranks(package.graph(), options, n_threads_) : nullptr),
        backend_(ranks_ ? Backend{} : open_backend(package, options, n_threads_)),
        memory_(look_at_memory()),
        n_prefixes_(resolve_prefixes(memory_, options)),
        context_(resolve_context(memory_, package, options, prefix_bytes())),
        owned_model_(make_model()),
        model_(*owned_model_),
        rounds_(model_, options.decode_share) {
    // A table that was named is read (or made) before anything runs: a bad one must not end a
    // reply.
    if (!options.cost_table.empty()) costs();
  }

  std::unique_ptr<Sequence> new_sequence() override {
    return std::make_unique<OpsSequence>(model_);
  }

  std::unique_ptr<Generation> start(Sequence& sequence, const Request& request, TokenSink sink,
                                    const std::atomic<bool>* interrupt) override {
    const int slot = ready_slot(sequence, request, positions_of(request));
    auto drafter = make_drafter(request, model_, [this]() -> const CostTable& { return costs(); });
    if (model_.ids(slot).empty()) {
      model_.resume_prefix(slot, request.prompt_ids, drafter && drafter->uses_head(),
                           drafter ? drafter->uses_blocks() : BlockSet{});
    }
    return std::make_unique<Stream>(model_, slot, request, std::move(sink), std::move(drafter),
                                    context_, model_.max_window_rows() - 1, interrupt, &costs_ns_);
  }

  bool has_room(const Request& request) const override {
    // A prompt that no context holds is start()'s to refuse, at once.
    return static_cast<std::int64_t>(request.prompt_ids.size()) >= context_ ||
           model_.has_room(positions_of(request));
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
    const int slot = ready_slot(sequence, request, context_);
    for (const int id : claimed) check_id("claimed reply", id);
    if (static_cast<std::int64_t>(request.prompt_ids.size() + claimed.size()) > context_) {
      throw Error(Exit::usage, "claimed reply: its " + std::to_string(claimed.size()) +
                                   " ids do not fit behind the prompt in a context of " +
                                   std::to_string(context_) + "; raise --context");
    }
    return score_reply(model_, slot, request, claimed, sink, interrupt);
  }

  std::int64_t context() const override { return context_; }
  void set_profile(Profile* profile) override { model_.set_profile(profile); }
  int n_threads() const override { return n_threads_; }
  const Backend& backend() const override { return ranks_ ? ranks_->backend(0) : backend_; }
  int n_ranks() const override { return options_.n_ranks; }
  std::string exchange_name() const override { return ranks_ ? ranks_->exchange_name() : ""; }
  std::vector<std::uint64_t> weight_bytes() const override {
    std::vector<std::uint64_t> bytes;
    for (int r = 0; r < n_ranks(); ++r) {
      bytes.push_back(bytes_of_weights(ranks_ ? ranks_->part(r) : backend_.graph));
    }
    return bytes;
  }
  const std::string& cost_digest() const override { return cost_digest_; }
  bool costs_measured() const override { return costs_measured_; }

 private:
  // All ranks are as the first is; what is free on the fullest counts.
  Memory look_at_memory() const {
    Memory memory;
    const auto look = [&](const Backend& b) {
      memory.position_bytes = kv_bytes_per_position(*b.ops, b.graph, options_.kv);
      memory.state_bytes = bolt::state_bytes(b.graph);
      memory.free_bytes = b.ops->free_bytes();
    };
    if (!ranks_) {
      look(backend_);
      return memory;
    }
    ranks_->each([&](int rank) {
      if (rank == 0) look(ranks_->backend(0));
    });
    memory.free_bytes = free_bytes_of(*ranks_, options_);
    return memory;
  }
  std::unique_ptr<Model> make_model() const {
    if (ranks_) return std::make_unique<RankedModel>(*ranks_, sizes());
    return std::make_unique<OpsModel>(*backend_.ops, backend_.graph, sizes());
  }
  std::uint64_t prefix_bytes() const {
    return static_cast<std::uint64_t>(n_prefixes_) * bytes_of_prefix(memory_);
  }
  // The most ids that the sequence of a request can come to.
  std::int64_t positions_of(const Request& request) const {
    const auto n_prompt = static_cast<std::int64_t>(request.prompt_ids.size());
    if (request.max_new < 0 || request.max_new > context_ - n_prompt) return context_;
    return n_prompt + request.max_new;
  }
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
    sizes.n_pages = resolve_pages(memory_, options_, context_, prefix_bytes());
    sizes.n_prefixes = n_prefixes_;
    sizes.n_prefix_pages = kPagesPerPrefix * sizes.n_prefixes;
    return sizes;
  }

  void check_id(const char* of, int id) const {
    if (id >= 0 && id < model_.vocab_size()) return;
    throw Error(Exit::usage, std::string(of) + ": id " + std::to_string(id) + " is outside [0, " +
                                 std::to_string(model_.vocab_size()) + ")");
  }

  // The sequence's slot, holding a proper prefix of the request's prompt, with memory set aside.
  int ready_slot(Sequence& sequence, const Request& request, std::int64_t n_positions) {
    check(request);
    const int slot = static_cast<OpsSequence&>(sequence).slot();
    const std::vector<int>& held = model_.ids(slot);
    const std::vector<int>& prompt = request.prompt_ids;
    // The last prompt id must be run, for its logits.
    const bool extends =
        held.size() < prompt.size() && std::equal(held.begin(), held.end(), prompt.begin());
    if (!extends || model_.is_broken(slot)) model_.reset_slot(slot);
    if (!model_.reserve(slot, n_positions)) {
      throw Error(Exit::fault,
                  "key-value pages: other sequences hold them; ask for fewer sequences");
    }
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
    std::string key = options_.build_id + " " + backend().name + " " + backend().arch +
                      " threads " + std::to_string(n_threads()) +
                      (options_.kv == KvKind::f32 ? " f32" : " i16");
    if (ranks_) key += " ranks " + std::to_string(n_ranks());
    for (const PackageFile& file : package_.files()) {
      if (file.role == "graph" || file.role == "config" || file.role == "drafter")
        key += " " + file.sha256;
    }
    return key;
  }
  const Package& package_;
  const EngineOptions options_;
  const int n_threads_;
  const std::unique_ptr<Ranks> ranks_;  // null: one rank, backend_'s
  const Backend backend_;
  const Memory memory_;
  const int n_prefixes_;
  const std::int64_t context_;
  const std::unique_ptr<Model> owned_model_;
  Model& model_;
  Rounds rounds_;
  std::vector<Stream*> streams_;  // of the round at hand
  std::optional<CostTable> costs_;
  std::string cost_digest_;
  bool costs_measured_ = false;
  std::int64_t costs_ns_ = 0;  // spent in costs()
};

}  // namespace

std::unique_ptr<Engine> Engine::open(const Package& package, const EngineOptions& options) {
  require(options.chunk_rows >= 0 && options.window_rows >= 1 &&
              options.window_rows <= kWindowRowsMax && options.n_slots >= 1 &&
              options.context >= 0 && options.n_ranks >= 1,
          "engine options are in range");
  return std::make_unique<OpsEngine>(package, options);
}

}  // namespace bolt
