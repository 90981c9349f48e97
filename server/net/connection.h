#pragma once
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/intrusive/list.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/wire_message.h"
#include "server/base/session_registry.h"
#include "server/base/top.h"
#include "server/dispatch/command.h"
#include "server/dispatch/operation_registry.h"
#include "server/net/connection_gate.h"

namespace mayfly {

class Dispatcher;
class IoThread;
struct RequestState;

using ClientSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, IoExecutor>;

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
  IoExecutor io_executor();

  // What the handshake leaves behind (used by hello and the dispatcher only).
  bool metadata_seen = false;
  bool hello_seen = false;
  uint8_t compressors = 0;  ///< bit 1 << Compressor: agreed in hello
  bool is_internal_client = false;
  Top::Entry* top_entry = nullptr;  ///< of the namespace used last, and its name
  std::string top_ns, top_scratch;
  /// Set by a command that takes the socket over (the member stream). Called after the reply, with
  /// the socket and the bytes that were read behind the command.
  std::function<void(int socket, std::string early)> hand_over;
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

 private:
  enum class Step { kDone, kAsync, kClose };
  enum class Parsed { kRequest, kAnswered, kBroken };
  /// Yields: continues after everything else that waits for this io thread.
  Awaitable<void> Yield();
  /// The log line of a frame that ends the connection.
  Parsed Broken(std::string_view why);
  /// A frame that cannot be read: what speaks another protocol is told so.
  void EndBroken(const FrameStatus& frame);
  /// Above the limit of connections: whether the request may be served at all.
  bool Admissible();
  /// What is known of the message at the front of the read buffer. False: it is broken, and the
  /// connection ends.
  bool LookAtFront(FrameStatus* frame);
  void HandOver();
  Awaitable<void> Loop();
  /// Takes the message that is complete at the front of the read buffer apart, into state_. An
  /// error about a sound frame is answered, in out_. Any thread, while nobody else has the
  /// connection.
  Parsed ParseMessage(size_t length);
  /// The same on a worker: what is large takes longer than other clients of the io thread should
  /// wait.
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
  /// Ends a connection that holds much and does not get on, when others wait for room.
  void CloseIfStuck();

  IoThread& thread_;
  ClientSocket socket_;
  ClientSlot slot_;
  const bool unix_socket_;
  bool idle_wait_ = false;  // waits without a read buffer
  bool reading_ = false;    // waits for the client
  bool draining_ = false;
  bool in_async_ = false;  // an operation runs that may suspend
  bool spoke_ = false;     // a message has come whole
  uint8_t idle_ticks_ = 0, extra_ticks_ = 0;
  /// Of in_, out_ and what a compressed message holds: counted with the NetworkBuffers.
  size_t in_counted_ = 0, out_counted_ = 0, unpacked_counted_ = 0, in_small_ = 0;
  int64_t large_since_ = 0;  ///< MonotonicMicros when the large message at the front began; 0: none
  int64_t write_since_ =
      0;  ///< MonotonicMicros when the client last took something of a reply; 0: it has all
  int64_t write_begun_ = 0;  ///< MonotonicMicros when it began to be waited for
  size_t write_from_ = 0;    ///< out_sent_ then
  std::unique_ptr<char[]> in_;
  size_t in_capacity_ = 0, in_begin_ = 0, in_end_ = 0;
  std::string out_;
  size_t out_sent_ = 0;
  std::unique_ptr<RequestState> state_;
  ConnectionGate::Ticket ticket_;
  bool member_ = false;                 ///< above the limit, and a member all the same
  std::shared_ptr<Connection*> alive_;  ///< of an extra connection, which others may end
};

}  // namespace mayfly
