#include "tools/eval/task_runner.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/tokenizer.h"
#include "tools/eval/records.h"

namespace pith {
namespace {

using Ids = std::vector<int32_t>;
using MakeSession = std::function<Session(size_t context)>;

// One sample while it is answered: it says what its session reads next, and takes what is drawn.
class Asking {
 public:
  /// `context`: of its sessions; 0: what the sample needs.
  Asking(const Model& model, MakeSession make, size_t context, Sample sample, const AskOptions& how)
      : model_(model),
        tokenizer_(model.tokenizer()),
        make_(std::move(make)),
        sample_(std::move(sample)),
        how_(how) {
    if (how_.chat != nullptr && !how_.query_aware)
      throw Error(ErrorCode::kInvalidArgument,
                  "questions in a chat template are read together with their context: ask "
                  "query-aware");
    if (tokenizer_.add_bos()) context_.push_back(tokenizer_.bos());
    append(context_, sample_.context);
    make_options();
    room_ = context > 0 ? context : tokens();
    if (how_.query_aware) {
      begin_turn();
    } else {
      base_.emplace(make_(room_));
      session_ = &*base_, next_ = context_;
    }
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  bool done() const { return done_; }
  bool answers() const { return reads_ == Reads::kAnswer; }
  Engine& engine() const { return *session_->engine(); }
  const SampleResult& result() const { return result_; }

  Work work() {
    Work w{session_, next_};
    if (reads_ != Reads::kContext) w.sampler = &*sampler_;
    return w;
  }

  void took(const Work& w, double seconds) {
    if (w.failure) throw Error(*w.failure);
    (answers() ? result_.answer_seconds : result_.prompt_seconds) += seconds;
    if (reads_ != Reads::kContext) return push(w.next);
    describe();
    begin_turn();
  }

 private:
  enum class Reads : uint8_t { kContext, kQuestion, kAnswer };

  void append(Ids& ids, const std::string& text) const {
    const auto more = tokenizer_.encode(text);
    ids.insert(ids.end(), more.begin(), more.end());
  }

  void make_options() {
    options_.sampling.temperature = 0;
    options_.max_tokens = static_cast<int64_t>(sample_.max_tokens);
    options_.stop = sample_.stop;
    if (how_.chat == nullptr) return;
    const ChatTurnEnd end = how_.chat->turn_end(tokenizer_);
    options_.ends = end.tokens;
    if (!end.text.empty()) options_.stop.push_back(end.text);
  }

  /// The question, with its context where both are read together.
  Ids prompt_of(const Turn& turn) const {
    if (how_.chat != nullptr)
      return how_.chat->encode(
          tokenizer_,
          {.messages = nlohmann::json::array(
                           {{{"role", "user"}, {"content", sample_.context + turn.question}}})
                           .dump()});
    Ids ids = how_.query_aware ? context_ : Ids();
    append(ids, turn.question);
    return ids;
  }

  size_t tokens() const {
    size_t longest = 0, all = 0;
    for (const Turn& t : sample_.turns) {
      const size_t turn = prompt_of(t).size() + sample_.max_tokens + 1;
      longest = std::max(longest, turn), all += turn;
    }
    const size_t before = how_.query_aware ? 0 : context_.size();
    return before + (sample_.conversation ? all : longest);
  }

  /// A token is read on a fork: the logits of a prompt may be those of rows that were still exact.
  void describe() {
    result_.ledger = session_->ledger(), result_.policy = session_->describe_policy();
    Session next = session_->fork();
    const std::span<const float> logits = next.decode(context_.back());
    result_.logits =
        fingerprint({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()});
  }

  void begin_turn() {
    const Turn& turn = sample_.turns[result_.turns.size()];
    if (how_.query_aware)
      own_.emplace(make_(room_));
    else if (!sample_.conversation)
      own_.emplace(base_->fork());
    session_ = own_ ? &*own_ : &*base_;
    next_ = pending_;
    const Ids prompt = prompt_of(turn);
    next_.insert(next_.end(), prompt.begin(), prompt.end());
    reads_ = Reads::kQuestion;
    stepper_.emplace(model_, options_);
    sampler_.emplace(stepper_->sampling());
    if (next_.empty()) push(session_->sample(*sampler_));
  }

  void push(int32_t token) {
    const auto out = stepper_->push(token, session_->context() - session_->tokens());
    reads_ = Reads::kAnswer, next_ = {token};
    if (out.stop) end_turn(*out.stop);
  }

  void end_turn(StopReason reason) {
    const Turn& turn = sample_.turns[result_.turns.size()];
    const std::string& text = stepper_->text();
    result_.turns.push_back({text, stepper_->tokens().size(),
                             score_answer(sample_.metric, text, turn.references, turn.classes)});
    if (how_.query_aware) describe();
    // The last token of an answer is not read yet; in a conversation it comes with the next turn.
    pending_.clear();
    if (sample_.conversation && !how_.query_aware && reason != StopReason::kEndOfText)
      pending_.push_back(stepper_->tokens().back());
    done_ = result_.turns.size() == sample_.turns.size();
    if (!done_) begin_turn();
  }

  const Model& model_;
  const Tokenizer& tokenizer_;
  MakeSession make_;
  const Sample sample_;
  AskOptions how_;
  GenerateOptions options_;
  Ids context_;
  size_t room_ = 0;  // tokens of a session

  std::optional<Session> base_, own_;  // of the context; of one turn
  Session* session_ = nullptr;
  Reads reads_ = Reads::kContext;
  Ids next_, pending_;
  std::optional<Stepper> stepper_;
  std::optional<Sampler> sampler_;
  SampleResult result_;
  bool done_ = false;
};

/// Of a model that has an engine for each, or of an engine that they share.
template <class Owner, class Options>
MakeSession sessions_of(const Owner& owner, const Options& options) {
  return [&owner, own = options](size_t context) mutable {
    own.context = context;
    return Session(owner, own);
  };
}

// One pass for the works of some samples: a time of its own for prompts and for answers.
void step(Engine& engine, const std::vector<Asking*>& some) {
  if (some.empty()) return;
  std::vector<Work> works;
  size_t tokens = 0;
  for (Asking* a : some) works.push_back(a->work()), tokens += works.back().tokens.size();
  const auto start = std::chrono::steady_clock::now();
  engine.step(works);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  for (size_t i = 0; i < some.size(); ++i) {
    const double share = static_cast<double>(works[i].tokens.size()) / static_cast<double>(tokens);
    some[i]->took(works[i], seconds.count() * share);
  }
}

}  // namespace

double SampleResult::score() const {
  double sum = 0;
  for (const TurnResult& t : turns) sum += t.score;
  return turns.empty() ? 0 : sum / static_cast<double>(turns.size());
}

SampleResult run_sample(const std::shared_ptr<const Model>& model, const StandaloneOptions& options,
                        const Sample& sample, const AskOptions& how) {
  Asking asking(*model, sessions_of(model, options), options.context, sample, how);
  while (!asking.done()) step(asking.engine(), {&asking});
  return asking.result();
}

void run_samples(const std::shared_ptr<Engine>& engine, const SessionOptions& options,
                 const SampleQueue& queue, const AskOptions& how) {
  const MakeSession make = sessions_of(engine, options);
  std::vector<std::pair<size_t, std::unique_ptr<Asking>>> open;
  for (size_t next = 0; next < queue.count || !open.empty();) {
    for (; next < queue.count && open.size() < queue.at_once; ++next)
      open.emplace_back(next, std::make_unique<Asking>(*engine->model(), make, options.context,
                                                       queue.sample(next), how));
    for (const bool answers : {false, true}) {
      std::vector<Asking*> some;
      for (const auto& [i, a] : open)
        if (!a->done() && a->answers() == answers) some.push_back(a.get());
      step(*engine, some);
    }
    for (const auto& [i, a] : open)
      if (a->done() && !queue.finished(i, a->result())) return;
    std::erase_if(open, [](const auto& one) { return one.second->done(); });
  }
}

}  // namespace pith
