#pragma once
// The codecs that the decode benchmark measures, with their tables: how rows are coded, attended to
// and unpacked.

#include "bench.h"
#include "cache/cuda/layer_rows.h"
#include "core/dtype.h"
#include "methods/codecs/csr/csr_cuda.h"
#include "methods/codecs/qjl/qjl_cuda.h"
#include "policy/resolved.h"
#include "rows/cuda/device_codec.h"
#include "rows/cuda/grouped_code.h"

namespace pith::cuda {

inline constexpr int kQueryHeads = 32, kHeads = 8, kDim = 128;

struct CodecCase {
  std::string name;
  GroupedBytes bytes;
  std::function<void(const CodeBatch&, const CodeJob&)> code_keys, code_values;
  std::function<void(const DecodeCall&, const DecodeScratch&)> decode;
  // The dense kernel attends to the decoded rows, and the answers are compared.
  std::function<void(const UnpackRowsCall&, bool keys)> unpack;
  int group_blocks = 0;  ///< of spans
};

inline CodecCase grouped(Bench& b, const std::string& name, GroupedCodec codec) {
  const auto stream = b.stream;
  return {name,
          grouped_bytes(codec, kDim),
          [=](const CodeBatch& all, const CodeJob& j) {
            code_grouped(codec, all, {&j, 1}, {}, stream);
          },
          [=](const CodeBatch& all, const CodeJob& j) {
            code_grouped(codec, all, {}, {&j, 1}, stream);
          },
          [=](const DecodeCall& c, const DecodeScratch& s) { decode_grouped(codec, c, s, stream); },
          [=](const UnpackRowsCall& c, bool keys) {
            (keys ? unpack_grouped_keys : unpack_grouped_values)(codec, {&c, 1}, stream);
          }};
}

/// A projection on the device in both forms, or dictionaries of all heads.
struct Tables {
  DeviceArray<float> rows;
  DeviceArray<uint16_t> half;

  /// Normal numbers; `unit`: rows of `dim` numbers have the norm 1.
  Tables(Bench& b, size_t count, int dim, bool unit) {
    std::mt19937 rng(4);
    std::normal_distribution<float> draw;
    std::vector<float> x(count * dim);
    std::vector<uint16_t> h(x.size());
    for (float& v : x) v = draw(rng);
    for (size_t i = 0; unit && i < count; ++i) {
      float norm = 0;
      for (int c = 0; c < dim; ++c) norm += x[i * dim + c] * x[i * dim + c];
      for (int c = 0; c < dim; ++c) x[i * dim + c] /= std::sqrt(norm);
    }
    for (size_t i = 0; i < x.size(); ++i) h[i] = f32_to_f16(x[i]);
    rows = upload(b, x);
    half = upload(b, h);
  }
};

/// `lists`: each row names its channels, as under selectors that select again.
inline CodecCase qjl(Bench& b, int m, const Tables& t, bool lists = false) {
  const auto stream = b.stream;
  const float unbias = std::sqrt(static_cast<float>(M_PI) / 2);
  const QjlProjection p{t.rows.data(), t.half.data(), m, 128, 8, kDim, unbias, lists};
  return {fmt::format("qjl-{}{} + 2-bit values", m, lists ? " by rows" : ""),
          qjl_bytes(m, kDim, lists),
          [=](const CodeBatch& all, const CodeJob& j) { code_qjl_keys(p, all, j, stream); },
          [=](const CodeBatch& all, const CodeJob& j) {
            code_grouped(GroupedCodec::kKivi2, all, {}, {&j, 1}, stream);
          },
          [=](const DecodeCall& c, const DecodeScratch& s) { decode_qjl(p, c, s, stream); },
          [=](const UnpackRowsCall& c, bool keys) {
            keys ? unpack_qjl_keys(p, c, stream)
                 : unpack_grouped_values(GroupedCodec::kKivi2, {&c, 1}, stream);
          }};
}

/// Dictionaries of one size for keys and values, and RoPE.
struct CsrTables {
  Tables keys, values;
  DeviceArray<double> turns;
  DeviceArray<float> key_gram, value_gram;
  CsrAtoms key_atoms, value_atoms;

  CsrTables(Bench& b, int count)
      : keys(b, static_cast<size_t>(kHeads) * count, kDim, true),
        values(b, static_cast<size_t>(kHeads) * count, kDim / 2, true),
        key_gram(b.counter, MemoryKind::kShared, static_cast<size_t>(kHeads) * count * count,
                 b.stream),
        value_gram(b.counter, MemoryKind::kShared, key_gram.size(), b.stream),
        key_atoms{keys.half.data(), key_gram.data(), count},
        value_atoms{values.half.data(), value_gram.data(), count} {
    make_csr_gram(key_gram.data(), keys.half.data(), kHeads, count, kDim, b.stream);
    make_csr_gram(value_gram.data(), values.half.data(), kHeads, count, kDim / 2, b.stream);
    std::vector<double> frequencies;
    for (int i = 0; i < kDim / 2; ++i) {
      frequencies.push_back(std::pow(5e5, -2.0 * i / kDim) / (2 * M_PI));
    }
    turns = upload(b, frequencies);
  }
};

/// `before`: keys are coded before RoPE.
inline CodecCase csr(Bench& b, int pairs, CsrSolver solver, const CsrTables& t,
                     bool before = false) {
  const auto stream = b.stream;
  CsrDictionaries d{{pairs, 2, solver}, t.key_atoms, t.value_atoms};
  if (before) d.coding.turns = t.turns.data();
  return {fmt::format("csr-{}{}{}, {} atoms", pairs, solver == CsrSolver::kOmp ? " omp" : "",
                      before ? " before RoPE" : "", d.keys.count),
          csr_bytes(d.coding),
          [=](const CodeBatch& all, const CodeJob& j) {
            code_csr(d.coding, d.keys, true, all, j, stream);
          },
          [=](const CodeBatch& all, const CodeJob& j) {
            code_csr(d.coding, d.values, false, all, j, stream);
          },
          [=](const DecodeCall& c, const DecodeScratch& s) { decode_csr(d, c, s, stream); },
          [=](const UnpackRowsCall& c, bool keys) {
            unpack_csr(d.coding, keys ? d.keys : d.values, keys, c, stream);
          }};
}

/// A codec as the engine makes it for a policy that keeps all rows, its tables learnt from random
/// rows.
inline CodecCase named(Bench& b, const std::string& text) {
  const auto stream = b.stream;
  const CacheShape shape{1, kQueryHeads, kHeads, kDim, {}, size_t{1} << 20};
  // All exact rows have one type: that of a side that stays as it is.
  const char* dtype = text.find(":bf16") != text.npos ? "bf16" : "f16";
  const ResolvedPolicy policy(Policy::parse(fmt::format("exact+{},sink=0,dtype={}", text, dtype)),
                              shape, 1, Device::kCuda);
  auto codec = plan_layer(policy.layer(0).front(), {0, kHeads}).codec;
  static const std::vector<double> kFrequencies = [] {
    std::vector<double> x;
    for (int i = 0; i < kDim / 2; ++i) x.push_back(std::pow(5e5, -2.0 * i / kDim));
    return x;
  }();
  const TableSite site{&b.counter, stream, kDim, kHeads, 0, 1, 0, &kFrequencies};
  if (auto own = codec->with_tables(site)) codec = own;
  if (const size_t n = codec->learns_from(); n > 0) {
    const auto k = b.normals(kHeads * n * kDim, 21), v = b.normals(kHeads * n * kDim, 22);
    codec->learn({k.data(), v.data(), n * kDim, 0}, DType::kBF16, 0, stream);
    check(cudaStreamSynchronize(stream), "tables");
  }
  return {text,
          codec->block_bytes(kDim),
          [=](const CodeBatch& all, const CodeJob& j) {
            codec->code(all, {&j, 1}, {}, stream);
          },
          [=](const CodeBatch& all, const CodeJob& j) {
            codec->code(all, {}, {&j, 1}, stream);
          },
          [=](const DecodeCall& c, const DecodeScratch& s) { codec->attend(c, s, stream); },
          [=](const UnpackRowsCall& c, bool of_keys) {
            of_keys ? codec->unpack_keys(c, stream) : codec->unpack_values(c, stream);
          },
          codec->group_blocks()};
}

}  // namespace pith::cuda
