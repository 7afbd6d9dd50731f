// expected_attention's scores on the GPU.

#include <complex>

#include "methods/registry_cuda.h"
#include "methods/selectors/expected_attention/expected_attention.h"
#include "methods/selectors/expected_attention/expected_attention_cuda.h"
#include "methods/selectors/scores/scores.h"

namespace pith::cuda {
namespace {

class ExpectedRows final : public BestRows {
 public:
  ExpectedRows(const SelectorPlace& p, const ExpectedOptions& options)
      : options_(options), scale_(p.site.scale) {}

  size_t state_numbers(size_t heads, size_t dim) const override {
    return expected_state_numbers(heads, dim, options_.covariance);
  }
  void observe_token(const StepQueries& queries, const QueryNote* note,
                     cudaStream_t stream) const override {
    observe_token_queries(seen(queries), note, options_.covariance, stream);
  }
  void observe_chunk(const StepQueries& queries, const QueryNote& note,
                     cudaStream_t stream) const override {
    observe_chunk_queries(seen(queries), note, options_.covariance, stream);
  }

 private:
  StepQueries seen(StepQueries queries) const {
    if (!options_.rope) queries.frequencies = nullptr;
    return queries;
  }
  void score(const SelectSpace& space, const CandidateRows& rows,
             cudaStream_t stream) const override {
    ExpectedScores how;
    how.scale = scale_;
    how.covariance = options_.covariance;
    how.vnorm = options_.vnorm;
    how.epsilon = options_.epsilon;
    for (size_t i = 0; i < static_cast<size_t>(rows.dim) / 2; ++i) {
      std::complex<double> turn(1, 0);
      if (const auto* radians = rows.queries.frequencies; radians && options_.rope) {
        turn = mean_turn((*radians)[i], rows.queries.position, options_.future);
      }
      how.turn.cos[i] = static_cast<float>(turn.real());
      how.turn.sin[i] = static_cast<float>(turn.imag());
    }
    score_expected(space, rows, how, stream);
  }

  ExpectedOptions options_;
  float scale_;
};

}  // namespace

SelectorOnGpu make_expected_attention_on_gpu(const SelectorPlace& place) {
  return {nullptr, std::make_shared<ExpectedRows>(place, place.options.as<ExpectedOptions>())};
}

}  // namespace pith::cuda
