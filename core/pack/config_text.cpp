// config.json of a package: the model's facts under our names, readable by people.
#include <fmt/format.h>

#include <cfloat>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/pack/package_text.h"

namespace bolt {
namespace {

void write_moe(JsonWriter& json, const Moe& m) {
  json.begin_object()
      .member("n_experts", m.n_experts)
      .member("top_k", m.top_k)
      .member("d_expert", m.d_expert)
      .member("d_shared", m.d_shared)
      .member("d_latent", m.d_latent)
      .member("n_router_groups", m.n_router_groups)
      .member("top_k_groups", m.top_k_groups)
      .member("norm_top_k", m.norm_top_k)
      .member("scaling_factor", m.scaling_factor)
      .end_object();
}

void read_moe(const JsonValue& value, Moe& m) {
  m.n_experts = static_cast<int>(value.at("n_experts").integer(1, kExpertsMax));
  m.top_k = static_cast<int>(value.at("top_k").integer(1, kExpertsMax));
  m.d_expert = static_cast<int>(value.at("d_expert").integer(1, kModelWidthMax));
  m.d_shared = static_cast<int>(value.at("d_shared").integer(0, 64 * kModelWidthMax));
  m.d_latent = static_cast<int>(value.at("d_latent").integer(0, kModelWidthMax));
  m.n_router_groups = static_cast<int>(value.at("n_router_groups").integer(1, kExpertsMax));
  m.top_k_groups = static_cast<int>(value.at("top_k_groups").integer(1, kExpertsMax));
  m.norm_top_k = value.at("norm_top_k").boolean();
  m.scaling_factor = static_cast<float>(value.at("scaling_factor").number());
}

void write_mlp(JsonWriter& json, const Mlp& m) {
  json.begin_object().member("d_ff", m.d_ff).end_object();
}
void read_mlp(const JsonValue& value, Mlp& m) {
  m.d_ff = static_cast<int>(value.at("d_ff").integer(1, 4 * kModelWidthMax));
}

bool same(const Mlp& a, const Mlp& b) { return a.d_ff == b.d_ff; }
bool same(const Moe& a, const Moe& b) {
  return a.n_experts == b.n_experts && a.top_k == b.top_k && a.d_expert == b.d_expert &&
         a.d_shared == b.d_shared && a.d_latent == b.d_latent;
}

// One object if all layers of the kind are alike, else one a layer; nothing where there are none.
template <class Node>
void write_nodes(JsonWriter& json, const char* key, const std::vector<Node>& nodes,
                 void (*write)(JsonWriter&, const Node&)) {
  if (nodes.empty()) return;
  bool alike = true;
  for (const Node& node : nodes) alike = alike && same(node, nodes.front());
  json.key(key);
  if (alike) {
    write(json, nodes.front());
    return;
  }
  json.begin_array();
  for (const Node& node : nodes) write(json, node);
  json.end_array();
}

template <class Node>
void read_nodes(const JsonValue& root, const char* key, const std::string& pattern, char kind,
                std::vector<Node>& nodes, void (*read)(const JsonValue&, Node&)) {
  std::size_t n = 0;
  for (const char c : pattern) n += c == kind;
  if (n == 0) return;
  const JsonValue value = root.at(key);
  nodes.resize(n);
  if (!value.is_array()) {
    for (Node& node : nodes) read(value, node);
    return;
  }
  const auto items = value.items();
  if (items.size() != n) {
    throw Error(Exit::input,
                fmt::format("{} has {} entries, expected {}", value.where(), items.size(), n));
  }
  for (std::size_t i = 0; i < n; ++i) read(items[i], nodes[i]);
}

void write_facts(JsonWriter& json, const ModelFacts& facts) {
  json.member("d_model", facts.d_model)
      .member("norm_eps", facts.norm_eps)
      .member("tied_embedding", facts.tied_embedding)
      .member("layers", facts.pattern);
  if (facts.pattern.find('M') != std::string::npos) {
    const Mamba2& m = facts.mamba2;
    json.key("mamba2")
        .begin_object()
        .member("n_heads", m.n_heads)
        .member("head_dim", m.head_dim)
        .member("d_state", m.d_state)
        .member("n_ssm_groups", m.n_ssm_groups)
        .member("conv_kernel", m.conv_kernel)
        .member("dt_min", m.dt_min)
        .member("dt_max", m.dt_max)
        .end_object();
  }
  if ((facts.pattern + facts.draft_pattern).find('*') != std::string::npos) {
    const Attention& a = facts.attention;
    json.key("attention")
        .begin_object()
        .member("n_heads", a.n_heads)
        .member("n_kv_heads", a.n_kv_heads)
        .member("head_dim", a.head_dim)
        .end_object();
  }
  write_nodes(json, "mlp", facts.mlps, write_mlp);
  write_nodes(json, "moe", facts.moes, write_moe);
  json.member("draft_layers", facts.draft_pattern);
  write_nodes(json, "draft_mlp", facts.draft_mlps, write_mlp);
  write_nodes(json, "draft_moe", facts.draft_moes, write_moe);
}

void read_facts(const JsonValue& root, ModelFacts& facts) {
  facts.d_model = static_cast<int>(root.at("d_model").integer(1, kModelWidthMax));
  facts.vocab_size = static_cast<int>(root.at("vocab_size").integer(1, kVocabularyMax));
  facts.norm_eps = static_cast<float>(root.at("norm_eps").number());
  facts.tied_embedding = root.at("tied_embedding").boolean();
  facts.pattern = root.at("layers").string();
  facts.draft_pattern = root.at("draft_layers").string();
  if (const auto value = root.find("mamba2")) {
    Mamba2& m = facts.mamba2;
    m.n_heads = static_cast<int>(value->at("n_heads").integer(1, kModelWidthMax));
    m.head_dim = static_cast<int>(value->at("head_dim").integer(1, 4096));
    m.d_state = static_cast<int>(value->at("d_state").integer(1, 4096));
    m.n_ssm_groups = static_cast<int>(value->at("n_ssm_groups").integer(1, kModelWidthMax));
    m.conv_kernel = static_cast<int>(value->at("conv_kernel").integer(2, 16));
    m.dt_min = static_cast<float>(value->at("dt_min").number());
    m.dt_max = static_cast<float>(value->at("dt_max").number());
  }
  if (const auto value = root.find("attention")) {
    Attention& a = facts.attention;
    a.n_heads = static_cast<int>(value->at("n_heads").integer(1, 4096));
    a.n_kv_heads = static_cast<int>(value->at("n_kv_heads").integer(1, 4096));
    a.head_dim = static_cast<int>(value->at("head_dim").integer(1, 1024));
  }
  read_nodes(root, "mlp", facts.pattern, '-', facts.mlps, read_mlp);
  read_nodes(root, "moe", facts.pattern, 'E', facts.moes, read_moe);
  read_nodes(root, "draft_mlp", facts.draft_pattern, '-', facts.draft_mlps, read_mlp);
  read_nodes(root, "draft_moe", facts.draft_pattern, 'E', facts.draft_moes, read_moe);
}

void write_model(JsonWriter& json, const ModelConfig& model) {
  json.member("bos_id", model.bos_id)
      .member("add_bos", model.add_bos)
      .member("stop_ids", model.stop_ids);
  json.key("generation")
      .begin_object()
      .member("do_sample", model.do_sample)
      .member("temperature", model.temperature)
      .member("top_k", model.top_k)
      .member("top_p", model.top_p)
      .member("min_p", model.min_p)
      .end_object();
  json.member("chat_template", model.chat_template)
      .member("chat_template_sha256", model.chat_template_sha256)
      .member("chat_facts", model.chat_facts);
}

float read_within(const JsonValue& value, double most) {
  const double x = value.number();
  if (!(x >= 0.0 && x <= most)) value.fail(fmt::format("a number from 0 to {}", most));
  return static_cast<float>(x);
}

void read_chat(const JsonValue& root, ModelConfig& model) {
  const JsonValue kind = root.at("chat_template"), digest = root.at("chat_template_sha256"),
                  facts = root.at("chat_facts");
  model.chat_template = kind.string();
  const bool understood = model.chat_template == "v3" || model.chat_template == "v2";
  if (!understood && model.chat_template != "none") kind.fail("\"v3\", \"v2\" or \"none\"");
  model.chat_template_sha256 = digest.string();
  const bool absent = model.chat_template_sha256.empty() && !understood;
  if (!absent && !is_sha256_hex(model.chat_template_sha256)) digest.fail("64 hexadecimal digits");
  model.chat_facts = facts.string();
  if (understood && model.chat_facts.empty()) facts.fail("the template that chat_template names");
}

void read_model(const JsonValue& root, ModelConfig& model) {
  model.name = root.at("name").string();
  model.model_type = root.at("model_type").string();
  if (model.model_type != "nemotron_h" && model.model_type != "nemotron_h_puzzle") {
    root.at("model_type").fail("nemotron_h or nemotron_h_puzzle");
  }
  model.vocab_size = static_cast<int>(root.at("vocab_size").integer(1, kVocabularyMax));
  model.n_tokens = static_cast<int>(root.at("n_tokens").integer(1, model.vocab_size));
  model.context_limit = root.at("context_limit").integer(1, std::int64_t{1} << 40);
  model.bos_id = static_cast<int>(root.at("bos_id").integer(-1, model.vocab_size - 1));
  model.add_bos = root.at("add_bos").boolean();
  for (const JsonValue& id : root.at("stop_ids").items()) {
    const int least = model.stop_ids.empty() ? 0 : model.stop_ids.back() + 1;
    model.stop_ids.push_back(static_cast<int>(id.integer(least, model.vocab_size - 1)));
  }
  const JsonValue generation = root.at("generation");
  model.do_sample = generation.at("do_sample").boolean();
  model.temperature = read_within(generation.at("temperature"), 1e4);
  model.top_k = static_cast<int>(generation.at("top_k").integer(-1, kVocabularyMax));
  model.top_p = read_within(generation.at("top_p"), 1.0);
  model.min_p = read_within(generation.at("min_p"), 1.0);
  read_chat(root, model);
}

}  // namespace

std::string config_json(const ModelFacts& facts, const ModelConfig& model) {
  JsonWriter json(1);
  json.begin_object()
      .member("name", model.name)
      .member("model_type", model.model_type)
      .member("vocab_size", facts.vocab_size)
      .member("n_tokens", model.n_tokens)
      .member("context_limit", model.context_limit);
  write_facts(json, facts);
  write_model(json, model);
  return json.end_object().take() + "\n";
}

void parse_config_json(const std::string& path, const std::string& text, ModelFacts& facts,
                       ModelConfig& model) {
  const JsonDocument document = JsonDocument::parse(path, text);
  read_facts(document.root(), facts);
  read_model(document.root(), model);
  check_facts(facts, path);
  const std::string expected = config_json(facts, model);
  if (text != expected) {
    throw Error(Exit::input,
                fmt::format("{}: differs from what its own facts spell at {}; run `bolt "
                            "convert` again",
                            path, first_difference(text, expected)));
  }
}

std::string first_difference(const std::string& text, const std::string& expected) {
  std::size_t line = 1;
  for (std::size_t i = 0; i < text.size() && i < expected.size() && text[i] == expected[i]; ++i) {
    line += text[i] == '\n';
  }
  return fmt::format("line {}", line);
}

}  // namespace bolt
