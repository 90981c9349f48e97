#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "protocol/error.h"
#include "storage/clock.h"

namespace mayfly {

/// A logical session (driver specification "Sessions"): known by the 16 bytes of lsid.id, alive
/// while used.
class Session {
 public:
  explicit Session(std::string id) : id_(std::move(id)) {}
  const std::string& id() const { return id_; }
  void Touch(Instant now) { last_use_.store(now.millis, std::memory_order_relaxed); }
  Instant last_use() const { return {last_use_.load(std::memory_order_relaxed)}; }
  std::atomic<bool> ended{false};

 private:
  const std::string id_;
  std::atomic<int64_t> last_use_{0};
};
using SessionPtr = std::shared_ptr<Session>;

/// All sessions of this server. Threads: any. Sessions unused for
/// `localLogicalSessionTimeoutMinutes` end by themselves.
class SessionRegistry {
 public:
  static constexpr size_t kMaxSessions = 1'000'000;

  /// Finds or makes it, and touches it. Errors: TooManyLogicalSessions 261.
  Result<SessionPtr> Use(std::string_view id, Instant now);
  SessionPtr Find(std::string_view id) const;
  /// A new random one (startSession).
  Result<SessionPtr> Start(Instant now);
  /// Called with the id of each session that ends, whatever the reason: cursors and operations
  /// follow it.
  void OnEnd(std::function<void(std::string_view id)> f) { on_end_ = std::move(f); }
  bool End(std::string_view id);
  int EndAll();
  int Sweep(Instant now, int64_t timeout_millis);
  size_t size() const;
  struct Totals {
    int64_t active = 0, ended = 0, timed_out = 0, started = 0;
  };
  Totals totals() const;
  std::vector<std::pair<std::string, Instant>> List() const;

 private:
  struct Shard {
    mutable std::mutex mutex;
    std::unordered_map<std::string, SessionPtr> sessions;
  };
  static constexpr size_t kShards = 16;
  Shard& shard(std::string_view id) { return shards_[std::hash<std::string_view>()(id) % kShards]; }
  const Shard& shard(std::string_view id) const {
    return shards_[std::hash<std::string_view>()(id) % kShards];
  }

  std::array<Shard, kShards> shards_;
  std::atomic<int64_t> count_{0}, ended_{0}, timed_out_{0}, started_{0};
  std::function<void(std::string_view)> on_end_;
};

/// 16 random bytes as a version 4 UUID.
std::string NewUuidBytes();
/// "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
std::string UuidToString(std::string_view bytes16);

}  // namespace mayfly
