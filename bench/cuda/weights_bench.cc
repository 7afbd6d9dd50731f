// Weights times few and many tokens on the GPU, in the shapes of Llama-3.1-8B, several tokens in
// the way that batches take (see matvec.h and tile_matvec.h): microseconds, bytes per second and
// the share of the card's read rate (measured first); for products from codes also how many times
// faster than cuBLASLt's over bf16 weights. `model`: all products of a token, 32 layers and the
// head, in their order, with nothing between them. `decode`: one layer's codes to bf16, as a
// prompt's chunk needs them. `pass`: all products of a pass of many sessions by skinny_product.h's
// kernel, beside cuBLASLt of as many rows as a pass may have; `form`: one of them, shared out in
// each way that there is, `chosen` the engine's. Weights lie in more memory than the L2 cache
// holds. One JSON line a result.
//   cuda_weights_bench [--quick] [--only TYPE]

#include "bench.h"
#include "kernels/block_tiles.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/read_rate.h"
#include "kernels/cuda/skinny_product.h"
#include "kernels/cuda/tile_rows.h"

namespace pith::cuda {
namespace {

struct Product {
  const char* name;
  size_t out, in;
  MatvecEnd end;
  bool norm;
};
constexpr Product kLayer[] = {{"qkv", 6144, 4096, MatvecEnd::kStore, true},
                              {"o", 4096, 4096, MatvecEnd::kAdd, false},
                              {"gate_up", 28672, 4096, MatvecEnd::kGate, true},
                              {"down", 4096, 14336, MatvecEnd::kAdd, false}};
constexpr Product kHead = {"head", 128256, 4096, MatvecEnd::kStore, true};
constexpr WeightType kTypes[] = {WeightType::kBF16,   WeightType::kQ4K,    WeightType::kQ6K,
                                 WeightType::kQ8Zero, WeightType::kQ4Zero, WeightType::kQ5K,
                                 WeightType::kQ4One,  WeightType::kQ5Zero, WeightType::kQ5One,
                                 WeightType::kIq4Xs,  WeightType::kIq4Nl,  WeightType::kQ3K,
                                 WeightType::kQ2K};
constexpr size_t kLayers = 32, kMostTokens = 2048, kMostIn = 14336, kMostFew = 64;
constexpr size_t kPool = size_t{1} << 30;  // bytes of weights that are gone through

size_t bytes_of(WeightType type, const Product& p) {
  return dense_type(type) ? p.out * row_bytes(type, p.in) : tile_counts(type, p.out, p.in).bytes();
}
/// Of all products of a token.
double bytes_of_model(WeightType type) {
  auto bytes = static_cast<double>(bytes_of(type, kHead));
  for (const Product& p : kLayer) bytes += kLayers * static_cast<double>(bytes_of(type, p));
  return bytes;
}

class WeightsBench {
 public:
  WeightsBench()
      : rate_(read_rate()),
        pool_(bench_.normals(kPool / 2, 1)),
        narrow_(bench_.normals(kMostTokens * kMostIn, 2)),
        matmul_(bench_.counter, bench_.stream) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> x(kMostFew * kMostIn);
    for (float& v : x) v = normal(random);
    x_ = upload(bench_, x);
    size_t coded = 0;
    for (const WeightType type : kTypes) {
      if (!dense_type(type))
        coded = std::max(coded, coded_inputs_bytes({nullptr, type, 1, kMostIn}, kMostFew));
    }
    coded_ = DeviceArray<std::byte>(bench_.counter, MemoryKind::kScratch, coded, bench_.stream);
    y_ = DeviceArray<float>(bench_.counter, MemoryKind::kScratch,
                            std::max(kMostTokens * 28672, kMostFew * kHead.out), bench_.stream);
    fmt::print("{{\"what\": \"read rate\", \"TB_s\": {:.3f}}}\n", rate_ / 1e12);
  }

  /// One product again and again, each time over other weights.
  void one(WeightType type, const Product& p, size_t tokens) {
    const double bytes = static_cast<double>(bytes_of(type, p));
    const int calls = static_cast<int>(std::clamp<double>(2e9 / bytes, 4, 100));
    const double us = time_us(bench_.stream, calls, [&](int) { few(type, p, p, tokens); });
    std::string more;
    if (type != WeightType::kBF16)
      more = fmt::format(", \"times_cublas\": {:.2f}", cublas(p, tokens) / us);
    report(to_string(type), p.name, tokens, us, bytes, more);
  }

  /// A token's products, each with the next one named.
  void model(WeightType type, size_t tokens) {
    const double us = time_us(bench_.stream, 1, [&](int) {
      for (size_t l = 0; l < kLayers; ++l) {
        for (size_t i = 0; i < std::size(kLayer); ++i) {
          const bool last = i + 1 == std::size(kLayer);
          const Product& after = !last ? kLayer[i + 1] : l + 1 < kLayers ? kLayer[0] : kHead;
          few(type, kLayer[i], after, tokens);
        }
      }
      few(type, kHead, kLayer[0], tokens);
    });
    report(to_string(type), "model", tokens, us, bytes_of_model(type), "");
  }

  /// All products of a pass of `tokens` in an engine for kMostSkinny.
  void pass(size_t tokens) {
    const auto all = [&](const auto& multiply) {
      return time_us(bench_.stream, 1, [&](int) {
        for (size_t l = 0; l < kLayers; ++l) {
          for (const Product& p : kLayer) multiply(p);
        }
        multiply(kHead);
      });
    };
    const double us = all([&](const Product& p) { skinny(p, tokens, form_of(p)); });
    const double wide = all([&](const Product& p) {
      matmul_.run(y_.data(), narrow_.data(), DType::kBF16, next(WeightType::kBF16, p), kMostSkinny,
                  false);
    });
    report("bf16", "pass", tokens, us, bytes_of_model(WeightType::kBF16),
           fmt::format(", \"cublas_us\": {:.1f}, \"times_cublas\": {:.2f}", wide, wide / us));
  }

  /// One product in each form.
  void forms(const Product& p, size_t tokens) {
    const auto bytes = static_cast<double>(bytes_of(WeightType::kBF16, p));
    const SkinnyForm chosen = form_of(p);
    for (const int rows : {32, 64, 128}) {
      for (int parts = 1; parts <= (parts_of(p.end) == 2 ? 1 : kMostSkinnyParts); ++parts) {
        const double us = time_us(bench_.stream, 20, [&](int) {
          skinny(p, tokens, {rows, parts});
        });
        report("bf16", p.name, tokens, us, bytes,
               fmt::format(", \"form\": \"{}x{}\", \"chosen\": {}", rows, parts,
                           rows == chosen.rows && parts == chosen.parts));
      }
    }
  }

  /// The time of a chunk's products, and of decoding beside them.
  void chunk(WeightType type, size_t tokens) {
    double bytes = 0;
    for (const Product& p : kLayer)
      bytes += static_cast<double>(bytes_of(type, p) + 2 * p.out * p.in);
    const auto run = [&](WeightType as) {
      return time_us(bench_.stream, 1, [&](int) {
        for (const Product& p : kLayer) {
          const MixedMatrix w = next(as, p);
          matmul_.run(y_.data(), narrow_.data(), DType::kBF16, w, tokens, false);
        }
      });
    };
    const double coded = run(type), dense = run(WeightType::kBF16);
    report(to_string(type), "chunk", tokens, coded, bytes,
           fmt::format(", \"bf16_us\": {:.1f}, \"speed_of_bf16\": {:.3f}", dense, dense / coded));
  }

  void decode(WeightType type) {
    double bytes = 0;
    for (const Product& p : kLayer)
      bytes += static_cast<double>(bytes_of(type, p) + 2 * p.out * p.in);
    if (!panel_.data())
      panel_ = DeviceArray<std::byte>(bench_.counter, MemoryKind::kScratch, size_t{256} << 20,
                                      bench_.stream);
    const double us = time_us(bench_.stream, 1, [&](int) {
      for (const Product& p : kLayer) {
        const MixedMatrix w = next(type, p);
        unpack_tiles({panel_.data(), DType::kBF16, w.tiles(w.parts[0]), 0, p.out}, bench_.stream);
      }
    });
    report(to_string(type), "decode", 0, us, bytes, "");
  }

 private:
  /// Weights that lie behind `at`, which moves on.
  MixedMatrix place(WeightType type, const Product& p, size_t& at) const {
    const size_t bytes = bytes_of(type, p);
    if (at + bytes > kPool) at = 0;
    const auto* data = reinterpret_cast<const std::byte*>(pool_.data()) + at;
    at += (bytes + 255) / 256 * 256;
    return {{{data, type, p.out}}, p.out, p.in, p.end == MatvecEnd::kGate};
  }
  MixedMatrix next(WeightType type, const Product& p) { return place(type, p, at_); }

  void few(WeightType type, const Product& p, const Product& after, size_t tokens) {
    const MixedMatrix w = next(type, p);
    size_t then = at_;
    const MixedMatrix following = place(type, after, then);
    few_tokens({.y = y_.data(),
                .w = &w,
                .x = x_.data(),
                .norm = p.norm ? x_.data() : nullptr,
                .eps = 1e-5f,
                .end = p.end,
                .tokens = tokens,
                .together = tokens > 1,
                .next = &following,
                .coded = coded_.data()},
               bench_.stream);
  }

  static MatvecEnd skinny_end(const Product& p) {
    return p.end == MatvecEnd::kAdd ? MatvecEnd::kStore : p.end;  // the norm behind it adds
  }
  static SkinnyForm form_of(const Product& p) {
    return skinny_form({nullptr, DType::kBF16, p.out, p.in}, skinny_end(p),
                       p.end != MatvecEnd::kAdd);
  }
  void skinny(const Product& p, size_t tokens, const SkinnyForm& form) {
    const MixedMatrix w = next(WeightType::kBF16, p);
    skinny_product(
        {y_.data(), w.dense(w.parts[0]), narrow_.data(), nullptr, skinny_end(p), tokens, form},
        bench_.stream);
  }

  double cublas(const Product& p, size_t tokens) {
    return time_us(bench_.stream, 4, [&](int) {
      const MixedMatrix w = next(WeightType::kBF16, p);
      matmul_.run(y_.data(), narrow_.data(), DType::kBF16, w, tokens, false);
    });
  }

  void report(const char* type, const char* what, size_t tokens, double us, double bytes,
              const std::string& more) const {
    fmt::print(
        "{{\"type\": \"{}\", \"what\": \"{}\", \"tokens\": {}, \"us\": {:.2f}, \"MB\": {:.1f}, "
        "\"TB_s\": {:.3f}, \"of_limit\": {:.3f}{}}}\n",
        type, what, tokens, us, bytes / 1e6, bytes / us / 1e6, bytes / (us * 1e-6) / rate_, more);
    std::fflush(stdout);
  }

  Bench bench_;
  double rate_;
  DeviceArray<uint16_t> pool_, narrow_;
  DeviceArray<float> x_, y_;
  DeviceArray<std::byte> panel_, coded_;
  DeviceMatmul matmul_;
  size_t at_ = 0;
};

int run(bool quick, const std::string& only) {
  WeightsBench b;
  for (const WeightType type : kTypes) {
    if (!only.empty() && only != to_string(type)) continue;
    const bool main = type == WeightType::kQ4K || type == WeightType::kBF16;
    b.model(type, 1);
    if (main || !quick) {
      for (const Product& p : kLayer) b.one(type, p, 1);
      b.one(type, kHead, 1);
    }
    for (const size_t tokens : {2, 4, 8}) b.model(type, tokens);
    if (main || !quick) {
      for (const size_t tokens : {16, 32, 64}) b.model(type, tokens);
    }
    if (dense_type(type)) {
      for (const Product& p : kLayer) {
        for (const size_t tokens : {8, 32}) b.one(type, p, tokens);
      }
      if (!device_info().wgmma()) continue;
      for (const size_t tokens : {1, 8, 16, 32, 64}) b.pass(tokens);
      for (const Product& p : kLayer) {
        for (const size_t tokens : {8, 64}) b.forms(p, tokens);
      }
      continue;
    }
    b.decode(type);
    if (!main) continue;
    for (const size_t tokens : {512, 2048}) b.chunk(type, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace pith::cuda

int main(int argc, char** argv) {
  return pith::cuda::bench_main("cuda_weights_bench", argc, argv, pith::cuda::run);
}
