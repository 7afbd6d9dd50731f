#pragma once
// The tables that library.h looks names up in, and what they share.

#include <span>

#include "chat/library.h"

namespace pith::chat {

std::span<const Entry> text_filters();  // filters_text.cc
std::span<const Entry> list_filters();  // filters_list.cc
std::span<const Entry> all_tests();     // tests.cc
std::span<const Entry> all_methods();   // methods.cc
std::span<const Entry> all_globals();   // methods.cc

/// An attribute of an attribute: "a.b.0", or the number of an item. Where one is not there:
/// `otherwise`, if given.
Value path_of(Runtime& rt, const Value& value, const Value& path,
              const std::optional<Value>& otherwise = std::nullopt);
/// The method format() of strings.
Value format_method(Runtime& rt, const Value& self, const Arguments& a);
/// str.replace() and changes of case, charged.
Value replace_text(Runtime& rt, const Text& text, const Text& from, const Text& to, int64_t count);
Value change_text(Runtime& rt, const Value& self, Case form);
/// Python's islower() and isupper() of a string: some letter has case, and none the other one.
Value has_case(Runtime& rt, const Value& text, Case form);

}  // namespace pith::chat
