// Coded rows on the GPU: the coders against the definition of each codec, and decode attention over
// codes against double precision attention over the rows that the codes stand for.

#include <cmath>

#include "harness.h"
#include "kernels/cuda/grouped_layout.h"
#include "rows/cuda/grouped_code.h"

namespace pith::cuda {
namespace {

uint32_t code_at(const std::vector<uint32_t>& words, size_t block_words, size_t block,
                 CodePlace place, int bits) {
  return words[block * block_words + place.word] >> place.bit & ((1u << bits) - 1);
}

struct Coded {
  DeviceArray<uint32_t> codes;
  DeviceArray<uint16_t> side;
};

struct Kind {
  GroupedCodec codec;
  int bits;
  bool channel_keys, minima, rotated = false;
};
constexpr Kind kKinds[] = {{GroupedCodec::kKivi2, 2, true, true},
                           {GroupedCodec::kKivi4, 4, true, true},
                           {GroupedCodec::kInt4, 4, false, false},
                           {GroupedCodec::kInt8, 8, false, false},
                           {GroupedCodec::kRotatedInt4, 4, false, false, true},
                           {GroupedCodec::kRotatedInt8, 8, false, false, true}};

Coded code(const Kind& kind, bool keys, DType dtype, const DeviceArray<uint16_t>& x, int heads,
           int rows, int dim, MemoryCounter& counter) {
  const GroupedBytes bytes = grouped_bytes(kind.codec, dim);
  const size_t blocks = static_cast<size_t>(heads) * rows / 32;
  Coded out{{counter, MemoryKind::kPayload, blocks * bytes.key_codes / 4, nullptr},
            {counter, MemoryKind::kMetadata, blocks * bytes.key_side / 2, nullptr}};
  const CodeBatch batch{dtype, heads, rows, dim};
  const CodeJob job = batch.whole(x.data(), out.codes.data(), out.side.data());
  const std::span<const CodeJob> one{&job, 1}, none;
  code_grouped(kind.codec, batch, keys ? one : none, keys ? none : one, nullptr);
  return out;
}

/// Rows [heads * rows, D] that the blocks stand for, still rotated if codes are of rotated rows;
/// scales [.., same shape] beside them.
struct Decoded {
  std::vector<float> x, scale;
};
Decoded decode(const Kind& kind, bool keys, const Coded& coded, int heads, int rows, int dim) {
  const auto words = to_host(coded.codes);
  const auto side = to_host(coded.side);
  const size_t block_words = static_cast<size_t>(dim) * kind.bits, blocks = heads * rows / 32;
  const bool channels = keys && kind.channel_keys;
  const size_t groups = dim;  // scales a block: one per channel, or 32 rows times D / 32
  const size_t block_side = groups * (kind.minima ? 2 : 1);
  Decoded out{std::vector<float>(blocks * 32 * dim), std::vector<float>(blocks * 32 * dim)};
  for (size_t b = 0; b < blocks; ++b) {
    for (int row = 0; row < 32; ++row) {
      for (int d = 0; d < dim; ++d) {
        const CodePlace place =
            keys ? layout::key(row, d, dim, kind.bits) : layout::value(row, d, dim, kind.bits);
        const int at = channels ? layout::key_channel_scale(d)
                       : keys   ? layout::key_token_scale(row, d / 32)
                                : layout::value_scale(row, d / 32, dim);
        const float scale = f16_to_float(side[b * block_side + at]);
        const float low = kind.minima ? f16_to_float(side[b * block_side + groups + at])
                                      : -scale * (1 << (kind.bits - 1));
        const size_t i = (b * 32 + row) * dim + d;
        out.x[i] = low + scale * code_at(words, block_words, b, place, kind.bits);
        out.scale[i] = scale;
      }
    }
  }
  return out;
}

TEST(CudaGrouped, LayoutsHaveAPlaceForEveryCodeAndScale) {
  for (const int dim : {64, 128}) {
    for (const int bits : {1, 2, 4, 8}) {
      if (dim * bits < 128) continue;  // lanes hold four words at least
      std::vector<int> keys(dim * bits * 32), values(keys.size());
      for (int row = 0; row < 32; ++row) {
        for (int d = 0; d < dim; ++d) {
          const CodePlace k = layout::key(row, d, dim, bits), v = layout::value(row, d, dim, bits);
          for (int b = 0; b < bits; ++b) {
            ++keys.at(k.word * 32 + k.bit + b);
            ++values.at(v.word * 32 + v.bit + b);
          }
        }
      }
      EXPECT_EQ(keys, std::vector<int>(keys.size(), 1)) << dim << ", " << bits;
      EXPECT_EQ(values, std::vector<int>(keys.size(), 1)) << dim << ", " << bits;
    }
    std::vector<int> channel(dim), token(dim), value(dim);
    for (int d = 0; d < dim; ++d) ++channel.at(layout::key_channel_scale(d));
    for (int row = 0; row < 32; ++row) {
      for (int g = 0; g < dim / 32; ++g) {
        ++token.at(layout::key_token_scale(row, g));
        ++value.at(layout::value_scale(row, g, dim));
      }
    }
    EXPECT_EQ(channel, std::vector<int>(dim, 1));
    EXPECT_EQ(token, std::vector<int>(dim, 1));
    EXPECT_EQ(value, std::vector<int>(dim, 1));
  }
}

TEST(CudaGrouped, CodesAreWithinHalfAScale) {
  PITH_NEEDS_GPU();
  MemoryCounter counter;
  for (const Kind& kind : kKinds) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      for (const int dim : {64, 128}) {
        const int heads = 3, rows = 96;
        const auto x = normals(static_cast<size_t>(heads) * rows * dim, dtype, 11);
        const auto device = to_device(counter, x);
        for (const bool keys : {true, false}) {
          const auto coded = code(kind, keys, dtype, device, heads, rows, dim, counter);
          const auto decoded = decode(kind, keys, coded, heads, rows, dim);
          const auto want = kind.rotated ? rotated(widen(x, dtype), dim) : widen(x, dtype);
          for (size_t i = 0; i < x.size(); ++i) {
            // The f16 scale and minimum are off by 2^-11 of themselves at most.
            const double slack = 1e-3 * (1 << kind.bits) * decoded.scale[i] + 2e-3;
            ASSERT_NEAR(decoded.x[i], want[i], 0.5 * decoded.scale[i] + slack);
            ASSERT_LT(decoded.scale[i], 10.0 / ((1 << kind.bits) - 2));
          }
        }
      }
    }
  }
}

std::vector<float> rows_of(const Decoded& from, int row, int count, int dim) {
  const auto first = from.x.begin() + static_cast<ptrdiff_t>(row) * dim;
  return {first, first + static_cast<ptrdiff_t>(count) * dim};
}

// Rows are moved as they are: nothing is rounded again.
TEST(CudaGrouped, RowsMoveBetweenBlocks) {
  PITH_NEEDS_GPU();
  MemoryCounter counter;
  const int heads = 2, rows = 160, kept_rows = 75, padded = 96;
  for (const Kind& kind : kKinds) {
    if (kind.minima) continue;
    for (const int dim : {64, 128}) {
      const auto size = static_cast<size_t>(heads) * rows * dim;
      const auto k = to_device(counter, normals(size, DType::kF16, 31));
      const auto v = to_device(counter, normals(size, DType::kF16, 32));
      const auto keys = code(kind, true, DType::kF16, k, heads, rows, dim, counter);
      const auto values = code(kind, false, DType::kF16, v, heads, rows, dim, counter);
      const GroupedBytes bytes = grouped_bytes(kind.codec, dim);
      const auto empty = [&](size_t block_bytes, auto number) {
        const size_t count = heads * padded / 32 * block_bytes / sizeof(number);
        return to_device(counter, std::vector<decltype(number)>(count, decltype(number)(0x5a5a)));
      };
      const Coded to_keys{empty(bytes.key_codes, uint32_t{}), empty(bytes.key_side, uint16_t{})};
      const Coded to_values{empty(bytes.value_codes, uint32_t{}),
                            empty(bytes.value_side, uint16_t{})};
      std::vector<int32_t> kept;
      for (int h = 0; h < heads; ++h) {
        for (int i = 0; i < kept_rows; ++i) kept.push_back(2 * i + (i + h) % 2);
      }
      const auto kept_device = to_device(counter, kept);
      MoveCodesCall call;
      call.from = {keys.codes.data(), keys.side.data(), values.codes.data(), values.side.data(),
                   rows / 32};
      call.to = {to_keys.codes.data(), to_keys.side.data(), to_values.codes.data(),
                 to_values.side.data(), padded / 32};
      call.kept = kept_device.data();
      call.kept_stride = kept_rows;
      call.heads = heads;
      call.head_dim = dim;
      call.count = kept_rows;
      move_coded_rows(kind.bits, {&call, 1}, nullptr);
      // Rows 0, ..., 9 of all blocks behind them, within a block.
      call.kept = nullptr;
      call.first = kept_rows;
      call.count = 10;
      move_coded_rows(kind.bits, {&call, 1}, nullptr);
      for (const bool side : {true, false}) {
        const auto from = decode(kind, side, side ? keys : values, heads, rows, dim);
        const auto to = decode(kind, side, side ? to_keys : to_values, heads, padded, dim);
        for (int h = 0; h < heads; ++h) {
          for (int i = 0; i < padded; ++i) {
            const int row = i < kept_rows ? kept[h * kept_rows + i] : i - kept_rows;
            const auto want = i < kept_rows + 10 ? rows_of(from, h * rows + row, 1, dim)
                                                 : std::vector<float>(dim, 0);
            ASSERT_EQ(rows_of(to, h * padded + i, 1, dim), want)
                << kind.bits << " bits, dim " << dim << ", head " << h << ", row " << i;
          }
        }
      }
    }
  }
}

TEST(CudaGrouped, AttentionReadsCodesBetweenDenseRows) {
  PITH_NEEDS_GPU();
  MemoryCounter counter;
  const DType dtype = DType::kF16;
  for (const Kind& kind : kKinds) {
    for (const int dim : {64, 128}) {
      for (const int group : {1, 4, 8, 12}) {
        for (const bool dense_ends : {false, true}) {
          const std::vector<int> rows = {300, 0, 32, 1001};  // per KV head; blocks are padded
          const int heads = static_cast<int>(rows.size()), padded = 1024;
          const GroupedBytes bytes = grouped_bytes(kind.codec, dim);
          const auto k = normals(static_cast<size_t>(heads) * padded * dim, dtype, 21);
          const auto v = normals(k.size(), dtype, 22);
          const auto k_device = to_device(counter, k), v_device = to_device(counter, v);
          const auto k_coded = code(kind, true, dtype, k_device, heads, padded, dim, counter);
          const auto v_coded = code(kind, false, dtype, v_device, heads, padded, dim, counter);
          auto k_rows = decode(kind, true, k_coded, heads, padded, dim).x;
          auto v_rows = decode(kind, false, v_coded, heads, padded, dim).x;
          if (kind.rotated) {
            k_rows = rotated(std::move(k_rows), dim);
            v_rows = rotated(std::move(v_rows), dim);
          }
          const auto k_dense = widen(k, dtype), v_dense = widen(v, dtype);

          std::vector<DeviceSpan> spans;
          std::vector<OracleSpan> oracles;
          const int per_head = dense_ends ? 3 : 1;
          for (int h = 0; h < heads; ++h) {
            const size_t first = static_cast<size_t>(h) * padded * dim;
            for (int s = 0; s < per_head; ++s) {
              const bool coded = per_head == 1 || s == 1;
              DeviceSpan d;
              d.coded = coded;
              d.rows = coded ? rows[h] : s == 0 ? 4 : 50;
              d.row_stride = dim;
              if (coded) {
                const size_t block = static_cast<size_t>(h) * padded / 32;
                d.keys = k_coded.codes.data() + block * bytes.key_codes / 4;
                d.key_side = k_coded.side.data() + block * bytes.key_side / 2;
                d.values = v_coded.codes.data() + block * bytes.value_codes / 4;
                d.value_side = v_coded.side.data() + block * bytes.value_side / 2;
              } else {
                d.keys = k_device.data() + first;
                d.values = v_device.data() + first;
              }
              d.log_weight = coded ? 0.5f : 0.0f;
              spans.push_back(d);
              const auto& from_k = coded ? k_rows : k_dense;
              const auto& from_v = coded ? v_rows : v_dense;
              const size_t n = static_cast<size_t>(d.rows) * dim;
              oracles.push_back({{from_k.begin() + first, from_k.begin() + first + n},
                                 {from_v.begin() + first, from_v.begin() + first + n},
                                 std::vector<float>(d.rows, d.log_weight)});
            }
          }
          const DecodeShape shape{1, heads * group, heads, dim, per_head, 0};
          const auto q = normals(static_cast<size_t>(heads) * group * dim, dtype, 23);
          const auto q_device = to_device(counter, q);
          const auto span_device = to_device(counter, spans);
          const auto out = to_device(counter, std::vector<float>(q.size(), NAN));
          DecodeScratch scratch(counter, shape, nullptr);
          decode_grouped(kind.codec,
                         {{q_device.data(), span_device.data(), out.data(), nullptr}, shape, dtype},
                         scratch, nullptr);
          const auto got = to_host(out), queries = widen(q, dtype);
          for (int head = 0; head < heads * group; ++head) {
            std::vector<const OracleSpan*> mine;
            for (int s = 0; s < per_head; ++s) {
              mine.push_back(&oracles[head / group * per_head + s]);
            }
            std::vector<double> want;
            oracle(want, queries.data() + head * dim, dim, 1 / std::sqrt(dim), mine);
            ASSERT_LT(
                relative_error({got.begin() + head * dim, got.begin() + (head + 1) * dim}, want),
                4e-3)
                << kind.bits << " bits, " << dim << ", group " << group << ", head " << head
                << (dense_ends ? ", with dense ends" : "");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pith::cuda
