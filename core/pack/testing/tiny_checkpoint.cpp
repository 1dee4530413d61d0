// Making small random checkpoints.
#include "core/pack/testing/tiny_checkpoint.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "core/base/bits.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/pack/byte_tokenizer.h"
#include "core/pack/convert.h"
#include "core/pack/generated.h"
#include "core/pack/graph_walk.h"

namespace bolt::testing {
namespace {

// Round to nearest even; finite inputs only.
std::uint16_t to_bf16(float x) {
  const std::uint32_t u = float_bits(x);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void append_value(std::string& bytes, const std::string& dtype, float x) {
  if (dtype == "F32") {
    bytes.append(reinterpret_cast<const char*>(&x), 4);
    return;
  }
  const std::uint16_t h = dtype == "BF16" ? to_bf16(x) : float_to_f16(x);
  bytes.append(reinterpret_cast<const char*>(&h), 2);
}

// A checkpoint's tail for each weight of ours, "{}" for the expert.
const std::map<std::string, std::string> kTails = {
    {"norm", "norm.weight"},
    {"in_proj", "mixer.in_proj.weight"},
    {"conv_w", "mixer.conv1d.weight"},
    {"conv_b", "mixer.conv1d.bias"},
    {"A", "mixer.A_log"},
    {"D", "mixer.D"},
    {"dt_bias", "mixer.dt_bias"},
    {"gate_norm", "mixer.norm.weight"},
    {"out_proj", "mixer.out_proj.weight"},
    {"q_proj", "mixer.q_proj.weight"},
    {"k_proj", "mixer.k_proj.weight"},
    {"v_proj", "mixer.v_proj.weight"},
    {"o_proj", "mixer.o_proj.weight"},
    {"up_proj", "mixer.up_proj.weight"},
    {"down_proj", "mixer.down_proj.weight"},
    {"router", "mixer.gate.weight"},
    {"router_bias", "mixer.gate.e_score_correction_bias"},
    {"latent_down", "mixer.fc1_latent_proj.weight"},
    {"latent_up", "mixer.fc2_latent_proj.weight"},
    {"shared_up", "mixer.shared_experts.up_proj.weight"},
    {"shared_down", "mixer.shared_experts.down_proj.weight"},
};

class TensorMaker {
 public:
  explicit TensorMaker(const TinySpec& spec) : spec_(spec) {}

  std::vector<TestTensor> all() {
    const Graph graph = graph_skeleton(tiny_facts(spec_));
    each_weight(graph, [&](const std::string& name, const Weight& w) { add(name, w); });
    return std::move(tensors_);
  }

 private:
  void add(const std::string& name, const Weight& w) {
    const std::size_t dot = name.rfind('.');
    const std::string part = dot == std::string::npos ? name : name.substr(dot + 1);
    std::string prefix = spec_.prefix;
    if (name.starts_with("draft.")) {
      prefix = prefix.starts_with("language_model.") ? "language_model.mtp." : "mtp.";
      const std::string last = std::to_string(spec_.draft_pattern.size() - 1);
      if (part == "final_norm")
        return put(prefix + "layers." + last + ".final_layernorm.weight", name, w, 0, 1);
      if (part == "enorm" || part == "hnorm" || part == "eh_proj") {
        return put(prefix + "layers.0." + part + ".weight", name, w, 0, 1);
      }
    }
    if (name == "embedding") return put(prefix + "embeddings.weight", name, w, 0, 1);
    if (name == "final_norm") return put(prefix + "norm_f.weight", name, w, 0, 1);
    if (name == "lm_head") {
      if (!spec_.tied)
        put((prefix.starts_with("language_model.") ? "language_model." : "") +
                std::string("lm_head.weight"),
            name, w, 0, 1);
      return;
    }
    if (part == "conv_b" && !spec_.conv_bias) return;
    const std::size_t at = name.find("layers.");
    const std::string layer = prefix + name.substr(at, name.rfind('.') - at + 1);
    if (part == "experts_up" || part == "experts_down") {
      const std::string which = part == "experts_up" ? "up_proj" : "down_proj";
      if (spec_.stacked_experts)
        return put(layer + "mixer.experts." + which, name, w, 0, w.n_matrices);
      for (int e = 0; e < w.n_matrices; ++e) {
        put(fmt::format("{}mixer.experts.{}.{}.weight", layer, e, which), name, w, e, 1);
      }
      return;
    }
    put(layer + kTails.at(part), name, w, 0, 1);
  }

  void put(const std::string& theirs, const std::string& ours, const Weight& w, int matrix,
           int n_matrices) {
    const std::string part = ours.substr(ours.rfind('.') + 1);
    const bool special = part == "A" || part == "D" || part == "dt_bias" || part == "router_bias";
    TestTensor tensor;
    tensor.name = theirs;
    tensor.dtype = special ? spec_.vector_dtype : spec_.dtype;
    if (n_matrices > 1) tensor.shape.push_back(n_matrices);
    if (w.layout == Layout::tiles || w.n_rows > 1) tensor.shape.push_back(w.n_rows);
    if (part == "conv_w") tensor.shape.push_back(1);
    tensor.shape.push_back(w.n_cols);
    const Spread spread = generated_spread(ours, w);
    const std::uint64_t seed = spec_.seed * 1000003 + std::hash<std::string>{}(ours);
    const auto n = static_cast<std::uint64_t>(w.n_rows) * static_cast<std::uint64_t>(w.n_cols);
    for (std::uint64_t i = 0; i < n * static_cast<std::uint64_t>(n_matrices); ++i) {
      float x = spread.low + (spread.high - spread.low) *
                                 random_unit(seed, static_cast<std::uint64_t>(matrix) * n + i);
      if (part == "A") x = std::log(-x);  // the checkpoint holds A_log
      append_value(tensor.bytes, tensor.dtype, x);
    }
    tensors_.push_back(std::move(tensor));
  }

  const TinySpec& spec_;
  std::vector<TestTensor> tensors_;
};

std::string header_of(const std::vector<TestTensor>& tensors) {
  JsonWriter json;
  json.begin_object().key("__metadata__").begin_object().member("format", "pt").end_object();
  std::uint64_t at = 0;
  for (const TestTensor& tensor : tensors) {
    json.key(tensor.name)
        .begin_object()
        .member("dtype", tensor.dtype)
        .member("shape", tensor.shape);
    json.member("data_offsets", std::vector<std::uint64_t>{at, at + tensor.bytes.size()})
        .end_object();
    at += tensor.bytes.size();
  }
  return json.end_object().take();
}

}  // namespace

ModelFacts tiny_facts(const TinySpec& spec) {
  ModelFacts facts;
  facts.d_model = spec.d_model;
  facts.vocab_size = spec.vocab_size;
  facts.tied_embedding = spec.tied;
  facts.pattern = spec.pattern;
  facts.draft_pattern = spec.draft_pattern;
  facts.mamba2.n_heads = spec.mamba_heads;
  facts.mamba2.head_dim = spec.mamba_head_dim;
  facts.mamba2.d_state = spec.d_state;
  facts.mamba2.n_ssm_groups = spec.n_ssm_groups;
  facts.mamba2.conv_kernel = spec.conv_kernel;
  facts.attention.n_heads = spec.n_heads;
  facts.attention.n_kv_heads = spec.n_kv_heads;
  facts.attention.head_dim = spec.head_dim;
  Mlp mlp;
  mlp.d_ff = spec.d_ff;
  Moe moe;
  moe.n_experts = spec.n_experts;
  moe.top_k = spec.top_k;
  moe.d_expert = spec.d_expert;
  moe.d_shared = spec.d_shared;
  moe.d_latent = spec.d_latent;
  moe.n_router_groups = spec.n_router_groups;
  moe.top_k_groups = spec.top_k_groups;
  moe.scaling_factor = 2.5f;
  const auto fill = [&](const std::string& pattern, std::vector<Mlp>& mlps,
                        std::vector<Moe>& moes) {
    for (const char kind : pattern) {
      if (kind == '-') mlps.push_back(mlp);
      if (kind == 'E') moes.push_back(moe);
    }
  };
  fill(spec.pattern, facts.mlps, facts.moes);
  fill(spec.draft_pattern, facts.draft_mlps, facts.draft_moes);
  return facts;
}

std::vector<TestTensor> tiny_tensors(const TinySpec& spec) { return TensorMaker(spec).all(); }

std::string tiny_config_json(const TinySpec& spec) {
  std::vector<std::pair<std::string, std::string>> members = {
      {"architectures", "[\"NemotronHForCausalLM\"]"},
      {"model_type", "\"nemotron_h\""},
      {"vocab_size", std::to_string(spec.vocab_size)},
      {"hidden_size", std::to_string(spec.d_model)},
      {"hybrid_override_pattern", json_quote(spec.pattern)},
      {"num_attention_heads", std::to_string(spec.n_heads)},
      {"num_key_value_heads", std::to_string(spec.n_kv_heads)},
      {"head_dim", std::to_string(spec.head_dim)},
      {"max_position_embeddings", "4096"},
      {"intermediate_size", std::to_string(spec.d_ff)},
      {"mamba_num_heads", std::to_string(spec.mamba_heads)},
      {"mamba_head_dim", std::to_string(spec.mamba_head_dim)},
      {"ssm_state_size", std::to_string(spec.d_state)},
      {"n_groups", std::to_string(spec.n_ssm_groups)},
      {"conv_kernel", std::to_string(spec.conv_kernel)},
      {"use_conv_bias", spec.conv_bias ? "true" : "false"},
      {"time_step_limit", "[0.0, Infinity]"},
      {"n_routed_experts", std::to_string(spec.n_experts)},
      {"n_shared_experts", spec.d_shared > 0 ? "1" : "0"},
      {"num_experts_per_tok", std::to_string(spec.top_k)},
      {"moe_intermediate_size", std::to_string(spec.d_expert)},
      {"moe_shared_expert_intermediate_size", std::to_string(spec.d_shared)},
      {"moe_latent_size", spec.d_latent > 0 ? std::to_string(spec.d_latent) : "null"},
      {"n_group", std::to_string(spec.n_router_groups)},
      {"topk_group", std::to_string(spec.top_k_groups)},
      {"norm_topk_prob", "true"},
      {"routed_scaling_factor", "2.5"},
      {"layer_norm_epsilon", "1e-05"},
      {"tie_word_embeddings", spec.tied ? "true" : "false"},
      {"num_nextn_predict_layers", spec.draft_pattern.empty() ? "0" : "1"},
      {"mtp_hybrid_override_pattern",
       spec.draft_pattern.empty() ? "" : json_quote(spec.draft_pattern)},
      {"bos_token_id", "1"},
      {"eos_token_id", "2"},
  };
  for (const auto& [key, value] : spec.config) {
    bool found = false;
    for (auto& member : members) {
      if (member.first != key) continue;
      member.second = value;
      found = true;
    }
    if (!found) members.emplace_back(key, value);
  }
  std::string text = "{";
  for (const auto& [key, value] : members) {
    if (!value.empty())
      text += fmt::format("{}\n  {}: {}", text.size() > 1 ? "," : "", json_quote(key), value);
  }
  return text + "\n}\n";
}

void write_tiny_checkpoint(const std::string& folder, const TinySpec& spec) {
  write_tiny_checkpoint(folder, spec, tiny_tensors(spec));
}

void write_tiny_checkpoint(const std::string& folder, const TinySpec& spec,
                           const std::vector<TestTensor>& tensors) {
  std::filesystem::create_directories(folder);
  write_file_atomically(folder + "/config.json", tiny_config_json(spec));
  write_file_atomically(folder + "/generation_config.json",
                        "{\"bos_token_id\": 1, \"eos_token_id\": [2, 11], \"do_sample\": false}\n");
  write_file_atomically(folder + "/tokenizer_config.json",
                        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"<|im_end|>\"}}\n");
  write_file_atomically(folder + "/tokenizer.json", byte_tokenizer_json(spec.vocab_size));
  write_file_atomically(folder + "/chat_template.jinja", generated_chat_template());
  if (spec.n_shards == 1) return write_safetensors(folder + "/model.safetensors", tensors);
  std::string map;
  const auto n_shards = static_cast<std::size_t>(spec.n_shards);
  const std::size_t step = (tensors.size() + n_shards - 1) / n_shards;
  for (std::size_t shard = 0; shard * step < tensors.size(); ++shard) {
    const std::string name =
        fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, spec.n_shards);
    const std::size_t end = std::min(tensors.size(), (shard + 1) * step);
    const std::vector<TestTensor> part(tensors.begin() + static_cast<std::ptrdiff_t>(shard * step),
                                       tensors.begin() + static_cast<std::ptrdiff_t>(end));
    write_safetensors(folder + "/" + name, part);
    for (const TestTensor& tensor : part) {
      map += fmt::format("{}{}: {}", map.empty() ? "" : ", ", json_quote(tensor.name),
                         json_quote(name));
    }
  }
  write_file_atomically(folder + "/model.safetensors.index.json",
                        "{\"metadata\": {}, \"weight_map\": {" + map + "}}\n");
}

void write_safetensors(const std::string& path, const std::vector<TestTensor>& tensors) {
  std::string data;
  for (const TestTensor& tensor : tensors) data += tensor.bytes;
  write_raw_safetensors(path, header_of(tensors), data);
}

void write_raw_safetensors(const std::string& path, const std::string& header,
                           const std::string& data) {
  const std::uint64_t n = header.size();
  std::string bytes(reinterpret_cast<const char*>(&n), 8);
  write_file_atomically(path, bytes + header + data);
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "bolt-test-XXXXXX").string();
  require(mkdtemp(name.data()) != nullptr, "a temporary folder");
  path_ = name;
}
TemporaryFolder::~TemporaryFolder() { remove_tree(path_); }

void make_tiny_package(const std::string& package, const TinySpec& spec, bool q8) {
  const TemporaryFolder folder;
  write_tiny_checkpoint(folder / "checkpoint", spec);
  ConvertOptions options;
  options.source = folder / "checkpoint";
  options.target = package;
  if (q8) options.quant = Format::q8;
  options.n_threads = 1;
  options.force = true;
  options.bolt_version = "test";
  convert(options);
}

}  // namespace bolt::testing
