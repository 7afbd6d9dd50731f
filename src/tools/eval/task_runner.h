#pragma once
// Samples under one policy. Query-agnostic (the default): the context is read and compressed,
// then each question is asked on a fork of that cache, or, in a conversation, after the last
// answer. Query-aware: each question is read together with the context, so that selectors see it.
// Greedy. Cost: one prefill of the context (query-aware: one a question) and the answers.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pith/chat.h"
#include "pith/session.h"
#include "tools/eval/tasks.h"

namespace pith {

struct TurnResult {
  std::string answer;
  size_t tokens = 0;  ///< drawn
  double score = 0;
};

struct SampleResult {
  std::vector<TurnResult> turns;
  Ledger ledger;       ///< after the context (query-aware: after the last answer)
  std::string policy;  ///< as the session spells it out
  std::string logits;  ///< fingerprint of those that the cache gives next, to tell caches apart
  /// Of a pass of many samples each has its share, by tokens.
  double prompt_seconds = 0, answer_seconds = 0;
  double score() const;  ///< mean over turns
};

struct AskOptions {
  bool query_aware = false;
  /// Each question, with its context, is a user's message. Throws kInvalidArgument for samples that
  /// are not query-aware: the context alone is no conversation.
  const ChatTemplate* chat = nullptr;
};

/// `options.context` of 0 means what the sample needs; per cent budgets refer to it.
SampleResult run_sample(const std::shared_ptr<const Model>& model, const StandaloneOptions& options,
                        const Sample& sample, const AskOptions& how = {});

/// Samples of one engine: `count` of them, `at_once` in each pass; when one is done, the next takes
/// its place. On the CPU with run_sample's results.
struct SampleQueue {
  size_t count = 0, at_once = 1;
  std::function<Sample(size_t)> sample;
  std::function<bool(size_t, const SampleResult&)> finished;  ///< false ends the run
};
void run_samples(const std::shared_ptr<Engine>& engine, const SessionOptions& options,
                 const SampleQueue& queue, const AskOptions& how = {});

}  // namespace pith
