// What a connection's timer looks at: clients that have gone, or keep others from their place.
#include <poll.h>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "protocol/micros.h"
#include "security/tls.h"
#include "server/access/access_control.h"
#include "server/base/login_lines.h"
#include "server/dispatch/io_timer.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"
#include "server/net/server.h"

namespace mayfly {

namespace asio = boost::asio;

namespace {
/// So many idle logins of one io thread are read at a time: workers have other things to do.
constexpr int kIdleLooks = 500;
constexpr uint8_t kExtraTicks = 10;  // so long one above the limit may be silent
/// A client that has said hello may be a driver's monitor, which never logs in.
constexpr int64_t kHelloPatience = 30;
constexpr int64_t kTickMillis = 500;
}  // namespace

bool Connection::PeerGone() {
  pollfd p{stream_.socket().native_handle(), POLLRDHUP, 0};
  return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Connection::Unanswered() const {
  return state_ && !state_->legacy && (state_->msg.flags & kMsgMoreToCome) != 0;
}

void Connection::CloseBeforeLogin() {
  const int64_t patience = thread_.server().access().parameters().login_timeout_millis;
  if (write_since_ != 0) {
    const int64_t waited = thread_.server().clock().MonotonicMicros() - write_since_;
    if (waited < MicrosOf(patience)) return;
    Broken("the client did not log in, and does not read its replies");
    return Abort();
  }
  const bool partial = in_end_ > in_begin_;
  partial_ticks_ = partial ? partial_ticks_ + 1 : 0;
  ++quiet_ticks_;
  const bool late =
      partial_ticks_ * kTickMillis >= patience ||
      (!partial && quiet_ticks_ * kTickMillis >= (spoke_ ? kHelloPatience * patience : patience));
  if (!late) return;
  Broken("the client did not log in");
  Abort();
}

void Connection::LookAtIdleLogin() {
  if (looking_ || thread_.idle_looks_ >= kIdleLooks || draining_) return;
  looking_ = true;
  ++thread_.idle_looks_;
  if (!alive_) alive_ = std::make_shared<Connection*>(this);
  asio::co_spawn(thread_.executor(), ReadIdleLogin(thread_, alive_, login.access, login_origin()),
                 asio::detached);
}

Awaitable<void> Connection::ReadIdleLogin(IoThread& thread, std::weak_ptr<Connection*> whose,
                                          UserAccessPtr was, LoginOrigin origin) {
  ServerContext& server = thread.server();
  server.workers().Queued();
  co_await asio::post(asio::bind_executor(server.workers().executor(), kAwait));
  server.workers().Started();
  LoginState state;
  state.access = was;
  Result<std::string_view> ended = std::string_view();
  try {
    ended = mayfly::RefreshLogin(server.access(), state, origin);
  } catch (const std::bad_alloc&) {
    // The next tick tries again.
  }
  co_await asio::post(asio::bind_executor(thread.executor(), kAwait));
  --thread.idle_looks_;
  const auto alive = whose.lock();
  if (alive == nullptr) co_return;
  Connection& c = **alive;
  c.looking_ = false;
  // A command that has begun meanwhile looks itself.
  if (!(c.reading_ || c.idle_wait_) || c.login.access != was) co_return;
  if (ended && !ended.value().empty()) {
    c.LogOut(ended.value());
  } else if (state.access != was) {  // also when its privileges find no memory
    c.login.Set(state.access);
    TellRolesLeftOut(server.log(), was.get(), *state.access, c.slot_.desc);
  }
}

void Connection::Tick() {
  CloseIfStuck();
  if (handshake_until_ != 0 && thread_.server().clock().MonotonicMicros() >= handshake_until_)
      [[unlikely]]
    EndHandshake("the TLS handshake was not completed in time");
  // Only while it waits for its client: a worker may be setting its user just now.
  if ((reading_ || idle_wait_ || write_since_ != 0) && BeforeLogin()) [[unlikely]]
    CloseBeforeLogin();
  // One whose privileges found no memory is looked at again with its next command.
  if ((reading_ || idle_wait_) && login.access != nullptr && login.access->generation != 0 &&
      login.access->generation != thread_.server().access().users().generation()) [[unlikely]]
    LookAtIdleLogin();
  // A client that has said hello may be an administrator's driver; another one takes its place.
  // While a command runs, it may be about to log in as one.
  if (ticket_.extra() && !in_async_ && !admitted_ && !hello_seen && ++extra_ticks_ >= kExtraTicks)
      [[unlikely]]
    Abort();
  if (idle_wait_) {
    if (++idle_ticks_ >= 2) ReleaseBuffers();
    return;
  }
  if (reading_ && in_begin_ == in_end_) {
    // The read below has the small buffer; the rest can go.
    if (++idle_ticks_ == 2) {
      std::string().swap(out_);
      state_.reset();
    }
    return;
  }
  // A client that closes after a write without acknowledgement has not given it up.
  if (in_async_ && !Unanswered() && PeerGone() && slot_.Kill(0, ErrorCode::kClientDisconnect))
    thread_.server().metrics().operation.disconnected.Add();
}

}  // namespace mayfly
