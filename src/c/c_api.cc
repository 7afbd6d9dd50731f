// The C face (include/pith/pith.h): errors, structs, models, engines and text. Sessions are in
// c_api_session.cc, policies and what they cost in c_api_policy.cc.

#include "c/c_api.h"

#include <fmt/format.h>

#include "pith/tokenizer.h"
#include "pith/version.h"

namespace pith::c_api {

pith_status failed(pith_error* error, ErrorCode code, const char* message) noexcept {
  const auto status = static_cast<pith_status>(PITH_INVALID_ARGUMENT + static_cast<int>(code));
  constexpr size_t kHead = offsetof(pith_error, message);
  if (!error || error->size <= kHead) return status;
  error->status = status;
  copy_text(error->message, std::min(error->size, sizeof(pith_error)) - kHead, message);
  return status;
}

void copy_text(char* to, size_t room, const char* text) noexcept {
  size_t size = std::min(std::strlen(text), room - 1);
  if (text[size] != 0)  // cut off: not in the middle of a character
    while (size > 0 && (text[size] & 0xC0) == 0x80) --size;
  std::memcpy(to, text, size);
  to[size] = 0;
}

void succeeded(pith_error* error) noexcept {
  if (!error || error->size <= offsetof(pith_error, message)) return;
  error->status = PITH_OK;
  error->message[0] = 0;
}

void check_size(size_t size, const char* what) {
  // A struct of more than this was never filled in.
  constexpr size_t kMost = size_t{1} << 16;
  if (size <= sizeof(size_t) || size > kMost)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: its size is {}; fill it in (sizeof, or the function of defaults)",
                            what, size));
}

void check_unknown_fields(const void* given, size_t size, size_t known, const char* what) {
  const auto* bytes = static_cast<const char*>(given);
  for (size_t i = known; i < size; ++i)
    if (bytes[i] != 0)
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: {} bytes with a field set that this library (" PITH_VERSION
                              ", {} bytes) does not know; use the pith.h that belongs to it",
                              what, size, known));
}

int one_of(int32_t value, int count, const char* what) {
  if (value < 0 || value >= count)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} {}; pith.h has 0 to {}", what, value, count - 1));
  return value;
}

Device device_of(int32_t device) {
  static_assert(PITH_CUDA == static_cast<int>(Device::kCuda));
  return static_cast<Device>(one_of(device, 2, "device"));
}

namespace {

pith_model_options model_defaults() { return {sizeof(pith_model_options), 1, nullptr, nullptr}; }

pith_engine_options engine_defaults() {
  const EngineOptions o;
  return {.size = sizeof(pith_engine_options),
          .device = PITH_CPU,
          .threads = o.threads,
          .isa = "",
          .chunk = o.chunk,
          .parallel = o.parallel,
          .memory_limit = o.memory_limit,
          .f32_arithmetic = 0,
          .runtime = nullptr};
}

EngineOptions options_of(const pith_engine_options* from) {
  const pith_engine_options o = read(from, engine_defaults(), "the engine's options");
  return {.device = device_of(o.device),
          .threads = o.threads,
          .isa = o.isa ? o.isa : "",
          .chunk = o.chunk,
          .f32_arithmetic = o.f32_arithmetic != 0,
          .parallel = o.parallel,
          .memory_limit = o.memory_limit,
          .runtime = o.runtime ? o.runtime->runtime : nullptr};
}

}  // namespace
}  // namespace pith::c_api

using namespace pith::c_api;  // NOLINT(google-build-using-namespace): all functions are of it

const char* pith_version(void) { return PITH_VERSION; }

const char* pith_status_name(int32_t status) {
  static_assert(PITH_BUFFER_TOO_SMALL - PITH_INVALID_ARGUMENT ==
                static_cast<int>(pith::ErrorCode::kBufferTooSmall));
  if (status == PITH_OK) return "ok";
  if (status < PITH_INVALID_ARGUMENT || status > PITH_BUFFER_TOO_SMALL) return "unknown";
  return pith::to_string(static_cast<pith::ErrorCode>(status - PITH_INVALID_ARGUMENT));
}

void pith_model_defaults(pith_model_options* options, size_t size) {
  fill(options, size, model_defaults());
}

pith_status pith_model_load(const char* path, const pith_model_options* options, pith_model** model,
                            pith_error* error) {
  return guarded(error, [&] {
    given(model, "the place for the model") = nullptr;
    const pith_model_options o = read(options, model_defaults(), "the model's options");
    pith::Progress progress;
    if (o.progress) {
      progress = [&](size_t done, size_t total) { return o.progress(done, total, o.user) == 0; };
    }
    auto loaded =
        pith::Model::load(&given(path, "the model's path"), o.check_finite != 0, progress);
    *model = new pith_model{std::move(loaded), path};
  });
}

void pith_model_free(pith_model* model) { delete model; }

pith_status pith_model_get_info(const pith_model* model, pith_model_info* info, pith_error* error) {
  return guarded(error, [&] {
    const pith::Model& m = *given(model, "the model").model;
    const pith::ModelConfig& c = m.config();
    write(info,
          {.size = sizeof(pith_model_info),
           .layers = c.layers,
           .hidden = c.hidden,
           .query_heads = c.query_heads,
           .kv_heads = c.kv_heads,
           .head_dim = c.head_dim,
           .vocab = c.vocab,
           .context = c.context,
           .weight_bytes = m.weight_bytes(),
           .architecture = c.architecture.c_str()},
          "the place for what the model is");
  });
}

pith_status pith_tokenize(const pith_model* model, const char* text, size_t size, int begin,
                          int32_t* ids, size_t capacity, size_t* count, pith_error* error) {
  return guarded(error, [&] {
    const pith::Tokenizer& tokenizer = given(model, "the model").model->tokenizer();
    const auto bytes = span_of(text, size, "the text");
    auto result = tokenizer.encode({bytes.data(), bytes.size()});
    if (begin && tokenizer.add_bos()) result.insert(result.begin(), tokenizer.bos());
    hand_out(result, ids, capacity, count, "ids");
  });
}

pith_status pith_detokenize(const pith_model* model, const int32_t* ids, size_t count, char* text,
                            size_t capacity, size_t* size, pith_error* error) {
  return guarded(error, [&] {
    const pith::Tokenizer& tokenizer = given(model, "the model").model->tokenizer();
    hand_out(tokenizer.decode(span_of(ids, count, "the ids")), text, capacity, size, "bytes");
  });
}

void pith_engine_defaults(pith_engine_options* options, size_t size) {
  fill(options, size, engine_defaults());
}

pith_status pith_engine_create(const pith_model* model, const pith_engine_options* options,
                               pith_engine** engine, pith_error* error) {
  return guarded(error, [&] {
    given(engine, "the place for the engine") = nullptr;
    *engine = new pith_engine{
        std::make_shared<pith::Engine>(given(model, "the model").model, options_of(options))};
  });
}

void pith_engine_free(pith_engine* engine) { delete engine; }

pith_status pith_engine_get_info(const pith_engine* engine, pith_engine_info* info,
                                 pith_error* error) {
  return guarded(error, [&] {
    const pith::Engine& e = *given(engine, "the engine").engine;
    write(info,
          {.size = sizeof(pith_engine_info),
           .bytes_in_use = e.bytes_in_use(),
           .peak_bytes = e.peak_bytes(),
           .scratch = e.ledger().scratch,
           .isa = e.isa(),
           .device = static_cast<int32_t>(e.options().device),
           .threads = e.threads(),
           .bytes_reserved = e.bytes_reserved()},
          "the place for what the engine is");
  });
}

size_t pith_engine_next_chunk(const pith_engine* engine, size_t left) {
  return engine ? engine->engine->next_chunk(left) : left;
}
