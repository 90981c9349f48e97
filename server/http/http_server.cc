#include "server/http/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/algorithm/string/case_conv.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/detect_ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <list>
#include <set>
#include <thread>

#include "security/tls.h"
#include "security/tls_handshake_limit.h"
#include "server/dispatch/config.h"
#include "server/dispatch/io_timer.h"
#include "server/dispatch/server_context.h"
#include "server/http/http_api.h"
#include "server/http/http_login.h"
#include "server/http/request_origin.h"
#include "server/net/connection_gate.h"

namespace mayfly {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;

namespace {

using Stream = beast::basic_stream<asio::ip::tcp, IoExecutor>;
/// TLS over a Stream that another one owns.
using SecureStream = asio::ssl::stream<Stream&>;
using Acceptor = asio::basic_socket_acceptor<asio::ip::tcp, IoExecutor>;
constexpr auto kIdle = std::chrono::seconds(30);
constexpr auto kHandshake = std::chrono::seconds(10);
constexpr auto kGoodbye = std::chrono::seconds(1);
constexpr auto kHttpTick = std::chrono::seconds(1);
/// Password checks, for each possible connection: closed connections may still wait.
constexpr size_t kLoginsOfPlace = 4;
constexpr uint64_t kMaxBody = 16 * 1024, kMaxHeader = 16 * 1024;

/// Headers of every answer: no other site may frame or read the page, and the page loads nothing
/// from elsewhere.
template <class Body>
void CommonHeaders(http::response<Body>& r) {
  r.set(http::field::server, "Mayfly");
  r.set(http::field::cache_control, "no-store");
  r.set("X-Content-Type-Options", "nosniff");
  r.set("X-Frame-Options", "DENY");
  r.set("Referrer-Policy", "no-referrer");
  r.set("Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

}  // namespace

namespace {
int64_t OpenFileLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return INT32_MAX;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT32_MAX));
}

HttpAnswer RefusedHost(int status) {
  return {.status = status,
          .type = "text/plain",
          .body = status == 400 ? "Host is missing\n"
                                : "unknown name in Host: use an IP address or localhost, or start "
                                  "the server with --httpHosts and the name\n"};
}
/// The page and what it shows are about expiry; the metrics are about the whole server.
bool MaySee(const UserAccess& access, std::string_view path) {
  return access.privileges.AllowsOnCluster(path == "/metrics" ? ActionSet{Action::serverStatus}
                                                              : ActionSet{Action::viewExpiry});
}

/// Where a connection comes from and where it goes.
struct ConnectionEnds {
  asio::ip::tcp::endpoint peer;
  HttpOrigin origin;
  HttpCertificate certificate;
  bool tls = false;
};
}  // namespace

struct HttpServer::Impl {
  explicit Impl(ServerContext& s)
      : server(s),
        max_connections(static_cast<size_t>(HttpConnections(OpenFileLimit()))),
        max_event_streams(max_connections / 2),
        hosts(KnownNames(s.config())),
        api(s, io.get_executor()),
        logins(s, io.get_executor()) {}
  /// Names of this endpoint, lower case.
  static std::vector<std::string> KnownNames(const ServerConfig& config);

  Result<void> Listen(const std::string& name);
  Awaitable<void> Accept(std::shared_ptr<Acceptor> acceptor);
  Awaitable<void> Serve(std::shared_ptr<Stream> stream);
  Awaitable<void> ServeTls(Stream& stream, beast::flat_buffer& buffer, ConnectionEnds& ends);
  /// Requests and answers over `stream`, which is `plain` or over it.
  template <class S>
  Awaitable<void> Requests(S& stream, Stream& plain, beast::flat_buffer& buffer,
                           ConnectionEnds& ends);
  /// Who asks; null: nobody.
  Awaitable<UserAccessPtr> WhoAsks(const HttpRequest& request, Stream& plain, ConnectionEnds& ends);
  template <class S>
  Awaitable<void> Send(S& stream, Stream& plain, const HttpAnswer& answer);
  Awaitable<HttpAnswer> Answer(const HttpRequest& request, const ConnectionEnds& ends,
                               UserAccessPtr access);
  template <class S>
  Awaitable<void> StreamEvents(S& stream, Stream& plain, std::string query, UserAccessPtr access);
  Awaitable<void> TickLoop();

  /// A connection while its password is looked at, which may have to wait.
  struct LoggingIn {
    LoggingIn(Impl& of, Stream* s) : impl(of), stream(s) {
      ++impl.logging_in;
      impl.asking.insert(stream);
    }
    ~LoggingIn() {
      --impl.logging_in;
      impl.asking.erase(stream);
    }
    LoggingIn(const LoggingIn&) = delete;
    Impl& impl;
    Stream* const stream;
  };

  ServerContext& server;
  const size_t max_connections;
  const size_t max_event_streams;  ///< the rest is for those who only ask
  const std::vector<std::string> hosts;
  asio::io_context io{1};
  HttpApi api;
  HttpLogins logins;
  std::vector<std::shared_ptr<Acceptor>> acceptors;
  std::list<std::weak_ptr<Stream>> streams;  ///< the oldest first
  /// Those of which the next request is awaited, or that wait for their login.
  std::set<const Stream*> asking;
  size_t logging_in = 0;
  std::shared_ptr<IoTimer> tick;
  ActivityHistory::Sample last_sample;
  uint64_t ticks = 0;
  std::list<IoTimer*> event_timers;  ///< of streams that wait for their next event
  std::thread thread;
  int port = 0;
  bool stopping = false;
};

std::vector<std::string> HttpServer::Impl::KnownNames(const ServerConfig& config) {
  std::vector<std::string> names = config.http_bind_ips;
  const BsonValue given = config.parsed.view().FindPath("mayfly.httpHosts");
  auto add = [&](std::string_view list) {
    while (!list.empty()) {
      const size_t comma = std::min(list.find(','), list.size());
      if (comma > 0) names.emplace_back(list.substr(0, comma));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
  };
  if (given.IsString()) add(given.String());
  if (given.IsArray())
    for (const BsonElement& e : given.Document())
      if (e.value.IsString()) add(e.value.String());
  boost::system::error_code ec;
  if (std::string own = asio::ip::host_name(ec); !ec && !own.empty())
    names.push_back(std::move(own));
  for (std::string& n : names) boost::algorithm::to_lower(n);
  return names;
}

Result<void> HttpServer::Impl::Listen(const std::string& name) {
  boost::system::error_code ec;
  asio::ip::tcp::resolver resolver(io);
  const auto found = resolver.resolve(name, std::to_string(server.config().http_port),
                                      asio::ip::resolver_base::passive, ec);
  if (ec)
    return Error{ErrorCode::kBadValue,
                 "httpBindIp: cannot resolve '" + name + "': " + ec.message()};
  for (const auto& r : found) {
    const asio::ip::tcp::endpoint e = r.endpoint();
    if (e.address().is_v6() && !server.config().ipv6 && name == "localhost") continue;
    auto acceptor = std::make_shared<Acceptor>(io.get_executor());
    acceptor->open(e.protocol(), ec);
    if (!ec) acceptor->set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec && e.address().is_v6()) acceptor->set_option(asio::ip::v6_only(true), ec);
    if (!ec) acceptor->bind(e, ec);
    if (!ec) acceptor->listen(asio::socket_base::max_listen_connections, ec);
    // Not in the system's words: test harnesses take "address already in use" in the log for the
    // end of the server, which goes on without the endpoint.
    if (ec)
      return Error{
          ErrorCode::kNetworkTimeout,
          "cannot listen on " + name + ":" + std::to_string(server.config().http_port) +
              " for HTTP: " +
              (ec == asio::error::address_in_use ? "another process has this port" : ec.message())};
    port = acceptor->local_endpoint(ec).port();
    acceptors.push_back(acceptor);
  }
  return Ok();
}

Awaitable<void> HttpServer::Impl::Accept(std::shared_ptr<Acceptor> acceptor) {
  while (!stopping) {
    auto stream = std::make_shared<Stream>(io.get_executor());
    auto [ec] = co_await acceptor->async_accept(stream->socket(), asio::as_tuple(kAwait));
    if (ec == asio::error::operation_aborted || stopping) co_return;
    if (ec) {
      // Out of descriptors: give their holders time to end.
      IoTimer pause(io.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::as_tuple(kAwait));
      continue;
    }
    streams.remove_if([](const std::weak_ptr<Stream>& s) { return s.expired(); });
    if (streams.size() >= max_connections) {
      // The oldest connection without a request makes room.
      const auto silent = std::find_if(
          streams.begin(), streams.end(),
          [&](const std::weak_ptr<Stream>& s) { return asking.contains(s.lock().get()); });
      if (silent == streams.end()) continue;
      silent->lock()->close();
      streams.erase(silent);
    }
    streams.push_back(stream);
    asio::co_spawn(io.get_executor(), Serve(std::move(stream)), asio::detached);
  }
}

Awaitable<HttpAnswer> HttpServer::Impl::Answer(const HttpRequest& request,
                                               const ConnectionEnds& ends, UserAccessPtr access) {
  const auto target = request.target();
  const std::string_view whole(target.data(), target.size());
  const size_t mark = whole.find('?');
  const std::string_view path = whole.substr(0, mark);
  const std::string_view query =
      mark == std::string_view::npos ? std::string_view() : whole.substr(mark + 1);
  if (request.method() == http::verb::get || request.method() == http::verb::head)
    co_return co_await api.Get(path, query);
  if (request.method() != http::verb::post || path != "/api/action")
    co_return HttpAnswer{.status = 405, .type = "text/plain", .body = "GET only\n"};
  auto text = [&](http::field f) {
    const auto v = request[f];
    return std::string_view(v.data(), v.size());
  };
  ActionSender sender;
  sender.peer = ends.peer.address();
  sender.tls = ends.tls;
  sender.host = text(http::field::host);
  if (request.count(http::field::origin) == 1) sender.origin = text(http::field::origin);
  sender.content_type = text(http::field::content_type);
  const std::string_view refused = RefuseAction(sender);
  if (!refused.empty())
    co_return HttpAnswer{.status = 403, .type = "text/plain", .body = std::string(refused) + "\n"};
  co_return co_await api.Act(request.body(), ends.origin, std::move(access));
}

Awaitable<void> HttpServer::Impl::Serve(std::shared_ptr<Stream> stream) {
  boost::system::error_code ec;
  auto text = [](const asio::ip::tcp::endpoint& e) {
    const std::string ip = e.address().to_string();
    return (e.address().is_v6() ? "[" + ip + "]" : ip) + ":" + std::to_string(e.port());
  };
  ConnectionEnds ends;
  ends.peer = stream->socket().remote_endpoint(ec);
  ends.origin.remote = text(ends.peer);
  ends.origin.local = text(stream->socket().local_endpoint(ec));
  beast::flat_buffer buffer(kMaxHeader + kMaxBody);
  // As on the port of the drivers: the first bytes say whether it is TLS.
  bool tls = false;
  if (server.tls().accepts()) {
    stream->expires_after(kHandshake);
    asking.insert(stream.get());
    auto [failed, found] =
        co_await beast::async_detect_ssl(*stream, buffer, asio::as_tuple(kAwait));
    asking.erase(stream.get());
    if (failed) co_return;
    tls = found;
  }
  if (tls) {
    co_await ServeTls(*stream, buffer, ends);
  } else if (server.tls().accepts_plain()) {
    co_await Requests(*stream, *stream, buffer, ends);
  } else {
    HttpAnswer answer;
    answer.status = 400;
    answer.type = "text/plain";
    answer.body = "this endpoint speaks HTTPS alone: ask with https://\n";
    co_await Send(*stream, *stream, answer);
  }
  stream->socket().shutdown(asio::ip::tcp::socket::shutdown_send, ec);
}

Awaitable<void> HttpServer::Impl::ServeTls(Stream& stream, beast::flat_buffer& buffer,
                                           ConnectionEnds& ends) {
  const std::shared_ptr<SSL_CTX> context = server.tls().HttpContext();
  SSL* ssl = SSL_new(context.get());
  if (ssl == nullptr) co_return;
  HandshakeLimit limit;
  SecureStream secure(stream, ssl);
  stream.expires_after(kHandshake);
  asking.insert(&stream);
  auto [failed, used] = co_await secure.async_handshake(asio::ssl::stream_base::server,
                                                        buffer.data(), asio::as_tuple(kAwait));
  asking.erase(&stream);
  std::string why = failed ? failed.message() : std::string();
  if (!failed) {
    Result<TlsPeer> peer = PeerOf(ssl);
    if (peer)
      ends.certificate.peer = std::move(peer).value();
    else
      why = peer.error().message;
  }
  if (!why.empty()) {
    server.tls().counters().failed.fetch_add(1, std::memory_order_relaxed);
    server.log().Write(LogSeverity::kInfo, LogComponent::kNetwork, 9000121,
                       "A TLS handshake with the HTTP endpoint failed",
                       BuildBson([&](BsonBuilder& b) {
                         b.Append("remote", ends.origin.remote).Append("error", why);
                       }));
    co_return;
  }
  limit.Watch(ssl);
  buffer.consume(used);
  ends.tls = true;
  co_await Requests(secure, stream, buffer, ends);
  stream.expires_after(kGoodbye);
  co_await secure.async_shutdown(asio::as_tuple(kAwait));
}

template <class S>
Awaitable<void> HttpServer::Impl::Send(S& stream, Stream& plain, const HttpAnswer& answer) {
  http::response<http::string_body> r(static_cast<http::status>(answer.status), 11);
  CommonHeaders(r);
  r.set(http::field::content_type, answer.type);
  r.keep_alive(false);
  r.body() = answer.body;
  r.prepare_payload();
  plain.expires_after(kIdle);
  co_await http::async_write(stream, r, asio::as_tuple(kAwait));
}

Awaitable<UserAccessPtr> HttpServer::Impl::WhoAsks(const HttpRequest& request, Stream& plain,
                                                   ConnectionEnds& ends) {
  if (logging_in >= kLoginsOfPlace * max_connections) co_return nullptr;
  const auto given = request[http::field::authorization];
  const std::string_view authorization(given.data(), given.size());
  // A connection delayed for wrong passwords makes room for the next one, like a silent one.
  const LoggingIn here(*this, &plain);
  co_return co_await logins.Find(authorization, ends.origin, ends.certificate);
}

template <class S>
Awaitable<void> HttpServer::Impl::Requests(S& stream, Stream& plain, beast::flat_buffer& buffer,
                                           ConnectionEnds& ends) {
  while (!stopping) {
    http::request_parser<http::string_body> parser;
    parser.body_limit(kMaxBody);
    parser.header_limit(kMaxHeader);
    plain.expires_after(kIdle);
    asking.insert(&plain);
    auto [failed, n] =
        co_await http::async_read_header(stream, buffer, parser, asio::as_tuple(kAwait));
    // Beast's parser ends the process by an assertion when a chunked body comes in very small
    // parts. Nobody needs one here.
    const bool chunked = !failed && parser.chunked();
    if (!failed && !chunked)
      std::tie(failed, n) =
          co_await http::async_read(stream, buffer, parser, asio::as_tuple(kAwait));
    asking.erase(&plain);
    if (chunked) {
      HttpAnswer answer;
      answer.status = 411;
      answer.type = "text/plain";
      answer.body = "send Content-Length: chunked bodies are not taken\n";
      co_await Send(stream, plain, answer);
      break;
    }
    if (failed == http::error::body_limit || failed == http::error::header_limit) {
      http::response<http::string_body> r(http::status::payload_too_large, 11);
      CommonHeaders(r);
      r.keep_alive(false);
      r.prepare_payload();
      co_await http::async_write(stream, r, asio::as_tuple(kAwait));
      break;
    }
    if (failed) break;
    const HttpRequest request = parser.release();
    const auto target = request.target();
    const std::string_view whole(target.data(), target.size());
    const size_t mark = std::min(whole.find('?'), whole.size());
    const auto host = request[http::field::host];
    // HTTP/1.0 has no Host, and no browser speaks it.
    int refused = 0;
    if (host.empty() ? request.version() > 10 : !KnownHost({host.data(), host.size()}, hosts))
      refused = host.empty() ? 400 : 421;
    const std::string_view path = whole.substr(0, mark);
    UserAccessPtr access;
    if (refused == 0 && server.access().enforced() && path != "/healthz" && path != "/readyz") {
      access = co_await WhoAsks(request, plain, ends);
      refused = access == nullptr ? 401 : MaySee(*access, path) ? 0 : 403;
    }
    const bool events = path == "/events" && request.method() == http::verb::get;
    if (events && event_timers.size() < max_event_streams && refused == 0) {
      co_await StreamEvents(stream, plain,
                            std::string(whole.substr(std::min(mark + 1, whole.size()))), access);
      break;
    }
    HttpAnswer answer{.status = 503, .type = "text/plain", .body = "too many event streams\n"};
    if (refused == 401 || refused == 403)
      answer = {.status = refused,
                .type = "text/plain",
                .body = refused == 401
                            ? "log in as a user of the database admin, or by certificate\n"
                            : "the user may not see this: it takes a role such as "
                              "clusterMonitor, or expiryAdmin for all but /metrics\n"};
    else if (refused != 0)
      answer = RefusedHost(refused);
    else if (!events)
      answer = co_await Answer(request, ends, access);
    http::response<http::string_body> r(static_cast<http::status>(answer.status),
                                        request.version());
    CommonHeaders(r);
    r.set(http::field::content_type, answer.type);
    if (answer.status == 401 && path == "/metrics" && logins.takes_tokens())
      r.insert(http::field::www_authenticate, "Bearer realm=\"Mayfly\"");
    if (answer.status == 401)
      r.insert(http::field::www_authenticate, "Basic realm=\"Mayfly\", charset=\"UTF-8\"");
    r.keep_alive(request.keep_alive() && !events);
    r.body() = std::move(answer.body);
    r.prepare_payload();
    if (request.method() == http::verb::head) r.body().clear();
    plain.expires_after(kIdle);
    auto [write_failed, written] = co_await http::async_write(stream, r, asio::as_tuple(kAwait));
    if (write_failed || !r.keep_alive()) break;
  }
}

template <class S>
Awaitable<void> HttpServer::Impl::StreamEvents(S& stream, Stream& plain, std::string query,
                                               UserAccessPtr access) {
  http::response<http::empty_body> r(http::status::ok, 11);
  CommonHeaders(r);
  r.set(http::field::content_type, "text/event-stream");
  r.keep_alive(false);
  http::response_serializer<http::empty_body> head(r);
  plain.expires_after(kIdle);
  auto [failed, n] = co_await http::async_write_header(stream, head, asio::as_tuple(kAwait));
  if (failed) co_return;
  IoTimer timer(io.get_executor());
  const auto place = event_timers.insert(event_timers.end(), &timer);
  // After a change of any user or role the viewer must ask again, which browsers do by themselves.
  auto unchanged = [&] {
    return access == nullptr || access->generation == server.access().users().generation();
  };
  while (!stopping && unchanged()) {
    const std::string json = co_await api.LiveStatus(last_sample, query);
    const std::string event = "data: " + json + "\n\n";
    plain.expires_after(kIdle);
    auto [write_failed, written] =
        co_await asio::async_write(stream, asio::buffer(event), asio::as_tuple(kAwait));
    if (write_failed) break;
    timer.expires_after(kHttpTick);
    co_await timer.async_wait(asio::as_tuple(kAwait));
  }
  event_timers.erase(place);
}

Awaitable<void> HttpServer::Impl::TickLoop() {
  while (!stopping) {
    last_sample = api.Tick();
    tick->expires_after(kHttpTick);
    co_await tick->async_wait(asio::as_tuple(kAwait));
  }
}

HttpServer::HttpServer(ServerContext& server) : impl_(std::make_unique<Impl>(server)) {}
HttpServer::~HttpServer() { Stop(); }
int HttpServer::port() const { return impl_->port; }

Result<void> HttpServer::Start() {
  Impl& i = *impl_;
  const ServerConfig& config = i.server.config();
  if (config.http_port == 0) return Ok();
  MAYFLY_TRY(i.logins.Start());
  for (const std::string& name : config.http_bind_ips) {
    auto listening = i.Listen(name);
    if (listening) continue;
    i.acceptors.clear();
    i.port = 0;
    if (config.http_port_given) return listening;
    i.server.log().AddStartupWarning(LogComponent::kNetwork, 9000110,
                                     "No HTTP endpoint: " + listening.error().message);
    return Ok();
  }
  i.server.log().Write(LogSeverity::kInfo, LogComponent::kNetwork, 9000111, "HTTP endpoint",
                       BuildBson([&](BsonBuilder& b) {
                         b.Append("url", (i.server.tls().accepts_plain() ? "http://" : "https://") +
                                             config.http_bind_ips.front() + ":" +
                                             std::to_string(i.port) + "/");
                       }));
  for (auto& a : i.acceptors) asio::co_spawn(i.io.get_executor(), i.Accept(a), asio::detached);
  i.tick = std::make_shared<IoTimer>(i.io.get_executor());
  asio::co_spawn(i.io.get_executor(), i.TickLoop(), asio::detached);
  i.thread = std::thread([&i] {
    Log::SetThreadContext("http");
    large_memory::SetThreadBudget(&i.server.large_memory());
    // An exception ends the connection it came from, never the process.
    for (bool done = false; !done;) {
      try {
        i.io.run();
        done = true;
      } catch (...) {
        LogException(i.server.log(), "http");
      }
    }
  });
  return Ok();
}

void HttpServer::Stop() {
  Impl& i = *impl_;
  if (!i.thread.joinable()) return;
  asio::post(i.io, [&i] {
    i.stopping = true;
    boost::system::error_code ignored;
    for (auto& a : i.acceptors) a->close(ignored);
    i.tick->cancel();
    for (IoTimer* t : i.event_timers) t->cancel();
    for (auto& weak : i.streams)
      if (auto stream = weak.lock()) stream->close();
  });
  i.thread.join();
}

}  // namespace mayfly
