#include "link/status_server.h"

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <thread>

#include "protocol/extended_json.h"

namespace mayfly {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr auto kRequestTime = std::chrono::seconds(5);
constexpr size_t kMostConnections = 32, kMostHeader = 8 << 10;

http::response<http::string_body> Answer(const http::request<http::empty_body>& request,
                                         const LinkStatus& status) {
  http::response<http::string_body> r{http::status::ok, request.version()};
  r.set(http::field::content_type, "text/plain; charset=utf-8");
  r.keep_alive(false);
  const auto target = request.target();
  if (request.method() != http::verb::get) {
    r.result(http::status::method_not_allowed);
  } else if (target == "/metrics") {
    r.body() = status.Metrics();
  } else if (target == "/status") {
    r.set(http::field::content_type, "application/json");
    r.body() = ToRelaxedJson(status.Get()) + "\n";
  } else if (target == "/healthz") {
    const std::string why = status.Unwell();
    if (!why.empty()) r.result(http::status::service_unavailable);
    r.body() = (why.empty() ? "ok" : why) + "\n";
  } else {
    r.result(http::status::not_found);
    r.body() = "there are /status, /metrics and /healthz\n";
  }
  r.prepare_payload();
  return r;
}

}  // namespace

struct StatusServer::Impl {
  explicit Impl(const LinkStatus& s) : status(s) {}

  asio::awaitable<void> Serve(tcp::socket socket) {
    beast::tcp_stream stream(std::move(socket));
    ++connections;
    try {
      stream.expires_after(kRequestTime);
      beast::flat_buffer buffer(kMostHeader);
      http::request_parser<http::empty_body> parser;
      parser.header_limit(kMostHeader);
      co_await http::async_read(stream, buffer, parser, asio::use_awaitable);
      auto answer = Answer(parser.get(), status);
      stream.expires_after(kRequestTime);
      co_await http::async_write(stream, answer, asio::use_awaitable);
    } catch (const boost::system::system_error&) {
      // The client has gone, or was too slow.
    }
    --connections;
  }

  asio::awaitable<void> Accept() {
    for (;;) {
      boost::system::error_code failed;
      tcp::socket socket =
          co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, failed));
      if (failed == asio::error::operation_aborted) co_return;
      if (failed) {
        asio::steady_timer pause(io, std::chrono::milliseconds(100));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, failed));
      } else if (connections < kMostConnections) {
        asio::co_spawn(io, Serve(std::move(socket)), asio::detached);
      }
    }
  }

  const LinkStatus& status;
  asio::io_context io{1};
  tcp::acceptor acceptor{io};
  size_t connections = 0;  ///< of the thread
  std::thread thread;
};

StatusServer::StatusServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<StatusServer>> StatusServer::Start(const std::string& address, int port,
                                                          const LinkStatus& status) {
  auto impl = std::make_unique<Impl>(status);
  boost::system::error_code failed;
  const auto ip = asio::ip::make_address(address, failed);
  const tcp::endpoint at(ip, static_cast<uint16_t>(port));
  if (!failed) impl->acceptor.open(at.protocol(), failed);
  if (!failed) impl->acceptor.set_option(asio::socket_base::reuse_address(true), failed);
  if (!failed) impl->acceptor.bind(at, failed);
  if (!failed) impl->acceptor.listen(asio::socket_base::max_listen_connections, failed);
  if (failed)
    return Error{ErrorCode::kHostUnreachable, "cannot listen on " + address + ":" +
                                                  std::to_string(port) + ": " + failed.message()};
  asio::co_spawn(impl->io, impl->Accept(), asio::detached);
  impl->thread = std::thread([io = &impl->io] { io->run(); });
  return std::unique_ptr<StatusServer>(new StatusServer(std::move(impl)));
}

StatusServer::~StatusServer() {
  impl_->io.stop();
  impl_->thread.join();
}

}  // namespace mayfly
