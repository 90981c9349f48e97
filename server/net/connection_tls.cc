// How a connection becomes one with TLS.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "security/tls.h"
#include "server/base/network_buffers.h"
#include "server/dispatch/io_timer.h"
#include "server/dispatch/tls_settings.h"
#include "server/net/connection.h"
#include "server/net/foreign_protocol.h"
#include "server/net/server.h"

namespace mayfly {

namespace asio = boost::asio;

namespace {
/// The memory of a handshake in progress.
constexpr size_t kHandshakeBytes = 48 * 1024;
/// So much of a ClientHello is waited for before anything is made for it: most are smaller.
constexpr size_t kFirstBytes = 2 * 1024;
constexpr std::string_view kFailed = "SSLHandshakeFailed: ";
}  // namespace

void Connection::LimitHandshake() {
  if (handshake_until_ == 0)
    handshake_until_ = thread_.server().clock().MonotonicMicros() +
                       thread_.server().tls_settings().handshake_timeout_millis * 1000;
}

bool Connection::LookAtFirst(FrameStatus* frame) {
  const std::string_view bytes(in_.get() + in_begin_, in_end_ - in_begin_);
  const TlsStart start = unix_socket_ ? TlsStart::kNo : LooksLikeTls(bytes);
  if (start != TlsStart::kNo) {
    *frame = FrameStatus();
    LimitHandshake();
    begin_tls_ =
        start == TlsStart::kYes && bytes.size() >= std::min(FirstTlsRecord(bytes), kFirstBytes);
    return true;
  }
  *frame = CheckFrame(bytes);
  if (unix_socket_ || thread_.server().tls().accepts_plain()) {
    handshake_until_ = 0;
    return Takes(bytes, *frame);
  }
  handshake_until_ = 0;
  Broken(std::string(kFailed) +
         "The server is configured to only allow SSL connections: connect with tls=true");
  out_.append(ForeignAnswer(RecognizeForeign(bytes)));
  return false;
}

void Connection::EndHandshake(std::string_view why) {
  if (handshake_until_ == 0) return;  // it has ended meanwhile
  handshake_until_ = 0;
  cut_ = true;
  Broken(std::string(kFailed) + std::string(why));
  Abort();
  if (take_back_) take_back_();
}

Awaitable<TlsSession::Step> Connection::ComputeHandshake(TlsSession& session,
                                                         Handshakes::Place& place) {
  TlsSession::Step step{TlsSession::Outcome::kClosed, 0};
  if (draining_ || cut_) co_return step;
  IoTimer turn(thread_.executor());
  turn.expires_at(IoTimer::time_point::max());
  place.Compute([&] {
    try {
      step = session.Handshake();
    } catch (const std::bad_alloc&) {
      // As a client that has gone.
    }
    asio::post(thread_.executor(), [&turn] { turn.cancel(); });
  });
  take_back_ = [&] {
    if (place.TakeBack()) turn.cancel();
  };
  co_await turn.async_wait(asio::as_tuple(kAwait));
  take_back_ = nullptr;
  co_return step;
}

Awaitable<bool> Connection::BeginTls() {
  begin_tls_ = false;
  ServerContext& server = thread_.server();
  TlsCounters& counters = server.tls().counters();
  std::unique_ptr<TlsSession> session = server.tls().Accept(
      stream_.socket().native_handle(), std::string(in_.get() + in_begin_, in_end_ - in_begin_));
  if (!session) co_return false;
  ReleaseIn();
  if (!alive_) alive_ = std::make_shared<Connection*>(this);
  Handshakes::Place place;
  thread_.handshakes().Enter(
      place, static_cast<size_t>(server.tls_settings().max_handshakes.load()),
      [&io = thread_.context(), &counters, weak = std::weak_ptr<Connection*>(alive_)] {
        counters.evicted.fetch_add(1, std::memory_order_relaxed);
        asio::post(io, [weak] {
          if (const auto alive = weak.lock())
            (*alive)->EndHandshake("too many others want a TLS handshake");
        });
      });
  server.network_buffers().TakeSmall(kHandshakeBytes);
  counters.under_way.fetch_add(1, std::memory_order_relaxed);
  TlsSession::Step step;
  for (bool more = true; more;) {
    step = co_await ComputeHandshake(*session, place);
    more = !draining_ && !cut_ &&
           (step.outcome == TlsSession::Outcome::kWantRead ||
            step.outcome == TlsSession::Outcome::kWantWrite);
    if (!more) break;
    reading_ = true;
    const boost::system::error_code error = co_await stream_.WaitFor(step.outcome);
    reading_ = false;
    more = !error && !draining_ && !cut_;
  }
  counters.under_way.fetch_sub(1, std::memory_order_relaxed);
  server.network_buffers().GiveSmall(kHandshakeBytes);
  handshake_until_ = 0;
  if (step.outcome == TlsSession::Outcome::kDone && !draining_ && !cut_) {
    (session->peer().version == "TLSv1.3" ? counters.tls13 : counters.tls12)
        .fetch_add(1, std::memory_order_relaxed);
    if (session->peer().resumed) counters.resumed.fetch_add(1, std::memory_order_relaxed);
    stream_.set_tls(std::move(session));
    LogTls(*tls_peer());
    co_return true;
  }
  counters.failed.fetch_add(1, std::memory_order_relaxed);
  if (step.outcome == TlsSession::Outcome::kFailed)
    Broken(std::string(kFailed) + session->failure());
  else if (!draining_ && !cut_)
    Broken(std::string(kFailed) + "the client ended the connection");
  co_return false;
}

void Connection::LogTls(const TlsPeer& peer) {
  ServerContext& server = thread_.server();
  Log& log = server.log();
  // A client with a certificate is worth a line; there may be many others.
  const LogSeverity severity = peer.has_certificate ? LogSeverity::kInfo : LogSeverity::kDebug1;
  if (!log.quiet() && log.Enabled(severity, LogComponent::kNetwork))
    log.Write(severity, LogComponent::kNetwork, 6723802, "Accepted TLS connection from peer",
              BuildBson([&](BsonBuilder& b) {
                b.Append("remote", slot_.address).Append("connectionId", id());
                b.Append("peerSubject", peer.subject).Append("version", peer.version);
                b.Append("cipher", peer.cipher).Append("sni", peer.sni);
                b.Append("resumed", peer.resumed);
              }),
              slot_.desc);
  if (!peer.has_certificate) return;
  auto warn = [&](int number, std::string_view what, std::string_view why) {
    log.Write(LogSeverity::kWarning, LogComponent::kNetwork, number, what,
              BuildBson([&](BsonBuilder& b) {
                b.Append("remote", slot_.address).Append("connectionId", id());
                b.Append("peerSubject", peer.subject).Append("reason", why);
              }),
              slot_.desc);
  };
  if (!peer.invalid.empty())
    warn(23236, "SSL peer certificate validation failed", peer.invalid);
  else if (server.tls().ExpiresSoon(peer.expires))
    warn(23221, "Peer certificate will expire soon", "it has few days left");
}

}  // namespace mayfly
