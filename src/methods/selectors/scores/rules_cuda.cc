// The score selectors on the GPU: kernels for the scores; the rules are the CPU's.

#include "methods/registry_cuda.h"
#include "methods/selectors/scores/scores.h"
#include "methods/selectors/scores/scores_cuda.h"
#include "methods/selectors/scores/snapkv.h"
#include "select/cuda/key_directions.h"

namespace pith::cuda {
namespace {

class KNormRows final : public BestRows {
 public:
  std::string_view by_keys_alone() const override { return "knorm"; }

 private:
  void score(const SelectSpace& space, const CandidateRows& rows,
             cudaStream_t stream) const override {
    score_norms(space, rows, stream);
  }
};

class KeyDiffRows final : public BestRows {
 public:
  std::string_view by_keys_alone() const override { return "keydiff"; }

 private:
  void score(const SelectSpace& space, const CandidateRows& rows,
             cudaStream_t stream) const override {
    score_directions(space, rows, stream);
  }
};

/// How attention mass becomes a score.
struct MassUse {
  size_t kernel = 1;       ///< neighbours whose mass is added
  bool all_heads = false;  ///< heads agree
  float kept = 1;          ///< of the mass of rows that stay, at each selection
};

class MassRows final : public BestRows {
 public:
  explicit MassRows(const MassUse& use) : use_(use) {}
  bool reads_rows() const override { return false; }
  float mass_kept() const override { return use_.kept; }

 private:
  void score(const SelectSpace& space, const CandidateRows& rows,
             cudaStream_t stream) const override {
    score_mass(space, rows, static_cast<int>(use_.kernel), use_.all_heads, stream);
  }

  MassUse use_;
};

SelectorOnGpu by_mass(const MassUse& use) { return {nullptr, std::make_shared<MassRows>(use)}; }

}  // namespace

SelectorOnGpu make_knorm_on_gpu(const SelectorPlace&) {
  return {nullptr, std::make_shared<KNormRows>()};
}
SelectorOnGpu make_keydiff_on_gpu(const SelectorPlace&) {
  return {nullptr, std::make_shared<KeyDiffRows>()};
}
SelectorOnGpu make_tova_on_gpu(const SelectorPlace&) { return by_mass({.all_heads = true}); }
SelectorOnGpu make_h2o_on_gpu(const SelectorPlace& place) {
  return by_mass({.kept = static_cast<float>(place.options.as<H2oOptions>().decay)});
}
SelectorOnGpu make_snapkv_on_gpu(const SelectorPlace& place) {
  return by_mass({.kernel = place.options.as<SnapKvOptions>().kernel});
}
SelectorOnGpu make_pyramidkv_on_gpu(const SelectorPlace& place) {
  return by_mass({.kernel = place.options.as<PyramidKvOptions>().kernel});
}

}  // namespace pith::cuda
