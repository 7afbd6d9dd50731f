#include "rows/cpu/window_ring.h"

#include <algorithm>

namespace pith {
namespace {

RowsRequest request(const WindowFormat& format, Side side) {
  return {side, format.dim, 0, format.capacity};
}

void put(DenseRowsStore& store, size_t at, const float* x, size_t stride, size_t count) {
  const size_t over = std::min(count, store.rows() - at);  // rows whose place exists already
  store.overwrite(at, x, stride, over);
  if (count > over) store.append(x + over * stride, stride, count - over);
}

}  // namespace

WindowRing::WindowRing(const Context& context, const WindowFormat& format)
    : format_(format),
      keys_(context, format.key_dtype, request(format, Side::kKeys)),
      values_(context, format.value_dtype, request(format, Side::kValues)),
      mass_(context.memory, MemoryKind::kMetadata) {
  mass_.set_growth_limit(format.capacity);
}

template <class F>
void WindowRing::for_pieces(size_t from, size_t count, F&& f) const {
  for (size_t done = 0; done < count;) {
    const size_t at = (front_ + from + done) % format_.capacity;
    const size_t n = std::min(count - done, format_.capacity - at);
    f(at, done, n);
    done += n;
  }
}

void WindowRing::push(const NewRows& in) {
  if (count_ == 0) first_position_ = in.first_position;
  for_pieces(count_, in.count, [&](size_t at, size_t done, size_t n) {
    put(keys_, at, in.k + done * in.stride, in.stride, n);
    put(values_, at, in.v + done * in.stride, in.stride, n);
    if (!format_.mass) return;
    mass_.resize(std::max(mass_.size(), at + n));
    for (size_t i = 0; i < n; ++i) mass_[at + i] = in.mass ? in.mass[done + i] : 0.0f;
  });
  count_ += in.count;
}

void WindowRing::pop(float* k, float* v, float* mass, size_t count) {
  for_pieces(0, count, [&](size_t at, size_t done, size_t n) {
    keys_.decode(k + done * format_.dim, at, n);
    values_.decode(v + done * format_.dim, at, n);
    if (format_.mass) std::copy_n(mass_.data() + at, n, mass + done);
  });
  front_ = (front_ + count) % format_.capacity;
  count_ -= count;
  first_position_ += static_cast<int64_t>(count);
}

// Where rows are in the ring follows from counts, and is state: attention over one span rounds
// otherwise than over two.
void WindowRing::archive(Archive& a, size_t came, size_t left, int64_t from) {
  const size_t capacity = std::max<size_t>(format_.capacity, 1);
  if (a.loads()) {
    front_ = left % capacity;
    count_ = came - left;
    first_position_ = from + static_cast<int64_t>(left);
    const size_t places = std::min(capacity, front_ + count_);
    a.check_left(places, 1);
    keys_.make_places(places);
    values_.make_places(places);
    if (format_.mass) mass_.resize(places);
  }
  a.need(front_ == left % capacity && count_ == came - left,
         "the window is not where it should be");
  for_pieces(0, count_, [&](size_t at, size_t, size_t n) {
    keys_.archive(a, at, n);
    values_.archive(a, at, n);
    if (format_.mass) a.raw_finite(mass_.data() + at, n, DType::kF32);
  });
}

void WindowRing::clear_mass() { std::fill(mass_.begin(), mass_.end(), 0.0f); }

void WindowRing::add_spans(std::vector<Span>& spans) {
  for_pieces(0, count_, [&](size_t at, size_t done, size_t n) {
    Span s;
    s.keys = &keys_;
    s.values = &values_;
    s.first = at;
    s.count = n;
    s.first_position = first_position_ + static_cast<int64_t>(done);
    s.mass = format_.mass ? mass_.data() : nullptr;
    spans.push_back(s);
  });
}

void WindowRing::add_to(Ledger& ledger) const {
  // Places of the ring that hold no row at the moment are slack.
  const size_t payload =
      count_ * format_.dim * (size_of(format_.key_dtype) + size_of(format_.value_dtype));
  const size_t metadata = format_.mass ? count_ * sizeof(float) : 0;
  ledger.payload += payload;
  ledger.metadata += metadata;
  ledger.slack += keys_.allocated_bytes() + values_.allocated_bytes() + mass_.capacity_bytes() -
                  payload - metadata;
  ledger.rows_kept += count_;
  ledger.channels_kept += count_ * 2 * format_.dim;
}

}  // namespace pith
