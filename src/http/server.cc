// The listener, and the thread that serves all connections.

#include "http/connection.h"

#include <fmt/format.h>

#include <thread>

#include "pith/error.h"

namespace pith::http {

struct Server::State {
  explicit State(const Options& options, Hooks hooks) : shared(std::make_shared<Shared>()) {
    shared->options = options;
    shared->hooks = std::move(hooks);
  }

  void listen() {
    const Options& o = shared->options;
    error_code error;
    const auto address = asio::ip::make_address(o.address, error);
    if (error)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is no address to listen at; give a number, as 127.0.0.1 (this "
                              "machine alone), 0.0.0.0 or ::",
                              o.address));
    const tcp::endpoint endpoint(address, o.port);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error)
      throw Error(ErrorCode::kIo, fmt::format("{}:{} cannot be listened at: {}; choose another "
                                              "--port",
                                              o.address, o.port, error.message()));
    bound = acceptor.local_endpoint().port();
  }

  void accept() {
    acceptor.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor.is_open()) return;
      if (!error) welcome(std::move(socket));
      if (error == asio::error::no_descriptors) {  // nothing else to do until some are closed
        pause.expires_after(std::chrono::milliseconds(100));
        return pause.async_wait([this](error_code stopped) {
          if (!stopped) accept();
        });
      }
      accept();
    });
  }

  void welcome(tcp::socket socket) {
    error_code error;
    const auto remote = socket.remote_endpoint(error);
    if (error) return;
    const std::string address = remote.address().to_string();
    const Options& o = shared->options;
    const auto known = shared->addresses.find(address);
    const size_t of_address = known == shared->addresses.end() ? 0 : known->second;
    // A proxy on this machine stands for many clients.
    const bool full = shared->connections >= o.connections ||
                      (of_address >= o.connections_an_address && !remote.address().is_loopback());
    const auto connection = std::make_shared<Connection>(shared, std::move(socket), address);
    if (full) return connection->refuse(503, "too many connections");
    connection->start();
  }

  std::shared_ptr<Shared> shared;
  tcp::acceptor acceptor{shared->io};
  asio::steady_timer pause{shared->io};
  uint16_t bound = 0;
  std::thread thread;
};

Server::Server(const Options& options, Hooks hooks)
    : state_(std::make_unique<State>(options, std::move(hooks))) {
  state_->listen();
  state_->accept();
  state_->thread = std::thread([state = state_.get()] { state->shared->io.run(); });
}

Server::~Server() {
  state_->shared->io.stop();
  state_->thread.join();
}

uint16_t Server::port() const { return state_->bound; }
size_t Server::busy() const { return *state_->shared->busy; }
void Server::stop_listening() {
  asio::post(state_->shared->io, [this] {
    error_code ignored;
    state_->acceptor.close(ignored);
  });
}

}  // namespace pith::http
