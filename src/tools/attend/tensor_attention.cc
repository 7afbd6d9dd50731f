#include "tools/attend/tensor_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "pith/error.h"

namespace pith {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// out [count, heads, D] f32 <- rows [first, first + count) of t [heads, T, D]; returns the length
// of the longest row.
double load_rows(std::vector<float>& out, const Kernels& kernels, const Tensor& t, size_t first,
                 size_t count) {
  const size_t heads = t.shape[0], rows = t.shape[1], dim = t.shape[2];
  out.resize(count * heads * dim);
  const DType dtype = t.dtype();
  double longest = 0;
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < count; ++i) {
      float* row = out.data() + (i * heads + h) * dim;
      kernels.to_f32(row, t.data + ((h * rows + first + i) * dim) * size_of(dtype), dtype, dim);
      double squares = 0;
      for (size_t d = 0; d < dim; ++d) {
        squares += double{row[d]} * row[d];
        if (std::isfinite(row[d])) continue;
        throw Error(ErrorCode::kNonFinite,
                    fmt::format("{}: '{}' is {} at [{}, {}, {}]; only finite numbers can be "
                                "attended to",
                                t.file, t.name, row[d], h, first + i, d));
      }
      longest = std::max(longest, squares);
    }
  }
  return std::sqrt(longest);
}

template <class F>
void timed(double& seconds, F&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

AttendTensors attend_tensors(const SafeTensors& file, bool causal) {
  AttendTensors in{&file.at("q"), &file.at("k"), &file.at("v")};
  for (const Tensor* t : {in.q, in.k, in.v}) {
    t->dtype();  // refuses what is not f32, f16 or bf16
    if (t->shape.size() != 3 || t->count() == 0) {
      refuse(
          fmt::format("{}: '{}' has shape {}; wanted: q [H, Tq, D], k and v [G, T, D], none of "
                      "them 0",
                      t->file, t->name, t->shape_text()));
    }
  }
  in.query_heads = in.q->shape[0], in.queries = in.q->shape[1], in.dim = in.q->shape[2];
  in.kv_heads = in.k->shape[0], in.rows = in.k->shape[1];
  if (in.k->shape != in.v->shape || in.k->shape[2] != in.dim) {
    refuse(
        fmt::format("{}: q {}, k {} and v {} do not fit: k and v must have one shape [G, T, D] "
                    "with the D of q",
                    file.source(), in.q->shape_text(), in.k->shape_text(), in.v->shape_text()));
  }
  if (in.query_heads % in.kv_heads != 0) {
    refuse(fmt::format("{}: {} query heads cannot share {} KV heads evenly", file.source(),
                       in.query_heads, in.kv_heads));
  }
  if (in.dim % 16 != 0) {
    refuse(fmt::format("{}: D is {}; supported are multiples of 16", file.source(), in.dim));
  }
  if (causal && in.queries != in.rows) {
    refuse(fmt::format("--causal needs a query for each row, but q has {} and k has {}", in.queries,
                       in.rows));
  }
  return in;
}

TensorAttention::TensorAttention(TensorAttentionOptions options, const AttendTensors& in)
    : in_(in),
      options_(std::move(options)),
      pool_(options_.threads),
      memory_(options_.memory_limit),
      context_{pool_, memory_, kernels_for(options_.isa)} {
  if (options_.rope_theta > 0) rope_ = std::make_unique<Rope>(in.dim, options_.rope_theta);
  CacheShape shape;
  shape.layers = 1;
  shape.query_heads = static_cast<int>(in.query_heads);
  shape.kv_heads = static_cast<int>(in.kv_heads);
  shape.head_dim = static_cast<int>(in.dim);
  shape.context = options_.context > 0 ? options_.context : in.rows;
  if (shape.context < in.rows) {
    throw Error(
        ErrorCode::kContextFull,
        fmt::format("{} rows do not fit into a context of {}; raise -c", in.rows, shape.context));
  }
  ResolvedPolicy policy(options_.policy, shape, options_.seed, Device::kCpu);
  if (!rope_) policy.check_without_rope(0);
  cache_ = std::make_unique<KvCache>(context_, std::move(policy), rope_.get());
  cache_->protect(options_.protect);
  out_.resize(in.query_heads * in.queries * in.dim);
}

bool TensorAttention::run_causal(const Note& note) {
  for (size_t first = 0; first < in_.rows; first += options_.chunk) {
    const size_t count = std::min(options_.chunk, in_.rows - first);
    const double query = load_rows(q_, context_.kernels, *in_.q, first, count);
    load_keys(first, count);
    check_scores(query);
    result_.resize(q_.size());
    timed(timing_.attend,
          [&] { cache_->step(0, result_.data(), q_.data(), k_.data(), v_.data(), count); });
    store(first, count);
    if (!note("attending", first + count, in_.rows)) return false;
  }
  cache_->end_prefill();
  return true;
}

bool TensorAttention::run_streamed(const Note& note) {
  {
    for (size_t first = 0; first < in_.rows; first += options_.chunk) {
      const size_t count = std::min(options_.chunk, in_.rows - first);
      load_keys(first, count);
      timed(timing_.append, [&] { cache_->append(0, k_.data(), v_.data(), count); });
      if (!note("appending", first + count, in_.rows)) return false;
    }
    timed(timing_.append, [&] { cache_->end_prefill(); });
  }
  for (size_t first = 0; first < in_.queries; first += options_.chunk) {
    const size_t count = std::min(options_.chunk, in_.queries - first);
    check_scores(load_rows(q_, context_.kernels, *in_.q, first, count));
    result_.resize(q_.size());
    timed(timing_.attend, [&] { cache_->attend_only(0, result_.data(), q_.data(), count); });
    store(first, count);
    if (!note("attending", first + count, in_.queries)) return false;
  }
  return true;
}

void TensorAttention::load_keys(size_t first, size_t count) {
  longest_key_ = std::max(longest_key_, load_rows(k_, context_.kernels, *in_.k, first, count));
  load_rows(v_, context_.kernels, *in_.v, first, count);
}

// Infinite scores have no softmax: what came out would be NaN, or zeros where blocks are skipped.
void TensorAttention::check_scores(double query) const {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (query * longest_key_ <= kMost) return;
  throw Error(ErrorCode::kNonFinite,
              fmt::format("{}: a query of length {:.2g} and a key of length {:.2g} give scores "
                          "beyond {:.2g}, the largest float; scale them down",
                          in_.q->file, query, longest_key_, kMost));
}

// result_ [count, H, D] into its places of out_ [H, Tq, D].
void TensorAttention::store(size_t first, size_t count) {
  for (const float x : result_)
    if (!std::isfinite(x))
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("{}: values as large as these sum up to {}; scale them down",
                              in_.v->file, x));
  for (size_t i = 0; i < count; ++i) {
    for (size_t h = 0; h < in_.query_heads; ++h) {
      const float* from = result_.data() + (i * in_.query_heads + h) * in_.dim;
      std::copy(from, from + in_.dim, out_.data() + (h * in_.queries + first + i) * in_.dim);
    }
  }
}

void TensorAttention::write(const std::string& path) const {
  std::vector<HeadRows> heads;
  for (size_t g = 0; g < in_.kv_heads; ++g) {
    heads.push_back(cache_->rows(0, static_cast<int>(g)));
  }
  std::vector<TensorBytes> tensors{
      {{"out", TensorType::kF32, {in_.query_heads, in_.queries, in_.dim}}, out_.data()}};
  for (size_t g = 0; g < heads.size(); ++g) {
    const size_t n = heads[g].positions.size();
    tensors.push_back(
        {{fmt::format("rows.{}", g), TensorType::kI64, {n}}, heads[g].positions.data()});
    tensors.push_back(
        {{fmt::format("log_weight.{}", g), TensorType::kF32, {n}}, heads[g].log_weights.data()});
    const auto& roles = heads[g].roles;
    if (std::any_of(roles.begin(), roles.end(), [](Role r) { return r != Role::kBoth; }))
      tensors.push_back({{fmt::format("role.{}", g), TensorType::kU8, {n}}, roles.data()});
  }
  write_safetensors(
      path, std::move(tensors),
      {{"policy", options_.policy.to_string()}, {"seed", std::to_string(options_.seed)}});
}

}  // namespace pith
