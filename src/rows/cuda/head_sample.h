#pragma once
// The rows that a codec learns its tables from (DeviceCodec::learn), as its kernels read them.

#include "rows/cuda/device_codec.h"
#include "rows/cuda/level_format.h"

namespace pith::cuda {

/// The arguments of DeviceCodec::learn.
struct RowsToLearn {
  const RowTarget& rows;
  DType dtype;
  const RowPositions& positions;
};

/// The first `count` keys of each head. Of values all but `rows` is the same.
inline HeadSample sample_keys(const RowsToLearn& of, const TableSite& site, size_t count) {
  return {of.rows.k,     of.rows.head_stride, of.dtype, site.kv_heads, static_cast<int>(count),
          site.head_dim, of.positions};
}

}  // namespace pith::cuda
