// Rows that are judged: their keys, the choice, the moves. See host_device.h.

#include <cmath>
#include <cstring>
#include <numeric>

#include "cache/cuda/layer_rows.h"
#include "cache/cuda/protected_store.h"
#include "compress/cuda/heavy.h"
#include "compress/cuda/key_directions.h"
#include "compress/cuda/share.h"
#include "core/philox.h"
#include "host_device.h"
#include "kernels/cuda/strided.h"
#include "kernels/cuda/uploads.h"
#include "methods/baselines/uniform_cuda.h"
#include "methods/buzz/buzz_cuda.h"
#include "methods/scores/scores_cuda.h"

namespace pith::cuda {
namespace {

uint32_t key_of(float score) {
  if (std::isnan(score)) return 0;
  uint32_t bits = 0;
  std::memcpy(&bits, &score, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// space.keys <- score(head, row).
template <class F>
void score_all(const SelectSpace& space, const JudgedRows& rows, const F& score) {
  for (int h = 0; h < rows.heads; ++h)
    for (int i = 0; i < rows.count(static_cast<size_t>(h)); ++i)
      space.keys[rows.beside(static_cast<size_t>(h), space.stride) + static_cast<size_t>(i)] =
          key_of(static_cast<float>(score(h, i)));
}
double mass_of(const JudgedRows& rows, int head, int row) {
  return rows
      .mass[rows.beside(static_cast<size_t>(head), rows.side_stride) + static_cast<size_t>(row)];
}
/// A row's keys or values.
uint16_t* number_at(const JudgedRows& rows, const void* x, int head, int row) {
  return row_at(x, 0, 0, row, rows.dim) + rows.numbers_at(static_cast<size_t>(head));
}
std::vector<float> key_at(const JudgedRows& rows, int head, int row) {
  return floats(rows.dtype, number_at(rows, rows.k, head, row), 0, static_cast<size_t>(rows.dim));
}
int32_t* kept_of(const SelectSpace& space, int head) {
  return space.kept + static_cast<size_t>(head) * space.stride;
}

}  // namespace

void choose_rows(const SelectSpace& space, int heads, int rows, int keep, cudaStream_t) {
  for (int h = 0; h < heads; ++h) {
    const uint32_t* keys = space.keys + static_cast<size_t>(h) * space.stride;
    std::vector<int32_t> order(static_cast<size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order,
                      [&](int a, int b) { return keys[a] != keys[b] ? keys[a] > keys[b] : a > b; });
    std::sort(order.begin(), order.begin() + keep);
    std::sort(order.begin() + keep, order.end());
    std::ranges::copy(order, kept_of(space, h));
  }
}

void score_norms(const SelectSpace& space, const JudgedRows& rows, cudaStream_t) {
  score_all(space, rows, [&](int h, int i) {
    const std::vector<float> k = key_at(rows, h, i);
    return -dot(k.data(), k.data(), k.size());
  });
}

void score_directions(const SelectSpace& space, const JudgedRows& rows, cudaStream_t) {
  std::vector<std::vector<double>> mean;  // [G, D]
  const auto norm = [](const std::vector<float>& k) {
    return std::max(1e-12, std::sqrt(dot(k.data(), k.data(), k.size())));
  };
  for (int h = 0; h < rows.heads; ++h) {
    mean.emplace_back(static_cast<size_t>(rows.dim), 0);
    for (int i = 0; i < rows.count(static_cast<size_t>(h)); ++i) {
      const std::vector<float> k = key_at(rows, h, i);
      for (size_t c = 0; c < k.size(); ++c) mean.back()[c] += k[c] / norm(k);
    }
  }
  score_all(space, rows, [&](int h, int i) {
    const std::vector<float> k = key_at(rows, h, i);
    const std::vector<double>& own = mean[static_cast<size_t>(h)];
    const double length = std::sqrt(std::inner_product(own.begin(), own.end(), own.begin(), 0.0));
    return -std::inner_product(k.begin(), k.end(), own.begin(), 0.0) / (norm(k) * length);
  });
}

void score_mass(const SelectSpace& space, const JudgedRows& rows, int kernel, bool all_heads,
                cudaStream_t) {
  score_all(space, rows, [&](int h, int i) {
    double sum = 0;
    for (int g = all_heads ? 0 : h; g <= (all_heads ? rows.heads - 1 : h); ++g)
      for (int j = std::max(i - kernel / 2, 0);
           j <= std::min(i + kernel / 2, rows.count(static_cast<size_t>(g)) - 1); ++j)
        sum += mass_of(rows, g, j);
    return sum;
  });
}

void score_words(const SelectSpace& space, const JudgedRows& rows, const WordSource& source,
                 cudaStream_t) {
  for (int h = 0; h < rows.heads; ++h) {
    const Philox random(source.seed, source.layer, source.first_head + static_cast<uint32_t>(h));
    for (int i = 0; i < rows.rows; ++i) {
      const uint64_t word = random.word64(static_cast<uint64_t>(position_of(rows, h, i)));
      space.keys[static_cast<size_t>(h) * space.stride + static_cast<size_t>(i)] =
          ~static_cast<uint32_t>(word >> 32);
    }
  }
}

void choose_shared(const SelectSpace& space, const JudgedRows& rows, const SharedChoice& choice,
                   cudaStream_t) {
  struct Row {
    uint32_t key;
    int row, head;
    bool before(const Row& o) const {
      return key != o.key ? key > o.key : row != o.row ? row > o.row : head < o.head;
    }
  };
  std::vector<std::vector<int32_t>> stay;  // [G]
  std::vector<Row> others;
  int left = choice.keep;
  for (int h = 0; h < rows.heads; ++h) {
    std::vector<Row> own;
    const auto head = static_cast<size_t>(h);
    for (int i = 0; i < rows.count(head); ++i)
      own.push_back({space.keys[rows.beside(head, space.stride) + static_cast<size_t>(i)], i, h});
    std::ranges::sort(own, [](const Row& a, const Row& b) { return a.before(b); });
    const int safe = std::min(choice.least, rows.count(head));
    stay.emplace_back();
    for (int i = 0; i < safe; ++i) stay.back().push_back(own[static_cast<size_t>(i)].row);
    others.insert(others.end(), own.begin() + safe, own.end());
    left -= safe;
  }
  std::ranges::sort(others, [](const Row& a, const Row& b) { return a.before(b); });
  for (int i = 0; i < left; ++i) {
    const Row& row = others.at(static_cast<size_t>(i));
    stay[static_cast<size_t>(row.head)].push_back(row.row);
  }
  for (size_t h = 0; h < stay.size(); ++h) {
    std::ranges::sort(stay[h]);
    std::ranges::copy(stay[h], space.kept + rows.beside(h, space.stride));
    space.stay[h] = static_cast<int32_t>(stay[h].size());
  }
}

void place_heads(const PlaceCall& call, cudaStream_t) {
  for (int h = 0; h < call.heads; ++h) {
    call.rows[h] = call.from[h] + call.more;
    const int before = h > 0 ? call.begins[h - 1] + call.rows[h - 1] : 0;
    call.begins[h] = (before + call.unit - 1) / call.unit * call.unit;
  }
}

void line_up(const LineUpCall& call, cudaStream_t) {
  for (int h = 0; h < call.fresh.heads; ++h) {
    const auto head = static_cast<size_t>(h);
    const int there = call.held.count(head);
    for (int i = 0; i < call.to.rows_of(head, 0); ++i) {
      const int source = call.kept ? call.kept[call.named.at(head, 0) + static_cast<size_t>(i)] : i;
      const bool held = source < there;
      const JudgedRows& rows = held ? call.held : call.fresh;
      const int row = held ? source : source - there, dim = rows.dim;
      const size_t to = call.to.at(head, 0) + static_cast<size_t>(i);
      if (call.k) {
        copy_row(row_at(call.k, 0, 0, static_cast<int64_t>(to), dim),
                 number_at(rows, rows.k, h, row), dim);
        copy_row(row_at(call.v, 0, 0, static_cast<int64_t>(to), dim),
                 number_at(rows, rows.v, h, row), dim);
      }
      if (call.positions) call.positions[to] = static_cast<int32_t>(position_of(rows, h, row));
      if (call.mass) call.mass[to] = static_cast<float>(mass_of(rows, h, row)) * call.mass_factor;
    }
  }
}

void name_rows(const NameCall& call, cudaStream_t) {
  std::fill_n(call.held, call.count, call.zero);
  std::fill_n(call.fresh, call.count, call.stays);
  for (int h = 0; h < call.heads; ++h) {
    const auto head = static_cast<size_t>(h);
    for (int i = 0; i < call.to.rows[h]; ++i) {
      const int source = call.kept[call.named.at(head, 0) + static_cast<size_t>(i)];
      const int there = call.there.rows[h], at = call.to.begins[h] + i;
      if (source < there)
        call.held[at] = call.there.begins[h] + source;
      else
        call.fresh[at] = h * call.fresh_stride + source - there;
    }
  }
}

void move_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t) {
  const JudgedRows& rows = call.rows;
  for (int h = 0; h < rows.heads; ++h) {
    for (int i = 0; i < call.keep + call.after; ++i) {
      const int from = i < call.keep ? kept_of(space, h)[i] : rows.rows + i - call.keep;
      for (void* side : {rows.k, rows.v}) {
        copy_row(row_at(side, rows.head_stride, h, i, rows.dim),
                 row_at(side, rows.head_stride, h, from, rows.dim), rows.dim);
      }
    }
  }
}

void move_up(std::span<const KeepCall> calls, cudaStream_t stream) {
  for (const KeepCall& call : calls) move_rows({}, call, stream);
}

void move_sides(const SelectSpace& space, const KeepCall& call, cudaStream_t) {
  const JudgedRows& rows = call.rows;
  const int placed = call.keep + call.after_known;
  for (int h = 0; h < rows.heads; ++h) {
    int32_t* positions = rows.positions + static_cast<size_t>(h) * rows.side_stride;
    float* mass = rows.mass ? rows.mass + static_cast<size_t>(h) * rows.side_stride : nullptr;
    for (int i = 0; i < std::max(placed, mass ? call.keep + call.after : 0); ++i) {
      const int from = i < call.keep ? kept_of(space, h)[i] : rows.rows + i - call.keep;
      if (i < placed)
        positions[i] =
            i >= call.keep ? positions[from] : static_cast<int32_t>(position_of(rows, h, from));
      if (mass) mass[i] = mass[from] * (i < call.keep ? call.mass_factor : 1);
    }
  }
}

void keep_rows(const SelectSpace& space, const KeepCall& call, cudaStream_t stream) {
  move_rows(space, call, stream);
  move_sides(space, call, stream);
}

const int32_t* order_rows(const SelectSpace& space, const NewOrder& order, cudaStream_t) {
  auto* to = reinterpret_cast<int32_t*>(space.keys);
  for (int h = 0; h < order.heads; ++h) {
    for (int i = 0; i < order.named + order.behind; ++i) {
      const int row = i < order.named ? kept_of(space, h)[(order.begin + i) % order.rows]
                                      : order.rows + i - order.named;
      to[static_cast<size_t>(h) * space.stride + static_cast<size_t>(i)] = order.first + row;
    }
  }
  return to;
}

void fill_numbers(float* to, size_t count, float value, cudaStream_t) {
  std::fill_n(to, count, value);
}

void choose_heavy(const SelectSpace& space, const JudgedRows& rows, const HeavySizes& sizes,
                  cudaStream_t stream) {
  const auto by_mass = static_cast<int>(sizes.budget - sizes.by_key);
  if (sizes.by_mass()) {
    score_all(space, rows, [&](int h, int i) { return mass_of(rows, h, i); });
    choose_rows(space, rows.heads, rows.rows, by_mass, stream);
  }
  if (sizes.by_key == 0) return;
  score_directions(space, rows, stream);
  for (int h = 0; h < rows.heads; ++h)
    for (int i = 0; i < by_mass; ++i)
      space
          .keys[static_cast<size_t>(h) * space.stride + static_cast<size_t>(kept_of(space, h)[i])] =
          ~0u;
  choose_rows(space, rows.heads, rows.rows, static_cast<int>(sizes.budget), stream);
}

void gather_rows(const SelectSpace& space, const GatherCall& call, cudaStream_t) {
  const JudgedRows& rows = call.rows;
  for (int h = 0; h < rows.heads; ++h) {
    for (int i = 0; i < call.count; ++i) {
      const int from = kept_of(space, h)[call.first + i];
      const int64_t to = call.to.row + i;
      copy_row(row_at(call.to.k, call.to.head_stride, h, to, rows.dim),
               row_at(rows.k, rows.head_stride, h, from, rows.dim), rows.dim);
      copy_row(row_at(call.to.v, call.to.head_stride, h, to, rows.dim),
               row_at(rows.v, rows.head_stride, h, from, rows.dim), rows.dim);
      if (call.positions)
        call.positions[static_cast<size_t>(h) * call.positions_stride + static_cast<size_t>(to)] =
            static_cast<int32_t>(position_of(rows, h, from));
    }
  }
}

void leave_first(const SelectSpace& space, const JudgedRows& rows, int stay, const RowTarget& room,
                 cudaStream_t stream) {
  const int leave = rows.rows - stay;
  GatherCall call{rows, stay, leave, room};
  call.to.row = 0;
  gather_rows(space, call, stream);
  call.first = 0, call.count = stay, call.to.row = leave;
  gather_rows(space, call, stream);
  for (int h = 0; h < rows.heads; ++h) {
    copy_row(row_at(rows.k, rows.head_stride, h, 0, 0), row_at(room.k, room.head_stride, h, 0, 0),
             rows.rows * rows.dim);
    copy_row(row_at(rows.v, rows.head_stride, h, 0, 0), row_at(room.v, room.head_stride, h, 0, 0),
             rows.rows * rows.dim);
  }
}

void leave_first_sides(const SelectSpace& space, const JudgedRows& rows, int stay, cudaStream_t) {
  const int leave = rows.rows - stay;
  for (int h = 0; h < rows.heads; ++h) {
    const size_t at = static_cast<size_t>(h) * rows.side_stride;
    std::vector<int32_t> positions;
    std::vector<float> masses;
    for (int i = 0; i < rows.rows; ++i) {
      const int from = kept_of(space, h)[i < leave ? stay + i : i - leave];
      positions.push_back(static_cast<int32_t>(position_of(rows, h, from)));
      masses.push_back(rows.mass ? rows.mass[at + static_cast<size_t>(from)] : 0);
    }
    std::ranges::copy(positions, rows.positions + at);
    if (rows.mass) std::ranges::copy(masses, rows.mass + at);
  }
}

void choose_cells(const SelectSpace& space, const JudgedRows& rows, const BuzzStrides& strides,
                  cudaStream_t) {
  for (int h = 0; h < rows.heads; ++h) {
    int32_t* to = kept_of(space, h);
    for (int i = 0; i < rows.judged; i += strides.old_stride) *to++ = i;
    for (int i = rows.judged; i < rows.rows; i += strides.new_stride) {
      int best = i;
      for (int j = i + 1; strides.best && j < std::min(i + strides.new_stride, rows.rows); ++j)
        if (mass_of(rows, h, j) > mass_of(rows, h, best)) best = j;
      *to++ = best;
    }
  }
}

void weigh_cells(const JudgedRows& rows, const BuzzStrides& strides, cudaStream_t) {
  std::vector<float> weights;
  for (int i = 0; i < rows.judged; i += strides.old_stride) {
    double sum = 0;
    for (int j = i; j < std::min(i + strides.old_stride, rows.judged); ++j)
      sum += std::exp(double{rows.log_weights[j]});
    weights.push_back(static_cast<float>(std::log(sum)));
  }
  for (int i = rows.judged; i < rows.rows; i += strides.new_stride)
    weights.push_back(std::log(static_cast<float>(std::min(strides.new_stride, rows.rows - i))));
  std::ranges::copy(weights, rows.log_weights);
}

void scale_by_log(void* scaled, const StepQueries& queries, const QueryNote& note,
                  const QueryNote* at, cudaStream_t) {
  const int64_t first = at ? at->position : note.position;
  const size_t numbers = static_cast<size_t>(queries.query_heads * queries.dim);
  for (int t = 0; t < queries.tokens; ++t) {
    const auto seen = static_cast<double>(first + t + 1);
    const auto factor = static_cast<float>(std::max(1.0, std::log(seen) / std::log(512.0)));
    for (size_t i = 0; i < numbers; ++i) {
      const size_t n = static_cast<size_t>(t) * numbers + i;
      put(queries.dtype, scaled, n, number(queries.dtype, queries.q, n) * factor);
    }
  }
}

void ProtectedStore::write_positions(const PositionsCall& call) const {
  for (int h = 0; h < call.heads; ++h)
    for (int i = 0; i < call.rows; ++i)
      call.positions[static_cast<size_t>(h) * call.stride + static_cast<size_t>(i)] =
          static_cast<int32_t>(position_of(call.first + i));
}

void upload_all(std::span<const Upload> uploads, cudaStream_t) {
  for (const Upload& u : uploads) std::memcpy(u.to, u.from, u.bytes);
}

void copy_strided(std::span<const StridedCopy> copies, size_t tokens, size_t dim, cudaStream_t) {
  note_strided_copy();
  for (const StridedCopy& copy : copies) {
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t h = 0; h < static_cast<size_t>(copy.heads); ++h) {
        const auto row = [&](const StridedRows& rows) {
          return static_cast<size_t>(static_cast<ptrdiff_t>(t) * rows.token_stride +
                                     static_cast<ptrdiff_t>(h) * rows.head_stride);
        };
        const auto* wide = static_cast<const float*>(copy.from.data);
        for (size_t c = 0; c < dim; ++c) {
          const size_t from = row(copy.from) + c, to = row(copy.to) + c;
          const float x = copy.factor * (copy.from.dtype == DType::kF32
                                             ? wide[from]
                                             : number(copy.from.dtype, copy.from.data, from));
          if (copy.to.dtype == DType::kF32)
            static_cast<float*>(copy.to.data)[to] = x;
          else
            put(copy.to.dtype, copy.to.data, to, x);
        }
      }
    }
  }
}

void copy_token_rows(const TokenRowsCall& call, cudaStream_t) {
  const auto dim = static_cast<size_t>(call.dim);
  for (int h = 0; h < call.heads; ++h) {
    copy_row(row_at(call.to->k, call.to->head_stride, h, call.to->row, call.dim),
             row_at(call.k, dim, h, 0, call.dim), call.dim);
    copy_row(row_at(call.to->v, call.to->head_stride, h, call.to->row, call.dim),
             row_at(call.v, dim, h, 0, call.dim), call.dim);
  }
}

}  // namespace pith::cuda
