// A layer's cache on the CPU. f32 rows without gaps are read where they are, others widened.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>

#include "cache/kv_cache.h"
#include "layer/layer_backend.h"
#include "pith/error.h"
#include "runtime/runtime.h"

namespace pith {
namespace {

/// A NaN would become a 0 of the answer somewhere, and a broken model look well.
void check_finite(std::span<const float> x, const char* what) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t bad = 0;
  for (const float value : x) bad |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent;
  if (bad == 0) return;
  throw Error(ErrorCode::kNonFinite,
              std::string(what) +
                  " has a number that is not finite; the model that made it is "
                  "broken, or its numbers do not fit their type");
}

LayerSite site_of(CpuRuntime& runtime, const LayerCacheOptions& o) {
  LayerSite site(o);
  site.rope = runtime.tables.rope(std::move(site.rope));
  return site;
}

class CpuLayer final : public LayerBackend {
 public:
  CpuLayer(CpuRuntime& runtime, const LayerCacheOptions& o)
      : runtime_(runtime),
        site_(site_of(runtime, o)),
        cache_(
            std::make_unique<KvCache>(Context{runtime.pool, runtime.memory, runtime.kernels},
                                      ResolvedPolicy(o.policy, shape_of(o), o.seed, Device::kCpu),
                                      site_.rope.get(), o.layer, &runtime.tables)) {
    cache_->protect(o.protect);
    if (o.error_probe.rows > 0) cache_->start_error_probe(o.error_probe, o.seed);
  }
  CpuLayer(const CpuLayer& o) : runtime_(o.runtime_), site_(o.site_), cache_(o.cache_->clone()) {}

  std::unique_ptr<LayerBackend> clone() const override { return std::make_unique<CpuLayer>(*this); }

  void step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
            size_t tokens) override {
    Array<float> q_room = room(), k_room = room(), v_room = room();
    answer(out, tokens, [&](float* to) {
      cache_->step(site_.layer, to, read_queries(q, tokens, q_room),
                   read(k, site_.kv_heads, tokens, k_room, "k"),
                   read(v, site_.kv_heads, tokens, v_room, "v"), tokens);
    });
  }
  void append(const RowsView& k, const RowsView& v, size_t tokens) override {
    Array<float> k_room = room(), v_room = room();
    cache_->append(site_.layer, read(k, site_.kv_heads, tokens, k_room, "k"),
                   read(v, site_.kv_heads, tokens, v_room, "v"), tokens);
  }
  void attend(const RowsOut& out, const RowsView& q, size_t tokens) override {
    Array<float> q_room = room();
    answer(out, tokens, [&](float* to) {
      cache_->attend_only(site_.layer, to, read_queries(q, tokens, q_room), tokens);
    });
  }
  void end_prompt() override { cache_->end_prefill(); }
  void protect(std::span<const TokenRange> ranges) override { cache_->protect(ranges); }
  void use_stream(void* stream) override {
    if (stream)
      throw Error(
          ErrorCode::kInvalidArgument,
          "a stream was given to a layer's cache on the CPU, which has none; make it with a "
          "Runtime on the GPU (RuntimeOptions::device)");
  }

  size_t tokens() const override { return cache_->tokens(site_.layer); }
  HeadRows rows(int head) const override { return cache_->rows(site_.layer, head); }
  void read_rows(int head, float* k, float* v) const override {
    cache_->read_rows(site_.layer, head, k, v);
  }
  std::vector<double> scores(int head) const override { return cache_->scores(site_.layer, head); }
  Ledger ledger() const override { return cache_->ledger(site_.layer); }
  std::string describe() const override { return cache_->describe(); }
  std::optional<AttentionError> attention_error() const override {
    const auto all = cache_->attention_errors();
    return all.empty() ? std::nullopt : std::optional(all.front());
  }
  std::vector<TokenRange> protected_tokens() const override { return cache_->protected_tokens(); }
  void archive(Archive& a) override {
    cache_->archive(a);
    cache_->archive_layer(site_.layer, a);
  }
  std::string bits() const override { return runtime_.kernels.isa; }

 private:
  Array<float> room() const { return {runtime_.memory, MemoryKind::kScratch}; }
  template <class View>
  bool plain(const View& x, size_t heads) const {
    return x.dtype == DType::kF32 && without_gaps(x, heads, site_.dim);
  }
  /// Calls f(row, at) for each row of f32 [T, heads, D]; `at`: its first byte in the view.
  template <class View, class F>
  void each_row(const View& x, size_t heads, size_t tokens, const F& f) const {
    const auto size = static_cast<ptrdiff_t>(size_of(x.dtype));
    for (size_t t = 0; t < tokens; ++t)
      for (size_t h = 0; h < heads; ++h)
        f((t * heads + h) * site_.dim, size * (static_cast<ptrdiff_t>(t) * x.token_stride +
                                               static_cast<ptrdiff_t>(h) * x.head_stride));
  }
  /// The rows as f32 [T, heads, D]: where they are, or in `room`.
  const float* read(const RowsView& x, size_t heads, size_t tokens, Array<float>& room,
                    const char* what) const {
    const auto finite = [&](const float* rows) {
      check_finite({rows, tokens * heads * site_.dim}, what);
      return rows;
    };
    if (plain(x, heads)) return finite(static_cast<const float*>(x.data));
    room.resize(tokens * heads * site_.dim);
    const auto* bytes = static_cast<const std::byte*>(x.data);
    each_row(x, heads, tokens, [&](size_t row, ptrdiff_t at) {
      runtime_.kernels.to_f32(room.data() + row, bytes + at, x.dtype, site_.dim);
    });
    return finite(room.data());
  }
  /// The same for queries, at the caller's scale.
  const float* read_queries(const RowsView& q, size_t tokens, Array<float>& room) const {
    const float* rows = read(q, site_.query_heads, tokens, room, "q");
    if (site_.query_factor == 1) return rows;
    if (room.empty()) {
      room.resize(tokens * site_.query_heads * site_.dim);
      std::copy_n(rows, room.size(), room.data());
    }
    runtime_.kernels.scale(room.data(), site_.query_factor, room.size());
    return room.data();
  }
  /// Calls f(to) with a place for answers f32 [T, H, D]: where they go, or room that is written out
  /// from there.
  template <class F>
  void answer(const RowsOut& out, size_t tokens, const F& f) const {
    if (plain(out, site_.query_heads)) return f(static_cast<float*>(out.data));
    Array<float> answers = room();
    answers.resize(tokens * site_.query_heads * site_.dim);
    f(answers.data());
    auto* bytes = static_cast<std::byte*>(out.data);
    each_row(out, site_.query_heads, tokens, [&](size_t row, ptrdiff_t at) {
      runtime_.kernels.from_f32(bytes + at, answers.data() + row, out.dtype, site_.dim);
    });
  }

  CpuRuntime& runtime_;
  LayerSite site_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace

std::unique_ptr<LayerBackend> make_cpu_layer(RuntimeBackend& runtime,
                                             const LayerCacheOptions& options) {
  return std::make_unique<CpuLayer>(static_cast<CpuRuntime&>(runtime), options);
}

}  // namespace pith
