#pragma once
// Who may ask: the Host header against rebinding of names, the Origin of browsers' requests, keys.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "http/http.h"
#include "serve/refusal.h"

namespace pith::serve {

struct GuardOptions {
  std::string address = "127.0.0.1";      ///< that is listened at: its own name is a host too
  std::vector<std::string> hosts = {};    ///< that are allowed beside localhost
  std::vector<std::string> keys = {};     ///< none: anyone who reaches the port
  std::vector<std::string> origins = {};  ///< of pages elsewhere that may ask (CORS)
};

class Guard {
 public:
  explicit Guard(const GuardOptions& options);

  /// Why a request is refused, from its head alone.
  std::optional<Refusal> refuse(const http::Request& head) const;
  /// Who asks: a name of the key that was given, the same for the same key; "" without keys.
  std::string tenant(const http::Request& head) const;
  /// A key's name in logs, by its place among the keys.
  static std::string name_of_key(size_t index);
  /// The header that lets a page of this origin read answers, if it may.
  std::optional<std::string> allowed_origin(const http::Request& head) const;

 private:
  bool host_is_ours(std::string_view host) const;
  bool same_origin(const http::Request& head, const std::string& origin) const;
  std::optional<size_t> key_of(const http::Request& head) const;

  GuardOptions options_;
};

/// Compares without telling by the time it takes how much was right.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace pith::serve
