// The kernels of rows of levels by themselves: decode attention and attention mass over coded and
// dense spans against double precision over the rows that the codes stand for, for every group of
// queries.

#include <cmath>
#include <map>
#include <memory>

#include "harness.h"
#include "methods/registry_cuda.h"
#include "policy/registry.h"
#include "rows/cuda/level_codec.h"

namespace pith::cuda {
namespace {

struct Shape {
  int query_heads, kv_heads;
};

/// A codec, and rows of all KV heads in its codes with what they stand for.
struct Coded {
  std::shared_ptr<const DeviceCodec> codec;
  size_t blocks = 0;
  DeviceArray<char> key_codes, key_side, value_codes, value_side;
  size_t records = 0;  // of a head
  DeviceArray<char> record_bytes;
  std::vector<float> k, v;  // [G, rows, D]
};

const std::vector<double>& frequencies(int dim) {
  static std::map<int, std::vector<double>> all;
  std::vector<double>& x = all[dim];
  for (int i = static_cast<int>(x.size()); i < dim / 2; ++i) {
    x.push_back(std::pow(10000.0, -2.0 * i / dim));
  }
  return x;
}

/// `alone`: rows may be moved by themselves.
Coded code(MemoryCounter& counter, const std::string& text, int heads, int rows, int dim,
           bool alone) {
  const DType dtype = DType::kF16;
  const PolicyPart part = *Policy::parse("exact+" + text).rules.front().key_codec;
  const CodecRow& row = codec_row(part.name);
  Coded c;
  c.codec = find_device_codec(row.info.name)->make(row.read(part));
  if (dim > kMostFragmentDim) c.codec = c.codec->as_levels();
  if (auto own = alone ? c.codec->with_rows_alone(dim) : nullptr) c.codec = own;
  const TableSite site{&counter, nullptr, dim, heads, 0, 3, 0, &frequencies(dim)};
  if (auto own = c.codec->with_tables(site)) c.codec = own;
  c.blocks = static_cast<size_t>(rows) / 32;
  const GroupedBytes bytes = c.codec->block_bytes(dim);
  const size_t all = c.blocks * static_cast<size_t>(heads);
  const auto make = [&](size_t block) {
    return DeviceArray<char>(counter, MemoryKind::kPayload, std::max<size_t>(all * block, 1),
                             nullptr);
  };
  c.key_codes = make(bytes.key_codes), c.key_side = make(bytes.key_side);
  c.value_codes = make(bytes.value_codes), c.value_side = make(bytes.value_side);
  c.records = static_cast<size_t>(rows) / c.codec->block_rows() + 1;
  c.record_bytes = {counter, MemoryKind::kPayload,
                    static_cast<size_t>(heads) * c.records * c.codec->record_bytes() + 1, nullptr};
  const size_t n = static_cast<size_t>(heads) * rows * dim, stride = n / heads;
  const auto k = to_device(counter, normals(n, dtype, 51)),
             v = to_device(counter, normals(n, dtype, 52));
  if (c.codec->learns_from() > 0)
    c.codec->learn({k.data(), v.data(), stride, 0}, dtype, 0, nullptr);
  // The first record stays free.
  const CodeJob keys{k.data(), stride, c.key_codes.data(),    c.key_side.data(),
                     c.blocks, 0,      c.record_bytes.data(), c.records,
                     1};
  CodeJob values = keys;
  values.x = v.data();
  values.codes = c.value_codes.data();
  values.side = c.value_side.data();
  c.codec->code({dtype, heads, rows, dim}, {&keys, 1}, {&values, 1}, nullptr);
  const auto unpack = [&](bool of_keys) {
    const DeviceArray<uint16_t> out(counter, MemoryKind::kScratch, n, nullptr);
    UnpackRowsCall call;
    call.codes = of_keys ? c.key_codes.data() : c.value_codes.data();
    call.side = of_keys ? c.key_side.data() : c.value_side.data();
    call.block_stride = c.blocks;
    call.heads = heads;
    call.blocks = static_cast<int>(c.blocks);
    call.head_dim = dim;
    call.dtype = dtype;
    call.out = out.data();
    call.head_stride = stride;
    call.records = c.record_bytes.data();
    call.record_stride = c.records;
    of_keys ? c.codec->unpack_keys(call, nullptr) : c.codec->unpack_values(call, nullptr);
    return widen(to_host(out), dtype);
  };
  c.k = unpack(true), c.v = unpack(false);
  return c;
}

std::vector<float> rows_of(const std::vector<float>& all, int head, int rows, int dim) {
  const auto first = all.begin() + static_cast<ptrdiff_t>(head) * rows * dim;
  return {first, first + static_cast<ptrdiff_t>(rows) * dim};
}

/// Attention over a coded span with a weight and a dense one, and the mass of all rows.
void check_group(const std::string& codec, const Shape& s, int dim, bool alone) {
  SCOPED_TRACE(codec + (alone ? " of rows alone, " : ", ") + std::to_string(s.query_heads) +
               " query heads, " + std::to_string(s.kv_heads) + " KV heads, head_dim " +
               std::to_string(dim));
  MemoryCounter counter;
  const DType dtype = DType::kF16;
  const int rows = 256, dense = 21, group = s.query_heads / s.kv_heads;
  const float log_weight = 0.75f;
  const Coded c = code(counter, codec, s.kv_heads, rows, dim, alone);
  const GroupedBytes bytes = c.codec->block_bytes(dim);
  const size_t n = static_cast<size_t>(s.kv_heads) * dense * dim;
  const auto k = normals(n, dtype, 61), v = normals(n, dtype, 62);
  const auto q = normals(static_cast<size_t>(s.query_heads) * dim, dtype, 63);
  const auto k_device = to_device(counter, k), v_device = to_device(counter, v);
  const auto q_device = to_device(counter, q);
  std::vector<DeviceSpan> spans;
  for (int g = 0; g < s.kv_heads; ++g) {
    const size_t block = g * c.blocks;
    DeviceSpan coded;
    coded.keys = c.key_codes.data() + block * bytes.key_codes;
    coded.key_side = c.key_side.data() + block * bytes.key_side;
    coded.values = c.value_codes.data() + block * bytes.value_codes;
    coded.value_side = c.value_side.data() + block * bytes.value_side;
    coded.rows = rows;
    coded.coded = 1;
    coded.group_blocks = c.codec->group_blocks();
    if (c.codec->record_bytes() > 0) {
      coded.set_records(c.record_bytes.data() + g * c.records * c.codec->record_bytes());
    }
    coded.log_weight = log_weight;
    DeviceSpan plain;
    plain.keys = k_device.data() + static_cast<size_t>(g) * dense * dim;
    plain.values = v_device.data() + static_cast<size_t>(g) * dense * dim;
    plain.rows = dense;
    plain.row_stride = dim;
    spans.insert(spans.end(), {plain, coded});
  }
  const auto span_device = to_device(counter, spans);
  const DecodeShape shape{1, s.query_heads, s.kv_heads, dim, 2, 0};
  const DecodeScratch scratch(counter, shape, nullptr);
  const auto out = to_device(counter, std::vector<float>(q.size(), NAN));
  const auto log_sum = to_device(counter, std::vector<float>(s.query_heads, NAN));
  c.codec->attend({{q_device.data(), span_device.data(), out.data(), log_sum.data()}, shape, dtype},
                  scratch, nullptr);

  const auto got = to_host(out), got_log = to_host(log_sum), queries = widen(q, dtype);
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  std::vector<double> all_want, mass_want(static_cast<size_t>(s.kv_heads) * (rows + dense));
  for (int g = 0; g < s.kv_heads; ++g) {
    const OracleSpan coded{rows_of(c.k, g, rows, dim), rows_of(c.v, g, rows, dim),
                           std::vector<float>(rows, log_weight)};
    const OracleSpan plain{rows_of(widen(k, dtype), g, dense, dim),
                           rows_of(widen(v, dtype), g, dense, dim), std::vector<float>(dense)};
    for (int h = g * group; h < (g + 1) * group; ++h) {
      const float* query = queries.data() + static_cast<size_t>(h) * dim;
      std::vector<double> want;
      const double log_want = oracle(want, query, dim, scale, {&plain, &coded});
      EXPECT_NEAR(got_log[h], log_want, 1e-2);
      all_want.insert(all_want.end(), want.begin(), want.end());
      for (int t = 0; t < rows + dense; ++t) {  // coded rows come first
        const std::vector<float>& keys = t < rows ? coded.k : plain.k;
        double dot = 0;
        for (int d = 0; d < dim; ++d) dot += query[d] * keys[(t % rows) * dim + d];
        mass_want[g * (rows + dense) + t] += std::exp(dot * scale - log_want);
      }
    }
  }
  EXPECT_LT(relative_error(got, all_want), 3e-3);
  if (c.codec->with_rows_alone(dim)) return;

  // Mass that is there already grows by the token's.
  const auto mass = to_device(counter, std::vector<float>(mass_want.size(), 0.5f));
  MassTarget target;
  target.keys = k_device.data();
  target.mass = mass.data();
  target.head_stride = static_cast<size_t>(dense) * dim;
  target.stride = rows + dense;
  target.rows = dense;
  target.known = rows + 10;
  target.codes = c.key_codes.data();
  target.code_side = c.key_side.data();
  target.block_stride = c.blocks;
  target.records = c.record_bytes.data();
  target.record_stride = c.records;
  target.coded = rows;
  const auto target_device = to_device(counter, std::vector<MassTarget>{target});
  c.codec->add_token_mass(
      {{s.query_heads, s.kv_heads, dim, dtype}, q_device.data(), log_sum.data()},
      target_device.data(), nullptr);
  for (size_t i = 0; i < mass_want.size(); ++i) {
    if (static_cast<int>(i) % (rows + dense) < target.known) mass_want[i] += 0.5;
  }
  EXPECT_LT(relative_error(to_host(mass), mass_want), 3e-3);
}

TEST(CudaLevels, EveryGroupOfQueries) {
  PITH_NEEDS_GPU();
  for (const char* codec :
       {"turboquant(bits=1)", "turboquant(bits=3)", "turboquant(bits=2,center=64)", "qjl",
        "qjl(residual=2,center=64)", "gear(bits=2,rank=3,outliers=2)", "kvquant(bits=3)",
        "int8(hadamard=true)", "kivi(bits=4,hadamard=true)",
        "int4(hadamard=true,center=64,pre_rope=true)", "kvtc(bits=2.5)"}) {
    for (const Shape& s : {Shape{1, 1}, {2, 2}, {8, 1}, {12, 1}, {28, 4}}) {
      for (const int dim : {64, 128, 256}) {
        if (!left_out()) check_group(codec, s, dim, false);
      }
    }
  }
}

const char* const kShared[] = {"kivi(bits=2)",
                               "kivi(bits=4)",
                               "gear(bits=2,rank=3,outliers=5)",
                               "gear(bits=4,rank=2,outliers=1,rows=64)",
                               "kvquant(bits=3)",
                               "kvquant(bits=2,outliers=3)",
                               "int8(center=32)",
                               "turboquant(bits=3,center=64)",
                               "qjl",
                               "qjl(residual=4,center=32)",
                               "kivi(bits=2,hadamard=true,center=128)",
                               "int4(hadamard=true,center=96,pre_rope=true)",
                               "kivi(bits=4,center=32,pre_rope=true)",
                               "kvtc(bits=4.25)"};

TEST(CudaLevels, EveryGroupOfQueriesOverRowsAlone) {
  PITH_NEEDS_GPU();
  for (const char* codec : kShared) {
    for (const Shape& s : {Shape{1, 1}, {12, 1}, {28, 4}}) {
      for (const int dim : {64, 128, 256}) {
        if (!left_out()) check_group(codec, s, dim, true);
      }
    }
  }
}

// A row's shared part lies elsewhere; the row is the same.
TEST(CudaLevels, RowsAloneAreTheSameRows) {
  PITH_NEEDS_GPU();
  for (const char* codec : kShared) {
    for (const int dim : {64, 128, 256}) {
      SCOPED_TRACE(codec);
      MemoryCounter counter;
      const Coded grouped = code(counter, codec, 3, 256, dim, false);
      const Coded alone = code(counter, codec, 3, 256, dim, true);
      EXPECT_TRUE(grouped.codec->with_rows_alone(dim));
      EXPECT_FALSE(alone.codec->with_rows_alone(dim));
      EXPECT_EQ(alone.v, grouped.v);
      // Angles that go on by products are a little off.
      const std::vector<double> want(grouped.k.begin(), grouped.k.end());
      EXPECT_LT(relative_error(alone.k, want), grouped.codec->learns_from() > 0 ? 1e-3 : 1e-9);
    }
  }
}

}  // namespace
}  // namespace pith::cuda
