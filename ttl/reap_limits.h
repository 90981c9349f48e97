#pragma once
#include <optional>
#include <string>

#include "ttl/ttl_rule.h"

namespace mayfly {

/// A part of each day, in a time zone; it may go over midnight.
struct ReapWindow {
  int begin_minute = 0, end_minute = 0;  ///< of the local day; begin inclusive, end exclusive
  std::string timezone;                  ///< empty: UTC

  /// By the local minute of `t` in the time zone.
  bool Contains(Instant t) const;
  /// The first minute from `t` on that is inside; within two days (a day on which the clocks go
  /// forward may have none), else two days from `t`.
  Instant Opens(Instant t) const;
};

/// Index option `reap: {maxDocsPerSecond, window: "02:00-05:00", timezone, catchUpSeconds}`
/// (docs/expiry.md, "Slower, or only at night").
struct ReapLimits {
  int64_t max_docs_per_second = 0;   ///< 0: no limit
  std::optional<ReapWindow> window;  ///< none: always
  int64_t catch_up_seconds = 0;  ///< a lag longer than this lifts the other two; 0: nothing does
};

/// Reads and checks the option. Errors: `code` (CannotCreateIndex 67 at createIndexes,
/// InvalidOptions 72 at collMod) for a value, TypeMismatch 14 for a type; each names the index and
/// the field.
Result<ReapLimits> ParseReapLimits(BsonValue option, ErrorCode code, std::string_view index_name);

/// The limits as the rule's index has them in the catalog; none for other kinds of rules.
ReapLimits StoredReapLimits(const TtlRule& rule);

/// A rate limiter for removals. After a rest, the allowance is a tenth of a second's worth; while
/// something waits, it accumulates without that bound. Does not read a clock. Not thread-safe.
class RateLimiter {
 public:
  /// 0: no limit. A rate that stays keeps what has been spent.
  int64_t rate() const { return rate_; }
  void SetRate(int64_t per_second, int64_t now_millis);
  /// How many documents may be removed now; INT64_MAX without a limit; 0: wait.
  int64_t Available(int64_t now_millis);
  void Spend(int64_t documents);
  /// When the next ones may go, milliseconds. REQUIRES: Available() was 0.
  int64_t NextMillis() const;

 private:
  double Burst() const;
  int64_t rate_ = 0;
  double tokens_ = 0;
  bool waiting_ = false;
  int64_t last_ = 0;
};

}  // namespace mayfly
