#pragma once
// The loss of each form of the cache in each KV head alone, all others exact, from one exact pass
// over a text: no form is run through the model.
//
// In every layer the pass gives queries, keys and values. Each form, as a cache of that layer
// alone, reads the prompt's rows and answers the queries behind the prompt; its difference from the
// exact answers is carried through the head's part of the output projection, and its squared length
// there is the form's error. Its price is measured in one form, the reference: those differences
// are added where they arise, and the tokens behind the prompt run from that layer up, once per
// layer, and once more for each of the heads that lose most. The divergence of small errors is
// quadratic, so that a form loses that many nats times its error by the reference's.
//
// Left out: keys and values of later layers that errors changed while the prompt was read in
// chunks. Losses of forms relative to each other are what it is for.
//
// Cost: an exact pass; a layer's selector and codec per form and layer; and up to 4 passes of the
// tokens behind the prompt per layer, of half the layers on average. Memory: the exact cache in
// f32, and of each layer the residual stream and answers behind the prompt.

#include <optional>
#include <vector>

#include "kernels/context.h"
#include "pith/model.h"
#include "pith/policy.h"
#include "tools/eval/perplexity.h"

namespace pith {

struct HeadLossOptions {
  std::vector<Policy> forms;
  size_t reference = 0;  ///< place in forms
  uint64_t seed = 0;
  size_t chunk = 512;  ///< rows that are read at a time
};

struct HeadLosses {
  std::vector<std::vector<double>> kl;    // [L * G][forms] nats per scored prediction
  std::vector<std::vector<double>> bits;  // [L][forms] a number of the layer's cache, all included
};

/// Empty if `progress` asked to stop; it counts in tokens of about equal work. Throws
/// kInvalidArgument for a passage of fewer than two tokens behind its prompt, and what KvCache and
/// Forward throw.
std::optional<HeadLosses> head_losses(const Context& context, const Model& model,
                                      const Passage& passage, const HeadLossOptions& options,
                                      const Progress& progress = {});

}  // namespace pith
