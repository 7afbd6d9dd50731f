#pragma once

#include <memory>
#include <string>

#include "http/http.h"
#include "serve/reply.h"

namespace pith::serve {

/// The argument of a path's handler.
struct Visit {
  http::Request request;
  std::shared_ptr<Reply> reply;
  std::string rest;  ///< of the path, where a route takes more: "abc/save"
};

}  // namespace pith::serve
