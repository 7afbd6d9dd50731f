#include "model/cuda/device_weights.h"

#include <algorithm>

#include "kernels/block_tiles.h"
#include "kernels/cuda/tile_rows.h"

namespace pith::cuda {
namespace {

constexpr cudaStream_t kUploads = nullptr;
constexpr size_t kPanelBytes = size_t{32} << 20;  // of blocks on their way into tiles

}  // namespace

std::shared_ptr<const DeviceWeights> DeviceWeights::of(const std::shared_ptr<const Model>& model) {
  DeviceCopySlot& slot = *model->weights().device_copy;
  const std::lock_guard lock(slot.lock);
  device_info();  // refuses machines without a GPU before anything is asked of one
  int device = 0;
  check(cudaGetDevice(&device), "device");
  if (auto copy = slot.copies[device].lock())
    return std::static_pointer_cast<const DeviceWeights>(copy);
  std::shared_ptr<const DeviceWeights> made(new DeviceWeights(model));
  slot.copies[device] = made;
  return made;
}

DeviceWeights::DeviceWeights(std::shared_ptr<const Model> model)
    : model_(std::move(model)), staging_(memory_, MemoryKind::kScratch) {
  const Model::Weights& w = model_->weights();
  embedding_ = upload({&w.embedding});
  for (const LayerWeights& from : w.layers) {
    DeviceLayer to;
    to.qkv = upload({&from.q.w, &from.k.w, &from.v.w});
    to.o = upload({&from.o.w});
    to.gate_up = upload({&from.gate.w, &from.up.w});
    to.gate_up.halves = true;
    to.down = upload({&from.down.w});
    to.attention_norm = upload({&from.attention_norm});
    to.attention_post_norm = upload({&from.attention_post_norm});
    to.mlp_norm = upload({&from.mlp_norm});
    to.mlp_post_norm = upload({&from.mlp_post_norm});
    to.q_norm = upload({&from.q_norm});
    to.k_norm = upload({&from.k_norm});
    to.qkv_bias = upload({&from.q.bias, &from.k.bias, &from.v.bias});
    to.o_bias = upload({&from.o.bias});
    to.gate_up_bias = upload({&from.gate.bias, &from.up.bias});
    to.down_bias = upload({&from.down.bias});
    layers_.push_back(to);
  }
  final_norm_ = upload({&w.final_norm});
  head_ = w.head.data == w.embedding.data ? embedding_ : upload({&w.head});
  head_factors_ = upload({&w.head_factors});
  check(cudaStreamSynchronize(kUploads), "the upload of weights");
  staging_ = {};
}

/// Rows of neighbours of one type are one part, if in tiles they end with one.
MixedMatrix DeviceWeights::upload(std::initializer_list<const WeightMatrix*> matrices) {
  MixedMatrix all;
  all.in = (*matrices.begin())->in;
  const std::span list(matrices.begin(), matrices.size());
  for (size_t first = 0, last; first < list.size(); first = last) {
    MatrixPart part{nullptr, list[first]->type, list[first]->out};
    for (last = first + 1; last < list.size(); ++last) {
      if (list[last]->type != part.type || (part.tiled() && part.out % kTileRows != 0)) break;
      part.out += list[last]->out;
    }
    part.data = upload(list.subspan(first, last - first));
    all.out += part.out;
    all.parts.push_back(part);
  }
  tiled_ = tiled_ && all.tiled();
  return all;
}

/// Matrices of one type, one after the other.
const std::byte* DeviceWeights::upload(std::span<const WeightMatrix* const> alike) {
  const WeightType type = alike[0]->type;
  const size_t in = alike[0]->in, row = row_bytes(type, in);
  const bool tiled = !dense_type(type);
  size_t out = 0;
  for (const WeightMatrix* w : alike) out += w->out;
  DeviceBuffer buffer(memory_, MemoryKind::kWeights);
  buffer.allocate(tiled ? tile_counts(type, out, in).bytes() : out * row, kUploads);
  auto* to = static_cast<std::byte*>(buffer.data());
  buffers_.push_back(std::move(buffer));
  // Pageable memory is read before a copy returns.
  const auto copy = [](void* to_device, const void* from, size_t bytes) {
    check(cudaMemcpyAsync(to_device, from, bytes, cudaMemcpyHostToDevice, kUploads), "weights");
  };
  size_t done = 0;
  for (const WeightMatrix* w : alike) {
    if (!tiled) {
      copy(to + done * row, w->data, w->bytes());
    } else {
      if (staging_.size() == 0) staging_.allocate(kPanelBytes, kUploads);
      const size_t rows = std::max<size_t>(kPanelBytes / row / kTileRows, 1) * kTileRows;
      if (rows * row > staging_.size()) staging_.allocate(rows * row, kUploads);
      auto* staging = static_cast<std::byte*>(staging_.data());
      for (size_t first = 0; first < w->out; first += rows) {
        const size_t count = std::min(rows, w->out - first);
        copy(staging, w->row(first), count * row);
        pack_tiles({to, type, in, done + first, count, staging}, kUploads);
      }
    }
    done += w->out;
  }
  return to;
}

// Empty vectors are none at all: then the result is null.
const float* DeviceWeights::upload(std::initializer_list<const std::vector<float>*> parts) {
  std::vector<float> all;
  for (const std::vector<float>* part : parts) all.insert(all.end(), part->begin(), part->end());
  if (all.empty()) return nullptr;
  DeviceBuffer buffer(memory_, MemoryKind::kWeights);
  buffer.allocate(all.size() * sizeof(float), kUploads);
  check(cudaMemcpyAsync(buffer.data(), all.data(), buffer.size(), cudaMemcpyHostToDevice, kUploads),
        "weights");
  // The host's copy ends with this function: pageable memory is read before the call returns.
  buffers_.push_back(std::move(buffer));
  return static_cast<const float*>(buffers_.back().data());
}

}  // namespace pith::cuda
