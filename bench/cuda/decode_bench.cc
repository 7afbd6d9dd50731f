// Decode attention and coding on the GPU: microseconds a call, bytes that must be read, the share
// of the card's measured read rate. Every shape is checked against the same rows in a plainer way
// before it is timed. Prints one JSON line a result; tools/gpu/table.py puts peers beside them.
//   cuda_decode_bench [--quick] [--only NAME]

#include "attend/cuda/decode.h"
#include "bench.h"
#include "kernels/cuda/read_rate.h"
#include "methods/qjl/qjl_cuda.h"
#include "methods/quant/quant_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kQueryHeads = 32, kHeads = 8, kDim = 128;

/// The spans of `sequences` times kHeads heads over plain arrays [B, G, rows, D].
std::vector<DeviceSpan> dense_spans(const uint16_t* k, const uint16_t* v, int sequences, int rows) {
  std::vector<DeviceSpan> spans(sequences * kHeads);
  for (size_t i = 0; i < spans.size(); ++i) {
    spans[i].keys = k + i * rows * kDim;
    spans[i].values = v + i * rows * kDim;
    spans[i].rows = rows;
    spans[i].row_stride = kDim;
  }
  return spans;
}

struct Query {
  DeviceArray<uint16_t> q;
  DeviceArray<float> out, sketch;
  Query(Bench& b, int sequences)
      : q(b.normals(static_cast<size_t>(sequences) * kQueryHeads * kDim, 9)),
        out(b.counter, MemoryKind::kScratch, q.size(), b.stream),
        sketch(b.counter, MemoryKind::kScratch, static_cast<size_t>(sequences) * kQueryHeads * 640,
               b.stream) {}
  std::vector<float> host(Bench& b) const {
    std::vector<float> x(out.size());
    out.download(x.data(), x.size(), b.stream);
    check(cudaStreamSynchronize(b.stream), "download");
    return x;
  }
};

DecodeCall call_of(const DecodeShape& shape, const Query& query,
                   const DeviceArray<DeviceSpan>& spans) {
  return {shape, DType::kBF16, query.q.data(), nullptr, spans.data(), query.out.data(), nullptr};
}

void dense(Bench& b, int rows, int sequences) {
  const size_t n = static_cast<size_t>(sequences) * kHeads * rows * kDim;
  // Copies enough that none is still in the L2 cache when its turn comes again.
  const int copies = static_cast<int>(std::max<size_t>(1, (size_t{400} << 20) / (4 * n)));
  std::vector<DeviceArray<uint16_t>> k, v;
  std::vector<DeviceArray<DeviceSpan>> spans;
  for (int i = 0; i < copies; ++i) {
    k.push_back(b.normals(n, 2 * i));
    v.push_back(b.normals(n, 2 * i + 1));
    spans.push_back(upload(b, dense_spans(k[i].data(), v[i].data(), sequences, rows)));
  }
  const Query query(b, sequences);
  const DecodeShape shape{sequences, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  const double us = time_us(b.stream, std::max(copies, 4), [&](int i) {
    decode_dense(call_of(shape, query, spans[i % copies]), scratch, b.stream);
  });
  b.report("exact", rows, sequences, us, 4.0 * n);
}

/// Dense rows with log-weights: what Express and BalanceKV leave, s rows.
void weighted(Bench& b, int rows) {
  const size_t n = static_cast<size_t>(kHeads) * rows * kDim;
  const int copies = static_cast<int>(std::max<size_t>(1, (size_t{400} << 20) / (4 * n)));
  std::vector<DeviceArray<uint16_t>> k, v;
  std::vector<DeviceArray<DeviceSpan>> spans;
  DeviceArray<float> weights(b.counter, MemoryKind::kMetadata, static_cast<size_t>(kHeads) * rows,
                             b.stream);
  check(cudaMemsetAsync(weights.data(), 0, 4 * weights.size(), b.stream), "weights");
  for (int i = 0; i < copies; ++i) {
    k.push_back(b.normals(n, 2 * i));
    v.push_back(b.normals(n, 2 * i + 1));
    auto list = dense_spans(k[i].data(), v[i].data(), 1, rows);
    for (int h = 0; h < kHeads; ++h) list[h].log_weights = weights.data() + h * rows;
    spans.push_back(upload(b, list));
  }
  const Query query(b, 1);
  const DecodeShape shape{1, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  const double us = time_us(b.stream, std::max(copies, 4), [&](int i) {
    decode_dense(call_of(shape, query, spans[i % copies]), scratch, b.stream);
  });
  b.report("weighted rows", rows, 1, us, 4.0 * n + 4.0 * kHeads * rows);
}

struct CodedRows {
  DeviceArray<char> key_codes, key_side, value_codes, value_side;
  CodedRows(Bench& b, const GroupedBytes& bytes, size_t blocks)
      : key_codes(b.counter, MemoryKind::kPayload, blocks * bytes.key_codes, b.stream),
        key_side(b.counter, MemoryKind::kMetadata, blocks * bytes.key_side, b.stream),
        value_codes(b.counter, MemoryKind::kPayload, blocks * bytes.value_codes, b.stream),
        value_side(b.counter, MemoryKind::kMetadata, blocks * bytes.value_side, b.stream) {}

  std::vector<DeviceSpan> spans(const GroupedBytes& bytes, int rows) const {
    std::vector<DeviceSpan> out(kHeads);
    for (int h = 0; h < kHeads; ++h) {
      const size_t block = static_cast<size_t>(h) * rows / 32;
      out[h].keys = key_codes.data() + block * bytes.key_codes;
      out[h].key_side = key_side.data() + block * bytes.key_side;
      out[h].values = value_codes.data() + block * bytes.value_codes;
      out[h].value_side = value_side.data() + block * bytes.value_side;
      out[h].rows = rows;
      out[h].coded = 1;
    }
    return out;
  }
};

struct CodecCase {
  std::string name;
  GroupedBytes bytes;
  std::function<void(const CodeRowsCall&)> code_keys, code_values;
  std::function<void(const DecodeCall&, Query&, const DecodeScratch&)> decode;
};

void coded(Bench& b, const CodecCase& c, int rows) {
  const size_t n = static_cast<size_t>(kHeads) * rows * kDim;
  const auto k = b.normals(n, 1), v = b.normals(n, 2);
  CodedRows store(b, c.bytes, static_cast<size_t>(kHeads) * rows / 32);
  CodeRowsCall code{DType::kBF16,
                    k.data(),
                    static_cast<size_t>(rows) * kDim,
                    kDim,
                    kHeads,
                    rows,
                    kDim,
                    store.key_codes.data(),
                    store.key_side.data()};
  const double keys_us = time_us(b.stream, 2, [&](int) { c.code_keys(code); });
  code.x = v.data();
  code.codes = store.value_codes.data();
  code.side = store.value_side.data();
  const double values_us = time_us(b.stream, 2, [&](int) { c.code_values(code); });

  Query query(b, 1);
  const DecodeShape shape{1, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  const auto exact_spans = upload(b, dense_spans(k.data(), v.data(), 1, rows));
  decode_dense(call_of(shape, query, exact_spans), scratch, b.stream);
  const auto exact = query.host(b);
  const auto spans = upload(b, store.spans(c.bytes, rows));
  c.decode(call_of(shape, query, spans), query, scratch);
  const double error = difference(query.host(b), exact);
  const double us =
      time_us(b.stream, 4, [&](int) { c.decode(call_of(shape, query, spans), query, scratch); });
  const double bytes = c.bytes.per_row() * rows * kHeads;
  const double bits = c.bytes.per_row() * 8 / (2 * kDim);
  b.report(c.name, rows, 1, us, bytes,
           fmt::format(", \"bits\": {:.3f}, \"error_vs_exact\": {:.4f}", bits, error));
  b.report(c.name + " coding of keys", rows, 1, keys_us, 2.0 * n);
  b.report(c.name + " coding of values", rows, 1, values_us, 2.0 * n);
}

CodecCase grouped(Bench& b, const std::string& name, GroupedCodec codec) {
  const auto stream = b.stream;
  return {name, grouped_bytes(codec, kDim),
          [=](const CodeRowsCall& c) { code_grouped_keys(codec, c, stream); },
          [=](const CodeRowsCall& c) { code_grouped_values(codec, c, stream); },
          [=](const DecodeCall& c, Query&, const DecodeScratch& s) {
            decode_grouped(codec, c, s, stream);
          }};
}

CodecCase qjl(Bench& b, int m, const float* rows) {
  const auto stream = b.stream;
  const QjlProjection p{rows, m, kDim, std::sqrt(static_cast<float>(M_PI) / 2)};
  return {fmt::format("qjl-{} + 2-bit values", m), qjl_bytes(m, kDim),
          [=](const CodeRowsCall& c) { code_qjl_keys(p, c, stream); },
          [=](const CodeRowsCall& c) { code_grouped_values(GroupedCodec::kKivi2, c, stream); },
          [=](const DecodeCall& c, Query& q, const DecodeScratch& s) {
            decode_qjl(p, c, q.sketch.data(), s, stream);
          }};
}

int run(bool quick, const std::string& only) {
  const auto wanted = [&](const std::string& name) { return name.find(only) != name.npos; };
  Bench b;
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "device");
  fmt::print("{{\"device\": \"{}\", \"multiprocessors\": {}}}\n", p.name, p.multiProcessorCount);
  if (wanted("read")) {  // the ceiling: every byte once, nothing done with it
    const size_t n = size_t{2} << 30;
    DeviceArray<char> from(b.counter, MemoryKind::kScratch, n, b.stream);
    DeviceArray<float> sum(b.counter, MemoryKind::kScratch, 1, b.stream);
    check(cudaMemsetAsync(from.data(), 1, n, b.stream), "fill");
    const double us =
        time_us(b.stream, 2, [&](int) { read_all(sum.data(), from.data(), n, b.stream); });
    b.report("read", 0, 1, us, n);
  }
  for (const int rows :
       quick ? std::vector{8192, 131072} : std::vector{8192, 32768, 131072, 524288}) {
    if (wanted("exact")) dense(b, rows, 1);
  }
  if (wanted("exact")) dense(b, 32768, 8);
  for (const int rows : {1024, 2048, 4096}) {
    if (wanted("weighted")) weighted(b, rows);
  }
  std::mt19937 rng(4);
  std::normal_distribution<float> draw;
  std::vector<float> projection(640 * kDim);
  for (float& x : projection) x = draw(rng);
  DeviceArray<float> device(b.counter, MemoryKind::kShared, projection.size(), b.stream);
  device.upload(projection.data(), projection.size(), b.stream);
  for (const int rows : quick ? std::vector{131072} : std::vector{8192, 32768, 131072}) {
    for (const CodecCase& c :
         {grouped(b, "kivi-2", GroupedCodec::kKivi2), grouped(b, "kivi-4", GroupedCodec::kKivi4),
          grouped(b, "int4", GroupedCodec::kInt4), grouped(b, "int8", GroupedCodec::kInt8),
          qjl(b, 256, device.data()), qjl(b, 512, device.data())}) {
      if (wanted(c.name)) coded(b, c, rows);
    }
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_decode_bench", argc, argv, pith::cuda::run);
}
