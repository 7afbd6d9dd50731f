// QJL keys on the GPU: bits, norms, channels and what is kept of outlying channels against their
// definitions, rows back from codes, and decode attention against double precision over the linear
// estimate of the keys, which is the estimator with masked queries.

#include "methods/codecs/qjl/qjl_cuda.h"

#include <algorithm>
#include <cmath>

#include "harness.h"
#include "kernels/cuda/grouped_layout.h"
#include "rows/cuda/grouped_code.h"

namespace pith::cuda {
namespace {

struct Case {
  int m = 256, m_out = 128, outliers = 8, dim = 128;
  DType dtype = DType::kF16;
  bool lists = false;  // of channels, for each row
};

constexpr int kHeads = 2, kRows = 320;

/// Normal rows, rounded as the coder rounds them, so that signs differ only where a sum is near 0.
std::vector<float> projection(const Case& c, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> draw;
  std::vector<float> s(static_cast<size_t>(c.m + c.m_out) * c.dim);
  for (float& x : s) x = f16_to_float(float_to_f16(bf16_to_float(float_to_bf16(draw(rng)))));
  return s;
}

/// Keys [T, D] after coding, by the definition.
struct Sketched {
  std::vector<double> sums;     // [T, m + m_out] that the signs are of
  std::vector<double> norms;    // [T, 2]
  std::vector<int> channels;    // [T / 32, outliers] in order of norm
  std::vector<float> estimate;  // [T, D] c |k| / m S^T sign(S k), each part in its channels
  std::vector<double> apart;    // [T, outliers] u of qjl_cuda.h
  std::vector<bool> sure;       // [T] no sum is near 0
};
Sketched sketch(const Case& c, const std::vector<float>& k, const std::vector<float>& s,
                double unbias) {
  const int rows = static_cast<int>(k.size()) / c.dim, count = c.m + c.m_out;
  Sketched out;
  out.estimate.resize(k.size());
  for (int t = 0; t < rows; ++t) {
    if (t % 32 == 0) {
      std::vector<std::pair<double, int>> energy(c.dim);
      for (int d = 0; d < c.dim; ++d) {
        energy[d].second = d;
        for (int i = t; i < t + 32; ++i)
          energy[d].first -= double{k[i * c.dim + d]} * k[i * c.dim + d];
      }
      std::sort(energy.begin(), energy.end());
      for (int i = 0; i < c.outliers; ++i) out.channels.push_back(energy[i].second);
    }
    const int* list = out.channels.data() + t / 32 * c.outliers;
    const auto outlying = [&](int d) {
      return std::find(list, list + c.outliers, d) != list + c.outliers;
    };
    double norm[2] = {};
    for (int d = 0; d < c.dim; ++d)
      norm[outlying(d)] += double{k[t * c.dim + d]} * k[t * c.dim + d];
    bool sure = true;
    std::vector<double> turned[2] = {std::vector<double>(c.dim), std::vector<double>(c.dim)};
    for (int i = 0; i < count; ++i) {
      double sum = 0;
      for (int d = 0; d < c.dim; ++d) {
        if (outlying(d) == (i >= c.m)) sum += double{s[i * c.dim + d]} * k[t * c.dim + d];
      }
      out.sums.push_back(sum);
      sure &= std::abs(sum) > 1e-3;
      for (int d = 0; d < c.dim; ++d)
        turned[i >= c.m][d] += sum < 0 ? -s[i * c.dim + d] : s[i * c.dim + d];
    }
    out.sure.push_back(sure);
    double factor[2];
    for (int i = 0; i < 2; ++i) {
      out.norms.push_back(std::sqrt(norm[i]) * unbias / (i ? c.m_out : c.m));
      factor[i] = out.norms.back();
    }
    for (int d = 0; d < c.dim; ++d) {
      const bool far = outlying(d);
      out.estimate[t * c.dim + d] = static_cast<float>(factor[far] * turned[far][d]);
    }
    for (int i = 0; i < c.outliers; ++i) {
      out.apart.push_back(factor[1] * turned[1][list[i]] - factor[0] * turned[0][list[i]]);
    }
  }
  return out;
}

/// Keys of both heads, coded, beside what they should be.
struct Coded {
  MemoryCounter counter;
  Case c;
  std::vector<float> s;
  DeviceArray<float> s_device;
  DeviceArray<uint16_t> s_half, k, v;
  DeviceArray<uint8_t> codes, side, value_codes, value_side;
  QjlProjection projection_;
  Sketched want;
  std::vector<float> v_rows;

  explicit Coded(const Case& which) : c(which), s(projection(which, 31)) {
    s_device = to_device(counter, s);
    std::vector<uint16_t> half(s.size());
    for (size_t i = 0; i < s.size(); ++i) half[i] = float_to_f16(s[i]);
    s_half = to_device(counter, half);
    const float unbias = std::sqrt(static_cast<float>(M_PI) / 2);
    projection_ = {s_device.data(), s_half.data(), c.m,    c.m_out,
                   c.outliers,      c.dim,         unbias, c.lists};
    auto keys = normals(static_cast<size_t>(kHeads) * kRows * c.dim, c.dtype, 32);
    for (size_t i = 0; i < keys.size(); i += c.dim) keys[i + 5] = from_float(c.dtype, 9);
    const auto values = normals(keys.size(), c.dtype, 33);
    k = to_device(counter, keys);
    v = to_device(counter, values);
    const GroupedBytes bytes = qjl_bytes(c.m, c.dim, c.lists);
    const size_t blocks = kHeads * kRows / 32;
    codes = to_device(counter, std::vector<uint8_t>(blocks * bytes.key_codes, uint8_t{0xAB}));
    side = to_device(counter, std::vector<uint8_t>(blocks * bytes.key_side, uint8_t{0xAB}));
    value_codes = to_device(counter, std::vector<uint8_t>(blocks * bytes.value_codes));
    value_side = to_device(counter, std::vector<uint8_t>(blocks * bytes.value_side));
    const CodeBatch batch{c.dtype, kHeads, kRows, c.dim};
    code_qjl_keys(projection_, batch, batch.whole(k.data(), codes.data(), side.data()), nullptr);
    const CodeJob job = batch.whole(v.data(), value_codes.data(), value_side.data());
    code_grouped(GroupedCodec::kKivi2, batch, {}, {&job, 1}, nullptr);
    v_rows = unpacked(value_codes.data(), value_side.data(), false);
    want = sketch(c, widen(keys, c.dtype), s, unbias);
  }

  std::vector<float> unpacked(const void* from, const void* beside, bool keys) {
    const auto out = to_device(counter, std::vector<uint16_t>(k.size(), 0x7FFF));
    const UnpackRowsCall call{from,        beside,     kRows / 32,
                              kHeads,      kRows / 32, c.dim,
                              DType::kF16, out.data(), static_cast<size_t>(kRows) * c.dim};
    keys ? unpack_qjl_keys(projection_, call, nullptr)
         : unpack_grouped_values(GroupedCodec::kKivi2, {&call, 1}, nullptr);
    return widen(to_host(out), DType::kF16);
  }
};

constexpr Case kCases[] = {{},
                           {.m = 512},
                           {.m = 128, .m_out = 64, .dim = 64},
                           {.m = 256, .dim = 64},
                           {.m_out = 48, .outliers = 3},
                           {.dtype = DType::kBF16},
                           {.lists = true},
                           {.m = 512, .outliers = 5, .dtype = DType::kBF16, .lists = true},
                           {.m = 128, .m_out = 64, .dim = 64, .lists = true}};

uint16_t half_at(const std::vector<uint8_t>& bytes, size_t at) {
  return static_cast<uint16_t>(bytes[at] | bytes[at + 1] << 8);
}

void check_codes(const Coded& coded) {
  const Case& c = coded.c;
  const auto codes = to_host(coded.codes), side = to_host(coded.side);
  const GroupedBytes bytes = qjl_bytes(c.m, c.dim, c.lists);
  int unsure = 0;
  for (int t = 0; t < kHeads * kRows; ++t) {
    const int row = t % 32;
    const uint8_t* block = codes.data() + t / 32 * bytes.key_codes;
    for (int i = 0; i < c.m; ++i) {
      const CodePlace place = layout::key(row, i, c.m, 1);
      uint32_t word;
      std::memcpy(&word, block + place.word * 4, 4);
      const double sum = coded.want.sums[static_cast<size_t>(t) * (c.m + c.m_out) + i];
      if (std::abs(sum) > 1e-3) {
        ASSERT_EQ(word >> place.bit & 1, sum > 0) << "row " << t << ", bit " << i;
      }
    }
    const size_t beside = t / 32 * bytes.key_side;
    const float norm = f16_to_float(half_at(side, beside + (row % 8 * 4 + row / 8) * 2));
    ASSERT_NEAR(norm, coded.want.norms[t * 2], 1e-3 * norm);
    unsure += !coded.want.sure[t];
    for (int i = 0; i < kQjlOutliers; ++i) {
      const std::vector<uint8_t> numbers(block + c.m * 4, block + bytes.key_codes);
      // [lane 4 (row % 8) + i / 2][row / 8][i % 2]
      const float u =
          f16_to_float(half_at(numbers, ((row % 8 * 4 + i / 2) * 4 + row / 8) * 4 + i % 2 * 2));
      if (i >= c.outliers) {
        ASSERT_EQ(u, 0) << "row " << t << ", place " << i;
        continue;
      }
      // [lane 4 (row % 8) + i / 2][row / 8][i % 2], or one list
      const size_t at = c.lists ? ((row % 8 * 4 + i / 2) * 4 + row / 8) * 2 + i % 2 : i;
      ASSERT_EQ(side[beside + 64 + at], coded.want.channels[t / 32 * c.outliers + i]);
      if (coded.want.sure[t]) {
        ASSERT_NEAR(u, coded.want.apart[t * c.outliers + i], 8e-3)
            << "row " << t << ", place " << i;
      }
    }
  }
  EXPECT_LT(unsure, kHeads * kRows / 2);
}

TEST(CudaQjl, CodesAreSignsAndNormsAndWhatIsKeptOfOutlyingChannels) {
  PITH_NEEDS_GPU();
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << "m " << c.m << ", m_out " << c.m_out << ", dim " << c.dim);
    check_codes(Coded(c));
  }
}

TEST(CudaQjl, RowsComeBackAsTheLinearEstimate) {
  PITH_NEEDS_GPU();
  for (const Case& c : kCases) {
    Coded coded(c);
    const auto got = coded.unpacked(coded.codes.data(), coded.side.data(), true);
    for (size_t i = 0; i < got.size(); ++i) {
      if (!coded.want.sure[i / c.dim]) continue;
      ASSERT_NEAR(got[i], coded.want.estimate[i], 8e-3 + 2e-3 * std::abs(got[i]))
          << "m " << c.m << ", dim " << c.dim << ", row " << i / c.dim << ", channel " << i % c.dim;
    }
  }
}

TEST(CudaQjl, ScoresAreTheEstimatorOfMaskedQueries) {
  PITH_NEEDS_GPU();
  constexpr int kUsed = 310;
  for (const Case& c : kCases) {
    Coded coded(c);
    for (const int group : {1, 4, 8}) {
      const GroupedBytes bytes = qjl_bytes(c.m, c.dim, c.lists);
      std::vector<DeviceSpan> spans;
      for (int h = 0; h < kHeads; ++h) {
        const size_t block = static_cast<size_t>(h) * kRows / 32;
        DeviceSpan d;
        d.coded = 1;
        d.rows = kUsed;
        d.keys = coded.codes.data() + block * bytes.key_codes;
        d.key_side = coded.side.data() + block * bytes.key_side;
        d.values = coded.value_codes.data() + block * bytes.value_codes;
        d.value_side = coded.value_side.data() + block * bytes.value_side;
        spans.push_back(d);
        DeviceSpan dense;  // after the codes, exact rows
        dense.rows = 7;
        dense.row_stride = c.dim;
        dense.keys = coded.k.data();
        dense.values = coded.v.data();
        spans.push_back(dense);
      }
      const DecodeShape shape{1, kHeads * group, kHeads, c.dim, 2, 0};
      const auto q = normals(static_cast<size_t>(kHeads) * group * c.dim, c.dtype, 34);
      const auto q_device = to_device(coded.counter, q);
      const auto span_device = to_device(coded.counter, spans);
      const auto out = to_device(coded.counter, std::vector<float>(q.size(), NAN));
      DecodeScratch scratch(coded.counter, shape, nullptr);
      decode_qjl(coded.projection_,
                 {{q_device.data(), span_device.data(), out.data(), nullptr}, shape, c.dtype},
                 scratch, nullptr);
      const auto got = to_host(out), queries = widen(q, c.dtype);
      const auto k = widen(to_host(coded.k), c.dtype), v = widen(to_host(coded.v), c.dtype);
      for (int head = 0; head < kHeads * group; ++head) {
        const auto part = [&](const std::vector<float>& x, int first, int rows) {
          return std::vector<float>(x.begin() + first * c.dim, x.begin() + (first + rows) * c.dim);
        };
        const int first = head / group * kRows;
        const OracleSpan codes{part(coded.want.estimate, first, kUsed),
                               part(coded.v_rows, first, kUsed), std::vector<float>(kUsed)};
        const OracleSpan dense{part(k, 0, 7), part(v, 0, 7), std::vector<float>(7)};
        std::vector<double> expected;
        oracle(expected, queries.data() + head * c.dim, c.dim, 1 / std::sqrt(c.dim),
               {&codes, &dense});
        EXPECT_LT(relative_error({got.begin() + head * c.dim, got.begin() + (head + 1) * c.dim},
                                 expected),
                  c.dtype == DType::kBF16 ? 1.5e-2 : 8e-3)
            << "m " << c.m << ", dim " << c.dim << ", group " << group << ", head " << head;
      }
    }
  }
}

// Rows of any block go to any place as they are, and those before them stay.
TEST(CudaQjl, RowsThatNameTheirChannelsMove) {
  PITH_NEEDS_GPU();
  for (const Case& c : kCases) {
    if (!c.lists) continue;
    Coded coded(c);
    const auto keys = coded.unpacked(coded.codes.data(), coded.side.data(), true);
    const GroupedBytes bytes = qjl_bytes(c.m, c.dim, true);
    const size_t blocks = kHeads * kRows / 32;
    const auto zeros = [&](size_t of_block) {
      return to_device(coded.counter, std::vector<uint8_t>(blocks * of_block));
    };
    const auto key_codes = zeros(bytes.key_codes), key_side = zeros(bytes.key_side);
    const auto value_codes = zeros(bytes.value_codes), value_side = zeros(bytes.value_side);
    const auto move = [&](const MoveCodesCall& rows) {
      move_qjl_keys(coded.projection_, rows, nullptr);
      move_kivi2_values(rows, nullptr);
    };
    MoveCodesCall call;
    const size_t stride = kRows / 32;
    call.from = {coded.codes.data(), coded.side.data(), coded.value_codes.data(),
                 coded.value_side.data(), stride};
    call.to = {key_codes.data(), key_side.data(), value_codes.data(), value_side.data(), stride};
    call.heads = kHeads;
    call.head_dim = c.dim;
    constexpr int kFirst = 45, kMoved = 130;
    call.count = kFirst;  // whole: rows as they stand
    move(call);
    std::mt19937 rng(71);
    std::vector<int32_t> kept(kHeads * kMoved);
    for (int32_t& row : kept) row = static_cast<int32_t>(rng() % kRows);
    const auto kept_device = to_device(coded.counter, kept);
    call.kept = kept_device.data();
    call.kept_stride = kMoved;
    call.first = kFirst;
    call.count = kMoved;
    move(call);
    const auto moved = coded.unpacked(key_codes.data(), key_side.data(), true);
    const auto moved_values = coded.unpacked(value_codes.data(), value_side.data(), false);
    const auto dim = static_cast<size_t>(c.dim);
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kFirst + kMoved; ++i) {
        const int source = i < kFirst ? i : kept[h * kMoved + i - kFirst];
        const size_t from = (h * kRows + source) * dim, to = (h * kRows + i) * dim;
        for (size_t d = 0; d < dim; ++d) {
          ASSERT_EQ(moved[to + d], keys[from + d]) << "head " << h << ", row " << i;
          ASSERT_EQ(moved_values[to + d], coded.v_rows[from + d]) << "head " << h << ", row " << i;
        }
      }
    }
  }
}

TEST(CudaQjl, MassIsThatOfTheEstimate) {
  PITH_NEEDS_GPU();
  constexpr int kUsed = 310, kDense = 7, kSink = 3, kAll = kUsed + kDense;
  for (const Case& c : kCases) {
    if (!c.lists) continue;
    Coded coded(c);
    for (const int group : {1, 3, 6}) {
      const int heads = kHeads * group;
      const auto q = normals(static_cast<size_t>(heads) * c.dim, c.dtype, 35);
      const auto queries = widen(q, c.dtype), k = widen(to_host(coded.k), c.dtype);
      std::vector<float> log_sums(heads);
      for (int h = 0; h < heads; ++h) log_sums[h] = 5.0f + 0.1f * static_cast<float>(h);
      std::vector<double> want(kHeads * kAll);
      for (int h = 0; h < heads; ++h) {
        const auto add = [&](const float* key, int at) {
          double score = 0;
          for (int d = 0; d < c.dim; ++d) score += double{key[d]} * queries[h * c.dim + d];
          want[h / group * kAll + at] += std::exp(score / std::sqrt(c.dim) - log_sums[h]);
        };
        const int first = h / group * kRows;
        for (int i = 0; i < kUsed; ++i) {
          add(coded.want.estimate.data() + (first + i) * c.dim, kSink + i);
        }
        for (int i = 0; i < kDense; ++i) {
          add(k.data() + (first + i) * c.dim, i < kSink ? i : i + kUsed);
        }
      }
      const auto mass = to_device(coded.counter, std::vector<float>(want.size(), 0.5f));
      MassTarget target;
      target.keys = coded.k.data();
      target.mass = mass.data();
      target.head_stride = static_cast<size_t>(kRows) * c.dim;
      target.stride = kAll;
      target.rows = kDense;
      target.known = 200;
      target.codes = coded.codes.data();
      target.code_side = coded.side.data();
      target.block_stride = kRows / 32;
      target.coded_from = kSink;
      target.coded = kUsed;
      const auto target_device = to_device(coded.counter, std::vector{target});
      const auto q_device = to_device(coded.counter, q);
      const auto log_sum = to_device(coded.counter, log_sums);
      add_qjl_mass(coded.projection_,
                   {{heads, kHeads, c.dim, c.dtype}, q_device.data(), log_sum.data()},
                   target_device.data(), nullptr);
      for (size_t i = 0; i < want.size(); ++i) {
        if (static_cast<int>(i) % kAll < target.known) want[i] += 0.5;
      }
      EXPECT_LT(relative_error(to_host(mass), want), 1e-2)
          << "m " << c.m << ", dim " << c.dim << ", group " << group;
    }
  }
}

TEST(CudaQjl, RefusesSizesThatItDoesNotKnow) {
  const float row = 0;
  EXPECT_ANY_THROW((QjlProjection{&row, &row, 100, 128, 8, 128, 1}.check()));
  EXPECT_ANY_THROW((QjlProjection{&row, &row, 256, 128, 8, 96, 1}.check()));
  EXPECT_ANY_THROW((QjlProjection{&row, &row, 256, 128, 9, 128, 1}.check()));
  EXPECT_ANY_THROW((QjlProjection{&row, &row, 256, 144, 8, 128, 1}.check()));
  EXPECT_NO_THROW((QjlProjection{&row, &row, 128, 64, 8, 64, 1}.check()));
}

}  // namespace
}  // namespace pith::cuda
