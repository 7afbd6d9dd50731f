// The C face: layers of a program's own model.

#include "c/c_api.h"
#include "pith/layer_cache.h"
#include "pith/pith_layer.h"

// NOLINTBEGIN(readability-identifier-naming): the names of pith_layer.h.
struct pith_layer {
  pith::LayerCache cache;
};
// NOLINTEND(readability-identifier-naming)

namespace pith::c_api {
namespace {

pith_compute_options compute_defaults() {
  const RuntimeOptions o;
  return {.size = sizeof(pith_compute_options),
          .device = PITH_CPU,
          .threads = o.threads,
          .memory_limit = o.memory_limit,
          .isa = ""};
}

pith_layer_options layer_defaults() {
  const LayerCacheOptions o;
  return {.size = sizeof(pith_layer_options),
          .policy = "exact",
          .query_heads = o.query_heads,
          .kv_heads = o.kv_heads,
          .head_dim = o.head_dim,
          .layer = o.layer,
          .layers = static_cast<size_t>(o.layers),
          .context = o.context,
          .sliding_window = o.sliding_window,
          .seed = o.seed,
          .rope_theta = o.rope_theta,
          .scale = o.scale,
          .protect = nullptr,
          .protect_count = 0,
          .probe_rows = o.error_probe.rows,
          .probe_every = o.error_probe.every,
          .rope_frequencies = nullptr,
          .rope_frequency_count = 0,
          .soft_cap = o.soft_cap,
          .sink_logits = nullptr,
          .sink_logit_count = 0};
}

LayerCacheOptions options_of(const pith_layer_options* from) {
  constexpr size_t kMostLayers = 1 << 20;
  const pith_layer_options o =
      read(&given(from, "the layer's options"), layer_defaults(), "the layer's options");
  if (o.layers > kMostLayers)
    throw Error(ErrorCode::kInvalidArgument, std::to_string(o.layers) + " layers");
  LayerCacheOptions options;
  options.policy = Policy::parse(o.policy ? o.policy : "exact");
  options.query_heads = o.query_heads;
  options.kv_heads = o.kv_heads;
  options.head_dim = o.head_dim;
  options.layer = o.layer;
  options.layers = static_cast<int>(o.layers);
  options.context = o.context;
  options.sliding_window = o.sliding_window;
  options.seed = o.seed;
  options.rope_theta = o.rope_theta;
  const auto frequencies = span_of(o.rope_frequencies, o.rope_frequency_count, "rope_frequencies");
  options.rope_frequencies.assign(frequencies.begin(), frequencies.end());
  options.scale = o.scale;
  options.soft_cap = o.soft_cap;
  const auto sinks = span_of(o.sink_logits, o.sink_logit_count, "sink_logits");
  options.sink_logits.assign(sinks.begin(), sinks.end());
  options.protect = ranges_of(o.protect, o.protect_count);
  options.error_probe = {o.probe_rows, o.probe_every, 0};
  return options;
}

pith_tensor tensor_of(const pith_tensor* from, const char* what) {
  return read(&given(from, what), pith_tensor{}, what);
}

DType dtype_of(const pith_tensor& tensor) {
  static_assert(PITH_BF16 == static_cast<int>(DType::kBF16));
  const size_t known = std::min<size_t>(tensor.dtype, PITH_BF16 + 1);
  return static_cast<DType>(one_of(static_cast<int32_t>(known), 3, "a tensor's dtype:"));
}

RowsView view_of(const pith_tensor* from, const char* what) {
  const pith_tensor t = tensor_of(from, what);
  return {t.data, dtype_of(t), t.token_stride, t.head_stride};
}

RowsOut out_of(const pith_tensor* from) {
  const pith_tensor t = tensor_of(from, "out");
  return {t.data, dtype_of(t), t.token_stride, t.head_stride};
}

LayerCache& cache_of(pith_layer* layer) { return given(layer, "the layer").cache; }
const LayerCache& cache_of(const pith_layer* layer) { return given(layer, "the layer").cache; }

}  // namespace
}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

void pith_compute_defaults(pith_compute_options* options, size_t size) {
  fill(options, size, compute_defaults());
}

pith_status pith_compute_create(const pith_compute_options* options, pith_compute** compute,
                                pith_error* error) {
  return guarded(error, [&] {
    given(compute, "the place for the compute") = nullptr;
    const pith_compute_options o = read(options, compute_defaults(), "the compute's options");
    *compute = new pith_compute{
        std::make_shared<pith::Runtime>(pith::RuntimeOptions{.device = device_of(o.device),
                                                             .threads = o.threads,
                                                             .memory_limit = o.memory_limit,
                                                             .isa = o.isa ? o.isa : ""})};
  });
}

void pith_compute_free(pith_compute* compute) { delete compute; }

size_t pith_compute_bytes_in_use(const pith_compute* compute) {
  return compute ? compute->runtime->bytes_in_use() : 0;
}

void pith_layer_defaults(pith_layer_options* options, size_t size) {
  fill(options, size, layer_defaults());
}

pith_status pith_layer_create(const pith_compute* compute, const pith_layer_options* options,
                              pith_layer** layer, pith_error* error) {
  return guarded(error, [&] {
    given(layer, "the place for the layer") = nullptr;
    *layer = new pith_layer{
        pith::LayerCache(given(compute, "the compute").runtime, options_of(options))};
  });
}

void pith_layer_free(pith_layer* layer) { delete layer; }

pith_status pith_layer_clone(const pith_layer* layer, pith_layer** clone, pith_error* error) {
  return guarded(error, [&] {
    given(clone, "the place for the layer") = nullptr;
    *clone = new pith_layer{cache_of(layer).clone()};
  });
}

pith_status pith_layer_use_stream(pith_layer* layer, void* stream, pith_error* error) {
  return guarded(error, [&] { cache_of(layer).use_stream(stream); });
}

pith_status pith_layer_step(pith_layer* layer, const pith_tensor* out, const pith_tensor* q,
                            const pith_tensor* k, const pith_tensor* v, size_t tokens,
                            pith_error* error) {
  return guarded(error, [&] {
    cache_of(layer).step(out_of(out), view_of(q, "q"), view_of(k, "k"), view_of(v, "v"), tokens);
  });
}

pith_status pith_compute_step(pith_compute* compute, const pith_layer_step_args* steps,
                              size_t count, pith_error* error) {
  return guarded(error, [&] {
    const Structs<const pith_layer_step_args> list(steps, count, "step");
    std::vector<pith::LayerStep> works;
    for (size_t i = 0; i < list.size(); ++i) {
      const auto s = read(list.at(i), pith_layer_step_args{}, "a step");
      works.push_back({&cache_of(s.layer), out_of(s.out), view_of(s.q, "q"), view_of(s.k, "k"),
                       view_of(s.v, "v"), s.tokens});
    }
    given(compute, "the compute").runtime->step(works);
  });
}

pith_status pith_layer_append(pith_layer* layer, const pith_tensor* k, const pith_tensor* v,
                              size_t tokens, pith_error* error) {
  return guarded(error, [&] { cache_of(layer).append(view_of(k, "k"), view_of(v, "v"), tokens); });
}

pith_status pith_layer_attend(pith_layer* layer, const pith_tensor* out, const pith_tensor* q,
                              size_t tokens, pith_error* error) {
  return guarded(error, [&] { cache_of(layer).attend(out_of(out), view_of(q, "q"), tokens); });
}

pith_status pith_layer_end_prompt(pith_layer* layer, pith_error* error) {
  return guarded(error, [&] { cache_of(layer).end_prompt(); });
}

pith_status pith_layer_protect(pith_layer* layer, const int64_t* ranges, size_t count,
                               pith_error* error) {
  return guarded(error, [&] { cache_of(layer).protect(ranges_of(ranges, count)); });
}

size_t pith_layer_tokens(const pith_layer* layer) { return layer ? layer->cache.tokens() : 0; }

pith_status pith_layer_describe(const pith_layer* layer, char* text, size_t capacity,
                                size_t* written, pith_error* error) {
  return guarded(error,
                 [&] { hand_out(cache_of(layer).describe(), text, capacity, written, "bytes"); });
}

pith_status pith_layer_ledger(const pith_layer* layer, pith_ledger* ledger, pith_error* error) {
  return guarded(error, [&] {
    write(ledger, ledger_of(cache_of(layer).ledger()), "the place for the ledger");
  });
}

pith_status pith_layer_rows(const pith_layer* layer, int32_t head, pith_rows* rows,
                            pith_error* error) {
  return guarded(error, [&] { write_rows(rows, cache_of(layer).rows(head)); });
}

pith_status pith_layer_read_rows(const pith_layer* layer, int32_t head, float* keys, float* values,
                                 size_t capacity, size_t* count, pith_error* error) {
  return guarded(error, [&] {
    const pith::LayerCache& cache = cache_of(layer);
    given(count, "the place for the number") = cache.rows(head).positions.size();
    if (*count > capacity)
      throw pith::Error(
          pith::ErrorCode::kBufferTooSmall,
          std::to_string(*count) + " rows do not fit into room for " + std::to_string(capacity));
    cache.read_rows(head, keys, values);
  });
}

pith_status pith_layer_scores(const pith_layer* layer, int32_t head, double* scores,
                              size_t capacity, size_t* count, pith_error* error) {
  return guarded(
      error, [&] { hand_out(cache_of(layer).scores(head), scores, capacity, count, "scores"); });
}

pith_status pith_layer_attention_error(const pith_layer* layer, pith_attention_error* estimate,
                                       pith_error* error) {
  return guarded(error, [&] {
    const auto found = cache_of(layer).attention_error();
    if (!found)
      throw pith::Error(pith::ErrorCode::kInvalidArgument,
                        "this layer has no error probe; set probe_rows when it is made");
    write_error(estimate, *found);
  });
}

pith_status pith_layer_save(const pith_layer* layer, void* bytes, size_t capacity, size_t* written,
                            pith_error* error) {
  return guarded(error, [&] {
    hand_out(cache_of(layer).save(), static_cast<std::byte*>(bytes), capacity, written, "bytes");
  });
}

pith_status pith_layer_restore(const pith_compute* compute, const pith_layer_options* options,
                               const void* bytes, size_t size, pith_layer** layer,
                               pith_error* error) {
  return guarded(error, [&] {
    given(layer, "the place for the layer") = nullptr;
    const auto saved = span_of(static_cast<const std::byte*>(bytes), size, "the saved bytes");
    *layer = new pith_layer{pith::LayerCache::restore(given(compute, "the compute").runtime,
                                                      options_of(options), saved)};
  });
}
