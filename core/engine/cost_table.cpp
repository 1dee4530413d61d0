// Measuring, reading and keeping the cost table.
#include "core/engine/cost_table.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/base/sha256.h"
#include "core/pack/graph_walk.h"

namespace bolt {
namespace {

constexpr int kWidths[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
// A device runs a shape's first call as it is, captures the second and replays the third.
constexpr int kSweepsMin = 3, kSweepsMax = 12;
constexpr std::int64_t kQuickNs = 200'000'000, kSlowNs = 2'000'000'000;

std::string block_key(BlockKind kind) { return std::string(kind_name(kind)) + "_ns"; }

std::string cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) {
    return std::string(cache) + "/bolt";
  }
  if (const char* home = std::getenv("HOME"); home && *home) {
    return std::string(home) + "/.cache/bolt";
  }
  return {};
}

}  // namespace

std::string CostTable::json() const {
  JsonWriter out;
  out.begin_object();
  out.key("v_ns").begin_array(true);
  for (int r = 1; r <= kCostRowsMax; ++r) out.value(window_ns[static_cast<std::size_t>(r)]);
  out.end_array();
  out.member("level_ns", level_ns).member("vocab_level_ns", vocab_level_ns);
  for (const BlockKind kind : kBlockKinds) {
    const auto& ns = block_ns[static_cast<std::size_t>(kind)];
    if (!ns.empty()) out.member(block_key(kind), ns);
  }
  out.end_object();
  return out.take();
}

std::string CostTable::digest() const { return sha256_hex(json()); }

CostTable CostTable::parse(const std::string& name, const std::string& text) {
  const JsonDocument document = JsonDocument::parse(name, text);
  const JsonValue root = document.root();
  root.only({"v_ns", "level_ns", "vocab_level_ns", "dspark_ns", "dflash_ns"});
  constexpr std::int64_t kMax = 1'000'000'000'000'000;
  CostTable table;
  const auto v = root.at("v_ns").items();
  if (v.size() != kCostRowsMax) root.at("v_ns").fail("64 integers");
  for (std::size_t r = 1; r <= kCostRowsMax; ++r) {
    table.window_ns[r] = v[r - 1].integer(1, kMax);
    if (table.window_ns[r] < table.window_ns[r - 1]) v[r - 1].fail("no less than the one before");
  }
  table.level_ns = root.at("level_ns").integer(0, kMax);
  table.vocab_level_ns = root.at("vocab_level_ns").integer(0, kMax);
  for (const BlockKind kind : kBlockKinds) {
    const auto list = root.find(block_key(kind));
    if (!list) continue;
    auto& ns = table.block_ns[static_cast<std::size_t>(kind)];
    for (const JsonValue& item : list->items()) {
      ns.push_back(item.integer(ns.empty() ? 1 : ns.back(), kMax));
    }
    if (ns.empty() || ns.size() > kDraftsMax) list->fail("1 to 31 integers, none less than before");
  }
  return table;
}

// Each width's least time over a few sweeps through all of them: what the work costs when nothing
// else interferes, and a disturbance never falls on one width alone. A slow model is swept once.
CostTable measure_costs(Model& model) {
  constexpr std::size_t n_widths = std::size(kWidths);
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  std::int64_t least[n_widths], level = kNever, vocab_level = kNever, total = 0;
  std::int64_t blocks[2][2] = {{kNever, kNever}, {kNever, kNever}};  // of one draft, of the most
  std::fill(std::begin(least), std::end(least), kNever);
  const auto take = [&total](std::int64_t& at, std::int64_t ns) {
    at = std::min(at, std::max<std::int64_t>(ns, 1));
    total += ns;
  };
  const bool has_vocab = !model.draft_vocab().empty();
  model.time_window_ns(1);  // warm-up: pages, threads
  if (model.has_head()) model.time_level_ns(false);
  const auto time_blocks = [&](const auto& taken) {
    for (const BlockKind kind : kBlockKinds) {
      const int most = model.block_drafts(kind);
      for (int i = 0; most > 0 && i < 2; ++i) {
        taken(blocks[static_cast<std::size_t>(kind)][i],
              model.time_block_ns(kind, i == 0 ? 1 : most));
      }
    }
  };
  time_blocks([](std::int64_t&, std::int64_t) {});
  for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
    for (std::size_t i = 0; i < n_widths; ++i) take(least[i], model.time_window_ns(kWidths[i]));
    if (model.has_head()) take(level, model.time_level_ns(false));
    if (has_vocab) take(vocab_level, model.time_level_ns(true));
    time_blocks(take);
    if (total > (sweep + 1 < kSweepsMin ? kSlowNs : kQuickNs)) break;
  }

  // A disturbed call only looks dearer: more rows never cost less, so a width costs at most what
  // the wider ones do, and never more than its rows one by one.
  for (std::size_t w = n_widths - 1; w-- > 0;) least[w] = std::min(least[w], least[w + 1]);
  for (std::size_t w = 1; w < n_widths; ++w) {
    least[w] = std::min(least[w], least[w - 1] + (kWidths[w] - kWidths[w - 1]) * least[0]);
  }

  CostTable table;
  int before = 0;
  for (std::size_t w = 0; w < n_widths; ++w) {
    const int r = kWidths[w];
    const std::int64_t low = table.window_ns[static_cast<std::size_t>(before)];
    const std::int64_t high = std::max(least[w], low);
    for (int i = before + 1; i <= r; ++i) {
      table.window_ns[static_cast<std::size_t>(i)] =
          before == 0 ? high : low + (high - low) * (i - before) / (r - before);
    }
    before = r;
  }
  if (model.has_head()) table.level_ns = level;
  if (has_vocab) table.vocab_level_ns = vocab_level;
  for (const BlockKind kind : kBlockKinds) {
    const std::int64_t *ns = blocks[static_cast<std::size_t>(kind)], one = std::min(ns[0], ns[1]);
    const int most = model.block_drafts(kind);
    for (int k = 1; k <= most; ++k) {
      table.block_ns[static_cast<std::size_t>(kind)].push_back(
          most == 1 ? one : one + (ns[1] - one) * (k - 1) / (most - 1));
    }
  }
  return table;
}

CostTable load_costs(Model& model, const std::string& file, const std::string& key,
                     bool* measured) {
  const auto measure = [&model, measured] {
    if (measured != nullptr) *measured = true;
    return measure_costs(model);
  };
  const auto fits = [&model](const CostTable& table) {
    return std::all_of(kBlockKinds.begin(), kBlockKinds.end(), [&](BlockKind kind) {
      return model.block_drafts(kind) == 0 || model.block_drafts(kind) == table.block_drafts(kind);
    });
  };
  if (!file.empty()) {
    if (path_exists(file)) {
      CostTable table = CostTable::parse(file, read_file(file));
      if (fits(table)) return table;
      throw Error(Exit::input, file +
                                   ": has no costs of the package's separate drafters; name a new "
                                   "file to measure them");
    }
    CostTable table = measure();
    write_file_atomically(file, table.json() + "\n");
    return table;
  }
  const std::string folder = key.empty() ? std::string() : cache_folder();
  if (folder.empty()) return measure();
  const std::string path = folder + "/costs-" + sha256_hex(key).substr(0, 32) + ".json";
  // A cache that cannot be read or written costs a measurement, never a run.
  try {
    if (path_exists(path)) {
      CostTable table = CostTable::parse(path, read_file(path));
      if (fits(table)) return table;
    }
  } catch (const Error&) {
  }
  CostTable table = measure();
  try {
    std::filesystem::create_directories(folder);
    write_file_atomically(path, table.json() + "\n");
  } catch (const std::exception&) {
  }
  return table;
}

}  // namespace bolt
