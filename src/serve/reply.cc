#include "serve/reply.h"

#include <random>

namespace pith::serve {

std::string random_id() {
  static constexpr char kDigits[] = "abcdefghijklmnopqrstuvwxyz234567";
  std::random_device device;
  std::string out;
  for (int i = 0; i < 26; ++i) out += kDigits[device() % 32];
  return out;
}

Reply::Reply(std::shared_ptr<http::Exchange> exchange, const http::Request& request,
             std::string tenant, std::vector<http::Header> headers, Log log)
    : exchange_(std::move(exchange)),
      id_(random_id()),
      tenant_(std::move(tenant)),
      method_(request.method),
      path_(request.path),
      headers_(std::move(headers)),
      log_(std::move(log)) {}

void Reply::send(http::Response response) {
  response.headers.push_back({"X-Request-Id", id_});
  response.headers.push_back({"X-Content-Type-Options", "nosniff"});
  response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
  const int status = response.status;
  exchange_->send(std::move(response));
  write_log(status);
}

void Reply::begin_events() {
  http::Response head;
  // nginx holds answers back unless it is told not to.
  head.headers = {{"Content-Type", "text/event-stream; charset=utf-8"},
                  {"Cache-Control", "no-cache"},
                  {"X-Accel-Buffering", "no"},
                  {"X-Request-Id", id_}};
  head.headers.insert(head.headers.end(), headers_.begin(), headers_.end());
  exchange_->begin(std::move(head));
}

void Reply::write(std::string piece) { exchange_->write(std::move(piece)); }

void Reply::end() {
  exchange_->end();
  write_log(200);
}

void Reply::write_log(int status) {
  if (!log_) return;
  const auto took = std::chrono::steady_clock::now() - start_;
  Json line{{"id", id_},
            {"method", method_},
            {"path", path_.substr(0, 200)},
            {"status", status},
            {"ms", std::chrono::duration_cast<std::chrono::milliseconds>(took).count()}};
  if (!tenant_.empty()) line["who"] = tenant_;
  line.update(notes_);
  log_(dump(line));
}

}  // namespace pith::serve
