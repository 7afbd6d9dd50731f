#include "methods/codecs/csr/csr.h"

#include <fmt/format.h>

#include "methods/codecs/csr/csr_codec.h"
#include "methods/methods.h"
#include "pith/error.h"

namespace pith {
namespace {

std::unique_ptr<Codec> make_csr(const MethodOptions& options, Side side) {
  const auto& o = options.as<CsrOptions>();
  std::shared_ptr<const DictionaryFile> offline;
  if (o.dictionary)
    offline = std::make_shared<const DictionaryFile>(DictionaryFile::open(*o.dictionary));
  return std::make_unique<CsrCodec>(o.format(side), side, std::move(offline));
}

Offers csr_on_gpu(const MethodOptions& options, const OfferSite& site) {
  CsrOptions o = options.as<CsrOptions>();
  const CsrFormat format = o.format(site.side);
  const std::string text = write_options("csr", o);
  o.collect = format.collect;
  return {.codec = text,
          .code = write_options("csr", o),
          .levels = false,
          .before_rope = site.side == Side::kKeys && !format.rotated_keys,
          .learns = o.online > 0 ? (format.collect + 31) / 32 * 32 : 0,
          .limits = {{"head_dim", "64 or 128", site.dim > 128 ? "csr at a head_dim of 256" : ""},
                     {"outliers", "1: how many rows stay exact would depend on the rows",
                      o.outliers < 1 ? fmt::format("csr(outliers={})", o.outliers) : ""},
                     Limit::of("csr", "s", o.pairs, o.pairs <= 32, "up to 32"),
                     Limit::of("csr", "online", o.online, o.online <= 512,
                               "up to 512, as far as a card's shared memory goes")}};
}

}  // namespace

Fields CsrOptions::fields() {
  return {
      whole("s", pairs, {.least = 1, .most = SparseRows::kMaxPairs},
            "pairs of index and coefficient per row: 32 s / D bits per channel"),
      whole("chunks", chunks, {.least = 1, .most = SparseRows::kMaxPairs},
            "parts of a row that share its pairs; unset: keys 1, values 2"),
      choice<Solver>("solver", solver, {{"mp", Solver::kMp}, {"omp", Solver::kOmp}},
                     "matching pursuit; omp: all coefficients fitted anew at each step"),
      choice<Rope>("rope", rope, {{"pre", Rope::kPre}, {"post", Rope::kPost}},
                   "pre: keys are coded before RoPE; post: as they are attended to"),
      file("dict", dictionary, "a file that 'pith train-dict' made; unset: online atoms alone"),
      whole("online", online, {.most = 65536}, "atoms per KV head taken from its own first rows"),
      choice<Draw>("draw", draw, {{"rows", Draw::kRows}, {"kmeans", Draw::kKmeans}},
                   "online atoms: rows, drawn at random, or kmeans, their centroids"),
      whole("collect", collect, {.least = 1, .most = size_t{1} << 20},
            "first rows that online atoms are drawn from; unset: as many, kmeans 4 times as "
            "many"),
      number("outliers", outliers, {0, 1},
             "rows with more than this share of their norm left stay exact"),
      choice("pair_bits", pair_bits, {32, 16},
             "of an index and its coefficient; 16: no more of the index than the atoms ask for, "
             "and coefficients in steps of a scale per row")};
}

void CsrOptions::check(const std::string& method) const {
  if (dictionary && rope == Rope::kPost)
    throw Error(ErrorCode::kInvalidArgument,
                method +
                    ": trained dictionaries hold keys before RoPE; rope=post works with online "
                    "atoms alone");
  if (!dictionary && online == 0)
    throw Error(ErrorCode::kInvalidArgument,
                method +
                    ": online=0 without a trained dictionary leaves no atoms; give online=256 "
                    "or dict=FILE");
}

CsrFormat CsrOptions::format(Side side) const {
  CsrFormat format;
  format.pairs = pairs;
  format.chunks = chunks.value_or(0);
  format.solver = solver;
  format.rotated_keys = rope == Rope::kPost && side == Side::kKeys;
  format.online = online;
  format.clusters = draw == Draw::kKmeans;
  format.collect = collect.value_or(online * (format.clusters ? 4 : 1));
  format.outliers = static_cast<float>(outliers);
  format.packed = pair_bits == 16;
  return format;
}

CodecRow csr_row() {
  CodecRow row;
  row.info = {"csr",
              false,
              "rows as sums of s atoms of a dictionary; keys before RoPE",
              "CSR: Achieving 1 Bit Key-Value Cache via Sparse Representation",
              {},
              ""};
  row.takes<CsrOptions>();
  row.make = make_csr;
  row.on_gpu = csr_on_gpu;
  return row;
}

}  // namespace pith
