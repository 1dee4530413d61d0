// Which tensors of a checkpoint each weight of the graph is made of: by name and shape, every
// tensor used once or knowingly left out. Moving the bytes is convert.h.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/pack/config.h"
#include "core/pack/safetensors.h"

namespace bolt {

// How a weight's values follow from its tensors'.
enum class Transform {
  copy,         // as they are; vectors widen to f32, which is exact
  negated_exp,  // A = -exp(A_log), by the contract's exp
  zeros,        // the checkpoint has no such tensor (a conv without bias)
};

struct Binding {
  std::string weight;  // the package's name, layers.3.in_proj
  Transform transform = Transform::copy;
  Format source = Format::f32;  // of the tensors
  // One tensor for each matrix, or one that stacks all of them along its first dimension.
  std::vector<const Tensor*> tensors;
  // ModelOpt's weight_scale of each tensor, for nvfp4 alone.
  std::vector<const Tensor*> block_scales;
  // What multiplies all of a matrix: one F32 scalar a tensor, or one tensor with as many elements
  // as there are matrices. Empty: 1.
  std::vector<const Tensor*> scales;
  // Rows of the one tensor, in order, where the weight is a part of it; empty: all rows.
  std::vector<int> rows;

  // Byte range of rows [first, first + n) of matrix m.
  const Tensor& tensor(int matrix) const {
    return *tensors[tensors.size() == 1 ? 0 : static_cast<std::size_t>(matrix)];
  }
};

struct BoundGraph {
  ModelFacts facts;                         // the config's, without a draft head that is not there
  Graph graph;                              // formats as the checkpoint's, no bytes yet
  std::map<std::string, Binding> bindings;  // by the weight's name
  // Tensors left out: vision, audio, scales of activations and of keys and values, the MTP head if
  // asked.
  std::vector<std::string> skipped;
};

// Throws Error(input) naming every kind of mismatch: a tensor that is absent, of another shape or
// dtype, or left over. The MTP head is bound where its tensors are there, unless `without_mtp`.
BoundGraph bind_checkpoint(const Checkpoint& checkpoint, const CheckpointConfig& config,
                           bool without_mtp);
// The same of a separate drafter, shaped: the graph holds it alone. Of its embedding the mask's row
// is bound; that the others are the target's is the caller's to see.
BoundGraph bind_drafter(const Checkpoint& checkpoint, const BlockDrafter& shaped,
                        const Graph& target);

}  // namespace bolt
