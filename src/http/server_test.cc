// Clients that read slowly, send rubbish, shut half of their connection or leave: nothing of them
// stays.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "http/http.h"

namespace pith::http {
namespace {

using Exchanges = std::vector<std::shared_ptr<Exchange>>;

/// Long enough on any machine; a wait ends when what it waits for is there.
bool soon(const std::function<bool()>& there) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!there()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A server that keeps every request open.
class Holding {
 public:
  explicit Holding(Options options = {}) : server_(local(options), hooks()) {}

  Server& server() { return server_; }
  /// The exchange of request `number`.
  std::shared_ptr<Exchange> taken(size_t number) {
    std::shared_ptr<Exchange> out;
    EXPECT_TRUE(soon([&] {
      const std::lock_guard guard(lock_);
      if (exchanges_.size() > number) out = exchanges_[number];
      return out != nullptr;
    }));
    return out;
  }
  /// Whether nothing is answered any more once the test has dropped its replies.
  bool idle() {
    {
      const std::lock_guard guard(lock_);
      exchanges_.clear();
    }
    return soon([&] { return server_.busy() == 0; });
  }

 private:
  static Options local(Options options) {
    options.port = 0;
    return options;
  }
  Hooks hooks() {
    Hooks out;
    out.admit = [](const Request&) { return std::nullopt; };
    out.handle = [this](const Request&, std::shared_ptr<Exchange> exchange) {
      const std::lock_guard guard(lock_);
      exchanges_.push_back(std::move(exchange));
    };
    out.refuse = [](int status, std::string_view why) {
      return Response{status, {}, std::string(why)};
    };
    return out;
  }

  std::mutex lock_;
  Exchanges exchanges_;
  Server server_;  // last: it calls the hooks
};

class Client {
 public:
  explicit Client(uint16_t port, int receive_bytes = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0)
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  ~Client() { leave(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void say(std::string_view text) {
    EXPECT_EQ(::send(socket_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void say_no_more() { ::shutdown(socket_, SHUT_WR); }
  void leave() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }
  /// Until the server closes.
  std::string hear() {
    std::string out;
    char piece[4096];
    for (ssize_t n = 0; (n = ::recv(socket_, piece, sizeof(piece), 0)) > 0;)
      out.append(piece, static_cast<size_t>(n));
    return out;
  }

 private:
  int socket_;
};

constexpr std::string_view kAsk = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

TEST(Clients, ThatSayNoMoreGetTheirAnswer) {
  Holding holding;
  Client client(holding.server().port());
  client.say(kAsk);
  const auto exchange = holding.taken(0);
  client.say_no_more();
  // It is some time until the server looks, or it looks at once: the bytes are the same.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(exchange->gone());
  exchange->send({200, {{"A", "b"}}, "answer"});
  const std::string heard = client.hear();
  EXPECT_TRUE(heard.starts_with("HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 6\r\n")) << heard;
  EXPECT_TRUE(heard.ends_with("\r\n\r\nanswer")) << heard;
}

TEST(Clients, ThatSayNoMoreGetTheirStream) {
  Holding holding;
  Client client(holding.server().port());
  client.say(kAsk);
  const auto exchange = holding.taken(0);
  exchange->begin({200, {}, "one"});
  client.say_no_more();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  exchange->write("two");
  exchange->end();
  const std::string heard = client.hear();
  // A zero before the size of one of the chunks is HTTP.
  const size_t at = heard.find("3\r\none\r\n");
  ASSERT_NE(at, std::string::npos) << heard;
  std::string rest = heard.substr(at + 8);
  if (rest.starts_with("03")) rest.erase(0, 1);
  if (rest.ends_with("\r\n00\r\n\r\n")) rest.erase(rest.size() - 5, 1);
  EXPECT_EQ(rest, "3\r\ntwo\r\n0\r\n\r\n") << heard;
}

TEST(Clients, ThatLeaveAreMissedThoughNothingIsSaidToThem) {
  for (const bool begun : {false, true}) {
    Holding holding;
    Client client(holding.server().port());
    client.say(kAsk);
    auto exchange = holding.taken(0);
    if (begun) exchange->begin({200, {}, ""});
    client.leave();
    EXPECT_TRUE(soon([&] { return exchange->gone(); })) << begun;
    exchange.reset();
    EXPECT_TRUE(holding.idle());
  }
}

TEST(Clients, ThatDoNotReadAreCutOff) {
  Options options;
  options.output_bytes = size_t{1} << 16;
  Holding holding(options);
  Client slow(holding.server().port(), 4096), other(holding.server().port());
  slow.say(kAsk);
  auto exchange = holding.taken(0);
  exchange->begin({200, {}, ""});
  // The kernel's buffers take some, the server's own 64 KiB: a million bytes go nowhere.
  const std::string piece(4096, 'a');
  EXPECT_TRUE(soon([&] {
    exchange->write(piece);
    return exchange->gone();
  }));
  other.say(kAsk);  // nobody else is disturbed
  holding.taken(1)->send({200, {{"Connection", "close"}}, "fine"});
  other.say_no_more();
  EXPECT_NE(other.hear().find("fine"), std::string::npos);
  exchange.reset();
  EXPECT_TRUE(holding.idle());
}

TEST(Clients, ThatTakeNothingForAWhileAreCutOff) {
  Options options;
  options.stalled_seconds = 0.05;
  Holding holding(options);
  Client client(holding.server().port(), 4096);
  client.say(kAsk);
  auto exchange = holding.taken(0);
  // Once, and more than the kernel takes: the write stays open until the deadline.
  exchange->send({200, {}, std::string(size_t{64} << 20, 'a')});
  exchange.reset();
  EXPECT_TRUE(holding.idle());
  EXPECT_LT(client.hear().size(), size_t{64} << 20);
}

TEST(Clients, ThatStopInTheMiddleAreToldSo) {
  Options options;
  options.header_seconds = options.body_seconds = 0.05;
  Holding holding(options);
  for (const std::string said :
       {"GET / HT", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"}) {
    Client client(holding.server().port());
    client.say(said);
    EXPECT_TRUE(client.hear().starts_with("HTTP/1.1 408")) << said;
  }
  EXPECT_EQ(holding.server().busy(), 0u);
}

TEST(Clients, WithMalformedChunksAreRefused) {
  Options options;
  options.body_bytes = 64;
  Holding holding(options);
  const std::string head =
      "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string huge = "41\r\n" + std::string(65, 'a') + "\r\n0\r\n\r\n";
  for (const std::string& body :
       {std::string("-2\r\nab\r\n0\r\n\r\n"), std::string("x\r\n"), std::string("\r\n\r\n"),
        std::string("2\r\nabc\r\n0\r\n\r\n"), std::string("ffffffffffffffffff\r\na"),
        std::string("2 2\r\nab\r\n0\r\n\r\n"), huge}) {
    Client client(holding.server().port());
    client.say(head + body);
    const std::string heard = client.hear();
    const bool large = body == huge || body.starts_with("ff");
    EXPECT_TRUE(heard.starts_with("HTTP/1.1 400") || (large && heard.starts_with("HTTP/1.1 413")))
        << body << " -> " << heard.substr(0, 100);
  }
  for (const std::string body : {"", "4\r\na", "2\r\nab\r\n"}) {  // ends in the middle
    Client client(holding.server().port());
    client.say(head + body);
    client.say_no_more();
    EXPECT_FALSE(client.hear().starts_with("HTTP/1.1 200")) << body;
  }
  EXPECT_EQ(holding.server().busy(), 0u);  // none became a request
  Client good(holding.server().port());
  good.say(head + "02;note=\"a\"\r\nab\r\n0\r\nTrailer: b\r\n\r\n");
  holding.taken(0)->send({200, {}, "fine"});
  EXPECT_TRUE(good.hear().starts_with("HTTP/1.1 200"));
}

}  // namespace
}  // namespace pith::http
