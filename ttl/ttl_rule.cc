#include "ttl/ttl_rule.h"

#include <algorithm>

#include "protocol/value.h"
#include "storage/index_keys.h"
#include "storage/key_encoding.h"
#include "storage/key_format.h"

namespace mayfly {
namespace {

std::string EncodeDate(int64_t millis, bool descending) {
  std::string key;
  EncodeKeyValue(Value::Date({millis}).view(), descending, key);
  return key;
}

/// First key behind every key of the date type, in scan order of an ascending field.
std::string DatesEnd() {
  std::string key;
  EncodeTypeClassEnd(BsonType::kDate, key);
  return key;
}
/// For a descending field: first key behind the smallest date.
std::string DatesEndDescending() {
  std::string begin;
  EncodeTypeClassBegin(BsonType::kDate, begin);
  return std::string(1, static_cast<char>(static_cast<uint8_t>(~begin[0]) + 1));
}

}  // namespace

std::vector<TtlRule> ListTtlRules(Catalog& catalog, std::vector<InvalidTtlRule>* invalid) {
  std::vector<TtlRule> rules;
  for (CollectionInfoPtr& coll : catalog.ListAll()) {
    if (coll->is_view) continue;
    if (coll->clustered && coll->expire_after_seconds)
      rules.push_back({coll, nullptr, *coll->expire_after_seconds});
    for (const IndexInfoPtr& index : coll->indexes) {
      if (!index->expire_after_seconds || index->state != IndexState::kReady) continue;
      const char* reason = nullptr;
      if (index->fields.size() != 1)
        reason = "the key has more than one field";
      else if (!index->fields[0].special.empty())
        reason = "a special index type has no order of time";
      else if (coll->capped)
        reason = "the collection is capped";
      if (reason)
        invalid->push_back({coll, index, reason});
      else
        rules.push_back({coll, index, *index->expire_after_seconds});
    }
  }
  return rules;
}

TtlCursor::TtlCursor(Storage& storage, const TtlRule& rule, int64_t from, int64_t to)
    : descending_(rule.index && rule.index->fields[0].descending) {
  if (!rule.index) {
    // EXPIRY rule R6: on clustered collections the scan starts at the epoch.
    RecordScan scan;
    scan.lower = IdPrefix(rule.coll->id) + EncodeDate(std::max<int64_t>(from, 0), false);
    scan.upper =
        IdPrefix(rule.coll->id) + (to == INT64_MAX ? DatesEnd() : EncodeDate(to + 1, false));
    scan.fill_cache = false;
    records_ = storage.ScanRecords(rule.coll, std::move(scan));
    return;
  }
  IndexScan scan;
  scan.fill_cache = false;
  scan.backward = descending_;
  if (descending_) {
    scan.lower = EncodeDate(to, true);
    scan.upper = from == INT64_MIN ? DatesEndDescending() : EncodeDate(from - 1, true);
  } else {
    scan.lower = EncodeDate(from, false);
    scan.upper = to == INT64_MAX ? DatesEnd() : EncodeDate(to + 1, false);
  }
  index_ = storage.ScanIndex(rule.coll, rule.index, std::move(scan));
}

Result<bool> TtlCursor::Next() {
  for (;;) {
    MAYFLY_TRY(bool found, index_ ? index_->Next() : records_->Next());
    if (!found) return false;
    Instant date;
    std::string_view encoded =
        index_ ? index_->encoded_values() : RecordIdOf(records_->record_key());
    if (!DecodeDate(encoded, descending_, &date)) continue;
    millis_ = date.millis;
    return true;
  }
}

std::string_view TtlCursor::record_key() const {
  return index_ ? index_->record_key() : records_->record_key();
}

bool IsDue(const TtlRule& rule, BsonView doc, int64_t threshold) {
  if (!rule.index) {
    BsonValue id = doc["_id"];
    return id.IsDate() && id.Date().millis >= 0 && id.Date().millis <= threshold;
  }
  const IndexInfo& index = *rule.index;
  const IndexField& field = index.fields[0];
  // The plain case: a date in a top-level field, no partial filter.
  if (!index.has_partial_filter && field.path.find('.') == std::string::npos) {
    BsonValue v = doc.Find(field.path);
    if (!v.IsArray()) return v.IsDate() && v.Date().millis <= threshold;
  }
  KeySet keys;
  if (!ExtractKeys(index, doc, &keys)) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    Instant date;
    if (DecodeDate(keys.values(i), field.descending, &date) && date.millis <= threshold)
      return true;
  }
  return false;
}

}  // namespace mayfly
