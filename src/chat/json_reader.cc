// JSON into values of templates. Numbers of any length keep their digits, as in Python; a parser
// that makes a tree of its own would round them first.

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "chat/value.h"
#include "pith/error.h"

namespace pith::chat {
namespace {

using Json = nlohmann::json;

/// The parser calls it. Containers that are open wait on a stack.
class Reader {
 public:
  bool null() { return put(None{}); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(int64_t value) { return put(value); }
  bool number_unsigned(uint64_t value) {
    if (value <= uint64_t{INT64_MAX}) return put(static_cast<int64_t>(value));
    return put(WideInteger(std::to_string(value)));
  }
  bool number_float(double value, const std::string& text) {
    if (text.find_first_of(".eE") == text.npos) return put(WideInteger(text));
    return put(value);
  }
  bool string(std::string& value) { return put(text_of(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool key(std::string& value) {
    open_.back().key = text_of(value);
    return true;
  }
  bool end_object() {
    Dict dict = std::move(open_.back().dict);
    open_.pop_back();
    return put(std::move(dict));
  }
  bool end_array() {
    Values items = std::move(open_.back().items);
    open_.pop_back();
    return put(List(List::Kind::kList, std::move(items)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) { return false; }

  std::optional<Value> take() { return std::move(whole_); }

 private:
  struct Open {
    bool is_dict;
    Text key{};
    Dict dict{};
    Values items{};
  };

  /// UTF-8: the parser takes no other.
  static Text text_of(const std::string& bytes) { return Text(bytes, Origin::kData); }
  bool open(bool is_dict) {
    if (open_.size() == kMaxDepth)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the data of a chat template holds more than {} levels", kMaxDepth));
    open_.push_back({is_dict});
    return true;
  }
  bool put(Value value) {
    if (open_.empty())
      whole_ = std::move(value);
    else if (open_.back().is_dict)
      open_.back().dict.set(open_.back().key, std::move(value));
    else
      open_.back().items.push_back(std::move(value));
    return true;
  }

  std::vector<Open> open_;
  std::optional<Value> whole_;
};

}  // namespace

std::optional<Value> read_json(std::string_view text) {
  Reader reader;
  if (!Json::sax_parse(text, &reader)) return std::nullopt;
  return reader.take();
}

}  // namespace pith::chat
