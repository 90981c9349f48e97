#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "storage/storage.h"
#include "ttl/ttl_parameters.h"
#include "ttl/ttl_rule.h"

namespace mayfly {

/// What the monitor needs of the process around it. Every function may be empty; all are called on
/// the monitor's thread.
struct TtlEnvironment {
  std::function<bool()> may_run;          ///< false: fsync lock, not primary, shutting down
  std::function<bool()> foreground_busy;  ///< whether clients are being served right now
  std::function<int64_t()> slow_millis;   ///< a visit slower than this is logged at info
  std::function<void(char severity, std::string_view message, BsonView attributes)> log;
  /// An operation for one visit that currentOp shows ({delete: coll, deletes: [{q: …, limit: 0}]},
  /// desc "TTLMonitor"); released at its end.
  std::function<std::shared_ptr<Operation>(const CollectionInfo& coll, BsonView command)>
      begin_operation;
  /// After a visit that deleted something: what the profiler records.
  std::function<void(const CollectionInfo& coll, BsonView command, Operation& op, int64_t micros)>
      profile;
};

/// Removes what is due. One thread, which sleeps until the next deadline of any rule (precise mode)
/// and runs MongoDB's passes and sub-passes every ttlMonitorSleepSecs (EXPIRY rules T1-T8). Deletes
/// go through write units like a client's. The clock is the injected one; a clock moved by hand
/// wakes it.
///
/// Threads: the public functions, any. Owned by main; stopped before the storage closes.
class TtlMonitor {
 public:
  TtlMonitor(Storage& storage, Clock& clock, const TtlParameters& parameters, TtlMetrics& metrics,
             BatchedDeleteMetrics& batched, TtlEnvironment environment);
  ~TtlMonitor();
  void Start();
  void
  Stop();  ///< stops in the middle of a visit, between batches; returns when the thread has ended

  /// Looks again: a parameter changed.
  void Wake();
  /// Runs one pass and returns when it is over. Blocking; not for io threads.
  void RunPass();
  /// Returns when everything that the clock's present reading makes due has been removed (in
  /// interval mode: when the passes due by now have run). Blocking.
  void Settle();

 private:
  struct Limits {
    int64_t docs = 0, millis = 0;  ///< 0: none
  };
  struct Visit {
    int64_t deleted = 0;
    bool more = false;  ///< stopped by a limit, or some documents were locked by others
    bool failed = false;
  };

  void Run();
  bool Enabled() const;
  bool Stopping() const { return stop_.load(std::memory_order_relaxed); }
  void Pass(Instant at);
  /// Removes what is due now, rule by rule, until nothing is. False when the work was interrupted.
  bool Prompt();
  Visit VisitRule(const TtlRule& rule, Instant at, Limits limits);
  Result<Visit> Reap(Operation& op, const TtlRule& rule, int64_t from, int64_t threshold,
                     Limits limits);
  /// One write unit. Keys that are locked by others are left and reported in `*busy`.
  Result<int64_t> DeleteBatch(Operation& op, const TtlRule& rule, int64_t threshold,
                              std::span<const std::string_view> keys, int* busy);
  /// The earliest deadline over all rules; INT64_MAX: none. Looks into an index only where that is
  /// not known.
  int64_t NextDeadline();
  Result<void> Peek(const TtlRule& rule);
  void RefreshRules();
  void ReportInvalid();
  void Breathe();
  void Log(char severity, std::string_view message, const TtlRule* rule,
           const std::function<void(BsonBuilder&)>& more = {});

  Storage& storage_;
  Clock& clock_;
  const TtlParameters& parameters_;
  TtlMetrics& metrics_;
  BatchedDeleteMetrics& batched_;
  TtlEnvironment env_;

  // The thread's own.
  std::vector<TtlRule> rules_;
  std::vector<InvalidTtlRule> invalid_;
  uint64_t rules_version_ = UINT64_MAX;
  std::unordered_set<std::string> reported_;  ///< index and reason: logged once
  std::unordered_map<uint64_t, int64_t>
      uncovered_;  ///< deletes in a TTL index since its last range delete
  int64_t next_pass_ = 0;
  int64_t since_breath_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  bool woken_ = false;
  uint64_t passes_wanted_ = 0, passes_done_ = 0, settles_wanted_ = 0, settles_done_ = 0;
  std::atomic<bool> stop_{false};
  bool started_ = false;
  std::thread thread_;
};

}  // namespace mayfly
