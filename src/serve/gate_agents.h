#pragma once
// Shared by the gates of agents' APIs: their fields become those of a chat completion.

#include <initializer_list>
#include <string>

#include "serve/json_gate.h"

namespace pith::serve {

/// Fields that keep their name.
void copy_fields(Fields& from, Json& to, std::initializer_list<const char*> names);
/// A field that gets another one.
void rename_field(Fields& from, Json& to, const char* theirs, const char* ours);
/// Throws for fields that are given and would change the answer.
void refuse_fields(Fields& f, std::initializer_list<const char*> names);
/// Parts of text of other names become those that chats have; a string stays one.
Json chat_part(const Json& part, const std::string& path);
Json chat_content(const Json& content, const std::string& path);

/// A tool whose schema is in the field `parameters`.
Json chat_tool(Fields& f, const char* parameters);
Json chat_tool_call(const std::string& id, const std::string& name, const Json& arguments);
/// The choice of one tool, by its name.
Json chat_tool_choice(Fields& f);

/// Puts a call behind the words of the assistant's that it came with.
void add_call(Json& messages, const Json& call);

}  // namespace pith::serve
