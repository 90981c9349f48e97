#pragma once
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "protocol/value.h"
#include "storage/operation.h"
#include "ttl/ttl_rule.h"

namespace mayfly {

/// Why a rule will never remove a document (ttlCheck names them so).
enum class NeverExpires : uint8_t {
  kNo,  ///< it will
  kMissing,
  kNull,
  kString,
  kNumber,
  kBool,
  kTimestamp,
  kObjectId,
  kObject,
  kEmptyArray,
  kArrayWithoutDate,
  kOtherType,
  kBeforeEpoch,  ///< clustered collections: docs/expiry.md R6
  kFiltered,     ///< outside the partial index
  kSuspended,    ///< a time series in which a date suspends all expiry
  kCount
};
/// "missing", "string", "emptyArray", …
std::string_view NeverExpiresName(NeverExpires why);

/// The date that the rule counts from: the earliest one of an array (docs/expiry.md R4 to R6).
/// `header_deadline`: the document's own, from the record's header. Nothing, with the reason in
/// `*why`, when there is none, or while the rule is suspended: the lower bound of a bucket before
/// 1970 or after 2106 is no date that its `_id` could tell. `why` may be null. Its filter checks
/// the operation of FilteringFor, and counts as not matching if that must stop.
/// Threads: any.
std::optional<int64_t> DateByRule(const TtlRule& rule, BsonView doc,
                                  std::optional<Instant> header_deadline, NeverExpires* why);

/// "ttlIndex", "clustered" or "document".
std::string_view RuleKindName(const TtlRule& rule);
/// When a document with this date expires, for reads and forecasts. Its removal comes later if it
/// can be recovered for a time.
inline int64_t ExpiryOf(const TtlRule& rule, int64_t date) {
  return rule.kind == TtlRule::Kind::kDocument ? date : rule.Deadline(date);
}

/// The effect of a rule on the existing documents: one scan of the collection.
struct RuleCensus {
  int64_t total = 0;                             ///< documents
  int64_t now = 0, next_hour = 0, next_day = 0;  ///< due; due within … from now, those due apart
  int64_t will_expire = 0;
  std::optional<int64_t> oldest, newest;  ///< dates that the rule counts from
  std::array<int64_t, static_cast<size_t>(NeverExpires::kCount)> never{};
  /// Some `_id`s for each reason.
  std::array<std::vector<Value>, static_cast<size_t>(NeverExpires::kCount)> samples;
};
/// Looks at every document, with one clock reading (op.now). `rule` need not exist. Blocking;
/// interruptible. Errors: those of Operation::CheckInterrupt and of the store.
Result<RuleCensus> TakeCensus(Storage& storage, Operation& op, const TtlRule& rule,
                              size_t samples_a_reason);

}  // namespace mayfly
