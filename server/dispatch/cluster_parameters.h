#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

class Operation;
class ReplicaSet;
class Storage;
struct DumpDeadlines;
struct ServerParameters;

/// Parameters that a whole set has in common (manual: "Cluster Parameters"): settings of the
/// catalog, so every member gets them with the log and a copy has them too. Threads: any.
class ClusterParameters {
 public:
  static constexpr std::string_view kSettingPrefix = "clusterParameter/";

  /// `settings` follows what is set here, and outlives it.
  explicit ClusterParameters(ServerParameters& settings) : settings_(settings) {}
  /// Reads them all again: at start-up, and when the log has changed one.
  void Load(Storage& storage);
  /// Checks and stores {name: {…}}. Errors: NoSuchKey 4 for a name there is not, TypeMismatch 14,
  /// BadValue 2, IllegalOperation 20 for what only a set has; the store's.
  /// `set`: null on a standalone, here and below.
  Result<void> Set(Storage& storage, ReplicaSet* set, Operation& op, std::string_view name,
                   BsonValue value);
  /// Appends {_id: name, …}. Errors: NoSuchKey 4, IllegalOperation 20.
  Result<void> Append(Storage& storage, const ReplicaSet* set, std::string_view name,
                      BsonArrayBuilder& out);
  /// The names that this server has: those of a set, on a set only.
  static std::vector<std::string_view> Names(const ReplicaSet* set);

  /// changeStreamOptions.preAndPostImages.expireAfterSeconds; -1: "off".
  int64_t image_expiry_seconds() const { return image_expiry_.load(std::memory_order_relaxed); }

  /// Whether dump_deadlines() names a field.
  bool has_dump_deadlines() const { return has_dump_deadlines_.load(std::memory_order_relaxed); }
  /// Null until it is set.
  std::shared_ptr<const DumpDeadlines> dump_deadlines() const;

 private:
  ServerParameters& settings_;
  std::atomic<int64_t> image_expiry_{-1};
  std::atomic<bool> has_dump_deadlines_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const DumpDeadlines> dump_deadlines_;
};

}  // namespace mayfly
