// Causal attention over paged keys: how a call's rows and tiles are cut among threads, and the
// order in which tiles and spans are joined (§7). A tile's sums are attention_definition.inc, their
// vector forms x86/attention_*.cpp, the device twin cuda/.
//
// Who computes a tile never matters: tiles are absolute, and are joined ascending inside spans of
// 8, spans ascending.
#include "core/ops/attention.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/exact_math.h"
#include "core/ops/host.h"
#include "core/ops/marks.h"

namespace bolt {
namespace {

constexpr int kBlockQueries = 32;  // query vectors that share a tile while it is in the cache

// Some rows of a segment, all query heads of one kv head.
struct Item {
  const Segment* segment;
  int kv_head, first_row, n_rows;  // rows from the segment's first
  int n_tiles;                     // of the last row
  int first_part;                  // among the parts of the call
};

// What one thread works in.
struct Workspace {
  std::vector<std::int16_t> qh, ql;
  std::vector<float> q, factor, m, l, o;
  std::vector<float> span_m, span_l, span_o, whole_m, whole_l, whole_o;
  std::vector<int> n_visible;
  std::vector<std::uint8_t> marked;
  std::vector<std::byte> scratch;

  void fit(int n_queries, int head_dim, int v_dims) {
    const auto n = static_cast<std::size_t>(n_queries);
    const std::size_t codes = n * (static_cast<std::size_t>(head_dim) + 1), sums = n * v_dims;
    if (o.size() >= sums && qh.size() >= codes && m.size() >= n) return;
    qh.resize(codes), ql.resize(codes), q.resize(codes), factor.resize(n);
    m.resize(n), l.resize(n), o.resize(sums);
    span_m.resize(n), span_l.resize(n), span_o.resize(sums);
    whole_m.resize(n), whole_l.resize(n), whole_o.resize(sums);
    n_visible.resize(n), marked.resize(n);
    scratch.resize(kTileScratchBytes + 64);
  }
  std::byte* aligned_scratch() {
    const auto address = reinterpret_cast<std::uintptr_t>(scratch.data());
    return scratch.data() + ((address + 63) / 64 * 64 - address);
  }
};

thread_local Workspace t_workspace;

// One call's attention over a cache that already holds its keys.
class Pass {
 public:
  Pass(const Batch& batch, const Attention& node, const HostKvCache& cache, Isa isa,
       Rows<const float> q, Rows<float> y)
      : batch_(batch),
        cache_(cache),
        layout_(cache.layout()),
        q_(q),
        y_(y),
        kernels_(attention_kernels_for(layout_.kind, isa)),
        heads_per_kv_(node.n_heads / node.n_kv_heads) {}

  void run(ThreadPool& pool, std::vector<float>& parts);

 private:
  int last_position(const Item& item, int row) const {
    const Segment& s = *item.segment;
    return s.first_position + std::min(item.first_row + row, s.n_live - 1);
  }
  int last_tile(const Item& item, int query) const {
    return last_position(item, query / heads_per_kv_) / kPageKeys;
  }
  int call_row(const Item& item, int query) const {
    return item.segment->first_row + item.first_row + query / heads_per_kv_;
  }
  int n_queries(const Item& item) const { return item.n_rows * heads_per_kv_; }

  void cut(int n_threads);
  void prepare(const Item& item, Workspace& w) const;
  void tile(const Item& item, int tile, int first_query, Workspace& w) const;
  void join(bool first, float* M, float* L, float* O, float m, float l, const float* o) const;
  void add_tile(const Item& item, int tile, int query, float m, float l, const float* o,
                Workspace& w) const;
  void finish(const Item& item, int query, float L, const float* O) const;
  float* part(std::vector<float>& parts, int index, int query) const {
    return parts.data() +
           (static_cast<std::int64_t>(index) * block_queries_ + query) * part_floats();
  }
  int part_floats() const { return layout_.v_dims() + 2; }

  const Batch& batch_;
  const HostKvCache& cache_;
  const KvLayout& layout_;
  Rows<const float> q_;
  Rows<float> y_;
  const AttentionKernels& kernels_;
  const int heads_per_kv_;
  std::vector<Item> items_;
  int block_queries_ = 0;
  int part_tiles_ = 0;  // tiles of a part: 1, a span, or 0 for all
};

// Items, and how their tiles are shared out: whole items where there are enough, else spans, else
// single tiles.
void Pass::cut(int n_threads) {
  const int block_rows = std::max(1, kBlockQueries / heads_per_kv_);
  block_queries_ = block_rows * heads_per_kv_;
  int n_spans = 0;
  for (const Segment& segment : batch_.segments) {
    for (int row = 0; row < segment.n_rows; row += block_rows) {
      for (int kv_head = 0; kv_head < layout_.n_kv_heads; ++kv_head) {
        Item item{&segment, kv_head, row, std::min(block_rows, segment.n_rows - row), 0, 0};
        const int last = last_position(item, item.n_rows - 1);
        item.n_tiles = last < 0 ? 0 : last / kPageKeys + 1;
        require(item.n_tiles <= static_cast<int>(segment.pages.size()),
                "every visible tile has its page");
        n_spans += (item.n_tiles + kSpanTiles - 1) / kSpanTiles;
        items_.push_back(item);
      }
    }
  }
  const int n_items = static_cast<int>(items_.size());
  part_tiles_ = n_threads == 1 || n_items >= 4 * n_threads ? 0
                : n_spans >= 4 * n_threads                 ? kSpanTiles
                                                           : 1;
}

void Pass::prepare(const Item& item, Workspace& w) const {
  const int n = n_queries(item), dims = layout_.head_dim, stride = 2 * layout_.dim_pairs();
  w.fit(block_queries_, dims, layout_.v_dims());
  // log2(e) / sqrt(head_dim), rounded once.
  const auto c = static_cast<float>(1.44269504088896340735992468100189214L /
                                    std::sqrt(static_cast<long double>(dims)));
  const float scale = exact_rsqrt(static_cast<float>(dims));
  for (int query = 0; query < n; ++query) {
    const int head = item.kv_head * heads_per_kv_ + query % heads_per_kv_;
    const float* x = q_.row(call_row(item, query)) + head * dims;
    bool finite = true;
    if (layout_.kind == KvKind::f32) {
      for (int d = 0; d < dims; ++d) {
        finite = finite && is_finite(x[d]);
        w.q[query * dims + d] = x[d] * scale;
      }
    } else {
      std::int16_t *h = &w.qh[query * stride], *l = &w.ql[query * stride];
      int exponent;
      h[stride - 1] = 0;
      finite = quantize_codes(x, dims, h, &exponent);
      for (int d = 0; d < stride; ++d) {
        const int code = h[d];
        h[d] = static_cast<std::int16_t>((code + 128) >> 8);
        l[d] = static_cast<std::int16_t>(code - 256 * h[d]);
      }
      w.factor[query] = c * power_of_two(exponent + 8);
    }
    if (!finite) mark_row(batch_, call_row(item, query));
    w.marked[query] = 0;
  }
}

// One tile of queries [first_query, ...) into w.m, w.l, w.o at the queries' places.
void Pass::tile(const Item& item, int tile, int first_query, Workspace& w) const {
  const int n = n_queries(item), stride = 2 * layout_.dim_pairs();
  for (int query = first_query; query < n; ++query) {
    const int last = last_position(item, query / heads_per_kv_);
    w.n_visible[query] = std::min(last - tile * kPageKeys + 1, kPageKeys);
  }
  TileArgs a;
  a.layout = &layout_;
  const int page = item.segment->pages[tile];
  require(page >= 0 && page < cache_.n_pages(), "a sequence's page is one of the cache's");
  a.base = cache_.head(page, item.kv_head);
  a.n_queries = n - first_query;
  a.n_visible = &w.n_visible[first_query];
  a.qh = &w.qh[first_query * stride], a.ql = &w.ql[first_query * stride];
  a.q = &w.q[first_query * layout_.head_dim];
  a.factor = &w.factor[first_query];
  a.m = &w.m[first_query], a.l = &w.l[first_query], a.o = &w.o[first_query * layout_.v_dims()];
  a.marked = &w.marked[first_query];
  a.scratch = w.aligned_scratch();
  kernels_.tile(a);
}

void Pass::join(bool first, float* M, float* L, float* O, float m, float l, const float* o) const {
  if (first) {
    *M = m, *L = l;
    std::copy(o, o + layout_.v_dims(), O);
  } else {
    kernels_.merge(layout_.v_dims(), M, L, O, m, l, o);
  }
}

// Joins a query's next tile to its span, and a span that is complete to the whole.
void Pass::add_tile(const Item& item, int tile, int query, float m, float l, const float* o,
                    Workspace& w) const {
  float* span_o = &w.span_o[query * layout_.v_dims()];
  join(tile % kSpanTiles == 0, &w.span_m[query], &w.span_l[query], span_o, m, l, o);
  if (tile % kSpanTiles == kSpanTiles - 1 || tile == last_tile(item, query)) {
    join(tile < kSpanTiles, &w.whole_m[query], &w.whole_l[query],
         &w.whole_o[query * layout_.v_dims()], w.span_m[query], w.span_l[query], span_o);
  }
}

void Pass::finish(const Item& item, int query, float L, const float* O) const {
  const int head = item.kv_head * heads_per_kv_ + query % heads_per_kv_;
  float* y = y_.row(call_row(item, query)) + head * layout_.head_dim;
  const float scale = layout_.kind == KvKind::i16 ? 0x1p-7f : 1.0f;
  for (int d = 0; d < layout_.head_dim; ++d) y[d] = (O[d] * scale) / L;
}

void Pass::run(ThreadPool& pool, std::vector<float>& parts) {
  cut(pool.n_threads());
  struct Unit {
    int item, first_tile, end_tile, part;
  };
  std::vector<Unit> units;
  for (int i = 0; i < static_cast<int>(items_.size()); ++i) {
    Item& item = items_[i];
    const int step = part_tiles_ == 0 ? std::max(1, item.n_tiles) : part_tiles_;
    item.first_part = static_cast<int>(units.size());
    for (int tile = 0; tile == 0 || tile < item.n_tiles; tile += step) {
      units.push_back(
          {i, tile, std::min(tile + step, item.n_tiles), static_cast<int>(units.size())});
    }
  }
  const std::size_t floats = part_tiles_ == 0 ? 0 : units.size() * block_queries_ * part_floats();
  if (parts.size() < floats) parts.resize(floats);

  const int v_dims = layout_.v_dims();
  pool.parallel_for(static_cast<int>(units.size()), 1, [&](int begin, int end, int) {
    Workspace& w = t_workspace;
    for (int u = begin; u < end; ++u) {
      const Unit& unit = units[u];
      const Item& item = items_[unit.item];
      const int n = n_queries(item);
      if (u == begin || units[u - 1].item != unit.item) prepare(item, w);
      int first_query = 0;
      for (int t = unit.first_tile; t < unit.end_tile; ++t) {
        // Positions ascend, so the queries that see nothing of the tile come first.
        while (first_query < n && last_tile(item, first_query) < t) ++first_query;
        tile(item, t, first_query, w);
        for (int query = first_query; query < n; ++query) {
          const float* o = &w.o[query * v_dims];
          if (part_tiles_ == 0) {
            add_tile(item, t, query, w.m[query], w.l[query], o, w);
          } else {
            float* p = part(parts, unit.part, query);
            join(t == unit.first_tile, p, p + 1, p + 2, w.m[query], w.l[query], o);
          }
        }
      }
      for (int query = 0; query < n; ++query) {
        if (w.marked[query]) mark_row(batch_, call_row(item, query));
        if (part_tiles_ == 0 && item.n_tiles > 0) {
          finish(item, query, w.whole_l[query], &w.whole_o[query * v_dims]);
        }
      }
    }
  });

  // Joins the parts in their order.
  pool.parallel_for(static_cast<int>(items_.size()), 1, [&](int begin, int end, int) {
    Workspace& w = t_workspace;
    for (int i = begin; i < end; ++i) {
      const Item& item = items_[i];
      w.fit(block_queries_, layout_.head_dim, v_dims);
      for (int query = 0; query < n_queries(item); ++query) {
        if (item.n_tiles == 0) {  // a padding row before any key
          const float zeros[kHeadDimMax] = {};
          finish(item, query, 1.0f, zeros);
        }
        if (part_tiles_ == 0 || item.n_tiles == 0) continue;
        float *whole_m = &w.whole_m[query], *whole_l = &w.whole_l[query];
        float* whole_o = &w.whole_o[query * v_dims];
        int index = item.first_part;
        for (int t = 0; t <= last_tile(item, query); t += part_tiles_, ++index) {
          const float* p = part(parts, index, query);
          if (part_tiles_ == 1) {
            add_tile(item, t, query, p[0], p[1], p + 2, w);
          } else {
            join(t == 0, whole_m, whole_l, whole_o, p[0], p[1], p + 2);
          }
        }
        finish(item, query, *whole_l, whole_o);
      }
    }
  });
}

}  // namespace

const AttentionKernels& attention_kernels_for(KvKind kind, Isa isa) {
  const bool f32 = kind == KvKind::f32;
  switch (isa) {
    case Isa::avx2:
      return f32 ? kAttentionF32Avx2 : kAttentionAvx2;
    case Isa::avx512:
      return f32 ? kAttentionF32Avx512 : kAttentionAvx512;
    default:
      break;
  }
  if (cpu_has_fma()) return f32 ? kAttentionF32Fma : kAttentionFma;
  return f32 ? kAttentionF32Portable : kAttentionPortable;
}

void HostOps::put_keys(const Batch& batch, const Attention& node, KvCache& any_cache,
                       Rows<const float> k, Rows<const float> v) {
  auto& cache = static_cast<HostKvCache&>(any_cache);
  const int dims = node.head_dim, n_heads = node.n_kv_heads;
  require(k.n_cols == n_heads * dims && v.n_cols == n_heads * dims, "keys have the layer's shape");
  for (const Segment& segment : batch.segments) {
    require(segment.first_position >= 0 && segment.n_live <= segment.n_rows,
            "live rows are rows of the segment");
    pool_.parallel_for(segment.n_live, 16, [&](int begin, int end, int) {
      for (int r = begin; r < end; ++r) {
        const int position = segment.first_position + r, row = segment.first_row + r;
        const int tile = position / kPageKeys;
        require(tile < static_cast<int>(segment.pages.size()), "every written tile has its page");
        const int page = segment.pages[tile];
        require(page >= 0 && page < cache.n_pages(), "a sequence's page is one of the cache's");
        for (int h = 0; h < n_heads; ++h) {
          if (!cache.put(page, h, position % kPageKeys, k.row(row) + h * dims,
                         v.row(row) + h * dims)) {
            mark_row(batch, row);
          }
        }
      }
    });
  }
}

void HostOps::attention(const Batch& batch, const Attention& node, KvCache& any_cache,
                        Rows<const float> q, Rows<const float> k, Rows<const float> v,
                        Rows<float> y) {
  require(q.n_cols == node.n_heads * node.head_dim && y.n_cols == q.n_cols,
          "queries have the layer's shape");
  put_keys(batch, node, any_cache, k, v);
  Pass(batch, node, static_cast<HostKvCache&>(any_cache), isa_, q, y)
      .run(pool_, attention_scratch_);
}

}  // namespace bolt
