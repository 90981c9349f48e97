#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "query/match/match_expression.h"
#include "server/command.h"

namespace mayfly {

class ServerContext;

/// The database profiler and the rule for slow-operation lines. Levels are per database (0 off, 1
/// slow ones, 2 all); slowms and sampleRate are the server's. Threads: any.
class Profiler {
 public:
  struct Settings {
    int level = 0;
    std::shared_ptr<const MatchExpression> filter;  ///< replaces slowms and sampleRate; null: none
    BsonDocument filter_source;
  };
  std::atomic<int64_t> slow_ms{100};
  std::atomic<double> sample_rate{1.0};

  Settings Get(std::string_view db) const;
  void Set(std::string_view db, Settings s);
  /// True when any database has a level above 0: one relaxed load on the fast path.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  /// Slow enough for the log, by slowms and sampleRate.
  bool IsSlow(int64_t micros) const;

  /// Appends system.profile's fields of a finished operation (`millis`, `ns`, `command`, counters
  /// …).
  static void Describe(ServerContext& server, const CommandContext& ctx, const CommandRequest& req,
                       int64_t micros, const Error* error, int64_t reply_bytes, BsonBuilder& out);

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Settings> settings_;
  std::atomic<bool> active_{false};
};

}  // namespace mayfly
