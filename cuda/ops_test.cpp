// Every op's device twin against its host twin: equal bits on made-up, extreme and planted numbers,
// at every number of rows, five times over; and what a wrong twin would give is told apart.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "core/pack/tile_codec.h"
#include "cuda/testing/both.h"
#include "cuda/testing/function_hash.h"

namespace bolt::cuda {
namespace {

const int kRepeats = is_brief() ? 2 : 5;

struct Ground {
  HostOps host{2, cpu_has(Isa::avx2) ? Isa::avx2 : Isa::scalar};
  CudaOps device{0, true};
  DeviceCopies copies;
};

std::vector<float> with_nonfinite(std::vector<float> x, int n_cols, int row) {
  x[static_cast<std::size_t>(row * n_cols + n_cols / 2)] = std::numeric_limits<float>::quiet_NaN();
  x[static_cast<std::size_t>((row + 1) * n_cols + 1)] = std::numeric_limits<float>::infinity();
  return x;
}

}  // namespace

TEST_CASE("elementary functions: every input of 2^32, host against device") {
  for (int f = 0; f < kFunctions; ++f) {
    const auto function = static_cast<Function>(f);
    const std::vector<std::uint64_t> device = device_hashes(function);
    std::vector<std::uint64_t> host(device.size());
    std::vector<std::thread> threads;
    const unsigned n = std::max(1u, std::thread::hardware_concurrency());
    for (unsigned t = 0; t < n; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t block = t; block < host.size(); block += n) {
          std::uint64_t sum = 0;
          for (std::uint32_t i = 0; i < 65536; ++i) {
            const auto input = (static_cast<std::uint32_t>(block) << 16) + i;
            sum += hash_of(input, apply(function, exact_from_bits(input)));
          }
          host[block] = sum;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK_MESSAGE(host == device, "function ", f);
  }
}

TEST_CASE("linear: every format, rows 1..40 and more, odd shapes") {
  Ground g;
  const auto operand_host = g.host.operand(600, 2048), operand_device = g.device.operand(600, 2048);
  struct Shape {
    int n, k;
  };
  for (const Format format : kAllFormats) {
    for (const Shape shape : {Shape{64, 512}, {33, 40}, {7, 24}, {100, 300}, {256, 2048}}) {
      if (!is_mine()) continue;
      const SyntheticWeight w = synthetic_weight(format, 1, shape.n, shape.k, 11);
      const Weight on_device = g.copies.put(w.weight);
      std::vector<int> counts{40, 64, 100, 129, 512, 513};
      for (int r = 1; r <= 33; ++r) counts.push_back(r);
      for (const int n_rows : counts) {
        if (shape.n > 200 && n_rows > 9 && n_rows % 8 != 1) continue;
        if (is_brief() && n_rows > 5 && n_rows % 8 > 1 && n_rows != 100) continue;
        std::vector<float> x = planted_floats(5, n_rows * shape.k);
        if (n_rows > 5) x = with_nonfinite(std::move(x), shape.k, 2);
        DeviceCopies copies;
        const BothRows in(copies, std::move(x), n_rows, shape.k);
        BothRows y = BothRows::poisoned(copies, n_rows, shape.n);
        BothBatch batch(n_rows);
        for (int repeat = 0; repeat < (n_rows == 8 ? kRepeats : 1); ++repeat) {
          for (const Epilogue epilogue : {Epilogue::store, Epilogue::add, Epilogue::relu2}) {
            batch.begin(g.host, g.device);
            g.host.quantize(in.on_host, is_integer(format), *operand_host);
            g.host.linear(batch.on_host, *operand_host, w.weight, epilogue, y.on_host);
            g.device.quantize(in.on_device, is_integer(format), *operand_device);
            g.device.linear(batch.on_device, *operand_device, on_device, epilogue, y.on_device);
            g.device.finish(batch.on_device);
            CHECK(batch.host_marks == batch.device_marks);
            const int differ = rows_that_differ(y, y.read_device(g.device), batch.host_marks);
            CHECK_MESSAGE(differ == 0, format_name(format), " ", shape.n, "x", shape.k, " rows ",
                          n_rows);
          }
        }
      }
      // Control: another matrix's scales or codes must show.
      const SyntheticWeight other = synthetic_weight(format, 1, shape.n, shape.k, 12);
      const Weight wrong = g.copies.put(other.weight);
      DeviceCopies copies;
      const BothRows in(copies, even_floats(6, shape.k), 1, shape.k);
      const BothRows y = BothRows::poisoned(copies, 1, shape.n);
      BothBatch batch(1);
      batch.begin(g.host, g.device);
      g.host.quantize(in.on_host, is_integer(format), *operand_host);
      g.host.linear(batch.on_host, *operand_host, w.weight, Epilogue::store, y.on_host);
      g.device.quantize(in.on_device, is_integer(format), *operand_device);
      g.device.linear(batch.on_device, *operand_device, wrong, Epilogue::store, y.on_device);
      g.device.finish(batch.on_device);
      CHECK(rows_that_differ(y, y.read_device(g.device), batch.host_marks) == 1);
    }
  }
}

// Matrices large enough that every shape of the prompt kernels is the best for some of them.
TEST_CASE("linear: prompt chunks against wide matrices, alone and among others") {
  Ground g;
  const auto operand_host = g.host.operand(600, 384), operand_device = g.device.operand(600, 384);
  struct Shape {
    int rows, n, k;
  };
  for (const Format format : kAllFormats) {
    for (const Shape s : {Shape{512, 10300, 96},
                          {200, 10300, 290},
                          {128, 16900, 64},
                          {100, 8450, 320},
                          {65, 2688, 384},
                          {600, 128, 384}}) {
      if (is_block(format) && s.n > 3000) continue;  // one kernel serves them all
      if (!is_mine()) continue;
      DeviceCopies copies;
      const SyntheticWeight w = synthetic_weight(format, 1, s.n, s.k, 17);
      const Weight on_device = copies.put(w.weight);
      const BothRows in(copies, planted_floats(18, s.rows * s.k), s.rows, s.k);
      BothRows y = BothRows::poisoned(copies, s.rows, s.n);
      BothBatch batch(s.rows);
      batch.begin(g.host, g.device);
      g.host.quantize(in.on_host, is_integer(format), *operand_host);
      g.host.linear(batch.on_host, *operand_host, w.weight, Epilogue::store, y.on_host);
      std::vector<float> first;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        g.device.quantize(in.on_device, is_integer(format), *operand_device);
        g.device.linear(batch.on_device, *operand_device, on_device, Epilogue::store, y.on_device);
        g.device.finish(batch.on_device);
        CHECK(batch.host_marks == batch.device_marks);
        std::vector<float> got = y.read_device(g.device);
        CHECK_MESSAGE(rows_that_differ(y, got, batch.host_marks) == 0, format_name(format), " ",
                      s.n, "x", s.k, " rows ", s.rows);
        if (repeat == 0) first = got;
        CHECK(std::memcmp(first.data(), got.data(), got.size() * sizeof(float)) == 0);
      }
      // Control: a row that another stands for must show.
      std::vector<float> wrong = first;
      std::copy_n(first.begin(), s.n, wrong.begin() + s.n);
      CHECK(rows_that_differ(y, wrong, batch.host_marks) == 1);
    }
  }
}

// Rows whose segments' sums crowd shared memory, and one segment more than any number of warps has.
TEST_CASE("linear: very long rows") {
  Ground g;
  constexpr int kCols = 33056;
  const auto operand_host = g.host.operand(9, kCols), operand_device = g.device.operand(9, kCols);
  for (const Format format : kAllFormats) {
    if (!is_mine()) continue;
    const SyntheticWeight w = synthetic_weight(format, 1, 40, kCols, 41);
    const Weight on_device = g.copies.put(w.weight);
    for (const int n_rows : {1, 2, 4, 9}) {
      DeviceCopies copies;
      const BothRows in(copies, even_floats(42, n_rows * kCols), n_rows, kCols);
      const BothRows y = BothRows::poisoned(copies, n_rows, 40);
      BothBatch batch(n_rows);
      batch.begin(g.host, g.device);
      g.host.quantize(in.on_host, is_integer(format), *operand_host);
      g.host.linear(batch.on_host, *operand_host, w.weight, Epilogue::store, y.on_host);
      g.device.quantize(in.on_device, is_integer(format), *operand_device);
      g.device.linear(batch.on_device, *operand_device, on_device, Epilogue::store, y.on_device);
      g.device.finish(batch.on_device);
      CHECK(batch.host_marks == batch.device_marks);
      CHECK_MESSAGE(rows_that_differ(y, y.read_device(g.device), batch.host_marks) == 0,
                    format_name(format), " rows ", n_rows);
    }
  }
}

TEST_CASE("embed: plain and packed tables of every format") {
  Ground g;
  constexpr int kIds = 70;
  const auto differ = [&](const Weight& host, const Weight& device, const std::vector<int>& ids) {
    DeviceCopies copies;
    const auto n_rows = static_cast<int>(ids.size());
    const BothRows x = BothRows::poisoned(copies, n_rows, host.n_cols);
    BothBatch batch(n_rows);
    batch.ids = ids;
    batch.begin(g.host, g.device);
    g.host.embed(host, ids, x.on_host);
    g.device.embed(device, ids, x.on_device);
    g.device.finish(batch.on_device);
    return rows_that_differ(x, x.read_device(g.device), batch.host_marks);
  };
  const std::vector<int> ids{0, 69, 31, 32, 5, 5, 64};
  for (const Format format : kAllFormats) {
    for (const int n_cols : {24, 300, 512}) {
      const SyntheticWeight w = synthetic_weight(format, 1, kIds, n_cols, 51);
      const SyntheticWeight other = synthetic_weight(format, 1, kIds, n_cols, 52);
      const Weight on_device = g.copies.put(w.weight);
      CHECK_MESSAGE(differ(w.weight, on_device, ids) == 0, format_name(format), " ", n_cols);
      // Control: another table's rows must show, all of them.
      CHECK(differ(other.weight, on_device, ids) == static_cast<int>(ids.size()));
      if (is_integer(format)) continue;
      // The same bytes read as a plain table.
      Weight plain = w.weight, plain_device = on_device;
      plain.layout = plain_device.layout = Layout::plain;
      CHECK_MESSAGE(differ(plain, plain_device, ids) == 0, format_name(format), " ", n_cols);
    }
  }
}

TEST_CASE("rms_norm") {
  Ground g;
  for (const int n_cols : {64, 96, 100, 2688}) {
    for (const int n_rows : {1, 3, 40}) {
      DeviceCopies copies;
      const std::vector<float> w = even_floats(3, n_cols);
      const float* w_device = copies.put(w.data(), w.size());
      std::vector<float> x = planted_floats(4, n_rows * n_cols);
      if (n_rows > 4) x = with_nonfinite(std::move(x), n_cols, 1);
      const BothRows in(copies, std::move(x), n_rows, n_cols);
      for (const int group : {n_cols, n_cols / 4}) {
        const BothRows y = BothRows::poisoned(copies, n_rows, n_cols);
        BothBatch batch(n_rows);
        batch.begin(g.host, g.device);
        g.host.rms_norm(batch.on_host, in.on_host, w.data(), 1e-5f, group, y.on_host);
        g.device.rms_norm(batch.on_device, in.on_device, w_device, 1e-5f, group, y.on_device);
        g.device.finish(batch.on_device);
        CHECK(batch.host_marks == batch.device_marks);
        CHECK(rows_that_differ(y, y.read_device(g.device), batch.host_marks) == 0);
      }
    }
  }
}

namespace {

struct MambaModel {
  std::vector<SyntheticWeight> owned;
  Mamba2 host, device;

  MambaModel(DeviceCopies& copies, int n_heads, int head_dim, int d_state, int n_groups, int taps) {
    host.n_heads = n_heads, host.head_dim = head_dim, host.d_state = d_state;
    host.n_ssm_groups = n_groups, host.conv_kernel = taps;
    std::uint64_t seed = 100;
    const auto plain = [&](int rows, int cols, float scale, float shift) {
      std::vector<float> v = even_floats(++seed, rows * cols, scale);
      for (float& x : v) x += shift;
      owned.push_back(plain_weight(std::move(v), rows, cols));
      return owned.back().weight;
    };
    owned.reserve(8);
    host.conv_w = plain(host.d_conv(), taps, 0.5f, 0.0f);
    host.conv_b = plain(1, host.d_conv(), 0.1f, 0.0f);
    host.A = plain(1, n_heads, 0.4f, -0.7f);
    host.D = plain(1, n_heads, 0.5f, 1.0f);
    host.dt_bias = plain(1, n_heads, 1.0f, -1.0f);
    host.gate_norm = plain(1, host.d_inner(), 0.2f, 1.0f);
    device = host;
    for (Weight* w : {&device.conv_w, &device.conv_b, &device.A, &device.D, &device.dt_bias,
                      &device.gate_norm}) {
      *w = copies.put(*w);
    }
  }
};

}  // namespace

TEST_CASE("mamba: windows, chunks, rejections; state read on both sides") {
  Ground g;
  struct Shape {
    int heads, dim, state, groups, taps;
    bool normed = true;  // else ranks share the groups: the gated rows are left as they are
  };
  for (const Shape s : {Shape{8, 64, 64, 2, 4},
                        {2, 20, 64, 1, 4, false},
                        {4, 80, 128, 1, 4},
                        {8, 64, 128, 8, 4},
                        {2, 20, 40, 2, 3},
                        {2, 20, 64, 1, 16},
                        {4, 64, 256, 2, 4}}) {
    if (!is_mine()) continue;
    DeviceCopies copies;
    MambaModel model(copies, s.heads, s.dim, s.state, s.groups, s.taps);
    if (!s.normed) model.host.gate_norm = model.device.gate_norm = {};
    const auto host_cache = g.host.mamba_cache(model.host, 2),
               device_cache = g.device.mamba_cache(model.device, 2);
    host_cache->reset(1);
    device_cache->reset(1);
    const int width = model.host.d_in_proj();
    int n_lag = 0, position = 0;
    // rows, sure rows, rows kept of the call
    struct Call {
      int rows, sure, kept;
    };
    std::uint64_t seed = 40;
    for (const Call call : {Call{70, 70, 70},
                            {1, 1, 1},
                            {8, 1, 3},
                            {8, 1, 8},
                            {32, 1, 1},
                            {32, 1, 32},
                            {5, 2, 4},
                            {1, 1, 1},
                            {130, 130, 130}}) {
      const BothRows in(copies, even_floats(++seed, call.rows * width, 2.0f), call.rows, width);
      const BothRows y = BothRows::poisoned(copies, call.rows, model.host.d_inner());
      Segment segment = BothBatch::whole(call.rows);
      segment.first_position = position, segment.n_sure = call.sure, segment.n_lag = n_lag,
      segment.slot = 1;
      BothBatch batch({segment}, {{0, 1, 2, 3}});
      batch.begin(g.host, g.device);
      g.host.mamba(batch.on_host, model.host, 1e-5f, *host_cache, in.on_host, y.on_host);
      g.device.mamba(batch.on_device, model.device, 1e-5f, *device_cache, in.on_device,
                     y.on_device);
      g.device.finish(batch.on_device);
      CHECK(batch.host_marks == batch.device_marks);
      CHECK(rows_that_differ(y, y.read_device(g.device), batch.host_marks) == 0);
      n_lag = call.kept - call.sure;
      position += call.kept;
      std::vector<float> host_state, device_state, wrong;
      host_cache->read(1, n_lag, host_state);
      device_cache->read(1, n_lag, device_state);
      CHECK(host_state.size() == device_state.size());
      CHECK(std::memcmp(host_state.data(), device_state.data(),
                        host_state.size() * sizeof(float)) == 0);
      if (n_lag > 0) {  // control: one row short must show
        device_cache->read(1, n_lag - 1, wrong);
        CHECK(std::memcmp(host_state.data(), wrong.data(), host_state.size() * sizeof(float)) != 0);
      }
    }
  }
}

TEST_CASE("attention: tiles, spans, page order, every head shape") {
  Ground g;
  struct Shape {
    int heads, kv, dim;
  };
  for (const Shape s :
       {Shape{4, 1, 128}, {32, 2, 128}, {6, 3, 64}, {5, 1, 80}, {2, 2, 20}, {4, 2, 192}}) {
    if (!is_mine()) continue;
    Attention node;
    node.n_heads = s.heads, node.n_kv_heads = s.kv, node.head_dim = s.dim;
    constexpr int kPages = 20;
    const auto host_cache = g.host.kv_cache(node, KvKind::i16, kPages),
               device_cache = g.device.kv_cache(node, KvKind::i16, kPages);
    std::vector<int> pages;
    for (int i = 0; i < kPages; ++i) pages.push_back((i * 7 + 3) % kPages);
    int position = 0;
    std::uint64_t seed = 60;
    for (const int n_rows : {1, 120, 10, 32, 1, 200, 700, 8, 33}) {
      DeviceCopies copies;
      const BothRows q(copies, even_floats(++seed, n_rows * s.heads * s.dim, 3.0f), n_rows,
                       s.heads * s.dim);
      const BothRows k(copies, even_floats(++seed, n_rows * s.kv * s.dim, 2.0f), n_rows,
                       s.kv * s.dim);
      BothRows v(copies, planted_floats(++seed, n_rows * s.kv * s.dim), n_rows, s.kv * s.dim);
      const BothRows y = BothRows::poisoned(copies, n_rows, s.heads * s.dim);
      Segment segment = BothBatch::whole(n_rows);
      segment.first_position = position;
      BothBatch batch({segment}, {pages});
      for (int repeat = 0; repeat < 2; ++repeat) {
        batch.begin(g.host, g.device);
        g.host.attention(batch.on_host, node, *host_cache, q.on_host, k.on_host, v.on_host,
                         y.on_host);
        g.device.attention(batch.on_device, node, *device_cache, q.on_device, k.on_device,
                           v.on_device, y.on_device);
        g.device.finish(batch.on_device);
        CHECK(batch.host_marks == batch.device_marks);
        const int differ = rows_that_differ(y, y.read_device(g.device), batch.host_marks);
        CHECK_MESSAGE(differ == 0, s.heads, "/", s.kv, " x ", s.dim, " at ", position, " rows ",
                      n_rows);
      }
      position += n_rows;
      for (int tile = 0; tile < (position + kPageKeys - 1) / kPageKeys; ++tile) {
        std::vector<std::byte> host_bytes, device_bytes;
        const int n_keys = std::min(kPageKeys, position - tile * kPageKeys);
        host_cache->read(pages[static_cast<std::size_t>(tile)], n_keys, host_bytes);
        device_cache->read(pages[static_cast<std::size_t>(tile)], n_keys, device_bytes);
        CHECK(host_bytes == device_bytes);
      }
    }
  }
}

TEST_CASE("attention: a page that is copied is the page") {
  Ground g;
  Attention node;
  node.n_heads = 4, node.n_kv_heads = 2, node.head_dim = 40;
  const int narrow = node.n_kv_heads * node.head_dim;
  const auto cache = g.device.kv_cache(node, KvKind::i16, 3);
  DeviceCopies copies;
  const BothRows k(copies, even_floats(61, 100 * narrow), 100, narrow),
      v(copies, even_floats(62, 100 * narrow), 100, narrow);
  Segment segment = BothBatch::whole(100);
  BothBatch batch({segment}, {{1}});
  batch.begin(g.host, g.device);
  g.device.put_keys(batch.on_device, node, *cache, k.on_device, v.on_device);
  std::vector<std::byte> page, copy;
  cache->read(1, 100, page);
  cache->read(2, 100, copy);
  CHECK(page != copy);  // control
  CHECK(cache->copy(1, 2));
  CHECK(cache->copy(1, 1));
  cache->read(2, 100, copy);
  CHECK(page == copy);
  cache->read(0, 100, copy);
  CHECK(page != copy);
}

TEST_CASE("attention: several sequences a call, padding rows, marks") {
  Ground g;
  struct Shape {
    int heads, kv, dim;
  };
  // Rows of two sequences, how many of the first are live.
  struct Call {
    int n_first, n_live, n_second;
  };
  for (const Shape s : {Shape{32, 2, 128},
                        {40, 8, 128},
                        {8, 1, 96},
                        {3, 1, 256},
                        {4, 1, 63},
                        {64, 1, 32},
                        {6, 3, 64},
                        {4, 4, 192}}) {
    if (!is_mine()) continue;
    Attention node;
    node.n_heads = s.heads, node.n_kv_heads = s.kv, node.head_dim = s.dim;
    constexpr int kPages = 24;
    const auto host_cache = g.host.kv_cache(node, KvKind::i16, 2 * kPages),
               device_cache = g.device.kv_cache(node, KvKind::i16, 2 * kPages);
    std::vector<int> first_pages, second_pages;
    for (int i = 0; i < kPages; ++i) {
      first_pages.push_back((i * 7 + 3) % kPages);
      second_pages.push_back(kPages + (i * 5 + 1) % kPages);
    }
    int first_position = 0, second_position = 0;
    std::uint64_t seed = 160;
    for (const Call call : {Call{1, 1, 1},
                            {120, 120, 7},
                            {16, 13, 16},
                            {9, 9, 30},
                            {33, 33, 5},
                            {40, 37, 90},
                            {900, 900, 1},
                            {8, 5, 9},
                            {17, 17, 150},
                            {2, 1, 1000},
                            {32, 20, 32}}) {
      const int n_rows = call.n_first + call.n_second;
      DeviceCopies copies;
      std::vector<float> queries = even_floats(++seed, n_rows * s.heads * s.dim, 3.0f);
      const int q_cols = s.heads * s.dim, kv_cols = s.kv * s.dim;
      std::vector<float> keys = even_floats(++seed, n_rows * kv_cols, 2.0f);
      if (n_rows > 12) {
        queries[static_cast<std::size_t>(5 * q_cols + 3)] = std::numeric_limits<float>::quiet_NaN();
        for (int d = 0; d < s.dim; ++d) {
          queries[static_cast<std::size_t>(8 * q_cols + d)] *= 1e7f;  // scores past the limit
        }
        keys[static_cast<std::size_t>(7 * kv_cols)] = std::numeric_limits<float>::infinity();
      }
      const BothRows q(copies, std::move(queries), n_rows, q_cols);
      const BothRows k(copies, std::move(keys), n_rows, kv_cols);
      const BothRows v(copies, even_floats(++seed, n_rows * kv_cols), n_rows, kv_cols);
      const BothRows y = BothRows::poisoned(copies, n_rows, q_cols);
      Segment first = BothBatch::whole(call.n_first), second = BothBatch::whole(call.n_second);
      first.first_position = first_position;
      first.n_live = first.n_sure = call.n_live;
      second.first_row = call.n_first;
      second.first_position = second_position;
      second.slot = 1;
      BothBatch batch({first, second}, {first_pages, second_pages});
      batch.begin(g.host, g.device);
      g.host.attention(batch.on_host, node, *host_cache, q.on_host, k.on_host, v.on_host,
                       y.on_host);
      g.device.attention(batch.on_device, node, *device_cache, q.on_device, k.on_device,
                         v.on_device, y.on_device);
      g.device.finish(batch.on_device);
      CHECK(batch.host_marks == batch.device_marks);
      const std::vector<float> device = y.read_device(g.device);
      CHECK_MESSAGE(rows_that_differ(y, device, batch.host_marks) == 0, s.heads, "/", s.kv, " x ",
                    s.dim, " at ", first_position, " and ", second_position, " rows ", call.n_first,
                    " and ", call.n_second);
      first_position += call.n_live, second_position += call.n_second;
      if (call.n_first != 32) continue;
      // Control: another query must show, in its own row alone.
      float moved = q.host[0] + 1.0f;
      copy_to_device(q.on_device.data, &moved, sizeof moved);
      batch.begin(g.host, g.device);
      g.device.attention(batch.on_device, node, *device_cache, q.on_device, k.on_device,
                         v.on_device, y.on_device);
      g.device.finish(batch.on_device);
      CHECK(rows_that_differ(y, y.read_device(g.device), batch.device_marks) == 1);
    }
  }
}

TEST_CASE("attention: few rows behind a long context") {
  Ground g;
  Attention node;
  node.n_heads = 10, node.n_kv_heads = 2, node.head_dim = 128;
  constexpr int kPages = 72, kChunk = 1000;
  const auto host_cache = g.host.kv_cache(node, KvKind::i16, kPages),
             device_cache = g.device.kv_cache(node, KvKind::i16, kPages);
  std::vector<int> pages;
  for (int i = 0; i < kPages; ++i) pages.push_back((i * 7 + 3) % kPages);
  const int q_cols = node.n_heads * node.head_dim, kv_cols = node.n_kv_heads * node.head_dim;
  int position = 0;
  std::uint64_t seed = 260;
  // 1000 rows: keys alone. The calls fall on both sides of the context at which kernels change.
  for (const int n_rows :
       {1000, 1000, 1, 2, 1000, 1000, 1000, 5, 1, 1000, 1000, 1000, 1, 2, 4, 9}) {
    DeviceCopies copies;
    const BothRows q(copies, even_floats(++seed, n_rows * q_cols, 3.0f), n_rows, q_cols);
    const BothRows k(copies, even_floats(++seed, n_rows * kv_cols, 2.0f), n_rows, kv_cols);
    const BothRows v(copies, even_floats(++seed, n_rows * kv_cols), n_rows, kv_cols);
    const BothRows y = BothRows::poisoned(copies, n_rows, q_cols);
    Segment segment = BothBatch::whole(n_rows);
    segment.first_position = position;
    BothBatch batch({segment}, {pages});
    batch.begin(g.host, g.device);
    if (n_rows == kChunk) {
      g.host.put_keys(batch.on_host, node, *host_cache, k.on_host, v.on_host);
      g.device.put_keys(batch.on_device, node, *device_cache, k.on_device, v.on_device);
    } else {
      g.host.attention(batch.on_host, node, *host_cache, q.on_host, k.on_host, v.on_host,
                       y.on_host);
      g.device.attention(batch.on_device, node, *device_cache, q.on_device, k.on_device,
                         v.on_device, y.on_device);
    }
    g.device.finish(batch.on_device);
    CHECK_MESSAGE(rows_that_differ(y, y.read_device(g.device), batch.host_marks) == 0, "at ",
                  position, " rows ", n_rows);
    position += n_rows;
  }
  CHECK(position > 64 * kPageKeys / 2);
}

TEST_CASE("experts: routing groups, latents, few rows and many") {
  Ground g;
  struct Shape {
    int experts, top_k, groups, kept, d_in, d_expert;
    bool norm;
    // So many tiles that a block of few rows takes two; few rows suffice, and the integer formats.
    bool wide = false;
  };
  for (const Format format : kAllFormats) {
    for (const Shape s : {Shape{16, 4, 1, 1, 128, 128, true},
                          {32, 6, 4, 2, 96, 72, false},
                          {8, 8, 8, 8, 40, 33, true},
                          {128, 6, 1, 1, 64, 64, true},
                          {64, 4, 1, 1, 672, 1376, true, true},
                          {64, 4, 1, 1, 4608, 288, true, true}}) {
      if (s.wide && format != Format::q8 && format != Format::nvfp4) continue;
      if (!is_mine()) continue;
      Moe host;
      host.n_experts = s.experts, host.top_k = s.top_k, host.n_router_groups = s.groups;
      host.top_k_groups = s.kept, host.norm_top_k = s.norm, host.scaling_factor = 2.5f,
      host.d_expert = s.d_expert;
      // Files mix formats: a block format's other projection is in the next one, the last one's in
      // floats.
      const Format below = !is_block(format) ? format
                           : format == Format::mxfp4
                               ? Format::bf16
                               : static_cast<Format>(static_cast<int>(format) + 1);
      const SyntheticWeight up = synthetic_weight(format, s.experts, s.d_expert, s.d_in, 21);
      const SyntheticWeight down = synthetic_weight(below, s.experts, s.d_in, s.d_expert, 22);
      const SyntheticWeight bias = plain_weight(even_floats(23, s.experts, 0.2f), 1, s.experts);
      host.experts_up = up.weight, host.experts_down = down.weight, host.router_bias = bias.weight;
      DeviceCopies weights;
      Moe device = host;
      device.experts_up = weights.put(host.experts_up),
      device.experts_down = weights.put(host.experts_down);
      device.router_bias = weights.put(host.router_bias);
      const auto operand_host = g.host.operand(1100, s.d_in),
                 operand_device = g.device.operand(1100, s.d_in);
      for (const int n_rows : {1, 2, 3, 7, 8, 9, 31, 32, 100, 200, 600}) {
        if (s.wide && n_rows > 31) break;
        DeviceCopies copies;
        std::vector<float> scores = even_floats(24, n_rows * s.experts, 4.0f);
        for (int r = 0; r < n_rows; ++r)
          scores[static_cast<std::size_t>(r * s.experts + 1)] =
              scores[static_cast<std::size_t>(r * s.experts)];  // ties
        const BothRows logits(copies, std::move(scores), n_rows, s.experts);
        std::vector<float> values = planted_floats(25, n_rows * s.d_in);
        if (n_rows > 6) values = with_nonfinite(std::move(values), s.d_in, 3);
        const BothRows x(copies, std::move(values), n_rows, s.d_in);
        const BothRows y = BothRows::poisoned(copies, n_rows, s.d_in);
        BothBatch batch(n_rows);
        for (int repeat = 0; repeat < (n_rows == 9 ? kRepeats : 1); ++repeat) {
          batch.begin(g.host, g.device);
          g.host.quantize(x.on_host, is_integer(format), *operand_host);
          g.host.experts(batch.on_host, host, logits.on_host, *operand_host, y.on_host);
          g.device.quantize(x.on_device, is_integer(format), *operand_device);
          g.device.experts(batch.on_device, device, logits.on_device, *operand_device, y.on_device);
          g.device.finish(batch.on_device);
          CHECK(batch.host_marks == batch.device_marks);
          const int differ = rows_that_differ(y, y.read_device(g.device), batch.host_marks);
          CHECK_MESSAGE(differ == 0, format_name(format), " experts ", s.experts, " rows ", n_rows);
        }
      }
    }
  }
}

TEST_CASE("a whole mixture-of-experts layer: norm, shared expert, latents, residual") {
  Ground g;
  struct Shape {
    int d_model, experts, top_k, groups, kept, d_expert, d_shared, d_latent;
  };
  for (const Format format : {Format::q8, Format::nvfp4, Format::bf16, Format::fp8, Format::q5_1,
                              Format::q4_k, Format::q6_k}) {
    for (const Shape s : {Shape{96, 16, 4, 1, 1, 72, 0, 0},
                          {320, 128, 6, 1, 1, 96, 160, 0},
                          {200, 40, 3, 4, 2, 33, 100, 0},
                          {288, 32, 5, 1, 1, 64, 224, 128},
                          {2720, 8, 2, 1, 1, 544, 96, 0}}) {
      if (!is_mine()) continue;
      DeviceCopies weights;
      std::vector<SyntheticWeight> owned;
      owned.reserve(9);
      Moe host, device;
      const auto make = [&](Format f, int n, int rows, int cols) {
        owned.push_back(synthetic_weight(f, n, rows, cols, 70 + owned.size()));
        return owned.back().weight;
      };
      host.n_experts = s.experts, host.top_k = s.top_k, host.n_router_groups = s.groups;
      host.top_k_groups = s.kept, host.norm_top_k = true, host.scaling_factor = 2.5f;
      host.d_expert = s.d_expert, host.d_shared = s.d_shared, host.d_latent = s.d_latent;
      const int d_in = s.d_latent > 0 ? s.d_latent : s.d_model;
      host.router = make(s.groups > 1 ? Format::bf16 : Format::f32, 1, s.experts, s.d_model);
      owned.push_back(plain_weight(even_floats(23, s.experts, 0.2f), 1, s.experts));
      host.router_bias = owned.back().weight;
      host.experts_up = make(format, s.experts, s.d_expert, d_in);
      host.experts_down = make(format, s.experts, d_in, s.d_expert);
      if (s.d_shared > 0) {
        host.shared_up = make(format, 1, s.d_shared, s.d_model);
        host.shared_down = make(format, 1, s.d_model, s.d_shared);
      }
      if (s.d_latent > 0) {
        host.latent_down = make(format, 1, s.d_latent, s.d_model);
        host.latent_up = make(format, 1, s.d_model, s.d_latent);
      }
      device = host;
      for (Weight* w :
           {&device.router, &device.router_bias, &device.experts_up, &device.experts_down,
            &device.shared_up, &device.shared_down, &device.latent_down, &device.latent_up}) {
        *w = weights.put(*w);
      }
      const std::vector<float> norm = even_floats(90, s.d_model, 0.3f);
      const float* norm_device = weights.put(norm.data(), norm.size());
      for (const int n_rows : {1, 2, 4, 5, 8, 9, 17, 32, 33, 64}) {
        DeviceCopies copies;
        std::vector<float> values = planted_floats(91, n_rows * s.d_model);
        if (n_rows > 7) values = with_nonfinite(std::move(values), s.d_model, 5);
        const BothRows x(copies, values, n_rows, s.d_model);
        const auto rows_of = [&](int cols) {
          return BothRows::poisoned(copies, n_rows, std::max(cols, 1));
        };
        const BothRows u = rows_of(s.d_model), choice = rows_of(s.experts),
                       routed = rows_of(s.d_model), shared = rows_of(s.d_shared),
                       latent = rows_of(s.d_latent), latent_out = rows_of(s.d_latent);
        std::unique_ptr<Operand> operands[2][3];
        Ops* const sides[] = {&g.host, &g.device};
        for (int side = 0; side < 2; ++side) {
          for (auto& operand : operands[side]) operand = sides[side]->operand(n_rows, s.d_model);
        }
        BothBatch batch(n_rows);
        for (int repeat = 0; repeat < (n_rows <= 2 ? kRepeats : 2); ++repeat) {
          batch.begin(g.host, g.device);
          for (int side = 0; side < 2; ++side) {
            const auto pick = [&](const BothRows& rows) {
              return side == 0 ? rows.on_host : rows.on_device;
            };
            auto& [first, second, third] = operands[side];
            const Batch& b = side == 0 ? batch.on_host : batch.on_device;
            sides[side]->norm_quantize(b, pick(x), side == 0 ? norm.data() : norm_device, 1e-5f,
                                       pick(u), is_integer(format), *first);
            sides[side]->moe(b, side == 0 ? host : device, *first,
                             {pick(choice), pick(routed), pick(shared), pick(latent),
                              pick(latent_out), second.get(), third.get()},
                             pick(x));
          }
          g.device.finish(batch.on_device);
          CHECK(batch.host_marks == batch.device_marks);
          const int differ = rows_that_differ(x, x.read_device(g.device), batch.host_marks);
          CHECK_MESSAGE(differ == 0, format_name(format), " d ", s.d_model, " rows ", n_rows,
                        " repeat ", repeat);
        }
      }
    }
  }
}

TEST_CASE("linears at once: one operand, quantised outputs") {
  Ground g;
  for (const Format format : {Format::q8, Format::nvfp4, Format::bf16, Format::fp8, Format::q2_k}) {
    for (const int k : {300, 2688}) {
      if (!is_mine()) continue;
      DeviceCopies weights;
      const SyntheticWeight a = synthetic_weight(format, 1, 320, k, 31),
                            b = synthetic_weight(format, 1, 70, k, 32),
                            c = synthetic_weight(Format::q8, 1, 48, 320, 33);
      const Weight a_device = weights.put(a.weight), b_device = weights.put(b.weight),
                   c_device = weights.put(c.weight);
      for (int n_rows = 1; n_rows <= 34; n_rows += is_brief() && n_rows > 4 ? 7 : 1) {
        DeviceCopies copies;
        const BothRows x(copies, planted_floats(34, n_rows * k), n_rows, k);
        const BothRows wide = BothRows::poisoned(copies, n_rows, 320),
                       side = BothRows::poisoned(copies, n_rows, 70),
                       y = BothRows::poisoned(copies, n_rows, 48);
        BothBatch batch(n_rows);
        const auto x_host = g.host.operand(n_rows, k), x_device = g.device.operand(n_rows, k),
                   wide_host = g.host.operand(n_rows, 320),
                   wide_device = g.device.operand(n_rows, 320);
        batch.begin(g.host, g.device);
        const auto run = [&](Ops& ops, const Batch& on, Rows<float> in, Operand& in_operand,
                             const Weight& wa, const Weight& wb, const Weight& wc,
                             Rows<float> rows_a, Operand& operand_a, Rows<float> rows_b,
                             Rows<float> rows_y) {
          ops.quantize(in, is_integer(format), in_operand);
          const LinearTask calls[] = {{&wa, Epilogue::relu2, rows_a, &operand_a},
                                      {&wb, Epilogue::store, rows_b}};
          ops.linears(on, in_operand, calls);
          ops.linear(on, operand_a, wc, Epilogue::store, rows_y);
        };
        run(g.host, batch.on_host, x.on_host, *x_host, a.weight, b.weight, c.weight, wide.on_host,
            *wide_host, side.on_host, y.on_host);
        run(g.device, batch.on_device, x.on_device, *x_device, a_device, b_device, c_device,
            wide.on_device, *wide_device, side.on_device, y.on_device);
        g.device.finish(batch.on_device);
        CHECK(batch.host_marks == batch.device_marks);
        CHECK_MESSAGE(rows_that_differ(y, y.read_device(g.device), batch.host_marks) == 0,
                      format_name(format), " k ", k, " rows ", n_rows);
        CHECK(rows_that_differ(side, side.read_device(g.device), batch.host_marks) == 0);
      }
    }
  }
}

namespace {

// Rows that a sampler can get wrong: ties, -0, not finite numbers in the first and last column,
// weights that are all equal, nothing to choose.
std::vector<float> awkward_logits(int n_rows, int n_cols) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> logits = even_floats(31, n_rows * n_cols, 12.0f);
  for (int r = 0; r < n_rows; ++r) {
    float* row = &logits[static_cast<std::size_t>(r * n_cols)];
    row[n_cols / 3] = row[n_cols / 2] = 12.5f;  // equal maxima
    switch (r % 12) {
      case 1:
        std::fill(row, row + n_cols, 0.25f);
        break;
      case 2:
        row[0] = std::numeric_limits<float>::quiet_NaN();
        break;
      case 3:
        row[n_cols - 1] = kInf;
        break;
      case 4:
        std::fill(row, row + n_cols, -kInf);
        break;
      case 5:
        row[1] = -kInf;
        break;
      case 6:
        std::fill(row, row + n_cols, -1.0f), row[3] = -0.0f, row[7] = 0.0f;
        break;
      case 7:
        row[n_cols - 1] = std::numeric_limits<float>::quiet_NaN();
        break;
      case 8:
        row[n_cols - 4] = 13.0f;  // the last id that may be chosen
        break;
      case 9:  // few values: every step of the bins is a tie
        for (int c = 0; c < n_cols; ++c) row[c] = static_cast<float>(static_cast<int>(row[c] / 4));
        break;
      case 10:
        for (int c = 0; c < n_cols; ++c) row[c] *= 1e30f;
        break;
      default:
        break;
    }
  }
  return logits;
}

bool same(const std::vector<Sampled>& a, const std::vector<Sampled>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Sampled& x, const Sampled& y) {
    return x.id == y.id && std::memcmp(&x.probability, &y.probability, sizeof(float)) == 0;
  });
}

}  // namespace

TEST_CASE("sample: filters, ties, temperatures, draft vocabularies, 1..32 rows") {
  Ground g;
  constexpr int kRows = 32;
  int call = 0;
  for (const int n_cols : {50, 3200, 4096, 4097, 9001, 131072}) {
    if (!is_mine()) continue;
    DeviceCopies copies;
    const BothRows rows(copies, awkward_logits(kRows, n_cols), kRows, n_cols);
    // No draft vocabulary, an ascending one, one in any order.
    std::vector<int> ascending(static_cast<std::size_t>(n_cols)), any_order;
    for (int i = 0; i < n_cols; ++i) ascending[static_cast<std::size_t>(i)] = 2 * i + 5;
    any_order = ascending;
    for (std::size_t i = any_order.size(); i > 1; --i) {
      std::swap(any_order[i - 1], any_order[i * 7919 % i]);
      std::swap(any_order[i - 1], any_order[(i * 2654435761u >> 7) % i]);
    }
    const int* const vocabs[] = {nullptr, ascending.data(), any_order.data()};
    for (const float temperature : {0.0f, 1e-30f, 0.3f, 1.0f, 50.0f, 1e6f}) {
      for (const int top_k : {0, 1, 40, 5000}) {
        for (const float top_p : {1.0f, 0.9f, 0.0f}) {
          for (const float min_p : {0.0f, 0.1f}) {
            ++call;
            if (is_brief() && call % 7 != n_cols % 7) continue;
            const int* vocab = vocabs[call % 3];
            const int n_rows = call % 4 == 0 ? kRows : 1 + call * 7 % kRows;
            const int first_row = (kRows - n_rows) / 2;
            std::vector<SampleSpec> specs(static_cast<std::size_t>(n_rows));
            for (int r = 0; r < n_rows; ++r) {
              SampleSpec& spec = specs[static_cast<std::size_t>(r)];
              spec = {temperature,
                      top_k,
                      top_p,
                      min_p,
                      0x123456789abcdefull + static_cast<unsigned>(r),
                      1000u + static_cast<unsigned>(r),
                      vocab != nullptr ? 2 * n_cols : n_cols - 3};
              spec.want_probability = (call + r) % 3 != 0;
              if (r % 8 == 7) spec.temperature = 0.8f, spec.top_k = r, spec.top_p = 0.95f;
              if (r % 8 == 6) spec.temperature = 0.0f;
              if (r % 8 == 5) spec.top_k = 0, spec.top_p = 1.0f;
            }
            BothBatch batch(n_rows);
            batch.begin(g.host, g.device);
            std::vector<Sampled> host(specs.size()), device(specs.size());
            g.host.sample(rows.on_host.rows(first_row, n_rows), specs, batch.host_marks, vocab,
                          host);
            // Twice: the second call finds its specs on the device.
            for (int repeat = 0; repeat < 2; ++repeat) {
              device.assign(specs.size(), Sampled{-7, -7.0f});
              g.device.sample(rows.on_device.rows(first_row, n_rows), specs, batch.device_marks,
                              vocab, device);
              CHECK_MESSAGE(same(host, device), "T ", temperature, " k ", top_k, " p ", top_p,
                            " min ", min_p, " n ", n_cols, " rows ", n_rows, " vocab ", call % 3);
            }
          }
        }
      }
    }
    // Control: the next position's noise must show.
    SampleSpec spec{1.0f, 0, 1.0f, 0.0f, 5, 1000, n_cols};
    std::vector<SampleSpec> specs(12, spec), later(specs);
    for (SampleSpec& s : later) ++s.position;
    BothBatch batch(12);
    batch.begin(g.host, g.device);
    std::vector<Sampled> host(12), device(12);
    g.host.sample(rows.on_host.rows(0, 12), specs, batch.host_marks, nullptr, host);
    g.device.sample(rows.on_device.rows(0, 12), later, batch.device_marks, nullptr, device);
    CHECK(!same(host, device));
  }
}

TEST_CASE("sample: a marked row has no token, and the call's marks come along") {
  Ground g;
  for (const int n_cols : {3200, 20000}) {
    DeviceCopies copies;
    std::vector<float> logits = even_floats(32, 3 * n_cols, 4.0f);
    const BothRows x(copies, std::move(logits), 3, n_cols);
    std::vector<float> values(3 * 64, 1.0f);
    values[70] = std::numeric_limits<float>::quiet_NaN();  // marks the middle row
    const BothRows normed(copies, std::move(values), 3, 64);
    const std::vector<float> w(64, 1.0f);
    const float* w_device = copies.put(w.data(), w.size());
    BothBatch batch(3);
    batch.begin(g.host, g.device);
    g.device.rms_norm(batch.on_device, normed.on_device, w_device, 1e-5f, 64, normed.on_device);
    SampleSpec spec;
    spec.n_vocab = n_cols;
    const std::vector<SampleSpec> specs(3, spec);
    std::vector<Sampled> out(3);
    g.device.sample(x.on_device, specs, batch.device_marks, nullptr, out);
    CHECK(out[0].id >= 0);
    CHECK(out[1].id == -1);
    CHECK(out[2].id >= 0);
    CHECK(batch.device_marks == std::vector<std::uint8_t>{0, 1, 0});
  }
}

}  // namespace bolt::cuda
