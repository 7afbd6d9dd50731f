#include "serve/session_spill.h"

#include <algorithm>
#include <chrono>

namespace pith::serve {

bool begins(std::span<const int32_t> prompt, std::span<const int32_t> ids) {
  return ids.size() < prompt.size() && std::ranges::equal(ids, prompt.first(ids.size()));
}

void SessionSpill::write(const Session& session, const ConversationName& name, Written then) {
  using Clock = std::chrono::steady_clock;
  auto copy = std::make_shared<Session>(session.fork());
  ++writing_;
  thread_.add([this, copy, name, then = std::move(then)]() mutable {
    ConversationFile file;
    std::string failure;
    const auto start = Clock::now();
    try {
      file = files_->write(*copy, name);
    } catch (const std::exception& e) {
      failure = e.what();
    }
    metrics_.saved(std::chrono::duration<double>(Clock::now() - start).count());
    copy.reset();  // it shares rows that are to be free when the scheduler hears of it
    mailbox_.post([this, then, file, failure] {
      --writing_;
      then(file, failure);
    });
  });
}

void SessionSpill::read(Session room, const ConversationName& name,
                        std::shared_ptr<const Task> task, Read then) {
  ++reading_;
  auto empty = std::make_shared<Session>(std::move(room));
  thread_.add([this, name, empty, task = std::move(task), then = std::move(then)] {
    std::shared_ptr<Session> session;
    std::string failure;
    bool usable = true;
    try {
      session = std::make_shared<Session>(files_->read(std::move(*empty), name));
      if (!begins(task->prompt, session->token_ids())) {
        session.reset();
        failure = "it is of another turn by now";
      }
    } catch (const Error& e) {
      failure = e.what();
      usable = e.code() == ErrorCode::kOutOfMemory;
      if (e.code() == ErrorCode::kCorrupt) files_->set_aside(name);
    } catch (const std::exception& e) {
      failure = e.what();
    }
    mailbox_.post([this, then, session, failure, usable] {
      --reading_;
      then(session, failure, usable);
    });
  });
}

}  // namespace pith::serve
