// Prints attention's speed beside the machine's: attention_bench [all|decode|matvec|prefill]
// [threads] [repeats]. PITH_ISA chooses the instruction set. Fails if an answer differs from the
// scalar primitives'.

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "attention.h"

int main(int argc, char** argv) {
  using pith::DType;
  const std::string_view what = argc > 1 ? argv[1] : "";
  pith::ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 0);
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 9;
  pith::MemoryCounter memory;
  const pith::Context context{pool, memory, pith::kernels_for()};
  bool right = true;
  fmt::print("{} threads, {}; medians of {} interleaved runs\n", pool.size(), context.kernels.isa,
             repeats);
  const bool all = what.empty() || what == "all";
  if (all || what == "decode") {
    fmt::print("\ndecode, GQA 4, 32768 rows: dtype   D   GB/s  read GB/s  ratio  difference\n");
    for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (size_t dim : {64, 128}) {
        const auto r =
            pith::bench::bench_decode(context, {.dtype = dtype, .head_dim = dim}, repeats);
        fmt::print("{:>32} {:>3} {:>6.1f} {:>10.1f} {:>6.2f}  {:.1e}\n", pith::to_string(dtype),
                   dim, r.bytes_per_second / 1e9, r.read_bytes_per_second / 1e9, r.ratio,
                   r.largest_difference);
        right &= r.largest_difference < 1e-5;
      }
    }
  }
  if (all || what == "matvec") {
    fmt::print("\none token's products, 1 GiB: dtype    in   GB/s  read GB/s  ratio  difference\n");
    for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      const auto r = pith::bench::bench_matvec(context, dtype, 2048, repeats);
      fmt::print("{:>32} {:>5} {:>6.1f} {:>10.1f} {:>6.2f}  {:.1e}\n", pith::to_string(dtype), 2048,
                 r.bytes_per_second / 1e9, r.read_bytes_per_second / 1e9, r.ratio,
                 r.largest_difference);
      right &= r.largest_difference < 1e-5;
    }
  }
  if (all || what == "prefill") {
    fmt::print(
        "\nprefill, causal, 4096 tokens, GQA 4, f32: D  GFLOP/s  oneDNN split  threaded  "
        "tiles  ratio to the best  difference\n");
    for (size_t dim : {64, 128}) {
      const auto r = pith::bench::bench_prefill(context, {.head_dim = dim}, repeats);
      fmt::print("{:>42} {:>8.0f} {:>13.0f} {:>9.0f} {:>6.0f} {:>18.2f}  {:.1e}\n", dim,
                 r.flops / 1e9, r.whole_split / 1e9, r.whole_threaded / 1e9, r.tiled_split / 1e9,
                 r.ratio, r.largest_difference);
      right &= r.largest_difference < 1e-5;
    }
  }
  if (!right) fmt::print(stderr, "an answer differs from the scalar primitives'\n");
  return right ? 0 : 1;
}
