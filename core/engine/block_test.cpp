// Separate drafters on the sample model: drafts against an independent reference and against a
// recompute from scratch; replies that are the ordinary ones; mistakes that only acceptance shows.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "core/engine/drafter.h"
#include "core/engine/generate.h"
#include "core/engine/ops_model.h"
#include "core/engine/testing/sample.h"
#include "core/engine/testing/wrong_ops.h"
#include "core/ops/host.h"
#include "core/pack/convert.h"
#include "core/pack/graph_walk.h"
#include "core/pack/make_drafter.h"

namespace bolt {
namespace {

using testing::Answer;
using testing::drafted_package;
using testing::DrafterGolden;
using testing::Mistake;
using Source = DraftOptions::Source;

Source source_of(BlockKind kind) {
  return kind == BlockKind::dspark ? Source::dspark : Source::dflash;
}

ModelSizes sizes_of(const Package& package, std::int64_t context, int n_slots = 1) {
  ModelSizes sizes;
  sizes.context = context;
  sizes.n_slots = n_slots;
  sizes.n_vocab = package.config().n_tokens;
  return sizes;
}

BlockSet both() {
  BlockSet all;
  for (const BlockKind kind : kBlockKinds) all[kind] = true;
  return all;
}

// Runs ids as one window or (sure) as a prompt, and keeps n_kept of them.
void run_rows(OpsModel& model, int slot, std::span<const int> ids, bool sure, int n_kept,
              BlockSet feeds = both()) {
  const auto n_most = static_cast<std::size_t>(model.max_chunk_rows());
  if (sure && ids.size() > n_most) {
    run_rows(model, slot, ids.first(n_most), sure, static_cast<int>(n_most), feeds);
    ids = ids.subspan(n_most);
    return run_rows(model, slot, ids, sure, static_cast<int>(ids.size()), feeds);
  }
  Window window;
  window.slot = slot;
  window.ids = ids;
  window.sure = sure;
  window.n_sampled = sure ? 0 : static_cast<int>(ids.size());
  window.feed_blocks = feeds;
  std::vector<WindowResult> results;
  model.run({&window, 1}, results);
  model.commit(slot, n_kept);
}

std::vector<Draft> drafts_of(OpsModel& model, int slot, BlockKind kind, int next_id, int n) {
  DraftAsk ask;
  ask.block = kind;
  ask.slot = slot;
  ask.next_id = next_id;
  ask.max_levels = n;
  std::vector<std::vector<Draft>> drafts;
  model.draft({&ask, 1}, drafts);
  return drafts[0];
}

std::vector<int> draft_ids(OpsModel& model, int slot, BlockKind kind, int next_id, int n) {
  std::vector<int> ids;
  for (const Draft& draft : drafts_of(model, slot, kind, next_id, n)) ids.push_back(draft.id);
  return ids;
}

// A greedy reply with seven drafts a round over these ops.
Reply reply_of(Ops& ops, const std::vector<int>& prompt, std::int64_t max_new, BlockKind kind,
               const Package& package = drafted_package()) {
  OpsModel model(ops, package.graph(), sizes_of(package, 1536));
  Request request;
  request.prompt_ids = prompt;
  request.max_new = max_new;
  request.stop_ids = package.config().stop_ids;
  request.draft = {source_of(kind), 7};
  const int slot = model.open_slot();
  Stream stream(model, slot, request, nullptr, make_drafter(request, model, {}), 1536, 31, nullptr);
  Stream* const only = &stream;
  while (!stream.is_finished()) Rounds(model).run({&only, 1});
  return stream.reply();
}

std::int64_t accepted(const Counters& c) {
  return std::accumulate(c.accepted_at.begin(), c.accepted_at.end(), std::int64_t{0});
}

TEST_CASE("drafters: each round's drafts are those of the reference") {
  const Package& package = drafted_package();
  HostOps ops(1, resolve_isa(Isa::automatic));
  OpsModel model(ops, package.graph(), sizes_of(package, 1536));
  int n_same = 0, n_all = 0, n_close = 0;
  for (const DrafterGolden& golden : testing::read_drafter_goldens()) {
    for (const BlockKind kind : kBlockKinds) {
      const int slot = model.open_slot();
      run_rows(model, slot, golden.prompt, true, static_cast<int>(golden.prompt.size()));
      std::size_t at = 0;  // of the reply: the token that is known, not run
      for (const auto& round : golden.rounds[static_cast<std::size_t>(kind)]) {
        const std::vector<int> drafts = draft_ids(model, slot, kind, golden.reply[at], 7);
        for (std::size_t k = 0; k < drafts.size(); ++k) {
          ++n_all;
          n_same += drafts[k] == round.drafts[k];
          if (drafts[k] == round.drafts[k]) continue;
          // Another arithmetic: only where the reference itself hesitates; what follows a DSpark
          // draft hangs on it.
          CHECK(round.leads[k] < 0.05f);
          ++n_close;
          break;
        }
        std::vector<int> ids(
            golden.reply.begin() + static_cast<std::ptrdiff_t>(at),
            golden.reply.begin() + static_cast<std::ptrdiff_t>(at) + round.n_accepted + 1);
        const int n_kept = static_cast<int>(ids.size());
        ids.insert(ids.end(), round.drafts.begin() + round.n_accepted, round.drafts.end());
        run_rows(model, slot, ids, false, n_kept);
        at += static_cast<std::size_t>(n_kept);
        if (at >= golden.reply.size()) break;
      }
      model.close_slot(slot);
    }
  }
  MESSAGE(n_same, " of ", n_all, " drafts equal, ", n_close, " rounds differ where it is close");
  CHECK(n_all > 2000);
  CHECK(n_close * 100 < n_all);
}

TEST_CASE("drafters: drafts are those of a fresh run after any accept pattern") {
  const Package& package = drafted_package();
  HostOps ops(1, resolve_isa(Isa::automatic));
  OpsModel model(ops, package.graph(), sizes_of(package, 1536, 2));
  const std::vector<int> text = testing::text_ids(package, 800);
  std::uint64_t state = 1;
  const auto random = [&](int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state >> 33) % static_cast<std::uint64_t>(n));
  };
  const int slot = model.open_slot(), fresh = model.open_slot();
  run_rows(model, slot, std::span(text).first(60), true, 60);
  std::size_t at = 60;
  int n_compared = 0;
  while (at + 180 < text.size()) {
    // Rounds of several widths; sometimes many in a row without a draft, sometimes a chunk.
    const int what = random(10);
    if (what == 0) {
      const int n = 60 + random(100);
      run_rows(model, slot, std::span(text).subspan(at, static_cast<std::size_t>(n)), true, n);
      at += static_cast<std::size_t>(n);
    } else {
      const int n = 1 + random(12), n_kept = 1 + random(n);
      std::vector<int> ids(text.begin() + static_cast<std::ptrdiff_t>(at),
                           text.begin() + static_cast<std::ptrdiff_t>(at) + n);
      for (int i = n_kept; i < n; ++i) ids[static_cast<std::size_t>(i)] = 100 + i;  // rejected
      run_rows(model, slot, ids, false, n_kept);
      at += static_cast<std::size_t>(n_kept);
    }
    if (random(4) != 0) continue;
    model.reset_slot(fresh);
    run_rows(model, fresh, std::span(text).first(at), true, static_cast<int>(at));
    for (const BlockKind kind : kBlockKinds) {
      const std::vector<int> drafts = draft_ids(model, slot, kind, text[at], 7);
      REQUIRE(drafts.size() == 7);
      CHECK(drafts == draft_ids(model, fresh, kind, text[at], 7));
      // DSpark's first drafts are the same however many are made; nothing of a pass remains.
      const std::vector<int> three = draft_ids(model, slot, kind, text[at], 3);
      CHECK(three == std::vector<int>(drafts.begin(), drafts.begin() + 3));
      ++n_compared;
    }
  }
  CHECK(n_compared > 10);
}

TEST_CASE("drafters: a window goes on after rows that it did not see, full attention does not") {
  const Package& package = drafted_package();
  HostOps ops(1, resolve_isa(Isa::automatic));
  OpsModel model(ops, package.graph(), sizes_of(package, 1536, 2));
  const std::vector<int> text = testing::text_ids(package, 400);
  const int slot = model.open_slot(), fresh = model.open_slot();
  run_rows(model, slot, std::span(text).first(100), true, 100, {});
  CHECK(draft_ids(model, slot, BlockKind::dspark, text[100], 7).empty());
  CHECK(draft_ids(model, slot, BlockKind::dflash, text[100], 7).empty());
  run_rows(model, slot, std::span(text).subspan(100, 30), true, 30);
  CHECK(draft_ids(model, slot, BlockKind::dspark, text[130], 7).size() == 7);
  CHECK(draft_ids(model, slot, BlockKind::dflash, text[130], 7).empty());
  // A whole window later nothing is missing any more.
  run_rows(model, slot, std::span(text).subspan(130, 110), true, 110);
  run_rows(model, fresh, std::span(text).first(240), true, 240);
  CHECK(draft_ids(model, slot, BlockKind::dspark, text[240], 7) ==
        draft_ids(model, fresh, BlockKind::dspark, text[240], 7));
}

TEST_CASE("drafters: replies, logits and state are those of ordinary decoding") {
  const Package& package = drafted_package();
  const std::vector<std::vector<int>> prompts = testing::read_real30(package);
  EngineOptions options;
  options.n_threads = 1;
  options.n_slots = 3;
  options.context = 2048;
  options.cost_table = testing::scratch_folder() + "/drafter-costs.json";
  const auto host = Engine::open(package, options);
  options.device = testing::test_device();
  options.chunk_rows = 48;
  options.cost_table = testing::scratch_folder() + "/drafter-costs-too.json";
  const auto tested = Engine::open(package, options);
  const bool drafts_there = tested->backend().ops->has_block_ops();
  const auto plain_sequence = host->new_sequence(), sequence = tested->new_sequence();
  std::int64_t n_accepted = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    for (const std::size_t p : {0, 4}) {
      Request request;
      request.prompt_ids = prompts[p];
      request.max_new = 40;
      request.sampling.temperature = temperature;
      request.sampling.seed = 5;
      request.draft = {Source::off, -1};
      const Answer plain = testing::answer(*host, *plain_sequence, request);
      const std::string state = plain_sequence->state_digest();
      for (const Source source : {Source::dspark, Source::dflash, Source::automatic}) {
        for (const int drafts : {3, 7, -1}) {
          request.draft = {source, drafts};
          Reply reply;
          const Answer drafted = testing::answer(*tested, *sequence, request, &reply);
          CHECK_MESSAGE(drafted == plain, "prompt ", p, ", source ", static_cast<int>(source),
                        ", drafts ", drafts, ", temperature ", temperature);
          CHECK(sequence->state_digest() == state);
          if (drafts != 7) continue;
          if (source != Source::automatic) {
            CHECK((reply.counters.block_passes > 0) == drafts_there);
            CHECK(reply.counters.head_levels == 0);
          }
          n_accepted += accepted(reply.counters);
        }
      }
    }
  }
  // Also at a temperature: the target's noise goes into the drafts.
  if (drafts_there) CHECK(n_accepted > 60);
}

TEST_CASE("drafters: sequences that share rounds and prefixes say what they say alone") {
  const Package& package = drafted_package();
  EngineOptions options;
  options.device = testing::test_device();
  options.context = 1024;
  const auto alone = Engine::open(package, options);
  options.n_slots = 12;
  options.prefix_bytes = -1;
  const auto shared = Engine::open(package, options);
  const std::vector<int> text = testing::text_ids(package, 400);
  for (int turn = 0; turn < 2; ++turn) {  // the second goes on from kept prefixes
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<Generation*> all;
    std::vector<Request> requests;
    for (int i = 0; i < 12; ++i) {
      Request request;
      request.prompt_ids.assign(text.begin() + i, text.begin() + 30 + 20 * i + 9 * turn);
      request.max_new = 16;
      request.draft = {i % 3 == 2 ? Source::automatic : i % 3 ? Source::dflash : Source::dspark, 7};
      requests.push_back(request);
      sequences.push_back(shared->new_sequence());
      generations.push_back(shared->start(*sequences.back(), request, nullptr));
      all.push_back(generations.back().get());
    }
    while (std::any_of(all.begin(), all.end(), [](Generation* g) { return !g->is_finished(); })) {
      shared->round(all);
    }
    std::int64_t n_shared = 0, n_alone = 0, n_reused = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      const Reply& reply = all[i]->reply();
      n_shared += accepted(reply.counters);
      n_reused += reply.n_reused;
      const auto sequence = alone->new_sequence();
      Request request = requests[i];
      n_alone += accepted(alone->generate(*sequence, request, nullptr).counters);
      sequence->reset();
      request.draft = {Source::off, -1};
      CHECK(alone->generate(*sequence, request, nullptr).ids == reply.ids);
    }
    CHECK((n_reused > 0) == (turn == 1));
    // Fewer rows a round, never other drafts.
    MESSAGE("accepted ", n_shared, " in shared rounds, ", n_alone, " alone");
    if (alone->backend().ops->has_block_ops()) CHECK(n_shared * 2 > n_alone);
  }
}

TEST_CASE("drafters: of NVFP4 and of another shape they draft alike, whatever came before") {
  // Noise, two layers of two kv heads, over a window of 64.
  MakeOptions make;
  make.shape = "small dspark";
  make.target = testing::scratch_folder() + "/nvfp4-drafter";
  make.n_threads = 1;
  BlockDrafter sizes = lightning_drafter(BlockKind::dspark);
  sizes.mask_id = 18;
  sizes.n_heads = 8, sizes.head_dim = 32, sizes.d_ff = 160;
  sizes.taps = {0, 5, 10};
  sizes.window = 64, sizes.markov_rank = 48;
  make_drafter(make, testing::sample_package().path(), sizes, 2);
  ConvertOptions add;
  add.source = make.target;
  add.drafter_for = testing::sample_package().path();
  add.target = testing::scratch_folder() + "/with-nvfp4.bolt";
  add.n_threads = 1;
  convert(add);
  const auto package = Package::open(add.target, {.n_threads = 1, .use_hash_cache = false});
  CHECK(package->graph().drafters[0].markov_w2.format == Format::nvfp4);
  HostOps ops(1, resolve_isa(Isa::automatic));
  OpsModel model(ops, package->graph(), sizes_of(*package, 512, 2));
  const std::vector<int> text = testing::text_ids(*package, 200);
  const int slot = model.open_slot(), fresh = model.open_slot();
  std::set<float> different;
  for (std::size_t at = 0; at < 180; at += 6) {
    run_rows(model, slot, std::span(text).subspan(at, 9), false, 6);
    model.reset_slot(fresh);
    run_rows(model, fresh, std::span(text).first(at + 6), true, static_cast<int>(at) + 6);
    const auto drafts = drafts_of(model, slot, BlockKind::dspark, text[at + 6], 7),
               again = drafts_of(model, fresh, BlockKind::dspark, text[at + 6], 7);
    REQUIRE(drafts.size() == 7);
    REQUIRE(again.size() == 7);
    for (std::size_t k = 0; k < 7; ++k) {
      CHECK(drafts[k].id == again[k].id);
      CHECK(drafts[k].probability == again[k].probability);
      different.insert(drafts[k].probability);
    }
  }
  CHECK(different.size() > 150);  // noise, but of what was tapped
}

TEST_CASE("drafters: their keys are counted before sequences are admitted") {
  HostOps ops(1, resolve_isa(Isa::automatic));
  const Graph &with = drafted_package().graph(), &without = testing::sample_package().graph();
  // Of each layer a key and a value of one head of 64, in BF16: DFlash's for every position,
  // DSpark's for a ring of one tile.
  constexpr std::uint64_t kCellBytes = 2 * 2 * 64 * 2;
  CHECK(kv_bytes_per_position(ops, with, KvKind::i16) ==
        kv_bytes_per_position(ops, without, KvKind::i16) + kCellBytes);
  CHECK(state_bytes(with) == state_bytes(without) + kPageKeys * kCellBytes);
}

TEST_CASE("drafters: a kept prefix holds their keys") {
  const Package& package = drafted_package();
  HostOps ops(1, resolve_isa(Isa::automatic));
  ModelSizes sizes = sizes_of(package, 1024, 2);
  sizes.n_prefixes = 4;
  sizes.n_prefix_pages = 16;
  OpsModel model(ops, package.graph(), sizes);
  const std::vector<int> text = testing::text_ids(package, 600);
  for (const int n : {50, 300}) {
    const auto first = std::span(text).first(static_cast<std::size_t>(n));
    const int slot = model.open_slot();
    run_rows(model, slot, first, true, n);
    model.keep_prefix(slot);
    // The sequence goes on elsewhere, over what the ring and the last page held.
    run_rows(model, slot, std::span(text).subspan(400, 150), true, 150);
    const int other = model.open_slot();
    model.resume_prefix(other, std::span(text).first(static_cast<std::size_t>(n) + 1), false,
                        both());
    REQUIRE(static_cast<int>(model.ids(other).size()) == n);
    model.reset_slot(slot);
    run_rows(model, slot, first, true, n);
    for (const BlockKind kind : kBlockKinds) {
      const int next = text[static_cast<std::size_t>(n)];
      const std::vector<int> drafts = draft_ids(model, other, kind, next, 7);
      CHECK(drafts.size() == 7);
      CHECK(drafts == draft_ids(model, slot, kind, next, 7));
    }
    model.close_slot(slot);
    model.close_slot(other);
  }
}

TEST_CASE("drafters: quantised to q8 they draft as well") {
  std::vector<DrafterGolden> goldens = testing::read_drafter_goldens();
  std::erase_if(goldens, [](const DrafterGolden& g) { return g.prompt.size() > 300; });
  HostOps ops(1, resolve_isa(Isa::automatic));
  const Package& q8 = drafted_package(Format::q8);
  for (const BlockKind kind : kBlockKinds) {
    CHECK(q8.graph().drafters[static_cast<std::size_t>(kind)].fc.format == Format::q8);
    std::int64_t n_rounds = 0, n_rounds_q8 = 0;
    for (const DrafterGolden& golden : goldens) {
      const auto n = static_cast<std::int64_t>(golden.reply.size());
      n_rounds += reply_of(ops, golden.prompt, n, kind).counters.rounds;
      const Reply reply = reply_of(ops, golden.prompt, n, kind, q8);
      CHECK(reply.ids == golden.reply);
      n_rounds_q8 += reply.counters.rounds;
    }
    MESSAGE(std::string(kind_name(kind)), ": ", n_rounds, " rounds, ", n_rounds_q8, " in q8");
    CHECK(n_rounds_q8 * 100 < n_rounds * 108);
  }
}

TEST_CASE("drafters: mistakes change no token, and each is seen in what is accepted") {
  std::vector<DrafterGolden> goldens = testing::read_drafter_goldens();
  std::erase_if(goldens, [](const DrafterGolden& g) { return g.prompt.size() > 300; });
  HostOps host(1, resolve_isa(Isa::automatic));
  for (const BlockKind kind : kBlockKinds) {
    const auto k = static_cast<std::size_t>(kind);
    const auto accepted_with = [&](Mistake mistake) {
      std::int64_t n = 0;
      for (const DrafterGolden& golden : goldens) {
        testing::WrongOps ops(host, mistake);
        const Reply reply =
            reply_of(ops, golden.prompt, static_cast<std::int64_t>(golden.reply.size()), kind);
        CHECK(reply.ids == golden.reply);
        // The last round is cut at the reply's end, for the reference is, too.
        n += static_cast<std::int64_t>(golden.reply.size()) - 1 - reply.counters.rounds;
      }
      return n;
    };
    std::int64_t stored = 0;
    for (const DrafterGolden& golden : goldens) {
      stored += static_cast<std::int64_t>(golden.reply.size() - 1 - golden.rounds[k].size());
    }
    const std::int64_t right = accepted_with(Mistake::none);
    MESSAGE("kind ", k, ": ", right, " tokens more than rounds, ", stored, " by the reference");
    CHECK(right >= stored - 3);
    CHECK(right <= stored + 3);
    for (const Mistake mistake : {Mistake::taps_row_before, Mistake::taps_normed,
                                  Mistake::keeps_block_keys, Mistake::targets_mask_row}) {
      const std::int64_t wrong = accepted_with(mistake);
      MESSAGE("mistake ", static_cast<int>(mistake), ": ", wrong);
      CHECK(wrong < stored - 3);
    }
  }
}

}  // namespace
}  // namespace bolt
