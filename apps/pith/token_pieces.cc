#include "token_pieces.h"

#include <fmt/format.h>

#include "console.h"
#include "core/utf8.h"
#include "report.h"

namespace pith::cli {
namespace {

std::string as_json(const std::string& piece) {
  if (is_utf8(piece)) return Json(piece).dump();
  std::string out = "\"";
  for (char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    const bool shown = byte >= 0x20 && byte < 0x7f;
    out += shown ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
  }
  return out + "\"";
}

}  // namespace

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<std::string> out;
  for (const int32_t id : ids) out.push_back(tokenizer.piece(id));
  return out;
}

std::string pieces_table(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  Table table({std::string("id"), "piece"}, {1});
  for (const int32_t id : ids) table.add({std::to_string(id), as_json(tokenizer.piece(id))});
  return table.text();
}

}  // namespace pith::cli
