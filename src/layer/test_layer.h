#pragma once
// A layer's cache over rows of the test harness.

#include <memory>
#include <string>
#include <vector>

#include "cache_harness.h"
#include "pith/layer_cache.h"

namespace pith::test {

inline LayerCacheOptions options_of(const Shape& s, const std::string& policy) {
  LayerCacheOptions o;
  o.policy = Policy::parse(policy);
  o.query_heads = s.query_heads();
  o.kv_heads = s.kv_heads;
  o.head_dim = s.head_dim;
  o.context = s.context;
  o.seed = 1;
  o.rope_theta = 10000;
  return o;
}

inline RowsView view(const float* x, size_t heads, size_t dim) {
  return {x, DType::kF32, static_cast<ptrdiff_t>(heads * dim), static_cast<ptrdiff_t>(dim)};
}
inline RowsOut out_view(float* x, size_t heads, size_t dim) {
  return {x, DType::kF32, static_cast<ptrdiff_t>(heads * dim), static_cast<ptrdiff_t>(dim)};
}

struct LayerUnderTest {
  Shape shape;
  std::shared_ptr<Runtime> runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 1});
  LayerCache cache;
  size_t heads = static_cast<size_t>(shape.query_heads()),
         kv_heads = static_cast<size_t>(shape.kv_heads), dim = static_cast<size_t>(shape.head_dim);

  explicit LayerUnderTest(const Shape& s, const std::string& policy)
      : shape(s), cache(runtime, options_of(s, policy)) {}
  RowsView q(const Rows& rows, size_t t) const {
    return view(rows.q.data() + t * shape.q_size(), heads, dim);
  }
  RowsView k(const Rows& rows, size_t t) const {
    return view(rows.k.data() + t * shape.kv_size(), kv_heads, dim);
  }
  RowsView v(const Rows& rows, size_t t) const {
    return view(rows.v.data() + t * shape.kv_size(), kv_heads, dim);
  }
  std::vector<float> step(const Rows& rows, size_t first, size_t last, size_t chunk) {
    std::vector<float> out((last - first) * shape.q_size());
    for (size_t t = first; t < last; t += chunk)
      cache.step(out_view(out.data() + (t - first) * shape.q_size(), heads, dim), q(rows, t),
                 k(rows, t), v(rows, t), std::min(chunk, last - t));
    return out;
  }
  std::vector<float> attend(const Rows& rows, size_t first, size_t last) {
    std::vector<float> out((last - first) * shape.q_size());
    cache.attend(out_view(out.data(), heads, dim), q(rows, first), last - first);
    return out;
  }
};

}  // namespace pith::test
