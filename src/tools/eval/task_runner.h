#pragma once
// One sample under one policy. Query-agnostic (the default): the context is read and compressed,
// then each question is asked on a fork of that cache, or, in a conversation, after the last
// answer. Query-aware: each question is read together with the context, so that selectors see it.
// Greedy. Cost: one prefill of the context (query-aware: one a question) and the answers.

#include <memory>
#include <string>
#include <vector>

#include "pith/session.h"
#include "tools/eval/tasks.h"

namespace pith {

struct TurnResult {
  std::string answer;
  double score = 0;
};

struct SampleResult {
  std::vector<TurnResult> turns;
  Ledger ledger;       ///< after the context (query-aware: after the last answer)
  std::string policy;  ///< as the session spells it out
  std::string logits;  ///< fingerprint of those that the cache gives next, to tell caches apart
  double prompt_seconds = 0, answer_seconds = 0;
  double score() const;  ///< mean over turns
};

/// `options.context` of 0 means what the sample needs; per cent budgets refer to it.
SampleResult run_sample(const std::shared_ptr<const Model>& model, const StandaloneOptions& options,
                        const Sample& sample, bool query_aware);

}  // namespace pith
