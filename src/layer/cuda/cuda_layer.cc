// A layer's cache on the GPU, over device pointers. All layers of a Runtime have its stream, which
// waits for the caller's and is waited for by it; what housekeeping follows a call delays nobody
// but the next call.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "attend/cuda/decode_groups.h"
#include "kernels/cuda/strided.h"
#include "layer/layer_backend.h"
#include "pith/error.h"
#include "runtime/cuda/bits_of_card.h"
#include "runtime/cuda/cuda_runtime.h"

namespace pith {
namespace {

using cuda::CudaRuntime;
using cuda::ShapeSpace;
using cuda::Turn;

constexpr size_t kAligned = 16;  // bytes: what attention's results must be to be written in place

/// Has the turn. Between begin and end our stream does what the caller's waits for, also where a
/// call fails in between: what it is given may be read until then.
class Call {
 public:
  Call(CudaRuntime& runtime, cudaStream_t callers)
      : runtime_(runtime), turn_(runtime), callers_(callers) {
    runtime_.order.begin(runtime_.stream.stream, callers_);
  }
  ~Call() {
    try {
      if (!ended_) end();
    } catch (const Error&) {  // the first failure is the caller's
    }
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  void end() {
    ended_ = true;
    runtime_.order.end(runtime_.stream.stream, callers_);
  }

 private:
  CudaRuntime& runtime_;
  Turn turn_;
  cudaStream_t callers_;
  bool ended_ = false;
};

/// How the caller's tensors and the cache's lie, as copies between them.
class LayerTensors {
 public:
  /// `dtype` of the cache's.
  LayerTensors(const LayerSite& site, DType dtype) : site_(site), dtype_(dtype) {}

  cuda::StridedCopy keys_to(const cuda::RowTarget& to, const RowsView& k) const {
    return {rows_at(to, to.k), rows_of(k), static_cast<int>(site_.kv_heads)};
  }
  cuda::StridedCopy values_to(const cuda::RowTarget& to, const RowsView& v) const {
    return {rows_at(to, to.v), rows_of(v), static_cast<int>(site_.kv_heads)};
  }
  std::array<cuda::StridedCopy, 2> rows_to(const cuda::RowTarget& to, const RowsView& k,
                                           const RowsView& v) const {
    return {keys_to(to, k), values_to(to, v)};
  }
  cuda::StridedCopy queries_to(void* to, const RowsView& q) const {
    return {side_by_side(to, dtype_), rows_of(q), static_cast<int>(site_.query_heads),
            site_.query_factor};
  }
  struct Step {
    const RowsView &q, &k, &v;
  };
  std::array<cuda::StridedCopy, 3> step_to(void* queries, const cuda::RowTarget& to,
                                           const Step& step) const {
    return {queries_to(queries, step.q), keys_to(to, step.k), values_to(to, step.v)};
  }
  cuda::StridedCopy answers_to(const RowsOut& out, const float* from) const {
    return {{out.data, out.dtype, out.token_stride, out.head_stride},
            side_by_side(const_cast<float*>(from), DType::kF32),
            static_cast<int>(site_.query_heads)};
  }

 private:
  // Strided copies read what they are given: only `to` is written.
  static cuda::StridedRows rows_of(const RowsView& x) {
    return {const_cast<void*>(x.data), x.dtype, x.token_stride, x.head_stride};
  }
  /// Rows from to.row on, of every KV head.
  cuda::StridedRows rows_at(const cuda::RowTarget& to, void* side) const {
    const size_t first = static_cast<size_t>(to.row) * site_.dim * 2;
    return {static_cast<std::byte*>(side) + first, dtype_, static_cast<ptrdiff_t>(site_.dim),
            static_cast<ptrdiff_t>(to.head_stride)};
  }
  cuda::StridedRows side_by_side(void* data, DType dtype) const {
    return {data, dtype, static_cast<ptrdiff_t>(site_.query_heads * site_.dim),
            static_cast<ptrdiff_t>(site_.dim)};
  }

  const LayerSite& site_;
  DType dtype_;
};

class CudaLayer final : public LayerBackend {
 public:
  /// The turn is the caller's.
  CudaLayer(CudaRuntime& runtime, const LayerCacheOptions& o) : runtime_(runtime), site_(o) {
    // A policy that the GPU lacks is refused before memory is allocated.
    const ResolvedPolicy can_be(o.policy, shape_of(o), o.seed, Device::kCuda);
    space_ = &runtime.space(o.query_heads, o.kv_heads, o.head_dim);
    cache_ = std::make_unique<cuda::DeviceCache>(runtime.memory, shape_of(o), o.policy, o.seed,
                                                 runtime.stream.stream, site_.rope.get(),
                                                 space_->common, o.layer);
    cache_->protect(o.protect);
    if (o.error_probe.rows > 0)
      cache_->start_error_probe(o.error_probe, o.seed, runtime.host_threads);
  }
  CudaLayer(const CudaLayer& o)
      : runtime_(o.runtime_),
        site_(o.site_),
        space_(o.space_),
        callers_(o.callers_),
        cache_(o.cache_->clone()) {}
  ~CudaLayer() override {
    const Turn turn(runtime_);
    cache_.reset();
  }

  std::unique_ptr<LayerBackend> clone() const override {
    const Turn turn(runtime_);
    return std::make_unique<CudaLayer>(*this);
  }

  void step(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
            size_t tokens) override {
    check_places({{out.data, "out"}, {q.data, "q"}, {k.data, "k"}, {v.data, "v"}});
    Call call(runtime_, callers_);
    if (tokens == 1) {
      step_token(out, q, k, v);
      call.end();
      cache_->steps().end_token();
    } else {
      step_chunk(out, q, k, v, tokens);
      call.end();
      cache_->chunks().end_chunk(site_.layer, tokens);
    }
  }

  /// Whether these go together: a token of each, of layers of one shape, for one caller's stream.
  static bool share_launches(std::span<const BackendStep> steps) {
    if (steps.size() < 2) return false;
    const CudaLayer& first = of(steps.front());
    return std::ranges::all_of(steps, [&](const BackendStep& s) {
      const CudaLayer& l = of(s);
      return s.given->tokens == 1 && l.space_ == first.space_ && l.callers_ == first.callers_;
    });
  }
  /// Such steps. Rows are cut over blocks as those of a step alone, which gives its bits.
  static void step_together(std::span<const BackendStep> steps) {
    for (const BackendStep& s : steps) {
      const LayerStep& g = *s.given;
      of(s).check_places({{g.out.data, "out"}, {g.q.data, "q"}, {g.k.data, "k"}, {g.v.data, "v"}});
    }
    const CudaLayer& first = of(steps.front());
    Call call(first.runtime_, first.callers_);
    const std::vector<cuda::DecodePlace> places = take_tokens(steps);
    attend_together(steps, places);
    call.end();
    cuda::LateWork late;
    for (const BackendStep& s : steps) of(s).cache_->steps().end_token(late);
    first.cache_->steps().run(late);
  }

  void append(const RowsView& k, const RowsView& v, size_t tokens) override {
    check_places({{k.data, "k"}, {v.data, "v"}});
    Call call(runtime_, callers_);
    const cuda::RowTarget to = cache_->chunks().begin_chunk(site_.layer, tokens);
    cuda::copy_strided(tensors().rows_to(to, k, v), tokens, site_.dim, stream());
    call.end();
    cache_->chunks().append_chunk(site_.layer, tokens);
  }

  void attend(const RowsOut& out, const RowsView& q, size_t tokens) override {
    check_places({{out.data, "out"}, {q.data, "q"}});
    const Call call(runtime_, callers_);
    if (tokens == 1) {
      cache_->steps().begin_query();
      runtime_.uploads.send(cache_->steps().token_uploads(), stream());
    }
    void* queries = room_for_queries(tokens);
    cuda::copy_strided(std::array{tensors().queries_to(queries, q)}, tokens, site_.dim, stream());
    if (tokens == 1) {
      float* to = in_place(out, DType::kF32) ? static_cast<float*>(out.data) : answers(1);
      cache_->steps().attend_only(
          site_.layer, cache_->steps().token_place(site_.layer, to, queries), space_->scratch());
      if (to != out.data) hand_out(out, to, 1);
    } else {
      hand_out(out, cache_->chunks().attend_chunk_only(site_.layer, queries, tokens), tokens);
    }
  }

  void end_prompt() override {
    const Turn turn(runtime_);
    cache_->chunks().end_prefill();
    space_->clear();
  }
  void protect(std::span<const TokenRange> ranges) override {
    const Turn turn(runtime_);
    cache_->protect(ranges);
  }
  void use_stream(void* stream) override { callers_ = static_cast<cudaStream_t>(stream); }

  size_t tokens() const override {
    const Turn turn(runtime_);
    return cache_->tokens();
  }
  HeadRows rows(int head) const override {
    const Turn turn(runtime_);
    return cache_->rows(site_.layer, head);
  }
  void read_rows(int head, float* k, float* v) const override {
    const Turn turn(runtime_);
    cache_->read_rows(site_.layer, head, k, v);
  }
  Ledger ledger() const override {
    const Turn turn(runtime_);
    return cache_->ledger();
  }
  std::string describe() const override { return cache_->describe(); }
  std::optional<AttentionError> attention_error() const override {
    const Turn turn(runtime_);
    const auto all = cache_->attention_errors();
    return all.empty() ? std::nullopt : std::optional(all.front());
  }
  std::vector<TokenRange> protected_tokens() const override { return cache_->protected_tokens(); }
  void archive(Archive& a) override {
    const Turn turn(runtime_);
    cache_->archive(a);
    cache_->archive_layer(site_.layer, a);
  }
  std::string bits() const override { return cuda::bits_of_card(); }

 private:
  struct Place {
    const void* data;
    const char* name;
  };

  cudaStream_t stream() const { return runtime_.stream.stream; }

  /// A host's address in a kernel would end the process's use of the GPU.
  void check_places(std::initializer_list<Place> places) const {
    for (const Place& place : places) {
      cudaPointerAttributes about{};
      cuda::check(cudaPointerGetAttributes(&about, place.data), place.name);
      if (about.type == cudaMemoryTypeUnregistered)
        throw Error(
            ErrorCode::kInvalidArgument,
            fmt::format("{} is memory of the host, and the cache is on the GPU: pass device "
                        "pointers, or make the cache with a Runtime on the CPU",
                        place.name));
      if (about.type == cudaMemoryTypeDevice && about.device != runtime_.device)
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("{} is memory of GPU {}, and the cache is on GPU {}", place.name,
                                about.device, runtime_.device));
    }
  }

  LayerTensors tensors() const { return {site_, cache_->dtype()}; }

  void* room_for_queries(size_t tokens) const {
    const size_t bytes = 2 * tokens * site_.query_heads * site_.dim;
    if (space_->queries.size() < bytes) space_->queries.allocate(bytes, stream());
    return space_->queries.data();
  }
  float* answers(size_t tokens) const {
    const size_t numbers = tokens * site_.query_heads * site_.dim;
    if (space_->answers.size() < numbers) space_->answers.allocate(numbers, stream());
    return space_->answers.data();
  }
  /// Whether attention can write there, as numbers of that type.
  bool in_place(const RowsOut& out, DType dtype) const {
    return out.dtype == dtype && without_gaps(out, site_.query_heads, site_.dim) &&
           reinterpret_cast<uintptr_t>(out.data) % kAligned == 0;
  }
  void hand_out(const RowsOut& out, const float* from, size_t tokens) const {
    const cuda::StridedCopy copy = tensors().answers_to(out, from);
    cuda::copy_strided({&copy, 1}, tokens, site_.dim, stream());
  }

  void step_token(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v) {
    cache_->steps().begin_token();
    runtime_.uploads.send(cache_->steps().token_uploads(), stream());
    const cuda::RowTarget& to = cache_->steps().token_target(site_.layer);
    void* queries = room_for_queries(1);
    cuda::copy_strided(tensors().step_to(queries, to, {q, k, v}), 1, site_.dim, stream());
    float* found = in_place(out, DType::kF32) ? static_cast<float*>(out.data) : answers(1);
    cache_->steps().attend_token(
        site_.layer, cache_->steps().token_place(site_.layer, found, queries), space_->scratch());
    if (cache_->steps().comparing()) cache_->steps().compare_token(site_.layer, found, queries);
    if (found != out.data) hand_out(out, found, 1);
  }

  void step_chunk(const RowsOut& out, const RowsView& q, const RowsView& k, const RowsView& v,
                  size_t tokens) {
    void* queries = room_for_queries(tokens);
    const cuda::RowTarget to = cache_->chunks().begin_chunk(site_.layer, tokens);
    cuda::copy_strided(tensors().step_to(queries, to, {q, k, v}), tokens, site_.dim, stream());
    const bool direct = in_place(out, out.dtype);
    void* found = direct ? out.data : answers(tokens);
    cache_->chunks().attend_chunk(site_.layer, found, direct ? out.dtype : DType::kF32, queries,
                                  tokens);
    if (!direct) hand_out(out, static_cast<const float*>(found), tokens);
  }

  static CudaLayer& of(const BackendStep& step) { return static_cast<CudaLayer&>(*step.layer); }

  /// The tokens' rows and queries come, with what attention's kernels read of each; [n] where its
  /// numbers are.
  static std::vector<cuda::DecodePlace> take_tokens(std::span<const BackendStep> steps) {
    const CudaLayer& first = of(steps.front());
    const size_t n = steps.size(), width = first.site_.query_heads * first.site_.dim;
    auto* queries = static_cast<std::byte*>(first.room_for_queries(n));
    float* answers = first.answers(n);
    std::vector<cuda::Upload> uploads;
    std::vector<cuda::StridedCopy> copies;
    std::vector<cuda::DecodePlace> places;
    for (size_t i = 0; i < n; ++i) {
      const CudaLayer& l = of(steps[i]);
      const LayerStep& given = *steps[i].given;
      l.cache_->steps().begin_token();
      std::ranges::copy(l.cache_->steps().token_uploads(), std::back_inserter(uploads));
      const cuda::RowTarget& to = l.cache_->steps().token_target(l.site_.layer);
      void* q = queries + 2 * i * width;
      const auto mine = l.tensors().step_to(q, to, {given.q, given.k, given.v});
      copies.insert(copies.end(), mine.begin(), mine.end());
      float* out = l.in_place(given.out, DType::kF32) ? static_cast<float*>(given.out.data)
                                                      : answers + i * width;
      places.push_back(l.cache_->steps().token_place(l.site_.layer, out, q));
    }
    const std::vector<cuda::DecodePlace> by_call = places_by_call(steps, places);
    uploads.push_back(first.space_->upload_of(by_call));
    first.runtime_.uploads.send(uploads, first.stream());
    copy_all(copies, first);
    return places;
  }
  /// [calls, n]: a layer's calls have each its place beside those of the others' same call.
  static std::vector<cuda::DecodePlace> places_by_call(
      std::span<const BackendStep> steps, const std::vector<cuda::DecodePlace>& places) {
    const size_t n = steps.size();
    size_t calls = 0;
    for (const BackendStep& s : steps)
      calls = std::max(calls, of(s).cache_->steps().token_calls(of(s).site_.layer));
    std::vector<cuda::DecodePlace> all(calls * n);
    for (size_t i = 0; i < n; ++i) {
      const CudaLayer& l = of(steps[i]);
      for (size_t c = 0; c < l.cache_->steps().token_calls(l.site_.layer); ++c)
        all[c * n + i] = l.cache_->steps().place_of_call(l.site_.layer, c, places[i]);
    }
    return all;
  }
  static void attend_together(std::span<const BackendStep> steps,
                              const std::vector<cuda::DecodePlace>& places) {
    const CudaLayer& first = of(steps.front());
    const cuda::DecodeScratch& scratch = first.space_->scratch(steps.size());
    cuda::DecodeGroups groups;
    for (size_t i = 0; i < steps.size(); ++i) {
      const CudaLayer& l = of(steps[i]);
      groups.next_sequence();
      l.cache_->steps().attend_token(l.site_.layer, places[i], scratch,
                                     {&groups, first.space_->places.data() + i, steps.size()});
      if (l.cache_->steps().comparing())
        l.cache_->steps().compare_token(l.site_.layer, places[i].out, places[i].q);
    }
    cuda::DecodeGroups::run(groups.take(), first.stream());
    std::vector<cuda::StridedCopy> copies;
    for (size_t i = 0; i < steps.size(); ++i)
      if (const RowsOut& out = steps[i].given->out; out.data != places[i].out)
        copies.push_back(of(steps[i]).tensors().answers_to(out, places[i].out));
    copy_all(copies, first);
  }
  /// Of a token each.
  static void copy_all(std::span<const cuda::StridedCopy> copies, const CudaLayer& any) {
    for (size_t at = 0; at < copies.size(); at += cuda::kMostStridedCopies)
      cuda::copy_strided(copies.subspan(at, std::min(copies.size() - at, cuda::kMostStridedCopies)),
                         1, any.site_.dim, any.stream());
  }

  CudaRuntime& runtime_;
  LayerSite site_;
  ShapeSpace* space_ = nullptr;
  cudaStream_t callers_ = nullptr;
  std::unique_ptr<cuda::DeviceCache> cache_;
};

}  // namespace

std::unique_ptr<LayerBackend> make_cuda_layer(RuntimeBackend& runtime,
                                              const LayerCacheOptions& options) {
  auto& ours = static_cast<CudaRuntime&>(runtime);
  const Turn turn(ours);
  return std::make_unique<CudaLayer>(ours, options);
}

void step_cuda_layers(std::span<const BackendStep> steps) {
  if (CudaLayer::share_launches(steps)) return CudaLayer::step_together(steps);
  for (const BackendStep& one : steps) one.run();
}

}  // namespace pith
