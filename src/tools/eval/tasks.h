#pragma once
// Retrieval tasks made from nothing: a context, then questions whose answers lie in it. Every
// sample is a pure function of (task, length, number, seed) and of the tokenizer, which sizes it.
//
// RULER (Hsieh et al. 2024; NVIDIA/RULER c3f5e3b): the six tasks that need no data, with its
// templates, counts and metric; the words are our own (RULER takes wonderwords'). The demo model's
// formats (models/demo/README.md) give facts, multi_turn, docqa and kv; passkey is KIVI's.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/eval/metrics.h"

namespace pith {

/// One question after the context; its answer follows.
struct Turn {
  std::string question;
  std::vector<std::string> references, classes;
};

struct Sample {
  std::string task;
  uint64_t number = 0;
  std::string context;  ///< compressed before the questions are known
  std::vector<Turn> turns;
  bool conversation = false;  ///< turns follow one another on one cache; else each has a fork
  size_t max_tokens = 32;     ///< of an answer
  std::vector<std::string> stop;
  Metric metric = Metric::kContainsAll;
};

struct SampleRequest {
  size_t tokens = 4096;  ///< context, question and answer together are at most this long
  uint64_t number = 0;   ///< which sample
  uint64_t seed = 42;
  size_t turns = 8;  ///< of facts and multi_turn
  std::function<size_t(const std::string&)> count_tokens = {};
};

struct TaskInfo {
  std::string_view name, summary;
  Sample (*make)(const SampleRequest& request);
};
/// Every task, in the order of the help.
std::vector<TaskInfo> tasks();
/// Throws kInvalidArgument with the names of all for a task that is not there, or for too few
/// tokens.
Sample make_sample(std::string_view task, const SampleRequest& request);

}  // namespace pith
