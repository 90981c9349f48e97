#pragma once
#include <boost/intrusive/list.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/wire_message.h"
#include "replication/byte_stream.h"
#include "server/access/login.h"
#include "server/base/session_registry.h"
#include "server/base/top.h"
#include "server/dispatch/command.h"
#include "server/dispatch/operation_registry.h"
#include "server/net/connection_gate.h"
#include "server/net/handshakes.h"

namespace mayfly {

class Dispatcher;
class IoThread;
struct RequestState;

using ClientSocket = LinkSocket;

/// One client. Everything runs on its io thread, except a command that has moved to a worker; then
/// the connection waits. Requests are handled in order, from one read buffer, into one write
/// buffer; both are given back when the client is idle.
class Connection : public boost::intrusive::list_base_hook<> {
 public:
  Connection(IoThread& thread, ClientSocket socket, std::string remote, std::string local,
             bool unix_socket, ConnectionGate::Ticket ticket);
  ~Connection();

  int64_t id() const { return slot_.connection_id; }
  ClientSlot& slot() { return slot_; }
  const std::string& remote() const { return slot_.address; }
  bool unix_socket() const { return unix_socket_; }
  /// By the unix socket or a loopback address.
  bool FromThisMachine() const;
  /// TLS facts about the client; null: the connection is plain.
  const TlsPeer* tls_peer() const { return stream_.encrypted() ? &stream_.tls()->peer() : nullptr; }
  /// The subject of the client's certificate, RFC 2253, if it was verified; else empty.
  std::string_view peer_subject() const {
    return tls_peer() != nullptr ? std::string_view(tls_peer()->subject) : std::string_view();
  }
  /// The executor of the io thread that the connection lives on, all its life. Any thread.
  IoExecutor io_executor();

  /// The logged-in user. Change it with LoggedIn and LoggedOut.
  LoginState login;
  /// `login` has just succeeded: the connection no longer counts as unknown. `tell` says so to the
  /// logs: if it throws, as without memory, nobody is logged in. Errors: AuthenticationFailed 18 if
  /// the user has too many connections, or if the connection is above the limit of all and the user
  /// is not an administrator; then nobody is logged in, and `tell` is not called. The same user
  /// again always succeeds.
  Result<void> LoggedIn(const std::function<void()>& tell);
  /// Nobody is logged in any more; the audit log says why. Nothing if nobody was.
  void LogOut(std::string_view reason);
  /// Its client has logged out by itself: it is one of those of its address that have not logged in
  /// again, which are limited. Logins that end because a user is dropped may be too many at once.
  void CountAsUnknown();
  /// Users or roles may have changed since the login was read, and the command needs none, so the
  /// dispatcher has not looked: reads it again, and ends it if it is lost. On a worker, for the
  /// connection's command. Errors: those of UserCache::Again.
  Result<void> RefreshLogin(CommandContext& ctx);
  /// Ends an unfinished login; the audit log records it.
  void AbandonLogin();
  /// Clients must log in, and this one has not.
  bool BeforeLogin() const;

  // Results of the handshake (used by hello and the dispatcher only).
  bool metadata_seen = false;
  bool hello_seen = false;
  uint8_t compressors = 0;  ///< bit 1 << Compressor: agreed in hello
  bool is_internal_client = false;
  Top::Entry* top_entry = nullptr;  ///< of the namespace used last, and its name
  std::string top_ns, top_scratch;
  /// Set by a command that takes the socket over (the member stream). Called after the reply, with
  /// the connection and the bytes that were read behind the command.
  std::function<void(HandedConnection connection)> hand_over;
  /// Where the client comes from, for authenticationRestrictions.
  LoginOrigin login_origin() const;
  SessionPtr last_session;  ///< saves the look-up for the next operation of the same session

  /// The life of the connection. Destroys it at the end.
  static Awaitable<void> Run(std::unique_ptr<Connection> self);

  /// From the io thread's timer: gives back buffers of an idle client, ends the operation of one
  /// that has gone.
  void Tick();
  /// Closes at once when idle, else after the running operation.
  void Drain();
  /// Stops waiting for the client to read its replies.
  void Abort();
  /// Counts the reply that the running operation has made, when it is large. Any thread, while the
  /// connection waits for that operation.
  void CountReply();
  /// The present message's share of the room for messages (NetworkBuffers), in bytes; 0 for a small
  /// one. On the connection's thread.
  size_t MessageRoom() const { return in_counted_ + unpacked_counted_; }

 private:
  enum class Step { kDone, kAsync, kClose };
  enum class Parsed { kRequest, kAnswered, kBroken };
  /// Yields: continues after everything else that waits for this io thread.
  Awaitable<void> Yield();
  /// The log line of a frame that ends the connection.
  Parsed Broken(std::string_view why);
  /// Ends after an unreadable frame; a client of another protocol is told so.
  void EndBroken(const FrameStatus& frame);
  /// Above the limit of connections: whether the request may be served at all.
  bool Admissible();
  /// Whether the client has closed its side or is unreachable. One system call.
  bool PeerGone();
  /// Whether the client waits for no reply to the request that was parsed last.
  bool Unanswered() const;
  /// The client says nothing, and users or roles have changed: begins to look whether its login
  /// still holds. So the audit log tells of a lost login without waiting for the next command.
  void LookAtIdleLogin();
  /// Reads `was` again on a worker, and returns to the thread of the connection, if that is still
  /// there.
  static Awaitable<void> ReadIdleLogin(IoThread& thread, std::weak_ptr<Connection*> whose,
                                       UserAccessPtr was, LoginOrigin origin);
  /// Sets flush_at_: a client that has not logged in gets each reply before its next request runs.
  /// So its requests are not run for nobody, and it holds no replies.
  void SetFlush();
  /// Ends a connection that keeps others waiting for its place and does not log in.
  void CloseBeforeLogin();
  /// Checks the message at the front of the read buffer. False: it is broken, and the connection
  /// ends.
  bool LookAtFront(FrameStatus* frame);
  /// The same before the first message, where TLS may begin.
  bool LookAtFirst(FrameStatus* frame);
  /// Whether a message that begins like this may come; if not, the connection ends.
  bool Takes(std::string_view front, const FrameStatus& frame);
  /// The handshake, on threads for these; what has been read begins it. False: the connection ends.
  Awaitable<bool> BeginTls();
  /// Ends a handshake that takes too long, or whose place another one needs.
  void EndHandshake(std::string_view why);
  /// One of the connections that the user may have, and of those kept for administrators. Errors:
  /// those of LoggedIn.
  Result<void> TakeUserPlace();
  /// Starts the time limit of the client's handshake, if it is not running yet.
  void LimitHandshake();
  /// One step of it, on a thread for these; kClosed, without computing, if it is to end.
  Awaitable<TlsSession::Step> ComputeHandshake(TlsSession& session, Handshakes::Place& place);
  void LogTls(const TlsPeer& peer);
  /// Writes the logout entry of the audit log, if somebody is logged in.
  void AuditLogout(std::string_view reason);
  void HandOver();
  Awaitable<void> Loop();
  /// Takes the message that is complete at the front of the read buffer apart, into state_. An
  /// error about a sound frame is answered, in out_. Any thread, while nobody else has the
  /// connection.
  Parsed ParseMessage(size_t length);
  /// The same on a worker: a large message would make other clients of the io thread wait too
  /// long.
  Awaitable<Parsed> ParseOnWorker(size_t length);
  /// Starts the request that was parsed.
  Step StartRequest();
  Awaitable<bool> FinishAsync();
  /// Sends what it can without waiting: false on error.
  bool WriteSome();
  void MakeRoom(size_t wanted);
  void ReleaseBuffers();
  /// Waits until `bytes` may be held, which `*counted` then says; false when the connection is to
  /// end.
  Awaitable<bool> Admit(size_t bytes, size_t* counted);
  /// Sends all that is in out_, a piece whenever the client has taken the last; false on error.
  Awaitable<bool> WriteAll();
  void ReleaseIn();
  void ReleaseUnpacked();
  /// Counts out_ when it is larger than `least`.
  void CountOut(size_t least);
  void CountSmallIn();
  /// Ends a connection that holds much room without progress, when others wait for room.
  void CloseIfStuck();

  IoThread& thread_;
  ByteStream stream_;
  ClientSlot slot_;
  const bool unix_socket_;
  bool idle_wait_ = false;  // waits without a read buffer
  bool reading_ = false;    // waits for the client
  bool draining_ = false;
  bool in_async_ = false;   // an operation runs that may suspend
  bool spoke_ = false;      // a whole message has arrived
  bool begin_tls_ = false;  // what was read begins TLS
  bool cut_ = false;        // EndHandshake has said why
  bool looking_ = false;    // ReadIdleLogin runs
  /// Ends the wait for a step of the handshake that has not begun; empty: none is waited for.
  std::function<void()> take_back_;
  int64_t handshake_until_ = 0;  ///< MonotonicMicros; 0: no handshake is waited for
  uint8_t idle_ticks_ = 0, extra_ticks_ = 0;
  /// Before the login: ticks since the last whole message, and since the next one began.
  uint32_t quiet_ticks_ = 0, partial_ticks_ = 0;
  /// Bytes of in_, out_ and an unpacked message that NetworkBuffers has counted.
  size_t in_counted_ = 0, out_counted_ = 0, unpacked_counted_ = 0, in_small_ = 0;
  int64_t large_since_ = 0;  ///< MonotonicMicros when the large message at the front began; 0: none
  int64_t write_since_ =
      0;  ///< MonotonicMicros when the client last took something of a reply; 0: it has all
  int64_t write_begun_ = 0;  ///< MonotonicMicros when it began to be waited for
  size_t write_from_ = 0;    ///< out_sent_ then
  std::unique_ptr<char[]> in_;
  size_t in_capacity_ = 0, in_begin_ = 0, in_end_ = 0;
  std::string out_;
  size_t out_sent_ = 0, flush_at_ = 0;
  std::unique_ptr<RequestState> state_;
  ConnectionGate::Ticket ticket_;
  std::shared_ptr<void> user_place_;    ///< one of the connections that the user may have
  bool admitted_ = false;               ///< above the limit, and a member or an administrator
  std::shared_ptr<Connection*> alive_;  ///< of a connection that others may end
};

}  // namespace mayfly
