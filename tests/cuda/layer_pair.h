#pragma once
// A layer's cache over the caller's tensors, on both devices, fed the same numbers: ones that f32,
// f16 and bf16 all hold, so that what differs is arithmetic alone.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/memory.h"
#include "harness.h"
#include "pith/error.h"
#include "pith/layer_cache.h"
#include "session/test_refused.h"

namespace pith::cuda {

using test::refused;

/// How a tensor lies.
struct Layout {
  DType dtype = DType::kF32;
  bool gaps = false;  ///< [heads, T + 1, D + 3]; else [T, heads, D]
};

/// [T, heads, D] on the device.
class DeviceTensor {
 public:
  struct Size {
    size_t tokens = 0, heads = 0, dim = 0;
  };
  DeviceTensor(MemoryCounter& memory, const Size& size, const Layout& layout, cudaStream_t stream)
      : size_(size),
        layout_(layout),
        stream_(stream),
        row_(size.dim + (layout.gaps ? 3 : 0)),
        host_(size.heads * (size.tokens + 1) * row_ * size_of(layout.dtype), 0x7e),
        device_(memory, MemoryKind::kPayload, host_.size(), stream) {
    device_.upload(host_.data(), host_.size(), stream);
  }
  void set(const std::vector<float>& x) {
    each_row([&](size_t row, size_t at) {
      for (size_t c = 0; c < size_.dim; ++c) put(at + c, x[row * size_.dim + c]);
    });
    device_.upload(host_.data(), host_.size(), stream_);
    check(cudaStreamSynchronize(stream_), "a tensor");  // host_ may change
  }
  /// Waits. Numbers in the gaps must be what they were.
  std::vector<float> get() {
    std::vector<uint8_t> before = host_;
    device_.download(host_.data(), host_.size(), stream_);
    check(cudaStreamSynchronize(stream_), "a tensor");
    std::vector<float> x(size_.tokens * size_.heads * size_.dim);
    each_row([&](size_t row, size_t at) {
      for (size_t c = 0; c < size_.dim; ++c) x[row * size_.dim + c] = number(at + c);
      const size_t bytes = size_of(layout_.dtype);
      std::memcpy(&before[at * bytes], &host_[at * bytes], size_.dim * bytes);
    });
    EXPECT_EQ(before, host_) << "something was written between rows";
    return x;
  }
  RowsView view() const { return {device_.data(), layout_.dtype, token_stride(), head_stride()}; }
  RowsOut out() const { return {device_.data(), layout_.dtype, token_stride(), head_stride()}; }

 private:
  ptrdiff_t token_stride() const {
    return static_cast<ptrdiff_t>(layout_.gaps ? row_ : size_.heads * row_);
  }
  ptrdiff_t head_stride() const {
    return static_cast<ptrdiff_t>(layout_.gaps ? (size_.tokens + 1) * row_ : row_);
  }
  template <class F>
  void each_row(const F& f) const {
    for (size_t t = 0; t < size_.tokens; ++t)
      for (size_t h = 0; h < size_.heads; ++h)
        f(t * size_.heads + h,
          t * static_cast<size_t>(token_stride()) + h * static_cast<size_t>(head_stride()));
  }
  void put(size_t at, float x) {
    if (layout_.dtype == DType::kF32)
      reinterpret_cast<float*>(host_.data())[at] = x;
    else
      reinterpret_cast<uint16_t*>(host_.data())[at] = from_float(layout_.dtype, x);
  }
  float number(size_t at) const {
    if (layout_.dtype == DType::kF32) return reinterpret_cast<const float*>(host_.data())[at];
    return to_float(layout_.dtype, reinterpret_cast<const uint16_t*>(host_.data())[at]);
  }

  Size size_;
  Layout layout_;
  cudaStream_t stream_;
  size_t row_;
  std::vector<uint8_t> host_;
  DeviceArray<uint8_t> device_;
};

struct LayerCase {
  const char* policy;
  double bound = 4e-3;    ///< of attention over the same rows
  int64_t slides = 0;     ///< rows that a query sees
  double compared = 0.9;  ///< of all passes, at least: both held the same rows before
  int query_heads = 4, kv_heads = 2, dim = 64;
  double scale = 0;
  double soft_cap = 0;
  std::vector<float> sink_logits = {};
  size_t probe_rows = 0;
};

inline LayerCacheOptions layer_options(const LayerCase& c) {
  LayerCacheOptions o;
  o.policy = Policy::parse(c.policy);
  o.query_heads = c.query_heads;
  o.kv_heads = c.kv_heads;
  o.head_dim = c.dim;
  o.context = 600;
  o.layers = 3, o.layer = 1;
  o.sliding_window = c.slides;
  o.seed = 7;
  o.rope_theta = 10000;
  o.scale = c.scale;
  o.soft_cap = c.soft_cap;
  o.sink_logits = c.sink_logits;
  o.error_probe = {c.probe_rows, 2, 0};
  return o;
}

class LayerPair {
 public:
  LayerPair(const LayerCase& c, const Layout& layout)
      : case_(c),
        layout_(layout),
        cpu_(std::make_shared<Runtime>(RuntimeOptions{.threads = 1}), layer_options(c)),
        compute_(std::make_shared<Runtime>(RuntimeOptions{.device = Device::kCuda, .threads = 2})),
        gpu_(compute_, layer_options(c)) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a caller's stream");
    gpu_.use_stream(stream_);
  }
  ~LayerPair() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  LayerPair(const LayerPair&) = delete;
  LayerPair& operator=(const LayerPair&) = delete;

  LayerCacheOptions options() const { return layer_options(case_); }
  LayerCache& cpu() { return cpu_; }
  LayerCache& gpu() { return gpu_; }
  const std::shared_ptr<Runtime>& runtime() const { return compute_; }
  /// Another's calls are ordered with the same stream.
  void follow(LayerCache& other) { other.use_stream(stream_); }

  void step(size_t tokens) {
    const Numbers x = draw(tokens);
    compare(x, [&](LayerCache& cache, const RowsOut& out, const Views& v) {
      cache.step(out, v.q, v.k, v.v, tokens);
    });
  }
  void attend(size_t tokens) {
    const Numbers x = draw(tokens);
    compare(x, [&](LayerCache& cache, const RowsOut& out, const Views& v) {
      cache.attend(out, v.q, tokens);
    });
  }
  void append(size_t tokens) {
    const Numbers x = draw(tokens);
    const Tensors t(*this, x);
    gpu_.append(t.k.view(), t.v.view(), tokens);
    const Views v = host_views(x);
    cpu_.append(v.k, v.v, tokens);
  }
  void end_prompt() {
    cpu_.end_prompt();
    gpu_.end_prompt();
  }
  void protect(const std::vector<TokenRange>& ranges) {
    cpu_.protect(ranges);
    gpu_.protect(ranges);
  }
  /// The GPU's answers to a step of its own, [T, H, D].
  std::vector<float> step_gpu(LayerCache& cache, size_t tokens, uint32_t seed);

  /// A step's tensors on the device.
  struct Given;

  bool same_rows() const {
    for (int g = 0; g < case_.kv_heads; ++g) {
      const HeadRows a = cpu_.rows(g), b = gpu_.rows(g);
      if (a.positions != b.positions) return false;
      for (size_t i = 0; i < a.positions.size(); ++i)
        if (std::abs(a.log_weights[i] - b.log_weights[i]) > 1e-4f) return false;
    }
    return true;
  }
  double worst() const { return worst_; }
  /// The share of passes whose rows were the same.
  double compared() const { return static_cast<double>(compared_) / std::max(1, passes_); }

 private:
  struct Numbers {
    size_t tokens;
    std::vector<float> q, k, v;  // [T, H, D], [T, G, D]
  };
  struct Views {
    RowsView q, k, v;
  };
  struct Tensors {
    Tensors(LayerPair& p, const Numbers& x)
        : q(p.memory_, {x.tokens, p.heads(), p.dim()}, p.layout_, p.stream_),
          k(p.memory_, {x.tokens, p.kv_heads(), p.dim()}, p.layout_, p.stream_),
          v(p.memory_, {x.tokens, p.kv_heads(), p.dim()}, p.layout_, p.stream_) {
      q.set(x.q), k.set(x.k), v.set(x.v);
    }
    Views views() const { return {q.view(), k.view(), v.view()}; }
    DeviceTensor q, k, v;
  };
  size_t heads() const { return static_cast<size_t>(case_.query_heads); }
  size_t kv_heads() const { return static_cast<size_t>(case_.kv_heads); }
  size_t dim() const { return static_cast<size_t>(case_.dim); }
  Numbers draw(size_t tokens, uint32_t seed) const {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const auto numbers = [&](size_t n) {
      std::vector<float> x(n);
      for (float& f : x) f = std::clamp(std::round(normal(rng) * 64) / 64, -3.5f, 3.5f);
      return x;
    };
    return {tokens, numbers(tokens * heads() * dim()), numbers(tokens * kv_heads() * dim()),
            numbers(tokens * kv_heads() * dim())};
  }
  Numbers draw(size_t tokens) { return draw(tokens, ++draws_); }
  RowsView host_view(const std::vector<float>& x, size_t heads) const {
    return {x.data(), DType::kF32, static_cast<ptrdiff_t>(heads * dim()),
            static_cast<ptrdiff_t>(dim())};
  }
  Views host_views(const Numbers& x) const {
    return {host_view(x.q, heads()), host_view(x.k, kv_heads()), host_view(x.v, kv_heads())};
  }
  template <class F>
  void compare(const Numbers& x, const F& pass) {
    const bool same = case_.slides > 0 || same_rows();
    std::vector<float> want(x.q.size());
    const RowsView like = host_view(want, heads());
    pass(cpu_, {want.data(), like.dtype, like.token_stride, like.head_stride}, host_views(x));
    const Tensors t(*this, x);
    DeviceTensor out(memory_, {x.tokens, heads(), dim()}, layout_, stream_);
    pass(gpu_, out.out(), t.views());
    const std::vector<float> got = out.get();
    ++passes_;
    compared_ += same;
    if (same)
      worst_ = std::max(worst_, relative_error(got, std::vector<double>(want.begin(), want.end())));
    EXPECT_TRUE(std::ranges::all_of(got, [](float f) { return std::isfinite(f); }));
  }

  LayerCase case_;
  Layout layout_;
  MemoryCounter memory_;
  LayerCache cpu_;
  std::shared_ptr<Runtime> compute_;
  LayerCache gpu_;
  cudaStream_t stream_ = nullptr;
  uint32_t draws_ = 0;
  double worst_ = 0;
  int passes_ = 0, compared_ = 0;
};

struct LayerPair::Given {
  Given(LayerPair& p, size_t count, uint32_t seed)
      : tokens(count),
        in(p, p.draw(count, seed)),
        out(p.memory_, {count, p.heads(), p.dim()}, p.layout_, p.stream_) {}
  LayerStep step_of(LayerCache& cache) const {
    return {&cache, out.out(), in.q.view(), in.k.view(), in.v.view(), tokens};
  }
  size_t tokens;
  Tensors in;
  DeviceTensor out;
};

inline std::vector<float> LayerPair::step_gpu(LayerCache& cache, size_t tokens, uint32_t seed) {
  Given given(*this, tokens, seed);
  const LayerStep s = given.step_of(cache);
  cache.step(s.out, s.q, s.k, s.v, tokens);
  return given.out.get();
}

inline constexpr Layout kLayouts[] = {{DType::kF32, false}, {DType::kF16, true},
                                      {DType::kBF16, true}, {DType::kF32, true},
                                      {DType::kF16, false}, {DType::kBF16, false}};

}  // namespace pith::cuda
