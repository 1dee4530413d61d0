// Ranks: whatever number of them shares a model, the reply, its logits and its state are one
// rank's; mistakes in what they hold or exchange show; and what becomes of a rank that fails.
// With BOLT_TEST_DEVICE the ranks are that GPU's, one card for all, or those that BOLT_TEST_RANKS
// lists ("0,1"); the CPU alone is what they must equal.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>

#include "core/base/error.h"
#include "core/base/testing/caught.h"
#include "core/engine/open_ranks.h"
#include "core/engine/ranked_model.h"
#include "core/engine/testing/sample.h"
#include "core/ops/host.h"
#include "core/pack/convert.h"
#include "core/pack/testing/tiny_checkpoint.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::answer;
using testing::drafted_package;
using testing::sample_package;
using Source = DraftOptions::Source;

// GPUs that ranks of a test run on; empty: the CPU.
std::vector<int> test_devices(int n_ranks) {
  if (testing::test_device() < 0) return {};
  std::vector<int> devices;
  if (const char* const list = std::getenv("BOLT_TEST_RANKS")) {
    std::istringstream text(list);
    for (std::string part; std::getline(text, part, ',');) devices.push_back(std::stoi(part));
  } else {
    devices.push_back(testing::test_device());
  }
  for (std::size_t i = 0; devices.size() < static_cast<std::size_t>(n_ranks); ++i) {
    devices.push_back(devices[i]);
  }
  devices.resize(static_cast<std::size_t>(n_ranks));
  return devices;
}

EngineOptions options_of(int n_ranks) {
  EngineOptions options;
  options.n_threads = 2;
  options.context = 512;
  options.n_ranks = n_ranks;
  if (n_ranks == 1) return options;
  options.rank_devices = test_devices(n_ranks);
  if (!options.rank_devices.empty()) options.device = options.rank_devices[0];
  return options;
}

Request request_of(std::vector<int> prompt, std::int64_t max_new, float temperature,
                   DraftOptions draft = {Source::off, -1}) {
  Request request;
  request.prompt_ids = std::move(prompt);
  request.max_new = max_new;
  request.sampling.temperature = temperature;
  request.sampling.seed = 5;
  request.draft = draft;
  return request;
}

struct Said {
  Answer answer;
  std::string state;
  bool operator==(const Said&) const = default;
};
Said say(Engine& engine, const Request& request) {
  const auto sequence = engine.new_sequence();
  const Answer a = answer(engine, *sequence, request);
  return {a, sequence->state_digest()};
}

}  // namespace

TEST_CASE("ranks: the sample model's replies, logits and state, drafted or not") {
  const std::vector<std::vector<int>> prompts = testing::read_real30(sample_package());
  for (const std::optional<Format> quant :
       {std::optional<Format>{}, std::optional{Format::q8}, std::optional{Format::nvfp4}}) {
    const Package& package = sample_package(quant);
    const auto one = Engine::open(package, options_of(1));
    for (const int n_ranks : {2, 4}) {
      EngineOptions options = options_of(n_ranks);
      const auto ranks = Engine::open(package, options);
      options.chunk_rows = 7, options.window_rows = 5;
      const auto narrow = Engine::open(package, options);
      for (const std::size_t i : {0, 5, 8}) {
        const Said plain = say(*one, request_of(prompts[i], 24, 0.0f));
        CHECK(say(*ranks, request_of(prompts[i], 24, 0.0f)) == plain);
        CHECK(say(*ranks, request_of(prompts[i], 24, 0.0f, {Source::mtp, 7})) == plain);
        CHECK(say(*narrow, request_of(prompts[i], 24, 0.0f, {Source::automatic, 4})) == plain);
        // Control: another reply is told apart.
        CHECK_FALSE(say(*ranks, request_of(prompts[i], 23, 0.0f)) == plain);
      }
      // The depth rule, whose costs are measured first, once.
      const int n_drafts = n_ranks == 2 && !quant ? -1 : 6;
      const Said warm = say(*one, request_of(prompts[3], 24, 0.9f));
      CHECK(say(*ranks, request_of(prompts[3], 24, 0.9f, {Source::automatic, n_drafts})) == warm);
    }
  }
}

TEST_CASE("ranks: separate drafters and copies") {
  const Package& package = drafted_package();
  const std::vector<int> prompt = testing::read_real30(package)[8];
  const auto one = Engine::open(package, options_of(1));
  const auto ranks = Engine::open(package, options_of(2));
  const Said plain = say(*one, request_of(prompt, 32, 0.0f));
  for (const Source source : {Source::dspark, Source::dflash, Source::copy}) {
    const auto counters = [&](Engine& engine) {
      const auto sequence = engine.new_sequence();
      Reply reply;
      (void)answer(engine, *sequence, request_of(prompt, 32, 0.0f, {source, 5}), &reply);
      return std::pair(reply.counters.drafted, reply.counters.accepted_at);
    };
    CHECK(say(*ranks, request_of(prompt, 32, 0.0f, {source, 5})) == plain);
    if (testing::test_device() < 0) CHECK(counters(*ranks) == counters(*one));
  }
}

TEST_CASE("ranks: eight sequences that share rounds, and prefixes that are kept") {
  const Package& package = sample_package(Format::q8);
  const std::vector<std::vector<int>> prompts = testing::read_real30(package);
  const auto one = Engine::open(package, options_of(1));
  EngineOptions options = options_of(2);
  options.n_slots = 8;
  options.prefix_bytes = -1;
  options.chunk_rows = 50;
  const auto ranks = Engine::open(package, options);
  for (int turn = 0; turn < 2; ++turn) {  // the second goes on from what the first left
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<Generation*> all;
    for (std::size_t i = 0; i < 8; ++i) {
      sequences.push_back(ranks->new_sequence());
      generations.push_back(ranks->start(
          *sequences.back(),
          request_of(prompts[i], 16, i % 2 ? 0.8f : 0.0f, {Source::automatic, static_cast<int>(i)}),
          nullptr));
      all.push_back(generations.back().get());
    }
    while (std::any_of(all.begin(), all.end(), [](auto* g) { return !g->is_finished(); })) {
      ranks->round(all);
    }
    std::int64_t n_reused = 0;
    for (std::size_t i = 0; i < 8; ++i) {
      const Said plain = say(*one, request_of(prompts[i], 16, i % 2 ? 0.8f : 0.0f));
      CHECK(all[i]->reply().ids == plain.answer.ids);
      CHECK(sequences[i]->state_digest() == plain.state);
      n_reused += all[i]->reply().n_reused;
    }
    CHECK((n_reused > 0) == (turn > 0));
  }
}

namespace {

// A shape as one to eight ranks can share it: more heads of each kind.
testing::TinySpec widened(testing::TinySpec spec) {
  spec.mamba_heads = std::max(spec.mamba_heads, 8);
  spec.mamba_head_dim = std::min(spec.mamba_head_dim, 40);
  spec.n_heads = 8;
  spec.head_dim = std::min(spec.head_dim, 48);
  return spec;
}

void check_counts(const Package& package, const std::string& label) {
  const auto one = Engine::open(package, options_of(1));
  std::vector<int> prompt(37);
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<int>(i * 31 + 7) % package.config().n_tokens;
  }
  const Said plain = say(*one, request_of(prompt, 12, 0.9f));
  for (const int n_ranks : {2, 4, 8}) {
    EngineOptions options = options_of(n_ranks);
    options.chunk_rows = n_ranks == 4 ? 10 : 0;
    const auto ranks = Engine::open(package, options);
    Request request = request_of(prompt, 12, 0.9f, {Source::automatic, 5});
    request.script = std::make_shared<Script>(Script{plain.answer.ids, 0.8, 3});
    CHECK_MESSAGE(say(*ranks, request) == plain, label, ", ranks ", n_ranks);
  }
}

}  // namespace

TEST_CASE("ranks: tiny models of every class of shapes") {
  const testing::TemporaryFolder folder;
  int n_packages = 0;
  for (const testing::TinyShape& shape : testing::tiny_shapes()) {
    testing::write_tiny_checkpoint(folder / "checkpoint", widened(shape.spec));
    // Formats take turns, so that each meets several shapes.
    for (const std::optional<Format> quant :
         {std::optional<Format>{},
          n_packages % 4 < 2 ? std::optional{Format::q8} : std::optional{Format::nvfp4}}) {
      const auto package =
          testing::converted(folder / "checkpoint",
                             folder / ("tiny-" + std::to_string(n_packages++) + ".bolt"), quant);
      check_counts(*package,
                   std::string(shape.name) + ", " + (quant ? format_name(*quant) : "as it is"));
    }
    std::filesystem::remove_all(folder / "checkpoint");
  }
}

TEST_CASE("ranks: models in GGUF's formats") {
  const testing::TemporaryFolder folder;
  for (const std::string name : {"dense.gguf", "moe-00001-of-00002.gguf"}) {
    ConvertOptions options;
    options.source = BOLT_SOURCE_DIR "/testdata/formats/" + name;
    options.target = folder / (name + ".bolt");
    options.n_threads = 1;
    convert(options);
    const auto package = Package::open(options.target, {.n_threads = 1, .use_hash_cache = false});
    const std::vector<int> counts = possible_ranks(package->graph());
    const auto one = Engine::open(*package, options_of(1));
    const Request request = request_of({5, 9, 2, 17, 40, 3}, 12, 0.0f);
    const Said plain = say(*one, request);
    CHECK(counts.size() > 1);
    for (const int n_ranks : counts) {
      if (n_ranks == 1 || n_ranks > 8) continue;
      const auto ranks = Engine::open(*package, options_of(n_ranks));
      CHECK_MESSAGE(say(*ranks, request) == plain, name, ", ranks ", n_ranks);
    }
  }
}

TEST_CASE("ranks: counts that do not divide the model are refused by name") {
  CHECK(testing::error_of([] {
          Engine::open(sample_package(), options_of(3));
        }).find("2 --device ") == 0);
  const auto caught = testing::caught([] { Engine::open(sample_package(), options_of(3)); });
  CHECK(caught.code == Exit::usage);
  CHECK(caught.says("which 3 ranks do not divide; this package runs on 1, 2 or 4"));
}

// --- what goes wrong, on the CPU

namespace {

constexpr int kPrompt = 20;

// An exchange with one planted mistake, or a hook before each gather.
class Meddler final : public ThreadExchange {
 public:
  enum class Mistake { none, stale, no_marks };
  using Hook = std::function<void(int rank, int n_gathers)>;
  Meddler(RankMeeting& meeting, int rank, Mistake mistake, Hook hook)
      : ThreadExchange(meeting, rank, std::make_unique<HostMemory>()),
        mistake_(mistake),
        hook_(std::move(hook)) {}
  void all_gather(std::span<const SharedRows> shared) override {
    ++n_gathers_;
    if (hook_) hook_(rank(), n_gathers_);
    // In the middle of the second pass: others' columns are what the last pass left there. All
    // ranks skip it, as they would skip a copy that is not waited for.
    if (mistake_ == Mistake::stale && n_gathers_ == 60) return;
    ThreadExchange::all_gather(shared);
  }
  void merge_marks(std::uint8_t* marks, int n) override {
    if (mistake_ != Mistake::no_marks) ThreadExchange::merge_marks(marks, n);
  }

 private:
  const Mistake mistake_;
  const Hook hook_;
  int n_gathers_ = 0;
};

RankSetup meddled(int n_ranks, Meddler::Mistake mistake, const Meddler::Hook& hook = {},
                  const std::function<void(Graph&, int)>& change = {}) {
  RankSetup setup;
  setup.n_ranks = n_ranks;
  setup.open = [change](const RankGraph& part, int rank) {
    Backend backend = open_host(part.graph, 1, Isa::automatic);
    if (change) change(backend.graph, rank);
    return backend;
  };
  setup.exchange = [mistake, hook](RankMeeting& meeting, int rank, Ops&) {
    return std::make_unique<Meddler>(meeting, rank, mistake, hook);
  };
  return setup;
}

ModelSizes sizes_of(const Package& package) {
  ModelSizes sizes;
  sizes.context = 256;
  sizes.n_vocab = package.config().n_tokens;
  return sizes;
}

// A prompt, windows and chains of the head: logits of the last row, then the drafts.
std::vector<float> two_passes(Model& model) {
  const int slot = model.open_slot();
  std::vector<int> prompt, next{9, 4};
  for (int i = 0; i < kPrompt; ++i) prompt.push_back(i * 7 % 50 + 3);
  std::vector<float> logits(static_cast<std::size_t>(model.vocab_size()));
  const auto run = [&](std::span<const int> ids, bool sure) {
    Window window;
    window.slot = slot;
    window.ids = ids;
    window.sure = sure;
    window.n_sampled = sure ? 1 : 2;
    window.feed_head = true;
    std::vector<WindowResult> results;
    model.run({&window, 1}, results);
    model.read_logits(0, window.n_sampled - 1, logits);
    model.commit(slot, static_cast<int>(window.ids.size()));
  };
  const auto chunk = static_cast<std::size_t>(model.max_chunk_rows());
  for (std::size_t i = 0; i < prompt.size(); i += chunk) {
    run(std::span(prompt).subspan(i, std::min(chunk, prompt.size() - i)), true);
  }
  run(next, false);
  // The head's chain goes the way of the logits: it, too, must be the same.
  std::vector<float> drafts;
  DraftAsk ask;
  ask.slot = slot;
  ask.next_id = 11;
  ask.max_levels = 5;
  for (const bool in_vocab : {false, true}) {
    if (in_vocab && model.draft_vocab().empty()) continue;
    ask.draft_vocab = in_vocab;
    std::vector<std::vector<Draft>> chains;
    model.draft({&ask, 1}, chains);
    for (const Draft& draft : chains[0]) {
      drafts.push_back(static_cast<float>(draft.id));
      drafts.push_back(draft.probability);
    }
    run(next, false);  // what the next chain goes on from
  }
  logits.insert(logits.end(), drafts.begin(), drafts.end());
  model.close_slot(slot);
  return logits;
}

std::vector<float> logits_of(const RankSetup& setup,
                             const Graph& graph = sample_package().graph()) {
  const Ranks ranks(graph, setup);
  RankedModel model(ranks, sizes_of(sample_package()));
  return two_passes(model);
}

std::vector<float> logits_alone(const Graph& graph = sample_package().graph()) {
  HostOps ops(1, resolve_isa(Isa::automatic));
  OpsModel model(ops, graph, sizes_of(sample_package()));
  return two_passes(model);
}

}  // namespace

TEST_CASE("ranks: controls: a slice one tile further on, and a gather that kept the last pass's") {
  const std::vector<float> plain = logits_alone();
  CHECK(logits_of(meddled(2, Meddler::Mistake::none)) == plain);
  // The first layer's out_proj of rank 1 begins a tile too early.
  const auto shift = [](Graph& graph, int rank) {
    Weight& w = std::get<Mamba2>(graph.layers[0].mixer).out_proj;
    if (rank == 1) w.data -= tile_bytes(w.format, w.n_cols);
  };
  CHECK(logits_of(meddled(2, Meddler::Mistake::none, {}, shift)) != plain);
  // A stale gather shows in the logits, or in that the ranks choose differently.
  std::vector<float> stale;
  const std::string error =
      testing::error_of([&] { stale = logits_of(meddled(2, Meddler::Mistake::stale)); });
  CHECK((stale != plain || error.find("chose different tokens") != std::string::npos));
}

TEST_CASE("ranks: geometries, and a draft vocabulary of the head's own rows") {
  Graph graph = sample_package().graph();
  const std::vector<float> plain = logits_alone();
  for (const Geometry::Kind kind : {Geometry::Kind::fixed, Geometry::Kind::hybrid}) {
    graph.geometry = {kind, 8};
    CHECK(logits_of(meddled(2, Meddler::Mistake::none), graph) == plain);
  }
  graph.geometry = {};
  // The head's first rows: they lie where the whole head begins.
  Weight& head = graph.draft->vocab_head;
  head = graph.lm_head;
  head.n_rows = 160;
  head.bytes = packed_matrix_bytes(head.format, head.n_rows, head.n_cols);
  for (int id = 0; id < head.n_rows; ++id) graph.draft->vocab_ids.push_back(id);
  const std::vector<float> with_vocab = logits_alone(graph);
  CHECK(with_vocab != plain);
  for (const int n_ranks : {2, 4}) {
    CHECK(logits_of(meddled(n_ranks, Meddler::Mistake::none), graph) == with_vocab);
  }
}

TEST_CASE("ranks: a sum that is not finite marks its row for all ranks, wherever it was") {
  // An up-projection whose one output is -inf: relu2 makes it 0, so that the mark alone tells. Of
  // an MLP's weights in float32, the last row is rank 1's.
  const testing::TemporaryFolder folder;
  testing::TinySpec spec = widened({});
  spec.dtype = "F32";
  testing::make_tiny_package(folder / "tiny.bolt", spec);
  const auto package = Package::open(folder / "tiny.bolt", {.n_threads = 1});
  Graph graph = package->graph();
  Weight& up = std::get<Mlp>(graph.layers[3].mixer).up_proj;
  REQUIRE(up.format == Format::f32);
  std::vector<std::byte> bytes(up.data, up.data + up.bytes);
  const int row = up.n_rows - 1;
  for (int column : {0, 1}) {  // whatever the signs of the row's values: -inf, or inf - inf
    const float wrong = -std::numeric_limits<float>::infinity();
    std::memcpy(bytes.data() +
                    static_cast<std::uint64_t>(row / kTileRows) * tile_bytes(up.format, up.n_cols) +
                    packed_place(up.format, row % kTileRows, column),
                &wrong, sizeof wrong);
  }
  up.data = bytes.data();
  const auto ids = [&](Model& model) {
    const int slot = model.open_slot();
    const std::vector<int> prompt{3, 4, 5};
    Window window;
    window.slot = slot;
    window.ids = prompt;
    window.sure = true;
    window.n_sampled = 1;
    std::vector<WindowResult> results;
    model.run({&window, 1}, results);
    return std::pair(results[0].sampled[0].id, results[0].first_marked);
  };
  HostOps ops(1, resolve_isa(Isa::automatic));
  OpsModel alone(ops, graph, sizes_of(*package));
  const auto plain = ids(alone);
  CHECK(plain == std::pair(-1, 0));
  const auto ranked = [&](Meddler::Mistake mistake) {
    const Ranks ranks(graph, meddled(2, mistake));
    RankedModel model(ranks, sizes_of(*package));
    return ids(model);
  };
  CHECK(ranked(Meddler::Mistake::none) == plain);
  CHECK(testing::error_of([&] {
          (void)ranked(Meddler::Mistake::no_marks);
        }).find("6 ranks 0 and 1 chose different tokens") == 0);
}

TEST_CASE("ranks: one that throws in the middle of a pass ends the pass for all") {
  for (const int culprit : {0, 2}) {
    const auto hook = [culprit](int rank, int n) {
      if (rank == culprit && n == 17) throw Error(Exit::fault, "planted: out of step");
    };
    const Ranks ranks(sample_package().graph(), meddled(4, Meddler::Mistake::none, hook));
    RankedModel model(ranks, sizes_of(sample_package()));
    CHECK(testing::error_of([&] { (void)two_passes(model); }) == "6 planted: out of step");
    CHECK(testing::caught([&] {
            (void)model.open_slot();
          }).says("out of step: planted: out of step; nothing more"));
  }
  // What all of them refuse alike leaves them in step.
  const Ranks ranks(sample_package().graph(), meddled(2, Meddler::Mistake::none));
  RankedModel model(ranks, sizes_of(sample_package()));
  const int slot = model.open_slot();
  CHECK(testing::caught([&] { (void)model.open_slot(); }).says("all 1 are open"));
  model.close_slot(slot);
  CHECK(two_passes(model) == logits_alone());
  // A rank that cannot even be opened.
  const auto refuse = [](Graph&, int rank) {
    if (rank == 1) throw Error(Exit::fault, "planted: no memory");
  };
  CHECK(testing::error_of([&] {
          (void)logits_of(meddled(2, Meddler::Mistake::none, {}, refuse));
        }) == "6 planted: no memory");
}

TEST_CASE("ranks: one that does not come back ends the process with 6") {
  for (const bool throws : {false, true}) {  // the other waits for it, or has failed
    const pid_t child = fork();
    if (child == 0) {
      (void)!freopen("/dev/null", "w", stderr);
      const auto hook = [throws](int rank, int n) {
        if (n != 5) return;
        if (rank == 0) std::this_thread::sleep_for(std::chrono::hours(1));
        if (throws) throw Error(Exit::fault, "planted");
      };
      RankSetup setup = meddled(2, Meddler::Mistake::none, hook);
      setup.deadline_ms = 300;
      try {
        (void)logits_of(setup);
      } catch (...) {
      }
      std::_Exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 6);
  }
}

}  // namespace bolt
