// Integer codecs: codes against their definition written here, compaction bit for bit, the ledger
// to the byte, and what rotation is for.

#include "methods/int_options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/dtype.h"
#include "pith/error.h"
#include "policy/registry.h"
#include "rows/cpu/group_code.h"
#include "rows/cpu/rotated_rows.h"

namespace pith {
namespace {

struct Kind {
  std::string name;
  std::map<std::string, std::string> parameters;
  Side side;
  int bits;
  bool channels, minima;
};

std::vector<Kind> kinds() {
  return {{"int8", {}, Side::kKeys, 8, false, false},
          {"int4", {}, Side::kValues, 4, false, false},
          {"kivi", {{"bits", "2"}}, Side::kKeys, 2, true, true},
          {"kivi", {{"bits", "4"}}, Side::kKeys, 4, true, true},
          {"kivi", {{"bits", "2"}}, Side::kValues, 2, false, true},
          {"kivi", {{"bits", "4"}}, Side::kValues, 4, false, true}};
}

std::vector<float> normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random) + 0.5f;
  return x;
}

class Store {
 public:
  Store(const Kind& kind, size_t dim, const std::string& isa = "", bool rotate = false)
      : context_{pool_, memory_, kernels_for(isa)} {
    const CodecRow& row = codec_row(kind.name);
    PolicyPart part{kind.name, kind.parameters};
    if (rotate) part.parameters["hadamard"] = "true";
    codec_ = row.make(row.read(part), kind.side);
    RowsRequest request;
    request.side = kind.side;
    request.dim = dim;
    rows_ = codec_->make_rows(context_, request);
  }
  CodedRows& rows() { return *rows_; }
  const Codec& codec() const { return *codec_; }
  MemoryCounter& memory() { return memory_; }
  std::vector<float> decode() const {
    std::vector<float> x(rows_->rows() * rows_->dim());
    rows_->decode(x.data(), 0, rows_->rows());
    return x;
  }

 private:
  ThreadPool pool_{1};
  MemoryCounter memory_{0, /*poison=*/true};
  Context context_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<CodedRows> rows_;
};

/// The group of numbers (row, channel) belongs to, as the codec is defined.
std::vector<float> group_of(const Kind& kind, const std::vector<float>& x, size_t dim, size_t row,
                            size_t channel) {
  std::vector<float> group;
  if (kind.channels) {
    for (size_t t = row / 32 * 32; t < row / 32 * 32 + 32; ++t) {
      group.push_back(f16_to_f32(f32_to_f16(x[t * dim + channel])));
    }
  } else {
    const size_t first = channel / 32 * 32;
    for (size_t c = first; c < std::min(dim, first + 32); ++c) group.push_back(x[row * dim + c]);
  }
  return group;
}

TEST(Quant, CodesAreTheNearestOfTheDefinition) {
  for (const Kind& kind : kinds()) {
    for (size_t dim : {16, 48, 64, 80, 96, 128, 256}) {
      for (std::string_view isa : available_isas()) {
        const size_t count = 64;
        const auto x = normals(count * dim, 5);
        Store store(kind, dim, std::string(isa));
        store.rows().append(x.data(), dim, count);
        const auto got = store.decode();
        const auto levels = static_cast<float>((1 << kind.bits) - 1);
        for (size_t t = 0; t < count; ++t) {
          for (size_t c = 0; c < dim; ++c) {
            const auto group = group_of(kind, x, dim, t, c);
            const auto [least, most] = std::minmax_element(group.begin(), group.end());
            const float half = static_cast<float>(1 << (kind.bits - 1));
            const float raw =
                kind.minima ? (*most - *least) / levels : std::max(-*least, *most) / (half - 1);
            const float scale = f16_to_f32(f32_to_f16(raw));
            const float low = kind.minima ? f16_to_f32(f32_to_f16(*least)) : -scale * half;
            const float own =
                kind.channels ? f16_to_f32(f32_to_f16(x[t * dim + c])) : x[t * dim + c];
            const float code =
                std::min(levels, std::max(0.0f, std::nearbyint((own - low) * (1 / scale))));
            ASSERT_NEAR(got[t * dim + c], low + scale * code, 1e-5 + 1e-6 * std::abs(own))
                << kind.name << kind.bits << " " << isa << " d" << dim << " row " << t << " " << c;
          }
        }
      }
    }
  }
}

TEST(Quant, EveryCodeOfEveryWidthComesBack) {
  for (int bits : {2, 4, 8}) {
    for (size_t dim : {16, 32, 48, 64}) {
      const size_t count = size_t{1} << bits;
      std::vector<uint8_t> codes(count * dim * static_cast<size_t>(bits) / 8);
      for (size_t t = 0; t < count; ++t)
        for (size_t c = 0; c < dim; ++c)
          put_code(codes.data() + t * dim * static_cast<size_t>(bits) / 8, dim, bits, c,
                   static_cast<uint32_t>((t + 5 * c) % count));
      std::vector<float> one(dim, 1), zero(dim, 0), out(count * dim);
      for (std::string_view isa : available_isas()) {
        kernels_for(isa).unpack_channels(out.data(), {codes.data(), bits, dim}, one.data(),
                                         zero.data(), count);
        for (size_t t = 0; t < count; ++t)
          for (size_t c = 0; c < dim; ++c)
            ASSERT_EQ(out[t * dim + c], static_cast<float>((t + 5 * c) % count)) << isa;
      }
    }
  }
}

TEST(Quant, CompactionMovesCodesAndChangesNone) {
  std::mt19937 random(3);
  for (const Kind& kind : kinds()) {
    for (bool rotate : {false, true}) {
      const size_t dim = 80;
      Store store(kind, dim, "", rotate);
      std::vector<float> expected;
      for (int round = 0; round < 12; ++round) {
        const size_t count = random() % 90;
        const auto x = normals(count * dim, 100 + static_cast<uint32_t>(round));
        // A row that waits for its group is not coded yet: fill groups before comparing.
        store.rows().append(x.data(), dim, count);
        const size_t filler = 32 - store.rows().rows() % 32;
        const auto y = normals(filler * dim, 300 + static_cast<uint32_t>(round));
        store.rows().append(y.data(), dim, filler);
        const auto before = store.decode();
        const auto copy = store.rows().clone();
        std::vector<uint32_t> kept;
        for (uint32_t t = 0; t < store.rows().rows(); ++t)
          if (random() % 3 != 0) kept.push_back(t);
        if (round == 7) kept.clear();
        store.rows().keep(kept);
        ASSERT_EQ(store.rows().rows(), kept.size());
        const auto after = store.decode();
        for (size_t i = 0; i < kept.size(); ++i)
          for (size_t c = 0; c < dim; ++c)
            ASSERT_EQ(after[i * dim + c], before[kept[i] * dim + c]) << kind.name << " row " << i;
        std::vector<float> cloned(before.size());
        copy->decode(cloned.data(), 0, copy->rows());
        ASSERT_EQ(cloned, before) << "a clone is its own";
        ASSERT_EQ(store.memory().total(), store.rows().allocated_bytes() + copy->allocated_bytes());
      }
    }
  }
}

TEST(Quant, ArrivalDoesNotChangeCodes) {
  for (const Kind& kind : kinds()) {
    const size_t dim = 64, count = 200;
    const auto x = normals(count * dim, 8);
    Store whole(kind, dim), single(kind, dim);
    whole.rows().append(x.data(), dim, count);
    for (size_t t = 0; t < count; ++t) single.rows().append(x.data() + t * dim, dim, 1);
    EXPECT_EQ(whole.decode(), single.decode()) << kind.name << kind.bits;
  }
}

TEST(Quant, BytesAreWhatTheFormatSays) {
  for (const Kind& kind : kinds()) {
    for (size_t dim : {64, 96, 128}) {
      Store store(kind, dim);
      const size_t count = 320;
      const auto x = normals(count * dim, 9);
      store.rows().append(x.data(), dim, count);
      const double bytes =
          static_cast<double>(store.rows().payload_bytes() + store.rows().metadata_bytes());
      EXPECT_DOUBLE_EQ(bytes, count * store.codec().bytes_per_row(dim));
      EXPECT_EQ(store.rows().payload_bytes(), count * dim * static_cast<size_t>(kind.bits) / 8);
      const double bits = 8 * bytes / static_cast<double>(count * dim);
      const double side = (kind.minima ? 32.0 : 16.0) / 32;
      EXPECT_NEAR(bits, kind.bits + side + (kind.channels ? 1.0 / static_cast<double>(dim) : 0),
                  1e-9);
    }
  }
}

TEST(Quant, ScoresAndSumsAreThoseOfTheDecodedRows) {
  for (const Kind& kind : kinds()) {
    for (bool rotate : {false, true}) {
      const size_t dim = 96, count = 77, queries = 4;
      Store store(kind, dim, "", rotate);
      const auto x = normals(count * dim, 12), q = normals(queries * dim, 13);
      store.rows().append(x.data(), dim, count);
      const auto rows = store.decode();
      if (kind.side == Side::kKeys) {
        std::vector<float> prepared(store.rows().prepared_size(queries)), out(queries * count);
        if (!prepared.empty()) store.rows().prepare(prepared.data(), q.data(), queries);
        store.rows().scores(out.data(), count, q.data(), prepared.data(), queries, 0, count, 0.5f);
        for (size_t m = 0; m < queries; ++m)
          for (size_t t = 0; t < count; ++t) {
            double score = 0;
            for (size_t c = 0; c < dim; ++c) score += double{q[m * dim + c]} * rows[t * dim + c];
            ASSERT_NEAR(out[m * count + t], 0.5 * score, 2e-3) << kind.name << rotate;
          }
        continue;
      }
      std::vector<float> p(queries * count), sums(queries * store.rows().accumulator_width());
      for (size_t i = 0; i < p.size(); ++i) p[i] = static_cast<float>(i % 7) * 0.1f;
      store.rows().accumulate(sums.data(), p.data(), count, queries, 0, count);
      std::vector<float> finished(queries * dim);
      store.rows().finish(finished.data(), sums.data(), queries);
      for (size_t m = 0; m < queries; ++m) {
        for (size_t c = 0; c < dim; ++c) {
          double sum = 0;
          for (size_t t = 0; t < count; ++t) sum += double{p[m * count + t]} * rows[t * dim + c];
          ASSERT_NEAR(finished[m * dim + c], sum, 3e-3) << kind.name << rotate;
        }
      }
    }
  }
}

TEST(Quant, TheTransformIsItsOwnInverseAndKeepsNorms) {
  for (std::string_view isa : available_isas()) {
    for (size_t dim : {16, 48, 64, 80, 96, 128, 256}) {
      const auto x = normals(3 * dim, 4);
      auto y = x;
      rotate_hadamard(kernels_for(isa), y.data(), dim, 3);
      double before = 0, after = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        before += double{x[i]} * x[i];
        after += double{y[i]} * y[i];
      }
      EXPECT_NEAR(after, before, 1e-4 * before);
      EXPECT_GT(std::abs(x[1] - y[1]) + std::abs(x[2] - y[2]), 1e-3) << "nothing was done";
      rotate_hadamard(kernels_for(isa), y.data(), dim, 3);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-5);
    }
  }
}

TEST(Quant, RotationHelpsWhereOneChannelStandsOut) {
  const size_t dim = 64, count = 128;
  auto x = normals(count * dim, 6);
  for (size_t t = 0; t < count; ++t) x[t * dim + 7] *= 40;
  const Kind kind = kinds()[1];  // int4: one scale for 32 channels
  double errors[2] = {};
  for (int rotate = 0; rotate < 2; ++rotate) {
    Store store(kind, dim, "", rotate == 1);
    store.rows().append(x.data(), dim, count);
    const auto got = store.decode();
    for (size_t i = 0; i < x.size(); ++i)
      if (i % dim != 7) errors[rotate] += double{got[i] - x[i]} * (got[i] - x[i]);
  }
  EXPECT_LT(errors[1], 0.5 * errors[0]);
}

TEST(Quant, WhatCannotBeCodedIsRefused) {
  for (const Kind& kind : kinds()) {
    for (float bad : {NAN, INFINITY, 1e30f}) {
      Store store(kind, 64);
      auto x = normals(64 * 64, 2);
      x[70] = bad;
      EXPECT_THROW(store.rows().append(x.data(), 64, 64), Error) << kind.name << " " << bad;
    }
  }
  const CodecRow& row = codec_row("kivi");
  EXPECT_THROW(row.make(row.read({"kivi", {{"bits", "3"}}}), Side::kKeys), Error);
}

}  // namespace
}  // namespace pith
