#pragma once
// HTTP/1.1 as the server needs it: requests come whole, answers go out whole or as a stream of
// chunks. One I/O thread serves all connections; nothing of the library behind it is seen here.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pith::http {

struct Header {
  std::string name, value;
};

struct Request {
  std::string method, path, query;  ///< path is percent-decoded, query is not
  std::vector<Header> headers;
  std::string body;
  std::string remote;  ///< the client's address

  /// The value of the first header of that name, whatever its case; null if there is none.
  const std::string* find(std::string_view name) const;
  /// A parameter of the query, percent-decoded; "" if there is none.
  std::string parameter(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::vector<Header> headers = {};
  std::string body = {};
};

/// Answers one request. Any thread may call it; calls after the answer's end do nothing, and
/// so do calls after the client has gone.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void send(Response response) = 0;
  /// An answer in pieces: the head (its body goes first), pieces, the end.
  virtual void begin(Response head) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  /// The client has closed the connection, or takes nothing any more.
  bool gone() const noexcept { return gone_.load(std::memory_order_relaxed); }

 protected:
  std::atomic<bool> gone_{false};
};

struct Options {
  std::string address = "127.0.0.1";
  uint16_t port = 8080;  ///< 0: any that is free
  size_t header_bytes = 16384, body_bytes = size_t{8} << 20;
  size_t connections = 1024, connections_an_address = 64;
  size_t requests_a_connection = 1000;
  size_t output_bytes = size_t{1} << 20;  ///< waiting for one reader; more: it is cut off
  double header_seconds = 10, body_seconds = 30, idle_seconds = 75, stalled_seconds = 30;
};

struct Hooks {
  /// Called with a request's head: an answer refuses it before its body is read.
  std::function<std::optional<Response>(const Request& head)> admit;
  /// Called with a whole request, on the I/O thread, which it must not hold.
  std::function<void(Request request, std::shared_ptr<Exchange> exchange)> handle;
  /// The answer to what is no request: malformed (400), late (408), too large (413, 431).
  std::function<Response(int status, std::string_view why)> refuse;
};

class Server {
 public:
  /// Listens. Throws kInvalidArgument for an address that is none, kIo where it cannot be had.
  Server(const Options& options, Hooks hooks);
  /// Cuts what is still open.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  /// New connections are refused; open ones are answered on.
  void stop_listening();
  /// Requests being answered.
  size_t busy() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// All heads begin so.
inline constexpr std::string_view kHeadBegins = "HTTP/1.1 ";
/// The head of an answer as it goes over the wire. `chunked`: the body follows in chunks, else
/// with its length; `close`: the connection ends with it.
std::string head_text(const Response& response, bool chunked, bool close);
/// One chunk of such a body; the empty piece ends it.
std::string chunk_text(std::string_view piece);
/// %XX and nothing else; nothing for text that is malformed or hides a NUL.
std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace pith::http
