#include "replication/transport.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "security/tls.h"
#include "storage/kv/thread_scheduling.h"

namespace mayfly {
namespace asio = boost::asio;
namespace {

constexpr size_t kMaxQueuedBytes = 96 << 20;  // per member; one entry of the largest size must fit
constexpr size_t kMaxQueued = 16384;
constexpr size_t kMaxCallers = 16;  // members that called before a configuration named them
constexpr size_t kFlushBytes = 1 << 20;
/// A member that is refused asks again and again. The same reason is logged once a minute.
constexpr int64_t kTellAgainMs = 60'000;
constexpr size_t kMaxRefusals = 64;
constexpr int64_t kHandshakeMs = kLinkHandshakeMs, kFirstPauseMs = 50, kLastPauseMs = 1000;
constexpr int kProbeAttempts = 3;
constexpr int64_t kProbeAgainMs = 200;
/// A stream that was silent for this long, and for several heartbeats, counts as broken even
/// without an error.
constexpr int64_t kSilentMs = 5000, kSilentHeartbeats = 3;
/// The same for a stream that another member has opened. Until the configuration arrives, its
/// heartbeats may be rarer than ours.
constexpr int64_t kSilentCallerMs = 60'000;

using Timer =
    asio::basic_waitable_timer<std::chrono::steady_clock,
                               asio::wait_traits<std::chrono::steady_clock>, LinkExecutor>;

/// Closes the link unless cancelled in time.
class Watchdog {
 public:
  Watchdog(LinkExecutor executor, std::shared_ptr<MemberLink> link, int64_t ms)
      : timer_(std::make_shared<Timer>(executor, std::chrono::milliseconds(ms))) {
    timer_->async_wait([link, timer = timer_](boost::system::error_code ec) {
      if (!ec) link->Close();
    });
  }
  ~Watchdog() { timer_->cancel(); }
  Watchdog(const Watchdog&) = delete;

 private:
  std::shared_ptr<Timer> timer_;
};

}  // namespace

struct Transport::Peer {
  Peer(NodeId id, std::string address, asio::io_context& context)
      : id(id), address(std::move(address)), wake(context.get_executor()) {}
  const NodeId id;
  std::string address;  ///< mutex
  bool listed = false;  ///< mutex: a member, not only a caller
  std::atomic<bool> gone{false};

  std::mutex mutex;
  std::deque<std::pair<uint8_t, std::string>> queue;
  size_t queued_bytes = 0;

  // Net thread.
  Timer wake;
  std::shared_ptr<MemberLink> link;
  bool writing = false;
  std::string last_error;
};

namespace {
std::shared_ptr<MemberLink> LinkOf(asio::io_context& context, HandedConnection connection) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  ::getsockname(connection.socket, reinterpret_cast<sockaddr*>(&name), &size);
  ByteStream stream(LinkSocket(context.get_executor(),
                               asio::generic::stream_protocol(name.ss_family, 0),
                               connection.socket));
  stream.set_tls(std::move(connection.tls));
  auto link = std::make_shared<MemberLink>(std::move(stream));
  link->Unread(connection.early);
  return link;
}

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
}  // namespace

Transport::Transport(Options options)
    : o_(std::move(options)),
      net_work_(net_.get_executor()),
      bulk_work_(bulk_.get_executor()),
      heartbeat_ms_(o_.heartbeat_ms) {}

Transport::~Transport() { Stop(); }

void Transport::Start() {
  net_thread_ = std::thread([this] {
    UseShortTimeSlices();
    net_.run();
  });
  bulk_thread_ = std::thread([this] { bulk_.run(); });
}

void Transport::Stop() {
  if (stopped_.exchange(true)) return;
  net_.stop();
  bulk_.stop();
  if (net_thread_.joinable()) net_thread_.join();
  if (bulk_thread_.joinable()) bulk_thread_.join();
}

void Transport::AddPeer(const Address& a, bool listed) {
  std::lock_guard l(mutex_);
  if (!listed && !peers_.contains(a.id)) {
    size_t callers = 0;
    for (auto& [id, p] : peers_) callers += !p->listed;
    if (callers >= kMaxCallers) return;
  }
  auto& slot = peers_[a.id];
  if (slot && slot->address == a.address) {
    slot->listed |= listed;
    return;
  }
  if (slot) {
    if (!listed) return;  // the configuration is more reliable than what the caller says
    slot->gone = true;
    asio::post(net_, [old = slot] {
      if (old->link) old->link->Close();
      old->wake.cancel();
    });
  }
  slot = std::make_shared<Peer>(a.id, a.address, net_);
  slot->listed = listed;
  // Posted, because on the net thread it would run right here, under the lock.
  asio::post(net_, [this, peer = slot] {
    asio::co_spawn(net_.get_executor(), Stream(peer), asio::detached);
  });
}

void Transport::SetHeartbeat(int64_t ms) {
  if (heartbeat_ms_.exchange(ms) == ms) return;
  asio::post(net_, [this] {
    std::lock_guard l(mutex_);
    for (auto& [id, peer] : peers_) peer->wake.cancel();
  });
}

void Transport::SetPeers(std::vector<Address> peers) {
  for (const Address& a : peers) AddPeer(a, true);
  std::lock_guard l(mutex_);
  for (auto it = peers_.begin(); it != peers_.end();) {
    const bool keep = std::any_of(peers.begin(), peers.end(),
                                  [&](const Address& a) { return a.id == it->first; });
    if (keep || !it->second->listed) {
      ++it;
      continue;
    }
    it->second->gone = true;
    asio::post(net_, [old = it->second] {
      if (old->link) old->link->Close();
      old->wake.cancel();
    });
    it = peers_.erase(it);
  }
}

std::optional<std::string> Transport::AddressOf(NodeId id) {
  std::lock_guard l(mutex_);
  auto it = peers_.find(id);
  if (it == peers_.end()) return {};
  return it->second->address;
}

bool Transport::Send(NodeId to, uint8_t type, std::string_view body) {
  std::shared_ptr<Peer> peer;
  {
    std::lock_guard l(mutex_);
    auto it = peers_.find(to);
    if (it == peers_.end()) return false;
    peer = it->second;
  }
  bool wake = false;
  {
    std::lock_guard l(peer->mutex);
    if (peer->queue.size() >= kMaxQueued || peer->queued_bytes + body.size() > kMaxQueuedBytes)
      return false;
    wake = peer->queue.empty();
    peer->queue.emplace_back(type, std::string(body));
    peer->queued_bytes += body.size();
  }
  if (wake) asio::post(net_, [peer] { peer->wake.cancel(); });
  return true;
}

LinkTask<void> Transport::Pause(std::shared_ptr<Peer> peer, int64_t ms) {
  peer->wake.expires_after(std::chrono::milliseconds(ms));
  co_await peer->wake.async_wait(asio::as_tuple(kLinkAwait));
}

LinkTask<void> Transport::Stream(std::shared_ptr<Peer> peer) {
  int64_t pause = kFirstPauseMs;
  while (!peer->gone && !stopped_) {
    std::string address;
    {
      std::lock_guard l(mutex_);
      address = peer->address;
    }
    Log('D', "Member " + address + ": connecting");
    auto made = co_await MakeLink(address, o_.identity(), LinkPurpose::kStream, peer->id);
    Error why;
    if (made) {
      std::shared_ptr<MemberLink> link = std::move(made.value().link);
      pause = kFirstPauseMs;
      peer->link = link;
      peer->last_error.clear();
      // The member accepts data, so it is alive; its answers wait behind the data.
      link->moved = [this, id = peer->id] { o_.moved(id, true); };
      {
        // Messages that waited for a connection are outdated: the engine has sent them again, or
        // given up.
        std::lock_guard l(peer->mutex);
        peer->queue.clear();
        peer->queued_bytes = 0;
      }
      Log('D', "Member " + address + ": connected");
      o_.link_changed(peer->id, true, {});
      peer->writing = true;
      asio::co_spawn(net_.get_executor(), Writer(peer, link), asio::detached);
      for (;;) {
        auto frame = co_await link->Read();
        if (!frame) {
          why = frame.error();
          break;
        }
        if (frame.value().type == kHeartbeatAnswer)
          o_.received(peer->id, kHeartbeatAnswer, frame.value().body);
      }
      link->Close();
      peer->link.reset();
      while (peer->writing) {  // the writer still uses the link
        peer->wake.cancel();
        co_await Pause(peer, 1);
      }
    } else {
      why = made.error();
    }
    if (peer->gone || stopped_) break;
    if (why.message != peer->last_error)
      Log('W', "Member " + address + " cannot be reached: " + why.message);
    peer->last_error = why.message;
    o_.link_changed(peer->id, false, why);
    const int64_t until = NowMs() + pause;
    while (!peer->gone && NowMs() < until) co_await Pause(peer, until - NowMs() + 1);
    pause = std::min(pause * 2, kLastPauseMs);
  }
}

LinkTask<void> Transport::Writer(std::shared_ptr<Peer> peer, std::shared_ptr<MemberLink> link) {
  int64_t last_heartbeat = INT64_MIN / 2, next_heartbeat = 0;
  while (!peer->gone && peer->link == link) {
    const int64_t now = NowMs(), every = heartbeat_ms_;
    // The TLS mode was changed (setParameter tlsMode), so the stream is opened again.
    if (o_.tls != nullptr && o_.tls->dials() && !link->stream().encrypted()) {
      link->Close();
      break;
    }
    link->CloseAfterSilence(std::max(kSilentMs, every * kSilentHeartbeats));
    next_heartbeat = last_heartbeat + every;
    if (now >= next_heartbeat) {
      link->Add(kHeartbeat, o_.heartbeat(peer->id));
      last_heartbeat = now;
      next_heartbeat = now + every;
    }
    for (;;) {
      std::pair<uint8_t, std::string> next;
      {
        std::lock_guard l(peer->mutex);
        if (peer->queue.empty() || link->unsent() >= kFlushBytes) break;
        next = std::move(peer->queue.front());
        peer->queue.pop_front();
        peer->queued_bytes -= next.second.size();
      }
      link->Add(next.first, next.second);
    }
    if (link->unsent() > 0) {
      auto flushed = co_await link->Flush();
      if (!flushed) {
        link->Close();
        break;
      }
      continue;
    }
    bool empty = false;
    {
      std::lock_guard l(peer->mutex);
      empty = peer->queue.empty();
      // From here on a Send finds the queue empty and posts a wake-up, which runs after the wait
      // below has begun.
    }
    if (empty) co_await Pause(peer, std::max<int64_t>(next_heartbeat - now, 1));
  }
  peer->writing = false;
}

void Transport::Adopt(HandedConnection connection) {
  if (stopped_) {
    ::close(connection.socket);
    return;
  }
  if (adopting_.fetch_add(1) >= kMaxHandshakes) {
    adopting_.fetch_sub(1);
    ::close(connection.socket);
    return;
  }
  asio::post(net_, [this, connection = std::move(connection)]() mutable {
    adopting_.fetch_sub(1);
    asio::co_spawn(net_.get_executor(), Serve(std::move(connection)), asio::detached);
  });
}

void Transport::LogRefusal(const std::string& why) {
  const int64_t now = NowMs();
  std::erase_if(refusals_, [&](const auto& r) { return now - r.second > kTellAgainMs; });
  if (refusals_.size() < kMaxRefusals && !refusals_.emplace(why, now).second) return;
  Log('W', "A connection that asked to be a member's was refused: " + why);
}

void Transport::EnterHandshake(const std::shared_ptr<MemberLink>& link) {
  std::erase_if(handshakes_, [](const std::weak_ptr<MemberLink>& h) { return h.expired(); });
  while (handshakes_.size() >= kMaxHandshakes) {
    if (auto oldest = handshakes_.front().lock()) oldest->Close();
    handshakes_.pop_front();
    LogRefusal("too many have not proved yet that they are members");
  }
  handshakes_.push_back(link);
}

LinkTask<void> Transport::Serve(HandedConnection connection) {
  auto link = LinkOf(net_, std::move(connection));
  EnterHandshake(link);
  Result<LinkPeer> greeted = Error{};
  {
    Watchdog dog(net_.get_executor(), link, kHandshakeMs);
    greeted = co_await link->Accept(o_.identity(), o_.admit);
  }
  std::erase_if(handshakes_, [&](const std::weak_ptr<MemberLink>& h) {
    return h.expired() || h.lock() == link;
  });
  if (!greeted) {
    if (greeted.error().code != ErrorCode::kHostUnreachable) LogRefusal(greeted.error().message);
    link->Close();
    co_return;
  }
  const LinkPeer peer = greeted.value();
  Log('D', "A member's connection of purpose " + std::to_string(static_cast<int>(peer.purpose)));
  if (peer.purpose == LinkPurpose::kProbe) {
    link->Close();
    co_return;
  }
  if (links_ + fetches_->load() >= kMaxLinks) {
    LogRefusal("there are " + std::to_string(kMaxLinks) + " connections of members already");
    link->Close();
    co_return;
  }
  if (peer.purpose == LinkPurpose::kFetch) {
    // On the thread for copies: reading files must not delay messages.
    auto moved = LinkOf(bulk_, link->stream().Release());
    moved->TakeKeys(*link);
    fetches_->fetch_add(1);
    asio::co_spawn(bulk_.get_executor(), o_.serve_fetch(moved, peer.info.id),
                   [fetches = fetches_](std::exception_ptr) { fetches->fetch_sub(1); });
    co_return;
  }
  ++links_;
  co_await ServeStream(link, peer);
  --links_;
  link->Close();
}

LinkTask<void> Transport::ServeStream(std::shared_ptr<MemberLink> link, LinkPeer peer) {
  if (!peer.address.empty()) AddPeer({peer.info.id, peer.address}, false);
  link->moved = [this, id = peer.info.id] { o_.moved(id, false); };
  link->CloseAfterSilence(std::max(kSilentCallerMs, heartbeat_ms_ * kSilentHeartbeats));
  for (;;) {
    auto frame = co_await link->Read();
    if (!frame) {
      if (frame.error().code != ErrorCode::kHostUnreachable)
        Log('W', "The stream of a member was cut: " + frame.error().message);
      break;
    }
    if (frame.value().type == kHeartbeat) {
      link->Add(kHeartbeatAnswer, o_.answer(peer.info.id, frame.value().body));
      auto flushed = co_await link->Flush();
      if (!flushed) break;
    } else if (frame.value().type == kRaft || frame.value().type == kStepUp) {
      o_.received(peer.info.id, frame.value().type, frame.value().body);
    }
  }
}

LinkTask<Result<NodeInfo>> Transport::ProbeNode(std::string address, std::string set_id) {
  LinkIdentity identity = o_.identity();
  if (!set_id.empty()) identity.set_id = set_id;
  auto made = co_await MakeLink(address, std::move(identity), LinkPurpose::kProbe, 0);
  if (!made) co_return made.error();
  made.value().link->Close();
  co_return made.value().peer.info;
}

void Transport::Probe(std::string address, std::string set_id, int64_t timeout_ms,
                      std::function<void(Result<NodeInfo>)> done) {
  auto once = std::make_shared<std::function<void(Result<NodeInfo>)>>(std::move(done));
  auto finish = [once](Result<NodeInfo> r) {
    if (!*once) return;
    auto f = std::move(*once);
    *once = nullptr;
    f(std::move(r));
  };
  asio::post(net_, [this, address, set_id, timeout_ms, finish, once] {
    auto timer =
        std::make_shared<Timer>(net_.get_executor(), std::chrono::milliseconds(timeout_ms));
    timer->async_wait([timer, finish, address](boost::system::error_code ec) {
      if (!ec) finish(Error{ErrorCode::kHostUnreachable, address + " does not answer in time"});
    });
    asio::co_spawn(
        net_.get_executor(),
        [](Transport* self, std::string address, std::string set_id, decltype(finish) finish,
           decltype(once) once, std::shared_ptr<Timer> timer) -> LinkTask<void> {
          Result<NodeInfo> answer = Error{};
          for (int attempt = 1;; ++attempt) {
            answer = co_await self->ProbeNode(address, set_id);
            // A server that is starting, or is too busy to accept, is tried again.
            if (answer || answer.error().code != ErrorCode::kHostUnreachable ||
                attempt == kProbeAttempts || !*once || self->stopped_)
              break;
            Timer pause(self->net_.get_executor(), std::chrono::milliseconds(kProbeAgainMs));
            co_await pause.async_wait(asio::as_tuple(kLinkAwait));
          }
          timer->cancel();
          finish(std::move(answer));
        }(this, address, set_id, finish, once, timer),
        asio::detached);
  });
}

}  // namespace mayfly
