#pragma once
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/intrusive/list.hpp>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/dispatch/io_timer.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"
#include "server/net/connection_limits.h"
#include "server/net/dispatcher.h"
#include "server/net/handshakes.h"
#include "server/net/unpackers.h"

namespace mayfly {

/// One io thread with an io_context that nobody else runs, and the connections that live on it.
class IoThread {
 public:
  IoThread(Dispatcher& dispatcher, Unpackers& unpackers, Handshakes& handshakes,
           ConnectionLimits& limits, int index);
  ~IoThread();
  /// Start makes the thread, once. Join lets it end when nothing is left to do on it, and waits for
  /// that; harmless when repeated.
  void Start();
  void Join();

  boost::asio::io_context& context() { return context_; }
  IoExecutor executor() { return context_.get_executor(); }
  Dispatcher& dispatcher() { return dispatcher_; }
  ServerContext& server() { return dispatcher_.server(); }
  /// For pure computation: messages are unpacked and checked there.
  Unpackers& unpackers() { return unpackers_; }
  Handshakes& handshakes() { return handshakes_; }
  ConnectionLimits& limits() { return limits_; }
  /// From any thread.
  void Adopt(ClientSocket socket, std::string remote, std::string local, bool unix_socket,
             ConnectionGate::Ticket ticket);
  void Drain();
  /// After Drain: remaining connections are not waited for.
  void Abort();
  bool draining() const { return draining_; }

 private:
  friend class Connection;
  void Entered(Connection& c);  ///< it is served from here on; on this thread
  Awaitable<void> TickLoop();
  /// Runs handlers until there are none to come, and reports each that takes more than so much of
  /// the processor (parameter ioThreadWatchdogMicros).
  void RunWatched(int64_t limit_micros);
  /// The turn of one connection in microseconds while `yielding_` others wait. All turns of a round
  /// together should not take longer than one turn alone.
  int64_t SliceMicros() const { return kSliceMicros / (1 + yielding_); }
  static constexpr int64_t kSliceMicros = 500;

  Dispatcher& dispatcher_;
  Unpackers& unpackers_;
  Handshakes& handshakes_;
  ConnectionLimits& limits_;
  const int index_;
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<IoExecutor> work_;
  boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                    boost::asio::wait_traits<std::chrono::steady_clock>, IoExecutor>
      timer_;
  boost::intrusive::list<Connection> connections_;
  boost::intrusive::list<Connection>::iterator tick_at_ =
      connections_.end();  ///< next for TickLoop
  int64_t yielding_ =
      0;  ///< connections that have yielded to others and still wait for their next turn
  int idle_looks_ = 0;                   ///< Connection::ReadIdleLogin that are under way
  const CommandRow* running_ = nullptr;  ///< the command that this handler began or went on with
  bool draining_ = false;
  bool ticking_ = false;  ///< TickLoop runs
  std::thread thread_;
};

/// Listens, hands sockets to io threads, runs the periodic work (idle cursors, sessions), and shuts
/// everything down in order.
class Server {
 public:
  explicit Server(ServerContext& context,
                  std::shared_ptr<ConnectionLimits> limits = std::make_shared<ConnectionLimits>());
  ~Server();

  /// Binds every address; who connects waits. Errors: a TCP address that cannot be bound (with
  /// the reason); a unix socket that cannot be bound is only a warning.
  Result<void> Listen();
  /// Starts the threads: connections are accepted and served. REQUIRES: Listen has succeeded, and
  /// what commands ask (the replica set) has started.
  void Start();
  /// Stops accepting, lets running operations finish (those that only wait are ended with
  /// InterruptedAtShutdown; after `grace_millis` all of them), closes every connection, and returns
  /// when all threads are done.
  void Stop(int grace_millis);
  /// The port in use: differs from the configured one when that was 0.
  int port() const { return port_; }
  /// The first io thread's: timers and whatever else belongs to no connection.
  IoExecutor executor() { return threads_[0]->executor(); }

 private:
  template <class Acceptor>
  Awaitable<void> Accept(std::shared_ptr<Acceptor> acceptor);
  /// Accepts from now on; `address` is for the log.
  template <class Acceptor>
  void Serve(std::shared_ptr<Acceptor> acceptor, std::string_view address);
  /// Gives a new client to an io thread, unless there are too many.
  template <class Socket>
  void Welcome(IoThread& target, Socket socket);
  /// The limiter of new connections has refused one; the log says so once a second.
  void TellRefused(const std::string& remote);
  /// Serves the connections that the limiter lets wait, when it is their turn.
  Awaitable<void> ServeWaiting();
  /// No descriptor is left for new clients: waiting ones are disconnected, not left to wait, with
  /// the one descriptor kept for this.
  void Refuse(int listening);
  Awaitable<void> PeriodicWork();
  /// Ends transactions that are past their lifetime.
  Awaitable<void> WatchTransactions();
  Result<void> ListenTcp(const std::string& address);
  Result<void> ListenUnix();

  ServerContext& server_;
  Dispatcher dispatcher_;
  ConnectionGate gate_;
  const std::shared_ptr<ConnectionLimits> limits_;
  Unpackers unpackers_;
  Handshakes handshakes_;
  int spare_descriptor_ = -1;
  int64_t accept_error_told_ = 0;  ///< MonotonicMicros
  int64_t refused_told_ = 0;       ///< MonotonicMicros
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::vector<std::function<void()>> close_acceptors_;
  std::shared_ptr<IoTimer> waiting_timer_;  ///< ServeWaiting's, which cancelling wakes; from Start
  std::string unix_path_;
  size_t next_thread_ = 0;
  int port_ = 0;
  bool stopped_ = false;
};

}  // namespace mayfly
