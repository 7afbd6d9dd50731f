#pragma once
// The way back to a client: an exchange with the headers that every answer has, and a line for the
// log when it is over.

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "http/http.h"
#include "serve/json_gate.h"
#include "serve/refusal.h"

namespace pith::serve {

class Reply {
 public:
  using Log = std::function<void(const std::string&)>;
  Reply(std::shared_ptr<http::Exchange> exchange, const http::Request& request, std::string tenant,
        std::vector<http::Header> headers, Log log);

  void send(http::Response response);
  void json(const Json& json, int status = 200) { send(json_response(dump(json), status)); }
  void refuse(const Refusal& refusal) { send(response_of(refusal)); }
  /// Begins a stream of events.
  void begin_events();
  void write(std::string piece);
  void end();
  bool gone() const { return exchange_->gone(); }
  const std::string& id() const { return id_; }
  const std::string& tenant() const { return tenant_; }
  /// More for the log's line.
  void note(const std::string& name, Json value) { notes_[name] = std::move(value); }

 private:
  void write_log(int status);

  std::shared_ptr<http::Exchange> exchange_;
  const std::string id_, tenant_, method_, path_;
  const std::vector<http::Header> headers_;
  const Log log_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Json notes_ = Json::object();
};

/// Letters and digits from 128 random bits.
std::string random_id();

}  // namespace pith::serve
