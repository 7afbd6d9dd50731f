#pragma once
// Files of messages and conversations.

#include <string>

#include "pith_tools/dialogue.h"

namespace pith::cli {

/// Removes the line break, LF or CR LF, that echo and editors add at the end.
void drop_last_break(std::string& text);
/// The messages of a file of /save, or of a list. Throws kCorrupt for anything else.
Dialogue::Json read_messages(const std::string& path);
/// "5 messages (1 of system, 2 of user, 2 of assistant)".
std::string describe_messages(const Dialogue::Json& messages);
/// Whether the file is one of Session::save; it may be long.
bool is_session(const std::string& path);

}  // namespace pith::cli
