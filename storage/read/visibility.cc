#include "storage/read/visibility.h"

#include <unordered_set>

#include "protocol/seeded_hash.h"
#include "protocol/value.h"
#include "storage/catalog/expire_reads.h"
#include "storage/catalog/index_keys.h"
#include "storage/core/storage_impl.h"
#include "storage/expiry/expiry_policy.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"
#include "storage/read/record_source.h"

namespace mayfly {

const char* CheckTtlRule(const CollectionInfo& coll, const IndexInfo& index) {
  if (index.fields.size() != 1) return "the key has more than one field";
  if (!index.kind->in_value_order) return "a special index type has no order of time";
  if (coll.capped()) return "the collection is capped";
  if (coll.ExpirySuspended()) return kExpirySuspended;
  return nullptr;
}

bool EarliestDate(const IndexInfo& index, BsonView doc, int64_t* millis) {
  const IndexField& field = index.fields[0];
  // The plain case: a date in a top-level field, no partial filter.
  if (!index.has_partial_filter && field.path.find('.') == std::string::npos) {
    BsonValue v = doc.Find(field.path);
    if (!v.IsArray()) {
      if (v.IsDate()) *millis = v.Date().millis;
      return v.IsDate();
    }
  }
  KeySet keys;
  if (!ExtractKeys(index, doc, &keys)) return false;
  bool found = false;
  for (size_t i = 0; i < keys.size(); ++i) {
    Instant date;
    if (!DecodeDate(keys.values(i), field.descending, &date)) continue;
    if (!found || date.millis < *millis) *millis = date.millis;
    found = true;
  }
  return found;
}

void Visibility::AddRules(const ExpiryPolicy& policy) {
  const CollectionInfo& coll = *coll_;
  if (!policy.monitor_enabled.load(std::memory_order_relaxed)) return;
  const bool by_default = policy.index_reads_exact_default.load(std::memory_order_relaxed);
  if (coll.ExpirySuspended()) return;
  auto add = [&](const IndexInfo* index, const ExpiryState& state, int64_t seconds) {
    seconds += coll.RuleSpanSeconds();
    if (!earlier_ && state.Earliest() > SaturatingDeadline(now_.millis, -seconds)) return;
    if (policy.RuleActive(coll, index)) rules_.push_back({index, seconds});
  };
  if (coll.expire_after_seconds && coll.clustered() && HidesDue(ExpireReadsOf(coll), by_default))
    add(nullptr, *coll.expiry, *coll.expire_after_seconds);
  for (const IndexInfoPtr& i : coll.indexes) {
    if (!i->expire_after_seconds || i->state != IndexState::kReady) continue;
    if (!HidesDue(i->expire_reads, by_default) || CheckTtlRule(coll, *i)) continue;
    add(i.get(), *i->expiry, *i->expire_after_seconds);
  }
}

Result<void> Visibility::Look() const {
  asks_filters_ = false;
  return op_ == nullptr ? Ok() : op_->CheckInterruptNow();
}

Result<std::optional<DeleteCause>> Visibility::Expired(BsonView doc,
                                                       std::optional<Instant> expire_at) const {
  std::optional<DeleteCause> cause;
  if (coll_ == nullptr) return cause;
  const FilteringFor filtering(op_);
  if (expire_at && expire_at->millis <= now_.millis) {
    cause.emplace(DeleteReason::kExpiredDocument);
    cause->deadline = *expire_at;
  }
  for (const Rule& r : rules_) {
    int64_t date;
    if (r.index) {
      asks_filters_ |= r.index->has_partial_filter;
      if (!EarliestDate(*r.index, doc, &date)) continue;
    } else {
      if (!DateOfRecord(coll_->record_dates(), doc["_id"], &date)) continue;
    }
    const int64_t deadline = SaturatingDeadline(date, r.seconds);
    if (deadline > now_.millis || (cause && cause->deadline.millis <= deadline)) continue;
    cause.emplace(r.index ? DeleteReason::kExpiredTtlIndex : DeleteReason::kExpiredClustered);
    cause->index = r.index ? r.index->id : 0;
    cause->deadline = {deadline};
  }
  const ExpiryPolicy& policy = storage_->expiry_policy();
  if (cause && policy.HasHolds(*coll_)) {
    asks_filters_ = true;
    if (policy.Held(*coll_, doc, held_at_)) cause.reset();
  }
  MAYFLY_TRY(Stopped());
  return cause;
}

bool Visibility::Hides(BsonView doc, std::optional<Instant> expire_at) const {
  const Result<std::optional<DeleteCause>> expired = Expired(doc, expire_at);
  if (!expired) {
    asks_filters_ = true;  // Stopped asks once more, and says why
    return true;
  }
  const std::optional<DeleteCause>& cause = expired.value();
  if (!cause || Kept(doc, *cause)) return false;
  storage_->expiry_policy().hidden_reads.fetch_add(1, std::memory_order_relaxed);
  storage_->expiry_policy().NoteHidden(cause->deadline.millis);
  // Removal is the reaper's; it is woken should it sleep for something later.
  if (coll_->expiry_options.recover_seconds == 0)
    storage_->expiry_waker().Note(cause->deadline.millis);
  return true;
}

bool Visibility::Kept(BsonView doc, const DeleteCause& cause) const {
  KeptDocuments& kept = storage_->impl().kept;
  if (!kept.MayKeep()) [[likely]]
    return false;
  std::string key;
  AppendRecordKeyOfId(coll_->id, doc["_id"], key);
  return kept.Keeps(LockHash(Keyspace::kRecords, key), cause.deadline.millis, now_.millis,
                    held_at_.millis);
}

Result<int64_t> Visibility::CountVisible(Operation& op, const ReadView& given) const {
  if (counted_->source) {
    if (const int64_t about = counted_->source->Count(); about >= 0) return about;
    const auto cursor = counted_->source->Scan({.view = given});
    for (int64_t n = 0;; ++n) {
      MAYFLY_TRY(op.CheckInterrupt());
      MAYFLY_TRY(const bool more, cursor->Next());
      if (!more) return n;
    }
  }
  const bool may_hide = MayHide();
  if (!may_hide && given.snapshot() == nullptr) return Storage::DocumentCount(*counted_);
  // The counter is written with each change, so that it agrees with the entries at one point in
  // time.
  const ReadView view = given.snapshot() ? given : ReadView(storage_->kv().Snapshot());
  PinnedValue pinned;
  CounterRow row;
  MAYFLY_TRY(bool found,
             view.Get(storage_->kv(), Keyspace::kCatalog, CountersKey(counted_->id), &pinned));
  if (found && !DecodeCounterRow(pinned.view(), &row))
    return Error{ErrorCode::kInternalError, "corrupt counters of collection " + counted_->ns};
  int64_t hidden = 0;
  if (may_hide) {
    MAYFLY_TRY(hidden, CountHidden(op, view));
  }
  return std::max<int64_t>(0, row.documents + view.OwnDocuments(*counted_) - hidden);
}

Result<int64_t> Visibility::CountHidden(Operation& op, const ReadView& view) const {
  // Each record once, whichever of its deadlines is past. Where there is one queue only, and every
  // record in it once, nothing need be remembered.
  ClientStringSet seen;
  int64_t hidden = 0;
  Storage::Record record;
  auto count = [&](std::string_view record_key) -> Result<void> {
    MAYFLY_TRY(op.CheckInterrupt());
    if (!rules_.empty() && !seen.emplace(record_key).second) return Ok();
    MAYFLY_TRY(bool found, storage_->Fetch(*coll_, record_key, &record, view));
    if (!found) return Ok();
    MAYFLY_TRY(const auto cause, Expired(record.doc, record.expire_at));
    if (cause && !Kept(record.doc, *cause)) {
      storage_->expiry_policy().NoteHidden(cause->deadline.millis);
      ++hidden;
    }
    return Ok();
  };
  std::string record_key;
  // What an earlier view shows may lie before what is left now.
  if (int64_t first = earlier_ ? INT64_MIN + 1 : coll_->document_expiry->Earliest();
      first <= now_.millis) {
    KvIterOptions o;
    o.lower = DeadlinePrefix(coll_->id);
    AppendTime64(o.lower, {first});
    o.upper = DeadlinePrefix(coll_->id);
    AppendTime64(o.upper, {SaturatingDeadline(now_.millis, 0) + 1});
    auto it = view.NewIterator(storage_->kv(), Keyspace::kExpiry, std::move(o));
    const bool plain = rules_.empty() && !storage_->expiry_policy().HasHolds(*coll_) &&
                       !storage_->impl().kept.Any(held_at_.millis);
    uint32_t collection;
    Instant deadline;
    std::string_view record_id;
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      ++op.keys_examined;
      if (plain) {
        MAYFLY_TRY(op.CheckInterrupt());
        ++hidden;
        if (DecodeDeadlineKey(it->key(), &collection, &deadline, &record_id))
          storage_->expiry_policy().NoteHidden(deadline.millis);
        continue;
      }
      if (!DecodeDeadlineKey(it->key(), &collection, &deadline, &record_id)) continue;
      record_key = IdPrefix(coll_->id);
      record_key.append(record_id);
      MAYFLY_TRY(count(record_key));
    }
    MAYFLY_TRY(it->status());
  }
  CollectionInfoPtr coll(std::shared_ptr<const void>(), coll_);
  for (const Rule& r : rules_) {
    const int64_t last = SaturatingDeadline(now_.millis, -r.seconds);
    if (!r.index) {
      RecordScan scan;
      scan.view = view;
      scan.lower = scan.upper = IdPrefix(coll_->id);
      AppendRecordDate(coll_->record_dates(), 0, scan.lower);
      AppendRecordDate(coll_->record_dates(), last + 1, scan.upper);
      // Buckets have no deadlines of their own: where no other rule has counted one, and none is
      // kept, those of the range are all hidden, and need no look-up each.
      const bool all = coll_->is_buckets() && rules_.size() == 1 &&
                       !storage_->expiry_policy().HasHolds(*coll_) &&
                       !storage_->impl().kept.Any(held_at_.millis);
      auto cursor = storage_->ScanRecords(coll, std::move(scan));
      for (;;) {
        MAYFLY_TRY(bool more, cursor->Next());
        if (!more) break;
        if (!all) {
          MAYFLY_TRY(count(cursor->record_key()));
          continue;
        }
        MAYFLY_TRY(op.CheckInterrupt());
        ++hidden;
        int64_t date;
        if (DateOfRecord(coll_->record_dates(), cursor->doc()["_id"], &date))
          storage_->expiry_policy().NoteHidden(SaturatingDeadline(date, r.seconds));
      }
      continue;
    }
    const bool descending = r.index->fields[0].descending;
    const int64_t first =
        earlier_ ? INT64_MIN + 1 : std::max(r.index->expiry->Earliest(), INT64_MIN + 1);
    IndexScan scan;
    scan.view = view;
    EncodeKeyValue(Value::Date({descending ? last : first}).view(), descending, scan.lower);
    EncodeKeyValue(Value::Date({descending ? first - 1 : last + 1}).view(), descending, scan.upper);
    IndexInfoPtr index(std::shared_ptr<const void>(), r.index);
    auto cursor = storage_->ScanIndex(coll, index, std::move(scan));
    for (;;) {
      MAYFLY_TRY(bool more, cursor->Next());
      if (!more) break;
      ++op.keys_examined;
      MAYFLY_TRY(count(cursor->record_key()));
    }
  }
  return hidden;
}

}  // namespace mayfly
