// Shapes of a drafter's weights; its file's text and back.
#include "core/pack/block_drafter.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/pack/graph_walk.h"
#include "core/pack/model_facts.h"
#include "core/pack/package_text.h"
#include "core/pack/tiles.h"

namespace bolt {
namespace {

constexpr int kBlockRowsMax = 32;

Weight vector(int n, int n_matrices = 1) {
  Weight w;
  w.n_matrices = n_matrices;
  w.n_rows = 1;
  w.n_cols = n;
  return w;
}
Weight matrix(int n_rows, int n_cols, int n_matrices = 1, Layout layout = Layout::tiles) {
  Weight w;
  w.format = Format::bf16;
  w.layout = layout;
  w.n_matrices = n_matrices;
  w.n_rows = n_rows;
  w.n_cols = n_cols;
  return w;
}

}  // namespace

void shape_drafter(BlockDrafter& d, int n_layers, const Graph& target) {
  const int d_model = target.d_model;
  d.mask_embedding = vector(d_model);
  d.fc = matrix(d_model, d.n_taps() * d_model);
  d.hidden_norm = vector(d_model);
  d.kv_proj = matrix(d.n_kv_cols(), d_model, 2 * n_layers);
  d.k_norm = vector(d.head_dim, n_layers);
  d.layers.resize(static_cast<std::size_t>(n_layers));
  for (BlockLayer& layer : d.layers) {
    layer.input_norm = vector(d_model);
    layer.q_proj = matrix(d.n_heads * d.head_dim, d_model);
    layer.q_norm = vector(d.head_dim);
    if (d.has_sinks) layer.sinks = vector(d.n_heads);
    layer.o_proj = matrix(d_model, d.n_heads * d.head_dim);
    layer.post_norm = vector(d_model);
    layer.gate_proj = matrix(d.d_ff, d_model);
    layer.up_proj = matrix(d.d_ff, d_model);
    layer.down_proj = matrix(d_model, d.d_ff);
  }
  d.final_norm = vector(d_model);
  if (d.markov_rank == 0) return;
  d.markov_w1 = matrix(target.vocab_size, d.markov_rank, 1, Layout::plain);
  d.markov_w2 = matrix(target.vocab_size, d.markov_rank);
}

void check_drafter(const BlockDrafter& d, int n_layers, const Graph& target,
                   const std::string& name) {
  const auto range = [&](const char* what, std::int64_t x, std::int64_t min, std::int64_t max) {
    if (x >= min && x <= max) return;
    throw Error(Exit::input,
                fmt::format("{}: {} is {}, expected {} to {}", name, what, x, min, max));
  };
  const auto fail = [&](const std::string& problem) {
    throw Error(Exit::input, fmt::format("{}: {}", name, problem));
  };
  range("the number of layers", n_layers, 1, 256);
  range("the block size", d.block_size, 2, kBlockRowsMax);
  range("the mask's id", d.mask_id, 0, target.vocab_size - 1);
  range("the number of attention heads", d.n_heads, 1, 4096);
  range("the number of key-value heads", d.n_kv_heads, 1, d.n_heads);
  if (d.n_heads % d.n_kv_heads != 0) {
    fail(fmt::format("{} attention heads are no multiple of {} key-value heads", d.n_heads,
                     d.n_kv_heads));
  }
  range("the head size", d.head_dim, 2, 1024);
  if (d.head_dim % 2 != 0 || d.n_kv_cols() % kTileRows != 0) {
    fail(fmt::format("{} key-value heads of {} are no multiple of {}", d.n_kv_heads, d.head_dim,
                     kTileRows));
  }
  range("the MLP width", d.d_ff, 1, 4 * kModelWidthMax);
  range("the Markov rank", d.markov_rank, 0, kModelWidthMax);
  if (d.window != 0) range("the sliding window", d.window, d.block_size, 1 << 20);
  range("the number of tapped layers", d.n_taps(), 1, 64);
  for (std::size_t i = 0; i < d.taps.size(); ++i) {
    const int least = i == 0 ? 0 : d.taps[i - 1] + 1;
    if (d.taps[i] >= least && d.taps[i] < static_cast<int>(target.layers.size())) continue;
    fail(
        fmt::format("tapped layer {} is {}, expected {} to {}: the target has {} layers; is the "
                    "drafter another model's?",
                    i, d.taps[i], least, target.layers.size() - 1, target.layers.size()));
  }
  if (!(d.norm_eps > 0.0f && d.norm_eps < 1.0f)) fail("the norm epsilon is not between 0 and 1");
  const Rope& r = d.rope;
  if (!(r.theta > 1.0f && r.theta < 1e9f)) fail("the rotary base is not between 1 and 1e9");
  if (!(r.factor >= 1.0f && r.factor <= 65536.0f)) fail("the YaRN factor is not 1 to 65536");
  if (r.factor > 1.0f) {
    range("YaRN's original positions", r.original_positions, 1, 1 << 24);
    if (!(r.beta_slow > 0.0f && r.beta_fast > r.beta_slow && r.beta_fast < 1e9f)) {
      fail("YaRN's betas are not in order, between 0 and 1e9");
    }
  }
}

std::string drafter_json(const BlockDrafter& d) {
  JsonWriter json(1);
  json.begin_object()
      .member("kind", kind_name(d.kind))
      .member("block_size", d.block_size)
      .member("mask_id", d.mask_id)
      .member("taps", d.taps)
      .member("n_layers", d.layers.size())
      .member("n_heads", d.n_heads)
      .member("n_kv_heads", d.n_kv_heads)
      .member("head_dim", d.head_dim)
      .member("d_ff", d.d_ff)
      .member("norm_eps", d.norm_eps)
      .member("window", d.window)
      .member("sinks", d.has_sinks)
      .member("markov_rank", d.markov_rank);
  json.key("rope")
      .begin_object()
      .member("theta", d.rope.theta)
      .member("factor", d.rope.factor)
      .member("original_positions", d.rope.original_positions)
      .member("beta_fast", d.rope.beta_fast)
      .member("beta_slow", d.rope.beta_slow)
      .end_object();
  json.key("nodes").begin_array();
  const auto node = [&](const char* op, auto... weights) {
    json.begin_object().member("op", op).key("weights").begin_object();
    (write_weight(json, weights.first, *weights.second), ...);
    json.end_object().end_object();
  };
  using Named = std::pair<const char*, const Weight*>;
  node("block_input", Named{"mask_embedding", &d.mask_embedding});
  node("context", Named{"fc", &d.fc}, Named{"hidden_norm", &d.hidden_norm},
       Named{"kv_proj", &d.kv_proj}, Named{"k_norm", &d.k_norm});
  for (const BlockLayer& l : d.layers) {
    node("block_attention", Named{"input_norm", &l.input_norm}, Named{"q_proj", &l.q_proj},
         Named{"q_norm", &l.q_norm}, Named{"sinks", &l.sinks}, Named{"o_proj", &l.o_proj});
    node("gated_mlp", Named{"post_norm", &l.post_norm}, Named{"gate_proj", &l.gate_proj},
         Named{"up_proj", &l.up_proj}, Named{"down_proj", &l.down_proj});
  }
  node("norm", Named{"final_norm", &d.final_norm});
  if (d.markov_rank > 0) {
    node("markov", Named{"markov_w1", &d.markov_w1}, Named{"markov_w2", &d.markov_w2});
  }
  return json.end_array().end_object().take() + "\n";
}

BlockDrafter parse_drafter_json(const std::string& path, const std::string& text,
                                const Graph& target) {
  const JsonDocument document = JsonDocument::parse(path, text);
  const JsonValue root = document.root();
  const auto number = [&](const char* key, std::int64_t most) {
    return static_cast<int>(root.at(key).integer(0, most));
  };
  BlockDrafter d;
  const JsonValue kind = root.at("kind");
  if (kind.string() == "dflash") {
    d.kind = BlockKind::dflash;
  } else if (kind.string() != "dspark") {
    kind.fail("dspark or dflash");
  }
  d.block_size = number("block_size", 1 << 20);
  d.mask_id = number("mask_id", kVocabularyMax);
  for (const JsonValue& layer : root.at("taps").items()) {
    d.taps.push_back(static_cast<int>(layer.integer(0, kLayersMax)));
  }
  const int n_layers = number("n_layers", kLayersMax);
  d.n_heads = number("n_heads", kModelWidthMax);
  d.n_kv_heads = number("n_kv_heads", kModelWidthMax);
  d.head_dim = number("head_dim", kModelWidthMax);
  d.d_ff = number("d_ff", 4 * kModelWidthMax);
  d.norm_eps = static_cast<float>(root.at("norm_eps").number());
  d.window = number("window", 1 << 24);
  d.has_sinks = root.at("sinks").boolean();
  d.markov_rank = number("markov_rank", kModelWidthMax);
  const JsonValue rope = root.at("rope");
  d.rope.theta = static_cast<float>(rope.at("theta").number());
  d.rope.factor = static_cast<float>(rope.at("factor").number());
  d.rope.original_positions = static_cast<int>(rope.at("original_positions").integer(0, 1 << 24));
  d.rope.beta_fast = static_cast<float>(rope.at("beta_fast").number());
  d.rope.beta_slow = static_cast<float>(rope.at("beta_slow").number());
  check_drafter(d, n_layers, target, path);
  shape_drafter(d, n_layers, target);

  // Weights by name: those of layer i stand in nodes 2 + 2i and 3 + 2i.
  std::map<std::string, JsonValue> places;
  const auto nodes = root.at("nodes").items();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const bool of_layer = i >= 2 && i < 2 + 2 * static_cast<std::size_t>(n_layers);
    const std::string at =
        fmt::format("{}.{}", kind_name(d.kind),
                    of_layer ? fmt::format("layers.{}.", (i - 2) / 2) : std::string());
    for (const auto& [name, weight] : nodes[i].at("weights").members()) {
      places.emplace(at + std::string(name), weight);
    }
  }
  each_drafter_weight(d, [&](const std::string& name, Weight& w) {
    if (!w.present()) return;
    const auto place = places.find(name);
    if (place == places.end()) {
      throw Error(Exit::input, fmt::format("{}: weight {} is missing", path, name));
    }
    read_weight(place->second, w);
  });
  const std::string expected = drafter_json(d);
  if (text != expected) {
    throw Error(Exit::input,
                fmt::format("{}: differs from what its own facts spell at {}; run `bolt convert "
                            "--drafter-for` again",
                            path, first_difference(text, expected)));
  }
  return d;
}

}  // namespace bolt
