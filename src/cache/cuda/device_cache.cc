#include "cache/cuda/device_cache.h"

#include <fmt/format.h>

#include "compress/registry.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& supported) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{} is not on the GPU yet; {}; use --device cpu",
                                                   what, supported));
}

/// The type of exact rows under `rule`; refuses what the GPU does not do.
DType row_type(const PolicyRule& rule) {
  if (rule.selector.name != "exact") {
    refuse(fmt::format("the selector '{}'", rule.selector.name), "the selector there is 'exact'");
  }
  const auto type = [&](const std::optional<PolicyPart>& codec) {
    if (!codec) return rule.dtype.value_or(DType::kF16);
    const CodecRow& row = codec_row(codec->name);
    if (!row.dense) refuse(fmt::format("the codec '{}'", codec->name), "codecs there are f16, bf16");
    return *row.dense;
  };
  const DType keys = type(rule.key_codec), values = type(rule.value_codec);
  if (keys != values || rule.dtype.value_or(keys) != keys) {
    refuse("a cache of keys and values in different types", "all rows must be f16, or all bf16");
  }
  if (keys == DType::kF32) refuse("a cache of f32 rows", "rows there are f16 or bf16");
  return keys;
}

}  // namespace

DeviceCache::DeviceCache(MemoryCounter& memory, const CacheShape& shape, const Policy& policy,
                         cudaStream_t stream)
    : memory_(memory), shape_(shape), stream_(stream) {
  if (shape.head_dim != 64 && shape.head_dim != 128) {
    refuse(fmt::format("a head_dim of {}", shape.head_dim), "head_dim there is 64 or 128");
  }
  for (const int64_t seen : shape.sliding_window) {
    if (seen > 0) refuse("a model with sliding-window layers", "all layers must see all tokens");
  }
  // Names and ranges are checked as the CPU checks them, and nothing is allocated.
  ThreadPool pool(1);
  MemoryCounter unused;
  const Rope rope(static_cast<size_t>(shape.head_dim), 10000);
  const Context context{pool, unused, kernels_for()};
  text_ = KvCache(context, shape, policy, 0, &rope).describe();
  dtype_ = row_type(policy.rules.front());
  for (const PolicyRule& rule : policy.rules) {
    if (row_type(rule) != dtype_) {
      refuse("a cache with f16 and bf16 rows", "all layers must have one type");
    }
  }
  const DeviceRowsShape rows{static_cast<size_t>(shape.kv_heads),
                             static_cast<size_t>(shape.head_dim), shape.context};
  for (int l = 0; l < shape.layers; ++l) layers_.emplace_back(memory, rows, stream);
  make_step_memory();
}

DeviceCache::DeviceCache(const DeviceCache& o)
    : memory_(o.memory_),
      shape_(o.shape_),
      stream_(o.stream_),
      dtype_(o.dtype_),
      text_(o.text_),
      layers_(o.layers_) {
  make_step_memory();
}

std::unique_ptr<DeviceCache> DeviceCache::clone() const {
  return std::unique_ptr<DeviceCache>(new DeviceCache(*this));
}

void DeviceCache::make_step_memory() {
  const auto layers = static_cast<size_t>(shape_.layers);
  const size_t lists = layers * static_cast<size_t>(shape_.kv_heads);
  targets_ = MirroredArray<RowTarget>(memory_, MemoryKind::kScratch, layers, stream_);
  spans_ = MirroredArray<DeviceSpan>(memory_, MemoryKind::kScratch, lists, stream_);
  uploaded_ = std::make_unique<StreamMark>();
  const DecodeShape shape{1, shape_.query_heads, shape_.kv_heads, shape_.head_dim, 1, 0};
  scratch_ = std::make_unique<DecodeScratch>(memory_, shape, stream_);
}

void DeviceCache::begin_token() {
  uploaded_->wait();
  const auto heads = static_cast<size_t>(shape_.kv_heads);
  for (size_t l = 0; l < layers_.size(); ++l) {
    DeviceRows& rows = layers_[l];
    rows.reserve_more(1);
    targets_.host()[l] = rows.end();
    for (size_t g = 0; g < heads; ++g) {
      DeviceSpan span;
      span.keys = rows.keys() + g * rows.head_stride() * 2;
      span.values = rows.values() + g * rows.head_stride() * 2;
      span.rows = static_cast<int32_t>(rows.rows() + 1);
      span.row_stride = shape_.head_dim;
      spans_.host()[l * heads + g] = span;
    }
  }
  targets_.upload(targets_.size(), stream_);
  spans_.upload(spans_.size(), stream_);
  uploaded_->set(stream_);
}

void DeviceCache::attend_token(int layer, float* out, const void* q) {
  DecodeCall call;
  call.shape = {1, shape_.query_heads, shape_.kv_heads, shape_.head_dim, 1, 0};
  call.dtype = dtype_;
  call.q = q;
  call.spans = spans_.device() + layer * shape_.kv_heads;
  call.out = out;
  decode_dense(call, *scratch_, stream_);
}

void DeviceCache::end_token() {
  for (DeviceRows& rows : layers_) rows.add(1);
}

RowTarget DeviceCache::begin_chunk(int layer, size_t tokens) {
  DeviceRows& rows = layers_[static_cast<size_t>(layer)];
  rows.reserve_more(tokens);
  return rows.end();
}

void DeviceCache::attend_chunk(int layer, void* result, DType dtype, const void* q,
                               size_t tokens) {
  const DeviceRows& rows = layers_[static_cast<size_t>(layer)];
  PrefillCall call;
  call.query_heads = shape_.query_heads;
  call.kv_heads = shape_.kv_heads;
  call.head_dim = shape_.head_dim;
  call.tokens = static_cast<int>(tokens);
  call.dtype = dtype_;
  call.q = q;
  call.span.keys = rows.keys();
  call.span.values = rows.values();
  call.span.head_stride = rows.head_stride();
  call.span.rows = static_cast<int64_t>(rows.rows() + tokens);
  call.span.before = static_cast<int64_t>(rows.rows());
  call.result = result;
  call.result_dtype = dtype;
  cuda::attend_chunk(call, stream_);
}

void DeviceCache::end_chunk(int layer, size_t tokens) {
  layers_[static_cast<size_t>(layer)].add(tokens);
}

HeadRows DeviceCache::rows(int layer, int head) const {
  if (layer < 0 || layer >= shape_.layers || head < 0 || head >= shape_.kv_heads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer {}, KV head {} of a cache with {} layers and {} KV heads", layer,
                            head, shape_.layers, shape_.kv_heads));
  }
  HeadRows rows;
  const size_t count = layers_[static_cast<size_t>(layer)].rows();
  for (size_t i = 0; i < count; ++i) rows.positions.push_back(static_cast<int64_t>(i));
  rows.log_weights.resize(count);
  rows.roles.resize(count, Role::kBoth);
  return rows;
}

Ledger DeviceCache::ledger() const {
  Ledger ledger;
  for (const DeviceRows& rows : layers_) {
    const uint64_t count = rows.rows() * static_cast<uint64_t>(shape_.kv_heads);
    const uint64_t channels = count * 2 * static_cast<uint64_t>(shape_.head_dim);
    ledger.payload += rows.held_bytes();
    ledger.slack += rows.allocated_bytes() - rows.held_bytes();
    ledger.tokens = rows.rows();
    ledger.rows_seen += count;
    ledger.rows_kept += count;
    ledger.channels_seen += channels;
    ledger.channels_kept += channels;
  }
  return ledger;
}

std::string DeviceCache::describe() const { return text_; }

}  // namespace pith::cuda
