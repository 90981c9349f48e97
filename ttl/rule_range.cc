#include "ttl/rule_range.h"

#include "protocol/value.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

void AppendDate(int64_t millis, bool descending, std::string& key) {
  EncodeKeyValue(Value::Date({millis}).view(), descending, key);
}

/// Bytes of an encoded date: its class and eight more (docs/on-disk-format.md, Key encoding).
constexpr size_t kEncodedDate = 9;

}  // namespace

RuleRange DatesOf(const TtlRule& rule, int64_t from, int64_t to) {
  RuleRange r;
  if (rule.kind == TtlRule::Kind::kDocument) {
    r.begin = r.end = DeadlinePrefix(rule.coll->id);
    AppendTime64(r.begin, {from});
    if (to == INT64_MAX)
      r.end = DeadlinePrefixEnd(rule.coll->id);
    else
      AppendTime64(r.end, {to});
    return r;
  }
  r.begin = r.end = IdPrefix(rule.index ? rule.index->id : rule.coll->id);
  if (!rule.index) {
    r.keyspace = Keyspace::kRecords;
    // docs/expiry.md R6: on clustered collections the range starts at the epoch.
    AppendRecordDate(rule.coll->record_dates(), from, r.begin);
    if (to == INT64_MAX)
      AppendRecordDatesEnd(rule.coll->record_dates(), r.end);
    else
      AppendRecordDate(rule.coll->record_dates(), to, r.end);
    return r;
  }
  r.keyspace = rule.index->keyspace;
  if (!rule.index->fields[0].descending) {
    AppendDate(from, false, r.begin);
    if (to == INT64_MAX)
      EncodeTypeClassEnd(BsonType::kDate, r.end);
    else
      AppendDate(to, false, r.end);
    return r;
  }
  if (to == INT64_MIN) {
    r.end = r.begin;  // nothing is before the first date
    return r;
  }
  AppendDate(to == INT64_MAX ? INT64_MAX : to - 1, true, r.begin);
  if (from == INT64_MIN) {
    std::string first;
    EncodeTypeClassBegin(BsonType::kDate, first);
    r.end.push_back(static_cast<char>(static_cast<uint8_t>(~first[0]) + 1));
  } else {
    AppendDate(from - 1, true, r.end);
  }
  return r;
}

RuleRange EverythingOf(const TtlRule& rule) {
  RuleRange r;
  if (rule.kind == TtlRule::Kind::kDocument) return DatesOf(rule, INT64_MIN, INT64_MAX);
  const uint32_t id = rule.index ? rule.index->id : rule.coll->id;
  r.keyspace = rule.index ? rule.index->keyspace : Keyspace::kRecords;
  r.begin = IdPrefix(id);
  r.end = IdPrefixEnd(id);
  return r;
}

void RecordKeyOfEntry(const TtlRule& rule, std::string_view key, std::string_view value,
                      std::string* out) {
  if (rule.kind == TtlRule::Kind::kClustered) {
    *out = key;
    return;
  }
  *out = IdPrefix(rule.coll->id);
  if (!rule.index) {
    out->append(key.substr(kDeadlinePrefixSize + 8));
    return;
  }
  if (rule.index->unique) {
    std::string_view record_id, type_bits;
    if (DecodeUniqueIndexValue(value, &record_id, &type_bits)) out->append(record_id);
    return;
  }
  out->append(key.substr(kIdPrefixSize + kEncodedDate));
}

}  // namespace mayfly
