#include "tools/eval/task_runner.h"

#include <algorithm>
#include <chrono>

#include "pith/generate.h"
#include "pith/tokenizer.h"
#include "tools/eval/records.h"

namespace pith {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class SampleRun {
 public:
  SampleRun(const std::shared_ptr<const Model>& model, const StandaloneOptions& options,
            const Sample& sample)
      : model_(model), tokenizer_(model->tokenizer()), options_(options), sample_(sample) {
    if (tokenizer_.add_bos()) context_.push_back(tokenizer_.bos());
    append(context_, sample.context);
    if (options_.context == 0) options_.context = tokens();
  }

  SampleResult run(bool query_aware) {
    SampleResult result;
    if (query_aware) {
      for (const Turn& turn : sample_.turns) ask_aware(turn, result);
    } else {
      Session session(model_, options_);
      const auto start = std::chrono::steady_clock::now();
      session.prefill(context_);
      result.prompt_seconds = seconds_since(start);
      describe(session, result);
      std::vector<int32_t> pending;  // the last drawn token of a conversation, not read yet
      for (const Turn& turn : sample_.turns) {
        if (sample_.conversation) {
          ask(session, turn, pending, result);
        } else {
          Session fork = session.fork();
          std::vector<int32_t> none;
          ask(fork, turn, none, result);
        }
      }
    }
    return result;
  }

 private:
  void append(std::vector<int32_t>& ids, const std::string& text) const {
    const auto more = tokenizer_.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  size_t tokens() const {
    size_t longest = 0, all = 0;
    for (const Turn& t : sample_.turns) {
      const size_t turn = tokenizer_.encode(t.question).size() + sample_.max_tokens + 1;
      longest = std::max(longest, turn), all += turn;
    }
    return context_.size() + (sample_.conversation ? all : longest);
  }

  /// A token is read on a fork: the logits of a prompt may be those of rows that were still exact.
  void describe(const Session& session, SampleResult& result) const {
    result.ledger = session.ledger(), result.policy = session.describe_policy();
    Session next = session.fork();
    const std::span<const float> logits = next.decode(context_.back());
    result.logits =
        fingerprint({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
  }

  void ask(Session& session, const Turn& turn, std::vector<int32_t>& prompt,
           SampleResult& result) const {
    append(prompt, turn.question);
    GenerateOptions g;
    g.sampling.temperature = 0;
    g.max_tokens = static_cast<int64_t>(sample_.max_tokens);
    g.stop = sample_.stop;
    g.append_last = false;  // figures so far are of prompts that begin with it
    const GenerateResult answer = generate(session, prompt, g);
    result.prompt_seconds += answer.prompt_seconds;
    result.answer_seconds += answer.decode_seconds;
    result.turns.push_back(
        {answer.text, score_answer(sample_.metric, answer.text, turn.references, turn.classes)});
    prompt.clear();
    const bool keep = answer.reason != StopReason::kEndOfText && !answer.tokens.empty();
    if (keep) prompt.push_back(answer.tokens.back());
  }

  void ask_aware(const Turn& turn, SampleResult& result) const {
    Session session(model_, options_);
    std::vector<int32_t> prompt = context_;
    ask(session, turn, prompt, result);
    describe(session, result);
  }

  std::shared_ptr<const Model> model_;
  const Tokenizer& tokenizer_;
  StandaloneOptions options_;
  const Sample& sample_;
  std::vector<int32_t> context_;
};

}  // namespace

double SampleResult::score() const {
  double sum = 0;
  for (const TurnResult& t : turns) sum += t.score;
  return turns.empty() ? 0 : sum / static_cast<double>(turns.size());
}

SampleResult run_sample(const std::shared_ptr<const Model>& model, const StandaloneOptions& options,
                        const Sample& sample, bool query_aware) {
  return SampleRun(model, options, sample).run(query_aware);
}

}  // namespace pith
