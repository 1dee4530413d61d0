// Fields of a drafter's config.json: spellings, defaults, refusals.
#include "core/pack/drafter_config.h"

#include <fmt/format.h>

#include <initializer_list>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/file_map.h"
#include "core/base/json.h"
#include "core/pack/block_drafter.h"
#include "core/pack/file_kind.h"
#include "core/pack/model_facts.h"

namespace bolt {
namespace {

constexpr int kUsualBlockSize = 8;  // of checkpoints that do not say

// Architectures that draft from tapped residuals, too, in ways that bolt does not run.
constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
    {"DFlash2", "DFlash2 (a convolution in the block and a selector of candidates)"},
    {"LiLiCorr", "LiLiCorr"},
    {"Eagle3", "EAGLE-3 (one layer run token by token)"},
    {"Eagle", "EAGLE (one layer run token by token)"},
};

class Fields {
 public:
  explicit Fields(const JsonValue& root) : root_(root), nested_(root.find_set("dflash_config")) {}

  // A field under its spellings, at the top or in dflash_config; all that are there must agree.
  std::optional<JsonValue> find(std::initializer_list<std::string_view> names) const {
    std::optional<JsonValue> found;
    const auto look = [&](const JsonValue& object, std::string_view name) {
      const auto value = object.find_set(name);
      if (!value) return;
      if (found && found->json() != value->json()) {
        value->fail(fmt::format("{} as {} says", found->shown(), found->where()));
      }
      found = value;
    };
    for (const std::string_view name : names) {
      look(root_, name);
      if (nested_) look(*nested_, name);
    }
    return found;
  }
  int integer(std::string_view name, std::int64_t min, std::int64_t max) const {
    const auto value = find({name});
    return static_cast<int>((value ? *value : root_.at(name)).integer(min, max));
  }
  bool boolean(std::initializer_list<std::string_view> names, bool otherwise) const {
    const auto value = find(names);
    return value ? value->boolean() : otherwise;
  }
  void expect(std::initializer_list<std::string_view> names, std::string_view word) const {
    const auto value = find(names);
    if (value && value->string() != word) value->fail(json_quote(word));
  }

 private:
  JsonValue root_;
  std::optional<JsonValue> nested_;
};

std::optional<BlockKind> kind_of(std::string_view architecture) {
  if (architecture == "Qwen3DSparkModel") return BlockKind::dspark;
  if (architecture == "DFlashDraftModel") return BlockKind::dflash;
  return std::nullopt;
}

BlockKind read_kind(const JsonValue& root) {
  const JsonValue names = root.at("architectures");
  const auto items = names.items();
  if (items.size() != 1) names.fail("one architecture");
  const std::string_view name = items[0].string();
  if (const auto kind = kind_of(name)) return *kind;
  for (const auto& [part, what] : kOthers) {
    if (name.find(part) == name.npos) continue;
    throw Error(Exit::input, fmt::format("{}: {} is not supported; bolt runs DSpark "
                                         "(Qwen3DSparkModel) and DFlash (DFlashDraftModel)",
                                         items[0].where(), what));
  }
  items[0].fail("Qwen3DSparkModel (DSpark) or DFlashDraftModel (DFlash)");
}

void read_taps(const Fields& fields, const JsonValue& root, BlockDrafter& d) {
  const auto layers = fields.find({"target_layer_ids"});
  const auto behind = fields.find({"eagle_aux_hidden_state_layer_ids"});  // counted from 1
  if (!layers && !behind) root.at("target_layer_ids");
  const auto items = (layers ? *layers : *behind).items();
  for (const JsonValue& item : items) {
    d.taps.push_back(static_cast<int>(item.integer(0, kLayersMax)) - (layers ? 0 : 1));
  }
  if (layers && behind) {
    const auto others = behind->items();
    bool same = others.size() == d.taps.size();
    for (std::size_t i = 0; same && i < others.size(); ++i) {
      same = others[i].integer() == d.taps[i] + 1;
    }
    if (!same) behind->fail("target_layer_ids, each plus 1");
  }
  const auto count = fields.find({"num_aux_layers"});
  if (count && count->integer() != d.n_taps()) {
    count->fail(fmt::format("{}, as many as target_layer_ids has", d.n_taps()));
  }
}

void read_window(const Fields& fields, int n_layers, BlockDrafter& d) {
  int n_sliding = 0;
  const auto types = fields.find({"layer_types"});
  if (types) {
    const auto items = types->items();
    if (static_cast<int>(items.size()) != n_layers) types->fail("one type a layer");
    for (const JsonValue& item : items) {
      if (item.string() == "sliding_attention") {
        ++n_sliding;
      } else if (item.string() != "full_attention") {
        item.fail("sliding_attention or full_attention");
      }
    }
    if (n_sliding > 0 && n_sliding < n_layers) types->fail("the same type for every layer");
  }
  const auto window = fields.find({"sliding_window", "swa_window_size"});
  const bool slides = fields.boolean({"use_swa"}, types ? n_sliding > 0 : window.has_value());
  if (types && slides != (n_sliding > 0)) types->fail("sliding layers where use_swa says so");
  if (!slides) return;
  if (!window && types) types->fail("full_attention, for no sliding_window is given");
  d.window = window ? static_cast<int>(window->integer(1, 1 << 20))
                    : fields.integer("sliding_window", 1, 1 << 20);  // says that it is missing
}

void read_rope(const Fields& fields, BlockDrafter& d) {
  const auto number = [](const JsonValue& value) { return static_cast<float>(value.number()); };
  if (const auto theta = fields.find({"rope_theta"})) d.rope.theta = number(*theta);
  const auto scaling = fields.find({"rope_parameters", "rope_scaling"});
  if (!scaling) return;
  if (const auto theta = scaling->find_set("rope_theta")) d.rope.theta = number(*theta);
  auto type = scaling->find_set("rope_type");
  if (!type) type = scaling->find_set("type");
  if (!type || type->string() == "default") return;
  if (type->string() != "yarn") type->fail("\"yarn\" or \"default\"");
  d.rope.factor = number(scaling->at("factor"));
  d.rope.original_positions =
      static_cast<int>(scaling->at("original_max_position_embeddings").integer(1, 1 << 24));
  if (const auto beta = scaling->find_set("beta_fast")) d.rope.beta_fast = number(*beta);
  if (const auto beta = scaling->find_set("beta_slow")) d.rope.beta_slow = number(*beta);
  for (const char* name : {"mscale", "mscale_all_dim", "attention_factor"}) {
    if (const auto other = scaling->find_set(name)) other->fail("nothing: it is not supported");
  }
}

// What says that the checkpoint is of another scheme, or brings what the target has.
void refuse_unsupported(const Fields& fields, const BlockDrafter& d) {
  const auto refuse = [&](std::initializer_list<std::string_view> names, std::string_view why) {
    const auto value = fields.find(names);
    if (value && value->boolean()) value->fail(fmt::format("false: {}", why));
  };
  refuse({"sample_from_anchor"},
         "drafters whose rows predict the token behind them are not supported");
  refuse({"has_lm_head"}, "drafters with a head of their own are not supported");
  refuse({"attention_bias"}, "this bias is not supported");
  refuse({"mlp_bias"}, "this bias is not supported");
  const auto table = fields.find({"has_embed_tokens"});
  if (table && !table->boolean()) {
    table->fail("true: the mask's row of embed_tokens is the drafter's own");
  }
  fields.expect({"hidden_act"}, "silu");
  const auto causal = fields.find({"causal", "dflash_query_causal"});
  if (causal && causal->boolean() != d.is_causal()) {
    causal->fail(d.is_causal() ? "true, as DSpark is" : "false, as DFlash is");
  }
}

}  // namespace

bool is_drafter_checkpoint(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (!path_exists(path)) return false;
  const JsonDocument document = load_json(path, {.python_numbers = true});
  const auto names = document.root().find_set("architectures");
  if (!names || !names->is_array()) return false;
  for (const JsonValue& name : names->items()) {
    if (name.is_string() && kind_of(name.string())) return true;
  }
  return false;
}

DrafterConfig read_drafter_config(const std::string& folder, const Graph& target) {
  const std::string path = folder + "/config.json";
  const JsonDocument document = load_json(path, {.python_numbers = true});
  const JsonValue root = document.root();
  DrafterConfig config;
  BlockDrafter& d = config.drafter;
  d.kind = read_kind(root);
  const Fields fields(root);
  refuse_unsupported(fields, d);
  const auto expect_size = [&](std::string_view name, int size, const char* what) {
    const auto value = fields.find({name});
    const JsonValue found = value ? *value : root.at(name);
    if (found.integer() == size) return;
    found.fail(fmt::format("{}, {}; is the drafter another model's?", size, what));
  };
  expect_size("hidden_size", target.d_model, "the target's width");
  expect_size("vocab_size", target.vocab_size, "the target's vocabulary");
  if (const auto own = fields.find({"draft_vocab_size"})) {
    if (own->integer() != target.vocab_size) {
      own->fail("null: drafters with a vocabulary of their own are not supported");
    }
  }
  config.n_layers = fields.integer("num_hidden_layers", 1, kLayersMax);
  d.n_heads = fields.integer("num_attention_heads", 1, kModelWidthMax);
  d.n_kv_heads = fields.integer("num_key_value_heads", 1, kModelWidthMax);
  d.head_dim = fields.integer("head_dim", 1, kModelWidthMax);
  d.d_ff = fields.integer("intermediate_size", 1, kModelWidthMax);
  const auto eps = fields.find({"rms_norm_eps"});
  d.norm_eps = static_cast<float>((eps ? *eps : root.at("rms_norm_eps")).number());
  const auto mask = fields.find({"mask_token_id", "pard_token"});
  d.mask_id = static_cast<int>(
      (mask ? *mask : root.at("mask_token_id")).integer(0, std::numeric_limits<int>::max()));
  const auto block = fields.find({"block_size"});
  d.block_size = block ? static_cast<int>(block->integer(2, kVocabularyMax)) : kUsualBlockSize;
  d.has_sinks = fields.boolean({"attention_sink_bias"}, false);
  if (const auto rank = fields.find({"markov_rank", "dspark_markov_rank"})) {
    d.markov_rank = static_cast<int>(rank->integer(0, kModelWidthMax));
    fields.expect({"markov_head_type"}, "vanilla");
    fields.expect({"dspark_fixup_head_type"}, "markov");
  }
  read_taps(fields, root, d);
  read_window(fields, config.n_layers, d);
  read_rope(fields, d);
  check_drafter(d, config.n_layers, target, path);
  return config;
}

}  // namespace bolt
