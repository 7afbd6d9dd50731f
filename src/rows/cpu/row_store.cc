#include "rows/cpu/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "pith/error.h"
#include "rows/cpu/compaction.h"

namespace pith {
namespace {

// Arrays beside the codes follow the rows: same order, same compaction.
template <class T>
void keep_in(Array<T>& a, std::span<const uint32_t> kept) {
  if (a.empty()) return;
  for (size_t i = 0; i < kept.size(); ++i) a[i] = a[kept[i]];
  a.resize(kept.size());
  give_back(a);
}

template <class T>
void keep_tail(Array<T>& a, size_t first, std::span<const uint32_t> kept) {
  if (a.empty()) return;
  for (size_t i = 0; i < kept.size(); ++i) a[first + i] = a[kept[i]];
  a.resize(first + kept.size());
  give_back(a);
}

}  // namespace

bool NewRows::consecutive() const {
  for (size_t i = 1; positions && i < count; ++i)
    if (positions[i] != positions[i - 1] + 1) return false;
  return true;
}

RowStore::RowStore(const Context& context, const RowFormat& format, Role role)
    : format_(format),
      kernels_(&context.kernels),
      memory_(&context.memory),
      role_(role),
      positions_(context.memory, MemoryKind::kMetadata),
      log_weights_(context.memory, MemoryKind::kMetadata),
      mass_(context.memory, MemoryKind::kMetadata) {
  if (format.keys->pre_rope() && !format.rope)
    throw Error(ErrorCode::kUnsupported,
                "this codec stores keys before RoPE, but the cache was built without one");
  RowsRequest request{Side::kKeys, format.dim,   format.head, format.max_rows,
                      format.seed, format.layer, format.model};
  keys_ = format.keys->make_rows(context, request);
  request.side = Side::kValues;
  values_ = format.values->make_rows(context, request);
  positions_.set_growth_limit(format.max_rows);
  log_weights_.set_growth_limit(format.max_rows);
  mass_.set_growth_limit(format.max_rows);
}

RowStore::RowStore(const RowStore& other)
    : format_(other.format_),
      kernels_(other.kernels_),
      memory_(&other.memory_->of_copies()),
      role_(other.role_),
      keys_(other.keys_->clone()),
      values_(other.values_->clone()),
      contiguous_(other.contiguous_),
      first_position_(other.first_position_),
      positions_(other.positions_),
      log_weights_(other.log_weights_),
      mass_(other.mass_),
      span_log_weight_(other.span_log_weight_) {}

void RowStore::append(const NewRows& in, float log_weight) {
  if (in.count == 0) return;
  const size_t before = rows();
  if (before == 0) {
    contiguous_ = true;
    first_position_ = in.position(0);
  }
  const bool follows = in.position(0) == first_position_ + static_cast<int64_t>(before);
  if (contiguous_ && !(follows && in.consecutive())) materialise_positions();
  if (!contiguous_)
    for (size_t i = 0; i < in.count; ++i)
      positions_.push_back(static_cast<uint32_t>(in.position(i)));
  if (log_weight != 0 && log_weights_.empty()) {
    log_weights_.resize(before);
    for (float& w : log_weights_) w = 0;
  }
  if (log_weight != 0 || !log_weights_.empty())
    for (size_t i = 0; i < in.count; ++i) log_weights_.push_back(log_weight);
  if (format_.mass)
    for (size_t i = 0; i < in.count; ++i) mass_.push_back(in.mass ? in.mass[i] : 0.0f);

  if (format_.keys->pre_rope()) {
    std::vector<float> unturned(in.count * format_.dim);
    for (size_t i = 0; i < in.count; ++i) {
      float* row = unturned.data() + i * format_.dim;
      std::copy_n(in.k + i * in.stride, format_.dim, row);
      format_.rope->rotate(*kernels_, row, -in.position(i));
    }
    keys_->append(unturned.data(), format_.dim, in.count);
  } else {
    keys_->append(in.k, in.stride, in.count);
  }
  values_->append(in.v, in.stride, in.count);
}

void RowStore::keep(std::span<const uint32_t> kept) {
  if (kept.size() == rows()) return;
  if (contiguous_ && !kept.empty()) {
    // Still contiguous if one run is kept (a window that moves on).
    const bool run = kept.back() - kept.front() + 1 == kept.size();
    if (run)
      first_position_ += kept.front();
    else
      materialise_positions();
  }
  keep_in(positions_, kept);
  keep_in(log_weights_, kept);
  keep_in(mass_, kept);
  keys_->keep(kept);
  values_->keep(kept);
}

void RowStore::keep_after(size_t first, std::span<const uint32_t> kept) {
  if (first + kept.size() == rows()) return;
  if (first == 0) return keep(kept);
  const bool prefix = kept.empty() || kept.back() == first + kept.size() - 1;
  if (contiguous_ && !prefix) materialise_positions();
  keep_tail(positions_, first, kept);
  keep_tail(log_weights_, first, kept);
  keep_tail(mass_, first, kept);
  keys_->keep_after(first, kept);
  values_->keep_after(first, kept);
}

void RowStore::decode_keys(float* out, size_t first, size_t count) const {
  keys_->decode(out, first, count);
  if (!format_.keys->pre_rope()) return;
  RopeCursor(*format_.rope)
      .rotate_rows(*kernels_, out, contiguous_ ? nullptr : positions_.data() + first,
                   first_position_ + static_cast<int64_t>(first), count);
}

void RowStore::read(float* k, float* v, size_t first, size_t count) const {
  decode_keys(k, first, count);
  values_->decode(v, first, count);
}

int64_t RowStore::position(size_t row) const {
  return contiguous_ ? first_position_ + static_cast<int64_t>(row) : positions_[row];
}

void RowStore::set_log_weight(size_t row, float w) {
  if (log_weights_.empty()) {
    if (w == 0) return;
    log_weights_.resize(rows());
    for (float& x : log_weights_) x = 0;
  }
  log_weights_[row] = w;
}

void RowStore::materialise_positions() {
  const size_t n = rows();
  positions_.resize(n);
  for (size_t i = 0; i < n; ++i)
    positions_[i] = static_cast<uint32_t>(first_position_ + static_cast<int64_t>(i));
  contiguous_ = false;
}

void RowStore::archive(Archive& a, size_t tokens) {
  size_t count = rows();
  a.number(count, tokens, "more rows than tokens");
  keys_->archive(a);
  values_->archive(a);
  a.need(keys_->rows() == count && values_->rows() == count, "keys and values differ in number");
  a.flag(contiguous_);
  if (contiguous_) {
    int64_t first = count > 0 ? first_position_ : 0;  // the next row says where the store begins
    a.number(first, static_cast<int64_t>(tokens - count), "a position past the tokens");
    a.need(first >= 0, "a position before the first");
    if (a.loads()) first_position_ = first;
  } else {
    a.numbers(positions_, count);
    for (size_t i = 0; a.loads() && i < count; ++i)
      a.need(positions_[i] < tokens, "a position past the tokens");
  }
  bool weights = !log_weights_.empty();
  a.flag(weights);
  if (weights) a.floats(log_weights_, count);
  a.number(span_log_weight_);
  if (format_.mass) a.floats(mass_, count);
}

Span RowStore::span() {
  Span s;
  s.keys = keys_.get();
  s.values = values_.get();
  s.count = rows();
  s.role = role_;
  s.log_weight = span_log_weight_;
  s.log_weights = log_weights_.empty() ? nullptr : log_weights_.data();
  s.positions = contiguous_ ? nullptr : positions_.data();
  s.first_position = first_position_;
  s.keys_before_rope = format_.keys->pre_rope();
  s.mass = mass_.empty() ? nullptr : mass_.data();
  return s;
}

void RowStore::add_to(Ledger& ledger) const {
  const size_t side_arrays =
      positions_.size() * sizeof(uint32_t) + (log_weights_.size() + mass_.size()) * sizeof(float);
  size_t allocated =
      positions_.capacity_bytes() + log_weights_.capacity_bytes() + mass_.capacity_bytes();
  size_t used = side_arrays;
  ledger.metadata += side_arrays;
  for (const CodedRows* side : {keys_.get(), values_.get()}) {
    ledger.payload += side->payload_bytes();
    ledger.metadata += side->metadata_bytes();
    ledger.shared += side->table_bytes();
    used += side->payload_bytes() + side->metadata_bytes() + side->table_bytes();
    allocated += side->allocated_bytes();
  }
  ledger.slack += allocated - used;
  ledger.rows_kept += rows();
  ledger.channels_kept += rows() * 2 * format_.dim;
}

}  // namespace pith
