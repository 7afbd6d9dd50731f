// Codecs of programs: their functions code and decode rows; attention reads decoded tiles. Bytes
// per row: OwnCodec::row_bytes. Cost: one call per tile of rows that is coded or read.

#include "methods/codecs/own/own.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "methods/own_names.h"
#include "pith/error.h"
#include "pith/own_codec.h"
#include "rows/cpu/compaction.h"

namespace pith {
namespace {

constexpr size_t kMostRowBytes = size_t{1} << 20;

using Table = OwnTable<CodecRow, OwnCodec>;
Table& table() {
  static Table kTable;
  return kTable;
}

[[noreturn]] void refuse(const OwnCodec& codec, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("add_codec('{}'): {}", codec.name, why));
}

size_t row_bytes(const OwnCodec& codec, size_t dim) {
  const size_t bytes = codec.row_bytes(dim);
  if (bytes == 0 || bytes > kMostRowBytes)
    refuse(codec, fmt::format("row_bytes says {} for rows of {} numbers; 1 to {} are supported",
                              bytes, dim, kMostRowBytes));
  return bytes;
}

class OwnRows final : public CodedRows {
 public:
  OwnRows(const Context& context, const RowsRequest& request, std::shared_ptr<const OwnCodec> codec)
      : CodedRows(context.kernels, request.dim),
        codec_(std::move(codec)),
        site_{.layer = static_cast<int>(request.layer),
              .head = static_cast<int>(request.head),
              .keys = request.side == Side::kKeys,
              .head_dim = request.dim,
              .row_bytes = row_bytes(*codec_, request.dim)},
        codes_(context.memory, MemoryKind::kPayload) {
    codes_.set_growth_limit(request.max_rows * site_.row_bytes);
  }

  size_t rows() const override { return codes_.size() / site_.row_bytes; }

  void append(const float* x, size_t stride, size_t count) override {
    std::vector<float> packed;  // [count, D]
    if (stride != dim_) {
      packed.resize(count * dim_);
      for (size_t t = 0; t < count; ++t)
        std::copy_n(x + t * stride, dim_, packed.data() + t * dim_);
      x = packed.data();
    }
    const size_t before = rows();
    codes_.resize((before + count) * site_.row_bytes);
    codec_->encode(of(count), x, codes_.data() + before * site_.row_bytes);
  }

  void keep(std::span<const uint32_t> kept) override {
    keep_records(codes_, site_.row_bytes, kept);
  }

  void decode(float* out, size_t first, size_t count) const override {
    codec_->decode(of(count), codes_.data() + first * site_.row_bytes, out);
    for (size_t i = 0; i < count * dim_; ++i)
      if (!std::isfinite(out[i]))
        throw Error(ErrorCode::kNonFinite,
                    fmt::format("the codec {} decodes row {} of layer {}, head {}, {} to a number "
                                "that is not finite",
                                codec_->name, first + i / dim_, site_.layer, site_.head,
                                site_.keys ? "keys" : "values"));
  }

  std::unique_ptr<CodedRows> clone() const override { return std::make_unique<OwnRows>(*this); }
  void archive(Archive& a) override {
    size_t count = rows();
    a.number(count, kMostRows, "too many rows");
    a.numbers(codes_, count * site_.row_bytes);
  }
  size_t payload_bytes() const override { return codes_.size(); }
  size_t allocated_bytes() const override { return codes_.capacity_bytes(); }

 private:
  RowsToCode of(size_t count) const {
    RowsToCode rows = site_;
    rows.rows = count;
    return rows;
  }

  std::shared_ptr<const OwnCodec> codec_;
  RowsToCode site_;
  Array<uint8_t> codes_;  // [rows, row_bytes]
};

class Own final : public Codec {
 public:
  explicit Own(std::shared_ptr<const OwnCodec> codec) : codec_(std::move(codec)) {}
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(row_bytes(*codec_, dim));
  }
  size_t buffers() const override { return 1; }
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override {
    return std::make_unique<OwnRows>(context, request, codec_);
  }

 private:
  std::shared_ptr<const OwnCodec> codec_;
};

struct OwnOptions : NoOptions {
  std::string name;
};

CodecRow row_of(const OwnCodec& codec) {
  CodecRow row;
  row.info = {codec.name, false, codec.summary, "added by the program", {}, ""};
  row.takes<OwnOptions>();
  row.read = read_named<OwnOptions>;
  row.make = [](const MethodOptions& o, Side) -> std::unique_ptr<Codec> {
    return std::make_unique<Own>(table().functions(o.as<OwnOptions>().name));
  };
  return row;
}

}  // namespace

void add_codec(const OwnCodec& codec) {
  check_own_name("add_codec", codec.name, false);
  if (!codec.row_bytes || !codec.encode || !codec.decode)
    refuse(codec, "row_bytes, encode and decode are all needed");
  table().add(
      codec.name, codec, [&] { return row_of(codec); },
      [&](const OwnCodec& earlier) {
        for (const size_t dim : {64, 80, 96, 128, 256})
          if (earlier.row_bytes(dim) != codec.row_bytes(dim))
            refuse(codec, "it was added with other row_bytes; take another name");
      });
}

const CodecRow* find_added_codec(std::string_view name) { return table().find(name); }
std::vector<const CodecRow*> added_codecs() { return table().rows(); }

}  // namespace pith
