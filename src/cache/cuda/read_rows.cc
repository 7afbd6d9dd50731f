#include "cache/cuda/read_rows.h"

#include <algorithm>
#include <numeric>

#include "cache/cuda/head_state.h"
#include "kernels/cuda/fetched.h"
#include "kernels/kernels.h"
#include "pith/error.h"
#include "rows/cuda/coded_store.h"

namespace pith::cuda {
namespace {

/// Keys and values of one head on the host, in the order of add_rows().
class RowReader {
 public:
  RowReader(const LayerSite& site, size_t rows)
      : site_(site), k_(rows * site.dim), v_(k_.size()), coded_(rows, false) {}

  /// Unpacked to `room`, a piece at a time.
  void decode(const HeadCodes& codes, const RowTarget& room) {
    constexpr size_t kPiece = ChunkSpace::kPieceRows;
    const size_t end = codes.begin + codes.rows;
    for (size_t first = codes.begin / kPiece * kPiece; first < end; first += kPiece) {
      const size_t from = std::max(first, codes.begin), to = std::min(first + kPiece, end);
      const size_t blocks = (to - first + kBlockRows - 1) / kBlockRows;
      codes.codes->blocks().calls().unpack(room, {first / kBlockRows, blocks, DType::kF16});
      const DeviceSpan rows = dense_span(room + (from - first), codes.head, to - from, site_.dim);
      copy(codes.first + from - codes.begin, rows, rows.rows, DType::kF16);
    }
    std::fill_n(coded_.begin() + static_cast<ptrdiff_t>(codes.first), codes.rows, true);
  }
  /// Dense rows are those that are in no codes; neighbours in memory may have codes between them.
  void place(std::span<const DeviceSpan> dense, DType dtype) {
    size_t row = 0;
    for (DeviceSpan span : dense) {
      while (span.rows > 0) {
        while (row < coded_.size() && coded_[row]) ++row;
        const auto begin = coded_.begin() + static_cast<ptrdiff_t>(row);
        const auto run = std::find(begin, coded_.end(), true) - begin;
        const auto count = std::min<size_t>(static_cast<size_t>(run), span.rows);
        if (count == 0) other_number();
        copy(row, span, count, dtype);
        row += count;
        span = rest_of(span, count);
      }
    }
    if (std::find(coded_.begin() + static_cast<ptrdiff_t>(row), coded_.end(), false) !=
        coded_.end())
      other_number();
  }
  void hand_out(std::span<const size_t> told, float* k, float* v) const {
    for (const size_t row : told) {
      k = std::copy_n(k_.data() + row * site_.dim, site_.dim, k);
      v = std::copy_n(v_.data() + row * site_.dim, site_.dim, v);
    }
  }

 private:
  [[noreturn]] static void other_number() {
    throw Error(ErrorCode::kInternal, "reading rows: another number of them than their positions");
  }
  DeviceSpan rest_of(DeviceSpan span, size_t count) const {
    span.keys = static_cast<const uint16_t*>(span.keys) + count * site_.dim;
    span.values = static_cast<const uint16_t*>(span.values) + count * site_.dim;
    span.rows -= static_cast<int32_t>(count);
    return span;
  }
  void copy(size_t row, const DeviceSpan& from, size_t count, DType dtype) {
    const size_t n = count * site_.dim, at = row * site_.dim;
    const auto side = [&](const void* numbers, std::vector<float>& to) {
      const auto raw = fetched(static_cast<const uint16_t*>(numbers), n, site_.stream);
      kernels_for().to_f32(to.data() + at, raw.data(), dtype, n);
    };
    side(from.keys, k_);
    side(from.values, v_);
  }

  const LayerSite& site_;
  std::vector<float> k_, v_;  // [rows, D]
  std::vector<bool> coded_;   // [rows]
};

}  // namespace

OrderedRows ordered_rows(const LayerRows& layer, size_t head) {
  HeadRows held;
  const HeadRun& run = layer.run_of(head);
  add_rows(held, *run.stores, head - run.first);
  OrderedRows ordered;
  ordered.told.resize(held.positions.size());
  std::iota(ordered.told.begin(), ordered.told.end(), size_t{0});
  std::ranges::sort(ordered.told, {}, [&](size_t i) { return held.positions[i]; });
  for (const size_t i : ordered.told) {
    ordered.rows.positions.push_back(held.positions[i]);
    ordered.rows.log_weights.push_back(held.log_weights[i]);
  }
  ordered.rows.roles.resize(ordered.told.size(), Role::kBoth);
  return ordered;
}

void read_rows(const LayerRows& layer, size_t head, ChunkSpace& space, float* k, float* v) {
  const std::vector<size_t> told = ordered_rows(layer, head).told;
  const HeadRun& run = layer.run_of(head);
  const size_t mine = head - run.first;
  RowReader reader(run.stores->site, told.size());
  std::vector<HeadCodes> codes;
  add_codes(codes, *run.stores, mine);
  for (const HeadCodes& of : codes) {
    if (of.rows > 0) reader.decode(of, space.piece());
  }
  std::vector<DeviceSpan> dense;
  add_dense(dense, *run.stores, mine);
  reader.place(dense, run.stores->layer.dtype);
  reader.hand_out(told, k, v);
}

}  // namespace pith::cuda
