#pragma once
// Writes conversations to their files and reads them on a thread of its own, so that answers go on
// meanwhile.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "serve/conversation_files.h"
#include "serve/mailbox.h"
#include "serve/metrics.h"
#include "serve/task.h"
#include "serve/workers.h"

namespace pith::serve {

/// On the scheduler's thread, which also hears of the results.
class SessionSpill {
 public:
  using Written = std::function<void(const ConversationFile& file, const std::string& failure)>;
  /// `session`: null after a failure; the file is `usable` all the same if memory was short.
  using Read = std::function<void(std::shared_ptr<Session> session, const std::string& failure,
                                  bool usable)>;

  /// `files` may be null, if nothing is written or read.
  SessionSpill(std::shared_ptr<const ConversationFiles> files, Mailbox& mailbox, Metrics& metrics)
      : files_(std::move(files)), mailbox_(mailbox), metrics_(metrics) {}

  void write(const Session& session, const ConversationName& name, Written then);
  /// Into `room`. Fails for a file that does not begin as the task's prompt does.
  void read(Session room, const ConversationName& name, std::shared_ptr<const Task> task,
            Read then);
  size_t writing() const { return writing_; }
  size_t reading() const { return reading_; }

 private:
  const std::shared_ptr<const ConversationFiles> files_;
  Mailbox& mailbox_;
  Metrics& metrics_;
  size_t writing_ = 0, reading_ = 0;
  Workers thread_{1};  // last: its jobs use the above
};

/// Whether a prompt begins with these tokens and is longer.
bool begins(std::span<const int32_t> prompt, std::span<const int32_t> ids);

}  // namespace pith::serve
