#include "server/net/connection.h"
#include "replication/replica_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdio>

#include "security/tls.h"
#include "security/user_cache.h"
#include "server/base/network_buffers.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/config.h"
#include "server/dispatch/io_timer.h"
#include "server/net/dispatcher.h"
#include "server/net/foreign_protocol.h"
#include "server/net/server.h"

namespace mayfly {

namespace asio = boost::asio;
namespace {
constexpr size_t kSmallBuffer = 2 * 1024;   // what an idle client costs
constexpr size_t kBusyBuffer = 64 * 1024;   // grown to while a client sends much
constexpr size_t kKeptBuffer = 256 * 1024;  // a larger one goes back after its message
constexpr size_t kFlushBytes = 256 * 1024;  // replies to pipelined requests gather up to this …
constexpr size_t kFlushBeforeLogin = 1;     // … before a login not at all
constexpr size_t kMaxRead = 256 * 1024;  // of a large message at once: then others have their turn
constexpr size_t kMaxWritten = 512 * 1024;  // of replies at once, likewise
/// The required rate of a message's arrival, or of a reply's reading, after
/// NetworkBuffers::stuck_micros, while others wait for room.
constexpr int64_t kSlowBytesPerSecond = 256 * 1024;
/// For each such time that a request has waited, twice the rate, and half the pause …
constexpr int64_t kDoubleMicros = 3'000'000;
constexpr int64_t kMaxDoubles = 10;
constexpr int64_t kLeastStuckMicros = 500'000;  // … but not less than this
constexpr size_t kLongParse = 512 * 1024;  // more than this is unpacked and checked on a worker
constexpr size_t kCompressorAt = kMessageHeaderSize + 8;  // its number in an OP_COMPRESSED
constexpr auto kAdmitPoll = std::chrono::milliseconds(20);

/// Before its login a client needs only hello and the messages of a login.
constexpr size_t kMaxBeforeLogin = 16 * 1024;

/// Whether a slice that ends at `*end` (0: begins now) is over; the next one then begins later.
bool SliceOver(int64_t now, int64_t slice, int64_t* end) {
  if (*end == 0) *end = now + slice;
  if (now < *end) return false;
  *end = 0;
  return true;
}

/// `open`: connections that are left. Called by a destructor, so nothing leaves it.
void LogConnectionEnd(Log& log, const ClientSlot& slot, int64_t open) {
  if (log.quiet()) return;
  try {
    log.Write(LogSeverity::kInfo, LogComponent::kNetwork, 22944, "Connection ended",
              BuildBson([&](BsonBuilder& b) {
                b.Append("remote", slot.address).Append("connectionId", slot.connection_id);
                b.Append("connectionCount", open);
              }),
              slot.desc);
  } catch (...) {
    // There is no memory for the line.
  }
}

/// Inside a catch block.
void LogConnectionException(Log& log, const ClientSlot& slot) {
  try {
    const std::string what = CurrentExceptionText();
    log.Write(
        LogSeverity::kError, LogComponent::kNetwork, 9000104, "A connection ended by an exception",
        BuildBson([&](BsonBuilder& b) { b.Append("remote", slot.address).Append("error", what); }),
        slot.desc);
  } catch (...) {
    // Without memory for the line, the connection must still leave its thread's list.
  }
}

/// CheckFrame, which would wait for more of a TLS handshake: it looks like a large message.
FrameStatus FrontFrame(std::string_view bytes, bool spoke) {
  FrameStatus frame = CheckFrame(bytes);
  if (frame.kind == FrameStatus::kNeedMore && !spoke && bytes[0] == 22 &&
      RecognizeForeign(bytes) != ForeignProtocol::kNone) [[unlikely]]
    frame.kind = FrameStatus::kBroken;
  return frame;
}

/// What drivers send as OP_QUERY before they know OP_MSG: greetings and logins, which MongoDB still
/// takes (its tickets SERVER-58338, SERVER-59069, SERVER-61030).
bool TakenByOpQuery(std::string_view name) {
  constexpr std::string_view kTaken[] = {"hello",     "isMaster",  "ismaster",     "saslStart",
                                         "buildInfo", "buildinfo", "saslContinue", "authenticate"};
  return std::find(std::begin(kTaken), std::end(kTaken), name) != std::end(kTaken);
}
}  // namespace

Connection::Connection(IoThread& thread, ClientSocket socket, std::string remote, std::string local,
                       bool unix_socket, ConnectionGate::Ticket ticket)
    : thread_(thread),
      stream_(std::move(socket)),
      slot_(thread.server().operations(), {}, thread.server().operations().NextConnectionId()),
      unix_socket_(unix_socket),
      ticket_(std::move(ticket)) {
  slot_.SetAddresses(std::move(remote), std::move(local));
  SetFlush();
  if (!unix_socket_ && !thread_.server().tls().accepts_plain()) LimitHandshake();
  ServerMetrics& m = thread_.server().metrics();
  m.connections.total_created.Add();
  m.connections.current.Add();
  Log& log = thread_.server().log();
  if (!log.quiet())
    log.Write(LogSeverity::kInfo, LogComponent::kNetwork, 22943, "Connection accepted",
              BuildBson([&](BsonBuilder& b) {
                b.Append("remote", slot_.address).Append("connectionId", id());
                b.Append("connectionCount", m.connections.current.Get());
              }),
              "listener");
}

Connection::~Connection() {
  // One that ended by an exception may still show an operation, which goes before the slot does.
  slot_.End();
  try {
    AbandonLogin();
    AuditLogout(kConnectionEnds);
  } catch (...) {
    // No memory for an entry: out of a destructor this would end the process.
  }
  thread_.server().network_buffers().Give(in_counted_ + unpacked_counted_);
  thread_.server().network_buffers().GiveReply(out_counted_);
  thread_.server().network_buffers().GiveSmall(in_small_);
  ServerMetrics& m = thread_.server().metrics();
  // Above the limit and not entitled to stay: it said so, or was silent until its place was
  // needed.
  if (ticket_.extra() && !admitted_) m.connections.rejected.Add();
  m.connections.current.Add(-1);
  LogConnectionEnd(thread_.server().log(), slot_, m.connections.current.Get());
}

IoExecutor Connection::io_executor() { return thread_.executor(); }

Result<void> Connection::LoggedIn(const std::function<void()>& tell) {
  Result<void> stays = Ok();
  try {
    // The same user again has a place already.
    if (user_place_ == nullptr) stays = TakeUserPlace();
    if (stays) slot_.SetUser(login.access->user.name);
    if (stays) tell();
  } catch (...) {
    // Without memory for all of it, nobody is logged in.
    login.Forget();
    user_place_.reset();
    slot_.SetUser(std::nullopt);
    SetFlush();
    throw;
  }
  if (!stays) login.Forget();
  if (stays) ticket_.set_unknown(nullptr);
  SetFlush();
  return stays;
}

Result<void> Connection::TakeUserPlace() {
  std::shared_ptr<void> place = thread_.limits().EnterUser(login.access->user.name);
  if (place == nullptr)
    return Error{ErrorCode::kAuthenticationFailed,
                 "Too many connections of the user " + login.access->user.name.Shown() +
                     ": maxConnectionsPerUser is " + std::to_string(thread_.limits().per_user())};
  if (ticket_.extra()) [[unlikely]] {
    // Users who may end others' operations can connect when all places are taken.
    if (!login.access->privileges.AllowsOnCluster({Action::killop}) || !ticket_.Keep())
      return Error{
          ErrorCode::kAuthenticationFailed,
          "Too many open connections: those above maxIncomingConnections are for users with "
          "the action killop on the cluster, " +
              std::to_string(ConnectionGate::kAdministrators) + " at a time"};
    admitted_ = true;
  }
  user_place_ = std::move(place);
  return Ok();
}

void Connection::AuditLogout(std::string_view reason) {
  AuditLog* audit = thread_.server().audit();
  if (audit == nullptr || login.access == nullptr) return;
  const UserName& name = login.access->user.name;
  const AuditActor who{.connection = slot_.desc,
                       .local = slot_.local_address,
                       .remote = slot_.address,
                       .user = &name,
                       .access = login.access.get()};
  audit->Write(who, "logout", [&](BsonBuilder& p) {
    p.Append("reason", reason);
    {
      BsonArrayBuilder users = p.OpenArray("initialUsers");
      BsonBuilder one = users.OpenDocument();
      AppendUserName(one, name);
    }
    p.OpenArray("updatedUsers").Done();
  });
}

void Connection::AbandonLogin() {
  if (!login.conversation) return;
  const SaslConversation begun = std::move(*login.conversation);
  login.conversation.reset();
  AuditLog* audit = thread_.server().audit();
  if (audit == nullptr) return;
  // Manual, "System Event Audit Messages": 337 is a login that was begun and not ended.
  constexpr ErrorCode kAbandoned = LocationCode(337);
  audit->WriteFailedLogin(
      {.connection = slot_.desc, .local = slot_.local_address, .remote = slot_.address},
      [&](BsonBuilder& p) {
        p.Append("user", begun.name().user).Append("db", begun.name().db);
        p.Append("mechanism", ScramMechanismName(begun.mechanism()));
      },
      kAbandoned);
}

void Connection::LogOut(std::string_view reason) {
  if (login.access == nullptr) return;
  AuditLogout(reason);
  login.Forget();
  SetFlush();
  user_place_.reset();
  slot_.SetUser(std::nullopt);
}

void Connection::CountAsUnknown() {
  AccessControl& access = thread_.server().access();
  if (unix_socket_ || !access.enforced()) return;
  // Where there are too many already, it stays, and no more can come.
  ticket_.set_unknown(access.unknown_clients().Enter(
      slot_.address, access.parameters().connections_before_login.load(std::memory_order_relaxed)));
}

void Connection::SetFlush() { flush_at_ = BeforeLogin() ? kFlushBeforeLogin : kFlushBytes; }

bool Connection::BeforeLogin() const {
  return login.access == nullptr && thread_.server().access().enforced();
}

bool Connection::FromThisMachine() const {
  return unix_socket_ || slot_.address.starts_with("127.") || slot_.address.starts_with("[::1]:");
}

LoginOrigin Connection::login_origin() const {
  return unix_socket_ ? LoginOrigin() : OriginOf(slot_.address, slot_.local_address);
}

Awaitable<void> Connection::Yield() {
  ++thread_.yielding_;
  co_await asio::post(asio::bind_executor(thread_.executor(), kAwait));
  --thread_.yielding_;
}

Awaitable<void> Connection::Run(std::unique_ptr<Connection> self) {
  IoThread& thread = self->thread_;
  thread.Entered(*self);
  if (self->ticket_.extra()) {
    self->alive_ = std::make_shared<Connection*>(self.get());
    self->ticket_.OnEvict([&thread, weak = std::weak_ptr<Connection*>(self->alive_)] {
      asio::post(thread.context_, [weak] {
        if (const auto alive = weak.lock()) (*alive)->Abort();
      });
    });
  }
  try {
    co_await self->Loop();
  } catch (...) {
    // A command that throws is answered (Dispatcher); this came from outside it, so it is unknown
    // what the client was sent: only its connection ends.
    LogConnectionException(thread.server().log(), self->slot_);
  }
  const auto place = thread.connections_.iterator_to(*self);
  if (thread.tick_at_ == place) ++thread.tick_at_;
  thread.connections_.erase(place);
}

void Connection::MakeRoom(size_t wanted) {
  const size_t have = in_end_ - in_begin_;
  if (have == 0) in_begin_ = in_end_ = 0;
  const size_t least = std::max(wanted, have + 1);
  const bool too_large = have == 0 && in_capacity_ > kKeptBuffer && least <= kBusyBuffer;
  if (!too_large && in_capacity_ - in_begin_ >= least) return;
  if (!too_large && in_capacity_ >= least) {
    std::memmove(in_.get(), in_.get() + in_begin_, have);
  } else {
    const size_t capacity = std::max(least, too_large ? kBusyBuffer : kSmallBuffer);
    std::unique_ptr<char[]> next(new char[capacity]);
    if (have > 0) std::memcpy(next.get(), in_.get() + in_begin_, have);
    in_ = std::move(next);
    in_capacity_ = capacity;
    if (capacity <= NetworkBuffers::kSmall && in_counted_ != 0) {
      thread_.server().network_buffers().Give(in_counted_);
      in_counted_ = 0;
    }
    CountSmallIn();
  }
  in_begin_ = 0;
  in_end_ = have;
}

void Connection::ReleaseIn() {
  in_.reset();
  in_capacity_ = in_begin_ = in_end_ = 0;
  thread_.server().network_buffers().Give(in_counted_);
  in_counted_ = 0;
  CountSmallIn();
}

void Connection::CountSmallIn() {
  const size_t n =
      in_capacity_ > kSmallBuffer && in_capacity_ <= NetworkBuffers::kSmall ? in_capacity_ : 0;
  if (n == in_small_) return;
  thread_.server().network_buffers().GiveSmall(in_small_);
  thread_.server().network_buffers().TakeSmall(n);
  in_small_ = n;
}

void Connection::ReleaseUnpacked() {
  if (state_) std::string().swap(state_->decompressed);
  thread_.server().network_buffers().Give(unpacked_counted_);
  unpacked_counted_ = 0;
}

void Connection::ReleaseBuffers() {
  ReleaseIn();
  std::string().swap(out_);
  CountOut(kKeptBuffer);
  state_.reset();
}

void Connection::CountOut(size_t least) {
  const size_t n = out_.capacity() > least ? out_.capacity() : 0;
  if (n == out_counted_) return;
  thread_.server().network_buffers().GiveReply(out_counted_);
  thread_.server().network_buffers().TakeReply(n);
  out_counted_ = n;
}

// Not what gathers up to kFlushBytes: a connection must not keep itself from making the next reply.
void Connection::CountReply() { CountOut(NetworkBuffers::kModest); }

Awaitable<bool> Connection::Admit(size_t bytes, size_t* counted) {
  NetworkBuffers& buffers = thread_.server().network_buffers();
  const size_t more = bytes - *counted;
  const Clock& clock = thread_.server().clock();
  const int64_t patience =
      more > MemoryPressure::kLarge ? clock.MonotonicMicros() + MemoryPressure::kMaxMicros : 0;
  WaitLine::Place place(buffers.message_line(more));
  auto take = [&] {
    const int64_t now = clock.MonotonicMicros();
    if (patience != 0 && thread_.server().memory_pressure().High() && now < patience) return false;
    if (place.MayTake(now) && buffers.TryTake(more)) return true;
    place.Enter(now);
    return false;
  };
  if (!take()) {
    IoTimer pause(thread_.executor());
    bool room = false;
    buffers.AddWaiter(1);
    while (!room && !draining_) {
      pause.expires_after(kAdmitPoll);
      co_await pause.async_wait(asio::as_tuple(kAwait));
      room = take();
    }
    buffers.AddWaiter(-1);
    if (!room) co_return false;
  }
  *counted = bytes;
  co_return !draining_;  // nobody would wake what begins to read now
}

Awaitable<bool> Connection::WriteAll() {
  CountOut(kSmallBuffer);  // it waits for the client, who may never come
  write_since_ = write_begun_ = thread_.server().clock().MonotonicMicros();
  write_from_ = out_sent_;
  bool good = true;
  while (good && !out_.empty()) {
    auto [error] =
        co_await stream_.socket().async_wait(asio::socket_base::wait_write, asio::as_tuple(kAwait));
    const size_t before = out_sent_;
    good = !error && WriteSome();
    if (out_sent_ != before) write_since_ = thread_.server().clock().MonotonicMicros();
  }
  write_since_ = 0;
  co_return good;
}

void Connection::CloseIfStuck() {
  if (large_since_ == 0 && write_since_ == 0) return;
  thread_.server().network_buffers().AddLook();
  if (!thread_.server().network_buffers().Short()) return;
  const int64_t now = thread_.server().clock().MonotonicMicros();
  // Long waits raise the required rate of those who hold room: in the end slow clients are
  // disconnected, whatever they do.
  const int64_t doubles =
      std::min(thread_.server().network_buffers().LongestWait(now) / kDoubleMicros, kMaxDoubles);
  const int64_t rate = kSlowBytesPerSecond << doubles;
  const int64_t most = thread_.server().network_buffers().stuck_micros();
  const int64_t stuck = std::max(std::min(most, kLeastStuckMicros), most >> doubles);
  const auto too_slow = [&](int64_t since, size_t bytes) {
    const int64_t late = now - since - stuck;
    return late > 0 && static_cast<int64_t>(bytes) < late / 1000 * rate / 1000;
  };
  const bool slow_in = large_since_ != 0 && reading_ && in_counted_ + in_small_ != 0 &&
                       too_slow(large_since_, in_end_ - in_begin_);
  const bool slow_out =
      write_since_ != 0 && out_counted_ != 0 &&
      (now - write_since_ > stuck || too_slow(write_begun_, out_sent_ - write_from_));
  if (!slow_in && !slow_out) return;
  thread_.server().log().Write(
      LogSeverity::kWarning, LogComponent::kNetwork, 9000112,
      "Ending a connection that holds much memory and does not get on, while others wait for it",
      BuildBson([&](BsonBuilder& b) {
        b.Append("remote", slot_.address).Append("connectionId", id());
        b.Append("bytes", static_cast<int64_t>(in_counted_ + in_small_ + out_counted_));
        b.Append("reason", slow_in ? "a message that does not arrive" : "a reply that is not read");
      }),
      slot_.desc);
  boost::system::error_code ec;
  stream_.socket().shutdown(asio::socket_base::shutdown_both, ec);
}

bool Connection::WriteSome() {
  boost::system::error_code ec;
  size_t written = 0;
  while (out_sent_ < out_.size() && written < kMaxWritten) {
    const size_t n = stream_.WriteSome(out_.data() + out_sent_,
                                       std::min(out_.size() - out_sent_, kMaxWritten), ec);
    if (ec == asio::error::would_block) return true;
    if (ec) return false;
    out_sent_ += n;
    written += n;
  }
  if (out_sent_ < out_.size()) return true;
  out_.clear();
  out_sent_ = 0;
  return true;
}

bool Connection::LookAtFront(FrameStatus* frame) {
  if (in_end_ == in_begin_ || hand_over) return true;
  if (!spoke_ && !stream_.encrypted() && thread_.server().tls().accepts()) [[unlikely]]
    return LookAtFirst(frame);
  const std::string_view front(in_.get() + in_begin_, in_end_ - in_begin_);
  *frame = FrontFrame(front, spoke_);
  return Takes(front, *frame);
}

bool Connection::Takes(std::string_view front, const FrameStatus& frame) {
  if (frame.kind == FrameStatus::kBroken) {
    EndBroken(frame);
    return false;
  }
  if (!BeforeLogin()) [[likely]]
    return true;
  const bool whole = frame.kind == FrameStatus::kComplete;
  if (frame.length <= kMaxBeforeLogin &&
      (!whole || UnpackedSize(front.substr(0, frame.length)) <= kMaxBeforeLogin))
    return true;
  Broken("a message of more than 16,384 bytes before the login");
  return false;
}

void Connection::HandOver() {
  HandedConnection connection = stream_.Release();
  if (connection.socket < 0) return;
  connection.early.assign(in_.get() + in_begin_, in_end_ - in_begin_);
  hand_over(std::move(connection));
}

// long function: each part that waits would be a separate coroutine, made again for each message.
Awaitable<void> Connection::Loop() {
  boost::system::error_code ec;
  stream_.socket().non_blocking(true, ec);
  ServerMetrics& metrics = thread_.server().metrics();
  const SystemClock& clock = thread_.server().clock();
  bool first = true;      // of the requests since the client was last waited for
  bool gone = false;      // the client has closed: only what needs no reply is done
  int64_t slice_end = 0;  // MonotonicMicros; 0: not begun
  while (true) {
    FrameStatus frame;
    if (!LookAtFront(&frame)) break;
    if (begin_tls_) [[unlikely]] {
      const bool begun = co_await BeginTls();
      if (!begun) break;
      continue;
    }
    if (frame.kind == FrameStatus::kComplete && out_.size() - out_sent_ < flush_at_ && !hand_over) {
      spoke_ = true;
      quiet_ticks_ = 0;
      // Requests that arrive together are answered together, but only for a slice of time: then
      // others get a turn.
      if (!first && SliceOver(clock.MonotonicMicros(), thread_.SliceMicros(), &slice_end))
        co_await Yield();
      first = false;
      metrics.network.physical_bytes_in.Add(static_cast<int64_t>(frame.length));
      metrics.network.requests.Add();
      bool more = true;
      large_since_ = 0;
      const size_t unpacked = UnpackedSize({in_.get() + in_begin_, frame.length});
      if (unpacked > NetworkBuffers::kSmall) [[unlikely]] {
        const bool admitted = co_await Admit(unpacked, &unpacked_counted_);
        if (!admitted) break;
      }
      Parsed parsed;
      if (frame.length + unpacked > kLongParse) [[unlikely]]
        parsed = co_await ParseOnWorker(frame.length);
      else
        parsed = ParseMessage(frame.length);
      if (parsed == Parsed::kBroken) break;
      if (ticket_.extra() && !Admissible()) [[unlikely]]
        break;
      const bool wanted = parsed == Parsed::kRequest && (!gone || Unanswered());
      const Step step = wanted ? StartRequest() : Step::kDone;
      if (step == Step::kClose) break;
      if (step == Step::kAsync) more = co_await FinishAsync();
      if (!more) break;
      in_begin_ += frame.length;
      // Nobody reads the answers to what is behind it. Writes that get none are still owed.
      if (step == Step::kAsync && in_begin_ != in_end_ && PeerGone()) gone = true;
      if (unpacked_counted_ != 0) [[unlikely]]
        ReleaseUnpacked();
      continue;
    }
    if (!out_.empty()) {
      metrics.network.physical_bytes_out.Add(static_cast<int64_t>(out_.size()));
      const bool good = WriteSome();
      if (gone) [[unlikely]] {
        // Whatever it has not taken is lost, but not what it sent and is not read yet.
        out_.clear();
        out_sent_ = 0;
      } else if (!good) {
        break;
      }
      if (!out_.empty()) {
        // A request that has been answered is not kept while its reply waits for the client.
        if (in_begin_ == in_end_ && in_capacity_ > kKeptBuffer) ReleaseIn();
        const bool written = co_await WriteAll();
        if (!written) break;
      }
      if (out_.capacity() > kKeptBuffer) std::string().swap(out_);
      CountOut(kKeptBuffer);
      continue;
    }
    if (draining_) break;
    if (hand_over) [[unlikely]] {
      HandOver();
      co_return;
    }
    if (in_begin_ == in_end_ && in_capacity_ > kKeptBuffer) ReleaseIn();
    if (in_begin_ == in_end_ && in_capacity_ > kSmallBuffer) {
      // Waits without needing the buffer, so that Tick may take it away from a client that has gone
      // quiet.
      idle_wait_ = true;
      idle_ticks_ = 0;
      boost::system::error_code error;
      if (stream_.encrypted())
        error = co_await stream_.WaitTls();
      else
        std::tie(error) = co_await stream_.socket().async_wait(asio::socket_base::wait_read,
                                                               asio::as_tuple(kAwait));
      idle_wait_ = false;
      if (error || draining_) break;
    }
    if (frame.length > NetworkBuffers::kSmall && frame.length > in_counted_) {
      const bool admitted = co_await Admit(frame.length, &in_counted_);
      if (!admitted) break;
    }
    MakeRoom(frame.length);
    if (large_since_ == 0 && in_end_ > in_begin_ && in_capacity_ > kSmallBuffer)
      large_since_ = clock.MonotonicMicros();
    first = true;
    slice_end = 0;
    reading_ = true;
    idle_ticks_ = 0;
    const size_t room = std::min(in_capacity_ - in_end_, kMaxRead);
    boost::system::error_code error;
    size_t n = 0;
    if (stream_.encrypted()) {
      const ByteStream::Came came = co_await stream_.ReadTls(in_.get() + in_end_, room);
      error = came.error;
      n = came.bytes;
    } else {
      std::tie(error, n) = co_await stream_.socket().async_read_some(
          asio::buffer(in_.get() + in_end_, room), asio::as_tuple(kAwait));
    }
    reading_ = false;
    if (error) break;
    in_end_ += n;
    // A client that fills the buffer sends much: fewer and larger reads for it.
    if (in_end_ == in_capacity_ && in_capacity_ < kBusyBuffer && frame.length == 0)
      MakeRoom(kBusyBuffer);
  }
  if (!out_.empty()) WriteSome();
  if (stream_.encrypted()) stream_.tls()->SayGoodbye();
  stream_.socket().shutdown(asio::socket_base::shutdown_both, ec);
  stream_.socket().close(ec);
}

Connection::Parsed Connection::Broken(std::string_view why) {
  thread_.server().log().Write(
      LogSeverity::kWarning, LogComponent::kNetwork, 22988,
      "Error receiving request from client. Ending connection from remote",
      BuildBson([&](BsonBuilder& b) {
        b.Append("error", why).Append("remote", slot_.address).Append("connectionId", id());
      }),
      slot_.desc);
  return Parsed::kBroken;
}

void Connection::EndBroken(const FrameStatus& frame) {
  const ForeignProtocol foreign =
      spoke_ ? ForeignProtocol::kNone
             : RecognizeForeign({in_.get() + in_begin_, in_end_ - in_begin_});
  Broken(foreign == ForeignProtocol::kNone ? std::string_view(frame.reason)
                                           : ForeignReason(foreign));
  out_.append(ForeignAnswer(foreign));
}

bool Connection::Admissible() {
  const RequestState& s = *state_;
  const std::string_view name = s.legacy ? s.query.query.First().name : s.msg.body.First().name;
  if (!s.legacy && name == "_mayflyMember") return admitted_ = true;
  if (thread_.server().access().enforced()) {
    if (login.access != nullptr && admitted_) return true;
    const CommandRow* row = thread_.server().commands().Find(name);
    if (login.access == nullptr && row != nullptr && (row->flags & kNoAuth) != 0) return true;
  }
  thread_.server().log().Write(LogSeverity::kInfo, LogComponent::kNetwork, 22942,
                               "Connection refused because there are too many open connections",
                               BuildBson([&](BsonBuilder& b) {
                                 b.Append("remote", slot_.address).Append("connectionId", id());
                               }),
                               slot_.desc);
  return false;
}

Connection::Parsed Connection::ParseMessage(size_t length) {
  if (!state_) state_ = std::make_unique<RequestState>();
  RequestState& s = *state_;
  Dispatcher& dispatcher = thread_.dispatcher();
  ServerMetrics& metrics = thread_.server().metrics();
  std::string_view frame(in_.get() + in_begin_, length);
  s.header = ReadHeader(frame.data());
  s.compressor = Compressor::kNone;
  s.legacy = false;
  s.checksum = false;
  if (s.header.opcode == static_cast<int32_t>(Opcode::kCompressed)) {
    // As on MongoDB, hello need not have agreed on it, but it must be one that the server was
    // started with.
    const auto& allowed = thread_.server().config().compressors;
    const uint8_t id =
        frame.size() > kCompressorAt ? static_cast<uint8_t>(frame[kCompressorAt]) : 0;
    if (allowed.empty() ||
        (id != 0 && std::none_of(allowed.begin(), allowed.end(), [&](auto& name) {
           return static_cast<uint8_t>(CompressorFromName(name)) == id;
         })))
      return Broken("Compression algorithm specified in message is not available");
    const char* reason = nullptr;
    if (!Decompress(frame, &s.decompressed, &s.compressor, &reason)) return Broken(reason);
    ServerMetrics::Compression& m = metrics.compression(static_cast<int>(s.compressor));
    m.decompressed_in.Add(static_cast<int64_t>(length));
    m.decompressed_out.Add(static_cast<int64_t>(s.decompressed.size()));
    frame = s.decompressed;
    s.header = ReadHeader(frame.data());
    if (!(compressors & (1u << static_cast<int>(s.compressor)))) s.compressor = Compressor::kNone;
  }
  metrics.network.bytes_in.Add(static_cast<int64_t>(frame.size()));
  WireError failure;
  if (s.header.opcode == static_cast<int32_t>(Opcode::kMsg)) {
    s.msg.Clear();
    if (!ParseOpMsg(frame, &s.msg, &failure)) {
      s.msg.DropSequences();  // here, since of a large message it takes long
      if (failure.broken_frame) return Broken(failure.error.message.c_str());
      s.checksum = false;
      dispatcher.ReplyError(s, out_, failure.error);
      return Parsed::kAnswered;
    }
    s.checksum = (s.msg.flags & kMsgChecksumPresent) != 0;
  } else if (s.header.opcode == static_cast<int32_t>(Opcode::kQuery)) {
    s.legacy = true;
    if (!ParseOpQuery(frame, &s.query, &failure)) {
      if (failure.broken_frame) return Broken(failure.error.message.c_str());
      dispatcher.ReplyError(s, out_, failure.error);
      return Parsed::kAnswered;
    }
    const std::string_view name = s.query.query.First().name;
    if (!s.query.ns.ends_with(".$cmd") || !TakenByOpQuery(name)) {
      dispatcher.ReplyError(s, out_,
                            {ErrorCode::kUnsupportedOpQueryCommand,
                             "Unsupported OP_QUERY command: " + std::string(name) +
                                 ". The client driver may require an upgrade. For more details see "
                                 "https://dochub.mongodb.org/core/legacy-opcode-removal"});
      return Parsed::kAnswered;
    }
  } else {
    return Broken("Unsupported opcode");
  }
  return Parsed::kRequest;
}

Awaitable<Connection::Parsed> Connection::ParseOnWorker(size_t length) {
  co_await asio::post(asio::bind_executor(thread_.unpackers().executor(), kAwait));
  // An error here ends the connection, but on its own thread.
  Parsed parsed = Parsed::kBroken;
  std::exception_ptr failed;
  try {
    const large_memory::BudgetScope budget(thread_.server().large_memory());
    parsed = ParseMessage(length);
  } catch (...) {
    failed = std::current_exception();
  }
  co_await asio::post(asio::bind_executor(thread_.executor(), kAwait));
  if (failed) std::rethrow_exception(failed);
  co_return parsed;
}

Connection::Step Connection::StartRequest() {
  RequestState& s = *state_;
  const bool done = thread_.dispatcher().Start(*this, s, out_);
  thread_.running_ = s.row;
  if (!done) return Step::kAsync;
  if (s.ctx->close_connection) [[unlikely]]
    return Step::kClose;
  return s.ctx->more_to_come ? Step::kAsync : Step::kDone;
}

Awaitable<bool> Connection::FinishAsync() {
  RequestState& s = *state_;
  Dispatcher& dispatcher = thread_.dispatcher();
  in_async_ = true;
  const bool is_hello =
      s.request.name == "hello" || s.request.name == "isMaster" || s.request.name == "ismaster";
  if (s.slot_begun) co_await dispatcher.Run(*this, s, out_);
  thread_.running_ = s.row;
  if (s.ctx->close_connection) [[unlikely]] {
    in_async_ = false;
    co_return false;
  }
  // Exhaust: reply after reply, each answering the one before, until the command says that this was
  // the last.
  auto& connections = thread_.server().metrics().connections;
  Counter& streams =
      s.request.name == "hello" ? connections.exhaust_hello : connections.exhaust_is_master;
  const bool stream = is_hello && s.ctx->more_to_come;
  if (stream) streams.Add();
  bool open = true;
  while (open && s.ctx->more_to_come && !draining_) {
    if (!WriteSome()) break;
    if (!out_.empty()) {
      open = co_await WriteAll();
      if (!open) break;
    }
    // Its earlier replies must not take the room that its next reply waits for.
    if (out_.capacity() > kKeptBuffer) std::string().swap(out_);
    CountOut(kKeptBuffer);
    // One that waits for nothing would answer for as long as its client reads.
    co_await Yield();
    if (!s.ctx->next_body.view().empty()) {
      s.repeat_body = std::move(s.ctx->next_body.bytes());
      s.msg.body = BsonView(s.repeat_body.data());
    } else {
      s.msg.body = s.request.body;
    }
    s.header.request_id = s.reply_id;
    if (!dispatcher.Start(*this, s, out_)) co_await dispatcher.Run(*this, s, out_);
    if (s.ctx->close_connection) [[unlikely]]
      open = false;
  }
  if (stream) streams.Add(-1);
  in_async_ = false;
  co_return open;
}

void Connection::Abort() {
  boost::system::error_code ec;
  stream_.socket().shutdown(asio::socket_base::shutdown_both, ec);
  stream_.socket().cancel(ec);
}

void Connection::Drain() {
  draining_ = true;
  if (take_back_) take_back_();
  if (idle_wait_ || reading_) {
    boost::system::error_code ec;
    stream_.socket().cancel(ec);
  }
}

}  // namespace mayfly
