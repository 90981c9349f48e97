#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ttl/reap_pacer.h"
#include "ttl/ttl_environment.h"
#include "ttl/ttl_parameters.h"
#include "ttl/ttl_schedule.h"

namespace mayfly {

/// Where a visit to a rule ends.
struct VisitLimits {
  int64_t docs = 0, millis = 0;  ///< 0: none
};

/// What a visit to a rule has done.
struct Visit {
  int64_t deleted = 0, bytes = 0;
  bool more = false;     ///< stopped by a limit, or some documents were locked by others
  bool blocked = false;  ///< the latter: it is no use to try again at once
  int64_t locked = 0;    ///< of these: by open transactions
  bool failed = false;   ///< it cannot go on
  std::string error;     ///< empty: none; also of a single document that had to stay
};

/// Deletes what is due by one rule, in order of time. Documents are locked, read again, checked and
/// deleted a group at a time in one write unit; MongoDB's batches are parts of a group and counted
/// as such (docs/expiry.md T6, T7). The monitor thread's own.
class TtlReaper {
 public:
  TtlReaper(Storage& storage, Clock& clock, const TtlParameters& parameters, TtlMetrics& metrics,
            BatchedDeleteMetrics& batched, const TtlEnvironment& environment,
            std::function<bool()> keep_on);

  /// Deletes what is due at `at`, until there is nothing more or a limit is met.
  Visit Run(TtlSlot& slot, Instant at, VisitLimits limits);
  /// Finds the earliest date of a rule where it is not known.
  Result<void> Peek(const TtlRule& rule);
  /// The log line for the work on the rule since the last one, if it was slow.
  void LogWork(TtlSlot& slot);
  void Stop() { pacer_.Stop(); }

 private:
  struct Work;
  Result<void> Reap(Work& w);
  /// One write unit. Deletes the first of `keys` (sorted); returns how many of them it dealt with.
  /// `rest`: with them the group is complete.
  Result<size_t> DeleteGroup(Work& w, std::span<const std::string_view> keys, bool rest);
  Result<void> Cover(Work& w);
  /// Reads the first remaining document into the block cache, because the next query in time order
  /// starts there. (The reaper's own reads do not fill the cache.) Errors are ignored; the query
  /// will report them.
  void WarmHead(const TtlRule& rule, int64_t millis);
  void Log(char severity, std::string_view message, const TtlRule& rule,
           const std::function<void(BsonBuilder&)>& more = {});

  Storage& storage_;
  Clock& clock_;
  const TtlParameters& parameters_;
  TtlMetrics& metrics_;
  BatchedDeleteMetrics& batched_;
  const TtlEnvironment& env_;
  const std::function<bool()> keep_on_;
  ReapPacer pacer_;

  // Buffers kept from one group to the next.
  std::vector<std::string> keys_;
  std::vector<std::string_view> views_;
  std::vector<int64_t> dates_;
  std::vector<WriteUnit::Locked> locked_;
  size_t fit_ = ReapPacer::kLargest;  ///< documents that one unit takes, as far as is known
  int64_t batch_micros_ = 0;          ///< not yet a millisecond of timeInBatchMillis
};

}  // namespace mayfly
