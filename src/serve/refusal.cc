#include "serve/refusal.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace pith::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

Refusal wrong(const std::string& param, const std::string& message) {
  return {400, "invalid_value", param.empty() ? message : "'" + param + "' " + message, param};
}

Refusal unsupported(const std::string& param, const std::string& message) {
  return {400, "unsupported", "'" + param + "' " + message, param};
}

Refusal refusal_of(const Error& error, const std::string& param) {
  const std::string text = error.what();
  std::string code = to_string(error.code());
  std::replace(code.begin(), code.end(), ' ', '_');
  Refusal out(500, code, text);
  switch (error.code()) {
    case ErrorCode::kInvalidArgument: out.status = 400; break;
    case ErrorCode::kUnsupported: out = Refusal(400, "unsupported", text); break;
    case ErrorCode::kContextFull: out = Refusal(400, "context_length_exceeded", text); break;
    case ErrorCode::kNotFound: out = Refusal(404, "not_found", text); break;
    case ErrorCode::kCorrupt: out = Refusal(422, "session_file_corrupt", text); break;
    case ErrorCode::kOutOfMemory:
      out.status = 503;
      out.retry_after = 1;
      break;
    default: out.senseless = true;
  }
  out.param = param;
  return out;
}

std::string error_json(const Refusal& r) {
  nlohmann::ordered_json error{
      {"message", r.what()}, {"type", type_of(r.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!r.param.empty()) error["param"] = r.param;
  if (!r.code.empty()) error["code"] = r.code;
  return nlohmann::ordered_json{{"error", error}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

http::Response json_response(std::string body, int status) {
  return {status, {{"Content-Type", "application/json; charset=utf-8"}}, std::move(body)};
}

http::Response response_of(const Refusal& r) {
  http::Response out = json_response(error_json(r), r.status);
  if (r.retry_after > 0) out.headers.push_back({"Retry-After", std::to_string(r.retry_after)});
  if (r.senseless) out.headers.push_back({"x-should-retry", "false"});
  if (r.status == 401) out.headers.push_back({"WWW-Authenticate", "Bearer"});
  return out;
}

}  // namespace pith::serve
