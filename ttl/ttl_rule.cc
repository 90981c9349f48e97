#include "ttl/ttl_rule.h"

#include "protocol/value.h"
#include "storage/catalog/index_keys.h"
#include "storage/catalog/namespace.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"
#include "storage/read/visibility.h"

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

void ListTtlRulesOf(const CollectionInfoPtr& coll, std::vector<TtlRule>* rules,
                    std::vector<InvalidTtlRule>* invalid) {
  using Kind = TtlRule::Kind;
  if (coll->is_view()) return;
  // This is the temporary collection of an $out. Pauses and holds of the target apply to it from
  // the moment that it takes the target's place. A document that was removed before would be lost.
  if (coll->temporary) return;
  if (!coll->capped())
    rules->push_back({Kind::kDocument, coll, nullptr, coll->expiry_options.recover_seconds});
  if (coll->clustered() && coll->expire_after_seconds) {
    if (coll->ExpirySuspended())
      invalid->push_back({coll, nullptr, kExpirySuspended});
    else
      rules->push_back(
          {Kind::kClustered, coll, nullptr, *coll->expire_after_seconds + coll->RuleSpanSeconds()});
  }
  for (const IndexInfoPtr& index : coll->indexes) {
    if (!index->expire_after_seconds || index->state != IndexState::kReady) continue;
    if (const char* reason = CheckTtlRule(*coll, *index))
      invalid->push_back({coll, index, reason});
    else
      rules->push_back(
          {Kind::kTtlIndex, coll, index, *index->expire_after_seconds + coll->RuleSpanSeconds()});
  }
}

std::vector<TtlRule> ListTtlRules(Catalog& catalog, std::vector<InvalidTtlRule>* invalid) {
  std::vector<TtlRule> rules;
  for (CollectionInfoPtr& coll : catalog.ListAll()) ListTtlRulesOf(coll, &rules, invalid);
  return rules;
}

TtlCursor::TtlCursor(Storage& storage, const TtlRule& rule, int64_t from, int64_t to,
                     std::string_view at_entry, bool fill_cache)
    : rule_index_(rule.index),
      dates_(rule.coll->record_dates()),
      descending_(rule.index && rule.index->fields[0].descending) {
  if (rule.kind == TtlRule::Kind::kDocument) {
    KvIterOptions o;
    o.lower = DeadlinePrefix(rule.coll->id);
    AppendTime64(o.lower, {from});
    if (!at_entry.empty()) o.lower = at_entry;
    if (to == INT64_MAX) {
      o.upper = DeadlinePrefixEnd(rule.coll->id);
    } else {
      o.upper = DeadlinePrefix(rule.coll->id);
      AppendTime64(o.upper, {to + 1});
    }
    o.fill_cache = fill_cache;
    queue_ = storage.kv().NewIterator(Keyspace::kExpiry, std::move(o));
    return;
  }
  if (!rule.index) {
    // docs/expiry.md R6: on clustered collections the scan starts at the epoch.
    RecordScan scan;
    const RecordDates dates = rule.coll->record_dates();
    scan.lower = scan.upper = IdPrefix(rule.coll->id);
    AppendRecordDate(dates, from, scan.lower);
    if (to == INT64_MAX)
      AppendRecordDatesEnd(dates, scan.upper);
    else
      AppendRecordDate(dates, to + 1, scan.upper);
    if (!at_entry.empty()) scan.lower = at_entry;
    scan.fill_cache = fill_cache;
    records_ = storage.ScanRecords(rule.coll, std::move(scan));
    return;
  }
  IndexScan scan;
  scan.fill_cache = fill_cache;
  scan.backward = descending_;
  if (descending_) {
    scan.lower = EncodeDate(to, true);
    scan.upper = from == INT64_MIN ? DatesEndDescending() : EncodeDate(from - 1, true);
  } else {
    scan.lower = EncodeDate(from, false);
    scan.upper = to == INT64_MAX ? DatesEnd() : EncodeDate(to + 1, false);
  }
  if (!at_entry.empty()) {
    at_entry.remove_prefix(kIdPrefixSize);
    if (descending_)
      (scan.upper = at_entry).push_back('\0');
    else
      scan.lower = at_entry;
  }
  index_ = storage.ScanIndex(rule.coll, rule.index, std::move(scan));
}

Result<bool> TtlCursor::Next() {
  if (queue_) {
    if (started_)
      queue_->Next();
    else
      queue_->SeekToFirst();
    started_ = true;
    if (!queue_->Valid()) {
      MAYFLY_TRY(queue_->status());
      return false;
    }
    uint32_t collection;
    Instant deadline;
    std::string_view record_id;
    if (!DecodeDeadlineKey(queue_->key(), &collection, &deadline, &record_id))
      return Error{ErrorCode::kInternalError, "corrupt entry in a queue of deadlines"};
    record_key_.clear();
    AppendBe32(record_key_, collection);
    record_key_.append(record_id);
    millis_ = deadline.millis;
    return true;
  }
  for (;;) {
    MAYFLY_TRY(bool found, index_ ? index_->Next() : records_->Next());
    if (!found) return false;
    Instant date;
    std::string_view encoded =
        index_ ? index_->encoded_values() : RecordIdOf(records_->record_key());
    if (!(index_ ? DecodeDate(encoded, descending_, &date)
                 : DecodeRecordDate(dates_, encoded, &date)))
      continue;
    millis_ = date.millis;
    return true;
  }
}

std::string_view TtlCursor::record_key() const {
  if (queue_) return record_key_;
  return index_ ? index_->record_key() : records_->record_key();
}

void TtlCursor::EntryKey(std::string* out) const {
  if (queue_) {
    *out = queue_->key();
    return;
  }
  if (records_) {
    *out = records_->record_key();
    return;
  }
  *out = IdPrefix(rule_index_->id);
  out->append(index_->encoded_values());
  if (!rule_index_->unique) out->append(RecordIdOf(index_->record_key()));
}

std::optional<DeleteCause> IsDue(const TtlRule& rule, BsonView doc,
                                 std::optional<Instant> expire_at, int64_t threshold) {
  DeleteCause cause;
  int64_t date = 0;
  switch (rule.kind) {
    case TtlRule::Kind::kDocument:
      if (!expire_at) return std::nullopt;
      cause.reason = DeleteReason::kExpiredDocument;
      date = expire_at->millis;
      break;
    case TtlRule::Kind::kClustered:
      if (!DateOfRecord(rule.coll->record_dates(), doc["_id"], &date)) return std::nullopt;
      cause.reason = DeleteReason::kExpiredClustered;
      break;
    case TtlRule::Kind::kTtlIndex:
      if (!EarliestDate(*rule.index, doc, &date)) return std::nullopt;
      cause.reason = DeleteReason::kExpiredTtlIndex;
      cause.index = rule.index->id;
      break;
  }
  if (date > threshold) return std::nullopt;
  cause.deadline = {rule.kind == TtlRule::Kind::kDocument ? date : rule.Deadline(date)};
  return cause;
}

}  // namespace mayfly
