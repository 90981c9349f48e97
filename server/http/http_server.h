#pragma once
#include <memory>

#include "protocol/error.h"

namespace mayfly {

class ServerContext;

/// The HTTP endpoint: `/metrics` (Prometheus), `/healthz`, `/readyz`, the expiry page at `/` and
/// what it is made of. One thread with an io_context of its own, so that a browser never waits on,
/// nor holds up, the threads of database clients; commands it runs go to the worker pool.
///
/// Actions (POST) are taken from loopback addresses only and only from the page itself: the Origin
/// must have the scheme, host and port by which the page was reached, and the Host must be a
/// loopback name, so that no other site open in the same browser can send one.
///
/// Threads: Start and Stop from main.
class HttpServer {
 public:
  explicit HttpServer(ServerContext& server);
  ~HttpServer();
  /// Binds mayfly.httpBindIp : mayfly.httpPort and begins to serve. Does nothing when the port is
  /// 0. Errors: the address cannot be bound. A default port that is taken is only a warning in the
  /// log: several servers on one machine are common.
  Result<void> Start();
  /// Closes every connection and waits for the thread. May be called twice.
  void Stop();
  int port() const;  ///< in use; 0: not listening

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mayfly
