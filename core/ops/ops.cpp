// Sequences of ops, spelled out.
#include "core/ops/ops.h"

#include "core/base/error.h"

namespace bolt {

void Ops::norm_quantize(const Batch& batch, Rows<const float> x, const float* w, float eps,
                        Rows<float> y, bool integer, Operand& operand) {
  rms_norm(batch, x, w, eps, x.n_cols, y);
  quantize(y, integer, operand);
}

void Ops::linears(const Batch& batch, const Operand& x, std::span<const LinearTask> calls) {
  for (const LinearTask& call : calls) {
    linear(batch, x, *call.w, call.epilogue, call.y);
    if (call.quantised != nullptr) quantize(call.y, true, *call.quantised);
  }
}

void Ops::mamba_quantize(const Batch& batch, const Mamba2& node, float eps, MambaCache& cache,
                         Rows<const float> zxbcdt, Rows<float> y, bool integer, Operand& operand) {
  mamba(batch, node, eps, cache, zxbcdt, y);
  quantize(y, integer, operand);
}

void Ops::attention_quantize(const Batch& batch, const Attention& node, KvCache& cache,
                             Rows<const float> q, Rows<const float> k, Rows<const float> v,
                             Rows<float> y, bool integer, Operand& operand) {
  attention(batch, node, cache, q, k, v, y);
  quantize(y, integer, operand);
}

void Ops::experts_up(const Batch&, const Moe&, Rows<const float>, const Operand&, int,
                     Rows<float>) {
  throw Error(Exit::fault, "this device does not run experts in two halves; use one rank");
}

void Ops::experts_down(const Batch&, const Moe&, const Operand&, int, Rows<float>) {
  throw Error(Exit::fault, "this device does not run experts in two halves; use one rank");
}

void Ops::moe(const Batch& batch, const Moe& node, const Operand& u, const MoeScratch& scratch,
              Rows<float> x) {
  linear(batch, u, node.router, Epilogue::store, scratch.choice);
  if (node.d_shared > 0) {
    linear(batch, u, node.shared_up, Epilogue::relu2, scratch.shared);
    quantize(scratch.shared, is_integer(node.shared_down.format), *scratch.shared_operand);
  }
  if (node.d_latent > 0) {
    linear(batch, u, node.latent_down, Epilogue::store, scratch.latent);
    Operand& rows = *scratch.latent_operand;
    quantize(scratch.latent, is_integer(node.experts_up.format), rows);
    experts(batch, node, scratch.choice, rows, scratch.latent_out);
    quantize(scratch.latent_out, is_integer(node.latent_up.format), rows);
    linear(batch, rows, node.latent_up, Epilogue::store, scratch.routed);
  } else {
    experts(batch, node, scratch.choice, u, scratch.routed);
  }
  if (node.d_shared > 0) {
    linear(batch, *scratch.shared_operand, node.shared_down, Epilogue::add, scratch.routed);
  }
  add(scratch.routed, x);
}

}  // namespace bolt
