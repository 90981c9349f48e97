#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "protocol/bson_builder.h"
#include "protocol/seeded_hash.h"
#include "server/base/metrics.h"

namespace mayfly {

/// Time and count of operations by namespace, for the `top` command. Threads: any. A namespace,
/// once seen, stays; beyond kMaxNamespaces new ones share one entry.
class Top {
 public:
  /// So many have room in one reply.
  static constexpr size_t kMaxNamespaces = 20'000;
  static constexpr size_t kMaxNameBytes = 255;
  /// The entry of all others: too many, or not the name of a namespace.
  static constexpr std::string_view kOthers = "(others)";
  enum Kind { kQueries, kGetMore, kInsert, kUpdate, kRemove, kCommands, kKinds };
  /// One namespace. Times are microseconds.
  struct Entry {
    struct Usage {
      Counter micros, count;
    };
    std::array<Usage, kKinds> usage;
    LatencyHistogram reads, writes;  ///< also $collStats.latencyStats
    Counter collection_scans, tailable_scans;
    /// `write` chooses the histogram; commands may be either.
    void Record(Kind kind, bool write, int64_t micros) {
      usage[kind].micros.Add(micros);
      usage[kind].count.Add();
      (write ? writes : reads).Record(micros);
    }
  };
  /// Valid for ever: callers keep it.
  Entry* Find(std::string_view ns);
  /// Null when no operation has used it yet.
  const Entry* Peek(std::string_view ns) const;
  void Append(BsonBuilder& totals) const;

 private:
  mutable std::mutex mutex_;
  ClientStringMap<std::unique_ptr<Entry>> entries_;
};

}  // namespace mayfly
