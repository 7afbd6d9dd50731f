#include "probe/host_probe.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/allocation.h"
#include "rows/cpu/dense.h"

namespace pith {
namespace {

constexpr size_t kTile = 128;

bool is_dense(const CodedRows* rows) {
  return dynamic_cast<const DenseRowsStore*>(rows) != nullptr;
}
bool is_coded(const Span& span) { return !is_dense(span.keys) || !is_dense(span.values); }

/// Coded rows are decoded tile by tile.
class HostSpans final : public CodedSpans {
 public:
  struct Site {
    const Kernels& kernels;
    std::span<const Span> spans;
    const float* q;  // [group, D]
    float scale;
    const Rope* rope;
  };
  explicit HostSpans(const Site& site) : site_(site) {}

  size_t spans() const override { return site_.spans.size(); }
  size_t rows(size_t s) const override {
    const Span& span = site_.spans[s];
    return is_coded(span) ? span.count : 0;
  }
  std::vector<CodedSums> sums(size_t s, const HeadAnswers& a) const override {
    const Kernels& kernels = site_.kernels;
    const Span& span = site_.spans[s];
    const std::vector<double> sizes = a.sizes(kernels);
    std::vector<CodedSums> sums(a.group, CodedSums(a.dim));
    std::vector<float> rows(kTile * a.dim), scores(a.group * kTile);
    std::optional<RopeCursor> cursor;  // a cache whose keys come rotated may have no RoPE
    if (span.keys_before_rope) cursor.emplace(*site_.rope);
    for (size_t t = 0; t < span.count; t += kTile) {
      const size_t first = span.first + t, n = std::min(kTile, span.count - t);
      span.keys->decode(rows.data(), first, n);
      if (cursor)
        cursor->rotate_rows(kernels, rows.data(), span.positions ? span.positions + first : nullptr,
                            span.first_position + static_cast<int64_t>(t), n);
      kernels.dot_rows(scores.data(), kTile, site_.q, a.group, {rows.data(), DType::kF32, a.dim}, n,
                       site_.scale);
      span.values->decode(rows.data(), first, n);
      for (size_t j = 0; j < a.group; ++j)
        for (size_t i = 0; i < n; ++i) {
          const float* v = rows.data() + i * a.dim;
          const double p = std::exp(double{scores[j * kTile + i]} - a.log_sum[j]);
          sums[j].add(p, v, a.far(kernels, v, j, sizes[j]));
        }
    }
    return sums;
  }

 private:
  Site site_;
};

}  // namespace

HostProbe::HostProbe(const Context& context, const AttentionShape& shape,
                     const ErrorProbeSite& site, size_t every)
    : context_(context), shape_(shape), probe_(context.memory, site, every) {
  for (size_t g = 0; g < shape.kv_heads; ++g) rows_.emplace_back(context);
}

void HostProbe::append(const float* k, const float* v, size_t tokens) {
  const size_t dim = shape_.head_dim, kv_heads = shape_.kv_heads;
  std::vector<ProbeSample::Entry> entries;
  probe_.sample().append(tokens, entries);
  for (const auto& entry : entries) {
    Rows& to = rows_[entry.head];
    const size_t size = probe_.sample().rows(entry.head).size() * dim;
    if (to.k.size() < size) to.k.resize(size), to.v.resize(size);
    const size_t at = (entry.token * kv_heads + entry.head) * dim;
    context_.kernels.from_f32(to.k.data() + entry.slot * dim, k + at, DType::kF16, dim);
    context_.kernels.from_f32(to.v.data() + entry.slot * dim, v + at, DType::kF16, dim);
  }
}

size_t HostProbe::most_bytes(size_t tokens) const {
  const size_t rows = std::min(tokens, probe_.sample().most_rows());
  const size_t of_rows = grown_bytes(rows * shape_.head_dim * sizeof(uint16_t));
  return shape_.kv_heads * (2 * of_rows + grown_bytes(rows * sizeof(ProbeSample::Row)));
}

void HostProbe::archive(Archive& a, size_t tokens) {
  probe_.archive(a, tokens);
  for (size_t g = 0; g < rows_.size(); ++g) {
    const size_t count = probe_.sample().rows(g).size() * shape_.head_dim;
    a.numbers(rows_[g].k, count);
    a.numbers(rows_[g].v, count);
  }
}

/// The start of a step's comparison of every head.
struct HostProbe::Comparison {
  std::vector<std::vector<Span>> spans;  // [G] what is held, every row with weight 1
  std::vector<float> known;              // [H, D] the answer over that
  std::vector<float> log_sum;            // [H]
};

void HostProbe::measure(const ProbedStep& step) {
  if (!probe_.ready()) return;  // nothing to tell apart
  const size_t dim = shape_.head_dim;
  Comparison c{{step.spans.begin(), step.spans.end()},
               std::vector<float>(shape_.query_heads * dim),
               std::vector<float>(shape_.query_heads)};
  for (auto& list : c.spans) {
    std::erase_if(list, [](const Span& s) { return s.role != Role::kBoth; });
    for (Span& s : list) s.log_weight = 0, s.log_weights = nullptr, s.mass = nullptr;
  }
  const std::vector<std::span<const Span>> spans(c.spans.begin(), c.spans.end());
  AttendCall call;
  call.shape = shape_, call.q = step.q, call.k = step.k, call.v = step.v, call.tokens = 1;
  call.first_position = static_cast<int64_t>(probe_.sample().tokens());
  call.spans = spans, call.rope = step.rope;
  call.out = c.known.data(), call.log_sum = c.log_sum.data();
  attend({context_.pool, context_.memory.beside(), context_.kernels}, call);
  probe_.measure(context_, probe_.sample(),
                 [&](size_t g, ProbedHead& head) { return describe_head(g, step, c, head); });
}

void HostProbe::find_held(size_t g, std::span<const Span> spans, const Rope* rope,
                          std::vector<float>& keys, ProbedHead& head) const {
  const auto rows = probe_.sample().rows(g);
  const size_t dim = shape_.head_dim, m = rows.size();
  keys.resize(m * dim), head.back.resize(m * dim), head.span.assign(m, ProbedHead::kGone);
  const SampleFinder sample(rows, probe_.sample().tokens());
  const auto take = [&](size_t s, size_t row, size_t i) {
    head.span[i] = is_coded(spans[s]) ? static_cast<int32_t>(s) : ProbedHead::kDense;
    spans[s].keys->decode(keys.data() + i * dim, row, 1);
    if (spans[s].keys_before_rope)
      rope->rotate(context_.kernels, keys.data() + i * dim, rows[i].position);
    spans[s].values->decode(head.back.data() + i * dim, row, 1);
  };
  for (size_t s = 0; s < spans.size(); ++s) {
    const Span& span = spans[s];
    for (size_t i = 0; i < span.count; ++i) {
      const size_t row = span.first + i;
      const int32_t found = sample.at(
          span.positions ? span.positions[row] : span.first_position + static_cast<int64_t>(i));
      if (found != SampleFinder::kNone) take(s, row, static_cast<size_t>(found));
    }
  }
}

std::unique_ptr<CodedSpans> HostProbe::describe_head(size_t g, const ProbedStep& step,
                                                     const Comparison& c, ProbedHead& head) const {
  const size_t dim = shape_.head_dim, group = shape_.query_heads / shape_.kv_heads;
  const size_t m = probe_.sample().rows(g).size(), first = g * group;
  const float scale = shape_.scale != 0 ? shape_.scale : 1 / std::sqrt(static_cast<float>(dim));
  const float* q = step.q + first * dim;
  head.known.assign(c.known.data() + first * dim, c.known.data() + (first + group) * dim);
  head.log_sum.assign(c.log_sum.data() + first, c.log_sum.data() + first + group);
  head.policy = {step.policy + first * dim, group * dim};
  std::vector<float> keys;
  find_held(g, c.spans[g], step.rope, keys, head);
  head.own.resize(group * m), head.stored.resize(group * m), head.values.resize(m * dim);
  const DenseRows kept{rows_[g].k.data(), DType::kF16, dim}, back{keys.data(), DType::kF32, dim};
  context_.kernels.dot_rows(head.own.data(), m, q, group, kept, m, scale);
  context_.kernels.dot_rows(head.stored.data(), m, q, group, back, m, scale);
  context_.kernels.to_f32(head.values.data(), rows_[g].v.data(), DType::kF16, m * dim);
  return std::make_unique<HostSpans>(
      HostSpans::Site{context_.kernels, c.spans[g], q, scale, step.rope});
}

}  // namespace pith
