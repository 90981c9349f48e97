#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/seeded_hash.h"
#include "query/match/match_expression.h"
#include "security/names.h"
#include "server/dispatch/command.h"

namespace mayfly {

class ServerContext;

/// The facts about a finished operation.
struct FinishedOperation {
  const Operation& op;
  const OperationReport& report;
  const ClientSlot* client;  ///< null for none
  const CommandRequest& request;
  int64_t micros = 0;
  const Error* error = nullptr;  ///< null: it succeeded
  int64_t reply_bytes = 0;
  ServerContext* server = nullptr;  ///< whose it is: it knows collections by their UUIDs
  const UserName* user = nullptr;   ///< who ran it, when neither `op` nor `client` can say
};

/// The database profiler and the rule for slow-operation lines. Levels are per database (0 off, 1
/// slow ones, 2 all); slowms and sampleRate are the server's. Threads: any.
class Profiler {
 public:
  /// The settings of the profile command for a database.
  struct Settings {
    int level = 0;
    std::shared_ptr<const MatchExpression> filter;  ///< replaces slowms and sampleRate; null: none
    BsonDocument filter_source;
  };
  std::atomic<int64_t> slow_ms{100};
  std::atomic<double> sample_rate{1.0};
  std::atomic<int> default_level{0};  ///< --profile: of databases without a setting of their own

  /// A copy. Of a database without settings of its own: the default level and no filter.
  Settings Get(std::string_view db) const;
  /// Errors: ExceededMemoryLimit 146, when kMaxDatabases have settings of their own.
  Result<void> Set(std::string_view db, Settings s);
  static constexpr size_t kMaxDatabases = 10'000;
  static constexpr uint32_t kMaxFilterBytes = 16 << 10;
  /// Time limit for matching a filter with one operation: all are matched at their end.
  static constexpr int64_t kMaxFilterMicros = 1000;
  /// True when any database may have a level above 0: one relaxed load on the fast path.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  void Activate() { active_ = true; }

  /// How to record a finished operation.
  struct Verdict {
    bool log = false, profile = false;
  };
  /// Draws a new sample with each call: once per operation. A filter that is not done within
  /// kMaxFilterMicros does not match. Operations on config and local are never profiled.
  Verdict Judge(const FinishedOperation& f) const;
  /// A document of system.profile.
  static BsonDocument Describe(const FinishedOperation& f, Instant now);
  /// The attributes of the log's "Slow query" line.
  static BsonDocument LogAttributes(const FinishedOperation& f);
  /// Adds the description to <db>.system.profile (a capped collection, made when absent) on a
  /// worker thread. What cannot be written is logged: profiling never fails an operation.
  void Write(ServerContext& server, const FinishedOperation& f);

  /// True while entries wait to be written: one relaxed load on the fast path.
  bool writing() const { return outstanding_.load(std::memory_order_relaxed) != 0; }
  /// For readers of system.profile: `Written(mark)` tells when all entries of answers before
  /// `Mark()` are written (or have failed).
  uint64_t Mark() const;
  bool Written(uint64_t mark) const;

 private:
  mutable std::mutex mutex_;
  ClientStringMap<Settings> settings_;
  struct Entry {
    std::string db;
    BsonDocument document;
  };
  void WriteQueue(ServerContext& server);
  void WriteEntry(ServerContext& server, const Entry& entry);

  // Guarded by mutex_. One worker at a time writes, so that entries are in the order of the
  // answers.
  std::deque<Entry> queue_;
  bool write_queue_runs_ = false;
  uint64_t accepted_ = 0, written_ = 0;
  std::atomic<uint64_t> outstanding_{0};  ///< accepted_ - written_
  std::atomic<bool> active_{false};
};

}  // namespace mayfly
