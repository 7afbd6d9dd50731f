// The cache on the GPU against the CPU's, from the same 16-bit rows and queries: the same rows stay
// with the same weights, and attention agrees, in chunks and token by token, for every selector
// that the GPU has.

#include "cache/cuda/device_cache.h"
#include "core/thread_pool.h"
#include "harness.h"
#include "kernels/kernels.h"

namespace pith::cuda {
namespace {

constexpr int kLayers = 2, kQueryHeads = 4, kKvHeads = 2;

CacheShape shape_of(int dim) { return {kLayers, kQueryHeads, kKvHeads, dim, {}, 1000}; }

/// One layer's numbers for a few tokens.
struct Numbers {
  std::vector<uint16_t> q, k, v;  // [T, H, D], [T, G, D]
};

/// Both caches, fed the same.
class Pair {
 public:
  Pair(const std::string& policy, int dim, DType dtype) : Pair(policy, policy, dim, dtype) {}
  Pair(const std::string& on_cpu, const std::string& policy, int dim, DType dtype)
      : dim_(static_cast<size_t>(dim)),
        dtype_(dtype),
        cpu_(context_, shape_of(dim), Policy::parse(on_cpu), kSeed, nullptr) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    gpu_ = std::make_unique<DeviceCache>(device_, shape_of(dim), Policy::parse(policy), kSeed,
                                         stream_);
  }
  ~Pair() {
    gpu_.reset();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void run_chunk(size_t tokens) {
    for (int l = 0; l < kLayers; ++l) {
      same_before_[l] = same_rows(l) == 1;
      const Numbers x = draw(tokens);
      const auto q = to_device(device_, x.q);
      DeviceArray<float> out(device_, MemoryKind::kScratch, x.q.size(), stream_);
      write_rows(gpu_->begin_chunk(l, tokens), x, tokens);
      gpu_->attend_chunk(l, out.data(), DType::kF32, q.data(), tokens);
      gpu_->end_chunk(l, tokens);
      compare(l, x, out, tokens);
    }
  }
  void run_token() {
    for (int l = 0; l < kLayers; ++l) same_before_[l] = same_rows(l) == 1;
    gpu_->begin_token();
    gpu_->upload_token();
    for (int l = 0; l < kLayers; ++l) {
      const Numbers x = draw(1);
      const auto q = to_device(device_, x.q);
      DeviceArray<float> out(device_, MemoryKind::kScratch, x.q.size(), stream_);
      RowTarget target;
      check(cudaMemcpyAsync(&target, gpu_->token_target(l), sizeof(target), cudaMemcpyDeviceToHost,
                            stream_),
            "a target");
      check(cudaStreamSynchronize(stream_), "a target");
      write_rows(target, x, 1);
      gpu_->attend_token(l, out.data(), q.data());
      compare(l, x, out, 1);
    }
    gpu_->end_token();
  }
  void end_prefill() {
    cpu_.end_prefill();
    gpu_->end_prefill();
  }
  void use_clone() { gpu_ = gpu_->clone(); }

  /// The share of rows that both hold, with equal weights.
  double same_rows() const {
    double sum = 0;
    for (int l = 0; l < kLayers; ++l) sum += same_rows(l);
    return sum / kLayers;
  }
  double same_rows(int l) const {
    size_t same = 0, all = 0;
    for (int g = 0; g < kKvHeads; ++g) {
      const pith::HeadRows a = cpu_.rows(l, g), b = gpu_->rows(l, g);
      all += std::max(a.positions.size(), b.positions.size());
      for (size_t i = 0, j = 0; i < a.positions.size() && j < b.positions.size();) {
        if (a.positions[i] == b.positions[j]) {
          same += std::abs(a.log_weights[i] - b.log_weights[j]) < 1e-4f;
          ++i, ++j;
        } else {
          ++(a.positions[i] < b.positions[j] ? i : j);
        }
      }
    }
    return all > 0 ? static_cast<double>(same) / static_cast<double>(all) : 1;
  }
  /// The largest error of attention over the same rows, and how often that was so.
  double worst() const { return worst_; }
  double compared() const { return static_cast<double>(compared_) / steps_; }
  Ledger cpu_ledger() const { return cpu_.ledger(); }
  Ledger gpu_ledger() const { return gpu_->ledger(); }
  size_t counted() const { return device_.total(); }

 private:
  static constexpr uint64_t kSeed = 7;

  Numbers draw(size_t tokens) {
    const size_t kv = tokens * kKvHeads * dim_;
    const Numbers x{normals(tokens * kQueryHeads * dim_, dtype_, draws_),
                    normals(kv, dtype_, draws_ + 1), normals(kv, dtype_, draws_ + 2)};
    draws_ += 3;
    return x;
  }
  void write_rows(const RowTarget& to, const Numbers& x, size_t tokens) {
    const size_t row = dim_ * 2;
    const auto write = [&](void* side, const std::vector<uint16_t>& from) {
      for (size_t g = 0; g < kKvHeads; ++g) {
        check(cudaMemcpy2DAsync(static_cast<char*>(side) +
                                    (g * to.head_stride + static_cast<size_t>(to.row) * dim_) * 2,
                                row, from.data() + g * dim_, kKvHeads * row, row, tokens,
                                cudaMemcpyHostToDevice, stream_),
              "rows");
      }
    };
    write(to.k, x.k);
    write(to.v, x.v);
  }
  void compare(int layer, const Numbers& x, const DeviceArray<float>& out, size_t tokens) {
    const auto q = widen(x.q, dtype_), k = widen(x.k, dtype_), v = widen(x.v, dtype_);
    std::vector<float> want(q.size()), got(q.size());
    const bool same = same_before_[layer];
    cpu_.step(layer, want.data(), q.data(), k.data(), v.data(), tokens);
    out.download(got.data(), got.size(), stream_);
    check(cudaStreamSynchronize(stream_), "attention");
    ++steps_;
    compared_ += same;
    if (same) worst_ = std::max(worst_, relative_error(got, {want.begin(), want.end()}));
  }

  size_t dim_;
  DType dtype_;
  ThreadPool pool_{1};
  MemoryCounter host_, device_;
  Context context_{pool_, host_, kernels_for()};
  KvCache cpu_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<DeviceCache> gpu_;
  uint32_t draws_ = 1;
  double worst_ = 0;
  bool same_before_[kLayers] = {};
  int steps_ = 0, compared_ = 0;
};

const char* const kPolicies[] = {"express(s=64)",
                                 "express(s=128,g=0,weight=0.8),sink=3,window=9",
                                 "express(s=32,balance=1),window=0",
                                 "uniform(budget=100)",
                                 "uniform(budget=10%,weights=false),sink=0,window=33",
                                 "knorm(budget=96,interval=40)",
                                 "keydiff(budget=77,interval=50),window=20",
                                 "snapkv(budget=96,interval=50)",
                                 "snapkv(budget=64,interval=20,queries=7,kernel=3),sink=4",
                                 "pyramidkv(budget=80,interval=30,beta=3),window=16",
                                 "tova(budget=100,interval=25)",
                                 "h2o(budget=90,interval=30)",
                                 "h2o(budget=60,interval=200,decay=0.5),sink=2,window=30",
                                 "buzz(T=100),window=40",
                                 "balancekv(b=64)",
                                 "balancekv(rate=0.125,b=16,weight=0.7),window=10",
                                 "balancekv(rate=0.5,b=128,walk=exact,balance=1),sink=0",
                                 "buzz(s=4,T=77,swap=true,localmax=false),sink=0"};

/// uniform: up to 31 rows that the CPU has dropped are still there between the GPU's selections.
bool judged_late(const std::string& policy) { return policy.starts_with("uniform"); }

// Queries and probabilities are rounded to the rows' type on the GPU. A row in a hundred may be
// another, where two scores are nearly the same.
TEST(CudaCache, HoldsTheRowsThatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for (const char* text : kPolicies) {
    for (const int dim : {64, 128}) {
      const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
      const std::string policy = std::string(text) + ",dtype=" + to_string(dtype);
      SCOPED_TRACE(policy);
      const double bound = dtype == DType::kBF16 ? 2e-2 : 3e-3;
      Pair pair(policy, dim, dtype);
      for (const size_t tokens : {130, 97, 2, 200, 64}) pair.run_chunk(tokens);
      pair.end_prefill();
      EXPECT_GE(pair.same_rows(), 0.99);
      EXPECT_LT(pair.worst(), bound);
      for (int t = 0; t < 64; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 32; ++t) pair.run_token();
      EXPECT_GE(pair.same_rows(), 0.99);
      EXPECT_LT(pair.worst(), bound);
      if (!judged_late(text)) {
        EXPECT_GE(pair.compared(), 0.7);
      }
      const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
      EXPECT_EQ(cpu.rows_kept, gpu.rows_kept);
      EXPECT_EQ(cpu.payload, gpu.payload);
      EXPECT_LE(gpu.total_bytes(), pair.counted());
    }
  }
}

/// For compute-sanitizer too.
TEST(CudaCache, SmallOnesHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"express(s=16),window=5", "uniform(budget=9),window=3",
        "keydiff(budget=11,interval=4),window=2", "knorm(budget=1,interval=1)",
        "snapkv(budget=13,interval=5),window=7", "tova(budget=6,interval=3)",
        "h2o(budget=5,interval=9,decay=0.5),window=0", "buzz(s=3,T=3),window=4",
        "balancekv(b=8),window=3", "balancekv(b=64)+int8,window=3",
        "keydiff(budget=11,interval=4)+int4,window=2", "snapkv(budget=40,interval=5)+int8,window=7",
        "h2o(budget=33,interval=9)+int4,window=0", "buzz(s=3,T=3)+int4,window=4"}) {
    SCOPED_TRACE(policy);
    Pair pair(policy, 64, DType::kF16);
    for (const size_t tokens : {3, 2, 70, 5}) pair.run_chunk(tokens);
    pair.end_prefill();
    for (int t = 0; t < 32; ++t) pair.run_token();
    if (std::string(policy).find('+') == std::string::npos) {
      EXPECT_GE(pair.same_rows(), 0.95);
    }
  }
}

TEST(CudaCache, TokensAloneHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    Pair pair(policy, 64, DType::kF16);
    for (int t = 0; t < 4 + 64 + 100 + 64; ++t) pair.run_token();
    if (judged_late(policy)) pair.end_prefill();
    EXPECT_GE(pair.same_rows(), 0.99);
    EXPECT_LT(pair.worst(), 3e-3);
    if (!judged_late(policy)) {
      EXPECT_GE(pair.compared(), 0.7);
    }
  }
}

// The GPU halves exact rows and codes those that stay for good, so that the rows are those of the
// CPU's cache without codes. Whole blocks of 32 leave the window for kivi: the sizes here are such.
TEST(CudaCache, SettledRowsAreCoded) {
  PITH_NEEDS_GPU();
  const struct {
    const char* codec;
    double bound;
  } kCases[] = {{"int8", 2e-2}, {"int4", 0.2}, {"kivi(bits=4)", 0.2}};
  for (const auto& c : kCases) {
    const std::string coded = std::string("balancekv(b=64)+") + c.codec + ",window=60";
    SCOPED_TRACE(coded);
    Pair pair("balancekv(b=64),window=60", coded, 128, DType::kF16);
    for (const size_t tokens : {128, 64, 256, 96}) pair.run_chunk(tokens);
    pair.end_prefill();
    for (int t = 0; t < 64; ++t) pair.run_token();
    pair.use_clone();
    for (int t = 0; t < 64; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.99);
    EXPECT_GE(pair.compared(), 0.02);
    EXPECT_LT(pair.worst(), c.bound);
    EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
    EXPECT_LT(pair.gpu_ledger().payload, pair.cpu_ledger().payload);
    EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
  }
}

/// Bytes by which the GPU's payload may be above the CPU's: up to 31 rows of each head are exact.
uint64_t late_bytes(int dim) { return uint64_t{31} * kLayers * kKvHeads * 4 * dim; }

// Rows that are judged again in codes. Sizes are such that both devices hold the same codes at each
// step: multiples of 32.
TEST(CudaCache, CodedRowsAreJudgedAgain) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"snapkv(budget=96,interval=64)", "pyramidkv(budget=96,interval=64,beta=1)",
        "h2o(budget=96,interval=32,decay=0.5)", "tova(budget=96,interval=32)",
        "keydiff(budget=128,interval=64)", "knorm(budget=96,interval=32)"}) {
    for (const char* codec : {"int8", "int4"}) {
      for (const int dim : {64, 128}) {
        const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
        const std::string policy =
            std::string(text) + "+" + codec + ",sink=0,window=64,dtype=" + to_string(dtype);
        SCOPED_TRACE(policy);
        Pair pair(policy, dim, dtype);
        for (const size_t tokens : {128, 96, 32, 192, 64}) pair.run_chunk(tokens);
        pair.end_prefill();
        for (const size_t tokens : {32, 128, 64}) pair.run_chunk(tokens);
        EXPECT_GE(pair.same_rows(), 0.98);
        EXPECT_GE(pair.compared(), 0.4);
        EXPECT_LT(pair.worst(), dtype == DType::kBF16 ? 2e-2 : 4e-3);
        const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
        EXPECT_EQ(cpu.rows_kept, gpu.rows_kept);
        EXPECT_EQ(cpu.payload, gpu.payload);
        EXPECT_LE(gpu.total_bytes(), pair.counted());
      }
    }
  }
}

// Any sizes, and token by token: up to 31 rows are still exact on the GPU.
TEST(CudaCache, CodedRowsOfAnyNumber) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"snapkv(budget=101,interval=50),window=30", "pyramidkv(budget=80,interval=30,beta=3)",
        "h2o(budget=90,interval=31),sink=3,window=20", "tova(budget=75,interval=25)",
        "keydiff(budget=77,interval=50),sink=2", "knorm(budget=97,interval=1),window=9",
        "buzz(T=100),window=40", "uniform(budget=100,weights=false)"}) {
    for (const char* codec : {"int8", "int4"}) {
      for (const bool prompt : {true, false}) {
        std::string policy(text);
        policy.insert(std::min(policy.find(")") + 1, policy.size()), std::string("+") + codec);
        SCOPED_TRACE(policy + (prompt ? "" : ", token by token"));
        const bool fine = std::string(codec) == "int8";
        Pair pair(policy, prompt ? 128 : 64, DType::kF16);
        if (prompt) {
          for (const size_t tokens : {130, 97, 2, 200, 64}) pair.run_chunk(tokens);
          pair.end_prefill();
        }
        for (int t = 0; t < (prompt ? 40 : 240); ++t) pair.run_token();
        pair.use_clone();
        for (int t = 0; t < 60; ++t) pair.run_token();
        EXPECT_GE(pair.same_rows(), fine ? 0.95 : 0.8);
        if (pair.compared() > 0) {
          EXPECT_LT(pair.worst(), fine ? 2e-2 : 0.2);
        }
        const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
        if (!judged_late(policy)) {
          EXPECT_EQ(cpu.rows_kept, gpu.rows_kept);
          EXPECT_GE(gpu.payload, cpu.payload);
          EXPECT_LE(gpu.payload, cpu.payload + late_bytes(prompt ? 128 : 64));
        }
        EXPECT_LE(gpu.total_bytes(), pair.counted());
      }
    }
  }
}

}  // namespace
}  // namespace pith::cuda
