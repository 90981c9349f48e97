#include "replication/byte_stream.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>

namespace mayfly {
namespace asio = boost::asio;
namespace {

/// Records taken in one read. A hostile client may send records of one byte each.
constexpr int kMaxRecords = 64;

}  // namespace

LinkTask<boost::system::error_code> ByteStream::WaitFor(TlsSession::Outcome wanted) {
  const auto what = wanted == TlsSession::Outcome::kWantWrite ? asio::socket_base::wait_write
                                                              : asio::socket_base::wait_read;
  auto [error] = co_await socket_.async_wait(what, asio::as_tuple(kLinkAwait));
  co_return error;
}

LinkTask<boost::system::error_code> ByteStream::WaitTls() {
  if (tls_->MayHaveMore()) co_return boost::system::error_code();
  co_return co_await WaitFor(TlsSession::Outcome::kWantRead);
}

LinkTask<ByteStream::Came> ByteStream::ReadTls(char* data, size_t size) {
  Came came;
  bool look = tls_->MayHaveMore();
  if (look) co_await asio::post(asio::bind_executor(socket_.get_executor(), kLinkAwait));
  while (!came.error) {
    if (!look) {
      // One asynchronous read by Asio. A separate wait and read would be one more system call.
      auto [error, n] = co_await socket_.async_read_some(
          asio::buffer(tls_->RoomForMore(), TlsSession::Room()), asio::as_tuple(kLinkAwait));
      came.error = error;
      if (error) break;
      tls_->Came(n);
    }
    TlsSession::Step step;
    for (int n = 0; n < kMaxRecords && came.bytes < size; ++n) {
      step = tls_->Read(data + came.bytes, size - came.bytes);
      if (step.outcome != TlsSession::Outcome::kDone) break;
      came.bytes += step.bytes;
      if (!tls_->MayHaveMore()) break;
    }
    if (came.bytes > 0) break;
    look = step.outcome == TlsSession::Outcome::kWantWrite;
    if (step.outcome == TlsSession::Outcome::kClosed)
      came.error = asio::error::eof;
    else if (step.outcome == TlsSession::Outcome::kFailed)
      came.error = asio::error::connection_aborted;
    else if (look)
      came.error = co_await WaitFor(step.outcome);
  }
  co_return came;
}

size_t ByteStream::WriteTls(const char* data, size_t size, boost::system::error_code& error) {
  const TlsSession::Step step = tls_->Write(data, size);
  if (step.outcome == TlsSession::Outcome::kWantWrite)
    error = asio::error::would_block;
  else if (step.outcome != TlsSession::Outcome::kDone)
    error = asio::error::connection_aborted;
  else
    error = {};
  return step.bytes;
}

LinkTask<Result<void>> ByteStream::Handshake() {
  for (;;) {
    const TlsSession::Step step = tls_->Handshake();
    if (step.outcome == TlsSession::Outcome::kDone) co_return Ok();
    if (step.outcome == TlsSession::Outcome::kFailed)
      co_return Error{ErrorCode::kHostUnreachable, "the TLS handshake failed: " + tls_->failure()};
    if (step.outcome == TlsSession::Outcome::kClosed)
      co_return Error{ErrorCode::kHostUnreachable,
                      "the TLS handshake failed: the other side ended the connection"};
    const boost::system::error_code error = co_await WaitFor(step.outcome);
    if (error)
      co_return Error{ErrorCode::kHostUnreachable,
                      "the TLS handshake was not completed: " + error.message()};
  }
}

HandedConnection ByteStream::Release() {
  HandedConnection out;
  boost::system::error_code error;
  const int socket = socket_.release(error);
  if (!error) out.socket = socket;
  out.tls = std::move(tls_);
  return out;
}

}  // namespace mayfly
