#include "server/net/server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "query/plan/query_state.h"
#include "security/tls.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/replication_gate.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/session_store.h"
#include "server/execution/transactions.h"
#include "storage/kv/thread_scheduling.h"

namespace mayfly {

namespace asio = boost::asio;

namespace {

constexpr auto kServerTick = std::chrono::milliseconds(500);
constexpr int kTickedAtOnce = 64;
constexpr int kTurnedAway = 64;  // at once, for lack of descriptors
constexpr int64_t kTellAgainMicros = 1'000'000;
constexpr int64_t kWaitingAgainMicros = 100'000;
using TcpAcceptor = asio::basic_socket_acceptor<asio::ip::tcp, IoExecutor>;
using UnixAcceptor = asio::basic_socket_acceptor<asio::local::stream_protocol, IoExecutor>;

std::string EndpointText(const asio::ip::tcp::endpoint& e) {
  std::string host = e.address().to_string();
  if (e.address().is_v6() && e.address().to_v6().is_v4_mapped())
    host = asio::ip::make_address_v4(asio::ip::v4_mapped, e.address().to_v6()).to_string();
  else if (e.address().is_v6())
    host = "[" + host + "]";
  return host + ":" + std::to_string(e.port());
}

/// A client that has been accepted, for the limiter of new connections.
class Arrival final : public NewConnection {
 public:
  Arrival(IoThread& target, ClientSocket socket, std::string remote, std::string local,
          bool unix_socket, ConnectionGate::Ticket ticket)
      : target_(target),
        socket_(std::move(socket)),
        remote_(std::move(remote)),
        local_(std::move(local)),
        unix_socket_(unix_socket),
        ticket_(std::move(ticket)) {}
  bool Gone() override {
    pollfd p{socket_.native_handle(), POLLRDHUP, 0};
    return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  }
  void Serve() override {
    target_.Adopt(std::move(socket_), std::move(remote_), std::move(local_), unix_socket_,
                  std::move(ticket_));
  }

 private:
  IoThread& target_;
  ClientSocket socket_;
  std::string remote_, local_;
  const bool unix_socket_;
  ConnectionGate::Ticket ticket_;
};

}  // namespace

Unpackers::Unpackers() : pool_(std::max(1U, std::thread::hardware_concurrency())) {}

IoThread::IoThread(Dispatcher& dispatcher, Unpackers& unpackers, Handshakes& handshakes,
                   ConnectionLimits& limits, int index)
    : dispatcher_(dispatcher),
      unpackers_(unpackers),
      handshakes_(handshakes),
      limits_(limits),
      index_(index),
      work_(context_.get_executor()),
      timer_(context_.get_executor()) {}

IoThread::~IoThread() { Join(); }

void IoThread::Start() {
  thread_ = std::thread([this] {
    Log::SetThreadContext("io" + std::to_string(index_));
    large_memory::SetThreadBudget(&server().large_memory());
    UseShortTimeSlices();
    // Exceptions here come from a timer or an acceptor; connections handle their
    // own.
    const int64_t limit = server().io_watchdog().limit_micros;
    for (bool done = false; !done;) {
      try {
        if (limit > 0)
          RunWatched(limit);
        else
          context_.run();
        done = true;
      } catch (...) {
        LogException(server().log(), "io thread");
      }
    }
  });
}

void IoThread::Join() {
  work_.reset();
  if (thread_.joinable()) thread_.join();
}

void IoThread::RunWatched(int64_t limit_micros) {
  // The processor's time, not the clock's: on a busy machine a handler waits for its turn, and
  // run_one waits for something to do.
  auto used = [] {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
  };
  while (true) {
    running_ = nullptr;
    const int64_t begin = used();
    if (context_.run_one() == 0) return;
    const int64_t micros = used() - begin;
    if (micros <= limit_micros) continue;
    server().io_watchdog().Saw(micros);
    server().log().Write(LogSeverity::kWarning, LogComponent::kNetwork, 9000115,
                         "A handler held an io thread", BuildBson([&](BsonBuilder& b) {
                           b.Append("command", running_ != nullptr ? running_->name : "none");
                           b.Append("micros", micros);
                         }));
  }
}

void IoThread::Adopt(ClientSocket socket, std::string remote, std::string local, bool unix_socket,
                     ConnectionGate::Ticket ticket) {
  asio::post(
      context_, [this, socket = std::move(socket), remote = std::move(remote),
                 local = std::move(local), unix_socket, ticket = std::move(ticket)]() mutable {
        if (draining_) return;
        auto c = std::make_unique<Connection>(*this, std::move(socket), std::move(remote),
                                              std::move(local), unix_socket, std::move(ticket));
        asio::co_spawn(context_.get_executor(), Connection::Run(std::move(c)), asio::detached);
      });
}

void IoThread::Entered(Connection& c) {
  connections_.push_back(c);
  // The timer runs only while there are connections: an idle server sleeps. One loop: the last
  // connection may have gone and this one come before it has noticed, and two that share the timer
  // would wake each other without end.
  if (!std::exchange(ticking_, true))
    asio::co_spawn(context_.get_executor(), TickLoop(), asio::detached);
}

Awaitable<void> IoThread::TickLoop() {
  while (true) {
    timer_.expires_after(kServerTick);
    co_await timer_.async_wait(asio::as_tuple(kAwait));
    if (connections_.empty() || draining_) break;
    // Some at a time: there may be many thousands.
    int n = 0;
    for (tick_at_ = connections_.begin(); tick_at_ != connections_.end();) {
      Connection& c = *tick_at_++;
      c.Tick();
      if (++n % kTickedAtOnce == 0)
        co_await asio::post(asio::bind_executor(context_.get_executor(), kAwait));
    }
  }
  ticking_ = false;
}

void IoThread::Drain() {
  asio::post(context_, [this] {
    draining_ = true;
    timer_.cancel();
    for (Connection& c : connections_) c.Drain();
  });
}

void IoThread::Abort() {
  asio::post(context_, [this] {
    for (Connection& c : connections_) c.Abort();
  });
}

/// Above the limit: members, and administrators where they can be recognised.
static ConnectionGate MakeGate(ServerContext& context) {
  const ServerConfig& config = context.config();
  const bool access = config.access_control();
  const int64_t extra = !config.repl_set.empty() ? ConnectionGate::kExtra
                        : access                 ? ConnectionGate::kStrangers
                                                 : 0;
  return ConnectionGate(config.max_connections, extra, config.connection_room,
                        access ? ConnectionGate::kAdministrators : 0);
}

Server::Server(ServerContext& context, std::shared_ptr<ConnectionLimits> limits)
    : server_(context),
      dispatcher_(context),
      gate_(MakeGate(context)),
      limits_(std::move(limits)),
      spare_descriptor_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  const unsigned n = server_.config().EffectiveIoThreads();
  for (unsigned i = 0; i < n; ++i)
    threads_.push_back(std::make_unique<IoThread>(dispatcher_, unpackers_, handshakes_, *limits_,
                                                  static_cast<int>(i)));
}

Server::~Server() {
  Stop(0);
  if (spare_descriptor_ >= 0) ::close(spare_descriptor_);
}

void Server::Refuse(int listening) {
  if (spare_descriptor_ < 0) {
    spare_descriptor_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    return;
  }
  for (int i = 0; i < kTurnedAway; ++i) {
    ::close(std::exchange(spare_descriptor_, -1));
    const int client = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client >= 0) ::close(client);
    spare_descriptor_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (client < 0 || spare_descriptor_ < 0) return;
    server_.metrics().connections.rejected.Add();
  }
}

template <class Socket>
void Server::Welcome(IoThread& target, Socket socket) {
  constexpr bool kTcp = std::is_same_v<typename Socket::protocol_type, asio::ip::tcp>;
  boost::system::error_code ec;
  std::string remote, local;
  if constexpr (kTcp) {
    remote = EndpointText(socket.remote_endpoint(ec));
    local = EndpointText(socket.local_endpoint(ec));
  } else {
    remote = "anonymous unix socket";
    local = unix_path_;
  }
  const bool exempt = server_.config().IsExempt(kTcp ? remote : local, kTcp);
  std::optional<ConnectionGate::Ticket> ticket = gate_.Enter(remote, exempt);
  if (!ticket) {
    server_.metrics().connections.rejected.Add();
    server_.log().Write(LogSeverity::kInfo, LogComponent::kNetwork, 22942,
                        "Connection refused because there are too many open connections",
                        BuildBson([&](BsonBuilder& b) {
                          b.Append("connectionCount", server_.metrics().connections.current.Get());
                        }),
                        "listener");
    return;  // the socket closes here
  }
  if constexpr (kTcp) {
    socket.set_option(asio::ip::tcp::no_delay(true), ec);
    socket.set_option(asio::socket_base::keep_alive(true), ec);
  }
  if (kTcp && !exempt) {
    std::shared_ptr<void> share = limits_->EnterAddress(remote);
    if (share == nullptr) {
      server_.metrics().connections.rejected.Add();
      server_.log().Write(LogSeverity::kWarning, LogComponent::kNetwork, 9000133,
                          "Connection refused because there are too many of its address",
                          BuildBson([&](BsonBuilder& b) {
                            b.Append("remote", remote);
                            b.Append("maxConnectionsPerAddress", limits_->per_address());
                          }),
                          "listener");
      return;  // the socket closes here
    }
    ticket->set_counted(std::move(share));
  }
  AccessControl& access = server_.access();
  if (kTcp && access.enforced()) {
    std::shared_ptr<void> share = access.unknown_clients().Enter(
        remote, access.parameters().connections_before_login.load(std::memory_order_relaxed));
    if (share == nullptr) {
      server_.metrics().connections.rejected.Add();
      server_.log().Write(LogSeverity::kWarning, LogComponent::kNetwork, 9000132,
                          "Connection refused because too many of its address have not logged in",
                          BuildBson([&](BsonBuilder& b) { b.Append("remote", remote); }),
                          "listener");
      return;  // the socket closes here
    }
    ticket->set_unknown(std::move(share));
  }
  auto client =
      std::make_unique<Arrival>(target, ClientSocket(std::move(socket)), std::string(remote),
                                std::move(local), !kTcp, std::move(*ticket));
  switch (server_.establishment().Arrived(std::move(client), exempt)) {
    case EstablishmentLimiter::Outcome::kServed:
      break;
    case EstablishmentLimiter::Outcome::kWaits:
      // Where others wait already, the timer is set to when one of them may go.
      if (server_.establishment().figures().waiting.Get() == 1) waiting_timer_->cancel();
      break;
    case EstablishmentLimiter::Outcome::kRefused:
      TellRefused(remote);
      break;
  }
}

void Server::TellRefused(const std::string& remote) {
  const int64_t now = server_.clock().MonotonicMicros();
  if (refused_told_ != 0 && now - refused_told_ < kTellAgainMicros) return;
  refused_told_ = now;
  const EstablishmentLimiter::Figures& f = server_.establishment().figures();
  server_.log().Write(LogSeverity::kWarning, LogComponent::kNetwork, 9000141,
                      "Connections refused because too many have come in a short time",
                      BuildBson([&](BsonBuilder& b) {
                        b.Append("remote", remote).Append("refusedSoFar", f.refused.Get());
                        b.Append("waiting", f.waiting.Get());
                      }),
                      "listener");
}

Awaitable<void> Server::ServeWaiting() {
  const std::shared_ptr<IoTimer> timer = waiting_timer_;
  while (!server_.shutting_down()) {
    // A client that is served may find no memory; the others go on.
    std::optional<int64_t> next = kWaitingAgainMicros;
    try {
      next = server_.establishment().Advance();
    } catch (...) {
      LogException(server_.log(), "listener");
    }
    if (next)
      timer->expires_after(std::chrono::microseconds(*next));
    else
      timer->expires_at(IoTimer::time_point::max());
    co_await timer->async_wait(asio::as_tuple(kAwait));
  }
}

template <class Acceptor>
Awaitable<void> Server::Accept(std::shared_ptr<Acceptor> acceptor) {
  while (acceptor->is_open()) {
    IoThread& target = *threads_[next_thread_++ % threads_.size()];
    auto [error, socket] =
        co_await acceptor->async_accept(target.context(), asio::as_tuple(kAwait));
    if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
    if (!error) {
      // Without memory for it, no client is accepted now, but later again.
      try {
        Welcome(target, std::move(socket));
        continue;
      } catch (...) {
        LogException(server_.log(), "listener");
      }
    } else {
      // Usually out of file descriptors: existing connections go on.
      const int64_t now = server_.clock().MonotonicMicros();
      if (accept_error_told_ == 0 || now - accept_error_told_ >= kTellAgainMicros) {
        accept_error_told_ = now;
        server_.log().Write(
            LogSeverity::kError, LogComponent::kNetwork, 22970, "Error accepting new connection",
            BuildBson([&](BsonBuilder& b) { b.Append("error", error.message()); }), "listener");
      }
      if (error.value() == EMFILE || error.value() == ENFILE) Refuse(acceptor->native_handle());
    }
    IoTimer pause(threads_[0]->executor());
    pause.expires_after(std::chrono::milliseconds(100));
    co_await pause.async_wait(asio::as_tuple(kAwait));
  }
}

template <class Acceptor>
void Server::Serve(std::shared_ptr<Acceptor> acceptor, std::string_view address) {
  server_.log().Write(LogSeverity::kInfo, LogComponent::kNetwork, 23015, "Listening on",
                      BuildBson([&](BsonBuilder& b) { b.Append("address", address); }), "listener");
  close_acceptors_.push_back([acceptor] {
    boost::system::error_code ignored;
    acceptor->close(ignored);
  });
  asio::co_spawn(threads_[0]->executor(), Accept(acceptor), asio::detached);
}

Result<void> Server::ListenTcp(const std::string& name) {
  boost::system::error_code ec;
  asio::io_context& io = threads_[0]->context();
  std::vector<asio::ip::tcp::endpoint> endpoints;
  const auto port = static_cast<uint16_t>(port_ != 0 ? port_ : server_.config().port);
  auto address = asio::ip::make_address(name, ec);
  if (!ec) {
    endpoints.emplace_back(address, port);
  } else {
    asio::ip::tcp::resolver resolver(io);
    auto found = resolver.resolve(name, std::to_string(port), asio::ip::resolver_base::passive, ec);
    if (ec)
      return Error{ErrorCode::kBadValue, "bind_ip: cannot resolve '" + name + "': " + ec.message()};
    for (const auto& r : found)
      if (r.endpoint().address().is_v4() || server_.config().ipv6)
        endpoints.push_back(r.endpoint());
  }
  for (const auto& e : endpoints) {
    auto acceptor = std::make_shared<TcpAcceptor>(threads_[0]->executor());
    acceptor->open(e.protocol(), ec);
    if (ec && e.address().is_v6() && name == "::")
      return Ok();  // bind_ip_all on a machine without IPv6
    if (!ec) acceptor->set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec && e.address().is_v6()) acceptor->set_option(asio::ip::v6_only(true), ec);
    if (!ec) acceptor->bind(e, ec);
    if (!ec) acceptor->listen(asio::socket_base::max_listen_connections, ec);
    if (ec)
      return Error{ErrorCode::kNetworkTimeout, "Failed to set up listener on " + name + ":" +
                                                   std::to_string(port) + ": " + ec.message()};
    if (port_ == 0) {
      port_ = acceptor->local_endpoint(ec).port();
      server_.set_port(port_);  // before anybody is accepted who asks for it
    }
    Serve(acceptor, EndpointText(acceptor->local_endpoint(ec)));
  }
  return Ok();
}

Result<void> Server::ListenUnix() {
  unix_path_ = server_.config().unix_socket_prefix + "/mongodb-" + std::to_string(port_) + ".sock";
  auto fail = [&](const std::string& why) {
    std::string path;
    path.swap(unix_path_);
    return Error{ErrorCode::kFileNotOpen, path + ": " + why};
  };
  if (unix_path_.size() >= sizeof(sockaddr_un::sun_path))
    return fail("the path is too long for a socket");
  // A socket left behind by a dead process may go; one that answers is in use.
  boost::system::error_code ec;
  const asio::local::stream_protocol::endpoint endpoint(unix_path_);
  if (::access(unix_path_.c_str(), F_OK) == 0) {
    asio::basic_stream_socket<asio::local::stream_protocol, IoExecutor> probe(
        threads_[0]->executor());
    probe.connect(endpoint, ec);
    if (!ec) return fail("another server listens there");
    struct stat st {};
    if (::lstat(unix_path_.c_str(), &st) == 0 && !S_ISSOCK(st.st_mode))
      return fail("there is something that is not a socket");
    ::unlink(unix_path_.c_str());
    ec.clear();
  }
  auto acceptor = std::make_shared<UnixAcceptor>(threads_[0]->executor());
  acceptor->open(endpoint.protocol(), ec);
  if (!ec) acceptor->bind(endpoint, ec);
  if (!ec) acceptor->listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return fail(ec.message());
  ::chmod(unix_path_.c_str(), static_cast<mode_t>(server_.config().unix_socket_permissions));
  Serve(acceptor, unix_path_);
  return Ok();
}

Result<void> Server::Listen() {
  for (const std::string& address : server_.config().bind_ips) {
    MAYFLY_TRY(ListenTcp(address));
  }
  if (server_.config().unix_socket) {
    auto made = ListenUnix();
    if (!made)
      server_.log().AddStartupWarning(LogComponent::kNetwork, 9000102,
                                      "No unix socket: " + made.error().message);
  }
  return Ok();
}

void Server::Start() {
  asio::co_spawn(threads_[0]->executor(), PeriodicWork(), asio::detached);
  if (TransactionsOf(server_) != nullptr)
    asio::co_spawn(threads_[0]->executor(), WatchTransactions(), asio::detached);
  waiting_timer_ = std::make_shared<IoTimer>(threads_[0]->executor());
  close_acceptors_.push_back([timer = waiting_timer_] { timer->cancel(); });
  server_.establishment().OnChange([timer = waiting_timer_, ex = threads_[0]->executor()] {
    asio::post(ex, [timer] { timer->cancel(); });
  });
  asio::co_spawn(threads_[0]->executor(), ServeWaiting(), asio::detached);
  for (auto& t : threads_) t->Start();
  server_.log().Write(
      LogSeverity::kInfo, LogComponent::kNetwork, 23016, "Waiting for connections",
      BuildBson([&](BsonBuilder& b) {
        b.Append("port", port_).Append("ssl", server_.tls().accepts() ? "on" : "off");
      }),
      "listener");
}

namespace {

/// Writes the sessions, and removes records of those that are gone.
void RefreshStoredSessions(ServerContext& server) {
  Operation op(server.clock());
  Result<void> done = RefreshSessionRecords(server, op);
  if (done) {
    auto swept =
        SweepTransactions(server, op, server.settings().local_session_timeout_minutes * 60'000);
    if (!swept) done = swept.error();
  }
  if (!done)
    server.log().Write(
        LogSeverity::kWarning, LogComponent::kControl, 20710,
        "Failed to refresh session cache, will try again at the next refresh interval",
        BuildBson([&](BsonBuilder& b) { b.Append("error", done.error().message); }));
}

}  // namespace

Awaitable<void> Server::PeriodicWork() {
  auto timer = std::make_shared<IoTimer>(threads_[0]->executor());
  close_acceptors_.push_back([timer] { timer->cancel(); });
  // When the clock is moved, whatever that makes too old ends at once.
  server_.clock().OnJump([weak = std::weak_ptr<IoTimer>(timer), ex = threads_[0]->executor()] {
    if (weak.expired()) return;
    asio::post(ex, [weak] {
      if (auto t = weak.lock()) t->cancel();
    });
  });
  int64_t refreshed = server_.clock().MonotonicMicros();
  while (!server_.shutting_down()) {
    timer->expires_after(
        std::chrono::seconds(server_.settings().client_cursor_monitor_frequency_secs.load()));
    co_await timer->async_wait(asio::as_tuple(kAwait));
    if (server_.shutting_down()) co_return;
    const int64_t now = server_.clock().MonotonicMicros();
    const bool refresh =
        now - refreshed >= server_.settings().logical_session_refresh_millis * 1000 &&
        server_.has_storage();
    if (refresh) refreshed = now;
    server_.workers().Post([&server = server_, refresh] {
      if (refresh) RefreshStoredSessions(server);
      server.cursors().Sweep(server.settings().cursor_timeout_millis);
      server.snapshot_reads().Sweep();
      if (server.has_storage())
        QueryState::Of(server.storage())
            .held.Sweep(server.clock(), server.settings().series_cursor_life_secs);
      if (AuditLog* audit = server.audit()) audit->Check();  // what waits is tried again
      // What runs uses its session.
      std::vector<std::string> running;
      server.operations().ForEach([&](const ClientSlot::View& v) {
        if (!v.session.empty()) running.emplace_back(v.session);
      });
      for (const std::string& id : running)
        if (SessionPtr s = server.sessions().Find(id)) s->Touch(server.clock().Now());
      server.sessions().Sweep(server.clock().Now(),
                              server.settings().local_session_timeout_minutes * 60'000);
    });
  }
}

Awaitable<void> Server::WatchTransactions() {
  auto timer = std::make_shared<IoTimer>(threads_[0]->executor());
  close_acceptors_.push_back([timer] { timer->cancel(); });
  while (!server_.shutting_down()) {
    const TransactionParameters& limits = server_.snapshot_reads().transaction_parameters();
    timer->expires_after(std::chrono::milliseconds(limits.LookEveryMillis()));
    co_await timer->async_wait(asio::as_tuple(kAwait));
    if (server_.shutting_down()) co_return;
    server_.workers().Post([&server = server_] { TransactionsOf(server)->Sweep(); });
  }
}

void Server::Stop(int grace_millis) {
  if (stopped_) return;
  stopped_ = true;
  server_.set_shutting_down();
  server_.establishment().OnChange({});
  asio::post(threads_[0]->context(), [this] {
    for (auto& close : close_acceptors_) close();
  });
  for (auto& t : threads_) t->Drain();
  // Operations that only wait (awaitable hello, tailable cursors) have nothing to finish.
  server_.operations().KillWhere([](const ClientSlot::View& v) { return v.waiting; },
                                 ErrorCode::kInterruptedAtShutdown);
  // By a clock: on a busy machine each pause takes longer than it says, and the process would be
  // ended by its limit, with the store open.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(grace_millis);
  while (server_.metrics().connections.current > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server_.operations().KillWhere([](const ClientSlot::View& v) { return v.waiting; },
                                   ErrorCode::kInterruptedAtShutdown);
  }
  server_.operations().KillAll(ErrorCode::kInterruptedAtShutdown);
  // A client that does not read its replies would keep the process for ever.
  for (auto& t : threads_) t->Abort();
  for (auto& t : threads_) t->Join();
  server_.establishment().Clear();  // while the sockets' threads are still there
  unpackers_.Join();
  handshakes_.Join();
  server_.workers().Join();
  server_.cursors().KillAll();
  if (TransactionsOf(server_) != nullptr)
    TransactionsOf(server_)->AbortAll(TransactionEnd::kShutdown);
  if (!unix_path_.empty()) ::unlink(unix_path_.c_str());
}

}  // namespace mayfly
