#pragma once
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/intrusive/list.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/wire_message.h"
#include "server/command.h"
#include "server/operation_registry.h"
#include "server/session_registry.h"
#include "server/top.h"

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
             bool unix_socket);
  ~Connection();

  int64_t id() const { return slot_.connection_id; }
  ClientSlot& slot() { return slot_; }
  const std::string& remote() const { return slot_.address; }
  bool unix_socket() const { return unix_socket_; }
  IoExecutor io_executor();

  // What the handshake leaves behind (used by hello and the dispatcher only).
  bool metadata_seen = false;
  bool hello_seen = false;
  uint8_t compressors = 0;  ///< bit 1 << Compressor: agreed in hello
  bool is_internal_client = false;
  Top::Entry* top_entry = nullptr;  ///< of the namespace used last, and its name
  std::string top_ns, top_scratch;
  /// Set by a command: after its reply the socket is no client's any more. Gets it with the bytes read behind the command.
  std::function<void(int socket, std::string early)> hand_over;
  SessionPtr last_session;  ///< saves the look-up for the next operation of the same session

  /// The life of the connection. Destroys it at the end.
  static Awaitable<void> Run(std::unique_ptr<Connection> self);

  /// From the io thread's timer: gives back buffers of an idle client, ends the operation of one
  /// that has gone.
  void Tick();
  /// Closes at once when idle, else after the running operation.
  void Drain();

 private:
  enum class Step { kDone, kAsync, kClose };
  Awaitable<void> Loop();
  /// Parses and starts the message that is complete at the front of the read buffer.
  Step StartMessage(size_t length);
  Awaitable<bool> FinishAsync();
  /// Sends what it can without waiting: false on error.
  bool WriteSome();
  void MakeRoom(size_t wanted);
  void ReleaseBuffers();

  IoThread& thread_;
  ClientSocket socket_;
  ClientSlot slot_;
  const bool unix_socket_;
  bool idle_wait_ = false;  // waits without a read buffer
  bool reading_ = false;    // waits for the client
  bool draining_ = false;
  bool in_async_ = false;  // an operation runs that may suspend
  uint8_t idle_ticks_ = 0;
  std::unique_ptr<char[]> in_;
  size_t in_capacity_ = 0, in_begin_ = 0, in_end_ = 0;
  std::string out_;
  size_t out_sent_ = 0;
  std::unique_ptr<RequestState> state_;
};

}  // namespace mayfly
