// GGUF's names and keys for the family, as llama.cpp's converter writes them.
#include "core/pack/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/text/tokenizer.h"

namespace bolt {
namespace {

struct Alias {
  std::string_view theirs, ours;
};
// Of a main block, below layers.N.
constexpr Alias kBlock[] = {
    {"attn_norm.weight", "norm.weight"},
    {"ssm_in", "mixer.in_proj"},
    {"ssm_conv1d", "mixer.conv1d"},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_a", "mixer.A"},
    {"ssm_d", "mixer.D"},
    {"ssm_norm.weight", "mixer.norm.weight"},
    {"ssm_out", "mixer.out_proj"},
    {"attn_q", "mixer.q_proj"},
    {"attn_k", "mixer.k_proj"},
    {"attn_v", "mixer.v_proj"},
    {"attn_output", "mixer.o_proj"},
    {"ffn_up", "mixer.up_proj"},
    {"ffn_down", "mixer.down_proj"},
    {"ffn_gate_inp", "mixer.gate"},
    {"exp_probs_b", "mixer.gate.e_score_correction_bias"},
    {"ffn_up_exps", "mixer.experts.up_proj"},
    {"ffn_down_exps", "mixer.experts.down_proj"},
    {"ffn_up_shexp", "mixer.shared_experts.up_proj"},
    {"ffn_down_shexp", "mixer.shared_experts.down_proj"},
    {"ffn_latent_down", "mixer.fc1_latent_proj"},
    {"ffn_latent_up", "mixer.fc2_latent_proj"},
    {"ffn_latent_in", "mixer.fc1_latent_proj"},
    {"ffn_latent_out", "mixer.fc2_latent_proj"},
};
// Of the MTP block alone; the first of its two layers is attention.
constexpr Alias kDraftBlock[] = {
    {"post_attention_norm.weight", "1.norm.weight"},
    {"nextn.eh_proj", "0.eh_proj"},
    {"nextn.enorm.weight", "0.enorm.weight"},
    {"nextn.hnorm.weight", "0.hnorm.weight"},
    {"nextn.shared_head_norm.weight", "1.final_layernorm.weight"},
};
constexpr Alias kGlobals[] = {
    {"token_embd", "embeddings"},
    {"output_norm.weight", "norm_f.weight"},
    {"output", "lm_head"},
};

// `name` under one of `aliases`: whole, or with one of a linear's tails behind it.
template <std::size_t n>
std::string renamed(const Alias (&aliases)[n], std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kTails[] = {
      {"", ""},
      {".weight", ".weight"},
      {".bias", ".bias"},
      {".scale", ".weight_scale_2"},
      {".input_scale", ".input_scale"},
  };
  for (const Alias& alias : aliases) {
    for (const auto& [theirs, ours] : kTails) {
      if (name.size() != alias.theirs.size() + theirs.size() || !name.starts_with(alias.theirs) ||
          !name.ends_with(theirs))
        continue;
      // Experts that are stacked, and the router's bias, have no tail in safetensors.
      const bool bare = (alias.ours.starts_with("mixer.experts.") && theirs == ".weight") ||
                        alias.theirs == "exp_probs_b";
      return std::string(alias.ours) + (bare ? "" : std::string(ours));
    }
  }
  return "";
}

// Index and rest of blk.N.rest; -1 for any other name.
int block_of(std::string_view name, std::string_view& rest) {
  if (!name.starts_with("blk.")) return -1;
  int index = -1;
  const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), index);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.' || index < 0)
    return -1;
  rest = name.substr(static_cast<std::size_t>(end - name.data()) + 1);
  return index;
}

std::string alias_of(std::string_view name, int n_main) {
  std::string_view rest;
  const int block = block_of(name, rest);
  if (block < 0) return renamed(kGlobals, name);
  if (block < n_main) {
    const std::string tail = renamed(kBlock, rest);
    return tail.empty() ? "" : fmt::format("layers.{}.{}", block, tail);
  }
  if (block > n_main) return "";
  std::string tail = renamed(kDraftBlock, rest);
  if (tail.empty()) {
    tail = renamed(kBlock, rest);
    if (tail.empty()) return "";
    const bool second = tail.starts_with("mixer.") && !rest.starts_with("attn_");
    tail = (second ? "1." : "0.") + tail;
  }
  return "mtp.layers." + tail;
}

// GGUF drops or adds dimensions of 1; the family's own shapes come back here.
void restore_shape(Tensor& tensor) {
  const std::string& name = tensor.alias;
  auto& shape = tensor.shape;
  if (name.ends_with("mixer.conv1d.weight") && shape.size() == 2) {
    shape.insert(shape.begin() + 1, 1);
  } else if (name.ends_with("mixer.A") || name.ends_with("mixer.D") ||
             name.ends_with("mixer.norm.weight") || name.ends_with("conv1d.bias")) {
    shape = {tensor.n_elements()};
  }
}

class ConfigReader {
 public:
  ConfigReader(GgufCheckpoint& opened, const Tokenizer& tokenizer)
      : opened_(opened), m_(opened.metadata), tokenizer_(tokenizer) {}

  CheckpointConfig run() {
    const std::string_view arch = m_.string("general.architecture");
    if (arch != "nemotron_h" && arch != "nemotron_h_moe") {
      m_.fail("general.architecture",
              fmt::format("is \"{}\", expected nemotron_h or nemotron_h_moe: bolt runs the "
                          "Nemotron-H family only",
                          arch.substr(0, 64)));
    }
    prefix_ = std::string(arch) + ".";
    const int n_blocks = size("block_count", 1, kLayersMax);
    const int n_draft = size("nextn_predict_layers", 0, 0, 64);
    if (n_draft > 1) m_.fail(prefix_ + "nextn_predict_layers", "is above 1");
    n_main_ = n_blocks - n_draft;
    if (n_main_ < 1) m_.fail(prefix_ + "block_count", "counts no main block");
    ff_ = m_.integers(prefix_ + "feed_forward_length", static_cast<std::size_t>(n_blocks), 0,
                      4 * kModelWidthMax);
    kv_ = m_.integers(prefix_ + "attention.head_count_kv", static_cast<std::size_t>(n_blocks), 0,
                      4096);
    read_names();
    CheckpointConfig config;
    config.model.model_type = "nemotron_h";
    config.draft_declared = n_draft > 0;
    config.facts = facts();
    check_facts(config.facts, m_.path);
    config.has_conv_bias = false;  // bound where a block has one
    config.model.vocab_size = config.facts.vocab_size;
    config.model.context_limit =
        m_.integer(prefix_ + "context_length", 8192, 1, std::int64_t{1} << 40);
    read_ids(config.model);
    return config;
  }

 private:
  int size(const char* key, std::int64_t min, std::int64_t max) const {
    return static_cast<int>(m_.integer(prefix_ + key, min, max));
  }
  int size(const char* key, std::int64_t otherwise, std::int64_t min, std::int64_t max) const {
    return static_cast<int>(m_.integer(prefix_ + key, otherwise, min, max));
  }
  bool has(int block, const char* part) const {
    return opened_.checkpoint.tensors.contains(fmt::format("blk.{}.{}", block, part));
  }

  void read_names() {
    for (auto& [name, tensor] : opened_.checkpoint.tensors) {
      tensor.alias = alias_of(name, n_main_);
      restore_shape(tensor);
    }
  }

  // Kinds by the tensors; the lists of widths must say the same.
  char kind_of(int block) const {
    const auto i = static_cast<std::size_t>(block);
    char kind = '-';
    if (has(block, "ssm_in.weight")) {
      kind = 'M';
    } else if (has(block, "attn_q.weight")) {
      kind = '*';
    } else if (has(block, "ffn_gate_inp.weight")) {
      kind = 'E';
    }
    // Scalars speak of all blocks at once, and say nothing of one.
    const GgufValue* ff = m_.find(prefix_ + "feed_forward_length");
    const GgufValue* kv = m_.find(prefix_ + "attention.head_count_kv");
    if (ff && kv && ff->type == GgufValue::Type::array && kv->type == GgufValue::Type::array) {
      const bool attends = kv_[i] > 0, forwards = ff_[i] > 0;
      if (attends != (kind == '*') || forwards != (kind == '-' || kind == 'E')) {
        m_.fail(prefix_ + "feed_forward_length",
                fmt::format("is {} and attention.head_count_kv {} for block {}, whose tensors are "
                            "of another kind",
                            ff_[i], kv_[i], block));
      }
    }
    return kind;
  }

  int first_positive(const char* key, std::size_t n) const {
    const auto all = m_.integers(prefix_ + key, n, 0, 1 << 20);
    const auto at = std::find_if(all.begin(), all.end(), [](std::int64_t x) { return x > 0; });
    if (at == all.end()) m_.fail(prefix_ + key, "is missing or all 0");
    return static_cast<int>(*at);
  }

  Moe moe() const {
    Moe moe;
    moe.n_experts = size("expert_count", 1, kExpertsMax);
    moe.top_k = size("expert_used_count", 1, kExpertsMax);
    moe.d_expert = size("expert_feed_forward_length", 1, kModelWidthMax);
    const int n_shared = size("expert_shared_count", 0, 0, 64);
    if (n_shared > 0) {
      moe.d_shared = n_shared * size("expert_shared_feed_forward_length", 1, kModelWidthMax);
    }
    moe.d_latent = size("moe_latent_size", 0, 0, kModelWidthMax);
    moe.n_router_groups = std::max(1, size("expert_group_count", 1, 0, kExpertsMax));
    moe.top_k_groups = std::max(1, size("expert_group_used_count", 1, 0, kExpertsMax));
    moe.norm_top_k = m_.boolean(prefix_ + "expert_weights_norm", true);
    moe.scaling_factor = static_cast<float>(m_.number(prefix_ + "expert_weights_scale", 1.0));
    if (!(moe.scaling_factor > 0.0f && moe.scaling_factor < 1e6f)) {
      m_.fail(prefix_ + "expert_weights_scale", "is no positive number");
    }
    return moe;
  }

  void add_widths(char kind, int block, std::vector<Mlp>& mlps, std::vector<Moe>& moes) const {
    if (kind == 'E') moes.push_back(moe());
    if (kind != '-') return;
    Mlp mlp;
    if (ff_.empty()) m_.fail(prefix_ + "feed_forward_length", "is missing");
    mlp.d_ff = static_cast<int>(ff_[static_cast<std::size_t>(block)]);
    mlps.push_back(mlp);
  }

  ModelFacts facts() const {
    ModelFacts facts;
    facts.d_model = size("embedding_length", 1, kModelWidthMax);
    const auto embedding = opened_.checkpoint.tensors.find("token_embd.weight");
    if (embedding == opened_.checkpoint.tensors.end()) {
      throw Error(Exit::input, m_.path +
                                   ": tensor token_embd.weight is missing; a draft head alone, or "
                                   "part of a split?");
    }
    facts.vocab_size = size("vocab_size", embedding->second.shape.front(), 1, kVocabularyMax);
    const double eps = m_.number(prefix_ + "attention.layer_norm_rms_epsilon",
                                 m_.number(prefix_ + "attention.layer_norm_epsilon", 1e-5));
    facts.norm_eps = static_cast<float>(eps);
    facts.tied_embedding = !opened_.checkpoint.tensors.contains("output.weight");
    for (int i = 0; i < n_main_; ++i) {
      facts.pattern += kind_of(i);
      add_widths(facts.pattern.back(), i, facts.mlps, facts.moes);
    }
    const bool draft_moe =
        has(n_main_, "ffn_gate_inp.weight") ||
        (!has(n_main_, "ffn_up.weight") && facts.pattern.find('E') != std::string::npos);
    facts.draft_pattern = draft_moe ? "*E" : "*-";
    if (has(n_main_, "attn_q.weight")) {
      add_widths(facts.draft_pattern.back(), n_main_, facts.draft_mlps, facts.draft_moes);
    } else {
      facts.draft_pattern.clear();
    }
    Mamba2& mamba = facts.mamba2;
    if (facts.pattern.find('M') != std::string::npos) {
      mamba.n_heads = size("ssm.time_step_rank", 1, kModelWidthMax);
      const int inner = size("ssm.inner_size", 1, 4 * kModelWidthMax);
      if (inner % mamba.n_heads != 0) {
        m_.fail(prefix_ + "ssm.inner_size",
                fmt::format("is {}, no multiple of the {} heads", inner, mamba.n_heads));
      }
      mamba.head_dim = inner / mamba.n_heads;
      mamba.d_state = size("ssm.state_size", 1, 4096);
      mamba.n_ssm_groups = size("ssm.group_count", 1, kModelWidthMax);
      mamba.conv_kernel = size("ssm.conv_kernel", 2, 16);
    }
    if ((facts.pattern + facts.draft_pattern).find('*') != std::string::npos) {
      Attention& attention = facts.attention;
      const auto n = static_cast<std::size_t>(size("block_count", 1, kLayersMax));
      attention.n_heads = first_positive("attention.head_count", n);
      attention.n_kv_heads = first_positive("attention.head_count_kv", n);
      attention.head_dim = size("attention.key_length", 128, 1, 1024);
      if (size("attention.value_length", attention.head_dim, 1, 1024) != attention.head_dim) {
        m_.fail(prefix_ + "attention.value_length", "differs from attention.key_length");
      }
    }
    return facts;
  }

  void read_ids(ModelConfig& model) const {
    model.n_tokens = tokenizer_.n_tokens();
    if (model.n_tokens > model.vocab_size) {
      throw Error(Exit::input, fmt::format("{}: the tokenizer has id {}, but the model {} rows",
                                           m_.path, model.n_tokens - 1, model.vocab_size));
    }
    const auto id = [&](const char* key) {
      return static_cast<int>(m_.integer(key, -1, 0, model.vocab_size - 1));
    };
    model.bos_id = id("tokenizer.ggml.bos_token_id");
    std::vector<int> stops;
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                            "tokenizer.ggml.eom_token_id"}) {
      if (const int stop = id(key); stop >= 0) stops.push_back(stop);
    }
    if (const auto ids = m_.find("tokenizer.ggml.eos_token_ids")) {
      for (std::uint64_t i = 0; i < ids->n; ++i) {
        std::int64_t stop = -1;
        if (!ids->integer(i, stop) || stop < 0 || stop >= model.vocab_size) {
          m_.fail("tokenizer.ggml.eos_token_ids", "holds what is no token id");
        }
        stops.push_back(static_cast<int>(stop));
      }
    }
    // GGUF keeps one end id; like llama.cpp, the other turn enders are known by their names.
    for (const char* name : {"<|im_end|>", "</s>"}) {
      if (const auto found = tokenizer_.id_of(name); found && tokenizer_.is_special(*found)) {
        stops.push_back(*found);
      }
    }
    std::sort(stops.begin(), stops.end());
    stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
    model.stop_ids = stops;
    if (!tokenizer_.prefix_ids().empty()) {
      model.bos_id = tokenizer_.prefix_ids().front();
      model.add_bos = true;
    }
  }

  GgufCheckpoint& opened_;
  const GgufMetadata& m_;
  const Tokenizer& tokenizer_;
  std::string prefix_;
  int n_main_ = 0;
  std::vector<std::int64_t> ff_, kv_;
};

}  // namespace

CheckpointConfig read_gguf_config(GgufCheckpoint& opened, const Tokenizer& tokenizer) {
  return ConfigReader(opened, tokenizer).run();
}

}  // namespace bolt
