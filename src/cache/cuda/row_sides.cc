#include "cache/cuda/row_sides.h"

#include <algorithm>

#include "kernels/cuda/fetched.h"

namespace pith::cuda {

RowSides::RowSides(MemoryCounter& memory, const Shape& shape, cudaStream_t stream)
    : shape_(shape),
      stream_(stream),
      positions_(memory, MemoryKind::kMetadata, {shape.heads, sizeof(int32_t)}, stream),
      mass_(memory, MemoryKind::kMetadata, {shape.heads, sizeof(float)}, stream),
      weights_(memory, MemoryKind::kMetadata, {1, sizeof(float)}, stream) {}

void RowSides::make_room(size_t capacity, const Held& held) {
  positions_.renew(capacity, {0, std::min(positions_.capacity(), named_)});
  if (shape_.mass) mass_.renew(capacity, {0, std::min(mass_.capacity(), held.with_mass)});
  if (shape_.weights) weights_.renew(capacity, {0, std::min(weights_.capacity(), held.weighed)});
}

StoreRoom RowSides::room(size_t capacity) const {
  if (capacity <= this->capacity()) return {};
  StoreRoom room = StoreRoom::growth(positions_, capacity);
  if (shape_.mass) room += StoreRoom::growth(mass_, capacity);
  if (shape_.weights) room += StoreRoom::growth(weights_, capacity);
  return room;
}

void RowSides::clear_mass(size_t first, size_t count) const {
  if (!shape_.mass) return;
  check(cudaMemset2DAsync(mass(first), capacity() * sizeof(float), 0, count * sizeof(float),
                          shape_.heads, stream_),
        "the mass of new rows");
}

void RowSides::add_mass(MassTarget& target, size_t known) const {
  target.mass = mass_.at<float>();
  target.stride = capacity();
  target.known = static_cast<int32_t>(known);
}

void RowSides::add_sides(CandidateRows& rows, size_t position, size_t mass) const {
  rows.positions = positions_.at<int32_t>(0, position);
  rows.mass = this->mass(mass);
  rows.side_stride = capacity();
  rows.log_weights = weights();
}

std::vector<int32_t> RowSides::positions_of(size_t head) const {
  return fetched(positions_.at<int32_t>(head), named_, stream_);
}

std::vector<float> RowSides::log_weights(size_t rows) const {
  return fetched(weights(), rows, stream_);
}

void RowSides::archive(Archive& a, const Held& held, int32_t last) {
  archive_numbers(a, positions_.runs(named_), 0, last, stream_);
  if (shape_.mass) archive_finite(a, mass_.runs(held.with_mass), DType::kF32, stream_);
  archive_finite(a, weights_.runs(held.weighed), DType::kF32, stream_);
}

void RowSides::add_to(Ledger& ledger, const Held& held) const {
  const size_t with_mass = shape_.mass ? held.with_mass : 0;
  const size_t used = shape_.heads * (named_ * sizeof(int32_t) + with_mass * sizeof(float)) +
                      held.weighed * sizeof(float);
  ledger.metadata += used;
  ledger.slack +=
      positions_.allocated_bytes() + mass_.allocated_bytes() + weights_.allocated_bytes() - used;
}

}  // namespace pith::cuda
