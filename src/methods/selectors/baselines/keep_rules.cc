// exact keeps every row; local and streaming_llm keep none of the body: what they keep is the sink
// and the window (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024).
// Cost per row: none beyond the append.

#include <fmt/format.h>

#include "methods/methods.h"
#include "methods/selectors/baselines/baselines.h"
#include "pith/error.h"
#include "plan/simple_rules.h"
#include "rows/cpu/dense.h"

namespace pith {
namespace {

template <class O>
uint32_t window_rows(const MethodOptions& options, const BudgetSite& site, bool /*coded*/) {
  const size_t rows = site.rows(options.as<O>().window, "window");
  if (rows >= kMostRows)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("a window of {} rows is too large", rows));
  return static_cast<uint32_t>(rows);
}

/// Only the sink and the window are kept, whose rows the site knows.
template <class O>
ResolvedSelector resolve_keep_none(const SelectorPlace& r, const std::string& name) {
  O options = r.options.as<O>();
  options.window = Budget::rows(r.site.window);
  return {.rule = std::make_shared<DropAll>(),
          .needs = {.body = Needs::Body::kNone},
          .text = write_options(name, options)};
}

template <DType kType>
std::unique_ptr<Codec> make_dense(const MethodOptions& /*none*/, Side /*side*/) {
  return std::make_unique<DenseCodec>(kType);
}

constexpr const char* kLocal = "local";
constexpr const char* kStreamingLlm = "streaming_llm";

}  // namespace

Fields LocalOptions::fields() { return {rows("window", window, "rows kept")}; }

Fields StreamingOptions::fields() {
  return {rows("window", window, "rows kept"),
          choice<Rope>("rope", rope, {{"true", Rope::kTrue}, {"cache", Rope::kCache}},
                       "true = true positions; cache = positions inside the cache")};
}

SelectorRow exact_row() {
  SelectorRow row;
  row.info = {"exact", true, "every row", "-", {}, ""};
  row.takes<NoOptions>();
  // Coded rows keep a stretch of exact ones before them, as KIVI and QJL do, and the first rows,
  // which most heads look at whatever they look for: their errors are in every sum.
  row.default_sink = 4;
  row.sink_of_codes = true;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool coded) {
    return coded ? 128u : 0u;
  };
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) -> ResolvedSelector {
    return {.rule = std::make_shared<KeepAll>(r.site.sliding_window),
            .needs = {.body = Needs::Body::kAll},
            .text = "exact"};
  };
  row.side_bytes = 0;  // positions are contiguous
  return row;
}

SelectorRow local_row() {
  SelectorRow row;
  row.info = {kLocal, true,    "the last rows only", "BUZZ (arXiv 2410.23079), baselines",
              {},     "window"};
  row.takes<LocalOptions>();
  row.default_window = window_rows<LocalOptions>;
  row.owns_window = true;
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) { return resolve_keep_none<LocalOptions>(r, kLocal); };
  return row;
}

SelectorRow streaming_llm_row() {
  SelectorRow row;
  row.info = {kStreamingLlm,
              true,
              "attention sinks and the last rows",
              "Xiao et al. 2024 (arXiv 2309.17453)",
              {},
              "window"};
  row.takes<StreamingOptions>();
  row.default_sink = 4;
  row.default_window = window_rows<StreamingOptions>;
  row.owns_window = true;
  row.on_gpu = true;
  row.resolve = [](const SelectorPlace& r) {
    ResolvedSelector selector = resolve_keep_none<StreamingOptions>(r, kStreamingLlm);
    selector.needs.cache_positions =
        r.options.as<StreamingOptions>().rope == StreamingOptions::Rope::kCache;
    return selector;
  };
  return row;
}

CodecRow dense_row(DType dtype) {
  CodecRow row;
  row.info = {to_string(dtype),
              false,
              dtype == DType::kF32 ? "rows as they are, 32 bits per number"
                                   : "rows rounded to 16 bits per number",
              "-",
              {},
              ""};
  row.takes<NoOptions>();
  row.dense = dtype;
  row.make = dtype == DType::kF32   ? make_dense<DType::kF32>
             : dtype == DType::kF16 ? make_dense<DType::kF16>
                                    : make_dense<DType::kBF16>;
  return row;
}

}  // namespace pith
