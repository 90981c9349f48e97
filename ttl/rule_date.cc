#include "ttl/rule_date.h"

#include "storage/catalog/index_keys.h"
#include "storage/read/visibility.h"

namespace mayfly {
namespace {

constexpr int64_t kHour = 3'600'000, kDay = 86'400'000;

NeverExpires ReasonOfType(BsonType t) {
  switch (t) {
    case BsonType::kMissing:
      return NeverExpires::kMissing;
    case BsonType::kNull:
    case BsonType::kUndefined:
      return NeverExpires::kNull;
    case BsonType::kString:
    case BsonType::kSymbol:
      return NeverExpires::kString;
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDouble:
    case BsonType::kDecimal128:
      return NeverExpires::kNumber;
    case BsonType::kBool:
      return NeverExpires::kBool;
    case BsonType::kTimestamp:
      return NeverExpires::kTimestamp;
    case BsonType::kObjectId:
      return NeverExpires::kObjectId;
    case BsonType::kDocument:
      return NeverExpires::kObject;
    default:
      return NeverExpires::kOtherType;
  }
}

/// Why there is no date at the path. If the path ends in an array or passes through one, the array
/// decides; otherwise the value at its end does.
NeverExpires ReasonAt(BsonView doc, std::string_view path) {
  const size_t dot = path.find('.');
  BsonValue v = doc.Find(path.substr(0, dot));
  if (dot == std::string_view::npos) {
    if (!v.IsArray()) return ReasonOfType(v.type());
    return v.Document().empty() ? NeverExpires::kEmptyArray : NeverExpires::kArrayWithoutDate;
  }
  const std::string_view rest = path.substr(dot + 1);
  if (v.IsDocument()) return ReasonAt(v.Document(), rest);
  if (!v.IsArray()) return NeverExpires::kMissing;
  if (v.Document().empty()) return NeverExpires::kMissing;
  // Sub-documents in an array: the first one that has a value there decides.
  for (const BsonElement& e : v.Document()) {
    if (!e.value.IsDocument()) continue;
    NeverExpires why = ReasonAt(e.value.Document(), rest);
    if (why != NeverExpires::kMissing)
      return why == NeverExpires::kEmptyArray ? why : NeverExpires::kArrayWithoutDate;
  }
  return NeverExpires::kMissing;
}

}  // namespace

std::string_view NeverExpiresName(NeverExpires why) {
  static constexpr std::string_view kNames[] = {
      "no",          "missing",  "null",     "string",     "number",           "bool",
      "timestamp",   "objectId", "object",   "emptyArray", "arrayWithoutDate", "other",
      "beforeEpoch", "filtered", "suspended"};
  static_assert(std::size(kNames) == static_cast<size_t>(NeverExpires::kCount));
  return kNames[static_cast<size_t>(why)];
}

std::string_view RuleKindName(const TtlRule& rule) {
  switch (rule.kind) {
    case TtlRule::Kind::kTtlIndex:
      return "ttlIndex";
    case TtlRule::Kind::kClustered:
      return rule.coll->is_buckets() ? "timeseries" : "clustered";
    case TtlRule::Kind::kDocument:
      return "document";
  }
  return "";
}

std::optional<int64_t> DateByRule(const TtlRule& rule, BsonView doc,
                                  std::optional<Instant> header_deadline, NeverExpires* why) {
  NeverExpires ignored;
  if (!why) why = &ignored;
  *why = NeverExpires::kNo;
  if (rule.kind == TtlRule::Kind::kDocument) {
    if (header_deadline) return header_deadline->millis;
    *why = NeverExpires::kMissing;
    return {};
  }
  const bool suspended = rule.coll->ExpirySuspended();
  if (suspended) *why = NeverExpires::kSuspended;
  if (!rule.index) {
    if (suspended) return {};
    BsonValue id = doc["_id"];
    int64_t date;
    if (DateOfRecord(rule.coll->record_dates(), id, &date)) return date;
    *why = id.IsDate() ? NeverExpires::kBeforeEpoch : ReasonOfType(id.type());
    return {};
  }
  const IndexInfo& index = *rule.index;
  const IndexField& field = index.fields[0];
  if (index.has_partial_filter && !(index.filter && index.filter->Matches(doc))) {
    *why = NeverExpires::kFiltered;
    return {};
  }
  if (suspended) return {};
  if (field.path.find('.') == std::string::npos) {
    BsonValue v = doc.Find(field.path);
    if (v.IsDate()) return v.Date().millis;
    if (!v.IsArray()) {
      *why = ReasonOfType(v.type());
      return {};
    }
  }
  int64_t earliest;
  if (EarliestDate(index, doc, &earliest)) return earliest;
  *why = ReasonAt(doc, field.path);
  return {};
}

Result<RuleCensus> TakeCensus(Storage& storage, Operation& op, const TtlRule& rule,
                              size_t samples_a_reason) {
  RuleCensus c;
  RecordScan scan;
  scan.fill_cache = false;
  auto cursor = storage.ScanRecords(rule.coll, std::move(scan));
  const FilteringFor filtering(&op);
  for (;;) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(bool found, cursor->Next());
    if (!found) {
      MAYFLY_TRY(op.CheckInterruptNow());  // a filter that was stopped has said no
      return c;
    }
    ++c.total;
    ++op.docs_examined;
    NeverExpires why;
    std::optional<int64_t> date = DateByRule(rule, cursor->doc(), cursor->expire_at(), &why);
    if (!date) {
      const auto i = static_cast<size_t>(why);
      ++c.never[i];
      // A document past its own deadline is not an example: that deadline removes it, and readers
      // no longer see it.
      const std::optional<Instant> own = cursor->expire_at();
      if (c.samples[i].size() < samples_a_reason && (!own || own->millis > op.now.millis))
        c.samples[i].push_back(Value::Borrow(cursor->doc()["_id"]).Own());
      continue;
    }
    ++c.will_expire;
    if (!c.oldest || *date < *c.oldest) c.oldest = *date;
    if (!c.newest || *date > *c.newest) c.newest = *date;
    const int64_t deadline = ExpiryOf(rule, *date);
    if (deadline <= op.now.millis)
      ++c.now;
    else if (deadline <= op.now.millis + kHour)
      ++c.next_hour, ++c.next_day;
    else if (deadline <= op.now.millis + kDay)
      ++c.next_day;
  }
}

}  // namespace mayfly
