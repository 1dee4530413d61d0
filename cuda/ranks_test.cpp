// What ranks add to the device: experts in two halves, groups that are normed elsewhere, columns
// in and out of an exchange; and whole replies by ranks that share a GPU, or have one each.
#include "cuda/ranks.cuh"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/engine/engine.h"
#include "core/pack/tile_codec.h"
#include "cuda/ranks.h"
#include "cuda/testing/both.h"

namespace bolt::cuda {
namespace {

struct Ground {
  HostOps host{2, cpu_has(Isa::avx2) ? Isa::avx2 : Isa::scalar};
  CudaOps device{0, true};
  DeviceCopies copies;
};

// Rows [first, first + n) of every matrix, as they lie.
Weight rows_of(Weight w, int first, int n) {
  w.data += static_cast<std::uint64_t>(first / kTileRows) * tile_bytes(w.format, w.n_cols);
  w.n_rows = n;
  return w;
}

}  // namespace

TEST_CASE("ranks: experts in two halves are the experts, whichever rows a rank holds") {
  Ground g;
  constexpr int kIn = 96, kHidden = 200, kOut = 96, kTop = 6, kExperts = 32;
  for (const Format format : {Format::q8, Format::nvfp4, Format::bf16, Format::f32, Format::q4_k}) {
    if (!is_mine()) continue;
    Moe host;
    host.n_experts = kExperts, host.top_k = kTop, host.d_expert = kHidden;
    host.scaling_factor = 2.5f;
    const bool wide = format == Format::q4_k;  // blocks of 256 columns
    const int n_in = wide ? 256 : kIn, n_hidden = wide ? 256 : kHidden;
    host.d_expert = n_hidden;
    const SyntheticWeight up = synthetic_weight(format, kExperts, n_hidden, n_in, 21);
    const SyntheticWeight down = synthetic_weight(format, kExperts, kOut, n_hidden, 22);
    const SyntheticWeight bias = plain_weight(even_floats(23, kExperts, 0.2f), 1, kExperts);
    host.experts_up = up.weight, host.experts_down = down.weight, host.router_bias = bias.weight;
    DeviceCopies weights;
    Moe device = host;
    device.experts_up = weights.put(host.experts_up);
    device.experts_down = weights.put(host.experts_down);
    device.router_bias = weights.put(host.router_bias);
    for (const int n_rows : {1, 2, 8, 33, 300}) {
      DeviceCopies copies;
      const BothRows logits(copies, even_floats(24, n_rows * kExperts, 4.0f), n_rows, kExperts);
      const BothRows x(copies, planted_floats(25, n_rows * n_in), n_rows, n_in);
      const BothRows fused = BothRows::poisoned(copies, n_rows, kOut);
      const BothRows y = BothRows::poisoned(copies, n_rows, kOut);
      const BothRows hidden = BothRows::poisoned(copies, n_rows * kTop, n_hidden);
      const auto operand_host = g.host.operand(n_rows, n_in),
                 operand_device = g.device.operand(n_rows, n_in),
                 hidden_host = g.host.operand(n_rows * kTop, n_hidden),
                 hidden_device = g.device.operand(n_rows * kTop, n_hidden);
      BothBatch batch(n_rows);
      batch.begin(g.host, g.device);
      g.host.quantize(x.on_host, is_integer(format), *operand_host);
      g.device.quantize(x.on_device, is_integer(format), *operand_device);
      g.host.experts(batch.on_host, host, logits.on_host, *operand_host, fused.on_host);
      // Two ranks' rows of both matrices, one after the other, in runs of at most 200 rows.
      for (int first = 0; first < n_rows; first += 200) {
        const int n = std::min(200, n_rows - first);
        const auto part = [&](Rows<float> rows, int columns, int count) {
          return rows.rows(first * kTop, n * kTop).columns(columns, count);
        };
        for (const auto& [column, count] : {std::pair(0, 128), std::pair(128, n_hidden - 128)}) {
          Moe own = host, own_device = device;
          own.experts_up = rows_of(host.experts_up, column, count);
          own_device.experts_up = rows_of(device.experts_up, column, count);
          g.host.experts_up(batch.on_host, own, logits.on_host, *operand_host, first,
                            part(hidden.on_host, column, count));
          g.device.experts_up(batch.on_device, own_device, logits.on_device, *operand_device, first,
                              part(hidden.on_device, column, count));
        }
        g.host.quantize(part(hidden.on_host, 0, n_hidden), is_integer(format), *hidden_host);
        g.device.quantize(part(hidden.on_device, 0, n_hidden), is_integer(format), *hidden_device);
        for (const auto& [column, count] : {std::pair(0, 64), std::pair(64, kOut - 64)}) {
          Moe own = host, own_device = device;
          own.experts_down = rows_of(host.experts_down, column, count);
          own_device.experts_down = rows_of(device.experts_down, column, count);
          g.host.experts_down(batch.on_host, own, *hidden_host, first,
                              y.on_host.rows(first, n).columns(column, count));
          g.device.experts_down(batch.on_device, own_device, *hidden_device, first,
                                y.on_device.rows(first, n).columns(column, count));
        }
      }
      g.device.finish(batch.on_device);
      CHECK(batch.host_marks == batch.device_marks);
      const std::vector<float> on_device = y.read_device(g.device);
      CHECK_MESSAGE(rows_that_differ(y, on_device, batch.host_marks) == 0, format_name(format),
                    " rows ", n_rows);
      CHECK(rows_that_differ(fused, on_device, batch.host_marks) == 0);
      // Control: columns that one rank forgot show.
      std::vector<float> wrong = on_device;
      wrong[64] = -7.0f;
      CHECK((rows_that_differ(y, wrong, batch.host_marks) == 1 || batch.host_marks[0] != 0));
    }
  }
}

TEST_CASE("ranks: columns go into an exchange and come out of it where they belong") {
  Ground g;
  for (const int n_cols : {32, 96, 200, 2688}) {
    for (const int n_rows : {1, 5, 300}) {
      for (const int n_ranks : {2, 3, 8}) {
        DeviceCopies copies;
        const int slice = slice_cols(n_cols, n_ranks), stride = n_cols + 16;
        const BothRows rows(copies, even_floats(31, n_rows * stride, 1.0f), n_rows, stride);
        const std::vector<float> zeros(static_cast<std::size_t>(n_ranks * n_rows * slice), 0.0f);
        float* const packed = copies.put(zeros.data(), zeros.size());
        for (int r = 0; r < n_ranks; ++r) {
          launch_pack(rows.on_device.columns(0, n_cols), slice, r, packed + r * n_rows * slice,
                      g.device.stream());
        }
        const BothRows out = BothRows::poisoned(copies, n_rows, stride);
        constexpr int kRank = 1;
        launch_unpack(packed, slice, kRank, out.on_device.columns(0, n_cols), g.device.stream());
        const std::vector<float> read = out.read_device(g.device);
        bool right = true;
        for (int row = 0; row < n_rows; ++row) {
          for (int column = 0; column < stride; ++column) {
            const auto at = static_cast<std::size_t>(row * stride + column);
            const bool others = column < n_cols && column / slice != kRank;
            right = right && read[at] == (others ? rows.host[at] : -7.0f);
          }
        }
        CHECK_MESSAGE(right, n_cols, " columns, ", n_rows, " rows, ", n_ranks, " ranks");
      }
    }
  }
}

TEST_CASE(
    "ranks: rows and marks that GPUs store into the memory of others arrive, time after time") {
  // The ranks are streams of one GPU, each with a mailbox.
  constexpr int kCapacity = 1 << 16;
  if (is_brief()) return;  // tools that run one kernel after the other would wait for ever
  int n_sms = 0, sm_threads = 0;
  check(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0), "asking for the device");
  check(cudaDeviceGetAttribute(&sm_threads, cudaDevAttrMaxThreadsPerMultiProcessor, 0),
        "asking for the device");
  for (const int n_ranks : {2, 3, 8}) {
    // Kernels that wait for each other must all have room, with as much to spare.
    if (n_ranks * kPeerBlocks * 1024 > n_sms * sm_threads) continue;
    DeviceCopies copies;
    std::vector<std::unique_ptr<CudaOps>> ops;
    std::vector<std::unique_ptr<PeerMailbox>> mailboxes;
    PeerStop stop;
    PeerGroup group;
    group.n_ranks = n_ranks, group.capacity = kCapacity, group.stop = stop.flag();
    for (int r = 0; r < n_ranks; ++r) {
      ops.push_back(std::make_unique<CudaOps>(0, false));
      mailboxes.push_back(std::make_unique<PeerMailbox>(n_ranks, kCapacity));
      group.memory[r] = mailboxes.back()->memory;
    }
    std::uint64_t seed = 50;
    int n_stale = 0;
    std::vector<std::vector<float>> last;
    for (int time = 0; time < 40; ++time) {
      // Two parts; even and odd strides, one row and many, columns that do not divide.
      const int n_rows = time % 3 == 0 ? 1 : 1 + time % 7, odd = time % 2;
      const std::vector<int> widths{64 * n_ranks + 32, 200 + odd};
      std::vector<std::vector<BothRows>> rows(static_cast<std::size_t>(n_ranks));
      std::vector<std::vector<float>> whole;
      for (const int width : widths) whole.push_back(even_floats(++seed, n_rows * width, 1.0f));
      std::vector<std::vector<std::uint8_t>> marks(static_cast<std::size_t>(n_ranks));
      std::vector<std::uint8_t*> device_marks;
      std::vector<std::uint8_t> merged(static_cast<std::size_t>(n_rows), 0);
      std::vector<PeerParts> parts(static_cast<std::size_t>(n_ranks));
      for (int r = 0; r < n_ranks; ++r) {
        const auto rank = static_cast<std::size_t>(r);
        for (std::size_t p = 0; p < widths.size(); ++p) {
          const int width = widths[p], slice = slice_cols(width, n_ranks);
          std::vector<float> own(whole[p].size(), -7.0f);
          for (std::size_t i = 0; i < own.size(); ++i) {
            if (static_cast<int>(i) % width / slice == r) own[i] = whole[p][i];
          }
          rows[rank].emplace_back(copies, std::move(own), n_rows, width);
          parts[rank].part[parts[rank].n++] = {rows[rank].back().on_device, slice};
        }
        marks[rank].assign(merged.size(), 0);
        marks[rank][rank % merged.size()] = time % 4 == r % 4 ? 1 : 0;
        for (std::size_t i = 0; i < merged.size(); ++i) merged[i] |= marks[rank][i];
        device_marks.push_back(copies.put(marks[rank].data(), marks[rank].size()));
      }
      for (int r = 0; r < n_ranks; ++r) {
        group.rank = r;
        const auto rank = static_cast<std::size_t>(r);
        launch_exchange_rows(group, parts[rank], ops[rank]->stream());
        launch_exchange_marks(group, device_marks[rank], n_rows, ops[rank]->stream());
      }
      for (int r = 0; r < n_ranks; ++r) {
        const auto rank = static_cast<std::size_t>(r);
        for (std::size_t p = 0; p < widths.size(); ++p) {
          const std::vector<float> got = rows[rank][p].read_device(*ops[rank]);
          CHECK_MESSAGE(got == whole[p], n_ranks, " ranks, exchange ", time, ", rank ", r);
        }
        std::vector<std::uint8_t> got(merged.size());
        check(cudaMemcpy(got.data(), device_marks[rank], got.size(), cudaMemcpyDeviceToHost),
              "reading marks");
        CHECK(got == merged);
      }
      // Control: what the exchange before has left is told apart.
      n_stale += !last.empty() && last[0] == whole[0];
      last = whole;
    }
    CHECK(n_stale == 0);
  }
}

TEST_CASE(
    "ranks: replies of ranks on one GPU, and on two where there are, equal those of the CPU") {
  const auto package =
      Package::open(BOLT_BINARY_DIR "/sample.bolt", {.n_threads = 2, .use_hash_cache = false});
  const auto logits_of = [&](EngineOptions options, DraftOptions draft) {
    options.context = 512;
    const auto engine = Engine::open(*package, options);
    const auto sequence = engine->new_sequence();
    Request request;
    for (int i = 0; i < 150; ++i) request.prompt_ids.push_back((i * 31 + 7) % 3000);
    request.max_new = is_brief() ? 3 : 40;
    request.draft = draft;
    request.want_logits = true;
    std::vector<float> logits;
    const Reply reply = engine->generate(*sequence, request, [&](int, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
      return true;
    });
    CHECK(reply.ids.size() == static_cast<std::size_t>(request.max_new));
    return logits;
  };
  using Source = DraftOptions::Source;
  const std::vector<float> plain = logits_of({}, {Source::off, -1});
  std::vector<std::vector<int>> ways{{0, 0}, {0, 0, 0, 0}};
  if (cuda_devices().size() > 1) ways.push_back({0, 1});
  if (cuda_devices().size() > 3) ways.push_back({0, 1, 2, 3});
  for (const std::vector<int>& gpus : ways) {
    EngineOptions options;
    options.device = gpus[0];
    options.n_ranks = static_cast<int>(gpus.size());
    options.rank_devices = gpus;
    for (const bool graphs : {true, false}) {
      if (!is_mine()) continue;
      options.graphs = graphs;
      for (const DraftOptions draft :
           {DraftOptions{Source::off, -1}, DraftOptions{Source::mtp, 7}}) {
        const std::vector<float> ranked = logits_of(options, draft);
        CHECK(ranked.size() == plain.size());
        CHECK(std::memcmp(ranked.data(), plain.data(), plain.size() * sizeof(float)) == 0);
      }
    }
  }
}

}  // namespace bolt::cuda
