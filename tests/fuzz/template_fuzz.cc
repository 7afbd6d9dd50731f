// libFuzzer: any bytes as a chat template, rendered over one conversation. A template may be
// refused with an Error and nothing else: no crash, no hang, no memory beyond the limits.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "chat/template.h"

namespace {

using pith::chat::Value;

constexpr const char* kVariables = R"({
  "messages": [{"role": "system", "content": "Be brief."},
               {"role": "user", "content": [{"type": "text", "text": "a\n b"}]},
               {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
                "arguments": {"x": [1, 2.5, null, true]}}}]},
               {"role": "tool", "content": "Größe 漢字 <|im_end|>"}],
  "tools": [{"function": {"name": "f", "items": 3}}], "add_generation_prompt": true,
  "bos_token": "<s>", "n": 7})";

std::tm fixed_clock() { return {}; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto variables = [] {
    std::map<std::string, Value, std::less<>> out;
    const auto json = nlohmann::ordered_json::parse(kVariables);
    for (const auto& [name, value] : json.items()) out[name] = pith::chat::from_json(value);
    return out;
  }();
  try {
    const pith::chat::Template tmpl({reinterpret_cast<const char*>(data), size}, "fuzz");
    (void)tmpl.render(variables, fixed_clock);
  } catch (const pith::Error& error) {
    if (error.code() == pith::ErrorCode::kInternal) __builtin_trap();
  }
  return 0;
}
