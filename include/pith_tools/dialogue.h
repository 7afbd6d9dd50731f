#pragma once
// A conversation of messages over one session. Rendered messages are appended to the cache piece by
// piece, and read again only if the template changes them.

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pith/chat.h"
#include "pith/generate.h"

namespace pith {

struct DialogueSetup {
  std::optional<std::string> system;  ///< unset: the template's own, if it has one
  std::string variables;              ///< of the template, JSON; "" = none
  std::string tools;                  ///< JSON; "" = none
  GenerateOptions generate;           ///< with the template's ends of a turn: end_turns()
};

class Dialogue {
 public:
  using Json = nlohmann::ordered_json;

  Dialogue(std::shared_ptr<const Model> model, const StandaloneOptions& options, ChatTemplate tmpl,
           DialogueSetup setup);
  /// On an engine with other sessions: `empty` is a session without tokens.
  Dialogue(Session empty, ChatTemplate tmpl, DialogueSetup setup);

  struct Answer {
    GenerateResult result;
    bool read_again = false;  ///< the template changed what was read, so all of it was read anew
  };
  /// Adds a user's message and answers it. If this throws, the message is removed.
  Answer answer(const std::string& text, const std::function<void(std::string_view)>& on_text,
                const Progress& on_read);
  /// The first half of answer(), for callers that draw tokens themselves: adds the message and
  /// returns the tokens that session() must read first. Call took() or take_back() next.
  struct Asked {
    std::vector<int32_t> prompt;
    bool read_again = false;  ///< as Answer's
  };
  Asked ask(const std::string& text);
  /// The second half: session() has read the prompt and answered. An empty answer undoes ask().
  void took(const GenerateResult& said);
  /// After a failure: removes the message, and the session if it holds half of it.
  void take_back();
  /// Forgets all but the system message.
  void reset();
  /// Takes back the last message of the user and what followed; the rest is read with the next
  /// message. Returns its content, or nothing if there is none.
  std::optional<Json> undo();
  /// Another system message, or none, under which all is read with the next message. Throws as
  /// ChatTemplate::render, with nothing changed, where the template does not take it.
  void set_system(std::optional<std::string> text);
  /// Continues under another policy: a new cache reads every token again, because evicted rows do
  /// not come back. Returns the number of tokens read. If it throws, nothing has changed.
  size_t set_policy(const Policy& policy, const Progress& on_read);
  /// The messages of a JSON text: a list, or an object that has one under "messages". Throws
  /// kCorrupt for anything else, and kInvalidArgument for integers that parsing would round.
  static Json parse_messages(std::string_view text, const std::string& what);
  /// Replaces the conversation by these messages, which are read with the next one.
  void load(Json messages);
  /// Writes the session with its messages, for resume(). Throws as Session::save, and
  /// kInvalidArgument before the first answer.
  void save(const std::filesystem::path& path, bool replace) const;
  /// Continues from a file of save() without reading again. Throws as Session::restore, and
  /// kInvalidArgument for a session that no chat saved; then nothing has changed.
  void resume(const std::filesystem::path& path);

  const Json& messages() const { return messages_; }
  Session& session() { return session_; }
  /// Of the answers to come.
  GenerateOptions& generation() { return setup_.generate; }
  const ChatTemplate& chat_template() const { return template_; }

 private:
  std::vector<int32_t> prompt_for(const std::vector<ChatRun>& runs, bool& read_again);
  void start_anew();
  std::vector<ChatRun> rendered(const Json& messages) const;
  void remember(const std::vector<ChatRun>& runs, const std::string& said, bool whole);

  std::shared_ptr<const Model> model_;
  ChatTemplate template_;
  DialogueSetup setup_;
  Session empty_, session_;
  Json messages_ = Json::array();
  size_t asked_at_ = 0;             // tokens that session_ held when ask() began
  std::vector<std::string> shown_;  // texts that stand for all that was read and answered
};

}  // namespace pith
