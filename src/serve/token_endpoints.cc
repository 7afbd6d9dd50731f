#include "serve/token_endpoints.h"

#include "pith/tokenizer.h"
#include "serve/json_gate.h"

namespace pith::serve {
namespace {

/// A string, or bytes where it is no UTF-8.
Json piece_json(const std::string& piece) {
  Utf8Stream stream;
  if (stream.push(piece) + stream.flush() == piece) return piece;
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

void TokenEndpoints::tokenize(Visit& v) {
  const Json body = parse_object(v.request.body);
  Fields f(body);
  // As much as a prompt may have: whoever asks more often works for it.
  const auto content =
      f.text("content", preparer_.tokenizer().longest_piece() * preparer_.context());
  if (!content) throw wrong("content", "is missing");
  const bool special = f.boolean("parse_special").value_or(true);
  const Tokenizer& tokenizer = preparer_.tokenizer();
  std::vector<int32_t> ids = tokenizer.encode(*content, special);
  if (f.boolean("add_special").value_or(false) && tokenizer.add_bos())
    ids.insert(ids.begin(), tokenizer.bos());
  if (!f.boolean("with_pieces").value_or(false)) return v.reply->json({{"tokens", ids}});
  Json pieces = Json::array();
  for (const int32_t id : ids)
    pieces.push_back({{"id", id}, {"piece", piece_json(tokenizer.piece(id))}});
  v.reply->json({{"tokens", pieces}});
}

void TokenEndpoints::detokenize(Visit& v) {
  const Json body = parse_object(v.request.body);
  Fields f(body);
  if (f.get("tokens") == nullptr) throw wrong("tokens", "is missing");
  const auto ids = f.ids("tokens", kMostValues, preparer_.tokenizer().vocab_size());
  v.reply->json({{"content", preparer_.tokenizer().decode(ids)}});
}

void TokenEndpoints::apply_template(Visit& v) {
  v.reply->json(
      {{"prompt", preparer_.rendered(template_call(parse_object(v.request.body), gate_options_))}});
}

void TokenEndpoints::count_tokens(Visit& v) {
  const Call call = template_call(parse_object(v.request.body), gate_options_);
  v.reply->json({{"object", "response.input_tokens"},
                 {"input_tokens", preparer_.chat_tokens(call).ids.size()}});
}

void TokenEndpoints::count_message_tokens(Visit& v) {
  const Call call = messages_call(parse_object(v.request.body), gate_options_, false);
  v.reply->json({{"input_tokens", preparer_.chat_tokens(call).ids.size()}});
}

}  // namespace pith::serve
