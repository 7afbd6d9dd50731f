// Coded rows on the GPU: the coders against the definition of each codec, and decode attention over
// codes against double precision attention over the rows that the codes stand for.

#include "harness.h"
#include "kernels/cuda/grouped_layout.h"
#include "methods/qjl/qjl_cuda.h"
#include "methods/quant/quant_cuda.h"

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
  bool channel_keys, minima;
};
constexpr Kind kKinds[] = {{GroupedCodec::kKivi2, 2, true, true},
                           {GroupedCodec::kKivi4, 4, true, true},
                           {GroupedCodec::kInt4, 4, false, false},
                           {GroupedCodec::kInt8, 8, false, false}};

Coded code(const Kind& kind, bool keys, DType dtype, const DeviceArray<uint16_t>& x, int heads,
           int rows, int dim, MemoryCounter& counter) {
  const GroupedBytes bytes = grouped_bytes(kind.codec, dim);
  const size_t blocks = static_cast<size_t>(heads) * rows / 32;
  Coded out{{counter, MemoryKind::kPayload, blocks * bytes.key_codes / 4, nullptr},
            {counter, MemoryKind::kMetadata, blocks * bytes.key_side / 2, nullptr}};
  CodeRowsCall call{dtype,
                    x.data(),
                    static_cast<size_t>(rows) * dim,
                    static_cast<size_t>(dim),
                    heads,
                    rows,
                    dim,
                    out.codes.data(),
                    out.side.data()};
  (keys ? code_grouped_keys : code_grouped_values)(kind.codec, call, nullptr);
  return out;
}

/// Rows [heads * rows, D] that the blocks stand for; scales [.., same shape] beside them.
struct Decoded {
  std::vector<float> x, scale;
};
Decoded decode(const Kind& kind, bool keys, const Coded& coded, int heads, int rows, int dim) {
  const auto words = to_host(coded.codes);
  const auto side = to_host(coded.side);
  const size_t block_words = static_cast<size_t>(dim) * kind.bits, blocks = heads * rows / 32;
  const bool channels = keys && kind.channel_keys;
  const size_t groups = dim;  // scales a block: one a channel, or 32 rows times D / 32
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
          const auto want = widen(x, dtype);
          for (size_t i = 0; i < x.size(); ++i) {
            // The f16 scale and minimum are off by 2^-11 of themselves at most.
            const double slack = 1e-3 * (1 << kind.bits) * decoded.scale[i] + 2e-3;
            ASSERT_NEAR(decoded.x[i], want[i], 0.5 * decoded.scale[i] + slack);
            ASSERT_LT(decoded.scale[i], 9.0 / ((1 << kind.bits) - 2));
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
          const auto k_rows = decode(kind, true, k_coded, heads, padded, dim).x;
          const auto v_rows = decode(kind, false, v_coded, heads, padded, dim).x;
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
          decode_grouped(
              kind.codec,
              {shape, dtype, q_device.data(), nullptr, span_device.data(), out.data(), nullptr},
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

/// An orthogonal-block or plain Gaussian projection is the caller's; the tests need normals only.
std::vector<float> projection(int rows, int dim, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> draw;
  std::vector<float> s(static_cast<size_t>(rows) * dim);
  // Rounded as the coder rounds it, so that signs are the same but where a sum is near zero.
  for (float& x : s) x = f16_to_float(float_to_f16(draw(rng)));
  return s;
}

/// Signs and norms as defined, from the f32 rows: [rows][m + 128] of +-1, norms [rows][2].
struct Sketched {
  std::vector<int8_t> signs;
  std::vector<double> sums;  // that the signs are of
  std::vector<float> norms;
};
Sketched sketch(const std::vector<float>& k, const std::vector<float>& s, int rows, int dim,
                int m) {
  const int count = m + kQjlOutlierSketch;
  Sketched out{std::vector<int8_t>(static_cast<size_t>(rows) * count),
               std::vector<double>(static_cast<size_t>(rows) * count),
               std::vector<float>(rows * 2)};
  for (int block = 0; block < rows / 32; ++block) {
    std::vector<std::pair<double, int>> energy(dim);
    for (int d = 0; d < dim; ++d) {
      energy[d] = {0, d};
      for (int t = block * 32; t < block * 32 + 32; ++t) {
        energy[d].first -= static_cast<double>(k[t * dim + d]) * k[t * dim + d];
      }
    }
    std::sort(energy.begin(), energy.end());
    std::vector<bool> outlier(dim);
    for (int i = 0; i < kQjlOutliers; ++i) outlier[energy[i].second] = true;
    for (int t = block * 32; t < block * 32 + 32; ++t) {
      double norm[2] = {};
      for (int d = 0; d < dim; ++d) {
        norm[outlier[d]] += static_cast<double>(k[t * dim + d]) * k[t * dim + d];
      }
      for (int i = 0; i < 2; ++i) out.norms[t * 2 + i] = static_cast<float>(std::sqrt(norm[i]));
      for (int i = 0; i < count; ++i) {
        double sum = 0;
        for (int d = 0; d < dim; ++d) {
          if (outlier[d] == (i >= m)) sum += static_cast<double>(s[i * dim + d]) * k[t * dim + d];
        }
        out.sums[static_cast<size_t>(t) * count + i] = sum;
        out.signs[static_cast<size_t>(t) * count + i] = sum < 0 ? -1 : 1;
      }
    }
  }
  return out;
}

TEST(CudaQjl, CodesAreSignsAndNormsAndScoresAreTheEstimator) {
  PITH_NEEDS_GPU();
  MemoryCounter counter;
  const DType dtype = DType::kF16;
  for (const int m : {256, 512}) {
    for (const int dim : {64, 128}) {
      const int heads = 2, group = 4, rows = 320, used = 310, count = m + kQjlOutlierSketch;
      const float unbias = std::sqrt(static_cast<float>(M_PI) / 2);
      const auto s = projection(count, dim, 31);
      const auto s_device = to_device(counter, s);
      const QjlProjection p{s_device.data(), m, dim, unbias};
      auto k = normals(static_cast<size_t>(heads) * rows * dim, dtype, 32);
      for (size_t i = 0; i < k.size(); i += dim) k[i + 5] = float_to_f16(9);  // an outlier channel
      const auto v = normals(k.size(), dtype, 33);
      const auto k_device = to_device(counter, k), v_device = to_device(counter, v);
      const GroupedBytes bytes = qjl_bytes(m, dim);
      const size_t blocks = heads * rows / 32;
      Coded coded{{counter, MemoryKind::kPayload, blocks * bytes.key_codes / 4, nullptr},
                  {counter, MemoryKind::kMetadata, blocks * bytes.key_side / 2, nullptr}};
      code_qjl_keys(
          p,
          {dtype, k_device.data(), static_cast<size_t>(rows) * dim, static_cast<size_t>(dim), heads,
           rows, dim, coded.codes.data(), coded.side.data()},
          nullptr);
      const auto v_coded = code(kKinds[0], false, dtype, v_device, heads, rows, dim, counter);
      const auto v_rows = decode(kKinds[0], false, v_coded, heads, rows, dim).x;

      const auto words = to_host(coded.codes);
      const auto norms = to_host(coded.side);
      const auto k_wide = widen(k, dtype);
      const auto want = sketch(k_wide, s, heads * rows, dim, m);
      std::vector<float> signs(static_cast<size_t>(heads) * rows * count);  // scaled by the norms
      const size_t block_words = bytes.key_codes / 4;
      for (int t = 0; t < heads * rows; ++t) {
        const size_t block = t / 32;
        const int row = t % 32;
        for (int i = 0; i < count; ++i) {
          const bool out = i >= m;
          CodePlace place =
              out ? layout::key(row, i - m, kQjlOutlierSketch, 1) : layout::key(row, i, m, 1);
          if (out) place.word += m;  // 32 rows of m bits are m words
          const int bit = code_at(words, block_words, block, place, 1) ? 1 : -1;
          const double sum = want.sums[static_cast<size_t>(t) * count + i];
          if (std::abs(sum) > 1e-3) {
            ASSERT_EQ(bit, want.signs[static_cast<size_t>(t) * count + i])
                << "row " << t << ", bit " << i << ", sum " << sum;
          }
          const float norm = f16_to_float(norms[block * 64 + row % 8 * 8 + out * 4 + row / 8]);
          ASSERT_NEAR(norm, want.norms[t * 2 + out] * unbias / (out ? kQjlOutlierSketch : m),
                      1e-3 * norm);
          signs[static_cast<size_t>(t) * count + i] = norm * bit;
        }
      }

      // Attention with scores <S q, norm * signs>: keys and queries of dimension m + 128.
      const auto q = normals(static_cast<size_t>(heads) * group * dim, dtype, 34);
      const auto q_wide = widen(q, dtype);
      std::vector<float> sq(static_cast<size_t>(heads) * group * count);
      for (size_t h = 0; h < static_cast<size_t>(heads) * group; ++h) {
        for (int i = 0; i < count; ++i) {
          double x = 0;
          for (int d = 0; d < dim; ++d)
            x += static_cast<double>(s[i * dim + d]) * q_wide[h * dim + d];
          sq[h * count + i] = static_cast<float>(x);
        }
      }
      std::vector<DeviceSpan> spans(heads);
      for (int h = 0; h < heads; ++h) {
        const size_t block = static_cast<size_t>(h) * rows / 32;
        DeviceSpan& d = spans[h];
        d.coded = 1;
        d.rows = used;
        d.keys = coded.codes.data() + block * bytes.key_codes / 4;
        d.key_side = coded.side.data() + block * bytes.key_side / 2;
        d.values = v_coded.codes.data() + block * bytes.value_codes / 4;
        d.value_side = v_coded.side.data() + block * bytes.value_side / 2;
      }
      const DecodeShape shape{1, heads * group, heads, dim, 1, 0};
      const auto q_device = to_device(counter, q);
      const auto span_device = to_device(counter, spans);
      const auto out = to_device(counter, std::vector<float>(q.size(), NAN));
      DeviceArray<float> sketched(counter, MemoryKind::kScratch, sq.size(), nullptr);
      DecodeScratch scratch(counter, shape, nullptr);
      decode_qjl(p,
                 {shape, dtype, q_device.data(), nullptr, span_device.data(), out.data(), nullptr},
                 sketched.data(), scratch, nullptr);
      const auto got = to_host(out), got_sketch = to_host(sketched);
      for (size_t i = 0; i < sq.size(); ++i) ASSERT_NEAR(got_sketch[i], sq[i], 1e-3);
      for (int head = 0; head < heads * group; ++head) {
        const int kv = head / group;
        // The oracle's score is <sketch, signs>; values are of dimension D, so scores go in as
        // log-weights of rows with zero keys.
        OracleSpan span{std::vector<float>(used * dim),
                        {v_rows.begin() + static_cast<size_t>(kv) * rows * dim,
                         v_rows.begin() + (static_cast<size_t>(kv) * rows + used) * dim},
                        std::vector<float>(used)};
        for (int t = 0; t < used; ++t) {
          double x = 0;
          for (int i = 0; i < count; ++i) {
            x += static_cast<double>(sq[static_cast<size_t>(head) * count + i]) *
                 signs[(static_cast<size_t>(kv) * rows + t) * count + i];
          }
          span.log_weights[t] = static_cast<float>(x / std::sqrt(dim));
        }
        std::vector<double> expected;
        oracle(expected, q_wide.data() + head * dim, dim, 0, {&span});
        ASSERT_LT(
            relative_error({got.begin() + head * dim, got.begin() + (head + 1) * dim}, expected),
            5e-3)
            << "m " << m << ", dim " << dim << ", head " << head;
      }
    }
  }
}

TEST(CudaQjl, RefusesSizesThatItDoesNotKnow) {
  const float row = 0;
  EXPECT_ANY_THROW((QjlProjection{&row, 100, 128, 1}.check()));
  EXPECT_ANY_THROW((QjlProjection{&row, 256, 96, 1}.check()));
  EXPECT_NO_THROW((QjlProjection{&row, 512, 64, 1}.check()));
}

}  // namespace
}  // namespace pith::cuda
