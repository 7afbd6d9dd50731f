// The compressed cache of one attention layer over arrays of the caller: numpy's, or CPU tensors of
// whatever speaks DLPack.

#include <algorithm>
#include <cstring>

#include "binding.h"
#include "pith/layer_cache.h"

namespace pith::python {
namespace {

using Tensor = nb::ndarray<nb::ro, nb::ndim<3>, nb::device::cpu>;
using Written = nb::ndarray<nb::ndim<3>, nb::device::cpu>;

DType dtype_of(nb::dlpack::dtype type, const char* name) {
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  if (code == nb::dlpack::dtype_code::Float && type.bits == 32) return DType::kF32;
  if (code == nb::dlpack::dtype_code::Float && type.bits == 16) return DType::kF16;
  if (code == nb::dlpack::dtype_code::Bfloat && type.bits == 16) return DType::kBF16;
  throw nb::type_error((std::string(name) + ": float32, float16 or bfloat16 is needed").c_str());
}

template <class View, class Array>
View view_of(Array& a, const char* name, size_t tokens, int heads, int head_dim) {
  if (a.shape(0) != tokens || a.shape(1) != static_cast<size_t>(heads) ||
      a.shape(2) != static_cast<size_t>(head_dim) || (a.shape(2) > 1 && a.stride(2) != 1))
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + ": [tokens, heads, head_dim] = [" + std::to_string(tokens) +
                    ", " + std::to_string(heads) + ", " + std::to_string(head_dim) +
                    "] is needed, with the numbers of a row adjacent; it is [" +
                    std::to_string(a.shape(0)) + ", " + std::to_string(a.shape(1)) + ", " +
                    std::to_string(a.shape(2)) + "]");
  return {a.data(), dtype_of(a.dtype(), name), static_cast<ptrdiff_t>(a.stride(0)),
          static_cast<ptrdiff_t>(a.stride(1))};
}

/// A cache is one thread's at a time.
class LayerObject {
 public:
  LayerObject(std::shared_ptr<Compute> c, LayerCacheOptions o)
      : compute(std::move(c)), options(std::move(o)), cache(compute, options) {}
  LayerObject(const LayerObject& from, LayerCache c)
      : compute(from.compute), options(from.options), cache(std::move(c)) {}

  /// Holds the cache while it lives.
  class Entered {
   public:
    explicit Entered(LayerObject& layer) : busy_(&layer.busy_) {
      if (busy_->exchange(true)) {
        busy_ = nullptr;
        raise_busy("another thread is in this cache; clone() makes another");
      }
    }
    Entered(Entered&& o) noexcept : busy_(std::exchange(o.busy_, nullptr)) {}
    Entered& operator=(Entered&&) = delete;
    ~Entered() {
      if (busy_) *busy_ = false;
    }

   private:
    std::atomic<bool>* busy_;
  };

  template <class Work>
  void run(Work&& work) {
    const Entered entered(*this);
    unlocked([&] { work(); });
  }
  LayerCache& asked() {
    if (busy_) raise_busy("another thread is in this cache; clone() makes another");
    return cache;
  }

  std::shared_ptr<Compute> compute;
  LayerCacheOptions options;
  LayerCache cache;

 private:
  std::atomic<bool> busy_{false};
};

/// `out`, or a new float32 array of the queries' shape.
nb::object output_for(const Tensor& q, nb::object out) {
  if (!out.is_none()) return out;
  const size_t numbers = q.shape(0) * q.shape(1) * q.shape(2);
  auto* held = new std::vector<float>(numbers);
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return nb::cast(
      Array<float, nb::ndim<3>>(held->data(), {q.shape(0), q.shape(1), q.shape(2)}, owner));
}

LayerStep step_of(LayerObject& l, const nb::object& out, const Tensor& q, const Tensor& k,
                  const Tensor& v) {
  const size_t tokens = q.shape(0);
  const LayerCacheOptions& o = l.options;
  auto written = nb::cast<Written>(out);
  return {&l.cache,
          view_of<RowsOut>(written, "out", tokens, o.query_heads, o.head_dim),
          view_of<RowsView>(q, "q", tokens, o.query_heads, o.head_dim),
          view_of<RowsView>(k, "k", tokens, o.kv_heads, o.head_dim),
          view_of<RowsView>(v, "v", tokens, o.kv_heads, o.head_dim),
          tokens};
}

nb::object step(LayerObject& l, const Tensor& q, const Tensor& k, const Tensor& v,
                nb::object given) {
  nb::object out = output_for(q, std::move(given));
  const LayerStep s = step_of(l, out, q, k, v);
  l.run([&] { l.cache.step(s.out, s.q, s.k, s.v, s.tokens); });
  return out;
}

std::vector<nb::object> step_all(Compute& compute, const std::vector<LayerObject*>& caches,
                                 const std::vector<Tensor>& q, const std::vector<Tensor>& k,
                                 const std::vector<Tensor>& v,
                                 std::optional<std::vector<nb::object>> given) {
  const size_t count = caches.size();
  std::vector<nb::object> out =
      given ? std::move(*given) : std::vector<nb::object>(count, nb::none());
  if (q.size() != count || k.size() != count || v.size() != count || out.size() != count)
    throw Error(ErrorCode::kInvalidArgument,
                "caches, q, k, v and out are lists of one length; they have " +
                    std::to_string(count) + ", " + std::to_string(q.size()) + ", " +
                    std::to_string(k.size()) + ", " + std::to_string(v.size()) + " and " +
                    std::to_string(out.size()));
  std::vector<LayerStep> steps;
  for (size_t i = 0; i < count; ++i) {
    if (caches[i] == nullptr)
      throw Error(ErrorCode::kInvalidArgument, "caches holds None; a LayerCache is needed");
    out[i] = output_for(q[i], out[i]);
    steps.push_back(step_of(*caches[i], out[i], q[i], k[i], v[i]));
  }
  std::vector<LayerObject::Entered> entered;
  // One that is named twice is in use by nobody else: the step refuses it and says so.
  std::vector<LayerObject*> once = caches;
  std::ranges::sort(once);
  once.erase(std::unique(once.begin(), once.end()), once.end());
  for (LayerObject* cache : once) entered.emplace_back(*cache);
  unlocked([&] { compute.step(steps); });
  return out;
}

void append(LayerObject& l, const Tensor& k, const Tensor& v) {
  const size_t tokens = k.shape(0);
  const auto k_view = view_of<RowsView>(k, "k", tokens, l.options.kv_heads, l.options.head_dim);
  const auto v_view = view_of<RowsView>(v, "v", tokens, l.options.kv_heads, l.options.head_dim);
  l.run([&] { l.cache.append(k_view, v_view, tokens); });
}

nb::object attend(LayerObject& l, const Tensor& q, nb::object given) {
  const size_t tokens = q.shape(0);
  nb::object out = output_for(q, std::move(given));
  auto written = nb::cast<Written>(out);
  const auto q_view = view_of<RowsView>(q, "q", tokens, l.options.query_heads, l.options.head_dim);
  const auto out_view =
      view_of<RowsOut>(written, "out", tokens, l.options.query_heads, l.options.head_dim);
  l.run([&] { l.cache.attend(out_view, q_view, tokens); });
  return out;
}

nb::tuple read_rows(LayerObject& l, int head) {
  const auto head_dim = static_cast<size_t>(l.options.head_dim);
  size_t rows = 0;
  std::vector<float> k, v;
  l.run([&] {
    rows = l.cache.rows(head).positions.size();
    k.resize(rows * head_dim), v.resize(rows * head_dim);
    l.cache.read_rows(head, k.data(), v.data());
  });
  return nb::make_tuple(matrix_of(std::move(k), rows, head_dim),
                        matrix_of(std::move(v), rows, head_dim));
}

nb::bytes saved(LayerObject& l) {
  const auto bytes = l.asked().save();
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void restore(LayerObject& l, const nb::bytes& state) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(state.data()), state.size());
  l.asked();
  l.cache = LayerCache::restore(l.compute, l.options, bytes);
}

void bind_compute(nb::module_& m) {
  nb::class_<Compute>(m, "Compute", "Threads and one account of memory, for any number of layers.")
      .def(
          "__init__",
          [](Compute* self, int threads, size_t memory_limit, const std::string& isa) {
            new (self) Compute({.threads = threads, .memory_limit = memory_limit, .isa = isa});
          },
          nb::kw_only(), "threads"_a = 0, "memory_limit"_a = 0, "isa"_a = "")
      .def("step", &step_all, "caches"_a, "q"_a, "k"_a, "v"_a, "out"_a = nb::none(),
           "LayerCache.step of many caches in one call, which share the threads: lists of one "
           "length. The results are those of each alone, bit for bit.")
      .def_prop_ro("bytes_in_use", &Compute::bytes_in_use);
}

void bind_calls(nb::class_<LayerObject>& layer) {
  layer
      .def(
          "step", &step, "q"_a, "k"_a, "v"_a, "out"_a = nb::none(),
          "A pass of a model: the queries [tokens, query_heads, head_dim] attend to what is stored "
          "and, causally, to the rows of these tokens, which are then stored and compressed. "
          "Keys and queries come after RoPE. Returns out, float32 unless given.")
      .def("append", &append, "k"_a, "v"_a, "Stores rows without queries.")
      .def("attend", &attend, "q"_a, "out"_a = nb::none(),
           "Queries behind all that is stored attend to it.")
      .def(
          "end_prompt", [](LayerObject& l) { l.run([&] { l.cache.end_prompt(); }); },
          "The prompt is complete: selectors that choose at its end do.")
      .def(
          "protect",
          [](LayerObject& l, const std::string& ranges) {
            l.asked().protect(parse_ranges(ranges));
          },
          "ranges"_a, "Tokens to come whose rows stay exact, e.g. \"0:120\".")
      .def("clone",
           [](LayerObject& l) { return std::make_shared<LayerObject>(l, l.asked().clone()); })
      .def("save", &saved, "All that the cache needs to go on elsewhere, bit for bit.")
      .def("restore", &restore, "state"_a,
           "Goes on where save() of a cache with these options was called.");
}

void bind_questions(nb::class_<LayerObject>& layer) {
  layer
      .def_prop_ro(
          "tokens", [](LayerObject& l) { return l.asked().tokens(); }, "seen so far")
      .def(
          "rows", [](LayerObject& l, int head) { return l.asked().rows(head); }, "head"_a,
          "Which rows a KV head holds.")
      .def("read_rows", &read_rows, "head"_a,
           "(keys, values) float32 [rows, head_dim], as attention reads them, in the order of "
           "rows(head).")
      .def(
          "scores",
          [](LayerObject& l, int head) {
            std::vector<double> scores;
            l.run([&] { scores = l.cache.scores(head); });
            return array_of(std::move(scores));
          },
          "head"_a,
          "The selector's score of each row of rows(head), float64: the larger stays; infinite for "
          "rows that it does not choose among.")
      .def("ledger", [](LayerObject& l) { return l.asked().ledger(); })
      .def("attention_error", [](LayerObject& l) { return l.asked().attention_error(); })
      .def("describe", [](LayerObject& l) { return l.asked().describe(); });
}

}  // namespace

void bind_layer(nb::module_& m) {
  bind_compute(m);
  nb::class_<LayerObject> layer(m, "LayerCache",
                                "The compressed cache of one attention layer over your own arrays "
                                "[tokens, heads, head_dim]: numpy's, or CPU tensors of PyTorch and "
                                "others. Any strides, as long as a row's numbers are adjacent.");
  layer.def(
      nb::new_([](const std::string& policy, int query_heads, int kv_heads, int head_dim,
                  size_t context, size_t percent_of, int index, int layers, int64_t window,
                  uint64_t seed, double rope_theta, const std::vector<double>& frequencies,
                  double scale, const std::string& protect, size_t probe_rows, size_t probe_every,
                  std::shared_ptr<Compute> compute) {
        LayerCacheOptions o;
        o.policy = Policy::parse(policy);
        o.query_heads = query_heads, o.kv_heads = kv_heads, o.head_dim = head_dim;
        o.context = context, o.percent_of = percent_of, o.layer = index, o.layers = layers,
        o.sliding_window = window;
        o.seed = seed, o.rope_theta = rope_theta, o.rope_frequencies = frequencies;
        o.scale = scale, o.protect = parse_ranges(protect);
        o.error_probe = {probe_rows, probe_every, 0};
        if (!compute) compute = std::make_shared<Compute>();
        return std::make_shared<LayerObject>(std::move(compute), std::move(o));
      }),
      "policy"_a, nb::kw_only(), "query_heads"_a, "kv_heads"_a, "head_dim"_a, "context"_a,
      "percent_of"_a = 0, "layer"_a = 0, "layers"_a = 1, "sliding_window"_a = 0, "seed"_a = 0,
      "rope_theta"_a = 0.0, "rope_frequencies"_a = std::vector<double>(), "scale"_a = 0.0,
      "protect"_a = "", "probe_rows"_a = 0, "probe_every"_a = 16, "compute"_a.none() = nb::none(),
      "context: the most tokens there will be. Budgets in per cent are of percent_of tokens, 0 = "
      "of "
      "the context. rope_theta (or "
      "rope_frequencies [head_dim / 2]): of the RoPE that keys and queries come with, for policies "
      "that rotate them. scale: of q.k in the softmax, 0 = 1/sqrt(head_dim). compute: shared by "
      "layers; None makes one.");
  bind_calls(layer);
  bind_questions(layer);
}

}  // namespace pith::python
