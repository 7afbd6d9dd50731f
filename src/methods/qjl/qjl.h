#pragma once
// QJL (Zandieh et al. 2024): keys as sign bits of a Johnson-Lindenstrauss sketch and a norm. With S
// of m rows, <q, k> is estimated by c |k| / m <S q, sign(S k)>, which is unbiased over S; values
// are 2-bit codes per token. Groups of 32 consecutive rows name the channels of largest norm: these
// form a second vector with a sketch and a norm of its own, and queries are split the same way.
// Bits a key: m + m_out + 32, and 16 (outliers + 2) / 32 for the group.

#include "compress/registry.h"

namespace pith {

struct QjlFormat;

CodecRow qjl_row();
CodecRow turboquant_row();

/// The parameters of `qjl` without a coarse code.
QjlFormat qjl_format(const Parameters& parameters);

}  // namespace pith
