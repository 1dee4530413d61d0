// Planning and generating a drafter's checkpoint.
#include "core/pack/make_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "core/base/bits.h"
#include "core/base/cpu.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/output.h"
#include "core/base/thread_pool.h"
#include "core/pack/block_drafter.h"
#include "core/pack/generated.h"
#include "core/pack/graph_walk.h"

namespace bolt {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

// visit(tensor's name without .weight, package's name of the weight, its shape, whether NVFP4).
void each_tensor(
    const BlockDrafter& d, const Graph& target,
    const std::function<void(const std::string&, const std::string&, const Weight&, bool)>& visit) {
  const std::string at = std::string(kind_name(d.kind)) + ".";
  visit("embed_tokens", at + "embedding", target.embedding, false);
  visit("fc", at + "fc", d.fc, true);
  visit("hidden_norm", at + "hidden_norm", d.hidden_norm, false);
  visit("norm", at + "final_norm", d.final_norm, false);
  Weight kv = d.kv_proj, k_norm = d.k_norm;
  kv.n_matrices = k_norm.n_matrices = 1;
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    const BlockLayer& l = d.layers[i];
    const std::string in = fmt::format("layers.{}.", i), ours = at + in, a = in + "self_attn.";
    visit(in + "input_layernorm", ours + "input_norm", l.input_norm, false);
    visit(in + "post_attention_layernorm", ours + "post_norm", l.post_norm, false);
    visit(a + "q_proj", ours + "q_proj", l.q_proj, false);
    visit(a + "k_proj", ours + "k_proj", kv, false);
    visit(a + "v_proj", ours + "v_proj", kv, false);
    visit(a + "o_proj", ours + "o_proj", l.o_proj, false);
    visit(a + "q_norm", ours + "q_norm", l.q_norm, false);
    visit(a + "k_norm", ours + "k_norm", k_norm, false);
    if (l.sinks.present()) visit(a + "attention_sink_bias", ours + "sinks", l.sinks, false);
    visit(in + "mlp.gate_proj", ours + "gate_proj", l.gate_proj, true);
    visit(in + "mlp.up_proj", ours + "up_proj", l.up_proj, true);
    visit(in + "mlp.down_proj", ours + "down_proj", l.down_proj, true);
  }
  if (d.markov_rank == 0) return;
  visit("markov_head.markov_w1", at + "markov_w1", d.markov_w1, false);
  visit("markov_head.markov_w2", at + "markov_w2", d.markov_w2, true);
}

std::vector<std::int64_t> shape_of(const Weight& w) {
  if (w.layout == Layout::plain && w.n_rows == 1) return {w.n_cols};
  return {w.n_rows, w.n_cols};
}

std::string config_json(const BlockDrafter& d, const Graph& target) {
  const bool spark = d.kind == BlockKind::dspark;
  std::vector<int> behind;
  for (const int layer : d.taps) behind.push_back(layer + 1);
  JsonWriter json(2);
  json.begin_object();
  json.key("architectures").begin_array();
  json.value(spark ? "Qwen3DSparkModel" : "DFlashDraftModel").end_array();
  json.member("model_type", "qwen3")
      .member("hidden_size", target.d_model)
      .member("num_hidden_layers", d.layers.size())
      .member("num_attention_heads", d.n_heads)
      .member("num_key_value_heads", d.n_kv_heads)
      .member("head_dim", d.head_dim)
      .member("intermediate_size", d.d_ff)
      .member("hidden_act", "silu")
      .member("rms_norm_eps", d.norm_eps)
      .member("vocab_size", target.vocab_size)
      .member("attention_bias", false)
      .member("mask_token_id", d.mask_id)
      .member("target_layer_ids", d.taps)
      .member("eagle_aux_hidden_state_layer_ids", behind)
      .member("num_aux_layers", d.taps.size())
      .member("has_embed_tokens", true)
      .member("has_lm_head", false)
      .member("sample_from_anchor", false)
      .member("dflash_query_causal", spark)
      .member("attention_sink_bias", d.has_sinks)
      .member("rope_theta", d.rope.theta);
  json.key("layer_types").begin_array(true);
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    json.value(d.window > 0 ? "sliding_attention" : "full_attention");
  }
  json.end_array();
  if (d.window > 0) json.member("sliding_window", d.window);
  if (spark) json.member("block_size", d.block_size);
  if (d.markov_rank > 0) {
    json.member("markov_rank", d.markov_rank).member("markov_head_type", "vanilla");
  }
  if (d.rope.factor > 1.0f) {
    json.key("rope_parameters")
        .begin_object()
        .member("rope_type", "yarn")
        .member("factor", d.rope.factor)
        .member("original_max_position_embeddings", d.rope.original_positions)
        .member("rope_theta", d.rope.theta)
        .end_object();
  }
  return json.end_object().take() + "\n";
}

// What a tensor's data are made of.
struct Filling {
  std::string dtype;
  std::uint64_t seed = 0;
  Spread spread;
};

// Numbers [first, first + n / size) of a tensor.
void fill(const Filling& f, std::uint64_t first, std::span<std::byte> bytes) {
  if (f.dtype == "U8") {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto bits = static_cast<unsigned>(random_bits(f.seed, first + i));
      // -0 is stored as 0.
      const unsigned low = (bits & 15u) == 8u ? 0u : bits & 15u,
                     high = (bits & 240u) == 128u ? 0u : bits & 240u;
      bytes[i] = static_cast<std::byte>(low | high);
    }
  } else if (f.dtype == "F8_E4M3") {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(0x30 + random_bits(f.seed, first + i) % 9);  // 0.5 to 1
    }
  } else if (f.dtype == "F32") {
    // Codes drawn evenly deviate by 2.93, block scales by 0.76 (make.cpp).
    const float scale = (f.spread.high - f.spread.low) / std::sqrt(12.0f) / (2.926f * 0.764f);
    std::memcpy(bytes.data(), &scale, sizeof scale);
  } else {
    for (std::size_t i = 0; 2 * i < bytes.size(); ++i) {
      const float x =
          f.spread.low + (f.spread.high - f.spread.low) * random_unit(f.seed, first + i);
      const std::uint16_t half = float_to_bf16(x);
      std::memcpy(&bytes[2 * i], &half, sizeof half);
    }
  }
}

}  // namespace

bool is_drafter_shape(std::string_view shape, BlockKind& kind) {
  for (const BlockKind one : {BlockKind::dspark, BlockKind::dflash}) {
    if (shape != std::string("lightning-") + kind_name(one)) continue;
    kind = one;
    return true;
  }
  return false;
}

BlockDrafter lightning_drafter(BlockKind kind) {
  BlockDrafter d;
  d.kind = kind;
  d.block_size = 8;
  d.mask_id = 990;
  d.n_heads = 32;
  d.n_kv_heads = 2;
  d.head_dim = 128;
  d.d_ff = 6144;
  d.taps = {1, 5, 19, 29, 41, 51};
  if (kind == BlockKind::dspark) {
    d.window = 1024;
    d.has_sinks = true;
    d.markov_rank = 512;
  } else {
    d.rope.factor = 128.0f;
    d.rope.original_positions = 8192;
  }
  return d;
}

DrafterFile plan_drafter_file(const BlockDrafter& shaped, const Graph& target) {
  DrafterFile file;
  const auto add = [&](const std::string& name, const char* dtype,
                       std::vector<std::int64_t> shape) {
    Tensor tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.bytes = static_cast<std::uint64_t>(tensor.n_elements()) *
                   static_cast<std::uint64_t>(dtype_bytes(dtype));
    file.tensors.push_back(std::move(tensor));
  };
  each_tensor(shaped, target,
              [&](const std::string& name, const std::string&, const Weight& w, bool nvfp4) {
                const std::string full = name.ends_with("_bias") ? name : name + ".weight";
                if (!nvfp4) return add(full, "BF16", shape_of(w));
                add(full, "U8", {w.n_rows, w.n_cols / 2});
                add(full + "_scale", "F8_E4M3", {w.n_rows, w.n_cols / 16});
                add(full + "_scale_2", "F32", {});
              });
  // Wide elements first, then by name, as safetensors' own writer has them.
  std::sort(file.tensors.begin(), file.tensors.end(), [](const Tensor& a, const Tensor& b) {
    const int a_bytes = dtype_bytes(a.dtype), b_bytes = dtype_bytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  JsonWriter json;
  json.begin_object();
  std::uint64_t at = 0;
  for (Tensor& tensor : file.tensors) {
    tensor.offset = at;
    at += tensor.bytes;
    json.key(tensor.name).begin_object().member("dtype", tensor.dtype);
    json.member("shape", tensor.shape)
        .member("data_offsets", std::vector<std::uint64_t>{tensor.offset, at})
        .end_object();
  }
  std::string text = json.end_object().take();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t n = text.size();
  file.header.assign(reinterpret_cast<const char*>(&n), sizeof n);
  file.header += text;
  for (Tensor& tensor : file.tensors) tensor.offset += file.header.size();
  file.bytes = file.header.size() + at;
  return file;
}

DrafterFile make_drafter(const MakeOptions& options, const std::string& package,
                         const BlockDrafter& sizes, int n_layers) {
  const int n_threads = options.n_threads > 0 ? options.n_threads : usable_cores();
  const auto opened = Package::open(package, {.n_threads = n_threads});
  const Graph& target = opened->graph();
  check_drafter(sizes, n_layers, target, options.shape + " for " + package);
  if (target.embedding.format != Format::bf16) {
    throw Error(Exit::usage, package + ": its embedding is not BF16, as a drafter's is");
  }
  BlockDrafter shaped = sizes;
  shape_drafter(shaped, n_layers, target);
  DrafterFile file = plan_drafter_file(shaped, target);
  std::vector<Filling> fillings(file.tensors.size());
  each_tensor(shaped, target,
              [&](const std::string& name, const std::string& ours, const Weight& w, bool) {
                for (std::size_t i = 0; i < fillings.size(); ++i) {
                  const Tensor& tensor = file.tensors[i];
                  const bool is_of = tensor.name == name || tensor.name == name + ".weight" ||
                                     tensor.name.starts_with(name + ".weight_");
                  if (!is_of) continue;
                  fillings[i] = {tensor.dtype, options.seed, generated_spread(ours, w)};
                  for (const char c : tensor.name) {
                    fillings[i].seed = random_bits(fillings[i].seed, static_cast<unsigned char>(c));
                  }
                }
              });

  if (path_exists(options.target) && !path_exists(options.target + "/model.safetensors")) {
    throw Error(Exit::usage, options.target + ": is no checkpoint, so it is not replaced");
  }
  AtomicFolder folder(options.target, options.force);
  {
    OutputFile out(folder.file("model.safetensors"));
    out.reserve(file.bytes);
    out.write_at(0, std::as_bytes(std::span(file.header)));
    struct Piece {
      std::size_t tensor;
      std::uint64_t first, bytes;
    };
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      for (std::uint64_t at = 0; at < file.tensors[i].bytes; at += kPieceBytes) {
        pieces.push_back({i, at, std::min<std::uint64_t>(kPieceBytes, file.tensors[i].bytes - at)});
      }
    }
    Meter meter(options.progress, "generating", file.bytes - file.header.size());
    ThreadPool pool(n_threads);
    pool.parallel_for(static_cast<int>(pieces.size()), 1, [&](int begin, int end, int) {
      std::vector<std::byte> bytes;
      for (int p = begin; p < end; ++p) {
        const Piece& piece = pieces[static_cast<std::size_t>(p)];
        const Tensor& tensor = file.tensors[piece.tensor];
        if (tensor.name == "embed_tokens.weight") {
          out.write_at(tensor.offset + piece.first,
                       {target.embedding.data + piece.first, piece.bytes});
        } else {
          bytes.resize(piece.bytes);
          const auto size = static_cast<std::uint64_t>(dtype_bytes(tensor.dtype));
          fill(fillings[piece.tensor], piece.first / size, bytes);
          out.write_at(tensor.offset + piece.first, bytes);
        }
        meter.add(piece.bytes);
      }
    });
    // The mask's row is the drafter's own.
    for (std::size_t i = 0; i < file.tensors.size(); ++i) {
      if (file.tensors[i].name != "embed_tokens.weight") continue;
      std::vector<std::byte> row(static_cast<std::size_t>(target.d_model) * 2);
      fill(fillings[i], 0, row);
      out.write_at(file.tensors[i].offset + static_cast<std::uint64_t>(sizes.mask_id) * row.size(),
                   row);
    }
    out.close();
  }
  OutputFile config(folder.file("config.json"));
  config.append(config_json(shaped, target));
  config.close();
  folder.commit();
  return file;
}

}  // namespace bolt
