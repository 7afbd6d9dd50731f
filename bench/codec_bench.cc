// Every codec against dense bf16 rows in one run: decode attention over the codes, coding speed,
// and the distance to the bytes that must be read. Codecs take turns with bf16, and the median of
// the ratios counts: other programs on the machine slow both. Answers are checked first against
// attention over the rows that the codes stand for.
//   codec_bench [threads=2] [rows=32768] [repeats=7] [codec ...]      (a codec as in a policy part)

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "attend/attend.h"
#include "core/philox.h"
#include "kernels/read_rate.h"
#include "pith/error.h"
#include "pith/policy.h"
#include "policy/registry.h"
#include "rows/cpu/dense.h"
#include "timing.h"

namespace pith::bench {
namespace {

constexpr size_t kDim = 128, kHeads = 4, kGroup = 4, kPiece = 1024;

/// Enough layers of rows under one codec that they fit no cache.
struct Rows {
  std::unique_ptr<Codec> key_codec, value_codec;
  std::vector<std::unique_ptr<CodedRows>> stores;         // [layers, heads, 2]
  std::vector<std::vector<Span>> spans;                   // [layers][heads]
  std::vector<std::vector<std::span<const Span>>> lists;  // [layers][heads]
  double coding_seconds = 0;
  double bytes = 0;  // of one layer
};

std::unique_ptr<Rows> make_rows(const Context& context, const std::string& part, size_t rows,
                                size_t layers, const std::vector<float>& numbers) {
  const Policy policy = Policy::parse("exact+" + part);
  const PolicyPart& key = *policy.rules.front().key_codec;
  const CodecRow& row = codec_row(key.name);
  auto out = std::make_unique<Rows>();
  out->key_codec = row.make(row.read(key), Side::kKeys);
  out->value_codec = row.make(row.read(key), Side::kValues);
  out->spans.resize(layers);
  out->lists.resize(layers);
  for (size_t l = 0; l < layers; ++l) {
    for (size_t h = 0; h < kHeads; ++h) {
      RowsRequest request;
      request.dim = kDim;
      request.head = static_cast<uint32_t>(h);
      request.max_rows = rows;
      for (Side side : {Side::kKeys, Side::kValues}) {
        request.side = side;
        const Codec& codec = side == Side::kKeys ? *out->key_codec : *out->value_codec;
        auto store = codec.make_rows(context, request);
        out->coding_seconds += seconds_of([&] {
          for (size_t t = 0; t < rows; t += kPiece)
            store->append(numbers.data() + (l * 7919 + h * 104729 + t * 61) % (numbers.size() / 2),
                          kDim, std::min(kPiece, rows - t));
        });
        if (l == 0)
          out->bytes += static_cast<double>(store->payload_bytes() + store->metadata_bytes());
        out->stores.push_back(std::move(store));
      }
      Span span;
      span.keys = out->stores[out->stores.size() - 2].get();
      span.values = out->stores.back().get();
      span.count = rows;
      span.keys_before_rope = out->key_codec->pre_rope();
      out->spans[l].push_back(span);
    }
    for (const Span& span : out->spans[l]) out->lists[l].emplace_back(&span, 1);
  }
  return out;
}

struct Step {
  const Context& context;
  std::vector<float> q, out;
  Rope rope;

  void run(const Rows& rows, size_t layer) {
    AttendCall call;
    call.shape = {kHeads * kGroup, kHeads, kDim, 0};
    call.q = q.data();
    call.tokens = 1;
    call.first_position = 1 << 20;
    call.spans = rows.lists[layer];
    call.rope = &rope;
    call.out = out.data();
    attend(context, call);
  }
};

/// Of attention over layer 0 from attention over the same rows, decoded to f32.
double difference(Step& step, const Rows& rows) {
  step.run(rows, 0);
  const std::vector<float> got = step.out;
  DenseCodec dense(DType::kF32);
  Rows decoded;
  decoded.spans.resize(1);
  decoded.lists.resize(1);
  RowsRequest request;
  request.dim = kDim;
  std::vector<float> tile(kPiece * kDim);
  for (const Span& span : rows.spans[0]) {
    for (const CodedRows* from : {span.keys, span.values}) {
      auto to = dense.make_rows(step.context, request);
      for (size_t t = 0; t < from->rows(); t += kPiece) {
        const size_t n = std::min(kPiece, from->rows() - t);
        from->decode(tile.data(), t, n);
        to->append(tile.data(), kDim, n);
      }
      decoded.stores.push_back(std::move(to));
    }
    Span copy = span;
    copy.keys = decoded.stores[decoded.stores.size() - 2].get();
    copy.values = decoded.stores.back().get();
    decoded.spans[0].push_back(copy);
  }
  for (const Span& span : decoded.spans[0]) decoded.lists[0].emplace_back(&span, 1);
  step.run(decoded, 0);
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += std::pow(got[i] - step.out[i], 2.0);
    norm += std::pow(step.out[i], 2.0);
  }
  return std::sqrt(error / norm);
}

int run(int threads, size_t rows, int repeats, const std::vector<std::string>& codecs) {
  ThreadPool pool(threads);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for()};
  const Philox random(1, 0, 0);
  std::vector<float> numbers(size_t{1} << 23);
  for (size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = 2 * random.uniform(i) - 1 + 0.5f * random.uniform(i % kDim, 1);
  Step step{context, std::vector<float>(numbers.begin(), numbers.begin() + kHeads * kGroup * kDim),
            std::vector<float>(kHeads * kGroup * kDim), Rope{kDim, 10000.0}};
  std::vector<float> gigabyte(kGigabyte / sizeof(float), 1.0f);
  const double read = read_rate(context, std::as_bytes(std::span(gigabyte)));
  fmt::print("{} threads, {}, {} rows, {} KV heads, GQA {}, D {}; read {:.1f} GB/s\n", threads,
             context.kernels.isa, rows, kHeads, kGroup, kDim, read / 1e9);
  fmt::print("{:<24} {:>6} {:>10} {:>9} {:>9} {:>11} {:>12}\n", "codec", "bits", "us a step",
             "of bf16", "of read", "rows/s in", "difference");
  const size_t layers = 2;
  const auto base = make_rows(context, "bf16", rows, layers, numbers);
  for (const std::string& codec : codecs) {
    const auto coded = make_rows(context, codec, rows, layers, numbers);
    const double off = difference(step, *coded);
    if (!(off < 2e-3))
      throw Error(ErrorCode::kInternal,
                  fmt::format("{}: differs by {} from its own rows", codec, off));
    std::vector<double> times, ratios;
    for (int r = 0; r < repeats; ++r)
      for (size_t l = 0; l < layers; ++l) {
        const double dense = seconds_of([&] { step.run(*base, l); });
        times.push_back(seconds_of([&] { step.run(*coded, l); }));
        ratios.push_back(dense / times.back());
      }
    const double seconds = median(times);
    const double coded_rows = static_cast<double>(2 * layers * kHeads * rows);
    fmt::print("{:<24} {:>6.2f} {:>10.0f} {:>8.2f}x {:>9.2f} {:>11.2e} {:>12.1e}\n", codec,
               8 * coded->bytes / static_cast<double>(2 * kHeads * rows * kDim), 1e6 * seconds,
               median(ratios), coded->bytes / seconds / read, coded_rows / coded->coding_seconds,
               off);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace pith::bench

int main(int argc, char** argv) {
  try {
    std::vector<std::string> codecs(argv + std::min(argc, 4), argv + argc);
    if (codecs.empty())
      codecs = {"bf16",         "int8",         "int4", "int4(hadamard=true)",
                "kivi(bits=4)", "kivi(bits=2)", "qjl",  "qjl(paper=true)",
                "csr"};
    return pith::bench::run(argc > 1 ? std::atoi(argv[1]) : 2,
                            argc > 2 ? static_cast<size_t>(std::atoll(argv[2])) : 32768,
                            argc > 3 ? std::atoi(argv[3]) : 7, codecs);
  } catch (const std::exception& e) {
    fmt::print(stderr, "codec_bench: {}\n", e.what());
    return 1;
  }
}
