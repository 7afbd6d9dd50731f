#include "tools/quantize/quantize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "chat/sources.h"
#include "core/output_file.h"
#include "core/thread_pool.h"
#include "kernels/block_products.h"
#include "model/loaders/gguf_model.h"
#include "model/loaders/weights.h"
#include "pith/error.h"
#include "tools/quantize/block_encode.h"
#include "tools/quantize/gguf_draft.h"

namespace pith {
namespace {

constexpr std::array kTypes = {WeightType::kF32,    WeightType::kF16,    WeightType::kBF16,
                               WeightType::kQ8Zero, WeightType::kQ4Zero, WeightType::kQ4K};
constexpr size_t kPiece = size_t{1} << 20;  // numbers that are in memory at once, about

/// GGUF's label of a whole file. Readers print it; types are read tensor by tensor.
uint32_t file_type(WeightType type) {
  switch (type) {
    case WeightType::kF16: return 1;
    case WeightType::kQ4Zero: return 2;
    case WeightType::kQ8Zero: return 7;
    case WeightType::kQ4K: return 14;
    case WeightType::kBF16: return 32;
    default: return 0;
  }
}

WeightType type_for(const DraftTensor& tensor, WeightType asked) {
  const size_t in = tensor.shape.back();
  if (tensor.shape.size() == 1) return WeightType::kF32;
  if (dense_type(asked)) return asked;
  const bool rows_of_vocabulary =
      tensor.name == "token_embd.weight" || tensor.name == "output.weight";
  WeightType type = rows_of_vocabulary ? WeightType::kQ8Zero : asked;
  if (in % block_elements(type) != 0) type = WeightType::kQ5Zero;
  return in % block_elements(type) == 0 ? type : WeightType::kF16;
}

class Quantizer {
 public:
  Quantizer(const QuantizeRequest& request, const Progress& progress)
      : request_(request), progress_(progress), pool_(request.threads) {}

  QuantizeReport run() {
    const bool gguf = is_gguf_path(request_.model);
    if (gguf) Model::load(request_.model);  // refuses what is damaged
    GgufDraft draft = gguf ? draft_of_gguf(request_.model)
                           : draft_of_folder(request_.model, request_.chat_template);
    draft.keys.u32("general.file_type", file_type(request_.type));
    draft.keys.u32("general.quantization_version", 2);
    std::vector<GgufTensorSpec> specs;
    for (const DraftTensor& t : draft.tensors) {
      const WeightType to = type_for(t, request_.type);
      specs.push_back({t.name, static_cast<uint32_t>(to), t.shape});
      numbers_ += count(t);
    }
    OutputFile file(request_.output);
    const std::string head = gguf_head(draft.keys, specs);
    file.write(head.data(), head.size());
    report_.bytes = head.size();
    for (size_t i = 0; i < specs.size(); ++i) write(draft.tensors[i], specs[i], file);
    file.commit();
    return std::move(report_);
  }

 private:
  static size_t count(const DraftTensor& t) {
    size_t n = 1;
    for (const size_t d : t.shape) n *= d;
    return n;
  }

  void write(const DraftTensor& tensor, const GgufTensorSpec& spec, OutputFile& file) {
    const size_t in = tensor.shape.back(), rows = count(tensor) / in;
    const WeightType to = *weight_type(spec.type);
    const size_t piece = std::max<size_t>(1, kPiece / in);
    const size_t bytes = row_bytes(to, in);
    double off = 0, square = 0;
    for (size_t first = 0; first < rows; first += piece) {
      const size_t here = std::min(piece, rows - first);
      encoded_.resize(here * bytes);
      sums_.assign(here, {});
      pool_.parallel_for(here, [&](size_t i, int) {
        sums_[i] = encode_row(tensor, first + i, to, encoded_.data() + i * bytes);
      });
      for (const Sums& s : sums_) off += s.off, square += s.square;
      file.write(encoded_.data(), encoded_.size());
      done_ += here * in;
      if (progress_ && !progress_(done_, numbers_))
        throw Error(ErrorCode::kIo, "writing was stopped on request");
    }
    const size_t size = rows * bytes;
    const std::string padding((kGgufAlignment - size % kGgufAlignment) % kGgufAlignment, '\0');
    file.write(padding.data(), padding.size());
    report_.bytes += size + padding.size();
    const bool four_bits = request_.type == WeightType::kQ4K && to == WeightType::kQ5Zero;
    const bool no_block = !dense_type(request_.type) && to == WeightType::kF16;
    report_.tensors.push_back({.name = tensor.name,
                               .shape = tensor.shape,
                               .from = tensor.type,
                               .to = to,
                               .fell_back = four_bits || no_block,
                               .bytes = size,
                               .error = square > 0 ? std::sqrt(off / square) : 0});
  }

  struct Sums {
    double off = 0, square = 0;  // of squares
  };

  Sums encode_row(const DraftTensor& tensor, size_t row, WeightType to, std::byte* out) const {
    const size_t in = tensor.shape.back();
    std::vector<float> x(in), back(in);
    read_row(tensor, row, x.data());
    for (float& v : x) v += tensor.offset;
    if (const auto dense = dense_type(to)) {
      kernels_.from_f32(out, x.data(), *dense, in);
      kernels_.to_f32(back.data(), out, *dense, in);
    } else {
      try {
        encode_blocks(out, x.data(), to, in);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: tensor '{}': {}", request_.model.string(),
                                              tensor.name, error.what()));
      }
      block_kernels(kernels_).decode(back.data(), out, to, in);
    }
    Sums sums;
    for (size_t i = 0; i < in; ++i) {
      sums.off += (double{x[i]} - back[i]) * (double{x[i]} - back[i]);
      sums.square += double{x[i]} * x[i];
    }
    return sums;
  }

  /// The row of the source that is to stand at `row`.
  void read_row(const DraftTensor& tensor, size_t row, float* out) const {
    const size_t in = tensor.shape.back();
    if (!tensor.own.empty()) {
      std::copy_n(tensor.own.data() + row * in, in, out);
      return;
    }
    const bool vector = tensor.shape.size() == 1;
    if (vector && tensor.turned_heads > 0) {  // a bias: its numbers change places
      std::vector<float> all(in);
      kernels_.to_f32(all.data(), tensor.data, *dense_type(tensor.type), in);
      for (size_t i = 0; i < in; ++i) out[i] = all[source_row(i, in, tensor.turned_heads)];
      return;
    }
    if (tensor.turned_heads > 0) row = source_row(row, tensor.shape.front(), tensor.turned_heads);
    const std::byte* from = tensor.data + row * row_bytes(tensor.type, in);
    if (const auto dense = dense_type(tensor.type))
      kernels_.to_f32(out, from, *dense, in);
    else
      block_kernels(kernels_).decode(out, from, tensor.type, in);
  }
  /// Row 2 i + b of a head is b D / 2 + i of the source.
  static size_t source_row(size_t row, size_t rows, size_t heads) {
    const size_t dim = rows / heads, at = row % dim;
    return row - at + at % 2 * (dim / 2) + at / 2;
  }

  const QuantizeRequest& request_;
  const Progress& progress_;
  ThreadPool pool_;
  const Kernels& kernels_ = kernels_for("");
  QuantizeReport report_;
  std::vector<std::byte> encoded_;
  std::vector<Sums> sums_;
  size_t done_ = 0, numbers_ = 0;
};

}  // namespace

std::string chat_template_of(const std::filesystem::path& folder) {
  return chat::sources_of(folder).main;
}

std::span<const WeightType> quantize_types() { return kTypes; }

QuantizeReport quantize(const QuantizeRequest& request, const Progress& progress) {
  if (std::find(kTypes.begin(), kTypes.end(), request.type) == kTypes.end()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("files of {} are not written; supported: F32, "
                                                     "F16, BF16, Q8_0, Q4_0, Q4_K",
                                                     to_string(request.type)));
  }
  check_output(request.output, {request.model});
  return Quantizer(request, progress).run();
}

}  // namespace pith
