#include "pith/form.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "form/automaton.h"
#include "form/schema.h"
#include "form/vocabulary.h"

namespace pith {

struct FormVocabulary::State {
  explicit State(const Tokenizer& tokenizer) : words(tokenizer) {}
  const form::Vocabulary words;
};

FormVocabulary::FormVocabulary(const Tokenizer& tokenizer)
    : state_(std::make_unique<const State>(tokenizer)) {}
FormVocabulary::~FormVocabulary() = default;

namespace {

/// An automaton and who walks on it now.
struct Shared {
  Shared(const form::Schema& schema, const form::Vocabulary& words) : automaton(schema, words) {}
  std::mutex lock;
  form::Automaton automaton;
};

}  // namespace

struct AnswerForm::State {
  form::Schema schema;
  std::shared_ptr<const FormVocabulary> vocabulary;
  std::optional<FormCalls> calls;
  std::mutex lock;  // of the next
  std::shared_ptr<Shared> shared;
};

AnswerForm::AnswerForm(std::unique_ptr<State> state) : state_(std::move(state)) {}
AnswerForm::~AnswerForm() = default;

size_t AnswerForm::bytes_remembered() const {
  const std::lock_guard guard(state_->lock);
  return state_->shared ? state_->shared->automaton.bytes() : 0;
}

std::shared_ptr<const AnswerForm> AnswerForm::json_schema(
    std::string_view schema, std::shared_ptr<const FormVocabulary> vocabulary) {
  auto state = std::make_unique<State>();
  state->schema = form::read_schema(schema);
  state->vocabulary = std::move(vocabulary);
  return std::shared_ptr<const AnswerForm>(new AnswerForm(std::move(state)));
}

std::shared_ptr<const AnswerForm> AnswerForm::json_object(
    std::shared_ptr<const FormVocabulary> vocabulary) {
  auto state = std::make_unique<State>();
  state->schema = form::object_schema();
  state->vocabulary = std::move(vocabulary);
  return std::shared_ptr<const AnswerForm>(new AnswerForm(std::move(state)));
}

std::shared_ptr<const AnswerForm> AnswerForm::tool_calls(
    const std::vector<FormTool>& tools, const FormCalls& calls,
    std::shared_ptr<const FormVocabulary> vocabulary) {
  auto state = std::make_unique<State>();
  state->schema = form::calls_schema(tools, calls);
  state->calls = calls;
  state->vocabulary = std::move(vocabulary);
  return std::shared_ptr<const AnswerForm>(new AnswerForm(std::move(state)));
}

struct FormFollower::State {
  std::shared_ptr<const AnswerForm> form;
  const form::Vocabulary& words;
  std::vector<int32_t> ends;
  std::shared_ptr<Shared> shared;
  int32_t at = 0;
  bool free = false;  // no form rules now
  bool over = false;  // nothing more may come
  std::string tail;   // of free text, in which a call may begin
  std::vector<uint32_t> mask;

  void take_shared(bool fresh) {
    AnswerForm::State& of = *form->state_;
    const std::lock_guard guard(of.lock);
    if (!of.shared || (fresh && of.shared == shared))
      of.shared = std::make_shared<Shared>(of.schema, words);
    shared = of.shared;
  }
  void leave_full_one() {
    if (!shared->automaton.full()) return;
    const std::shared_ptr<Shared> before = shared;
    take_shared(true);
    const std::scoped_lock both(before->lock, shared->lock);
    at = shared->automaton.adopt(before->automaton, at);
  }
  void eat(char byte);
};

void FormFollower::State::eat(char byte) {
  const std::optional<FormCalls>& calls = form->state_->calls;
  if (free) {
    if (!calls || over) return;
    tail += byte;
    if (tail.size() > calls->opens.size()) tail.erase(0, 1);
    if (tail != calls->opens) return;
    free = false;
    at = shared->automaton.start();
    return;
  }
  at = shared->automaton.next(at, static_cast<uint8_t>(byte));
  if (at == form::Automaton::kDead) {
    free = true;
    at = shared->automaton.start();
  } else if (shared->automaton.complete(at)) {
    over = !calls || calls->begun || !calls->many;
    free = true;
    tail.clear();
  }
}

FormFollower::FormFollower(std::shared_ptr<const AnswerForm> form, std::vector<int32_t> ends) {
  const form::Vocabulary& words = form->state_->vocabulary->state_->words;
  const std::optional<FormCalls>& calls = form->state_->calls;
  const bool is_free = calls && !calls->begun;
  state_.reset(
      new State{std::move(form), words, std::move(ends), nullptr, 0, is_free, false, "", {}});
  state_->take_shared(false);
  state_->at = state_->shared->automaton.start();
}
FormFollower::~FormFollower() = default;
FormFollower::FormFollower(FormFollower&&) noexcept = default;
FormFollower& FormFollower::operator=(FormFollower&&) noexcept = default;

std::span<const uint32_t> FormFollower::mask() {
  State& s = *state_;
  if (s.free && !s.over) return {};
  s.mask.assign(s.words.words(), 0);
  if (!s.over) {
    s.leave_full_one();
    const std::lock_guard guard(s.shared->lock);
    const auto known = s.shared->automaton.mask(s.at);
    std::copy(known.begin(), known.end(), s.mask.begin());
  }
  if (!may_end()) return s.mask;
  for (const int32_t id : s.ends) {
    const auto i = static_cast<size_t>(id);
    if (i / 32 < s.mask.size()) s.mask[i / 32] |= 1u << (i % 32);
  }
  return s.mask;
}

void FormFollower::push(int32_t token) {
  State& s = *state_;
  if (token < 0 || static_cast<size_t>(token) >= s.words.texts.size()) return;
  const std::lock_guard guard(s.shared->lock);
  for (const char byte : s.words.texts[static_cast<size_t>(token)]) s.eat(byte);
}

bool FormFollower::complete() const { return state_->over; }

bool FormFollower::may_end() const {
  const State& s = *state_;
  if (s.free || s.over) return true;
  const std::lock_guard guard(s.shared->lock);
  return s.shared->automaton.may_end(s.at);
}

}  // namespace pith
