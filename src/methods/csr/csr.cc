#include "methods/csr/csr.h"

#include <fmt/format.h>

#include "methods/csr/csr_codec.h"
#include "pith/error.h"

namespace pith {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "csr: " + what);
}

std::unique_ptr<Codec> make_csr(const Parameters& p, Side side) {
  const CsrFormat format = csr_format(p, side);
  std::shared_ptr<const DictionaryFile> offline;
  if (p.given("dict"))
    offline = std::make_shared<const DictionaryFile>(DictionaryFile::open(p.text("dict")));
  if (offline && format.rotated_keys)
    refuse("trained dictionaries hold keys before RoPE; rope=post works with online atoms alone");
  if (!offline && format.online == 0)
    refuse("online=0 without a trained dictionary leaves no atoms; give online=256 or dict=FILE");
  return std::make_unique<CsrCodec>(format, side, std::move(offline));
}

}  // namespace

CsrFormat csr_format(const Parameters& p, Side side) {
  CsrFormat format;
  format.pairs = p.count("s", 1);
  if (p.given("chunks")) format.chunks = p.count("chunks", 1);
  format.solver = p.choice("solver", {"mp", "omp"}) == "mp" ? Solver::kMp : Solver::kOmp;
  format.rotated_keys = p.choice("rope", {"pre", "post"}) == "post" && side == Side::kKeys;
  format.online = p.count("online", 0);
  format.clusters = p.choice("draw", {"rows", "kmeans"}) == "kmeans";
  format.collect =
      p.given("collect") ? p.count("collect", 1) : format.online * (format.clusters ? 4 : 1);
  format.outliers = static_cast<float>(p.number("outliers", 0, 1));
  if (format.pairs > SparseRows::kMaxPairs)
    refuse(fmt::format("s={} pairs a row; at most {}", format.pairs, SparseRows::kMaxPairs));
  return format;
}

CodecRow csr_row() {
  CodecRow row;
  row.info = {"csr",
              false,
              "rows as sums of s atoms of a dictionary; keys before RoPE",
              "CSR: Achieving 1 Bit Key-Value Cache via Sparse Representation",
              {{"s", "8", "pairs of index and coefficient a row: 32 s / D bits a channel"},
               {"chunks", "", "parts of a row that share its pairs; unset: keys 1, values 2"},
               {"solver", "mp", "mp, or omp: all coefficients fitted anew at each step"},
               {"rope", "pre", "pre: keys are coded before RoPE; post: as they are attended to"},
               {"dict", "", "a file that 'pith train-dict' made; unset: online atoms alone"},
               {"online", "256", "atoms a KV head taken from its own first rows"},
               {"draw", "rows", "online atoms: rows, drawn at random, or kmeans, their centroids"},
               {"collect", "",
                "first rows that online atoms are drawn from; unset: as many, kmeans "
                "4 times as many"},
               {"outliers", "1", "rows with more than this share of their norm left stay exact"}},
              ""};
  row.make = make_csr;
  return row;
}

}  // namespace pith
