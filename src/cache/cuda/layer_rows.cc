#include "cache/cuda/layer_rows.h"

#include <fmt/format.h>

#include <numeric>

#include "cache/cuda/device_rows.h"
#include "cache/cuda/windowed_rows.h"
#include "compress/registry.h"
#include "kernels/cuda/grouped_layout.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Every row, exact, in one run.
class StraightRows final : public LayerRows {
 public:
  explicit StraightRows(const LayerSite& site)
      : site_(site), rows_(*site.memory, {site.heads, site.dim, site.context}, site.stream) {}

  std::unique_ptr<LayerRows> clone() const override {
    return std::make_unique<StraightRows>(*this);
  }
  size_t spans() const override { return 1; }
  RowTarget begin_token(DeviceSpan* spans) override {
    rows_.reserve_more(1);
    for (size_t g = 0; g < site_.heads; ++g) {
      spans[g] = {};
      spans[g].keys = rows_.keys() + g * rows_.head_stride() * 2;
      spans[g].values = rows_.values() + g * rows_.head_stride() * 2;
      spans[g].rows = static_cast<int32_t>(rows_.rows() + 1);
      spans[g].row_stride = static_cast<int32_t>(site_.dim);
    }
    return rows_.end();
  }
  void attend_token(const DecodeCall& call, const DecodeScratch& scratch) const override {
    decode_dense(call, scratch, site_.stream);
  }
  void end_token(std::vector<CodeMove>&) override { rows_.add(1); }

  RowTarget begin_chunk(size_t tokens, ChunkSpace&) override {
    rows_.reserve_more(tokens);
    return rows_.end();
  }
  void attend_chunk(CausalCall call, ChunkSpace&) override {
    const auto before = static_cast<int64_t>(rows_.rows());
    call.span = {rows_.keys(),         rows_.values(), rows_.head_stride(),
                 before + call.tokens, before,         0};
    cuda::attend_chunk(call, site_.stream);
  }
  void end_chunk(size_t tokens, ChunkSpace&) override { rows_.add(tokens); }

  std::vector<int64_t> positions() const override {
    std::vector<int64_t> all(rows_.rows());
    std::iota(all.begin(), all.end(), int64_t{0});
    return all;
  }
  size_t tokens() const override { return rows_.rows(); }
  void add_to(Ledger& ledger) const override {
    ledger.payload += rows_.held_bytes();
    ledger.slack += rows_.allocated_bytes() - rows_.held_bytes();
    ledger.rows_kept += rows_.rows() * site_.heads;
  }

 private:
  LayerSite site_;
  DeviceRows rows_;
};

std::string names_of_selectors() {
  std::string names;
  for (const SelectorRow& row : selector_rows()) {
    if (row.on_gpu != BodyOnGpu::kNotThere) names += (names.empty() ? "" : ", ") + row.info.name;
  }
  return names;
}
std::string names_of_codecs() {
  std::string names;
  for (const CodecRow& row : codec_rows()) {
    const bool there = row.make_on_gpu || (row.dense && *row.dense != DType::kF32);
    if (there) names += (names.empty() ? "" : ", ") + row.info.name;
  }
  return names;
}

/// How rows of one side are stored.
struct SidePlan {
  DType exact = DType::kF16;                 ///< of exact rows
  std::shared_ptr<const DeviceCodec> codec;  ///< null: all rows are exact
  size_t cpu_block = 1;                      ///< rows that the CPU codes at once
};

SidePlan plan_side(const std::optional<PolicyPart>& part, const PolicyRule& rule, Side side) {
  SidePlan plan;
  plan.exact = rule.dtype.value_or(DType::kF16);
  if (!part) return plan;
  const CodecRow& row = codec_row(part->name);
  plan.exact = rule.dtype.value_or(row.dense.value_or(DType::kF16));
  if (row.dense) return plan;
  if (!row.make_on_gpu) {
    refuse_on_gpu(fmt::format("the codec '{}'", part->name),
                  "codecs there are " + names_of_codecs());
  }
  const Parameters parameters(row.info, *part);
  plan.codec = row.make_on_gpu(parameters);
  plan.cpu_block = row.make(parameters, side)->block_rows();
  return plan;
}

/// Window and sink as on the CPU.
ScheduleShape plan_schedule(const PolicyRule& rule, const CacheShape& shape, bool coded) {
  const SelectorRow& selector = selector_row(rule.selector.name);
  const Parameters parameters(selector.info, rule.selector);
  BudgetSite budget;
  budget.context = shape.context;
  budget.caches = static_cast<size_t>(shape.layers * shape.kv_heads);
  budget.row_bytes = static_cast<double>(4 * shape.head_dim);
  ScheduleShape schedule;
  schedule.sink = rule.sink.value_or(selector.default_sink);
  budget.exact_bytes = static_cast<double>(schedule.sink) * budget.row_bytes;
  schedule.window = rule.window.value_or(selector.default_window(parameters, budget, coded));
  return schedule;
}

}  // namespace

LayerPlan plan_layer(const PolicyRule& rule, const CacheShape& shape) {
  const SelectorRow& selector = selector_row(rule.selector.name);
  if (selector.on_gpu == BodyOnGpu::kNotThere) {
    refuse_on_gpu(fmt::format("the selector '{}'", selector.info.name),
                  "selectors there are " + names_of_selectors());
  }
  if (selector.cache_positions &&
      selector.cache_positions(Parameters(selector.info, rule.selector))) {
    refuse_on_gpu(selector.info.name + "(rope=cache)", "positions are true ones there");
  }
  const SidePlan keys = plan_side(rule.key_codec, rule, Side::kKeys);
  const SidePlan values = plan_side(rule.value_codec, rule, Side::kValues);
  const auto name = [](const SidePlan& side) { return side.codec ? side.codec->name() : ""; };
  if (name(keys) != name(values)) {
    refuse_on_gpu("a cache of keys and values in different codecs", "both have the same there");
  }
  if (keys.exact != values.exact) {
    refuse_on_gpu("a cache of keys and values in different types",
                  "all exact rows are f16, or all bf16");
  }
  if (keys.exact == DType::kF32) refuse_on_gpu("a cache of f32 rows", "rows are f16 or bf16 there");
  LayerPlan plan;
  plan.dtype = keys.exact;
  const bool keeps = selector.on_gpu == BodyOnGpu::kKeepsAll;
  plan.straight = keeps && !keys.codec;
  if (plan.straight) return plan;
  plan.schedule = plan_schedule(rule, shape, keys.codec != nullptr);
  if (keeps) {
    // Rows are coded 32 at a time here, also by codecs that the CPU gives single rows: up to 31
    // rows stay exact for longer.
    plan.codec = keys.codec;
    plan.schedule.block = kBlockRows;
  } else {
    plan.schedule.block = std::lcm(keys.cpu_block, values.cpu_block);
  }
  return plan;
}

ChunkSpace::ChunkSpace(const LayerSite& site)
    : site_(site),
      staging_(*site.memory, MemoryKind::kStaging),
      piece_(*site.memory, MemoryKind::kScratch),
      out_(*site.memory, MemoryKind::kScratch),
      log_sum_(*site.memory, MemoryKind::kScratch) {}

RowTarget ChunkSpace::target_of(const DeviceBuffer& buffer, const LayerSite& site) {
  auto* bytes = static_cast<std::byte*>(buffer.data());
  const size_t half = buffer.size() / 2;
  return {bytes, bytes + half, half / site.heads / 2, 0};
}

RowTarget ChunkSpace::staging(size_t rows) {
  const size_t bytes = 4 * site_.heads * rows * site_.dim;
  if (staging_.size() < bytes) staging_.allocate(bytes, site_.stream);
  return target_of(staging_, site_);
}

RowTarget ChunkSpace::piece() {
  const size_t bytes = 4 * site_.heads * kPieceRows * site_.dim;
  if (piece_.size() < bytes) piece_.allocate(bytes, site_.stream);
  return target_of(piece_, site_);
}

void ChunkSpace::lend_partials(CausalCall& call) {
  const auto rows = static_cast<size_t>(call.tokens) * site_.query_heads;
  if (log_sum_.size() < rows) {
    out_.allocate(rows * site_.dim, site_.stream);
    log_sum_.allocate(rows, site_.stream);
  }
  call.out = out_.data();
  call.log_sum = log_sum_.data();
}

std::unique_ptr<LayerRows> make_layer_rows(const LayerPlan& plan, const LayerSite& site) {
  if (plan.straight) return std::make_unique<StraightRows>(site);
  return std::make_unique<WindowedRows>(plan, site);
}

}  // namespace pith::cuda
