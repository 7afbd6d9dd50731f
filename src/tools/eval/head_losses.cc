#include "tools/eval/head_losses.h"

#include <algorithm>
#include <utility>

#include "model/forward.h"
#include "model/loaders/weights.h"
#include "pith/error.h"
#include "tools/eval/jobs.h"
#include "tools/eval/probe.h"
#include "tools/eval/statistics.h"

namespace pith {
namespace {

// Heads that are carried up by themselves: those that lose most, until the others together lose
// less than this share, and at most so many times the layers.
constexpr double kLightHeads = 0.03;
constexpr size_t kHeadsPerLayer = 3;

/// Of a layer, for the tokens behind the prompt.
struct Kept {
  std::vector<float> hidden;    // [R, hidden] the residual stream that it reads
  std::vector<float> attended;  // [R, H, D] exact answers
  std::vector<float> errors;    // [R, H, D] the reference form's answers less those
};

class Pass {
 public:
  Pass(const Context& context, const Model& model, const Passage& passage,
       const HeadLossOptions& options, const Progress& progress)
      : context_(context),
        weights_(model.weights()),
        config_(model.config()),
        options_(options),
        progress_(progress),
        tokens_(passage.tokens.begin(), passage.tokens.end() - 1),
        targets_(passage.tokens.begin() + static_cast<std::ptrdiff_t>(passage.prompt) + 1,
                 passage.tokens.end()),
        prompt_(passage.prompt),
        behind_(tokens_.size() - prompt_),
        first_scored_(passage.scored_from - std::min(passage.scored_from, prompt_ + 1)),
        scored_(passage.tokens.size() - passage.scored_from),
        layers_(static_cast<size_t>(config_.layers)),
        heads_(static_cast<size_t>(config_.kv_heads)),
        dim_(static_cast<size_t>(config_.head_dim)),
        group_(static_cast<size_t>(config_.query_heads) / heads_ * dim_),
        width_(heads_ * group_),
        row_(heads_ * dim_),
        hidden_width_(static_cast<size_t>(config_.hidden)),
        shape_{config_.layers,         config_.query_heads,   config_.kv_heads,   config_.head_dim,
               config_.sliding_window, passage.tokens.size(), config_.fingerprint},
        ropes_(weights_.ropes(passage.tokens.size())),
        forward_(context, model, std::max(options.chunk, behind_), MatmulPrecision::kF32),
        matmul_(context, MatmulPrecision::kF32),
        exact_(context, shape_, Policy::parse("exact+f32"), 0, ropes_),
        kept_(layers_) {
    for (const Policy& form : options.forms)
      forms_.emplace_back(form, shape_, options.seed, Device::kCpu);
    hidden_.resize(tokens_.size() * hidden_width_);
    q_.resize(tokens_.size() * width_);
    k_.resize(tokens_.size() * row_);
    v_.resize(tokens_.size() * row_);
    own_k_.resize(behind_ * row_);
    own_v_.resize(behind_ * row_);
    carried_ = std::min(kHeadsPerLayer * layers_, layers_ * heads_);
    total_ = tokens_.size() * (forms_.size() + 1) + behind_ * (layers_ + carried_);
    result_.bits.assign(layers_, std::vector<double>(forms_.size()));
    errors_.assign(layers_ * heads_, std::vector<double>(forms_.size()));
  }

  /// Throws Cancelled.
  HeadLosses run() {
    for (size_t l = 0; l < layers_; ++l) {
      read_layer(l);
      measure_forms(l);
    }
    keep_base();
    weigh();
    return std::move(result_);
  }

 private:
  void advance(size_t tokens) {
    done_ = std::min(done_ + tokens, total_);
    if (progress_ && !progress_(done_, total_)) throw Cancelled{};
  }

  /// The exact pass of one layer: q_, k_, v_ and what is kept of it.
  void read_layer(size_t l) {
    const int layer = static_cast<int>(l);
    Kept& kept = kept_[l];
    const auto behind = hidden_.begin() + static_cast<std::ptrdiff_t>(prompt_ * hidden_width_);
    kept.hidden.assign(behind, hidden_.end());  // of layer 0 it is made from the tokens
    kept.attended.resize(behind_ * width_);
    for (size_t first = 0; first < tokens_.size(); first += options_.chunk) {
      const size_t count = std::min(options_.chunk, tokens_.size() - first);
      forward_.run_layer({.layer = layer,
                          .tokens = std::span(tokens_).subspan(first, count),
                          .first_position = static_cast<int64_t>(first),
                          .ropes = &ropes_,
                          .hidden = hidden_.data() + first * hidden_width_,
                          .k = k_.data() + first * row_,
                          .v = v_.data() + first * row_,
                          .attend = [&](float* out, const float* q) {
                            exact_.read(layer, out,
                                        {.q = q,
                                         .k = k_.data(),
                                         .v = v_.data(),
                                         .tokens = tokens_.size(),
                                         .first = first,
                                         .count = count});
                            std::copy_n(q, count * width_, q_.data() + first * width_);
                            for (size_t t = std::max(first, prompt_); t < first + count; ++t)
                              std::copy_n(out + (t - first) * width_, width_,
                                          kept.attended.data() + (t - prompt_) * width_);
                          }});
    }
    exact_.append(layer, {.k = k_.data(), .v = v_.data(), .tokens = prompt_, .ends = true});
    find_metric(l);
    advance(tokens_.size() / layers_);
  }

  /// metric_ <- of each KV head W'W of its part W of the output projection: e'W'W e is the squared
  /// length of what an error e adds to the residual stream, but for the scale of a norm behind it.
  void find_metric(size_t l) {
    const LayerWeights& w = weights_.layers[l];
    std::vector<float> columns(width_ * hidden_width_);  // [H D, hidden] the projection's, turned
    auto unit = [&](float* out, size_t i) {
      std::fill_n(out, width_, 0.0f);
      out[i] = 1;
    };
    const Product product{columns.data(), &w.o.w};
    matmul_.run(width_, width_, unit, {&product, 1}, RowsOf::kOnePrompt);
    metric_.assign(heads_ * group_ * group_, 0);
    context_.pool.parallel_for(width_, [&](size_t i, int) {
      float* x = columns.data() + i * hidden_width_;
      if (!w.attention_post_norm.empty())
        context_.kernels.multiply(x, x, w.attention_post_norm.data(), hidden_width_);
    });
    const DenseRows rows{columns.data(), DType::kF32, hidden_width_};
    context_.pool.parallel_for(heads_ * group_, [&](size_t i, int) {
      const size_t first = i / group_ * group_;
      DenseRows of_head = rows;
      of_head.rows = columns.data() + first * hidden_width_;
      context_.kernels.dot_rows(metric_.data() + i * group_, group_,
                                columns.data() + i * hidden_width_, 1, of_head, group_, 1);
    });
  }

  double squared_length(const float* error, size_t head) const {
    const float* metric = metric_.data() + head * group_ * group_;
    std::vector<float> turned(group_);
    for (size_t i = 0; i < group_; ++i)
      for (size_t j = 0; j < group_; ++j) turned[j] += error[i] * metric[i * group_ + j];
    double sum = 0;
    for (size_t j = 0; j < group_; ++j) sum += double{turned[j]} * error[j];
    return sum;
  }

  /// Of each form, its errors by head and its bits.
  void measure_forms(size_t l) {
    const LayerStep step{static_cast<int>(l), q_.data(), k_.data(), v_.data(), tokens_.size()};
    size_t seen = 0;
    const Progress told = [&](size_t done, size_t) {
      advance((done - seen) * tokens_.size() / layers_);
      seen = done;
      return true;
    };
    Jobs jobs(context_, told, 0, forms_.size());
    jobs.run(forms_.size(), [&](const Context& context, size_t f) {
      KvCache cache(context, forms_[f], ropes_, step.layer);
      fill_prompt(cache, shape_, step, {prompt_, options_.chunk});
      std::vector<float> errors = answers(cache, step);  // [R, H, D]
      for (size_t i = 0; i < errors.size(); ++i) errors[i] -= kept_[l].attended[i];
      for (size_t t = 0; t < behind_; ++t)
        for (size_t g = 0; g < heads_; ++g)
          errors_[l * heads_ + g][f] += squared_length(errors.data() + t * width_ + g * group_, g);
      result_.bits[l][f] = cache.ledger(step.layer).effective_bits();
      if (f == options_.reference) kept_[l].errors = std::move(errors);
    });
  }

  std::vector<float> answers(KvCache& cache, const LayerStep& step) const {
    std::vector<float> out(behind_ * width_);
    for (size_t t = prompt_; t < tokens_.size(); ++t)
      cache.step(step.layer, out.data() + (t - prompt_) * width_, step.q + t * width_,
                 step.k + t * row_, step.v + t * row_, 1);
    return out;
  }

  /// The exact logits of what is scored, from where the last layer left off.
  void keep_base() {
    const size_t scored = behind_ - first_scored_;
    base_.resize(scored * static_cast<size_t>(config_.vocab));
    forward_.logits().all(std::span(hidden_).subspan((prompt_ + first_scored_) * hidden_width_),
                          [&](size_t first, size_t count, const float* logits) {
                            const auto vocab = static_cast<size_t>(config_.vocab);
                            std::copy_n(logits, count * vocab, base_.data() + first * vocab);
                          });
  }

  /// The divergence, nats per scored prediction, if the reference form's errors of KV heads
  /// [first, first + count) of a layer are added there and the layers above are exact.
  double carry_up(size_t l, size_t first, size_t count) {
    std::vector<float> x = kept_[l].hidden;
    for (size_t m = l; m < layers_; ++m)
      forward_.run_layer({.layer = static_cast<int>(m),
                          .tokens = std::span(tokens_).subspan(prompt_),
                          .first_position = static_cast<int64_t>(prompt_),
                          .ropes = &ropes_,
                          .hidden = x.data(),
                          .k = own_k_.data(),
                          .v = own_v_.data(),
                          .attend = [&](float* out, const float* q) {
                            if (m == l) return with_errors(out, l, first, count);
                            exact_.read(static_cast<int>(m), out,
                                        {.q = q,
                                         .k = own_k_.data(),
                                         .v = own_v_.data(),
                                         .tokens = behind_,
                                         .count = behind_});
                          }});
    const auto vocab = static_cast<size_t>(config_.vocab);
    std::vector<Prediction> predictions(behind_ - first_scored_);
    forward_.logits().all(std::span(x).subspan(first_scored_ * hidden_width_),
                          [&](size_t at, size_t rows, const float* logits) {
                            context_.pool.parallel_for(rows, [&](size_t i, int) {
                              predictions[at + i] = score_prediction(
                                  {base_.data() + (at + i) * vocab, vocab},
                                  {logits + i * vocab, vocab}, targets_[first_scored_ + at + i]);
                            });
                          });
    advance(behind_);
    // The first prediction of a text is the prompt's own, and loses nothing.
    double sum = 0;
    for (const Prediction& p : predictions) sum += p.divergence;
    return sum / static_cast<double>(scored_);
  }

  void with_errors(float* out, size_t l, size_t first, size_t count) const {
    std::copy(kept_[l].attended.begin(), kept_[l].attended.end(), out);
    for (size_t t = 0; t < behind_; ++t)
      for (size_t i = first * group_; i < (first + count) * group_; ++i)
        out[t * width_ + i] += kept_[l].errors[t * width_ + i];
  }

  /// result_.kl <- errors times what a layer's, or a heavy head's, cost.
  void weigh() {
    const size_t reference = options_.reference;
    std::vector<double> prices;  // [L * G] nats by squared length
    for (size_t l = 0; l < layers_; ++l) {
      double error = 0;
      for (size_t g = 0; g < heads_; ++g) error += errors_[l * heads_ + g][reference];
      const double price = error > 0 ? carry_up(l, 0, heads_) / error : 0;
      prices.insert(prices.end(), heads_, price);
    }
    const auto loss = [&](size_t h) { return prices[h] * errors_[h][reference]; };
    std::vector<std::pair<double, size_t>> heavy;
    double light = 0;
    for (size_t h = 0; h < prices.size(); ++h) {
      heavy.emplace_back(-loss(h), h);
      light += loss(h);
    }
    std::ranges::sort(heavy);
    const double least = kLightHeads * light;
    for (size_t i = 0; i < carried_ && heads_ > 1 && light > least; ++i) {
      const auto [negative, h] = heavy[i];
      light += negative;
      prices[h] = carry_up(h / heads_, h % heads_, 1) / errors_[h][reference];
    }
    result_.kl = std::move(errors_);
    for (size_t h = 0; h < prices.size(); ++h)
      for (double& x : result_.kl[h]) x *= prices[h];
  }

  const Context& context_;
  const Model::Weights& weights_;
  const ModelConfig& config_;
  const HeadLossOptions& options_;
  const Progress& progress_;
  std::vector<int32_t> tokens_, targets_;  // [N] read; [R] predicted behind the prompt
  size_t prompt_, behind_, first_scored_;  // N - R, R, place in R
  size_t scored_;                          // predictions that count
  size_t layers_, heads_, dim_;            // L, G, D
  size_t group_, width_, row_;             // (H / G) D, H D, G D
  size_t hidden_width_;
  CacheShape shape_;
  LayerRopes ropes_;
  Forward forward_;
  Matmul matmul_;
  KvCache exact_;  // of the prompt
  std::vector<ResolvedPolicy> forms_;
  std::vector<Kept> kept_;                   // [L]
  std::vector<float> hidden_;                // [N, hidden]
  std::vector<float> q_;                     // [N, H, D] of the layer at hand
  std::vector<float> k_, v_;                 // [N, G, D]
  std::vector<float> own_k_, own_v_;         // [R, G, D]
  std::vector<float> metric_;                // [G, (H / G) D, (H / G) D]
  std::vector<float> base_;                  // [scored, V]
  std::vector<std::vector<double>> errors_;  // [L * G][forms] squared lengths, summed
  HeadLosses result_;
  size_t carried_ = 0, done_ = 0, total_ = 0;
};

}  // namespace

std::optional<HeadLosses> head_losses(const Context& context, const Model& model,
                                      const Passage& passage, const HeadLossOptions& options,
                                      const Progress& progress) {
  if (passage.tokens.size() < passage.prompt + 2)
    throw Error(ErrorCode::kInvalidArgument,
                "fewer than two tokens behind the prompt: nothing reads the cache; score more");
  try {
    return Pass(context, model, passage, options, progress).run();
  } catch (const Cancelled&) {
    return std::nullopt;
  }
}

}  // namespace pith
