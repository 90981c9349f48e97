#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "ttl/ttl_rule.h"

namespace mayfly {

/// What the monitor needs of the process around it. Every function may be empty; all are called on
/// the monitor's thread.
struct TtlEnvironment {
  std::function<bool()> may_run;  ///< false: fsync lock, not primary, shutting down
  /// Client requests so far: shows between two groups of deletes whether clients are active.
  std::function<int64_t()> foreground_requests;
  /// Microseconds that have really passed, sleep of the machine included; differences only. Empty:
  /// the clock's MonotonicMicros.
  std::function<int64_t()> elapsed_micros;
  std::function<int64_t()> slow_millis;  ///< work on a rule that took longer is logged at info
  std::function<void(char severity, std::string_view message, BsonView attributes)> log;
  /// An operation for one visit that currentOp shows ({delete: coll, deletes: [{q: …, limit: 0}]},
  /// desc "TTLMonitor"); released at its end.
  std::function<std::shared_ptr<Operation>(const CollectionInfo& coll, BsonView command)>
      begin_operation;
  /// After a visit that deleted something: what the profiler records.
  std::function<void(const CollectionInfo& coll, BsonView command, Operation& op, int64_t micros)>
      profile;
  /// The time from which the rule may be worked on (paused, held by the guard …). At or before
  /// `now`: yes; Instant{INT64_MAX}: not before TtlMonitor::ControlsChanged. Asked once per visit.
  std::function<Instant(const TtlRule& rule, Instant now)> may_reap;
  /// When the first hold on the collection ends by itself; Instant{INT64_MAX}: none does. What was
  /// left behind is looked at again then, at TtlMonitor::ControlsChanged and at every pass.
  std::function<Instant(const CollectionInfo& coll, Instant now)> hold_ends;
};

}  // namespace mayfly
