#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <string>

#include "protocol/error.h"
#include "replication/handed_connection.h"
#include "security/tls_session.h"

namespace mayfly {

using LinkExecutor = boost::asio::io_context::executor_type;
/// co_await on it.
inline constexpr boost::asio::use_awaitable_t<LinkExecutor> kLinkAwait;
using LinkSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, LinkExecutor>;
template <class T>
using LinkTask = boost::asio::awaitable<T, LinkExecutor>;

/// A connected socket that may speak TLS. Plain, it costs one test of a pointer: readers use the
/// socket itself unless encrypted(). Threads: its executor's. A read and a write may wait at the
/// same time.
class ByteStream {
 public:
  explicit ByteStream(LinkSocket socket) : socket_(std::move(socket)) {}

  LinkSocket& socket() { return socket_; }
  bool encrypted() const { return tls_ != nullptr; }
  TlsSession* tls() { return tls_.get(); }
  const TlsSession* tls() const { return tls_.get(); }
  /// From now on everything goes through `tls`, which is over this socket. The socket must not
  /// block.
  void set_tls(std::unique_ptr<TlsSession> tls) { tls_ = std::move(tls); }

  /// Sends as much as possible without waiting. would_block: the same bytes again once the socket
  /// is writable, perhaps with more behind them.
  size_t WriteSome(const char* data, size_t size, boost::system::error_code& error) {
    if (!tls_) [[likely]]
      return socket_.write_some(boost::asio::buffer(data, size), error);
    return WriteTls(data, size, error);
  }
  /// The result of a read: at least a byte, or an error.
  struct Came {
    boost::system::error_code error;
    size_t bytes = 0;
  };
  /// Waits for bytes. Yields to others of the thread if there are some already, like a socket.
  /// REQUIRES: encrypted().
  LinkTask<Came> ReadTls(char* data, size_t size);
  /// Waits until a read gives something at once, without room to read into. REQUIRES: encrypted().
  LinkTask<boost::system::error_code> WaitTls();
  /// Does the handshake on this thread. REQUIRES: encrypted(). Errors: HostUnreachable 6, with what
  /// TLS says.
  LinkTask<Result<void>> Handshake();
  /// Waits for the socket as a step of TLS requests. REQUIRES: it requests something.
  LinkTask<boost::system::error_code> WaitFor(TlsSession::Outcome wanted);
  /// The connection without this stream, which is then of no use.
  HandedConnection Release();

 private:
  size_t WriteTls(const char* data, size_t size, boost::system::error_code& error);
  LinkSocket socket_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace mayfly
