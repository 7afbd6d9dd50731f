// Text of requests and answers.

#include <fmt/format.h>

#include <algorithm>

#include "http/http.h"

namespace pith::http {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

int hex(char c) {
  c = lower(c);
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

std::string_view reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 503: return "Service Unavailable";
    case 507: return "Insufficient Storage";
    default: return "Status";
  }
}

/// A line break in a value would begin a header, or an answer, of its own.
std::string one_line(std::string text) {
  std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  return text;
}

}  // namespace

const std::string* Request::find(std::string_view name) const {
  for (const Header& header : headers)
    if (same_name(header.name, name)) return &header.value;
  return nullptr;
}

std::string Request::parameter(std::string_view name) const {
  for (size_t begin = 0; begin < query.size();) {
    const size_t end = std::min(query.find('&', begin), query.size());
    const std::string_view part = std::string_view(query).substr(begin, end - begin);
    const size_t equals = std::min(part.find('='), part.size());
    if (part.substr(0, equals) == name && equals < part.size())
      return percent_decoded(part.substr(equals + 1)).value_or("");
    begin = end + 1;
  }
  return "";
}

std::string head_text(const Response& response, bool chunked, bool close) {
  std::string out =
      fmt::format("{}{} {}\r\n", kHeadBegins, response.status, reason(response.status));
  for (const Header& header : response.headers)
    out += fmt::format("{}: {}\r\n", one_line(header.name), one_line(header.value));
  if (chunked)
    out += "Transfer-Encoding: chunked\r\n";
  else
    out += fmt::format("Content-Length: {}\r\n", response.body.size());
  if (close) out += "Connection: close\r\n";
  return out + "\r\n";
}

std::string chunk_text(std::string_view piece) {
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex(text[i + 1]), low = hex(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace pith::http
