// exact keeps every row; local and streaming_llm keep none of the body: what they keep is the sink
// and the window (Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024).
// Cost per row: none beyond the append.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "compress/dense.h"
#include "methods/baselines/baselines.h"
#include "pith/error.h"

namespace pith {
namespace {

class Exact final : public Selector {
 public:
  explicit Exact(int64_t sliding_window) : sliding_window_(sliding_window) {}

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    for (size_t h = 0; h < bodies.size(); ++h) {
      RowStore& store = bodies[h].store();
      store.append(rows[h]);
      if (sliding_window_ > 0) expire(store);
    }
  }
  size_t rows_after(size_t n) const override {
    return sliding_window_ > 0 ? std::min(n, static_cast<size_t>(sliding_window_) + kExpireEvery)
                               : n;
  }
  std::string describe() const override { return "exact"; }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<Exact>(*this); }

 private:
  static constexpr size_t kExpireEvery = 256;

  /// Rows that no later query can see are dropped, a few hundred at a time.
  void expire(RowStore& store) const {
    const size_t held = store.rows();
    if (held < static_cast<size_t>(sliding_window_) + kExpireEvery) return;
    std::vector<uint32_t> kept(static_cast<size_t>(sliding_window_));
    std::iota(kept.begin(), kept.end(), static_cast<uint32_t>(held - kept.size()));
    store.keep(kept);
  }

  int64_t sliding_window_;
};

class KeepNone final : public Selector {
 public:
  explicit KeepNone(std::string text) : text_(std::move(text)) {}
  void ingest(std::span<HeadBody>, std::span<const NewRows>) override {}
  size_t rows_after(size_t) const override { return 0; }
  std::string describe() const override { return text_; }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<KeepNone>(*this); }

 private:
  std::string text_;
};

uint32_t window_rows(const Parameters& p, const BudgetSite& site, bool /*coded*/) {
  const size_t rows = p.rows("window", site);
  if (rows >= (size_t{1} << 30))
    throw Error(ErrorCode::kInvalidArgument, fmt::format("a window of {} rows is too large", rows));
  return static_cast<uint32_t>(rows);
}

template <const char* kName>
std::unique_ptr<Selector> make_keep_none(const SelectorRequest& r) {
  std::string text = fmt::format("{}(window={}", kName, r.site.window);
  if (kName == std::string_view("streaming_llm"))
    text += ",rope=" + r.parameters.choice("rope", {"true", "cache"});
  return std::make_unique<KeepNone>(text + ")");
}

std::unique_ptr<Codec> make_dense(const Parameters& p, Side /*side*/) {
  return std::make_unique<DenseCodec>(parse_dtype(p.method()));
}

constexpr char kLocal[] = "local";
constexpr char kStreamingLlm[] = "streaming_llm";

}  // namespace

SelectorRow exact_row() {
  SelectorRow row;
  row.info = {"exact", true, "every row", "-", {}, ""};
  // Coded rows keep a stretch of exact ones before them, as KIVI and QJL do.
  row.default_window = [](const Parameters&, const BudgetSite&, bool coded) {
    return coded ? 128u : 0u;
  };
  row.make = [](const SelectorRequest& r) -> std::unique_ptr<Selector> {
    return std::make_unique<Exact>(r.site.sliding_window);
  };
  row.side_bytes = 0;  // positions are contiguous
  return row;
}

SelectorRow local_row() {
  SelectorRow row;
  row.info = {kLocal,
              true,
              "the last rows only",
              "BUZZ (arXiv 2410.23079), baselines",
              {{"window", "1024", "rows kept: a number, per cent of the context, or MiB"}},
              "window"};
  row.default_window = window_rows;
  row.owns_window = true;
  row.make = make_keep_none<kLocal>;
  return row;
}

SelectorRow streaming_llm_row() {
  SelectorRow row;
  row.info = {kStreamingLlm,
              true,
              "attention sinks and the last rows",
              "Xiao et al. 2024 (arXiv 2309.17453)",
              {{"window", "1020", "rows kept: a number, per cent of the context, or MiB"},
               {"rope", "true", "true = true positions; cache = positions inside the cache"}},
              "window"};
  row.default_sink = 4;
  row.default_window = window_rows;
  row.owns_window = true;
  row.make = make_keep_none<kStreamingLlm>;
  row.cache_positions = [](const Parameters& p) {
    return p.choice("rope", {"true", "cache"}) == "cache";
  };
  return row;
}

CodecRow dense_row(DType dtype) {
  CodecRow row;
  row.info = {to_string(dtype),
              false,
              dtype == DType::kF32 ? "rows as they are, 32 bits a number"
                                   : "rows rounded to 16 bits a number",
              "-",
              {},
              ""};
  row.dense = dtype;
  row.make = make_dense;
  return row;
}

}  // namespace pith
