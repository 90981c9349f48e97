#pragma once
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "replication/member_link.h"

namespace mayfly {

/// The connections between members. Each member opens one stream to every other and sends its
/// messages on it; the answers come on the stream of the other. Nothing here waits for a member:
/// queues are bounded, messages that do not fit are dropped (the engine sends again), and broken
/// streams are opened again after a pause that grows from 50 ms to 1 s. Threads: its own two (one
/// for messages, one for copies of data files); calls from any.
class Transport {
 public:
  enum Message : uint8_t { kRaft = 10, kHeartbeat = 11, kHeartbeatAnswer = 12, kStepUp = 13 };
  struct Options {
    std::function<LinkIdentity()> identity;  ///< as it is now; any thread
    /// Another node that has the key and asks for a connection: whether it is let in. Its thread,
    /// must not block.
    std::function<Result<void>(const LinkPeer& peer)> admit;
    /// A message of an authenticated member; its thread, must not block.
    std::function<void(NodeId from, uint8_t type, std::string_view body)> received;
    /// A heartbeat to be sent to this member, and the answer to one.
    std::function<std::string(NodeId to)> heartbeat;
    std::function<std::string(NodeId from, std::string_view heartbeat)> answer;
    /// The stream to this member was opened, or broke or could not be opened (why).
    std::function<void(NodeId peer, bool up, const Error& why)> link_changed;
    /// Part of a frame has gone to this member (`sent`) or come from it, the rest follows; its
    /// thread.
    std::function<void(NodeId peer, bool sent)> moved;
    /// Serves a copy of the data: runs on the thread for copies as long as the link lasts.
    std::function<LinkTask<void>(std::shared_ptr<MemberLink>, NodeId peer)> serve_fetch;
    std::function<void(char severity, std::string_view message)> log;
    int heartbeat_ms = 250;
    Tls* tls = nullptr;  ///< whether streams to others have to be encrypted; null: never
  };
  /// Another member to talk to, "host:port".
  struct Address {
    NodeId id;
    std::string address;
  };

  explicit Transport(Options options);
  ~Transport();  ///< Stop
  /// Start makes the two threads, once. Stop joins them and may be repeated: nothing is called
  /// after it, so it must not be called from a callback.
  void Start();
  void Stop();

  /// How often heartbeats go out; from now on. Any thread.
  void SetHeartbeat(int64_t ms);
  /// Sets the members to talk to. Streams to others are closed; unlisted members that have called
  /// keep theirs.
  void SetPeers(std::vector<Address> peers);
  /// Any thread, never waits. False: not sent (no such peer, or its queue is full).
  bool Send(NodeId to, uint8_t type, std::string_view body);
  /// Takes over a connection that asked for the member stream. At most kMaxHandshakes of these may
  /// be in the handshake; beyond that, the oldest one is closed. Members answer at once, so the
  /// oldest one is rarely a member. At most kMaxLinks links of members exist. Any thread.
  void Adopt(HandedConnection connection);
  static constexpr size_t kMaxHandshakes = 32, kMaxLinks = 96;
  /// Asks who lives at an address; one that cannot be reached is asked three times, within
  /// `timeout_ms`. `set_id`: told instead of this node's own, unless empty.
  void Probe(std::string address, std::string set_id, int64_t timeout_ms,
             std::function<void(Result<NodeInfo>)> done);

  /// The thread that sends and receives copies of data files.
  boost::asio::io_context& bulk() { return bulk_; }
  std::optional<std::string> AddressOf(NodeId id);

 private:
  struct Peer;
  LinkTask<void> Stream(std::shared_ptr<Peer> peer);
  LinkTask<void> Writer(std::shared_ptr<Peer> peer, std::shared_ptr<MemberLink> link);
  LinkTask<void> Serve(HandedConnection connection);
  LinkTask<void> ServeStream(std::shared_ptr<MemberLink> link, LinkPeer peer);
  /// Closes the oldest connection in the handshake when there are too many.
  void EnterHandshake(const std::shared_ptr<MemberLink>& link);
  /// Connects and asks who lives there; once.
  LinkTask<Result<NodeInfo>> ProbeNode(std::string address, std::string set_id);
  LinkTask<void> Pause(std::shared_ptr<Peer> peer, int64_t ms);
  void AddPeer(const Address& a, bool listed);
  void LogRefusal(const std::string& why);
  void Log(char severity, const std::string& message) {
    if (o_.log) o_.log(severity, message);
  }

  Options o_;
  boost::asio::io_context net_{1}, bulk_{1};
  boost::asio::executor_work_guard<LinkExecutor> net_work_, bulk_work_;
  std::thread net_thread_, bulk_thread_;
  std::mutex mutex_;
  std::map<NodeId, std::shared_ptr<Peer>> peers_;
  std::atomic<size_t> adopting_{0};                   ///< posted by Adopt, not begun
  std::deque<std::weak_ptr<MemberLink>> handshakes_;  ///< net thread: the oldest first
  size_t links_ = 0;                                  ///< net thread: streams of proven members
  std::shared_ptr<std::atomic<size_t>> fetches_ = std::make_shared<std::atomic<size_t>>(0);
  std::map<std::string, int64_t> refusals_;  ///< net thread: reasons and when they were told
  std::atomic<bool> stopped_{false};
  std::atomic<int64_t> heartbeat_ms_;
};

}  // namespace mayfly
