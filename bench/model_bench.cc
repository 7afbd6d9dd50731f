// A model's speed beside what bounds it, in one run: prefill against oneDNN's own rate for the same
// matrix products (its own threads, bf16 or f32 as the model's products run), decode against the
// bytes of weights and cache at the machine's read bandwidth. Peers and subject take turns, and the
// median of their ratios is printed.
//   model_bench <model folder> [prefill tokens] [decode depth] [threads] [repeats]

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "attention.h"
#include "core/philox.h"
#include "kernels/matmul.h"
#include "kernels/read_rate.h"
#include "model/loaders/weights.h"
#include "pith/error.h"
#include "pith/session.h"
#include "timing.h"

namespace {

using pith::bench::kGigabyte;
using pith::bench::median;
using pith::bench::seconds_of;
using Memory = dnnl::memory;
constexpr size_t kChunk = 512;
constexpr int kDecodeSteps = 4;

/// oneDNN doing what a chunk's products need and no more: y = x W^T for every matrix of every
/// layer, on the model's own mapped weights, with all the threads it likes.
class Peer {
 public:
  Peer(const pith::Model::Weights& weights, bool bf16, bool packed, int threads)
      : weights_(weights), bf16_(bf16), packed_(packed), threads_(threads), stream_(engine_) {
    for (const pith::WeightMatrix* w : matrices()) {
      in_ = std::max(in_, w->in);
      out_ = std::max(out_, w->out);
    }
    // Zero bits would do for the arithmetic, but not for its power limits.
    x_.assign(kChunk * in_, bf16 ? 0x3F803F80u : 0x3F800000u);
    y_.resize(kChunk * out_);
  }

  /// Multiplications and additions of one token.
  double flops_per_token() const {
    double flops = 0;
    for (const pith::WeightMatrix* w : matrices())
      flops += 2.0 * static_cast<double>(w->out * w->in);
    return flops;
  }
  double run(size_t tokens) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads_);
    const double seconds = seconds_of([&] {
      for (size_t done = 0; done < tokens; done += kChunk) {
        for (const pith::WeightMatrix* w : matrices())
          multiply(*w, std::min(kChunk, tokens - done));
      }
    });
    omp_set_num_threads(before);
    return seconds;
  }

 private:
  struct Call {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul op;
    Memory weights;
  };
  std::vector<const pith::WeightMatrix*> matrices() const {
    std::vector<const pith::WeightMatrix*> all;
    for (const pith::LayerWeights& l : weights_.layers) {
      for (const pith::Linear* x : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
        all.push_back(&x->w);
      }
    }
    return all;
  }
  void multiply(const pith::WeightMatrix& w, size_t tokens) {
    const auto m = static_cast<Memory::dim>(tokens), n = static_cast<Memory::dim>(w.out),
               k = static_cast<Memory::dim>(w.in);
    const auto key = std::tuple(m, n, k);
    if (!calls_.count(key)) {
      const auto type = bf16_ ? Memory::data_type::bf16 : Memory::data_type::f32;
      const Memory::desc plain({k, n}, type, Memory::dims{1, k});
      const Memory::desc any({k, n}, type, Memory::format_tag::any);
      const dnnl::matmul::desc d({{m, k}, type, Memory::dims{k, 1}}, packed_ ? any : plain,
                                 {{m, n}, Memory::data_type::f32, Memory::dims{n, 1}});
      const dnnl::matmul::primitive_desc chosen(d, engine_);
      Memory weights(chosen.weights_desc(), engine_, packed_ ? DNNL_MEMORY_ALLOCATE : nullptr);
      if (packed_) {
        Memory source(plain, engine_, const_cast<void*>(w.data));
        dnnl::reorder(source, weights).execute(stream_, source, weights);
      }
      calls_.emplace(key, Call{chosen, dnnl::matmul(chosen), weights});
    }
    Call& call = calls_.at(key);
    if (!packed_) call.weights.set_data_handle(const_cast<void*>(w.data));
    call.op.execute(stream_, {{DNNL_ARG_SRC, Memory(call.desc.src_desc(), engine_, x_.data())},
                              {DNNL_ARG_WEIGHTS, call.weights},
                              {DNNL_ARG_DST, Memory(call.desc.dst_desc(), engine_, y_.data())}});
    stream_.wait();
  }

  const pith::Model::Weights& weights_;
  bool bf16_, packed_;
  int threads_;
  size_t in_ = 0, out_ = 0;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_;
  std::vector<uint32_t> x_;  // [chunk, in] as bf16 or f32
  std::vector<float> y_;     // [chunk, out]
  std::map<std::tuple<Memory::dim, Memory::dim, Memory::dim>, Call> calls_;
};

std::vector<int32_t> random_tokens(size_t count, int vocab) {
  const pith::Philox random(1, 0, 0);
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) {
    ids[i] = static_cast<int32_t>(random.words(i)[0] % static_cast<uint32_t>(vocab));
  }
  return ids;
}

pith::StandaloneOptions options_of(size_t context, int threads) {
  pith::StandaloneOptions options;
  options.context = context;
  options.chunk = kChunk;
  options.threads = threads;
  return options;
}

void bench_prefill(const std::shared_ptr<const pith::Model>& model, size_t tokens, int threads,
                   int repeats) {
  pith::ThreadPool pool(threads);
  pith::MemoryCounter memory;
  const pith::Context context{pool, memory, pith::kernels_for()};
  const auto dtype = model->config().weights;
  const bool bf16 = dtype == pith::DType::kBF16 && pith::Matmul(context).bf16_hardware();
  if (!bf16 && dtype != pith::DType::kF32) {
    fmt::print("prefill: skipped, oneDNN has no product of f32 with {}\n", to_string(dtype));
    return;
  }
  Peer plain(model->weights(), bf16, /*packed=*/false, pool.size());
  Peer packed(model->weights(), bf16, /*packed=*/true, pool.size());
  const auto ids = random_tokens(tokens, model->config().vocab);
  const double flops = plain.flops_per_token() * static_cast<double>(tokens);
  for (Peer* peer : {&plain, &packed}) peer->run(std::min(tokens, kChunk));  // pages, primitives
  std::vector<double> rates, plain_rates, packed_rates, plain_ratios, packed_ratios;
  for (int r = 0; r < repeats; ++r) {
    plain_rates.push_back(flops / plain.run(tokens));
    pith::Session session(model, options_of(tokens + 1, threads));
    rates.push_back(flops / seconds_of([&] { session.prefill(ids); }));
    packed_rates.push_back(flops / packed.run(tokens));
    plain_ratios.push_back(rates.back() / plain_rates.back());
    packed_ratios.push_back(rates.back() / packed_rates.back());
  }
  fmt::print(
      "prefill of {} tokens in chunks of {}, {}: {:.0f} tokens/s, {:.0f} GFLOP/s of its "
      "products\n",
      tokens, kChunk, bf16 ? "bf16" : "f32", median(rates) / plain.flops_per_token(),
      median(rates) / 1e9);
  fmt::print(
      "  oneDNN alone, the model's weights: {:.0f} GFLOP/s, ratio {:.2f}; weights packed "
      "beforehand: {:.0f} GFLOP/s, ratio {:.2f}\n",
      median(plain_rates) / 1e9, median(plain_ratios), median(packed_rates) / 1e9,
      median(packed_ratios));
}

void bench_decode(const std::shared_ptr<const pith::Model>& model, size_t depth, int threads,
                  int repeats) {
  pith::ThreadPool pool(threads);
  pith::MemoryCounter memory;
  const pith::Context context{pool, memory, pith::kernels_for()};
  const std::vector<float> gigabyte(kGigabyte / sizeof(float), 1.0f);
  pith::Session session(
      model, options_of(depth + static_cast<size_t>(kDecodeSteps * repeats) + 2, threads));
  const auto ids = random_tokens(depth + 1, model->config().vocab);
  session.prefill({ids.data(), depth});
  session.decode(ids[depth]);
  // Of the embedding a step reads one row, unless it is the head too.
  const pith::Model::Weights& w = model->weights();
  const size_t table = w.embedding.bytes();
  const size_t weights = model->weight_bytes() - (model->config().tied_embeddings ? 0 : table);
  // A shared machine's bandwidth drifts within a second: each step stands between two reads.
  std::vector<double> reads{pith::read_rate(context, std::as_bytes(std::span(gigabyte)))}, rates,
      ratios;
  for (int step = 0; step < kDecodeSteps * repeats; ++step) {
    const double moved = static_cast<double>(weights + session.ledger().cache_bytes());
    rates.push_back(moved /
                    seconds_of([&] { session.decode(ids[static_cast<size_t>(step) % depth]); }));
    reads.push_back(pith::read_rate(context, std::as_bytes(std::span(gigabyte))));
    ratios.push_back(rates.back() / (0.5 * (reads[reads.size() - 2] + reads.back())));
  }
  const double bytes = static_cast<double>(weights + session.ledger().cache_bytes());
  fmt::print(
      "decode at depth {}: {:.2f} tokens/s, {:.1f} GB/s of weights and cache ({:.2f} GB); "
      "read bandwidth {:.1f} GB/s; ratio {:.2f}\n",
      depth, median(rates) / bytes, median(rates) / 1e9, bytes / 1e9, median(reads) / 1e9,
      median(ratios));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr,
               "model_bench <model folder> [prefill tokens] [decode depth] [threads] [repeats]\n");
    return 2;
  }
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  try {
    const auto model = pith::Model::load(argv[1]);
    const int threads = number(4, 0), repeats = std::max(1, number(5, 5));
    if (number(2, 2048) > 0) {
      bench_prefill(model, static_cast<size_t>(number(2, 2048)), threads, repeats);
    }
    if (number(3, 512) > 0) {
      bench_decode(model, static_cast<size_t>(number(3, 512)), threads, repeats);
    }
  } catch (const pith::Error& e) {
    fmt::print(stderr, "model_bench: {}\n", e.what());
    return 1;
  }
  return 0;
}
