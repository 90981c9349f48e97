#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/error.h"
#include "protocol/seeded_hash.h"
#include "storage/clock.h"

namespace mayfly {

/// The stored results of a session's latest transaction number (a copy of its row:
/// server/execution/retryable_writes.cc).
struct TransactionState {
  int64_t number = -1;
  std::string entries;        ///< results of its statements that are not in chunk rows
  size_t last = 0;            ///< where the last entry begins
  uint32_t chunks = 0;        ///< chunk rows of this number
  uint32_t stale_chunks = 0;  ///< chunk rows of an earlier number that are still there
  bool loaded = false;        ///< false: read the row first
  uint64_t epoch = 0;         ///< SessionRegistry::transaction_epoch() when it was read
};

/// Sessions are known by the 16 bytes of lsid.id; those of a user who is logged in by these and the
/// 32 bytes of the user's digest behind them, so that nobody meets another one's.
inline constexpr size_t kSessionIdBytes = 16, kSessionUidBytes = 32;
inline constexpr size_t kSessionKeyBytes = kSessionIdBytes + kSessionUidBytes;
/// The two in one, in `buffer`; the id alone when `digest` is empty. REQUIRES: an id of 16 bytes,
/// and a digest of 32.
inline std::string_view SessionKey(std::string_view id, std::string_view digest,
                                   char (&buffer)[kSessionKeyBytes]) {
  if (digest.empty()) return id;
  id.copy(buffer, kSessionIdBytes);
  digest.copy(buffer + kSessionIdBytes, kSessionUidBytes);
  return {buffer, kSessionKeyBytes};
}
/// lsid.id of a session's key.
inline std::string_view SessionUuid(std::string_view key) { return key.substr(0, kSessionIdBytes); }
/// The digest of whose session it is; empty: of nobody, without access control.
inline std::string_view SessionUid(std::string_view key) {
  return key.size() == kSessionKeyBytes ? key.substr(kSessionIdBytes) : std::string_view();
}

/// A logical session (driver specification "Sessions"), alive while used.
class Session : public std::enable_shared_from_this<Session> {
 public:
  explicit Session(std::string id) : id_(std::move(id)) {}
  const std::string& id() const { return id_; }  ///< its key: SessionKey
  void Touch(Instant now) { last_use_.store(now.millis); }
  Instant last_use() const { return {last_use_.load()}; }
  /// Whoever uses it afterwards uses what nobody finds any more.
  bool ended() const { return (state_.load() & kEnded) != 0; }
  /// The last use that config.system.sessions knows; milliseconds, 0: none.
  int64_t stored_use() const { return stored_use_.load(std::memory_order_relaxed); }
  void set_stored_use(Instant t) { stored_use_.store(t.millis, std::memory_order_relaxed); }

  /// A write with a txnNumber has the session for itself: false while another one runs.
  bool TryCheckOut() { return !busy_.exchange(true, std::memory_order_acquire); }
  void CheckIn() { busy_.store(false, std::memory_order_release); }
  bool busy() const { return busy_.load(std::memory_order_relaxed); }
  /// Whether a command, an open cursor or a transaction of it lives (SessionUse).
  bool in_use() const { return (state_.load() & ~kEnded) != 0; }
  /// REQUIRES: checked out.
  TransactionState& transaction() { return transaction_; }

 private:
  friend class SessionRegistry;
  friend class SessionUse;
  /// How many use it, and whether it has ended: in one, so that it cannot end to make room once
  /// somebody has begun to use it.
  static constexpr uint64_t kEnded = uint64_t{1} << 63;
  std::atomic<uint64_t> state_{0};
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> stored_use_{0};
  TransactionState transaction_;
  const std::string id_;
  std::atomic<int64_t> last_use_{0};
  /// What it counts for, given back with it. The last member: its end knows the session by the
  /// others.
  std::shared_ptr<void> share_;
};
using SessionPtr = std::shared_ptr<Session>;

/// Somebody uses a session: it does not end to make room for others, though it may be ended or time
/// out. Whoever makes one looks at Session::ended afterwards. Any thread; each by one at a time.
class SessionUse {
 public:
  SessionUse() = default;
  explicit SessionUse(SessionPtr session) : session_(std::move(session)) {
    if (session_) session_->state_.fetch_add(1);
  }
  SessionUse(SessionUse&& other) noexcept : session_(std::move(other.session_)) {}
  SessionUse& operator=(SessionUse&& other) noexcept {
    if (this != &other) {
      Reset();
      session_ = std::move(other.session_);
    }
    return *this;
  }
  ~SessionUse() { Reset(); }
  /// Uses it no more.
  void Reset() {
    if (!session_) return;
    session_->state_.fetch_sub(1);
    session_.reset();
  }
  /// Null: of none.
  const Session* get() const { return session_.get(); }

 private:
  SessionPtr session_;
};

/// All sessions of this server. Threads: any. Sessions unused for
/// `localLogicalSessionTimeoutMinutes` end by themselves.
class SessionRegistry {
 public:
  SessionRegistry();
  static constexpr size_t kMaxSessions = 1'000'000;
  /// Of one user, or without access control of one address (IPv6: one /64); and never more than the
  /// room that is left, so that one that comes later finds some.
  static constexpr int64_t kMaxClientSessions = 200'000;
  /// Ids that one command may name: drivers send as many at once.
  static constexpr size_t kMaxIds = 10'000;

  /// Here and below, `id` is a session's key. Finds or creates the session and updates its time of
  /// last use. Whoever has as many as may be loses one of its own that was unused for long, unless
  /// all of them are in use (SessionUse). Errors: TooManyLogicalSessions 261.
  /// `address`: the client's "ip:port"; empty for a session of the server itself.
  Result<SessionPtr> Use(std::string_view id, Instant now, std::string_view address = {});
  SessionPtr Find(std::string_view id) const;
  /// A new random one (startSession) of the user with this digest.
  Result<SessionPtr> Start(Instant now, std::string_view address = {},
                           std::string_view digest = {});
  /// Called with the id of each session that ends, whatever the reason: its cursors
  /// follow it. Operations that run go on, as on MongoDB: one may be what ended it.
  void OnEnd(std::function<void(std::string_view id)> f) { on_end_ = std::move(f); }
  bool End(std::string_view id);
  int EndAll();
  int Sweep(Instant now, int64_t timeout_millis);
  size_t size() const;
  /// For serverStatus.logicalSessionRecordCache.
  struct Totals {
    int64_t active = 0, ended = 0, timed_out = 0, started = 0;
  };
  /// Totals are read one after the other, the list shard by shard: neither is one moment. The list
  /// has each session's key and time of last use, in no order.
  Totals totals() const;
  std::vector<std::pair<std::string, Instant>> List() const;
  /// The same of the sessions whose keys `shown` admits; only these are copied, a shard at a time.
  /// `shown` must not use the registry, `f` may; an error of `f` ends it and is the result.
  Result<void> ForEach(
      const std::function<bool(std::string_view key)>& shown,
      const std::function<Result<void>(std::string_view key, Instant last)>& f) const;
  /// Makes every session read its transaction's row again. Called when this node becomes primary,
  /// because other primaries may have written the row.
  void InvalidateTransactions() { transaction_epoch_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t transaction_epoch() const { return transaction_epoch_.load(std::memory_order_relaxed); }

 private:
  /// Ends it unless it was used after that time; `only`: unless it is another one or is in use.
  bool EndUnused(std::string_view id, int64_t since_millis, const Session* only = nullptr);
  struct Shard {
    mutable std::mutex mutex;
    ClientStringMap<SessionPtr> sessions;
  };
  struct Clients;
  /// Ends one of the owner's sessions that was not used for long, when it has as many as it may.
  /// Errors: TooManyLogicalSessions 261: all are in use.
  Result<void> MakeRoomFor(const std::string& owner);
  /// One session more of this owner, until the result goes.
  std::shared_ptr<void> TakeShare(std::string owner, Session* session);
  static constexpr size_t kShards = 16;
  Shard& shard(std::string_view id) { return shards_[SeededHash(id) % kShards]; }
  const Shard& shard(std::string_view id) const { return shards_[SeededHash(id) % kShards]; }

  std::array<Shard, kShards> shards_;
  const std::shared_ptr<Clients> clients_;  ///< sessions that are still in use may outlive this
  std::atomic<int64_t> count_{0}, ended_{0}, timed_out_{0}, started_{0};
  std::atomic<uint64_t> transaction_epoch_{0};
  std::function<void(std::string_view)> on_end_;
};

/// 16 random bytes as a version 4 UUID. Errors: those of RandomBytes.
Result<std::string> NewUuidBytes();
/// "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" of the first 16 bytes.
std::string UuidToString(std::string_view bytes16);

}  // namespace mayfly
