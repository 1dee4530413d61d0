// Embedding rows out of a packed table, in float32: what core/pack/tile_codec.h's packed_row()
// gives, rounding for rounding. A table that is plain is rows.cu's.
#include "cuda/blocks.cuh"
#include "cuda/float_pair.cuh"
#include "cuda/launch.cuh"
#include "cuda/linear_blocks.cuh"
#include "cuda/rows.cuh"

namespace bolt::cuda {
namespace {

// Four values of lane t's columns of half h, from the words of their codes.
template <Format F>
BOLT_DEV void block_values(const GroupWords& w, int t, const GroupScale& scale, float gain, int h,
                           float (&values)[4]) {
  std::uint32_t halves[2][kCodePlanes<F>];
  code_words<F>(w, t, halves[0], halves[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (F == Format::fp8) {
      // A binary16 with the code's bits on top is its value times 2^-8; all ones are NaN.
      const std::uint32_t code = (w.codes[h] >> (8 * i)) & 255u, magnitude = code & 127u;
      const float value = e4m3_scale(magnitude) * (code & 128u ? -256.0f : 256.0f);
      values[i] =
          mul_rn(magnitude == 127u ? __uint_as_float(kExactNan) : value, mul_rn(gain, 512.0f));
    } else {
      const auto byte = static_cast<unsigned char>(halves[h][0] >> (8 * i));
      const int code = static_cast<signed char>(byte) + code_offset(F);
      values[i] = mul_rn(scale.s[h], __int2float_rn(code));
      if constexpr (has_offset(F)) values[i] = add_rn(values[i], scale.m[h]);
    }
  }
}

// The value of one element of the other formats.
template <Format F>
BOLT_DEV float element(const std::byte* block, int row, int column, float gain) {
  const int t = column_lane(column), p = column_slot(column);
  if constexpr (F == Format::q8) {
    const auto code =
        static_cast<unsigned char>(block[(p >> 2) * 512 + word_index(t, row) * 4 + (p & 3)]);
    const auto scale = *reinterpret_cast<const unsigned short*>(block + 1024 + 2 * row);
    return mul_rn(__half2float(__ushort_as_half(scale)),
                  __int2float_rn(static_cast<signed char>(code)));
  } else if constexpr (F == Format::nvfp4) {
    const std::uint32_t word =
        *reinterpret_cast<const std::uint32_t*>(block + word_index(t, row) * 4);
    const std::uint32_t code = (word >> (4 * p)) & 15u, magnitude = code & 7u;
    constexpr std::uint32_t kT0 = kNibbleTable<Format::mxfp4, 0>,
                            kT1 = kNibbleTable<Format::mxfp4, 1>;  // its codes are these, too
    const auto twice = static_cast<int>((magnitude < 4 ? kT0 : kT1) >> (8 * (magnitude & 3)) & 15u);
    const auto scale =
        static_cast<std::uint32_t>(block[512 + (row >> 2) * 8 + (column >> 4) * 4 + (row & 3)]);
    return mul_rn(
        mul_rn(__int2float_rn(code & 8u ? -twice : twice), mul_rn(e4m3_scale(scale), 128.0f)),
        mul_rn(gain, 0x1p-7f));
  } else {
    const float2 pair = float_pair<F>(reinterpret_cast<const std::uint8_t*>(block), column / 8,
                                      column % 8 / 2, row);
    return column % 2 == 0 ? pair.x : pair.y;
  }
}

// Block = one row.
template <Format F>
__global__ void __launch_bounds__(256)
    embed_tile_rows(const std::byte* table, std::int64_t tile_bytes, const float* gains, int n_cols,
                    const int* ids, float* x, std::int64_t stride) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int id = ids[blockIdx.x], row = id % kTileRows;
  const std::byte* tile = table + id / kTileRows * tile_bytes;
  const float gain = gains != nullptr ? *gains : 1.0f;
  float* to = x + blockIdx.x * stride;
  if constexpr (is_block(F)) {
    // Thread: four columns that share a word of codes.
    for (int i = threadIdx.x; 4 * i < n_cols; i += blockDim.x) {
      const int h = (i >> 2) & 1, t = i & 3;
      const GroupPlace<F> at(tile, i >> 3);
      float values[4];
      block_values<F>(at.words(t, row), t, at.scale(row), gain, h, values);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (4 * i + k < n_cols) to[4 * i + k] = values[k];
      }
    }
  } else {
    for (int i = threadIdx.x; i < n_cols; i += blockDim.x) {
      const std::byte* block = tile + static_cast<std::int64_t>(i / kGroupCols) * block_bytes(F);
      to[i] = element<F>(block, row, i % kGroupCols, gain);
    }
  }
}

template <Format F>
void launch_format(const Weight& table, const int* ids, Rows<float> x, cudaStream_t stream) {
  launch(embed_tile_rows<F>, dim3(static_cast<unsigned>(x.n_rows)), dim3(256), 0, stream,
         table.data, static_cast<std::int64_t>(tile_bytes(F, table.n_cols)), table.gains,
         table.n_cols, ids, x.data, x.stride);
}

}  // namespace

void launch_embed_tiles(const Weight& table, const int* ids, Rows<float> x, cudaStream_t stream) {
  switch (table.format) {
    case Format::f32:
      return launch_format<Format::f32>(table, ids, x, stream);
    case Format::bf16:
      return launch_format<Format::bf16>(table, ids, x, stream);
    case Format::f16:
      return launch_format<Format::f16>(table, ids, x, stream);
    case Format::q8:
      return launch_format<Format::q8>(table, ids, x, stream);
    case Format::nvfp4:
      return launch_format<Format::nvfp4>(table, ids, x, stream);
    case Format::fp8:
      return launch_format<Format::fp8>(table, ids, x, stream);
    case Format::q4_0:
      return launch_format<Format::q4_0>(table, ids, x, stream);
    case Format::q4_1:
      return launch_format<Format::q4_1>(table, ids, x, stream);
    case Format::q5_0:
      return launch_format<Format::q5_0>(table, ids, x, stream);
    case Format::q5_1:
      return launch_format<Format::q5_1>(table, ids, x, stream);
    case Format::q2_k:
      return launch_format<Format::q2_k>(table, ids, x, stream);
    case Format::q3_k:
      return launch_format<Format::q3_k>(table, ids, x, stream);
    case Format::q4_k:
      return launch_format<Format::q4_k>(table, ids, x, stream);
    case Format::q5_k:
      return launch_format<Format::q5_k>(table, ids, x, stream);
    case Format::q6_k:
      return launch_format<Format::q6_k>(table, ids, x, stream);
    case Format::iq4_nl:
      return launch_format<Format::iq4_nl>(table, ids, x, stream);
    case Format::iq4_xs:
      return launch_format<Format::iq4_xs>(table, ids, x, stream);
    case Format::iq2_xxs:
      return launch_format<Format::iq2_xxs>(table, ids, x, stream);
    case Format::mxfp4:
      return launch_format<Format::mxfp4>(table, ids, x, stream);
  }
}

}  // namespace bolt::cuda
