// The compressed cache of one attention layer over arrays of the caller: numpy's, or tensors of
// whatever speaks DLPack, on the CPU or the GPU.
//
// Calls that a layer on the GPU may wait in do so without the interpreter's lock: another thread's
// call may need it to ask for room on the card.

#include <algorithm>
#include <array>

#include "binding.h"
#include "pith/layer_cache.h"

namespace pith::python {
namespace {

using Tensor = nb::ndarray<nb::ro>;
using Written = nb::ndarray<>;

DType dtype_of(nb::dlpack::dtype type, const char* name) {
  const auto code = static_cast<nb::dlpack::dtype_code>(type.code);
  if (code == nb::dlpack::dtype_code::Float && type.bits == 32) return DType::kF32;
  if (code == nb::dlpack::dtype_code::Float && type.bits == 16) return DType::kF16;
  if (code == nb::dlpack::dtype_code::Bfloat && type.bits == 16) return DType::kBF16;
  throw nb::type_error((std::string(name) + ": float32, float16 or bfloat16 is needed").c_str());
}

bool on_gpu(int device_type) {
  return device_type == nb::device::cuda::value || device_type == nb::device::cuda_managed::value;
}

/// [tokens, heads, head_dim] in memory of the device.
struct Wanted {
  size_t tokens = 0;
  int heads = 0, head_dim = 0;
  Device device = Device::kCpu;
};

std::string shape_of(const Tensor& a) {
  std::string text;
  for (size_t i = 0; i < a.ndim(); ++i) text += (i ? ", " : "") + std::to_string(a.shape(i));
  return "[" + text + "]";
}

template <class View, class Array>
View view_of(Array& a, const char* name, const Wanted& w) {
  if (a.ndim() != 3 || a.shape(0) != w.tokens || a.shape(1) != static_cast<size_t>(w.heads) ||
      a.shape(2) != static_cast<size_t>(w.head_dim) || (a.shape(2) > 1 && a.stride(2) != 1))
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + ": [tokens, heads, head_dim] = [" + std::to_string(w.tokens) +
                    ", " + std::to_string(w.heads) + ", " + std::to_string(w.head_dim) +
                    "] is needed, with the numbers of a row adjacent; it is " +
                    shape_of(Tensor(a)));
  const int type = a.device_type();
  if (w.device == Device::kCuda ? !on_gpu(type) : type != nb::device::cpu::value)
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + ": the cache is on the " +
                    (w.device == Device::kCuda ? "GPU" : "CPU") +
                    ", and this array is not; move it, or make the cache with Runtime(device=\"" +
                    (w.device == Device::kCuda ? "cpu" : "cuda") + "\")");
  return {a.data(), dtype_of(a.dtype(), name), static_cast<ptrdiff_t>(a.stride(0)),
          static_cast<ptrdiff_t>(a.stride(1))};
}

/// A cache is one thread's at a time.
class LayerObject {
 public:
  LayerObject(std::shared_ptr<Runtime> r, LayerCacheOptions o)
      : runtime(std::move(r)), options(std::move(o)), cache(runtime, options) {}
  LayerObject(const LayerObject& from, LayerCache c)
      : runtime(from.runtime), options(from.options), cache(std::move(c)) {}
  ~LayerObject() {
    unlocked([this] { const LayerCache gone = std::move(cache); });
  }
  LayerObject(const LayerObject&) = delete;
  LayerObject& operator=(const LayerObject&) = delete;

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
  auto run(Work&& work) {
    const Entered entered(*this);
    return unlocked([&] { return work(); });
  }
  Wanted queries(size_t tokens) const {
    return {tokens, options.query_heads, options.head_dim, runtime->device()};
  }
  Wanted keys(size_t tokens) const {
    return {tokens, options.kv_heads, options.head_dim, runtime->device()};
  }

  std::shared_ptr<Runtime> runtime;
  LayerCacheOptions options;
  LayerCache cache;

 private:
  std::atomic<bool> busy_{false};
};

/// `out`, or a new float32 array of the queries' shape.
nb::object output_for(const Tensor& q, nb::object out) {
  if (!out.is_none()) return out;
  if (on_gpu(q.device_type()))
    throw Error(ErrorCode::kInvalidArgument,
                "out is needed on the GPU: a tensor there of the queries' shape");
  std::vector<size_t> shape;
  for (size_t i = 0; i < q.ndim(); ++i) shape.push_back(q.shape(i));
  auto* held = new std::vector<float>(q.size());
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return nb::cast(Array<float>(held->data(), shape.size(), shape.data(), owner));
}

size_t tokens_of(const Tensor& x, const char* name) {
  if (x.ndim() == 3) return x.shape(0);
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + ": [tokens, heads, head_dim] is needed; it is " + shape_of(x));
}

LayerStep step_of(LayerObject& l, const nb::object& out, const Tensor& q, const Tensor& k,
                  const Tensor& v) {
  const size_t tokens = tokens_of(q, "q");
  auto written = nb::cast<Written>(out);
  return {&l.cache,
          view_of<RowsOut>(written, "out", l.queries(tokens)),
          view_of<RowsView>(q, "q", l.queries(tokens)),
          view_of<RowsView>(k, "k", l.keys(tokens)),
          view_of<RowsView>(v, "v", l.keys(tokens)),
          tokens};
}

nb::object step(LayerObject& l, const Tensor& q, const Tensor& k, const Tensor& v,
                nb::object given) {
  nb::object out = output_for(q, std::move(given));
  const LayerStep s = step_of(l, out, q, k, v);
  l.run([&] { l.cache.step(s.out, s.q, s.k, s.v, s.tokens); });
  return out;
}

using Caches = std::vector<LayerObject*>;

void check_caches(const Caches& caches) {
  if (std::ranges::find(caches, nullptr) != caches.end())
    throw Error(ErrorCode::kInvalidArgument, "caches holds None; a LayerCache is needed");
}

/// Runs them; `stream` as LayerCache.use_stream's.
void run_all(Runtime& runtime, const Caches& caches, const std::vector<LayerStep>& steps,
             std::optional<uintptr_t> stream) {
  std::vector<LayerObject::Entered> entered;
  // One that is named twice has no other user: the step refuses it.
  Caches once = caches;
  std::ranges::sort(once);
  once.erase(std::unique(once.begin(), once.end()), once.end());
  for (LayerObject* cache : once) {
    entered.emplace_back(*cache);
    if (stream) cache->cache.use_stream(reinterpret_cast<void*>(*stream));
  }
  unlocked([&] { runtime.step(steps); });
}

std::vector<nb::object> step_all(Runtime& runtime, const Caches& caches,
                                 const std::vector<Tensor>& q, const std::vector<Tensor>& k,
                                 const std::vector<Tensor>& v,
                                 std::optional<std::vector<nb::object>> given,
                                 std::optional<uintptr_t> stream) {
  const size_t count = caches.size();
  std::vector<nb::object> out =
      given ? std::move(*given) : std::vector<nb::object>(count, nb::none());
  if (q.size() != count || k.size() != count || v.size() != count || out.size() != count)
    throw Error(ErrorCode::kInvalidArgument,
                "caches, q, k, v and out are lists of one length; they have " +
                    std::to_string(count) + ", " + std::to_string(q.size()) + ", " +
                    std::to_string(k.size()) + ", " + std::to_string(v.size()) + " and " +
                    std::to_string(out.size()));
  check_caches(caches);
  std::vector<LayerStep> steps;
  for (size_t i = 0; i < count; ++i) {
    out[i] = output_for(q[i], out[i]);
    steps.push_back(step_of(*caches[i], out[i], q[i], k[i], v[i]));
  }
  run_all(runtime, caches, steps, stream);
  return out;
}

/// A tensor of a batch as torch says where it is: data_ptr() and stride().
using Place = std::pair<uintptr_t, std::array<ptrdiff_t, 4>>;

/// Sequence `b` of it; `token` and `head`: which of its dimensions these are.
template <class View>
View view_at(const Place& place, DType dtype, size_t b, size_t token, size_t head) {
  const auto& [address, strides] = place;
  if (strides[3] != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "a stride of " + std::to_string(strides[3]) +
                    " between the numbers of a row; they have to be adjacent");
  const auto begin =
      static_cast<ptrdiff_t>(b) * strides[0] * static_cast<ptrdiff_t>(size_of(dtype));
  void* data = address == 0 ? nullptr : reinterpret_cast<std::byte*>(address) + begin;
  return {data, dtype, strides[token], strides[head]};
}

void step_at(Runtime& runtime, const Caches& caches, size_t tokens, int dtype, const Place& out,
             const Place& q, const Place& k, const Place& v, std::optional<uintptr_t> stream) {
  check_caches(caches);
  const auto type = static_cast<DType>(dtype);
  std::vector<LayerStep> steps;
  steps.reserve(caches.size());
  for (size_t b = 0; b < caches.size(); ++b)
    steps.push_back({&caches[b]->cache, view_at<RowsOut>(out, type, b, 1, 2),
                     view_at<RowsView>(q, type, b, 2, 1), view_at<RowsView>(k, type, b, 2, 1),
                     view_at<RowsView>(v, type, b, 2, 1), tokens});
  run_all(runtime, caches, steps, stream);
}

void append(LayerObject& l, const Tensor& k, const Tensor& v) {
  const size_t tokens = tokens_of(k, "k");
  const auto k_view = view_of<RowsView>(k, "k", l.keys(tokens));
  const auto v_view = view_of<RowsView>(v, "v", l.keys(tokens));
  l.run([&] { l.cache.append(k_view, v_view, tokens); });
}

nb::object attend(LayerObject& l, const Tensor& q, nb::object given) {
  const size_t tokens = tokens_of(q, "q");
  nb::object out = output_for(q, std::move(given));
  auto written = nb::cast<Written>(out);
  const auto q_view = view_of<RowsView>(q, "q", l.queries(tokens));
  const auto out_view = view_of<RowsOut>(written, "out", l.queries(tokens));
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
  const auto bytes = l.run([&] { return l.cache.save(); });
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void restore(LayerObject& l, const nb::bytes& state) {
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(state.data()), state.size());
  l.run([&] { l.cache = LayerCache::restore(l.runtime, l.options, bytes); });
}

/// RuntimeOptions::make_room by a function of Python's; what it raises is reported, and no room.
std::function<bool()> asks(nb::object function) {
  if (function.is_none()) return {};
  const auto drop = [](nb::object* held) {
    const nb::gil_scoped_acquire lock;
    delete held;
  };
  const std::shared_ptr<nb::object> held(new nb::object(std::move(function)), drop);
  return [held] {
    const nb::gil_scoped_acquire lock;
    try {
      return nb::cast<bool>((*held)());
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("make_room of pith.Runtime");
    } catch (const nb::cast_error&) {
      PyErr_WarnEx(PyExc_RuntimeWarning, "make_room of pith.Runtime returned no bool", 1);
    }
    return false;
  };
}

void bind_runtime(nb::module_& m) {
  nb::class_<Runtime>(m, "Runtime",
                      "Threads and one account of memory, for any number of engines and layers.")
      .def(
          "__init__",
          [](Runtime* self, const std::string& device, int threads, size_t memory_limit,
             const std::string& isa, nb::object make_room) {
            new (self) Runtime({.device = device_of(device),
                                .threads = threads,
                                .memory_limit = memory_limit,
                                .isa = isa,
                                .make_room = asks(std::move(make_room))});
          },
          nb::kw_only(), "device"_a = "cpu", "threads"_a = 0, "memory_limit"_a = 0, "isa"_a = "",
          "make_room"_a = nb::none(),
          "device: where arrays and caches are: \"cpu\", or \"cuda\", the GPU that is current now. "
          "make_room: called where the GPU refuses memory, to free what else of the process holds "
          "it unused; True: ask once more.")
      .def("step", &step_all, "caches"_a, "q"_a, "k"_a, "v"_a, "out"_a = nb::none(),
           "stream"_a = nb::none(),
           "LayerCache.step of many caches in one call, which share the threads: lists of one "
           "length. The results are those of each alone, bit for bit. stream: as use_stream's, of "
           "all these caches.")
      .def("step_at", &step_at, "caches"_a, "tokens"_a, "dtype"_a, "out"_a, "q"_a, "k"_a, "v"_a,
           "stream"_a = nb::none(),
           "step() over tensors of a batch by address, as (data_ptr(), stride()) of torch: q, k, v "
           "[sequences, heads, tokens, head_dim], out [sequences, tokens, heads, head_dim], all of "
           "dtype 0 (float32), 1 (float16) or 2 (bfloat16). Shapes, types and devices are the "
           "caller's word.")
      .def_prop_ro("bytes_in_use", &Runtime::bytes_in_use,
                   "of all that was made with it, weights apart")
      .def_prop_ro("peak_bytes", &Runtime::peak_bytes)
      .def_prop_ro("threads", &Runtime::threads)
      .def_prop_ro("isa", &Runtime::isa);
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
            const auto parsed = parse_ranges(ranges);
            l.run([&] { l.cache.protect(parsed); });
          },
          "ranges"_a, "Tokens to come whose rows stay exact, e.g. \"0:120\".")
      .def("clone",
           [](LayerObject& l) {
             return std::make_shared<LayerObject>(l, l.run([&] { return l.cache.clone(); }));
           })
      .def(
          "use_stream",
          [](LayerObject& l, uintptr_t stream) {
            l.run([&] { l.cache.use_stream(reinterpret_cast<void*>(stream)); });
          },
          "stream"_a,
          "On the GPU: the stream whose work later calls come after and before, a cudaStream_t as "
          "an integer (torch.cuda.current_stream().cuda_stream); 0 is the default stream. Clones "
          "inherit it.")
      .def("save", &saved, "All that the cache needs to continue elsewhere, bit for bit.")
      .def("restore", &restore, "state"_a,
           "Goes on where save() of a cache with these options was called.");
}

void bind_questions(nb::class_<LayerObject>& layer) {
  layer
      .def_prop_ro(
          "tokens", [](LayerObject& l) { return l.run([&] { return l.cache.tokens(); }); },
          "seen so far")
      .def(
          "rows",
          [](LayerObject& l, int head) { return l.run([&] { return l.cache.rows(head); }); },
          "head"_a, "Which rows a KV head holds.")
      .def("read_rows", &read_rows, "head"_a,
           "(keys, values) float32 [rows, head_dim], as attention reads them, in the order of "
           "rows(head).")
      .def(
          "scores",
          [](LayerObject& l, int head) {
            return array_of(l.run([&] { return l.cache.scores(head); }));
          },
          "head"_a,
          "The selector's score of each row of rows(head), float64: the larger stays; infinite for "
          "rows that it does not choose among.")
      .def("ledger", [](LayerObject& l) { return l.run([&] { return l.cache.ledger(); }); })
      .def("attention_error",
           [](LayerObject& l) { return l.run([&] { return l.cache.attention_error(); }); })
      .def("describe", [](LayerObject& l) { return l.run([&] { return l.cache.describe(); }); });
}

}  // namespace

void bind_layer(nb::module_& m) {
  bind_runtime(m);
  nb::class_<LayerObject> layer(m, "LayerCache",
                                "The compressed cache of one attention layer over your own arrays "
                                "[tokens, heads, head_dim]: numpy's, or tensors of PyTorch and "
                                "others, where its Runtime is. Any strides, as long as a row's "
                                "numbers are adjacent.");
  layer.def(
      nb::new_([](const std::string& policy, int query_heads, int kv_heads, int head_dim,
                  size_t context, size_t percent_of, int index, int layers, int64_t window,
                  uint64_t seed, double rope_theta, const std::vector<double>& frequencies,
                  double scale, double soft_cap, const std::vector<float>& sink_logits,
                  const std::string& protect, size_t probe_rows, size_t probe_every,
                  std::shared_ptr<Runtime> runtime) {
        LayerCacheOptions o;
        o.policy = Policy::parse(policy);
        o.query_heads = query_heads, o.kv_heads = kv_heads, o.head_dim = head_dim;
        o.context = context, o.percent_of = percent_of, o.layer = index, o.layers = layers,
        o.sliding_window = window;
        o.seed = seed, o.rope_theta = rope_theta, o.rope_frequencies = frequencies;
        o.scale = scale, o.soft_cap = soft_cap, o.sink_logits = sink_logits;
        o.protect = parse_ranges(protect);
        o.error_probe = {probe_rows, probe_every, 0};
        if (!runtime) runtime = std::make_shared<Runtime>();
        return unlocked([&] { return std::make_shared<LayerObject>(runtime, std::move(o)); });
      }),
      "policy"_a, nb::kw_only(), "query_heads"_a, "kv_heads"_a, "head_dim"_a, "context"_a,
      "percent_of"_a = 0, "layer"_a = 0, "layers"_a = 1, "sliding_window"_a = 0, "seed"_a = 0,
      "rope_theta"_a = 0.0, "rope_frequencies"_a = std::vector<double>(), "scale"_a = 0.0,
      "soft_cap"_a = 0.0, "sink_logits"_a = std::vector<float>(), "protect"_a = "",
      "probe_rows"_a = 0, "probe_every"_a = 16, "runtime"_a.none() = nb::none(),
      "context: the most tokens there will be. Budgets in per cent are of percent_of tokens, 0 = "
      "of "
      "the context. rope_theta (or "
      "rope_frequencies [head_dim / 2]): of the RoPE that keys and queries come with, for policies "
      "that rotate them. scale: of q.k in the softmax, 0 = 1/sqrt(head_dim). soft_cap: scores s "
      "count as soft_cap tanh(s / soft_cap), 0 = as they are. sink_logits: one more logit of each "
      "query head in its softmax, which takes no value. runtime: shared by layers; None makes "
      "one.");
  bind_calls(layer);
  bind_questions(layer);
}

}  // namespace pith::python
