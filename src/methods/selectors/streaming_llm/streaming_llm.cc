// streaming_llm keeps the sink and the window (Xiao et al., "Efficient Streaming Language Models
// with Attention Sinks", 2024). Cost per row: none beyond the append.

#include "methods/keep_none.h"
#include "methods/methods.h"

namespace pith {
namespace {

struct StreamingOptions {
  enum class Rope : uint8_t { kTrue, kCache };
  Budget window = Budget::rows(1020);
  Rope rope = Rope::kTrue;
  Fields fields();
};

constexpr const char* kStreamingLlm = "streaming_llm";

Fields StreamingOptions::fields() {
  return {rows("window", window, "rows kept"),
          choice<Rope>("rope", rope, {{"true", Rope::kTrue}, {"cache", Rope::kCache}},
                       "true = true positions; cache = positions inside the cache")};
}

}  // namespace

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

}  // namespace pith
