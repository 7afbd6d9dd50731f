#pragma once
// Rows of b-bit codes per token: groups of 32 channels with an f16 scale and, if asymmetric, an f16
// minimum (llama.cpp's q8_0 and q4_0; KIVI's and QJL's values). A row is coded when it comes and
// never again. Bytes per row: D b / 8 + 2 ceil(D / 32), twice the latter if asymmetric.

#include "rows/cpu/coded_rows.h"

namespace pith {

struct TokenFormat {
  int bits = 8;             ///< 2, 4 or 8
  bool asymmetric = false;  ///< minimum and scale, codes from 0; else codes around 2^(b-1)

  size_t code_bytes(size_t dim) const { return dim * static_cast<size_t>(bits) / 8; }
  size_t groups(size_t dim) const { return (dim + 31) / 32; }
  size_t side_numbers(size_t dim) const { return groups(dim) * (asymmetric ? 2 : 1); }  // of a row
  size_t side_bytes(size_t dim) const { return side_numbers(dim) * sizeof(uint16_t); }
};

class TokenRows final : public CodedRows {
 public:
  TokenRows(const Context& context, const TokenFormat& format, const RowsRequest& request);

  size_t rows() const override { return codes_.size() / format_.code_bytes(dim_); }
  void append(const float* x, size_t stride, size_t count) override;
  void keep(std::span<const uint32_t> kept) override;
  void decode(float* out, size_t first, size_t count) const override;
  /// Straight from the codes where D is a multiple of 32 up to 512.
  void scores(float* out, size_t ld, const float* q, const float* prepared, size_t queries,
              size_t first, size_t count, float scale) const override;
  void accumulate(float* acc, const float* p, size_t ld, size_t queries, size_t first,
                  size_t count) const override;
  std::unique_ptr<CodedRows> clone() const override;
  void archive(Archive& a) override;
  size_t payload_bytes() const override { return codes_.size(); }
  size_t metadata_bytes() const override { return rows() * format_.side_bytes(dim_); }
  size_t allocated_bytes() const override {
    return codes_.capacity_bytes() + sides_.capacity_bytes();
  }

 private:
  /// From row `first` on, as the kernels take them.
  CodeRows code_rows(size_t first) const;
  CodeSides sides(size_t first) const;

  TokenFormat format_;
  Array<uint8_t> codes_;   // [rows, D b / 8]
  Array<uint16_t> sides_;  // [rows, ceil(D / 32), scale (and minimum)] f16
};

class TokenCodec final : public Codec {
 public:
  explicit TokenCodec(const TokenFormat& format) : format_(format) {}
  double bytes_per_row(size_t dim) const override {
    return static_cast<double>(format_.code_bytes(dim) + format_.side_bytes(dim));
  }
  size_t buffers() const override { return 2; }  // codes, scales
  std::unique_ptr<CodedRows> make_rows(const Context& context,
                                       const RowsRequest& request) const override {
    return std::make_unique<TokenRows>(context, format_, request);
  }

 private:
  TokenFormat format_;
};

}  // namespace pith
