#include "cache/cuda/layer_rows.h"

#include <fmt/format.h>

#include <numeric>

#include "cache/cuda/device_rows.h"
#include "cache/cuda/windowed_rows.h"
#include "compress/registry.h"
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

/// The codec of one side as the GPU knows it; none if rows are dense, whose type goes to `exact`.
std::optional<GroupedCodec> codec_of(const std::optional<PolicyPart>& part, DType& exact,
                                     const PolicyRule& rule) {
  if (!part) {
    exact = rule.dtype.value_or(DType::kF16);
    return {};
  }
  const CodecRow& row = codec_row(part->name);
  exact = rule.dtype.value_or(row.dense.value_or(DType::kF16));
  if (row.dense) return {};
  const Parameters p(row.info, *part);
  const bool known = part->name == "kivi" || part->name == "int4" || part->name == "int8";
  if (!known) {
    refuse_on_gpu(fmt::format("the codec '{}'", part->name),
                  "codecs there are f16, bf16, kivi, int4 and int8");
  }
  if (p.flag("hadamard")) {
    refuse_on_gpu(part->name + "(hadamard=true)", "rows are coded there as they are");
  }
  if (part->name == "int4") return GroupedCodec::kInt4;
  if (part->name == "int8") return GroupedCodec::kInt8;
  return p.choice("bits", {"2", "4"}) == "2" ? GroupedCodec::kKivi2 : GroupedCodec::kKivi4;
}

}  // namespace

void refuse_on_gpu(const std::string& what, const std::string& supported) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} is not on the GPU yet; {}; use --device cpu", what, supported));
}

LayerPlan plan_layer(const PolicyRule& rule, const CacheShape& shape) {
  const std::string& name = rule.selector.name;
  const SelectorRow& selector = selector_row(name);
  const Parameters parameters(selector.info, rule.selector);
  const bool drops = name == "local" || name == "streaming_llm";
  if (!drops && name != "exact") {
    refuse_on_gpu(fmt::format("the selector '{}'", name),
                  "selectors there are exact, local and streaming_llm");
  }
  if (selector.cache_positions && selector.cache_positions(parameters)) {
    refuse_on_gpu("streaming_llm(rope=cache)", "positions are true ones there");
  }
  LayerPlan plan;
  DType value_dtype;
  plan.codec = codec_of(rule.key_codec, plan.dtype, rule);
  const auto value_codec = codec_of(rule.value_codec, value_dtype, rule);
  if (plan.codec != value_codec) {
    refuse_on_gpu("a cache of keys and values in different codecs", "both have the same there");
  }
  if (plan.dtype != value_dtype) {
    refuse_on_gpu("a cache of keys and values in different types",
                  "all exact rows are f16, or all bf16");
  }
  if (plan.dtype == DType::kF32) refuse_on_gpu("a cache of f32 rows", "rows are f16 or bf16 there");
  plan.straight = !drops && !plan.codec;
  if (plan.straight) return plan;

  BudgetSite budget;
  budget.context = shape.context;
  budget.caches = static_cast<size_t>(shape.layers * shape.kv_heads);
  budget.row_bytes = static_cast<double>(4 * shape.head_dim);
  plan.schedule.sink = rule.sink.value_or(selector.default_sink);
  budget.exact_bytes = static_cast<double>(plan.schedule.sink) * budget.row_bytes;
  plan.schedule.window =
      rule.window.value_or(selector.default_window(parameters, budget, plan.codec.has_value()));
  plan.keeps_body = !drops;
  // Rows are coded 32 at a time here, also by codecs that the CPU gives single rows: up to 31 rows
  // stay exact for longer. Where the body is dropped the CPU's blocks decide what is seen.
  const bool kivi = plan.codec == GroupedCodec::kKivi2 || plan.codec == GroupedCodec::kKivi4;
  plan.schedule.block = plan.keeps_body || kivi ? 32 : 1;
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
