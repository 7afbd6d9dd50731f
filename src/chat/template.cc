#include "chat/template.h"

#include "chat/interpreter.h"

namespace pith::chat {

Text Template::render(std::map<std::string, Value, std::less<>> variables,
                      std::function<std::tm()> clock) const {
  Runtime rt(name_, std::move(clock));
  Interpreter interpreter(rt, std::move(variables));
  try {
    return interpreter.run(nodes_);
  } catch (const Error& error) {
    // Errors that values throw do not know the place.
    if (std::string_view(error.what()).starts_with("chat template '")) throw;
    rt.fail(error.what(), error.code());
  }
}

}  // namespace pith::chat
