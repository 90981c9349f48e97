#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "protocol/instant.h"
#include "protocol/seeded_hash.h"
#include "server/dispatch/parameters.h"
#include "storage/storage.h"
#include "timeseries/point_columns.h"

namespace mayfly {

/// A bucket as the sealer knows it.
struct BucketRef {
  std::array<char, 12> id;
  uint32_t points = 0, bytes = 0;  ///< bytes: of the points as BSON, or of what was stored
  bool rows = true;                ///< not by columns
};

/// The buckets of one meta value and span that are worth merging now, as places in `refs`, the
/// small ones first; empty: none. Buckets of one size are merged once there are several, so that a
/// point is rewritten only a few times, however the points arrive. `last`: nothing arrived for a
/// while, so fewer are enough.
std::vector<size_t> BucketsToMerge(std::span<const BucketRef> refs, bool last);

/// Merges small buckets of time series into sealed ones: in the background, on a standalone or a
/// primary. Those are merged that have the same meta value and whose floors are in the same window:
/// a multiple of the span, and a span long. Each merge is one write unit, so that each point is in
/// one bucket at any moment. It finds unknown buckets (after a start, on a new primary, when there
/// were too many) by one search over all buckets.
///
/// Threads: any; the work is done by a thread of its own, or by Settle's caller.
class BucketSealer {
 public:
  struct Environment {
    std::function<bool()> may_run;  ///< a standalone or a primary, and no fsync lock; any thread
    std::function<void(std::string_view message, BsonView attributes)> warn;
  };
  /// All of it outlives this.
  BucketSealer(Storage& storage, SystemClock& clock, const ServerParameters& settings,
               Environment env);
  ~BucketSealer();
  void Start();
  /// Waits for the merge that is running.
  void Stop();
  /// The member became primary, or stopped being primary: earlier knowledge is useless.
  void Restart();

  /// New buckets of one unit, after it was committed. Does not block.
  struct Inserted {
    std::string meta;  ///< the type's byte, then the value's; of no meta value: one byte
    Instant floor;
    BucketRef ref;
  };
  /// `span_seconds`: how much time a bucket of theirs covers.
  void NoteInserted(uint32_t collection, int32_t span_seconds, std::vector<Inserted> buckets);

  /// While it lives no buckets of the collection are merged.
  class KeptOut {
   public:
    KeptOut() = default;
    KeptOut(KeptOut&& o) noexcept : sealer_(o.sealer_), collection_(o.collection_) {
      o.sealer_ = nullptr;
    }
    KeptOut& operator=(KeptOut&&) = delete;
    ~KeptOut();

   private:
    friend class BucketSealer;
    BucketSealer* sealer_ = nullptr;
    uint32_t collection_ = 0;
  };
  /// For a write that visits buckets in several steps. Waits for a merge of this collection that is
  /// running. Errors: those of an interrupt. Not for io threads.
  Result<KeptOut> KeepOut(uint32_t collection, Operation& op);

  /// Does all pending work, until `op` is interrupted: points may arrive as fast as they are
  /// merged. What is kept out is left for later.
  void Settle(Operation& op);
  /// Fields of `collStats.timeseries`: counts since this server started.
  void AppendStats(uint32_t collection, BsonBuilder& out) const;
  /// Tracked meta values and spans. For tests.
  size_t groups() const;
  size_t counted() const;  ///< collections that it has counts of

 private:
  struct Group {
    uint32_t collection = 0;
    Instant begin, end;  ///< the window: of its floors
    std::string key;
    std::vector<BucketRef> refs;
    int64_t last_millis = 0;  ///< when a point came
    int64_t not_before = 0;   ///< monotonic microseconds: it could not be merged, and rests first
    bool queued = false;      ///< in ready_
    bool resting = false;     ///< in resting_, not in waiting_
    bool busy = false;        ///< being merged
    bool strange = false;     ///< there may be buckets that `refs` does not name
    size_t Bytes() const;
  };
  using Groups = std::list<Group>;
  struct Stats {
    int64_t inserts = 0, points = 0, commits = 0, merged = 0, sealed = 0;
    int64_t by_count = 0, by_idle = 0, by_memory = 0;  ///< why groups were taken up
  };
  /// The progress of the search for unknown buckets.
  struct Search {
    std::vector<uint32_t> collections;  ///< the rest; the last is being searched
    std::string after;                  ///< its `_id`; empty: from the beginning
    int64_t not_before = 0;             ///< monotonic microseconds: it has failed, and rests first
  };

  void Run();
  /// One merge, or one step of the search; false when nothing is to be done now, or there is no
  /// memory for it.
  bool Step();
  bool StepOnce();
  /// A group that has something to merge. `*last`: nothing came for a while. REQUIRES: mutex_.
  Group* Take(bool* last);
  /// `group`: a copy.
  void Work(Group group, bool last, uint64_t generation);
  enum class Outcome : uint8_t { kDone, kMore, kLater, kForget };
  /// `known`: the buckets of the group, to which those that it finds are added.
  Outcome MergeAll(const CollectionInfoPtr& coll, Group& group, bool last,
                   std::set<std::string>* known);
  /// Merges `refs` in one unit; returns the result. Nothing: leave them alone. Errors: conflicts.
  Result<std::vector<BucketRef>> Merge(const CollectionInfoPtr& coll, const Group& group,
                                       std::span<const BucketRef> refs);
  /// Buckets of the same meta value and span, known or not, that are not large.
  Result<std::vector<BucketRef>> Siblings(const CollectionInfoPtr& coll, const Group& group);
  bool SearchStep();
  /// It failed in collection `id`, behind `after`: it is not over.
  void SearchLater(uint32_t id, const std::string& after, uint64_t generation, std::string_view ns,
                   const Error& error);
  /// Whether the search has met enough of this meta value and window to merge, with this bucket.
  bool Suffices(uint32_t collection, uint64_t generation, const BucketRef& ref, Instant window,
                std::string key);
  // REQUIRES, of all five: mutex_.
  Stats& StatsOf(uint32_t collection);
  /// `found`: by the search, not by an insert.
  Group& Find(uint32_t collection, int32_t span_seconds, std::string_view meta, Instant floor,
              bool found);
  void Erase(Groups::iterator group);
  void SearchFor(uint32_t collection);
  void MakeRoom();
  bool MayRun() const;

  Storage& storage_;
  SystemClock& clock_;
  const ServerParameters& settings_;
  const Environment env_;

  std::mutex step_mutex_;  ///< one merge at a time; before mutex_
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  Groups waiting_;  ///< the one whose last point is the oldest first
  Groups resting_;  ///< merged as far as it goes, and their span is not over
  ClientViewMap<Groups::iterator> by_key_;
  std::deque<std::string> ready_;  ///< keys of groups that need not wait
  size_t bytes_ = 0;               ///< of all groups, about
  uint64_t generation_ = 0;        ///< of Restart
  Search search_;
  static constexpr size_t kStatsAtOnce = 64;
  std::map<uint32_t, Stats> stats_;
  size_t stats_most_ = kStatsAtOnce;  ///< so many, and those of dropped collections go

  /// What the search has met in the window that it is in, by Group::key: buckets come in the order
  /// of their floors. Guarded by step_mutex_.
  struct Seen {
    uint64_t generation = 0;
    uint32_t collection = 0;
    Instant window{INT64_MIN};
    size_t refs = 0;
    ClientStringMap<std::vector<BucketRef>> by_key;
  };
  Seen seen_;

  std::mutex gate_mutex_;
  std::condition_variable gate_;
  uint32_t merging_ = 0;                 ///< the collection of the merge that is running
  std::map<uint32_t, int> kept_out_of_;  ///< collections, and how many keep it out

  std::thread thread_;
};

}  // namespace mayfly
