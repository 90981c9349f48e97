#include "storage/write/capped.h"

#include "storage/keys/key_format.h"

namespace mayfly {
namespace {
/// Numbers are given out one by one, so the next oldest record is usually the next number. After so
/// many that are gone (a client deleted them) an iterator looks for it.
constexpr int kMissesBeforeSeek = 8;
}  // namespace

Result<void> LockCappedVictims(WriteUnit& unit, const CollectionInfo& coll, uint32_t incoming_bytes,
                               std::vector<WriteUnit::Locked>* victims) {
  WriteUnit::Impl& u = unit.impl();
  if (coll.capped_bytes > 0 && incoming_bytes > coll.capped_bytes)
    return Error{ErrorCode::kBadValue, "object to insert exceeds cappedMaxSize. doc size: " +
                                           std::to_string(incoming_bytes) +
                                           ", max: " + std::to_string(coll.capped_bytes)};
  MAYFLY_TRY(TouchedCollection * touched, u.Touch(coll));
  const CollectionCounters& counters = *coll.counters;
  int64_t documents = counters.documents.load(std::memory_order_relaxed) + touched->documents + 1;
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
  while (over() && first <= last) {
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
  // Only what is deleted for good counts: on an error of the insert that follows the numbers are
  // looked at again.
  return Ok();
}

}  // namespace mayfly
