#pragma once
// A task that has been admitted.

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "serve/answer.h"
#include "serve/task.h"

namespace pith::serve {

struct Running {
  using Clock = std::chrono::steady_clock;

  std::shared_ptr<Task> task;
  size_t reserved = 0;
  uint64_t number = 0;  // of arrival
  int passed = 0;       // shorter prompts that went before it

  // Reading.
  std::optional<Session> session;  // of the prompt; then of the first choice
  Reuse reuse;
  std::optional<PromptReader> reader;

  // Writing.
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<Session> forks;  // of the second choice and so on
  std::vector<Session> rooms;  // of forks that are not made yet
  std::vector<float> logits;   // [choices, V], where log-probabilities are wanted
  bool over = false;

  Clock::time_point since, admitted, read, last_token;
  double prompt_seconds = 0;

  bool reading() const { return answers.empty() && !over; }
  size_t left() const { return task->prompt.size() - reader->at(); }
  Session& session_of(size_t choice) { return choice == 0 ? *session : forks[choice - 1]; }
  /// Of a choice; [V], or [0] where log-probabilities are not wanted.
  std::span<float> logits_of(size_t choice) {
    const size_t width = logits.size() / answers.size();
    return std::span(logits).subspan(choice * width, width);
  }
  Prompt prompt() const {
    return {task->prompt, task->fork_points, task->tenant, task->conversation};
  }
};

}  // namespace pith::serve
