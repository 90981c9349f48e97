#pragma once
#include <string>

#include "storage/kv/kv.h"
#include "ttl/ttl_rule.h"

namespace mayfly {

/// The key range of a rule's entries with dates in a given range. Counting and sampling use it
/// without decoding anything.
struct RuleRange {
  Keyspace keyspace = Keyspace::kExpiry;
  std::string begin, end;  ///< end: exclusive
};

/// Dates in [from, to) as milliseconds; INT64_MIN and INT64_MAX stand for "from the first" and "to
/// the last". Descending indexes have the later dates in front.
RuleRange DatesOf(const TtlRule& rule, int64_t from, int64_t to);
/// Every entry of the rule, also those without a date.
RuleRange EverythingOf(const TtlRule& rule);
/// The full record key that an entry in a range of DatesOf belongs to, in `*out`.
void RecordKeyOfEntry(const TtlRule& rule, std::string_view key, std::string_view value,
                      std::string* out);

}  // namespace mayfly
