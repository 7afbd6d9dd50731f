#pragma once
// A conversation of messages over one session: what the template makes of them goes into the cache
// piece by piece, and is read again only where it must be.

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "pith/chat.h"
#include "pith/generate.h"

namespace pith::cli {

struct DialogueSetup {
  std::string system;        ///< "" = none
  std::string variables;     ///< of the template, JSON; "" = none
  std::string tools;         ///< JSON; "" = none
  GenerateOptions generate;  ///< with the template's ends of a turn: end_turns()
};

class Dialogue {
 public:
  using Json = nlohmann::ordered_json;

  Dialogue(std::shared_ptr<const Model> model, const StandaloneOptions& options, ChatTemplate tmpl,
           DialogueSetup setup);

  struct Answer {
    GenerateResult result;
    bool read_again = false;  ///< the template changed what was read, so all of it was read anew
  };
  /// Adds a user's message and answers it. If this throws, the message is gone again.
  Answer answer(const std::string& text, const std::function<void(std::string_view)>& on_text,
                const Progress& on_read);
  /// Forgets all but the system message.
  void reset();
  /// Goes on under another policy: a new cache reads every token again, since rows that are gone
  /// do not come back. Returns how many it read. If this throws, nothing has changed.
  size_t set_policy(const Policy& policy, const Progress& on_read);
  /// Replaces the conversation by these messages, which are read with the next one.
  void load(Json messages);

  const Json& messages() const { return messages_; }
  Session& session() { return session_; }
  const ChatTemplate& chat_template() const { return template_; }

 private:
  std::vector<int32_t> prompt_for(const std::vector<ChatRun>& runs, bool& read_again);
  void start_anew();
  void take(const std::vector<int32_t>& prompt, const GenerateResult& result);

  std::shared_ptr<const Model> model_;
  ChatTemplate template_;
  DialogueSetup setup_;
  Session empty_, session_;
  Json messages_ = Json::array();
  std::vector<int32_t> held_;       // tokens in the session
  std::vector<int32_t> pending_;    // the last drawn token, not in the session yet
  std::vector<std::string> shown_;  // texts that stand for all that was read and answered
};

}  // namespace pith::cli
