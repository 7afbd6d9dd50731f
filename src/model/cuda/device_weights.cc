#include "model/cuda/device_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/thread_pool.h"
#include "kernels/block_products.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr cudaStream_t kUploads = nullptr;
constexpr size_t kPanelBytes = size_t{32} << 20;  // of decoded rows on their way

/// Rows in blocks as rows of `dtype`.
void upload_decoded(std::byte* to, const WeightMatrix& from, DType dtype) {
  const Kernels& kernels = kernels_for();
  const BlockKernels& blocks = block_kernels(kernels);
  const size_t bytes = from.in * size_of(dtype);
  const size_t rows = std::clamp<size_t>(kPanelBytes / bytes, 1, from.out);
  std::vector<std::byte> panel(rows * bytes);
  ThreadPool pool;
  std::vector<float> numbers(static_cast<size_t>(pool.size()) * from.in);
  for (size_t first = 0; first < from.out; first += rows) {
    const size_t count = std::min(rows, from.out - first);
    pool.parallel_for(count, [&](size_t i, int worker) {
      float* row = numbers.data() + static_cast<size_t>(worker) * from.in;
      blocks.decode(row, from.row(first + i), from.type, from.in);
      kernels.from_f32(panel.data() + i * bytes, row, dtype, from.in);
    });
    // Pageable memory is read before the call returns.
    check(cudaMemcpyAsync(to + first * bytes, panel.data(), count * bytes, cudaMemcpyHostToDevice,
                          kUploads),
          "weights");
  }
}

}  // namespace

std::shared_ptr<const DeviceWeights> DeviceWeights::of(const std::shared_ptr<const Model>& model) {
  DeviceCopySlot& slot = *model->weights().device_copy;
  const std::lock_guard lock(slot.lock);
  if (auto copy = slot.copy.lock()) return std::static_pointer_cast<const DeviceWeights>(copy);
  device_info();  // refuses machines without a GPU before anything is asked of one
  std::shared_ptr<const DeviceWeights> made(new DeviceWeights(model));
  slot.copy = made;
  return made;
}

DeviceWeights::DeviceWeights(std::shared_ptr<const Model> model) : model_(std::move(model)) {
  const Model::Weights& w = model_->weights();
  embedding_ = upload({&w.embedding});
  for (const LayerWeights& from : w.layers) {
    DeviceLayer to;
    to.qkv = upload({&from.q.w, &from.k.w, &from.v.w});
    to.o = upload({&from.o.w});
    to.gate_up = upload({&from.gate.w, &from.up.w});
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
}

DeviceMatrix DeviceWeights::upload(std::initializer_list<const WeightMatrix*> parts) {
  DeviceMatrix matrix;
  matrix.dtype = dtype();
  matrix.in = (*parts.begin())->in;
  for (const WeightMatrix* part : parts) {
    matrix.out += part->out;
    if (!dense_type(part->type) || part->type == weight_type(matrix.dtype)) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the model's matrices are partly {} and partly {}; on the GPU all "
                            "dense ones must have one type; convert the model, or use --device cpu",
                            to_string(matrix.dtype), to_string(part->type)));
  }
  DeviceBuffer buffer(memory_, MemoryKind::kWeights);
  const size_t row_bytes = matrix.in * size_of(matrix.dtype);
  buffer.allocate(matrix.out * row_bytes, kUploads);
  auto* to = static_cast<std::byte*>(buffer.data());
  for (const WeightMatrix* part : parts) {
    const size_t bytes = part->out * row_bytes;
    if (dense_type(part->type))
      check(cudaMemcpyAsync(to, part->data, bytes, cudaMemcpyHostToDevice, kUploads), "weights");
    else
      upload_decoded(to, *part, matrix.dtype);
    to += bytes;
  }
  matrix.data = buffer.data();
  buffers_.push_back(std::move(buffer));
  return matrix;
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
