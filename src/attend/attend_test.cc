// Attention against a softmax in double that shares nothing with the code under test: spans, roles,
// weights, positions, windows, RoPE at reading, mass; both paths, any number of threads.

#include "attend/attend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attend/parts.h"
#include "compress/dense.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr double kTheta = 10000;

/// One span of one KV head, with what the oracle needs to know about it.
struct Rows {
  std::unique_ptr<DenseRowsStore> keys, values;
  std::vector<float> k, v;  // [rows, D] as stored
  std::vector<float> log_weights;
  std::vector<uint32_t> positions;
  std::vector<float> mass;
  std::vector<double> wanted_mass;
  Span span;
};

/// What a case varies.
struct Case {
  size_t dim = 64, kv_heads = 2, group = 4, tokens = 1;
  DType dtype = DType::kF32;
  bool own_rows = true;
  int64_t window = 0;
  size_t mass_queries = 0;
  bool weights = false, positions = false, before_rope = false;
  int64_t query_shift = 0;
  Role role = Role::kBoth;
  std::vector<size_t> span_rows = {5, 300, 33};
};

std::string describe(const Case& c) {
  std::string s = "D " + std::to_string(c.dim) + " group " + std::to_string(c.group) + " tokens " +
                  std::to_string(c.tokens) + " " + to_string(c.dtype) + " window " +
                  std::to_string(c.window) + " mass " + std::to_string(c.mass_queries) + " role " +
                  std::to_string(static_cast<int>(c.role)) + " shift " +
                  std::to_string(c.query_shift);
  if (c.own_rows) s += " own";
  if (c.weights) s += " weights";
  if (c.positions) s += " positions";
  if (c.before_rope) s += " before_rope";
  for (size_t n : c.span_rows) s += " " + std::to_string(n);
  return s;
}

class Problem {
 public:
  Problem(const Case& c, std::string_view isa = "", int threads = 2)
      : case_(c), pool_(threads), kernels_(kernels_for(isa)), rope_(c.dim, kTheta) {
    std::mt19937 random(static_cast<uint32_t>(c.dim * 7 + c.group * 3 + c.tokens));
    const size_t heads = c.kv_heads * c.group;
    q_ = numbers(random, c.tokens * heads * c.dim, 1.5f);
    k_ = numbers(random, c.tokens * c.kv_heads * c.dim, 1.5f);
    v_ = numbers(random, c.tokens * c.kv_heads * c.dim, 1);
    heads_.resize(c.kv_heads);
    for (auto& head : heads_) fill_head(random, head);
    for (auto& head : heads_) {
      lists_.emplace_back();
      for (Rows& rows : head) lists_.back().push_back(rows.span);
    }
    for (const auto& list : lists_) spans_.emplace_back(list);
    out_.assign(c.tokens * heads * c.dim, std::nanf(""));
    log_sum_.assign(c.tokens * heads, std::nanf(""));
    chunk_mass_.assign(c.kv_heads * c.tokens, 0.0f);
  }

  AttendCall call() {
    return {.shape = {.query_heads = case_.kv_heads * case_.group,
                      .kv_heads = case_.kv_heads,
                      .head_dim = case_.dim},
            .q = q_.data(),
            .k = case_.own_rows ? k_.data() : nullptr,
            .v = case_.own_rows ? v_.data() : nullptr,
            .tokens = case_.tokens,
            .first_position = first_position_,
            .sliding_window = case_.window,
            .spans = spans_,
            .rope = &rope_,
            .mass_queries = case_.mass_queries,
            .chunk_mass = chunk_mass_.data(),
            .out = out_.data(),
            .log_sum = log_sum_.data()};
  }

  Context context() { return {pool_, memory_, kernels_}; }
  void run() { attend(context(), call()); }
  void check();

  std::vector<float> result() const {
    std::vector<float> all = out_;
    all.insert(all.end(), log_sum_.begin(), log_sum_.end());
    all.insert(all.end(), chunk_mass_.begin(), chunk_mass_.end());
    for (const auto& head : heads_)
      for (const Rows& rows : head) all.insert(all.end(), rows.mass.begin(), rows.mass.end());
    return all;
  }
  void clear() {
    std::fill(chunk_mass_.begin(), chunk_mass_.end(), 0.0f);
    for (auto& head : heads_)
      for (Rows& rows : head) std::fill(rows.mass.begin(), rows.mass.end(), 0.0f);
  }
  MemoryCounter& memory() { return memory_; }
  std::vector<float>& out() { return out_; }
  std::vector<float>& log_sum() { return log_sum_; }
  const ThreadPool& pool() const { return pool_; }

 private:
  static std::vector<float> numbers(std::mt19937& random, size_t n, float size) {
    std::uniform_real_distribution<float> uniform(-size, size);
    std::vector<float> x(n);
    for (float& value : x) value = uniform(random);
    return x;
  }
  void fill_head(std::mt19937& random, std::vector<Rows>& head);
  std::vector<double> turned(const float* x, int64_t positions) const;
  struct Seen {
    double score;
    const float* value;
    Role role;
    double* mass;
  };
  void collect(std::vector<Seen>& seen, size_t token, size_t h);

  Case case_;
  ThreadPool pool_;
  MemoryCounter memory_{0, true};
  const Kernels& kernels_;
  Rope rope_;
  int64_t first_position_ = 0;
  std::vector<float> q_, k_, v_, out_, log_sum_, chunk_mass_;
  std::vector<double> wanted_chunk_mass_;
  std::vector<std::vector<Rows>> heads_;
  std::vector<std::vector<Span>> lists_;
  std::vector<std::span<const Span>> spans_;
};

/// The first span is plain and exact; the later ones have everything the case asks for. Each store
/// holds two rows more at the start that the span leaves out.
void Problem::fill_head(std::mt19937& random, std::vector<Rows>& head) {
  constexpr size_t kSkipped = 2;
  uint32_t position = 0;
  for (size_t nth = 0; nth < case_.span_rows.size(); ++nth) {
    const size_t n = case_.span_rows[nth], all = n + kSkipped, dim = case_.dim;
    const bool plain = nth == 0;
    Rows& rows = head.emplace_back();
    const DType type = plain ? DType::kF32 : case_.dtype;
    const Context context = this->context();
    const RowsRequest keys{.side = Side::kKeys, .dim = dim};
    rows.keys = std::make_unique<DenseRowsStore>(context, type, keys);
    rows.values = std::make_unique<DenseRowsStore>(context, type, keys);
    rows.keys->append(numbers(random, all * dim, 1.5f).data(), dim, all);
    rows.values->append(numbers(random, all * dim, 1).data(), dim, all);
    rows.k.resize(all * dim);
    rows.v.resize(all * dim);
    rows.keys->decode(rows.k.data(), 0, all);
    rows.values->decode(rows.v.data(), 0, all);
    rows.log_weights = numbers(random, all, 1);
    rows.mass.assign(all, 0.0f);
    rows.wanted_mass.assign(all, 0.0);
    Span& s = rows.span;
    s = {.keys = rows.keys.get(), .values = rows.values.get(), .first = kSkipped, .count = n};
    s.first_position = position;
    if (case_.mass_queries > 0) s.mass = rows.mass.data();
    rows.positions.assign(all, 4000000000u);
    const bool scattered = !plain && case_.positions;
    for (size_t i = kSkipped; i < all; ++i) {
      rows.positions[i] = position;
      position += scattered ? 1 + random() % 9 : 1;
    }
    if (plain) continue;
    if (scattered) s.positions = rows.positions.data();
    if (case_.weights) {
      s.log_weight = 0.7f;
      s.log_weights = rows.log_weights.data();
    }
    s.role = nth == 1 ? case_.role : Role::kBoth;
    s.keys_before_rope = case_.before_rope;
    s.query_shift = case_.query_shift;
    if (s.role == Role::kDenominator) s.values = nullptr;
  }
  first_position_ = std::max<int64_t>(first_position_, position);
}

std::vector<double> Problem::turned(const float* x, int64_t positions) const {
  const size_t dim = case_.dim, half = dim / 2;
  std::vector<double> y(dim);
  for (size_t i = 0; i < half; ++i) {
    const double angle = double(positions) * std::pow(kTheta, -2.0 * double(i) / double(dim));
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

void Problem::collect(std::vector<Seen>& seen, size_t token, size_t h) {
  const size_t dim = case_.dim, head = h / case_.group;
  const float* q = q_.data() + (token * case_.kv_heads * case_.group + h) * dim;
  const int64_t position = first_position_ + int64_t(token);
  const auto visible = [&](int64_t at) {
    return case_.window == 0 || at > position - case_.window;
  };
  const auto product = [&](const std::vector<double>& x, const std::vector<double>& y) {
    double sum = 0;
    for (size_t i = 0; i < dim; ++i) sum += x[i] * y[i];
    return sum / std::sqrt(double(dim));
  };
  for (Rows& rows : heads_[head]) {
    const Span& s = rows.span;
    const std::vector<double> query = turned(q, s.query_shift);
    for (size_t i = s.first; i < s.first + s.count; ++i) {
      if (!visible(rows.positions[i])) continue;
      const std::vector<double> key =
          turned(rows.k.data() + i * dim, s.keys_before_rope ? int64_t(rows.positions[i]) : 0);
      const double weight = s.log_weight + (s.log_weights ? s.log_weights[i] : 0);
      seen.push_back(
          {product(query, key) + weight, rows.v.data() + i * dim, s.role, &rows.wanted_mass[i]});
    }
  }
  if (!case_.own_rows) return;
  for (size_t t = 0; t <= token; ++t) {
    if (!visible(first_position_ + int64_t(t))) continue;
    const size_t at = (t * case_.kv_heads + head) * dim;
    seen.push_back({product(turned(q, 0), turned(k_.data() + at, 0)), v_.data() + at, Role::kBoth,
                    &wanted_chunk_mass_[head * case_.tokens + t]});
  }
}

void Problem::check() {
  const size_t heads = case_.kv_heads * case_.group, dim = case_.dim;
  wanted_chunk_mass_.assign(case_.kv_heads * case_.tokens, 0.0);
  for (size_t t = 0; t < case_.tokens; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      std::vector<Seen> seen;
      collect(seen, t, h);
      double largest = -INFINITY, sum = 0;
      for (const Seen& row : seen) largest = std::max(largest, row.score);
      std::vector<double> wanted(dim, 0.0);
      double spread = 0;  // size of the terms that the result sums, for the tolerance
      for (const Seen& row : seen) {
        const double p = std::exp(row.score - largest);
        if (row.role != Role::kNumerator) sum += p;
        if (row.role == Role::kDenominator) continue;
        spread += p;
        for (size_t c = 0; c < dim; ++c) wanted[c] += p * row.value[c];
      }
      const float* out = out_.data() + (t * heads + h) * dim;
      const double scale = sum > 0 ? 1 / sum : 0, tolerance = 3e-6 * (1 + spread * scale);
      for (size_t c = 0; c < dim; ++c) ASSERT_NEAR(out[c], wanted[c] * scale, tolerance);
      if (sum == 0) {
        ASSERT_EQ(log_sum_[t * heads + h], -INFINITY);
        continue;
      }
      ASSERT_NEAR(log_sum_[t * heads + h], largest + std::log(sum), 5e-6);
      if (t + case_.mass_queries < case_.tokens) continue;
      for (const Seen& row : seen) *row.mass += std::exp(row.score - largest) / sum;
    }
  }
  if (case_.mass_queries == 0) return;
  const double tolerance = 1e-6 * double(case_.group * std::min(case_.mass_queries, case_.tokens));
  for (auto& head : heads_)
    for (Rows& rows : head)
      for (size_t i = 0; i < rows.mass.size(); ++i)
        ASSERT_NEAR(rows.mass[i], rows.wanted_mass[i], tolerance);
  if (case_.own_rows)
    for (size_t i = 0; i < chunk_mass_.size(); ++i)
      ASSERT_NEAR(chunk_mass_[i], wanted_chunk_mass_[i], tolerance);
}

void expect_right(const Case& c, std::string_view isa = "") {
  SCOPED_TRACE(describe(c));
  Problem problem(c, isa);
  problem.run();
  problem.check();
}

TEST(Attend, DenseRowsOfEachShapeAndType) {
  for (size_t dim : {16, 64, 80, 96, 128, 256, 512})
    for (size_t group : {1, 4, 8})
      for (DType type : {DType::kF32, DType::kF16, DType::kBF16})
        for (size_t tokens : {1, 2, 19})
          expect_right({.dim = dim, .group = group, .tokens = tokens, .dtype = type});
}

TEST(Attend, EachInstructionSet) {
  for (std::string_view isa : available_isas())
    for (size_t dim : {64, 80})
      for (size_t tokens : {1, 3, 40})
        for (bool rope : {false, true})
          expect_right({.dim = dim,
                        .tokens = tokens,
                        .dtype = DType::kF16,
                        .mass_queries = 2,
                        .weights = true,
                        .positions = true,
                        .before_rope = rope},
                       isa);
}

TEST(Attend, EveryFeatureWithEveryOther) {
  for (size_t tokens : {1, 3, 37})
    for (int64_t window : {0, 1, 20, 200})
      for (Role role : {Role::kBoth, Role::kNumerator, Role::kDenominator})
        for (int bits = 0; bits < 16; ++bits)
          expect_right({.tokens = tokens,
                        .dtype = bits & 1 ? DType::kBF16 : DType::kF32,
                        .own_rows = (bits & 8) == 0 || window == 20,
                        .window = window,
                        .mass_queries = bits % 3 == 0   ? 0u
                                        : bits % 3 == 1 ? 1u
                                                        : 30u,
                        .weights = (bits & 2) != 0,
                        .positions = (bits & 4) != 0,
                        .before_rope = (bits & 8) != 0,
                        .query_shift = bits % 5 == 4 ? -7 : 0,
                        .role = role});
}

TEST(Attend, LongRunsOfManyPartsAndTiles) {
  expect_right({.dim = 64, .dtype = DType::kF16, .mass_queries = 1, .span_rows = {0, 3000, 1}});
  expect_right({.dim = 64, .kv_heads = 1, .dtype = DType::kF32, .span_rows = {35000}});
  expect_right(
      {.dim = 64, .kv_heads = 1, .tokens = 700, .mass_queries = 64, .span_rows = {7, 513}});
  expect_right({.dim = 64,
                .kv_heads = 1,
                .group = 1,
                .tokens = 600,
                .window = 100,
                .mass_queries = 600,
                .span_rows = {300}});
  expect_right({.dim = 32, .kv_heads = 1, .group = 71, .tokens = 9, .span_rows = {30}});
  expect_right({.dim = 32, .kv_heads = 1, .group = 71, .tokens = 1, .span_rows = {30}});
}

TEST(Attend, OddNumbersOfRowsAndEmptySpans) {
  for (size_t rows : {0, 1, 3, 15, 16, 17, 63, 64, 255, 256, 257, 1023, 1024, 1025})
    for (size_t tokens : {1, 20})
      expect_right({.kv_heads = 1, .tokens = tokens, .span_rows = {0, rows, 0}});
}

TEST(Attend, AQueryThatSeesNothingGivesZeros) {
  for (size_t tokens : {1, 20}) {
    expect_right({.tokens = tokens, .own_rows = false, .span_rows = {}});
    expect_right({.tokens = tokens, .own_rows = false, .mass_queries = 1, .span_rows = {0, 0}});
    expect_right(
        {.tokens = tokens, .own_rows = false, .window = 5, .mass_queries = 9, .span_rows = {30}});
    expect_right({.tokens = tokens,
                  .own_rows = false,
                  .window = 5,
                  .positions = true,
                  .span_rows = {2, 30}});
  }
}

TEST(Attend, SplittingASpanChangesNothing) {
  for (size_t tokens : {1, 25}) {
    Case c{
        .tokens = tokens, .own_rows = true, .window = 250, .mass_queries = 5, .span_rows = {300}};
    Problem whole(c), split(c);
    whole.run();
    AttendCall call = split.call();
    std::vector<std::vector<Span>> lists;
    for (const auto& list : call.spans) {
      lists.emplace_back();
      size_t done = 0;
      for (size_t n : {1, 99, 0, 63, 137}) {
        Span part = list[0];
        part.first += done;
        part.first_position += static_cast<int64_t>(done);
        part.count = n;
        done += n;
        lists.back().push_back(part);
      }
      ASSERT_EQ(done, list[0].count);
    }
    const std::vector<std::span<const Span>> spans(lists.begin(), lists.end());
    call.spans = spans;
    attend(split.context(), call);
    split.check();
    const std::vector<float> a = whole.result(), b = split.result();
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 3e-6);
  }
}

TEST(Attend, BothPathsAgree) {
  for (bool before_rope : {false, true}) {
    Case c{.tokens = 4,
           .dtype = DType::kF16,
           .window = 333,
           .mass_queries = 3,
           .weights = true,
           .positions = true,
           .before_rope = before_rope};
    Problem problem(c);
    const Geometry geometry{
        .query_heads = 8, .kv_heads = 2, .group = 4, .dim = 64, .tokens = 4, .scale = 0.125f};
    attend_decode(problem.context(), problem.call(), geometry);
    const std::vector<float> decoded = problem.result();
    problem.clear();
    attend_prefill(problem.context(), problem.call(), geometry);
    const std::vector<float> prefilled = problem.result();
    for (size_t i = 0; i < decoded.size(); ++i) ASSERT_NEAR(decoded[i], prefilled[i], 5e-6);
  }
}

TEST(Attend, BitsDoNotDependOnThreads) {
  for (size_t tokens : {1, 4, 150}) {
    Case c{.tokens = tokens,
           .dtype = DType::kBF16,
           .mass_queries = 100,
           .weights = true,
           .positions = true,
           .before_rope = true,
           .span_rows = {5, 2500, 33}};
    std::vector<float> first;
    for (int threads : {1, 2, 3}) {
      Problem problem(c, "", threads);
      problem.run();
      const std::vector<float> result = problem.result();
      if (first.empty()) first = result;
      ASSERT_EQ(std::memcmp(first.data(), result.data(), result.size() * sizeof(float)), 0);
    }
  }
}

TEST(Attend, ScratchDoesNotGrowWithTheRows) {
  for (size_t tokens : {1, 40}) {
    std::vector<size_t> peaks;
    for (size_t rows : {34000, 68000}) {
      Problem problem({.kv_heads = 1, .tokens = tokens, .span_rows = {rows}});
      const size_t before = problem.memory().total();
      problem.memory().reset_peak();
      problem.run();
      peaks.push_back(problem.memory().peak() - before);
      EXPECT_EQ(problem.memory().total(), before);
    }
    EXPECT_NEAR(double(peaks[0]), double(peaks[1]), 0.1 * double(peaks[0]));
    EXPECT_LT(peaks[1], size_t{4} << 20);
  }
}

TEST(Attend, AForcedInstructionSetRuns) {
  const char* old = std::getenv("PITH_ISA");
  const std::string saved = old ? old : "";
  for (std::string_view isa : available_isas()) {
    setenv("PITH_ISA", std::string(isa).c_str(), 1);
    Problem problem({.tokens = 2, .mass_queries = 1});
    EXPECT_EQ(problem.context().kernels.isa, isa);
    EXPECT_STREQ(problem.context().kernels.ran(), kernels_for(isa).ran());
    problem.run();
    problem.check();
  }
  if (old)
    setenv("PITH_ISA", saved.c_str(), 1);
  else
    unsetenv("PITH_ISA");
}

TEST(Attend, RefusesWhatDoesNotFit) {
  const auto refused = [](auto&& change) {
    Problem problem({.span_rows = {4}});
    AttendCall call = problem.call();
    std::vector<std::vector<Span>> lists;
    for (const auto& list : call.spans) lists.emplace_back(list.begin(), list.end());
    change(call, lists[0][0]);
    std::vector<std::span<const Span>> spans(lists.begin(), lists.end());
    if (!call.spans.empty()) call.spans = spans;
    if (call.shape.kv_heads == 4) call.spans = spans;
    try {
      attend(problem.context(), call);
      return false;
    } catch (const Error& e) {
      return e.code() == ErrorCode::kInvalidArgument;
    }
  };
  EXPECT_FALSE(refused([](AttendCall&, Span&) {}));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.query_heads = 7; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.head_dim = 24; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.head_dim = 32; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.shape.kv_heads = 4; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.q = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.v = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span&) { c.sliding_window = -1; }));
  EXPECT_TRUE(refused([](AttendCall&, Span& s) { s.count = 5; }));
  EXPECT_TRUE(refused([](AttendCall&, Span& s) { s.keys = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall&, Span& s) { s.values = nullptr; }));
  EXPECT_TRUE(refused([](AttendCall& c, Span& s) {
    s.query_shift = 3;
    c.rope = nullptr;
  }));
}

}  // namespace
}  // namespace pith
