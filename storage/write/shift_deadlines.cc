#include "storage/write/shift_deadlines.h"

#include <optional>
#include <string>

#include "storage/catalog/index_keys.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

constexpr size_t kShiftBatchBytes = 4 << 20;

Instant Moved(Instant deadline, int64_t millis) {
  int64_t sum = 0;
  if (__builtin_add_overflow(deadline.millis, millis, &sum))
    sum = millis < 0 ? INT64_MIN : INT64_MAX;
  return {sum};
}

}  // namespace

Result<int64_t> ShiftDeadlines(KvStore& kv, int64_t millis,
                               const std::function<Result<void>()>& step) {
  KvIterOptions o;
  o.snapshot = kv.Snapshot();  // what is written here is not met again
  o.lower = IdPrefix(kDeadlineQueueId);
  o.upper = IdPrefixEnd(kDeadlineQueueId);
  o.fill_cache = false;
  auto it = kv.NewIterator(Keyspace::kExpiry, std::move(o));
  auto batch = kv.NewBatch();
  int64_t moved = 0;
  std::string record_key, entry, head;
  PinnedValue record;
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    uint32_t collection = 0;
    Instant deadline;
    std::string_view record_id;
    if (!DecodeDeadlineKey(it->key(), &collection, &deadline, &record_id))
      return Error{ErrorCode::kInternalError, "a row of the queues of deadlines is damaged"};
    record_key = IdPrefix(collection);
    record_key.append(record_id);
    MAYFLY_TRY(const bool found, kv.Get(Keyspace::kRecords, record_key, &record));
    // A row of a dropped collection that is not cleaned up yet: goes with it.
    if (!found) continue;
    BsonView doc;
    std::optional<Instant> expire_at;
    if (!DecodeRecord(record.view(), &doc, &expire_at))
      return Error{ErrorCode::kInternalError, "a record is damaged"};
    const Instant later = Moved(deadline, millis);
    char bytes[kMaxRecordHeader];
    const size_t size = EncodeRecordHeader(later, bytes);
    head.assign(bytes, size);
    batch->Put(Keyspace::kRecords, record_key, head, doc.bytes());
    batch->Delete(Keyspace::kExpiry, it->key());
    entry = DeadlinePrefix(collection);
    AppendTime64(entry, later);
    entry.append(record_id);
    batch->Put(Keyspace::kExpiry, entry, {});
    ++moved;
    if (batch->SizeBytes() < kShiftBatchBytes) continue;
    MAYFLY_TRY(kv.Write(*batch, false));
    batch->Clear();
    MAYFLY_TRY(step());
  }
  MAYFLY_TRY(it->status());
  MAYFLY_TRY(kv.Write(*batch, true));
  return moved;
}

}  // namespace mayfly
