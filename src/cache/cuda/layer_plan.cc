// What a policy's rule becomes in one layer on the GPU, or why it cannot.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "attend/cuda/level_codec.h"
#include "cache/cuda/layer_rows.h"
#include "cache/selector_place.h"
#include "compress/dense.h"
#include "compress/registry.h"
#include "kernels/cuda/grouped_layout.h"
#include "methods/registry_cuda.h"
#include "pith/error.h"
#include "plan/simple_rules.h"

namespace pith::cuda {
namespace {

template <class Rows>
std::string names_of(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names;
}

/// How rows of one side are stored.
struct SidePlan {
  DType exact = DType::kF16;                 ///< of exact rows
  DType dense = DType::kF16;                 ///< of the body, if it has no codec
  std::shared_ptr<const DeviceCodec> codec;  ///< null: all rows are exact
  std::shared_ptr<const Codec> on_cpu;       ///< its sizes are the budget's measure
};

SidePlan plan_side(const std::optional<PolicyPart>& part, const PolicyRule& rule, Side side) {
  SidePlan plan;
  plan.exact = plan.dense = rule.dtype.value_or(DType::kF16);
  plan.on_cpu = std::make_shared<const DenseCodec>(plan.exact);
  if (!part) return plan;
  const CodecRow& row = codec_row(part->name);
  plan.exact = rule.dtype.value_or(row.dense.value_or(DType::kF16));
  plan.dense = row.dense.value_or(plan.exact);
  plan.on_cpu = std::make_shared<const DenseCodec>(plan.dense);
  if (row.dense) return plan;
  const DeviceCodecRow* device = find_device_codec(part->name);
  if (!device) {
    refuse_on_gpu(fmt::format("the codec '{}'", part->name),
                  "codecs there are " + names_of(device_codec_rows()));
  }
  const MethodOptions options = row.read(*part);
  plan.codec = device->make(options);
  plan.on_cpu = row.make(options, side);
  return plan;
}

/// The codec of keys and values; null: both are exact. `moved`: rows may move between blocks.
std::shared_ptr<const DeviceCodec> codec_of(const SidePlan& keys, const SidePlan& values,
                                            bool moved) {
  const auto name = [](const SidePlan& side) { return side.codec ? side.codec->value_name() : ""; };
  if (name(keys) == name(values)) return keys.codec;
  if (!moved) {
    const bool dense_keys = !keys.codec && keys.dense != DType::kF32;
    const bool dense_values = !values.codec && values.dense != DType::kF32;
    std::shared_ptr<const DeviceCodec> both;
    if (keys.codec && values.codec) both = keys.codec->with_values_of(*values.codec);
    if (dense_keys) both = values.codec->beside_rows(true, keys.dense);
    if (dense_values) both = keys.codec->beside_rows(false, values.dense);
    if (both) return both;
  }
  const auto levels = [](const SidePlan& side) -> std::shared_ptr<const LevelCodec> {
    if (side.codec) return side.codec->as_levels();
    return side.dense == DType::kF32 ? nullptr : dense_levels(side.dense);
  };
  auto of_keys = levels(keys), of_values = levels(values);
  if (!of_keys || !of_values) {
    refuse_on_gpu(
        "a cache of keys and values in different codecs, one of them f32, qjl or csr,",
        "f16, bf16, int8, int4, kivi, turboquant, gear and kvquant go together there, and "
        "keys in qjl with values in kivi(bits=2)");
  }
  return mix_levels(std::move(of_keys), std::move(of_values));
}

/// Whether rows may be dropped while a body has had fewer than `rows`.
bool judges_before(const Rule& rule, size_t rows) {
  PlanState state;
  for (size_t had = 1; had < rows; ++had) {
    Steps steps;
    rule.feed(state, Zone::kLeaving, 1, steps);
    PlanState ended = state;  // a prompt may end at any row
    rule.end_prompt(ended, steps);
    if (ended.body() < had) return true;
  }
  return false;
}

/// Whether rows that are in codes stay there, in their blocks.
bool settles(const SelectorOnGpu& selector) {
  return selector.chooser && selector.chooser->settles() && !selector.heavy;
}

/// As rows are stored that the selector may judge again, or that do not follow each other.
std::shared_ptr<const DeviceCodec> codec_under(const SelectorOnGpu& selector,
                                               const std::shared_ptr<const DeviceCodec>& codec,
                                               int head_dim) {
  const bool stay = settles(selector) && !codec->turns_keys();
  const auto alone = stay ? nullptr : codec->with_rows_alone(head_dim);
  return alone ? alone : codec;
}

/// Throws kUnsupported if `what` would be judged before the tables of its codes are made.
void check_learns(const std::string& what, const DeviceCodec& codec, const LayerPlan& plan) {
  const SelectorOnGpu& on_gpu = plan.selector;
  const size_t first = codec.learns_from();
  const std::string tables =
      fmt::format("{}, whose tables are made of the first {} rows behind the window,", what, first);
  if (on_gpu.heavy && on_gpu.heavy->most() < first) {
    refuse_on_gpu(tables, "a store of heavy rows that holds as many is there (heavy=)");
  }
  if (!on_gpu.heavy && on_gpu.chooser && judges_before(*plan.rule, first)) {
    refuse_on_gpu(tables,
                  "a body is not judged before it has as many there: a larger budget, or fewer "
                  "atoms (online=...)");
  }
}

/// Throws kUnsupported if the codec cannot store what the selector keeps.
void check_codes(const std::string& selector, const LayerPlan& plan) {
  const DeviceCodec& codec = *plan.codec;
  const SelectorOnGpu& on_gpu = plan.selector;
  const std::string what = fmt::format("{} over {}", selector, codec.name());
  if (codec.turns_keys() && !codec.codes_rows_alone()) {
    refuse_on_gpu(what,
                  "keys are coded there as they are attended to: csr(rope=post), or another codec");
  }
  if (codec.aged()) refuse_on_gpu(what, "rows that age there are all of them: exact+ladder");
  if (on_gpu.body && on_gpu.body->keeps_groups() && !on_gpu.heavy) {
    if (codec.learns_from() == 0) return;
    refuse_on_gpu(what, "codecs without tables of first rows are there, as int4 and kivi");
  }
  if (settles(on_gpu)) return;
  if (on_gpu.body && !on_gpu.body->keeps_codes()) {
    refuse_on_gpu(what, "the rows it keeps are exact there");
  }
  if (!codec.codes_rows_alone()) {
    refuse_on_gpu(on_gpu.heavy ? what + " with heavy rows" : what,
                  "rows that are judged again, or for their mass, are there in codecs whose rows "
                  "move alone");
  }
  if (on_gpu.heavy && on_gpu.body && codec.learns_from() > 0) {
    refuse_on_gpu(what + " with heavy rows",
                  "these rows are there in codecs without tables of first rows");
  }
  if (on_gpu.heavy && on_gpu.body && codec.codes_whole_blocks() &&
      on_gpu.heavy->interval % codec.block_rows() > 0) {
    refuse_on_gpu(
        fmt::format("{} with heavy rows of which {} leave together", what, on_gpu.heavy->interval),
        fmt::format("as many leave there as are coded together: heavy_interval is a "
                    "multiple of {}",
                    codec.block_rows()));
  }
  if (codec.learns_from() > 0) check_learns(what, codec, plan);
}

/// Rows that a query of the layer sees, its own among them; 0: all of the context.
size_t seen_rows(const CacheShape& shape, int layer) {
  if (shape.sliding_window.empty()) return 0;
  const auto seen = static_cast<size_t>(shape.sliding_window[static_cast<size_t>(layer)]);
  return shape.context > 0 && seen >= shape.context ? 0 : seen;
}

/// Throws kUnsupported for what cannot be under a sliding window.
void check_slides(const DeviceSelectorRow& selector, const DeviceCodec* codec, size_t seen) {
  const std::string where = fmt::format("in a layer that slides over a window of {} tokens", seen);
  if (selector.body == BodyOnGpu::kJudged) {
    refuse_on_gpu(fmt::format("the selector '{}' {}", selector.name, where),
                  "exact, local and streaming_llm are there, and every selector while the context "
                  "is no longer than that window");
  }
  if (codec && codec->aged()) {
    refuse_on_gpu(fmt::format("{} {}", codec->name(), where),
                  "rows that age there are those of layers that see all tokens");
  }
}

/// Heads wider than the kernels of codes: exact rows alone, and rules that judge them where they
/// lie.
void check_wide_heads(const PolicyRule& rule, const LayerPlan& plan, size_t dim) {
  if (dim <= 128) return;
  const std::string where = fmt::format("at a head_dim of {}", dim);
  const std::string there =
      "exact rows are there, f16 or bf16, under exact, local, streaming_llm and the selectors that "
      "judge rows by score, but for expected_attention";
  if (plan.codec) refuse_on_gpu(fmt::format("the codec {} {}", plan.codec->name(), where), there);
  const bool observes = plan.selector.chooser && plan.selector.chooser->state_numbers(1, dim) > 0;
  if (observes || plan.selector.body || plan.selector.heavy) {
    refuse_on_gpu(fmt::format("the selector '{}' {}", rule.selector.name, where), there);
  }
}

/// The selector's rule is the CPU's; its chooser there is not needed.
std::shared_ptr<const Rule> rule_of(const SelectorRow& selector, const MethodOptions& options,
                                    const PlacedSelector& placed) {
  ThreadPool pool(1);
  MemoryCounter unused;
  const Context context{pool, unused, kernels_for()};
  return selector.make({context, options, placed.budget, placed.site}).rule;
}

LayerPlan plan_rows(const PolicyRule& rule, const CacheShape& shape, const PlanSite& site) {
  const SelectorRow& selector = selector_row(rule.selector.name);
  const MethodOptions options = selector.read(rule.selector);
  const DeviceSelectorRow* device = find_device_selector(selector.info.name);
  if (!device) {
    refuse_on_gpu(fmt::format("the selector '{}'", selector.info.name),
                  "selectors there are " + names_of(device_selector_rows()));
  }
  const auto dim = static_cast<size_t>(shape.head_dim);
  SidePlan keys = plan_side(rule.key_codec, rule, Side::kKeys);
  const SidePlan values = plan_side(rule.value_codec, rule, Side::kValues);
  const bool keeps = device->body == BodyOnGpu::kAllStay;
  const auto codec_where = [keys, values](bool moved) { return codec_of(keys, values, moved); };
  keys.codec = codec_where(!keeps);
  if (keys.exact != values.exact) {
    refuse_on_gpu("a cache of keys and values in different types",
                  "all exact rows are f16, or all bf16 (dtype=bf16)");
  }
  if (!keys.codec && (keys.dense != keys.exact || values.dense != values.exact)) {
    refuse_on_gpu(
        fmt::format("a cache of {} rows whose body is in another type", to_string(keys.exact)),
        "without codes all rows have one type");
  }
  if (keys.exact == DType::kF32) refuse_on_gpu("a cache of f32 rows", "rows are f16 or bf16 there");
  LayerPlan plan;
  plan.dtype = keys.exact;
  plan.seen = seen_rows(shape, site.layer);
  if (plan.seen > 0) check_slides(*device, keeps ? keys.codec.get() : nullptr, plan.seen);
  plan.straight = keeps && !keys.codec && plan.seen == 0;
  if (plan.straight) {
    plan.rule = std::make_shared<KeepAll>();
    return plan;
  }
  PlacedSelector placed =
      place_selector({.rule = rule,
                      .shape = shape,
                      .layer = site.layer,
                      .heads = static_cast<size_t>(site.heads > 0 ? site.heads : shape.kv_heads),
                      .seed = site.seed,
                      .exact_row_bytes = static_cast<double>(2 * dim * size_of(plan.dtype)),
                      .keys = *keys.on_cpu,
                      .values = *values.on_cpu,
                      .coded = keys.codec != nullptr});
  placed.site.first_head = static_cast<uint32_t>(site.first_head);
  if (device->make) plan.selector = device->make({options, placed.budget, placed.site});
  plan.rule = rule_of(selector, options, placed);
  plan.schedule = {placed.site.sink, placed.site.window,
                   std::lcm(keys.on_cpu->block_rows(), values.on_cpu->block_rows())};
  // Positions inside the cache are the sink's business, which sliding layers have none of.
  plan.cache_positions = selector.cache_positions && selector.cache_positions(options) &&
                         placed.site.sliding_window == 0;
  if (plan.seen > 0) {
    // Of the rows before a query all but the last seen - 1 are hidden for good.
    const size_t most = plan.seen - 1;
    if (keeps && (!keys.codec || plan.schedule.window >= most)) {
      plan.schedule = {0, most, 1};
      plan.rule = std::make_shared<DropAll>();  // hidden rows need not wait for others
      return plan;
    }
    plan.schedule.window = std::min(plan.schedule.window, most);
  }
  if (keeps) {
    // Rows are coded 32 at a time here, also by codecs that the CPU gives single rows: up to 31
    // rows stay exact for longer.
    plan.codec = keys.codec;
    plan.schedule.block = keys.codec ? keys.codec->block_rows() : kBlockRows;
  } else if (device->make) {
    if (keys.codec) {
      // Rows that stay where they are may lie in any codec's groups.
      const bool stay = plan.selector.body && plan.selector.body->keeps_groups();
      if (stay) keys.codec = codec_where(false);
      plan.codec = stay ? keys.codec : codec_under(plan.selector, keys.codec, shape.head_dim);
      check_codes(selector.info.name, plan);
      // As above: rows that go into a body of codes leave the window 32 at a time.
      if (!plan.selector.heavy && plan.selector.body) plan.schedule.block = kBlockRows;
      if (!stay && plan.codec->codes_whole_blocks()) {
        plan.schedule.block = std::lcm(plan.schedule.block, plan.codec->block_rows());
      }
    }
  }
  return plan;
}

}  // namespace

LayerPlan plan_layer(const PolicyRule& rule, const CacheShape& shape, const PlanSite& site) {
  LayerPlan plan = plan_rows(rule, shape, site);
  check_wide_heads(rule, plan, static_cast<size_t>(shape.head_dim));
  return plan;
}

void check_protected_codes(const LayerPlan& plan) {
  if (!plan.codec || !plan.codec->turns_keys() || plan.codec->codes_rows_alone()) return;
  refuse_on_gpu("protecting tokens over codes of keys before RoPE",
                "codes of keys as they are attended to do");
}

}  // namespace pith::cuda
