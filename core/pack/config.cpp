// config.json of a Hugging Face checkpoint: aliases, defaults, refusals.
#include "core/pack/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/printable.h"
#include "core/pack/defaults.h"
#include "core/pack/file_kind.h"

namespace bolt {
namespace {

// The one table of spellings: our word for a field, then every name that checkpoints use.
struct Alias {
  std::string_view ours;
  std::initializer_list<std::string_view> theirs;
};
const Alias kAliases[] = {
    {"pattern", {"hybrid_override_pattern", "layers_block_type", "layer_types"}},
    {"draft_pattern", {"mtp_hybrid_override_pattern", "mtp_layers_block_type"}},
    {"n_draft_modules", {"num_nextn_predict_layers"}},
    {"d_model", {"hidden_size"}},
    {"vocab_size", {"vocab_size"}},
    {"norm_eps", {"layer_norm_epsilon", "rms_norm_eps", "norm_eps"}},
    {"context_limit", {"max_position_embeddings"}},
    {"tied_embedding", {"tie_word_embeddings"}},
    {"n_ssm_groups", {"n_groups", "mamba_n_groups", "mamba_num_groups"}},
    {"conv_kernel", {"conv_kernel", "mamba_d_conv"}},
    {"conv_bias", {"use_conv_bias", "mamba_conv_bias"}},
    {"d_state", {"ssm_state_size", "mamba_state_dim"}},
    {"n_mamba_heads", {"mamba_num_heads"}},
    {"mamba_head_dim", {"mamba_head_dim"}},
    {"dt_limit", {"time_step_limit", "mamba_dt_limit"}},
    {"n_heads", {"num_attention_heads"}},
    {"n_kv_heads", {"num_key_value_heads"}},
    {"head_dim", {"head_dim", "attention_head_dim"}},
    {"d_ff", {"intermediate_size"}},
    {"n_experts", {"n_routed_experts", "num_local_experts"}},
    {"top_k", {"num_experts_per_tok"}},
    {"n_shared_experts", {"n_shared_experts"}},
    {"d_expert", {"moe_intermediate_size"}},
    {"d_shared", {"moe_shared_expert_intermediate_size"}},
    {"d_latent", {"moe_latent_size"}},
    {"scaling_factor", {"routed_scaling_factor"}},
    {"n_router_groups", {"n_group"}},
    {"top_k_groups", {"topk_group"}},
    {"norm_top_k", {"norm_topk_prob"}},
    {"mlp_activation", {"mlp_hidden_act"}},
    {"mamba_activation", {"mamba_hidden_act"}},
    {"blocks", {"block_configs"}},
    {"draft_blocks", {"mtp_block_configs"}},
};

// Biases that no model of the family has; one that is true would be lost without a word.
constexpr std::string_view kBiases[] = {"use_bias", "mamba_proj_bias", "mlp_bias",
                                        "attention_bias"};

// Reads fields of one object by our names.
class Fields {
 public:
  explicit Fields(JsonValue object, std::string prefix = "")
      : object_(std::move(object)), prefix_(std::move(prefix)) {}

  // The value under any of its spellings; null counts as absent. Two spellings must agree.
  std::optional<JsonValue> find(std::string_view ours) const {
    std::optional<JsonValue> found;
    for (const Alias& alias : kAliases) {
      if (alias.ours != ours) continue;
      for (const std::string_view theirs : alias.theirs) {
        auto value = object_.find_set(prefix_ + std::string(theirs));
        if (!value) continue;
        if (found && found->shown() != value->shown()) {
          value->fail(fmt::format("{} as {} says", found->shown(), found->where()));
        }
        if (!found) found = value;
      }
      return found;
    }
    require(false, "a field in the table of aliases");
    return found;
  }
  int integer(std::string_view ours, int otherwise, int min, int max) const {
    const auto value = find(ours);
    return value ? static_cast<int>(value->integer(min, max)) : otherwise;
  }
  int integer(std::string_view ours, int min, int max) const {
    const auto value = find(ours);
    return value ? static_cast<int>(value->integer(min, max)) : missing(ours);
  }
  bool boolean(std::string_view ours, bool otherwise) const {
    const auto value = find(ours);
    return value ? value->boolean() : otherwise;
  }
  const JsonValue& object() const { return object_; }

 private:
  [[noreturn]] int missing(std::string_view ours) const {
    for (const Alias& alias : kAliases) {
      if (alias.ours != ours) continue;
      for (const std::string_view theirs : alias.theirs) {
        if (const auto null = object_.find(prefix_ + std::string(theirs))) null->fail("an integer");
      }
      object_.at(prefix_ + std::string(*alias.theirs.begin()));
    }
    require(false, "a field in the table of aliases");
    std::abort();
  }
  JsonValue object_;
  std::string prefix_;
};

constexpr std::pair<std::string_view, char> kLayerWords[] = {
    {"mamba", 'M'},     {"linear_attention", 'M'},
    {"attention", '*'}, {"full_attention", '*'},
    {"mlp", '-'},       {"moe", 'E'},
};

std::string pattern_of(const JsonValue& value) {
  std::string pattern;
  if (value.is_string()) {
    pattern = value.string();
    const auto bad = pattern.find_first_not_of("M*-E");
    if (bad != std::string::npos) {
      const std::string shown = printable(std::string_view(pattern).substr(bad, 1));
      throw Error(Exit::input, fmt::format("{}: layer {} is '{}', expected one of M * - E",
                                           value.where(), bad, shown));
    }
    return pattern;
  }
  for (const JsonValue& item : value.items()) {
    char letter = 0;
    for (const auto& [word, kind] : kLayerWords) {
      if (item.string() == word) letter = kind;
    }
    if (letter == 0) item.fail("mamba, linear_attention, attention, full_attention, mlp or moe");
    pattern += letter;
  }
  return pattern;
}

// The pattern in whichever of its spellings are there, which must say the same.
std::string read_pattern(const Fields& fields, std::string_view ours) {
  std::string pattern;
  std::string first;
  for (const Alias& alias : kAliases) {
    if (alias.ours != ours) continue;
    for (const std::string_view theirs : alias.theirs) {
      const auto value = fields.object().find_set(theirs);
      if (!value) continue;
      const std::string found = pattern_of(*value);
      if (!first.empty() && found != pattern) {
        throw Error(Exit::input, fmt::format("{} says {}, but {} says {}", value->where(), found,
                                             first, pattern));
      }
      pattern = found;
      first = value->where();
    }
  }
  return pattern;
}

float read_float(const JsonValue& value) {
  const double x = value.number();
  if (std::isnan(x)) value.fail("a number");
  return static_cast<float>(x);
}

void read_dt_limit(const Fields& fields, Mamba2& mamba) {
  const auto limit = fields.find("dt_limit");
  if (!limit) return;
  const auto items = limit->items();
  if (items.size() != 2) limit->fail("a pair of numbers");
  mamba.dt_min = read_float(items[0]);
  const float most = read_float(items[1]);
  // 0 in the graph says "no clamp"; a lower limit alone keeps the greatest float as the upper.
  mamba.dt_max = std::isinf(most) ? (mamba.dt_min > 0.0f ? FLT_MAX : 0.0f) : most;
  if (!std::isinf(most) && most <= 0.0f) items[1].fail("a number above 0");
}

Moe read_moe(const Fields& fields) {
  Moe moe;
  moe.n_experts = fields.integer("n_experts", 8, 1, kExpertsMax);
  moe.top_k = fields.integer("top_k", 2, 1, kExpertsMax);
  moe.d_expert = fields.integer("d_expert", 7688, 1, kModelWidthMax);
  const int n_shared = fields.integer("n_shared_experts", 1, 0, 64);
  moe.d_shared = n_shared * fields.integer("d_shared", 7688, 0, kModelWidthMax);
  moe.d_latent = fields.integer("d_latent", 0, 0, kModelWidthMax);
  moe.n_router_groups = fields.integer("n_router_groups", 1, 1, kExpertsMax);
  moe.top_k_groups = fields.integer("top_k_groups", 1, 1, kExpertsMax);
  moe.norm_top_k = fields.boolean("norm_top_k", true);
  if (const auto factor = fields.find("scaling_factor")) {
    moe.scaling_factor = read_float(*factor);
    if (!std::isfinite(moe.scaling_factor)) factor->fail("a finite number");
  }
  return moe;
}

// nemotron_h_puzzle: sizes that differ from layer to layer, or (prefix mtp_) in the draft head.
void read_sizes(const Fields& fields, Moe& moe) {
  moe.n_experts = fields.integer("n_experts", moe.n_experts, 1, kExpertsMax);
  moe.top_k = fields.integer("top_k", moe.top_k, 1, kExpertsMax);
  moe.d_expert = fields.integer("d_expert", moe.d_expert, 1, kModelWidthMax);
  moe.d_shared = fields.integer("d_shared", moe.d_shared, 0, kModelWidthMax);
  moe.d_latent = fields.integer("d_latent", moe.d_latent, 0, kModelWidthMax);
}

// Fills `moes`, one for each E of the pattern; blocks are listed for every layer, or every E.
void read_moes(const Fields& fields, std::string_view blocks_name, const std::string& pattern,
               std::vector<Moe>& moes) {
  const auto n = static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), 'E'));
  if (n == 0) return;
  Moe common = read_moe(fields);
  if (blocks_name == "draft_blocks") read_sizes(Fields(fields.object(), "mtp_"), common);
  moes.assign(n, common);
  const auto blocks = fields.find(blocks_name);
  if (!blocks) return;
  const auto items = blocks->items();
  if (items.size() != pattern.size() && items.size() != n) {
    throw Error(Exit::input, fmt::format("{} has {} entries, expected {}, one a layer",
                                         blocks->where(), items.size(), pattern.size()));
  }
  std::size_t moe = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items.size() == pattern.size() && pattern[i] != 'E') continue;
    read_sizes(Fields(items[i]), moes[moe++]);
  }
}

// Widths by MLP ordinal, or one for all. The draft head, which no list counts, takes the first.
void read_mlps(const Fields& fields, const std::string& pattern, bool draft,
               std::vector<Mlp>& mlps) {
  const auto n = static_cast<std::size_t>(std::count(pattern.begin(), pattern.end(), '-'));
  if (n == 0) return;
  const auto width = fields.find("d_ff");
  const auto mlp = [](const JsonValue& value) {
    Mlp one;
    one.d_ff = static_cast<int>(value.integer(1, 4 * kModelWidthMax));
    return one;
  };
  if (width && width->is_array()) {
    const auto items = width->items();
    if (draft && !items.empty()) {
      mlps.assign(n, mlp(items[0]));
      return;
    }
    if (items.size() != n) {
      throw Error(Exit::input, fmt::format("{} has {} entries, expected {}, one an MLP layer",
                                           width->where(), items.size(), n));
    }
    for (const JsonValue& item : items) mlps.push_back(mlp(item));
    return;
  }
  Mlp common;
  common.d_ff = fields.integer("d_ff", 21504, 1, 4 * kModelWidthMax);
  mlps.assign(n, common);
}

void refuse_unsupported(const Fields& fields) {
  for (const std::string_view name : kBiases) {
    const auto bias = fields.object().find_set(name);
    if (bias && bias->boolean()) bias->fail("false; this bias is not supported");
  }
  if (const auto window = fields.object().find_set("sliding_window")) {
    window->fail("null; sliding windows are not supported");
  }
  const auto expect_word = [&](std::string_view ours, std::string_view word) {
    const auto value = fields.find(ours);
    if (value && value->string() != word) value->fail(json_quote(word));
  };
  expect_word("mlp_activation", "relu2");
  expect_word("mamba_activation", "silu");
  if (const auto scoring = fields.object().find_set("scoring_func")) {
    if (scoring->string() != "sigmoid") scoring->fail("\"sigmoid\"");
  }
}

bool known_type(std::string_view type) {
  return type == "nemotron_h" || type == "nemotron_h_puzzle";
}

// The object that describes the text model: the file's own, or the one a wrapper holds.
JsonValue text_config(const JsonValue& root, bool& wrapped) {
  for (const char* name : {"llm_config", "text_config"}) {
    if (auto inner = root.find_set(name)) {
      wrapped = true;
      return *inner;
    }
  }
  return root;
}

std::string model_type(const JsonValue& root, const JsonValue& text) {
  const auto type = text.find_set("model_type");
  if (type && known_type(type->string())) return std::string(type->string());
  if (type) {
    throw Error(Exit::input, fmt::format("{} is {}, expected nemotron_h or nemotron_h_puzzle: bolt "
                                         "runs the Nemotron-H family only",
                                         type->where(), type->shown()));
  }
  // Some wrapped configs name only their architecture.
  for (const JsonValue* object : {&text, &root}) {
    const auto names = object->find_set("architectures");
    if (!names) continue;
    for (const JsonValue& name : names->items()) {
      if (name.string().starts_with("NemotronH")) return "nemotron_h";
    }
  }
  text.at("model_type").fail("nemotron_h or nemotron_h_puzzle");
}

ModelFacts read_facts(const Fields& fields, CheckpointConfig& config) {
  ModelFacts facts;
  facts.pattern = read_pattern(fields, "pattern");
  if (facts.pattern.empty()) {
    throw Error(Exit::input,
                fmt::format("{}: neither hybrid_override_pattern nor layers_block_type "
                            "is given; they list the kinds of the layers",
                            fields.object().where()));
  }
  facts.d_model = fields.integer("d_model", 1, kModelWidthMax);
  facts.vocab_size = fields.integer("vocab_size", 1, kVocabularyMax);
  if (const auto eps = fields.find("norm_eps")) facts.norm_eps = read_float(*eps);
  facts.tied_embedding = fields.boolean("tied_embedding", false);

  Mamba2& mamba = facts.mamba2;
  mamba.n_heads = fields.integer("n_mamba_heads", 128, 1, kModelWidthMax);
  mamba.head_dim = fields.integer("mamba_head_dim", 64, 1, 4096);
  mamba.d_state = fields.integer("d_state", 128, 1, 4096);
  mamba.n_ssm_groups = fields.integer("n_ssm_groups", 8, 1, kModelWidthMax);
  mamba.conv_kernel = fields.integer("conv_kernel", 4, 2, 16);
  read_dt_limit(fields, mamba);
  config.has_conv_bias = fields.boolean("conv_bias", true);

  Attention& attention = facts.attention;
  attention.n_heads = fields.integer("n_heads", 32, 1, 4096);
  // Null says as many as query heads; absent, the family's 8.
  const auto kv = fields.object().find("num_key_value_heads");
  attention.n_kv_heads =
      kv && kv->is_null() ? attention.n_heads : fields.integer("n_kv_heads", 8, 1, 4096);
  attention.head_dim = fields.integer("head_dim", 128, 1, 1024);

  read_mlps(fields, facts.pattern, /*draft=*/false, facts.mlps);
  read_moes(fields, "blocks", facts.pattern, facts.moes);

  facts.draft_pattern = read_pattern(fields, "draft_pattern");
  const int n_modules = fields.integer("n_draft_modules", 0, 0, 64);
  config.draft_declared = n_modules > 0;
  if (n_modules > 1) {
    fields.find("n_draft_modules")->fail("0 or 1; convert --without-mtp leaves the MTP head out");
  }
  if (facts.draft_pattern.empty()) {
    facts.draft_pattern = facts.pattern.find('E') != std::string::npos ? "*E" : "*-";
  }
  if (facts.draft_pattern.find('M') != std::string::npos) {
    throw Error(Exit::input,
                fmt::format("{}: the MTP head's pattern is {}, expected attention, MLP and MoE "
                            "layers only; convert --without-mtp leaves the head out",
                            fields.object().where(), facts.draft_pattern));
  }
  read_mlps(fields, facts.draft_pattern, /*draft=*/true, facts.draft_mlps);
  read_moes(fields, "draft_blocks", facts.draft_pattern, facts.draft_moes);
  return facts;
}

CheckpointConfig read(const JsonDocument& document) {
  CheckpointConfig config;
  const JsonValue root = document.root();
  const JsonValue text = text_config(root, config.wrapped);
  const Fields fields(text);
  config.model.model_type = model_type(root, text);
  refuse_unsupported(fields);
  config.facts = read_facts(fields, config);
  check_facts(config.facts, document.name());
  config.model.vocab_size = config.facts.vocab_size;
  const auto limit = fields.find("context_limit");
  config.model.context_limit = limit ? limit->integer(1, std::int64_t{1} << 40) : 8192;
  read_token_ids(text, config.model);
  if (config.wrapped) read_token_ids(root, config.model);
  return config;
}

}  // namespace

CheckpointConfig read_config_file(const std::string& path) {
  return read(load_json(path, {.python_numbers = true}));
}

CheckpointConfig read_checkpoint_config(const std::string& folder, const Tokenizer& tokenizer) {
  CheckpointConfig config = read_config_file(folder + "/config.json");
  read_defaults(folder, tokenizer, config.model);
  return config;
}

}  // namespace bolt
