// graph.json: the ordered nodes with their shapes and weights, and the row geometry.
#include <fmt/format.h>

#include <map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/pack/graph_walk.h"
#include "core/pack/package_text.h"
#include "core/pack/tile_codec.h"

namespace bolt {
namespace {

constexpr std::pair<Geometry::Kind, std::string_view> kGeometries[] = {
    {Geometry::Kind::dynamic, "dynamic"},
    {Geometry::Kind::fixed, "fixed"},
    {Geometry::Kind::hybrid, "hybrid"},
};

std::string_view layout_name(Layout layout) { return layout == Layout::plain ? "plain" : "tiles"; }

}  // namespace

void write_weight(JsonWriter& json, const std::string& name, const Weight& w) {
  if (!w.present()) return;
  json.key(name)
      .begin_object()
      .member("format", format_name(w.format))
      .member("layout", layout_name(w.layout))
      .member("shape", std::vector<int>{w.n_matrices, w.n_rows, w.n_cols})
      .member("file", w.file)
      .member("offset", w.offset)
      .member("bytes", w.bytes);
  if (has_gain(w.format)) json.member("gain_offset", w.gain_offset);
  json.end_object();
}

namespace {

void write_sizes(JsonWriter& json, const Mamba2& m) {
  json.member("op", "mamba2")
      .member("n_heads", m.n_heads)
      .member("head_dim", m.head_dim)
      .member("d_state", m.d_state)
      .member("n_ssm_groups", m.n_ssm_groups)
      .member("conv_kernel", m.conv_kernel)
      .member("dt_min", m.dt_min)
      .member("dt_max", m.dt_max);
}
void write_sizes(JsonWriter& json, const Attention& a) {
  json.member("op", "attention")
      .member("n_heads", a.n_heads)
      .member("n_kv_heads", a.n_kv_heads)
      .member("head_dim", a.head_dim);
}
void write_sizes(JsonWriter& json, const Mlp& m) {
  json.member("op", "mlp").member("d_ff", m.d_ff);
}
void write_sizes(JsonWriter& json, const Moe& m) {
  json.member("op", "moe")
      .member("n_experts", m.n_experts)
      .member("top_k", m.top_k)
      .member("d_expert", m.d_expert)
      .member("d_shared", m.d_shared)
      .member("d_latent", m.d_latent)
      .member("n_router_groups", m.n_router_groups)
      .member("top_k_groups", m.top_k_groups)
      .member("norm_top_k", m.norm_top_k)
      .member("scaling_factor", m.scaling_factor);
}

void write_layers(JsonWriter& json, const std::vector<Layer>& layers) {
  for (const Layer& layer : layers) {
    json.begin_object();
    std::visit([&](const auto& mixer) { write_sizes(json, mixer); }, layer.mixer);
    json.key("weights").begin_object();
    each_layer_weight(layer,
                      [&](const char* name, const Weight& w) { write_weight(json, name, w); });
    json.end_object().end_object();
  }
}

// A node that is one weight: embed, norm, lm_head.
void write_single(JsonWriter& json, const char* op, const char* name, const Weight& w) {
  json.begin_object().member("op", op).key("weights").begin_object();
  write_weight(json, name, w);
  json.end_object().end_object();
}

void write_draft(JsonWriter& json, const DraftHead& draft) {
  json.begin_object().member("op", "draft_input").key("weights").begin_object();
  write_weight(json, "enorm", draft.enorm);
  write_weight(json, "hnorm", draft.hnorm);
  write_weight(json, "eh_proj", draft.eh_proj);
  json.end_object().end_object();
  write_layers(json, draft.layers);
  write_single(json, "norm", "final_norm", draft.final_norm);
  if (draft.vocab_head.present()) write_single(json, "lm_head", "vocab_head", draft.vocab_head);
}

// Places of the weights as the file lists them, by the full names of graph_walk.h.
class WeightPlaces {
 public:
  WeightPlaces(const JsonValue& root, std::size_t n_layers, std::size_t n_draft_layers) {
    add_nodes(root.at("nodes"), "", n_layers);
    const JsonValue draft = root.at("draft");
    if (!draft.is_null()) add_nodes(draft, "draft.", n_draft_layers);
  }
  const JsonValue* find(const std::string& name) const {
    const auto at = places_.find(name);
    return at == places_.end() ? nullptr : &at->second;
  }

 private:
  // The nodes between the first and the closing ones are the layers.
  void add_nodes(const JsonValue& nodes, const std::string& prefix, std::size_t n_layers) {
    const auto items = nodes.items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const bool layer = i >= 1 && i <= n_layers;
      const std::string at = layer ? fmt::format("{}layers.{}.", prefix, i - 1) : prefix;
      for (const auto& [name, weight] : items[i].at("weights").members()) {
        places_.emplace(at + std::string(name), weight);
      }
    }
  }
  std::map<std::string, JsonValue> places_;
};

}  // namespace

void read_weight(const JsonValue& place, Weight& w) {
  const JsonValue format = place.at("format");
  Format found = Format::f32;
  if (!format_named(format.string(), found)) format.fail("a format that bolt-package(5) lists");
  // Vectors are f32. The embedding, plain as shaped, lies in tiles where its format has codes.
  if (w.layout == Layout::plain && w.format == Format::f32 && found != Format::f32) {
    format.fail("\"f32\"");
  }
  if (w.layout == Layout::plain && is_integer(found)) w.layout = Layout::tiles;
  w.format = found;
  if (w.n_cols % block_cols(found) != 0 && block_cols(found) > kGroupCols) {
    format.fail(fmt::format("another format: {} columns are no multiple of its {}", w.n_cols,
                            block_cols(found)));
  }
  const JsonValue layout = place.at("layout");
  if (layout.string() != layout_name(w.layout)) layout.fail(layout_name(w.layout));
  const JsonValue shape = place.at("shape");
  const std::vector<std::int64_t> expected{w.n_matrices, w.n_rows, w.n_cols};
  const auto items = shape.items();
  bool same = items.size() == expected.size();
  for (std::size_t i = 0; same && i < items.size(); ++i) same = items[i].integer() == expected[i];
  if (!same)
    shape.fail(fmt::format("[{},{},{}] as config.json says", w.n_matrices, w.n_rows, w.n_cols));
  w.file = place.at("file").string();
  w.offset = place.at("offset").unsigned_integer();
  if (w.offset % 4096 != 0) place.at("offset").fail("a multiple of 4096");
  w.bytes = place.at("bytes").unsigned_integer();
  if (w.bytes != weight_bytes(w)) {
    place.at("bytes").fail(fmt::format("{}, which shape and format need", weight_bytes(w)));
  }
  if (has_gain(w.format)) {
    w.gain_offset = place.at("gain_offset").unsigned_integer();
    if (w.gain_offset % 64 != 0) place.at("gain_offset").fail("a multiple of 64");
  }
}

namespace {

void read_geometry(const JsonValue& value, Geometry& geometry) {
  const JsonValue kind = value.at("kind");
  bool known = false;
  for (const auto& [k, name] : kGeometries) {
    if (kind.string() != name) continue;
    geometry.kind = k;
    known = true;
  }
  if (!known) kind.fail("dynamic, fixed or hybrid");
  const bool rows = geometry.kind != Geometry::Kind::dynamic;
  geometry.n_rows = static_cast<int>(value.at("n_rows").integer(rows ? 1 : 0, rows ? 32 : 0));
}

}  // namespace

std::string graph_json(const Graph& graph) {
  JsonWriter json(1);
  json.begin_object()
      .member("d_model", graph.d_model)
      .member("vocab_size", graph.vocab_size)
      .member("norm_eps", graph.norm_eps);
  json.key("geometry").begin_object();
  for (const auto& [kind, name] : kGeometries) {
    if (kind == graph.geometry.kind) json.member("kind", name);
  }
  json.member("n_rows", graph.geometry.n_rows).end_object();
  json.key("nodes").begin_array();
  write_single(json, "embed", "embedding", graph.embedding);
  write_layers(json, graph.layers);
  write_single(json, "norm", "final_norm", graph.final_norm);
  write_single(json, "lm_head", "lm_head", graph.lm_head);
  json.end_array();
  json.key("draft");
  if (graph.draft) {
    json.begin_array();
    write_draft(json, *graph.draft);
    json.end_array();
  } else {
    json.null();
  }
  return json.end_object().take() + "\n";
}

void parse_graph_json(const std::string& path, const std::string& text, Graph& graph) {
  const JsonDocument document = JsonDocument::parse(path, text);
  const JsonValue root = document.root();
  read_geometry(root.at("geometry"), graph.geometry);
  const WeightPlaces places(root, graph.layers.size(),
                            graph.draft ? graph.draft->layers.size() : 0);
  if (graph.draft && places.find("draft.vocab_head")) {
    // Its rows are the draft vocabulary's ids; package.cpp checks the count against
    // draft_vocab.json.
    Weight& w = graph.draft->vocab_head;
    const auto shape = places.find("draft.vocab_head")->at("shape").items();
    w.layout = Layout::tiles;
    w.n_matrices = 1;
    w.n_rows = shape.size() == 3 ? static_cast<int>(shape[1].integer(1, graph.vocab_size)) : 1;
    w.n_cols = graph.d_model;
  }
  each_weight(graph, [&](const std::string& name, Weight& w) {
    const JsonValue* place = places.find(name);
    if (!place) throw Error(Exit::input, fmt::format("{}: weight {} is missing", path, name));
    read_weight(*place, w);
  });
  const std::string expected = graph_json(graph);
  if (text != expected) {
    throw Error(Exit::input,
                fmt::format("{}: differs from what config.json implies at {}; run `bolt "
                            "convert` again",
                            path, first_difference(text, expected)));
  }
}

}  // namespace bolt
