#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/instant.h"

namespace mayfly {

/// The start date of a collection's own expiry rule (not an index's), from its records'
/// keys.
enum class RecordDates : uint8_t {
  kId,       ///< clustered: the `_id`, a date
  kBuckets,  ///< the lower bound of a bucket: the seconds that its `_id`, an ObjectId, begins with
};

/// The date of a record with this `_id`. False when it has none, or one before 1970 (docs/expiry.md
/// R6). Threads: any, of all three.
bool DateOfRecord(RecordDates dates, BsonValue id, int64_t* millis);
/// The same of its id as RecordIdOf gives it; those before 1970 too.
bool DecodeRecordDate(RecordDates dates, std::string_view record_id, Instant* date);
/// Appends what is the first key of records with this date or a later one; `millis` before 1970
/// counts as 1970.
void AppendRecordDate(RecordDates dates, int64_t millis, std::string& key);
/// Appends what is behind all records with dates.
void AppendRecordDatesEnd(RecordDates dates, std::string& key);

}  // namespace mayfly
