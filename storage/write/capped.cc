#include "storage/write/capped.h"

#include <algorithm>

#include "storage/keys/key_format.h"
#include "storage/write/capped_trim.h"

namespace mayfly {
namespace {
/// Numbers are given out one by one, so the next oldest record is usually the next number. After so
/// many that are gone (a client deleted them) an iterator looks for it.
constexpr int kMissesBeforeSeek = 8;
/// The most that a unit of TrimCapped, or a unit that must be short, removes.
constexpr size_t kAtOnce = 1000, kShortVictims = 100;

/// The oldest records, as long as the collection is over its limits with what is to come; `most` of
/// them at most.
Result<void> LockOldest(WriteUnit& unit, const CollectionInfo& coll, int64_t incoming_documents,
                        uint32_t incoming_bytes, size_t most,
                        std::list<WriteUnit::Locked>* victims) {
  WriteUnit::Impl& u = unit.impl();
  MAYFLY_TRY(TouchedCollection * touched, u.Touch(coll));
  const CollectionCounters& counters = *coll.counters;
  int64_t documents =
      counters.documents.load(std::memory_order_relaxed) + touched->documents + incoming_documents;
  int64_t bytes = counters.bytes.load(std::memory_order_relaxed) + touched->bytes + incoming_bytes;
  int64_t first =
      std::max(counters.first_sequence.load(std::memory_order_relaxed), touched->first_sequence);
  const int64_t last =
      std::max(counters.last_sequence.load(std::memory_order_relaxed), touched->last_sequence);
  std::string key;
  int misses = 0;
  auto over = [&] {
    return (coll.capped_documents > 0 && documents > coll.capped_documents) ||
           (coll.capped_bytes > 0 && bytes > coll.capped_bytes);
  };
  while (over() && first <= last && victims->size() < most) {
    MAYFLY_TRY(u.op->CheckInterrupt());
    if (misses == kMissesBeforeSeek) {
      misses = 0;
      // What the unit itself has added lies behind everything that is in the store.
      int64_t stored_last = counters.last_sequence.load(std::memory_order_relaxed);
      if (first <= stored_last) {
        KvIterOptions o;
        AppendCappedRecordKey(coll.id, first, o.lower);
        o.upper = IdPrefixEnd(coll.id);
        auto it = u.storage->kv->NewIterator(Keyspace::kRecords, std::move(o));
        it->SeekToFirst();
        MAYFLY_TRY(it->status());
        first = it->Valid() ? std::max(first, CappedSequenceOf(it->key())) : stored_last + 1;
        continue;
      }
    }
    key.clear();
    AppendCappedRecordKey(coll.id, first, key);
    WriteUnit::Locked& victim = victims->emplace_back();
    MAYFLY_TRY(bool found, unit.LockAndRead(coll, key, &victim));
    if (found) {
      --documents;
      bytes -= victim.doc.size();
      misses = 0;
    } else {
      victims->pop_back();
      ++misses;
    }
    ++first;
  }
  // Only committed deletes count: if the following insert fails, the numbers are looked at
  // again.
  return Ok();
}
}  // namespace

Result<void> LockCappedVictims(WriteUnit& unit, const CollectionInfo& coll, uint32_t incoming_bytes,
                               std::list<WriteUnit::Locked>* victims) {
  if (coll.capped_bytes > 0 && incoming_bytes > coll.capped_bytes)
    return Error{ErrorCode::kBadValue, "object to insert exceeds cappedMaxSize. doc size: " +
                                           std::to_string(incoming_bytes) +
                                           ", max: " + std::to_string(coll.capped_bytes)};
  const bool keep_short = unit.impl().keep_short;
  MAYFLY_TRY(LockOldest(unit, coll, 1, incoming_bytes, keep_short ? kShortVictims + 1 : SIZE_MAX,
                        victims));
  if (keep_short && victims->size() > kShortVictims)
    return Error{ErrorCode::kWriteConflict, "many documents make room for the new one"};
  return Ok();
}

Result<void> TrimCapped(Storage& storage, Operation& op, const CollectionInfo& coll) {
  const CollectionCounters& counters = *coll.counters;
  for (;;) {
    const int64_t documents = counters.documents.load(std::memory_order_relaxed),
                  bytes = counters.bytes.load(std::memory_order_relaxed);
    // How many are too many: by their number, and by what one has on average.
    const int64_t more =
        std::max(coll.capped_documents > 0 ? documents - coll.capped_documents : 0,
                 coll.capped_bytes > 0 && bytes > coll.capped_bytes
                     ? (bytes - coll.capped_bytes) /
                           std::max<int64_t>(bytes / std::max<int64_t>(documents, 1), 1)
                     : 0);
    if (more <= static_cast<int64_t>(kAtOnce)) [[likely]]
      return Ok();
    MAYFLY_TRY(op.CheckInterrupt());
    WriteUnit unit(storage, op);
    WriteUnit::Impl& u = unit.impl();
    std::list<WriteUnit::Locked> victims;
    MAYFLY_TRY(TouchedCollection * touched, u.Touch(coll));
    MAYFLY_TRY(u.Lock(Keyspace::kRecords, IdPrefix(coll.id)));
    MAYFLY_TRY(LockOldest(unit, coll, 0, 0, kAtOnce, &victims));
    if (victims.empty()) return Ok();
    for (const WriteUnit::Locked& victim : victims) {
      MAYFLY_TRY(unit.Delete(coll, victim, DeleteReason::kCapped));
      touched->first_sequence = CappedSequenceOf(victim.record_key) + 1;
    }
    MAYFLY_TRY(storage.committer().Commit(std::move(unit)));
  }
}

}  // namespace mayfly
