#pragma once
// The CPU's cache and the GPU's, fed the same 16-bit rows and queries.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cache_bytes.h"
#include "core/thread_pool.h"
#include "harness.h"
#include "kernels/cuda/uploads.h"
#include "kernels/kernels.h"
#include "kernels/rope.h"
#include "pair_shape.h"
#include "row_oracle.h"

namespace pith::cuda {

/// Both caches, fed the same.
class Pair {
 public:
  Pair(const std::string& policy, int dim, DType dtype, const std::vector<int64_t>& sliding = {})
      : Pair(policy, policy, dim, dtype, sliding) {}
  Pair(const std::string& on_cpu, const std::string& policy, int dim, DType dtype,
       const std::vector<int64_t>& sliding = {})
      : dim_(static_cast<size_t>(dim)),
        dtype_(dtype),
        sliding_(sliding),
        rope_(dim_, 10000),
        policy_(policy),
        one_policy_(on_cpu == policy),
        structured_(policy.starts_with("expected")),
        cpu_(context_, shape_of(dim, sliding), Policy::parse(on_cpu), kSeed, &rope_) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    gpu_ = make_gpu();
    scratch_ = std::make_unique<DecodeScratch>(device_, gpu_->steps().token_shape(), stream_);
    for (size_t l = 0; l < kLayers; ++l) {
      const int64_t window = sliding.empty() ? 0 : sliding[l];
      oracles_.emplace_back(OracleShape{kQueryHeads, kKvHeads, dim_, window});
    }
  }
  ~Pair() {
    gpu_.reset();
    saved_.reset();
    scratch_.reset();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }

  void run_chunk(size_t tokens) {
    for (int l = 0; l < kLayers; ++l) {
      if (watched_) note_rows(l);
      const Numbers x = draw(tokens);
      const std::vector<float> got = step_chunk(*gpu_, l, x, tokens);
      if (saved_) compare_with_saved(got, step_chunk(*saved_, l, x, tokens));
      if (watched_) compare(l, x, got, tokens);
    }
    tokens_ += tokens;
  }
  void run_token() {
    for (int l = 0; watched_ && l < kLayers; ++l) note_rows(l);
    for (DeviceCache* cache : {gpu_.get(), saved_.get()}) {
      if (!cache) continue;
      cache->steps().begin_token();
      upload_all(cache->steps().token_uploads(), stream_);
      check(cudaStreamSynchronize(stream_), "uploads");
    }
    for (int l = 0; l < kLayers; ++l) {
      const Numbers x = draw(1);
      const std::vector<float> got = step_token(*gpu_, l, x);
      if (saved_) compare_with_saved(got, step_token(*saved_, l, x));
      if (watched_) compare(l, x, got, 1);
    }
    LateWork late;  // of both together
    for (DeviceCache* cache : {gpu_.get(), saved_.get()})
      if (cache) cache->steps().end_token(late);
    gpu_->steps().run(late);
    for (DeviceCache* cache : {gpu_.get(), saved_.get()})
      if (cache && tokens_ % 3 != 0)
        cache->steps().begin_ahead();  // what comes next need not be a token
    ++tokens_;
  }
  /// To be called before the first row: the GPU's caches alone are fed, and nothing is compared but
  /// what was loaded.
  void watch_saved_alone() { watched_ = false; }
  void end_prefill() {
    cpu_.end_prefill();
    gpu_->chunks().end_prefill();
    if (saved_) saved_->chunks().end_prefill();
    if (rounded_) rounded_->end_prefill();
  }
  void protect(const std::vector<TokenRange>& ranges) {
    cpu_.protect(ranges);
    gpu_->protect(ranges);
    if (saved_) saved_->protect(ranges);
    protected_.add(ranges, 0, 0);
    if (one_policy_) {
      EXPECT_EQ(cpu_.describe(), gpu_->describe());
    }
  }
  void use_clone() { gpu_ = gpu_->clone(); }
  /// The GPU's cache is saved and loaded into another, which goes on beside it from now on.
  void load_saved() {
    const std::string bytes = save();
    saved_.reset();
    saved_ = make_gpu();
    if (probe_.rows > 0) saved_->start_error_probe(probe_, kSeed, 2);
    load_cache(*saved_, bytes);
    EXPECT_EQ(save_cache(*saved_), bytes) << "after " << tokens_ << " tokens";
    check(cudaStreamSynchronize(stream_), "a cache that was loaded");
  }
  std::string save() { return save_cache(*gpu_); }
  /// Whether what was loaded has said what the other did, bit for bit, and is still the same.
  testing::AssertionResult saved_is_same() {
    if (!saved_) return testing::AssertionFailure() << "nothing was saved";
    const std::string a = save(), b = save_cache(*saved_);
    if (saved_differs_ == 0 && a == b) return testing::AssertionSuccess();
    const auto at = std::ranges::mismatch(a, b).in1 - a.begin();
    return testing::AssertionFailure()
           << saved_differs_ << " answers differ; saved again at " << tokens_
           << " tokens: " << a.size() << " and " << b.size() << " bytes, "
           << (a == b ? "the same" : "different from byte " + std::to_string(at));
  }
  /// Loads bytes that may be no state, and goes on if they are taken; what came of it is kept
  /// nowhere. Throws what loading does.
  void load_anything(const std::string& bytes) {
    const auto cache = make_gpu();
    load_cache(*cache, bytes);
    const auto room = shape_of(static_cast<int>(dim_)).context - cache->tokens();
    for (size_t t = 0; t < std::min<size_t>(room, emulated() ? 4 : 40); ++t) {
      cache->steps().begin_token();
      upload_all(cache->steps().token_uploads(), stream_);
      check(cudaStreamSynchronize(stream_), "uploads");
      for (int l = 0; l < kLayers; ++l) step_token(*cache, l, draw(1));
      cache->steps().end_token();
    }
    cache->chunks().end_prefill();
    for (int l = 0; l < kLayers; ++l) cache->rows(l, 0);
    check(cudaStreamSynchronize(stream_), "a cache that was loaded");
  }
  void start_error_probe(const ErrorProbeOptions& options) {
    probe_ = options;
    cpu_.start_error_probe(options, kSeed);
    gpu_->start_error_probe(options, kSeed, 2);
  }
  std::vector<AttentionError> cpu_errors() const { return cpu_.attention_errors(); }
  std::vector<AttentionError> gpu_errors() const { return gpu_->attention_errors(); }
  size_t gpu_probe_bytes() const { return device_.bytes(MemoryKind::kProbe); }
  /// To be called before the first row: a second cache on the CPU is fed the same numbers, each up
  /// to a unit in the last place off. The effect of rounding alone on the choice of rows.
  void watch_rounding() { rounded_ = cpu_.clone(); }
  /// Rows from now on are what int4 gives back as they came: codes change no selection, so that
  /// both caches must do the same.
  void draw_codes() { codes_ = true; }
  /// Keys from now on have a constant part before RoPE, a few channels of 12.
  void bias_keys() { biased_ = true; }

  /// Queries from now on have channels that are larger than others.
  void structure_queries() { structured_ = true; }

  /// The share of rows that both hold, with equal weights, of those that the next query sees.
  double same_rows() const {
    double sum = 0;
    for (int l = 0; l < kLayers; ++l) sum += same_rows(l);
    return sum / kLayers;
  }
  double same_rows(int l) const { return same_rows(l, *gpu_); }
  /// As same_rows(), of the CPU's cache and the one that watch_rounding() started.
  double same_rows_rounded() const {
    double sum = 0;
    for (int l = 0; l < kLayers; ++l) sum += same_rows(l, *rounded_);
    return sum / kLayers;
  }
  /// The least same_rows() where codes or 16-bit sums round: halvings and rows that are coded again
  /// pass a difference on, so that rounding alone changes up to a third of the rows; what the GPU
  /// does otherwise (rows move as codes) was seen to change 0.18 more. Rows that are mixed up leave
  /// less than half of what stays.
  double least_same_rows() const { return same_rows_rounded() - 0.2; }
  /// The largest error of attention over the same rows, and how often that was so.
  double worst() const { return worst_; }
  void forget_worst() { worst_ = 0; }
  /// The largest error of the GPU's attention against an oracle over exactly the rows that rows()
  /// reported before the step, and the step's own. Rows that codes change differ by the codec's
  /// error.
  double oracle_error() const { return oracle_error_; }
  /// That error in the last step, had the oracle left out the row that the last query
  /// looks at most.
  double error_without_a_row() const { return error_without_; }
  double compared() const { return static_cast<double>(compared_) / steps_; }
  Ledger cpu_ledger() const { return cpu_.ledger(); }
  Ledger gpu_ledger() const { return gpu_->ledger(); }
  size_t counted() const { return device_.total(); }
  /// The most bytes that it says there will be with tokens to come, its scratch memory's too.
  size_t room(const ComingTokens& coming) const {
    return gpu_->room(coming) + gpu_->space().more_for(gpu_->space_asked(coming, 1));
  }
  /// The most there were since the last time that it was asked for.
  size_t peak() {
    const size_t most = device_.peak();
    device_.reset_peak();
    return most;
  }
  /// The most that the GPU's cache was said to take by now.
  size_t estimated() const {
    const ResolvedPolicy policy(Policy::parse(policy_), shape_of(static_cast<int>(dim_), sliding_),
                                kSeed, Device::kCuda);
    return policy.estimate(tokens_, protected_).total_bytes();
  }
  /// The total weight of the GPU's rows of a head.
  double weight(int l, int g) const {
    double sum = 0;
    for (const float w : gpu_->rows(l, g).log_weights) sum += std::exp(w);
    return sum;
  }
  size_t gpu_rows(int l) const { return gpu_->rows(l, 0).positions.size(); }

 private:
  static constexpr uint64_t kSeed = 7;

  template <class Cache>
  double same_rows(int l, const Cache& other) const {
    size_t same = 0, all = 0;
    for (int g = 0; g < kKvHeads; ++g) {
      const HeadRows a = seen(l, cpu_.rows(l, g)), b = seen(l, other.rows(l, g));
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
  /// Numbers of the 16-bit type, each up to a unit in the last place off.
  std::vector<float> rounded(std::vector<float> x) {
    const float unit = dtype_ == DType::kBF16 ? 0x1p-8f : 0x1p-11f;
    std::uniform_real_distribution<float> off(-unit, unit);
    for (float& f : x) f *= 1 + off(rounding_);
    return x;
  }
  HeadRows seen(int layer, HeadRows rows) const {
    const int64_t window = sliding_.empty() ? 0 : sliding_[static_cast<size_t>(layer)];
    if (window == 0) return rows;
    const int64_t oldest = static_cast<int64_t>(cpu_.tokens(layer)) - window + 1;
    const auto first = std::ranges::lower_bound(rows.positions, oldest) - rows.positions.begin();
    rows.positions.erase(rows.positions.begin(), rows.positions.begin() + first);
    rows.log_weights.erase(rows.log_weights.begin(), rows.log_weights.begin() + first);
    return rows;
  }
  /// The rows held before a step.
  void note_rows(int l) {
    same_before_[l] = same_rows(l) == 1;
    for (int g = 0; g < kKvHeads; ++g) held_[l][g] = gpu_->rows(l, g);
  }
  /// The last queries of a step, of every head.
  void compare_with_oracle(int l, const std::vector<float>& q, const std::vector<float>& got,
                           size_t tokens) {
    const RowOracle& oracle = oracles_[static_cast<size_t>(l)];
    const size_t first = oracle.tokens() - tokens;
    for (size_t t = tokens - std::min<size_t>(tokens, 3); t < tokens; ++t) {
      for (size_t h = 0; h < kQueryHeads; ++h) {
        const size_t at = (t * kQueryHeads + h) * dim_;
        const HeadRows& held = held_[l][h / (kQueryHeads / kKvHeads)];
        const RowOracle::Query query{q.data() + at, h, static_cast<int64_t>(first + t),
                                     static_cast<int64_t>(first)};
        const auto want = oracle.attend(query, held);
        const std::vector<float> one(got.begin() + static_cast<ptrdiff_t>(at),
                                     got.begin() + static_cast<ptrdiff_t>(at + dim_));
        oracle_error_ = std::max(oracle_error_, relative_error(one, want));
        if (!held.positions.empty()) {
          error_without_ = relative_error(one, oracle.attend(query, oracle.without(query, held)));
        }
      }
    }
  }
  Numbers draw(size_t tokens) {
    const size_t kv = tokens * kKvHeads * dim_;
    Numbers x{normals(tokens * kQueryHeads * dim_, dtype_, draws_), normals(kv, dtype_, draws_ + 1),
              normals(kv, dtype_, draws_ + 2)};
    draws_ += 3;
    if (codes_) {
      round_to_codes(x.k);
      round_to_codes(x.v);
    }
    if (structured_) give_structure(x.q, tokens);
    if (biased_) add_bias(x.k, tokens);
    return x;
  }
  /// Codes of 4 bits times a power of two; in each 32 numbers one has the largest code.
  void round_to_codes(std::vector<uint16_t>& x) const {
    for (size_t i = 0; i < x.size(); ++i) {
      const float code = std::clamp(std::round(3 * to_float(dtype_, x[i])), -6.0f, 6.0f);
      x[i] = from_float(dtype_, 0.25f * (i % 32 == 0 ? std::copysign(7.0f, code) : code));
    }
  }
  void add_bias(std::vector<uint16_t>& k, size_t tokens) {
    std::vector<float> bias(dim_);
    for (size_t i = 0; i < tokens * kKvHeads; ++i) {
      for (size_t c = 0; c < dim_; ++c) bias[c] = (c + i % kKvHeads) % 16 == 3 ? 12.0f : 0;
      rope_.rotate(context_.kernels, bias.data(), static_cast<int64_t>(tokens_ + i / kKvHeads));
      for (size_t c = 0; c < dim_; ++c)
        k[i * dim_ + c] = from_float(dtype_, to_float(dtype_, k[i * dim_ + c]) + bias[c]);
    }
  }
  /// Queries with a mean and a covariance of their own before RoPE.
  void give_structure(std::vector<uint16_t>& q, size_t tokens) {
    std::vector<float> row(dim_);
    for (size_t i = 0; i < tokens * kQueryHeads; ++i) {
      const size_t head = i % kQueryHeads;
      for (size_t c = 0; c < dim_; ++c) {
        const float wide = (c + head) % 5 == 0 ? 2.0f : 0.6f;
        const float shared = to_float(dtype_, q[i * dim_ + c / 8 * 8]);
        const float mean = (c * 7 + head) % 11 < 2 ? 0.8f : 0.0f;
        row[c] = mean + wide * to_float(dtype_, q[i * dim_ + c]) + 0.5f * shared;
      }
      rope_.rotate(context_.kernels, row.data(), static_cast<int64_t>(tokens_ + i / kQueryHeads));
      for (size_t c = 0; c < dim_; ++c) q[i * dim_ + c] = from_float(dtype_, row[c]);
    }
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
  std::unique_ptr<DeviceCache> make_gpu() {
    return std::make_unique<DeviceCache>(device_, shape_of(static_cast<int>(dim_), sliding_),
                                         Policy::parse(policy_), kSeed, stream_, &rope_);
  }
  std::vector<float> on_host(const DeviceArray<float>& out) const {
    std::vector<float> got(out.size());
    out.download(got.data(), got.size(), stream_);
    check(cudaStreamSynchronize(stream_), "attention");
    return got;
  }
  std::vector<float> step_chunk(DeviceCache& cache, int l, const Numbers& x, size_t tokens) {
    const auto q = to_device(inputs_, x.q);
    DeviceArray<float> out(inputs_, MemoryKind::kScratch, x.q.size(), stream_);
    write_rows(cache.chunks().begin_chunk(l, tokens), x, tokens);
    cache.chunks().attend_chunk(l, out.data(), DType::kF32, q.data(), tokens);
    cache.chunks().end_chunk(l, tokens);
    return on_host(out);
  }
  std::vector<float> step_token(DeviceCache& cache, int l, const Numbers& x) {
    const auto q = to_device(inputs_, x.q);
    DeviceArray<float> out(inputs_, MemoryKind::kScratch, x.q.size(), stream_);
    write_rows(cache.steps().token_target(l), x, 1);
    cache.steps().attend_token(l, cache.steps().token_place(l, out.data(), q.data()), *scratch_);
    if (cache.steps().comparing()) cache.steps().compare_token(l, out.data(), q.data());
    return on_host(out);
  }
  void compare_with_saved(const std::vector<float>& got, const std::vector<float>& saved) {
    saved_differs_ += std::memcmp(got.data(), saved.data(), got.size() * sizeof(float)) != 0;
  }
  void compare(int layer, const Numbers& x, const std::vector<float>& got, size_t tokens) {
    const auto q = widen(x.q, dtype_), k = widen(x.k, dtype_), v = widen(x.v, dtype_);
    std::vector<float> want(q.size());
    const bool same = same_before_[layer];
    cpu_.step(layer, want.data(), q.data(), k.data(), v.data(), tokens);
    if (rounded_) {
      const auto rq = rounded(q), rk = rounded(k), rv = rounded(v);
      std::vector<float> unread(q.size());
      rounded_->step(layer, unread.data(), rq.data(), rk.data(), rv.data(), tokens);
    }
    EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float f) { return std::isfinite(f); }));
    ++steps_;
    compared_ += same;
    if (same) worst_ = std::max(worst_, relative_error(got, {want.begin(), want.end()}));
    oracles_[static_cast<size_t>(layer)].append(k, v);
    compare_with_oracle(layer, q, got, tokens);
  }

  size_t dim_;
  DType dtype_;
  std::vector<int64_t> sliding_;  // [L]
  ThreadPool pool_{1};
  MemoryCounter host_, device_, inputs_;
  Context context_{pool_, host_, kernels_for()};
  Rope rope_;
  std::string policy_;
  bool one_policy_, structured_, codes_ = false, biased_ = false;
  KvCache cpu_;
  std::unique_ptr<KvCache> rounded_;
  std::mt19937 rounding_{5};
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<DeviceCache> gpu_, saved_;
  ErrorProbeOptions probe_{.rows = 0};
  ProtectedRows protected_;
  int saved_differs_ = 0;
  bool watched_ = true;
  std::unique_ptr<DecodeScratch> scratch_;
  uint32_t draws_ = 1;
  size_t tokens_ = 0;
  double worst_ = 0;
  bool same_before_[kLayers] = {};
  std::vector<RowOracle> oracles_;  // [L]
  HeadRows held_[kLayers][kKvHeads];
  double oracle_error_ = 0, error_without_ = 0;
  int steps_ = 0, compared_ = 0;
};

/// Runs that the CPU's rows and the GPU's are the same after, 32 rows at a time.
inline void run_chunks(Pair& pair) {
  for (const size_t tokens : {128, 96, 32, 192, 64}) pair.run_chunk(tokens);
  pair.end_prefill();
}

/// Groups of 32 rows whose codes round: nearly the same rows.
inline void expect_groups_held(Pair& pair, const std::string& policy) {
  run_chunks(pair);
  for (int t = 0; t < 64; ++t) pair.run_token();
  pair.use_clone();
  for (int t = 0; t < 40; ++t) pair.run_token();
  EXPECT_GE(pair.same_rows(), 0.75);
  EXPECT_GT(pair.compared(), 0);
  if (same_groups(policy)) {
    EXPECT_LT(pair.worst(), 0.2);
  }
  EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
  EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
}

}  // namespace pith::cuda
