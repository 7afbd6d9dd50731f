#pragma once
// Templates for models that have none of their own.

#include <span>
#include <string_view>

namespace pith::chat {

struct BuiltIn {
  std::string_view name, source;
};
std::span<const BuiltIn> built_in_templates();

}  // namespace pith::chat
