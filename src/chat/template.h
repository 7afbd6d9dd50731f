#pragma once
// A template that has been read, ready to be rendered any number of times, by any number of
// threads.

#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "chat/syntax.h"

namespace pith::chat {

class Template {
 public:
  /// Throws as parse() does. `name` stands in messages.
  Template(std::string_view source, std::string name)
      : name_(std::move(name)), nodes_(parse(source, name_)) {}

  /// Throws kInvalidArgument for what the template cannot do with these variables or refuses
  /// itself, and for rendering without end; kUnsupported for what only shows now.
  Text render(std::map<std::string, Value, std::less<>> variables,
              std::function<std::tm()> clock) const;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  Nodes nodes_;
};

}  // namespace pith::chat
