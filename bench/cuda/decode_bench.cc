// Decode attention and coding on the GPU: microseconds a call, bytes that must be read, the share
// of the card's measured read rate. Every shape is checked against the same rows in a plainer way
// before it is timed. Prints one JSON line a result; tools/gpu/table.py puts peers beside them.
//   cuda_decode_bench [--quick] [--only NAME]

#include "attend/cuda/decode.h"
#include "attend/cuda/decode_groups.h"
#include "codec_cases.h"
#include "kernels/cuda/read_rate.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// The spans of `sequences` times kHeads heads over plain arrays [B, G, rows, D].
std::vector<DeviceSpan> dense_spans(const uint16_t* k, const uint16_t* v, int sequences, int rows) {
  std::vector<DeviceSpan> spans(sequences * kHeads);
  for (size_t i = 0; i < spans.size(); ++i) {
    spans[i].keys = k + i * rows * kDim;
    spans[i].values = v + i * rows * kDim;
    spans[i].rows = rows;
    spans[i].row_stride = kDim;
    spans[i].ready_rows = rows;
  }
  return spans;
}

struct Query {
  DeviceArray<uint16_t> q;
  DeviceArray<float> out;
  Query(Bench& b, int sequences)
      : q(b.normals(static_cast<size_t>(sequences) * kQueryHeads * kDim, 9)),
        out(b.counter, MemoryKind::kScratch, q.size(), b.stream) {}
  std::vector<float> host(Bench& b) const {
    std::vector<float> x(out.size());
    out.download(x.data(), x.size(), b.stream);
    check(cudaStreamSynchronize(b.stream), "download");
    return x;
  }
};

DecodeCall call_of(const DecodeShape& shape, const Query& query,
                   const DeviceArray<DeviceSpan>& spans) {
  DecodeCall call{{query.q.data(), spans.data(), query.out.data(), nullptr}, shape, DType::kBF16};
  call.ready = true;  // as in the engine
  return call;
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

  /// The first `heads` heads' rows, [heads, rows].
  std::vector<DeviceSpan> spans(const CodecCase& c, int rows, int heads = kHeads) const {
    const GroupedBytes& bytes = c.bytes;
    std::vector<DeviceSpan> out(heads);
    for (int h = 0; h < heads; ++h) {
      const size_t block = static_cast<size_t>(h) * rows / 32;
      out[h].keys = key_codes.data() + block * bytes.key_codes;
      out[h].key_side = key_side.data() + block * bytes.key_side;
      out[h].values = value_codes.data() + block * bytes.value_codes;
      out[h].value_side = value_side.data() + block * bytes.value_side;
      out[h].rows = rows;
      out[h].coded = 1;
      out[h].group_blocks = c.group_blocks;
    }
    return out;
  }
};

constexpr double kMostError = 0.02;  // against the rows that the codes stand for, rounded to bf16

/// The relative error of attention over codes against attention over unpacked rows.
double codes_error(Bench& b, const CodecCase& c, const CodedRows& store, int rows) {
  const size_t n = static_cast<size_t>(kHeads) * rows * kDim;
  const DeviceArray<uint16_t> k(b.counter, MemoryKind::kScratch, n, b.stream);
  const DeviceArray<uint16_t> v(b.counter, MemoryKind::kScratch, n, b.stream);
  UnpackRowsCall call{store.key_codes.data(),
                      store.key_side.data(),
                      static_cast<size_t>(rows) / 32,
                      kHeads,
                      rows / 32,
                      kDim,
                      DType::kBF16,
                      k.data(),
                      static_cast<size_t>(rows) * kDim};
  c.unpack(call, true);
  call.codes = store.value_codes.data();
  call.side = store.value_side.data();
  call.out = v.data();
  c.unpack(call, false);
  const Query query(b, 1);
  const DecodeShape shape{1, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  const auto dense_list = upload(b, dense_spans(k.data(), v.data(), 1, rows));
  decode_dense(call_of(shape, query, dense_list), scratch, b.stream);
  const auto want = query.host(b);
  const auto coded_list = upload(b, store.spans(c, rows));
  c.decode(call_of(shape, query, coded_list), scratch);
  return difference(query.host(b), want);
}

void coded(Bench& b, const CodecCase& c, int rows) {
  const size_t n = static_cast<size_t>(kHeads) * rows * kDim;
  const auto k = b.normals(n, 1), v = b.normals(n, 2);
  CodedRows store(b, c.bytes, static_cast<size_t>(kHeads) * rows / 32);
  const CodeBatch batch{DType::kBF16, kHeads, rows, kDim};
  const auto keys = batch.whole(k.data(), store.key_codes.data(), store.key_side.data());
  const double keys_us = time_us(b.stream, 2, [&](int) { c.code_keys(batch, keys); });
  const auto values = batch.whole(v.data(), store.value_codes.data(), store.value_side.data());
  const double values_us = time_us(b.stream, 2, [&](int) { c.code_values(batch, values); });

  const double error = codes_error(b, c, store, rows);
  if (!(error < kMostError)) throw Error(ErrorCode::kInternal, c.name + ": a wrong answer");
  const Query query(b, 1);
  const DecodeShape shape{1, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream);
  const auto spans = upload(b, store.spans(c, rows));
  const double us =
      time_us(b.stream, 4, [&](int) { c.decode(call_of(shape, query, spans), scratch); });
  const double bytes = c.bytes.per_row() * rows * kHeads;
  const double bits = c.bytes.per_row() * 8 / (2 * kDim);
  b.report(c.name, rows, 1, us, bytes,
           fmt::format(", \"bits\": {:.3f}, \"error_vs_rows\": {:.4f}", bits, error));
  b.report(c.name + " coding of keys", rows, 1, keys_us, 2.0 * n);
  b.report(c.name + " coding of values", rows, 1, values_us, 2.0 * n);
}

/// A policy of selector and codec over kPrompt rows: `kept` weighted rows in codes and a window of
/// exact ones, one launch. Beside it each part alone: the same rows dense, and all rows in codes.
constexpr int kPrompt = 131072, kWindow = 128;

void code_into(Bench& b, const CodecCase& c, CodedRows& store, int rows) {
  const size_t n = static_cast<size_t>(kHeads) * rows * kDim;
  const auto k = b.normals(n, 1), v = b.normals(n, 2);
  const CodeBatch batch{DType::kBF16, kHeads, rows, kDim};
  c.code_keys(batch, batch.whole(k.data(), store.key_codes.data(), store.key_side.data()));
  c.code_values(batch, batch.whole(v.data(), store.value_codes.data(), store.value_side.data()));
  check(cudaStreamSynchronize(b.stream), "coding");
}

/// Each session's rows are the first one's, at a place of their own.
void repeat(Bench& b, const DeviceArray<char>& codes, int sessions) {
  const size_t each = codes.size() / sessions;
  for (int s = 1; s < sessions; ++s) {
    check(cudaMemcpyAsync(codes.data() + s * each, codes.data(), each, cudaMemcpyDeviceToDevice,
                          b.stream),
          "copies");
  }
}

/// A launch for many sessions, each a call of its own as in the engine. The last one's answer is
/// the one that it gets alone, bit for bit.
void company(Bench& b, const CodecCase& c, int rows, int sessions) {
  const size_t blocks = static_cast<size_t>(kHeads) * rows / 32;
  CodedRows store(b, c.bytes, blocks * sessions);
  code_into(b, c, store, rows);
  for (const auto* part :
       {&store.key_codes, &store.key_side, &store.value_codes, &store.value_side})
    repeat(b, *part, sessions);
  const Query query(b, sessions);
  const DecodeShape shape{1, kQueryHeads, kHeads, kDim, 1, 0};
  const DecodeScratch scratch(b.counter, shape, b.stream, sessions);
  const auto spans = upload(b, store.spans(c, rows, kHeads * sessions));
  std::vector<DecodePlace> places(sessions);
  for (int s = 0; s < sessions; ++s) {
    const size_t at = static_cast<size_t>(s) * kQueryHeads * kDim;
    places[s] = {query.q.data() + at, spans.data() + s * kHeads, query.out.data() + at, nullptr};
  }
  const auto on_device = upload(b, places);
  const int most = rows / 16 * kHeads / kTilesABlock;
  const auto attend = [&](int first) {
    DecodeGroups groups;
    for (int s = first; s < sessions; ++s) {
      DecodeCall call{places[s], shape, DType::kBF16};
      call.ready = true;
      call.company = {&groups, on_device.data() + s, most};
      groups.next_sequence();
      c.decode(call, scratch);
    }
    DecodeGroups::run(groups.take(), b.stream);
  };
  attend(sessions - 1);
  const auto alone = query.host(b);
  const double us = time_us(b.stream, 4, [&](int) { attend(0); });
  const auto together = query.host(b);
  if (!std::equal(alone.end() - kQueryHeads * kDim, alone.end(),
                  together.end() - kQueryHeads * kDim)) {
    throw Error(ErrorCode::kInternal, c.name + ": company changes an answer");
  }
  b.report(c.name, rows, sessions, us, c.bytes.per_row() * rows * kHeads * sessions);
}

void composed(Bench& b, const std::string& name, const CodecCase& c, int kept) {
  const size_t n = static_cast<size_t>(kHeads) * kept * kDim;
  const double coded_bytes = c.bytes.per_row() * kept * kHeads;
  const int copies = static_cast<int>(120e6 / coded_bytes) + 1;  // beyond what L2 holds
  const std::vector<float> zeros(static_cast<size_t>(kHeads) * kept);
  const auto weights = upload(b, zeros);
  const auto window = b.normals(static_cast<size_t>(kHeads) * kWindow * kDim, 5);
  const auto window_spans = dense_spans(window.data(), window.data(), 1, kWindow);
  std::vector<DeviceArray<uint16_t>> rows;
  std::vector<CodedRows> stores;
  std::vector<DeviceArray<DeviceSpan>> policy, selector;
  rows.push_back(b.normals(2 * n, 3));
  for (int i = 0; i < copies; ++i) {
    if (i > 0) {
      rows.emplace_back(b.counter, MemoryKind::kPayload, 2 * n, b.stream);
      check(cudaMemcpyAsync(rows[i].data(), rows[0].data(), 4 * n, cudaMemcpyDeviceToDevice,
                            b.stream),
            "copies");
    }
    stores.emplace_back(b, c.bytes, static_cast<size_t>(kHeads) * kept / 32);
    code_into(b, c, stores[i], kept);
    auto dense = dense_spans(rows[i].data(), rows[i].data() + n, 1, kept);
    auto codes = stores[i].spans(c, kept);
    std::vector<DeviceSpan> with_codes, with_rows;
    for (int h = 0; h < kHeads; ++h) {
      dense[h].log_weights = codes[h].log_weights = weights.data() + static_cast<size_t>(h) * kept;
      with_codes.insert(with_codes.end(), {codes[h], window_spans[h]});
      with_rows.insert(with_rows.end(), {dense[h], window_spans[h]});
    }
    policy.push_back(upload(b, with_codes));
    selector.push_back(upload(b, with_rows));
  }
  CodedRows all(b, c.bytes, static_cast<size_t>(kHeads) * kPrompt / 32);
  code_into(b, c, all, kPrompt);
  const auto codec = upload(b, all.spans(c, kPrompt));
  const Query query(b, 1);
  const DecodeShape one{1, kQueryHeads, kHeads, kDim, 1, 0},
      two{1, kQueryHeads, kHeads, kDim, 2, 0};
  const DecodeScratch scratch(b.counter, two, b.stream);
  const int calls = std::max(copies, 4);
  const double us = time_us(
      b.stream, calls, [&](int i) { c.decode(call_of(two, query, policy[i % copies]), scratch); });
  const double selector_us = time_us(b.stream, calls, [&](int i) {
    decode_dense(call_of(two, query, selector[i % copies]), scratch, b.stream);
  });
  const double codec_us =
      time_us(b.stream, 4, [&](int) { c.decode(call_of(one, query, codec), scratch); });
  b.report(name, kept + kWindow, 1, us, coded_bytes + 4.0 * kHeads * kWindow * kDim,
           fmt::format(", \"selector_alone_us\": {:.2f}, \"codec_alone_us\": {:.2f}", selector_us,
                       codec_us));
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
  const Tables projection(b, 640, kDim, false);
  const CsrTables small(b, 256), large(b, 512);
  const CodecCase cases[] = {grouped(b, "kivi-2", GroupedCodec::kKivi2),
                             grouped(b, "kivi-4", GroupedCodec::kKivi4),
                             grouped(b, "int4", GroupedCodec::kInt4),
                             grouped(b, "int8", GroupedCodec::kInt8),
                             qjl(b, 256, projection),
                             qjl(b, 512, projection),
                             qjl(b, 256, projection, true),
                             csr(b, 4, CsrSolver::kMp, small),
                             csr(b, 8, CsrSolver::kMp, small),
                             csr(b, 8, CsrSolver::kOmp, small),
                             csr(b, 8, CsrSolver::kMp, large),
                             csr(b, 8, CsrSolver::kOmp, large),
                             csr(b, 16, CsrSolver::kMp, small),
                             csr(b, 2, CsrSolver::kMp, small, true),
                             csr(b, 4, CsrSolver::kMp, small, true),
                             csr(b, 8, CsrSolver::kMp, small, true),
                             csr(b, 8, CsrSolver::kMp, large, true),
                             csr(b, 16, CsrSolver::kMp, small, true),
                             named(b, "k:int8+v:int4"),
                             named(b, "k:f16+v:int8"),
                             named(b, "k:f16+v:int4"),
                             named(b, "k:int8+v:f16"),
                             named(b, "k:bf16+v:int4"),
                             named(b, "k:int8+v:bf16"),
                             named(b, "turboquant(bits=1)"),
                             named(b, "turboquant(bits=2)"),
                             named(b, "turboquant(bits=4)"),
                             named(b, "turboquant(bits=3,center=128)"),
                             named(b, "qjl"),
                             named(b, "kvquant(bits=3)"),
                             named(b, "int4(hadamard=true,center=128,pre_rope=true)"),
                             named(b, "turboquant(bits=3,center=128,pre_rope=true)"),
                             named(b, "gear"),
                             named(b, "gear(bits=4)"),
                             named(b, "kivi(bits=2,hadamard=true)"),
                             named(b, "int8(hadamard=true)")};
  for (const int rows : quick ? std::vector{131072} : std::vector{8192, 32768, 131072}) {
    for (const CodecCase& c : cases) {
      if (wanted(c.name)) coded(b, c, rows);
    }
  }
  if (wanted("company")) {
    for (const CodecCase& c : cases) {
      if (c.name != "kivi-2" && c.name != "int4" && c.name != "turboquant(bits=3,center=128)")
        continue;
      company(b, c, 2048, 64);
      for (const int sessions : quick ? std::vector{64} : std::vector{1, 8, 64})
        company(b, c, 32768, sessions);
    }
  }
  if (wanted("composed")) {
    composed(b, "composed: express(heavy=0,s=2048) + qjl-256", cases[6], 2048);
    composed(b, "composed: balancekv(heavy=0,rate=25%) + kivi-4", cases[1], kPrompt / 4);
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_decode_bench", argc, argv, pith::cuda::run);
}
