#pragma once
// A request that is not served: a status, and an error object in OpenAI's form.

#include <stdexcept>
#include <string>

#include "http/http.h"
#include "pith/error.h"

namespace pith::serve {

struct Refusal : std::runtime_error {
  Refusal(int s, std::string c, const std::string& message, std::string p = "")
      : std::runtime_error(message), status(s), code(std::move(c)), param(std::move(p)) {}

  int status;
  std::string code;        ///< for programs: "context_length_exceeded"; "" = null
  std::string param;       ///< the field: "messages[2].content"; "" = null
  int retry_after = 0;     ///< seconds; 0 = not said
  bool senseless = false;  ///< repeating it would change nothing
};

/// 400 about one field.
Refusal wrong(const std::string& param, const std::string& message);
/// 400 for a field that would change the answer and is not there.
Refusal unsupported(const std::string& param, const std::string& message);
Refusal refusal_of(const Error& error, const std::string& param = "");
/// {"error":{...}}: one line.
std::string error_json(const Refusal& refusal);
http::Response response_of(const Refusal& refusal);
http::Response json_response(std::string body, int status = 200);

}  // namespace pith::serve
