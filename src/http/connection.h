#pragma once
// One connection: requests are parsed by Boost.Beast, answers are written here. It is the I/O
// thread's own: answers from other threads are posted to it. Of server.cc alone.

#include <utility>  // first: Boost 1.74 uses it and does not say so

#include <fmt/format.h>

#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "http/http.h"

namespace pith::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Parser = beast::http::request_parser<beast::http::string_body>;

inline std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

struct Shared {
  Options options;
  Hooks hooks;
  std::map<std::string, size_t> addresses;  // connections of each; the I/O thread's
  size_t connections = 0;
  std::shared_ptr<std::atomic<size_t>> busy = std::make_shared<std::atomic<size_t>>(0);
  asio::io_context io;  // last: what it still has to call owns connections
};

/// Not an HTTP status: what a parser's complaint is to the client.
inline int status_of(const error_code& error) {
  if (error == beast::http::error::header_limit) return 431;
  if (error == beast::http::error::body_limit) return 413;
  return 400;
}

class Connection;

/// The face that other threads see: it outlives its connection.
class Reply : public Exchange, public std::enable_shared_from_this<Reply> {
 public:
  Reply(std::weak_ptr<Shared> shared, std::shared_ptr<std::atomic<size_t>> busy,
        std::weak_ptr<Connection> connection)
      : shared_(std::move(shared)), busy_(std::move(busy)), connection_(std::move(connection)) {
    ++*busy_;
  }
  ~Reply() override { --*busy_; }
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  void send(Response response) override;
  void begin(Response head) override;
  void write(std::string piece) override;
  void end() override;
  void leave() { gone_ = true; }

 private:
  template <class F>
  void post(F f);
  std::weak_ptr<Shared> shared_;
  std::shared_ptr<std::atomic<size_t>> busy_;
  std::weak_ptr<Connection> connection_;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(const std::shared_ptr<Shared>& shared, tcp::socket socket, std::string remote)
      : shared_(shared.get()),
        owner_(shared),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        remote_(std::move(remote)) {
    ++shared_->connections;
    ++shared_->addresses[remote_];
  }
  ~Connection() {
    if (reply_) reply_->leave();
    --shared_->connections;
    if (--shared_->addresses[remote_] == 0) shared_->addresses.erase(remote_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    next_request();
  }
  /// Says why, and ends.
  void refuse(int status, std::string_view why) {
    Response response = shared_->hooks.refuse(status, why);
    close_ = true;
    queue(head_text(response, false, true) + response.body);
    last_ = true;
  }

  // Posted by a Reply; `who` is checked so that a late call does not answer another request.
  void send(const Reply* who, const Response& response) {
    if (who != reply_.get() || begun_) return;
    begun_ = true;
    queue(after_ahead(head_text(response, false, close_)) + (head_only_ ? "" : response.body));
    finish();
  }
  void begin(const Reply* who, const Response& head) {
    if (who != reply_.get() || begun_) return;
    begun_ = true;
    chunked_ = !old_;
    if (old_) close_ = true;
    std::string text = head_text(head, chunked_, close_);
    if (old_) {  // HTTP/1.0 has no chunks: the end of the connection ends the body
      const size_t at = text.find("Content-Length: ");
      text.erase(at, text.find("\r\n", at) + 2 - at);
    }
    queue(after_ahead(text));
    write(who, head.body);
  }
  void write(const Reply* who, const std::string& piece) {
    if (who != reply_.get() || !begun_ || piece.empty() || head_only_) return;
    queue(chunked_ ? chunk_text(piece) : piece);
  }
  void end(const Reply* who) {
    if (who != reply_.get() || !begun_) return;
    if (chunked_ && !head_only_) queue(chunk_text(""));
    finish();
  }
  void close() {
    if (reply_) reply_->leave();
    error_code ignored;
    timer_.cancel();
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

 private:
  /// Calls `late` unless another deadline is set first.
  void deadline(double seconds, void (Connection::*late)()) {
    timer_.expires_after(milliseconds(seconds));
    timer_.async_wait([self = weak_from_this(), late](error_code error) {
      const auto alive = self.lock();
      if (!error && alive) ((*alive).*late)();
    });
  }
  void no_deadline() { timer_.cancel(); }
  void head_late() { refuse(408, "the request's head did not come in time"); }
  void body_late() { refuse(408, "the request's body did not come in time"); }

  void next_request() {
    if (requests_ >= shared_->options.requests_a_connection) return close();
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_->options.header_bytes));
    parser_->body_limit(shared_->options.body_bytes);
    begun_ = chunked_ = false;
    if (buffer_.size() > 0) return read_head();
    deadline(shared_->options.idle_seconds, &Connection::close);
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      if (!error) self->read_head();
    });
  }

  void read_head() {
    deadline(shared_->options.header_seconds, &Connection::head_late);
    beast::http::async_read_header(socket_, buffer_, *parser_,
                                   [self = shared_from_this()](error_code error, size_t) {
                                     if (error) return self->unread(error);
                                     self->have_head();
                                   });
  }

  void unread(const error_code& error) {
    if (last_ || !socket_.is_open()) return;
    if (error.category() ==
            beast::http::make_error_code(beast::http::error::bad_method).category() &&
        error != beast::http::error::end_of_stream && error != beast::http::error::partial_message)
      return refuse(status_of(error), error.message());
    close();
  }

  void have_head() {
    const auto& head = parser_->get();
    request_ = Request();
    request_.method = std::string(head.method_string());
    request_.remote = remote_;
    std::string target(head.target());
    const size_t mark = std::min(target.find('?'), target.size());
    if (mark < target.size()) request_.query = target.substr(mark + 1);
    target.resize(mark);
    const auto path = percent_decoded(target);
    if (!path || path->empty() || path->front() != '/')
      return refuse(400, "the request's target is no path");
    request_.path = *path;
    for (const auto& field : head)
      request_.headers.push_back({std::string(field.name_string()), std::string(field.value())});
    old_ = head.version() < 11;
    head_only_ = request_.method == "HEAD";
    ++requests_;
    close_ = !parser_->keep_alive() || requests_ >= shared_->options.requests_a_connection;
    if (auto refused = shared_->hooks.admit(request_)) {
      // Bytes that a client still sends would be read as a request: only after a read body the
      // connection continues.
      close_ = close_ || !parser_->is_done();
      queue(head_text(*refused, false, close_) + (head_only_ ? "" : refused->body));
      return finish();
    }
    const auto length = parser_->content_length();
    if (length && *length > shared_->options.body_bytes)
      return refuse(413, "the request's body is too large");
    const std::string* expect = request_.find("Expect");
    if (expect != nullptr && !parser_->is_done()) queue("HTTP/1.1 100 Continue\r\n\r\n");
    body_began_ = Clock::now();
    body_read_ = 0;
    read_body();
  }

  void read_body() {
    if (parser_->is_done()) return have_request();
    deadline(shared_->options.body_seconds, &Connection::body_late);
    beast::http::async_read_some(
        socket_, buffer_, *parser_, [self = shared_from_this()](error_code error, size_t bytes) {
          if (error) return self->unread(error);
          self->body_read_ += bytes;
          const double seconds =
              std::chrono::duration<double>(Clock::now() - self->body_began_).count();
          if (seconds > self->shared_->options.body_seconds &&
              static_cast<double>(self->body_read_) < 1024 * seconds)
            return self->body_late();
          self->read_body();
        });
  }

  void have_request() {
    no_deadline();
    request_.body = std::move(parser_->get().body());
    reply_ = std::make_shared<Reply>(owner_, shared_->busy, weak_from_this());
    watch();
    shared_->hooks.handle(std::move(request_), reply_);
  }

  /// While an answer is made nothing is read; that the client leaves is seen by looking.
  void watch() {
    if (watching_) return;
    watching_ = true;
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](error_code error) {
      self->watching_ = false;
      if (!error && self->reply_) self->look();
    });
  }
  void look() {
    char byte = 0;
    error_code error;
    socket_.non_blocking(true, error);
    socket_.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, error);
    // Bytes are a request that was sent ahead, for later.
    if (error == asio::error::would_block) return watch();
    if (error == asio::error::eof) return half_closed();
    if (error) close();
  }

  /// The client sends nothing more, and may still read: clients that leave look alike, but answer
  /// what is written to them with a reset. So bytes of what will come anyway go ahead: the head's
  /// first, or a zero before the next chunk's size.
  void half_closed() {
    close_ = true;
    socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](error_code error) {
      if (!error && self->reply_) self->close();
    });
    if (!begun_) {
      ahead_ = kHeadBegins.size();
      queue(std::string(kHeadBegins));
    } else if (chunked_ && !head_only_) {
      queue("0");
    }
  }
  /// A head without what went ahead of it.
  std::string after_ahead(const std::string& head) { return head.substr(std::exchange(ahead_, 0)); }

  void queue(std::string text) {
    waiting_ += text.size();
    out_.push_back(std::move(text));
    if (waiting_ > shared_->options.output_bytes && reply_ && chunked_) return close();
    if (!writing_) write_out();
  }
  void write_out() {
    writing_ = true;
    deadline(shared_->options.stalled_seconds, &Connection::close);
    sending_.clear();
    std::swap(sending_, out_);
    std::vector<asio::const_buffer> buffers;
    for (const std::string& text : sending_) buffers.push_back(asio::buffer(text));
    asio::async_write(socket_, buffers, [self = shared_from_this()](error_code error, size_t n) {
      self->written(error, n);
    });
  }
  void written(error_code error, size_t bytes) {
    writing_ = false;
    waiting_ -= bytes;
    if (error) return close();
    if (!out_.empty()) return write_out();
    if (reply_) no_deadline();
    go_on();
  }
  void finish() {
    reply_.reset();
    if (close_) last_ = true;
    finished_ = true;
    if (!writing_) go_on();
  }
  void go_on() {
    if (last_) return close_gently();
    if (!finished_) return;
    finished_ = false;
    next_request();
  }
  /// A close with bytes unread would take back what was written: what comes is read for a moment.
  void close_gently() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    deadline(1, &Connection::close);
    drain();
  }
  void drain() {
    buffer_.clear();
    socket_.async_read_some(buffer_.prepare(16384),
                            [self = shared_from_this()](error_code error, size_t) {
                              error ? self->close() : self->drain();
                            });
  }

  Shared* const shared_;  // outlives it: its io_context owns the connections
  const std::weak_ptr<Shared> owner_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  const std::string remote_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  Request request_;
  std::shared_ptr<Reply> reply_;  // of the request that is being answered
  std::deque<std::string> out_, sending_;
  size_t waiting_ = 0, requests_ = 0, body_read_ = 0, ahead_ = 0;
  Clock::time_point body_began_;
  bool writing_ = false, watching_ = false, begun_ = false, chunked_ = false, finished_ = false;
  bool old_ = false, head_only_ = false, close_ = false, last_ = false;
};

template <class F>
void Reply::post(F f) {
  const auto shared = shared_.lock();
  if (!shared) return;
  asio::post(shared->io, [self = shared_from_this(), f = std::move(f)] {
    if (const auto connection = self->connection_.lock()) f(*connection, self.get());
  });
}
inline void Reply::send(Response response) {
  post([r = std::move(response)](Connection& c, const Reply* who) { c.send(who, r); });
}
inline void Reply::begin(Response head) {
  post([h = std::move(head)](Connection& c, const Reply* who) { c.begin(who, h); });
}
inline void Reply::write(std::string piece) {
  post([p = std::move(piece)](Connection& c, const Reply* who) { c.write(who, p); });
}
inline void Reply::end() {
  post([](Connection& c, const Reply* who) { c.end(who); });
}

}  // namespace pith::http
