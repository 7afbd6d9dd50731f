#include "thinformer/thinformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "attend/attend.h"
#include "pith/error.h"
#include "rows/cpu/dense.h"

namespace pith {
namespace {

/// KH-Compress of one KV head.
class Compress {
 public:
  Compress(const Context& context, const ThinformerRule& rule, const UnmaskedHeads& heads,
           size_t head)
      : context_(context),
        heads_(heads),
        head_(head),
        halving_(rule.halving),
        random_(rule.seed, 0, static_cast<uint32_t>(head)) {
    halving_.walk = Walk::kPairs;
    if (halving_.scale == 0) halving_.scale = 1 / std::sqrt(static_cast<float>(heads.head_dim));
  }

  /// The rows of [first, last) that stay after `levels` halvings.
  std::vector<uint32_t> run(size_t first, size_t last, uint32_t levels) const {
    std::vector<uint32_t> rows;
    if (levels == 0) {
      for (size_t i = first; i < last; ++i) rows.push_back(static_cast<uint32_t>(i));
      return rows;
    }
    for (size_t part = 0; part < 4; ++part) {
      const size_t from = first + (last - first) * part / 4;
      const size_t to = first + (last - first) * (part + 1) / 4;
      const std::vector<uint32_t> stay = run(from, to, levels - 1);
      rows.insert(rows.end(), stay.begin(), stay.end());
    }
    return halved(rows, levels);
  }

 private:
  std::vector<uint32_t> halved(const std::vector<uint32_t>& in, uint32_t level) const {
    const size_t even = in.size() / 2 * 2, d = heads_.head_dim;
    Array<float> k(context_.memory, MemoryKind::kScratch);
    Array<float> v(context_.memory, MemoryKind::kScratch);
    k.resize(even * d);
    v.resize(even * d);
    std::vector<int64_t> positions(even);
    for (size_t i = 0; i < even; ++i) {
      const size_t at = (in[i] * heads_.kv_heads + head_) * d;
      std::copy_n(heads_.k + at, d, k.data() + i * d);
      std::copy_n(heads_.v + at, d, v.data() + i * d);
      positions[i] = in[i];
    }
    const Halved half = halve(context_.kernels, context_.memory, halving_,
                              {k.data(), v.data(), positions.data(), even, d}, {random_, level});
    std::vector<uint32_t> out;
    for (uint32_t i : half.kept) out.push_back(in[i]);
    // A row without a partner stays with probability 1/2: no row is favoured.
    if (even < in.size() && random_.uniform(in.back(), 128 + level) < 0.5f)
      out.push_back(in.back());
    return out;
  }

  const Context& context_;
  const UnmaskedHeads& heads_;
  size_t head_;
  HalvingRule halving_;
  Philox random_;
};

}  // namespace

std::vector<uint32_t> thinformer_rows(const Context& context, const ThinformerRule& rule,
                                      const UnmaskedHeads& heads, size_t head) {
  uint32_t levels = 0;
  const double leaf = std::ldexp(1.0, 2 * static_cast<int>(rule.inflation));
  while (static_cast<double>(heads.rows) > leaf * std::ldexp(1.0, 2 * static_cast<int>(levels)))
    ++levels;
  return Compress(context, rule, heads, head).run(0, heads.rows, levels);
}

void thinformer_attention(const Context& context, float* out, const ThinformerRule& rule,
                          const UnmaskedHeads& heads) {
  if (heads.kv_heads == 0 || heads.query_heads % heads.kv_heads != 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("thinformer: {} query heads cannot share {} KV heads evenly",
                            heads.query_heads, heads.kv_heads));
  std::vector<std::vector<uint32_t>> kept(heads.kv_heads);
  context.pool.parallel_for(
      heads.kv_heads, [&](size_t g, int) { kept[g] = thinformer_rows(context, rule, heads, g); });
  const DenseCodec codec(DType::kF32);
  const size_t d = heads.head_dim;
  std::vector<std::unique_ptr<CodedRows>> keys, values;
  std::vector<Span> spans(heads.kv_heads);
  std::vector<std::span<const Span>> lists;
  for (size_t g = 0; g < heads.kv_heads; ++g) {
    keys.push_back(codec.make_rows(context, {Side::kKeys, d, 0, kept[g].size()}));
    values.push_back(codec.make_rows(context, {Side::kValues, d, 0, kept[g].size()}));
    for (uint32_t row : kept[g]) {
      const size_t at = (row * heads.kv_heads + g) * d;
      keys.back()->append(heads.k + at, d, 1);
      values.back()->append(heads.v + at, d, 1);
    }
    spans[g].keys = keys.back().get();
    spans[g].values = values.back().get();
    spans[g].count = kept[g].size();
    lists.emplace_back(&spans[g], 1);
  }
  AttendCall call;
  call.shape = {heads.query_heads, heads.kv_heads, d, rule.halving.scale};
  call.q = heads.q;
  call.tokens = heads.queries;
  call.spans = lists;
  call.out = out;
  attend(context, call);
}

}  // namespace pith
