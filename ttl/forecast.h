#pragma once
#include <optional>
#include <string>
#include <vector>

#include "storage/storage.h"
#include "ttl/rule_range.h"

namespace mayfly {

class TtlControls;

/// A number of documents or index entries, and how far to trust it.
struct Counted {
  double n = 0;
  bool exact = true;
};

/// Up to this many entries of a rule are counted; more are estimated.
inline constexpr int64_t kCountAllEntries = 300'000;

/// Counts what a rule has between given dates. Many entries are estimated from the bytes that the
/// store's files have between the keys, calibrated range by range by stretches that are counted,
/// which also measure the error. This cannot measure memtables: where they matter (some percent of
/// the rule's bytes) they are flushed first. Not thread-safe; for one use. Blocking: about a tenth
/// of a second at most, however large the index is.
class RangeCounter {
 public:
  RangeCounter(Storage& storage, Operation& op, const TtlRule& rule,
               int64_t count_all = kCountAllEntries)
      : storage_(storage), op_(op), rule_(rule), count_all_(count_all) {}

  /// `bounds`: ascending dates (milliseconds); answers one number for each [bounds[i],
  /// bounds[i+1]). INT64_MIN and INT64_MAX: no bound.
  Result<std::vector<Counted>> Count(const std::vector<int64_t>& bounds);
  /// One range, from a few look-ups and without a flush: for figures that are asked for again and
  /// again.
  Result<double> CountRoughly(int64_t from, int64_t to);
  /// The relative error to expect of the estimates of the last Count; 0 when all were exact.
  double error_fraction() const { return error_; }
  /// Record keys of entries met on the way, spread over what was counted: for looking at documents.
  const std::vector<std::string>& samples() const { return samples_; }

 private:
  struct Stretch {
    double entries = 0, bytes = 0;
    bool whole = false;  ///< from the beginning of a block to that of another
  };
  /// The ranges of one Count, and the measurements of each.
  struct Sampled {
    std::vector<RuleRange> ranges;
    std::vector<double> bytes;                   ///< of each range
    std::vector<std::vector<Stretch>> in_range;  ///< whole stretches that lie in it
    std::vector<Stretch> of_range;  ///< stretches used for it: its own or those of similar ranges
  };
  /// Counts every entry; nothing when there are more than count_all_.
  Result<std::optional<std::vector<Counted>>> CountAll(const std::vector<RuleRange>& ranges);
  /// Measures stretches at equal distances over all the bytes. False: no estimate is possible.
  Result<bool> Sample(Sampled* s);
  /// Fills s->of_range. False: no stretch gives an estimate (`rest`: those cut short).
  static bool Weigh(const Stretch& rest, Sampled* s);
  /// Numbers out of the stretches; ranges that seem small are counted.
  Result<std::vector<Counted>> Estimate(const Sampled& s);
  static double ErrorOf(const Sampled& s, const std::vector<Counted>& counted);
  Result<int64_t> Scan(const RuleRange& range, int64_t most, size_t samples_every);
  /// Counts some thousand entries that begin where `share` of the range's bytes lie before them.
  Result<Stretch> Measure(const RuleRange& range, double bytes, double share);
  /// How many entries there are, when that follows from the number of documents.
  bool KnownTotal(int64_t* total) const;
  Result<void> FlushIfNeeded();

  Storage& storage_;
  Operation& op_;
  const TtlRule& rule_;
  const int64_t count_all_;
  std::vector<std::string> samples_;
  double error_ = 0;
};

/// Entries that are due at op.now and not removed. An answer without a look into the index when
/// nothing is. `roughly`: as CountRoughly.
Result<Counted> CountDue(Storage& storage, Operation& op, const TtlRule& rule, bool roughly);

inline constexpr int64_t kForecastExactDocuments = 50'000;

/// What ttlForecast asks for.
struct ForecastOptions {
  int64_t horizon_seconds = 86'400;
  int buckets = 24;
  int64_t count_all = kCountAllEntries;  ///< as RangeCounter has it
  int64_t exact_documents =
      kForecastExactDocuments;  ///< collections up to this size are read document by document
};
/// ttlForecast's answer.
struct Forecast {
  struct Interval {
    Instant from, to;  ///< deadlines in (from, to]
    int64_t count = 0;
    std::vector<int64_t> by_rule;  ///< as `rules`
    /// For buckets of time series: the points that go with them, and their stored size.
    double points = 0, bytes = 0;
  };
  std::vector<std::string> rules;
  std::vector<Interval> intervals;
  int64_t overdue = 0, beyond = 0, never = 0;
  bool of_buckets = false;  ///< there is a time series in it
  bool exact = true;
  double error_fraction = 0;  ///< relative, of what is not exact
};

/// How many documents of a collection will expire when, each counted at its earliest deadline and
/// for the rule that sets it. Collections of up to options.exact_documents are looked at document
/// by document; larger ones through their rules' entries in order of time. `controls` may be null;
/// held documents count at the end of their hold. Errors: CheckInterrupt's, the store's.
Result<Forecast> MakeForecast(Storage& storage, Operation& op, const CollectionInfoPtr& coll,
                              const std::vector<TtlRule>& rules, const ForecastOptions& options,
                              const TtlControls* controls);

}  // namespace mayfly
