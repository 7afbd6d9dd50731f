// Rows that share scales, means or products with their neighbours under selectors that move them
// alone: each row names the record of what its group shares, and keeps its position if its keys are
// stored before RoPE. Bits are those of the rows as they were coded; memory stays bounded.

#include <cmath>
#include <memory>

#include "cache_pair.h"
#include "methods/registry_cuda.h"
#include "policy/registry.h"
#include "rows/cuda/coded_store.h"

namespace pith::cuda {
namespace {

constexpr int kHeads = 3;

std::vector<double> frequencies(size_t dim) {
  std::vector<double> x(dim / 2);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::pow(10000.0, -2.0 * i / dim);
  return x;
}

/// A body of rows in codes, and what each of its rows was when it was coded.
class Body {
 public:
  Body(const std::string& codec, size_t dim) : dim_(dim), frequencies_(frequencies(dim)) {
    const PolicyPart part = *Policy::parse("exact+" + codec).rules.front().key_codec;
    const CodecRow& row = codec_row(part.name);
    auto alone = find_device_codec(row.info.name)
                     ->make(row.read(part))
                     ->with_rows_alone(static_cast<int>(dim));
    const TableSite site{&counter_, nullptr, static_cast<int>(dim), kHeads, 0, 3, 0, &frequencies_};
    if (auto own = alone->with_tables(site)) alone = own;
    StoreSite place;
    place.memory = &counter_;
    place.dtype = DType::kF16;
    place.heads = kHeads;
    place.dim = dim;
    place.codec = alone;
    body_ = std::make_unique<CodedStore>(alone, place);
    want_.resize(kHeads);
  }

  void append(size_t rows) {
    const size_t n = kHeads * rows * dim_;
    const auto k = to_device(counter_, normals(n, DType::kF16, seed_++));
    const auto v = to_device(counter_, normals(n, DType::kF16, seed_++));
    const size_t before = body_->rows();
    body_->append({{k.data(), v.data(), rows * dim_, 0}, rows, position_});
    position_ += static_cast<int64_t>(rows);
    const auto now = unpack();
    for (int g = 0; g < kHeads; ++g) {
      for (size_t i = before; i < before + rows; ++i) want_[g].push_back(now[g][i]);
    }
  }
  /// Of the rows from `first` on those stay that `stays` says, another set in each head.
  template <class F>
  void keep(size_t first, const F& stays) {
    std::vector<std::vector<int32_t>> kept(kHeads);
    size_t count = body_->rows();
    for (int g = 0; g < kHeads; ++g) {
      for (size_t i = first; i < body_->rows(); ++i) {
        if (stays(g, i)) kept[g].push_back(static_cast<int32_t>(i));
      }
      count = std::min(count, kept[g].size());
    }
    std::vector<int32_t> all;
    for (int g = 0; g < kHeads; ++g) {
      kept[g].resize(count);
      all.insert(all.end(), kept[g].begin(), kept[g].end());
      std::vector<Row> rows(want_[g].begin(), want_[g].begin() + static_cast<ptrdiff_t>(first));
      for (const int32_t i : kept[g]) rows.push_back(want_[g][static_cast<size_t>(i)]);
      want_[g] = rows;
    }
    const auto device = to_device(counter_, all);
    body_->blocks().keep_from(first, device.data(), count, count);
    check(cudaStreamSynchronize(nullptr), "kept rows");
  }
  void expect_same() const {
    const auto now = unpack();
    for (int g = 0; g < kHeads; ++g) EXPECT_EQ(now[g], want_[g]) << "head " << g;
  }
  void use_clone() { body_ = std::make_unique<CodedStore>(*body_); }
  size_t rows() const { return body_->rows(); }
  size_t metadata() const {
    Ledger ledger;
    body_->add_to(ledger);
    return ledger.metadata + ledger.slack;
  }

 private:
  using Row = std::vector<uint16_t>;  // its key, then its value

  std::vector<std::vector<Row>> unpack() const {
    const size_t blocks = (body_->rows() + 31) / 32, stride = blocks * 32 * dim_;
    const DeviceArray<uint16_t> k(counter_, MemoryKind::kScratch, kHeads * stride, nullptr);
    const DeviceArray<uint16_t> v(counter_, MemoryKind::kScratch, kHeads * stride, nullptr);
    body_->blocks().calls().unpack({k.data(), v.data(), stride, 0}, {0, blocks, DType::kF16});
    const auto keys = to_host(k), values = to_host(v);
    std::vector<std::vector<Row>> rows(kHeads);
    for (size_t g = 0; g < kHeads; ++g) {
      for (size_t i = 0; i < body_->rows(); ++i) {
        const auto at = static_cast<ptrdiff_t>(g * stride + i * dim_);
        Row row(keys.begin() + at, keys.begin() + at + static_cast<ptrdiff_t>(dim_));
        row.insert(row.end(), values.begin() + at,
                   values.begin() + at + static_cast<ptrdiff_t>(dim_));
        rows[g].push_back(row);
      }
    }
    return rows;
  }

  size_t dim_;
  std::vector<double> frequencies_;
  mutable MemoryCounter counter_;
  std::unique_ptr<CodedStore> body_;
  std::vector<std::vector<Row>> want_;  // [G][rows]
  uint32_t seed_ = 1;
  int64_t position_ = 0;
};

const char* const kCodecs[] = {"kivi(bits=2)",
                               "kivi(bits=4)",
                               "gear(bits=4,rank=2,outliers=3,rows=64)",
                               "gear(bits=2,rank=0,outliers=2)",
                               "kvquant(bits=3,calibrate=128)",
                               "csr(online=64,collect=128)",
                               "csr(online=96,collect=96,s=6,chunks=2,solver=omp)",
                               "csr(online=64,collect=128,s=6,pair_bits=16)",
                               "int4(center=32)",
                               "turboquant(bits=3,center=128)",
                               "qjl",
                               "int4(hadamard=true,center=100,pre_rope=true)",
                               "kivi(bits=4,center=128,pre_rope=true)",
                               "kivi(bits=4,hadamard=true,center=64)"};

// Rows are moved again and again, their groups lose rows and whole groups go; new ones are coded
// behind an odd number of rows.
TEST(CudaNamedRows, MoveBitForBit) {
  PITH_NEEDS_GPU();
  for (const char* codec : kCodecs) {
    for (const size_t dim : {64, 128}) {
      SCOPED_TRACE(std::string(codec) + ", head_dim " + std::to_string(dim));
      Body body(codec, dim);
      body.append(256);
      body.expect_same();
      body.keep(0, [](int g, size_t i) { return (i * 7 + static_cast<size_t>(g)) % 3 > 0; });
      body.expect_same();
      body.append(128);
      body.expect_same();
      body.keep(21, [](int g, size_t i) { return i > 60 && (i + static_cast<size_t>(g)) % 5 > 1; });
      body.expect_same();
      body.use_clone();
      for (int round = 0; round < 12; ++round) {
        body.append(128);
        body.keep(0, [](int g, size_t i) { return (i * 5 + static_cast<size_t>(g)) % 8 < 5; });
        body.expect_same();
      }
      body.keep(0, [](int, size_t i) { return i == 9; });
      body.append(128);
      body.expect_same();
    }
  }
}

// Records that no row names are given back: a body of as many rows takes as much, however long.
TEST(CudaNamedRows, MemoryIsBounded) {
  PITH_NEEDS_GPU();
  for (const char* codec : {"kivi(bits=2)", "gear(rows=64)", "int8(center=128)"}) {
    SCOPED_TRACE(codec);
    Body body(codec, 64);
    size_t most = 0;
    for (int round = 0; round < 60; ++round) {
      body.append(128);
      if (body.rows() > 256) {
        const size_t drop = body.rows() - 256;
        body.keep(0, [&](int, size_t i) { return i >= drop; });
      }
      if (round < 20) most = std::max(most, body.metadata());
    }
    EXPECT_EQ(body.rows(), 256u);
    EXPECT_LE(body.metadata(), most);
    body.expect_same();
  }
}

// Against the CPU, whose rows name their groups too. Rows leave the window 32 at a time on both.
TEST(CudaNamedRows, HoldTheRowsThatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"express(heavy=0,s=64),sink=0,window=64", "uniform(budget=100)",
        "knorm(budget=130,interval=512)", "keydiff(budget=137,interval=512),sink=0,window=33",
        "snapkv(budget=140,interval=512)", "h2o(budget=150,interval=512),window=50",
        "tova(budget=130,interval=512)", "buzz(T=130,weights=true),window=30",
        "expected_attention(budget=130,interval=512)",
        "uniform(budget=60,heavy=80,heavy_interval=48,heavy_queries=16)",
        "balancekv(b=32,heavy=96,heavy_interval=64,heavy_queries=20)",
        "express(s=64,heavy=60,heavy_interval=64,heavy_queries=12)"}) {
    for (const char* codec :
         {"kivi(bits=4)", "gear(bits=4,rank=2,rows=32)", "int4(center=32)",
          "kvquant(bits=4,calibrate=96)", "int4(hadamard=true,center=96,pre_rope=true)",
          "k:turboquant(bits=4)+v:gear(bits=4,rows=32)"}) {
      const std::string policy = over(text, codec);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, 64, DType::kF16);
      expect_groups_held(pair, text);
    }
  }
}

// Groups of more than 32 rows leave the window together; sizes are such that the CPU has coded the
// same rows after each chunk.
TEST(CudaNamedRows, LargerGroupsUnderSelectors) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"knorm(budget=192),sink=0,window=64", "h2o(budget=256),sink=0,window=64",
        "express(heavy=0,s=64),sink=0,window=64", "snapkv(budget=256),sink=0,window=64",
        "express(s=64,heavy=256),sink=0,window=64"}) {
    for (const char* codec :
         {"turboquant(bits=4,center=128)", "qjl(residual=4)", "gear(bits=4,rows=128)"}) {
      const std::string policy = over(text, codec);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, 128, DType::kF16);
      for (const size_t tokens : {64 + 128, 256, 128, 384}) {
        pair.run_chunk(tokens);
        EXPECT_GE(pair.same_rows(), 0.7);
      }
      pair.end_prefill();
      for (int t = 0; t < 140; ++t) pair.run_token();
      EXPECT_GT(pair.compared(), 0);
      EXPECT_LT(pair.worst(), 0.25);
      EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
    }
  }
}

// Rows that settle are selected while they are exact: those of a cache without codes.
TEST(CudaNamedRows, LargerGroupsOfSettledRows) {
  PITH_NEEDS_GPU();
  for (const char* codec :
       {"turboquant(bits=4,center=128)", "gear(bits=4,rows=128)", "int8(center=256)",
        "kvquant(bits=4,calibrate=96)", "k:kvquant(bits=4,calibrate=96)+v:gear(bits=4,rows=64)",
        "turboquant(bits=4,center=70,pre_rope=true)"}) {
    const std::string text = "balancekv(b=64,heavy=0),sink=0,window=64";
    SCOPED_TRACE(codec);
    if (left_out()) continue;
    Pair pair(text, over(text, codec), 128, DType::kF16);
    for (const size_t tokens : {192, 256, 128, 384}) pair.run_chunk(tokens);
    pair.end_prefill();
    for (int t = 0; t < 140; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.99);
    EXPECT_GT(pair.compared(), 0);
    EXPECT_GT(pair.worst(), 1e-3);  // codes
    EXPECT_LT(pair.worst(), 0.25);
    EXPECT_LT(pair.gpu_ledger().payload, pair.cpu_ledger().payload);
    EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
  }
}

// Coresets over codes whose tables are made of the first rows, which wait until then; of heavy rows
// where there are some.
TEST(CudaNamedRows, CoresetsWaitForTables) {
  PITH_NEEDS_GPU();
  for (const char* codec : {"csr(rope=post)", "csr", "kvquant(bits=4)",
                            "kvquant(bits=4,calibrate=96)", "int8(center=128,pre_rope=true)"}) {
    for (const auto& [text, chunks] : {std::pair{"express(heavy=0,s=64)", true},
                                       {"express(heavy=0,s=64)", false},
                                       {"express(s=64,heavy=300)", true},
                                       {"express(s=64,heavy=300)", false}}) {
      const std::string policy = over(std::string(text) + ",sink=2,window=40", codec);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, 64, DType::kF16);
      size_t tokens = 0;
      const auto expect_all = [&] {
        for (int g = 0; g < kKvHeads; ++g) {
          EXPECT_NEAR(pair.weight(1, g), static_cast<double>(tokens), 1e-3 * tokens);
        }
      };
      if (chunks) {
        for (const size_t chunk : {100, 30, 250, 60, 200}) {
          pair.run_chunk(chunk);
          tokens += chunk;
          expect_all();
        }
        pair.end_prefill();
      }
      for (int t = 0; t < 340; ++t, ++tokens) {
        pair.run_token();
        if (t == 200) pair.use_clone();
      }
      expect_all();
      EXPECT_GT(pair.compared(), 0);
      EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
      EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
    }
  }
}

// For compute-sanitizer too.
TEST(CudaNamedRows, SmallOnes) {
  PITH_NEEDS_GPU();
  for (const char* codec :
       {"kivi(bits=2)", "gear(bits=4,rows=64,outliers=1)", "kvquant(calibrate=32)",
        "turboquant(bits=2,center=32)", "turboquant(bits=2,center=32,pre_rope=true)"}) {
    Body body(codec, 64);
    for (int round = 0; round < 3; ++round) {
      body.append(128);
      body.keep(3, [](int g, size_t i) { return (i + static_cast<size_t>(g)) % 3 == 0; });
    }
    body.expect_same();
    if (left_out()) continue;
    Pair pair(over("h2o(budget=40),sink=1,window=3", codec), 64, DType::kF16);
    for (const size_t tokens : {131, 33}) pair.run_chunk(tokens);
    for (int t = 0; t < 3; ++t) pair.run_token();
    EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
  }
}

}  // namespace
}  // namespace pith::cuda
