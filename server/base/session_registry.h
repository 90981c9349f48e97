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

/// What the latest transaction number of a session has done so far, as the store has it (a copy of
/// its row: server/execution/retryable_writes.cc).
struct TransactionState {
  int64_t number = -1;
  std::string entries;        ///< results of its statements that are not in chunk rows
  size_t last = 0;            ///< where the last entry begins
  uint32_t chunks = 0;        ///< chunk rows of this number
  uint32_t stale_chunks = 0;  ///< chunk rows of an earlier number that are still there
  bool loaded = false;        ///< false: read the row first
  uint64_t epoch = 0;         ///< SessionRegistry::transaction_epoch() when it was read
};

/// A logical session (driver specification "Sessions"): known by the 16 bytes of lsid.id, alive
/// while used.
class Session {
 public:
  /// `share`: what it counts for, given back with it.
  Session(std::string id, std::shared_ptr<void> share)
      : id_(std::move(id)), share_(std::move(share)) {}
  const std::string& id() const { return id_; }
  void Touch(Instant now) { last_use_.store(now.millis); }
  Instant last_use() const { return {last_use_.load()}; }
  std::atomic<bool> ended{false};
  /// The last use that config.system.sessions knows; milliseconds, 0: none.
  int64_t stored_use() const { return stored_use_.load(std::memory_order_relaxed); }
  void set_stored_use(Instant t) { stored_use_.store(t.millis, std::memory_order_relaxed); }

  /// A write with a txnNumber has the session for itself: false while another one runs.
  bool TryCheckOut() { return !busy_.exchange(true, std::memory_order_acquire); }
  void CheckIn() { busy_.store(false, std::memory_order_release); }
  /// REQUIRES: checked out.
  TransactionState& transaction() { return transaction_; }

 private:
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> stored_use_{0};
  TransactionState transaction_;
  const std::string id_;
  std::atomic<int64_t> last_use_{0};
  const std::shared_ptr<void> share_;
};
using SessionPtr = std::shared_ptr<Session>;

/// All sessions of this server. Threads: any. Sessions unused for
/// `localLogicalSessionTimeoutMinutes` end by themselves.
class SessionRegistry {
 public:
  static constexpr size_t kMaxSessions = 1'000'000;
  /// Of one address (IPv6: one /64), so that no client can use up the room of all.
  static constexpr int64_t kMaxClientSessions = 200'000;
  /// Ids that one command may name: drivers send as many at once.
  static constexpr size_t kMaxIds = 10'000;

  /// Finds or creates the session and updates its time of last use. Errors: TooManyLogicalSessions
  /// 261. `address`: the client's "ip:port"; empty for a session of the server itself.
  Result<SessionPtr> Use(std::string_view id, Instant now, std::string_view address = {});
  SessionPtr Find(std::string_view id) const;
  /// A new random one (startSession).
  Result<SessionPtr> Start(Instant now, std::string_view address = {});
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
  Totals totals() const;
  std::vector<std::pair<std::string, Instant>> List() const;
  /// Makes every session read its transaction's row again. Called when this node becomes primary,
  /// because other primaries may have written the row.
  void InvalidateTransactions() { transaction_epoch_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t transaction_epoch() const { return transaction_epoch_.load(std::memory_order_relaxed); }

 private:
  /// Ends it unless it was used after that time.
  bool EndUnused(std::string_view id, int64_t since_millis);
  struct Shard {
    mutable std::mutex mutex;
    ClientStringMap<SessionPtr> sessions;
  };
  static constexpr size_t kShards = 16;
  Shard& shard(std::string_view id) { return shards_[SeededHash(id) % kShards]; }
  const Shard& shard(std::string_view id) const { return shards_[SeededHash(id) % kShards]; }

  std::array<Shard, kShards> shards_;
  std::atomic<int64_t> count_{0}, ended_{0}, timed_out_{0}, started_{0};
  std::atomic<uint64_t> transaction_epoch_{0};
  std::function<void(std::string_view)> on_end_;
};

/// 16 random bytes as a version 4 UUID.
std::string NewUuidBytes();
/// "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
std::string UuidToString(std::string_view bytes16);

}  // namespace mayfly
