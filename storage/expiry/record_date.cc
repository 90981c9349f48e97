#include "storage/expiry/record_date.h"

#include <algorithm>

#include "protocol/value.h"
#include "storage/expiry/expiry_state.h"
#include "storage/keys/key_classes.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

constexpr int64_t kSecondsEnd = int64_t{1} << 32;  ///< what an ObjectId has room for

}  // namespace

bool DateOfRecord(RecordDates dates, BsonValue id, int64_t* millis) {
  if (dates == RecordDates::kBuckets) {
    if (!id.Is(BsonType::kObjectId)) return false;
    *millis = int64_t{LoadBe32(id.ObjectId().data())} * 1000;
    return true;
  }
  if (!id.IsDate() || id.Date().millis < 0) return false;
  *millis = id.Date().millis;
  return true;
}

bool DecodeRecordDate(RecordDates dates, std::string_view record_id, Instant* date) {
  if (dates == RecordDates::kId) return DecodeDate(record_id, false, date);
  if (record_id.size() < 13 || static_cast<uint8_t>(record_id[0]) != key::kClassObjectId)
    return false;
  date->millis = int64_t{LoadBe32(record_id.data() + 1)} * 1000;
  return true;
}

void AppendRecordDate(RecordDates dates, int64_t millis, std::string& key) {
  millis = std::max<int64_t>(millis, 0);
  if (dates == RecordDates::kId) {
    EncodeKeyValue(Value::Date({millis}).view(), false, key);
    return;
  }
  const int64_t seconds = millis / 1000 + (millis % 1000 != 0 ? 1 : 0);
  if (seconds >= kSecondsEnd) {
    AppendRecordDatesEnd(dates, key);
    return;
  }
  key.push_back(static_cast<char>(key::kClassObjectId));
  AppendBe32(key, static_cast<uint32_t>(seconds));
}

void AppendRecordDatesEnd(RecordDates dates, std::string& key) {
  EncodeTypeClassEnd(dates == RecordDates::kId ? BsonType::kDate : BsonType::kObjectId, key);
}

}  // namespace mayfly
