#include "storage/write/expiry_cover.h"

#include "protocol/value.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"
#include "storage/write/write_unit_impl.h"

namespace mayfly {

Result<bool> CoverReaped(Storage& storage, Operation& op, const CollectionInfo& coll,
                         const IndexInfo& index, int64_t through, std::string_view last_entry) {
  WriteUnit unit(storage, op);
  Result<void> alone = unit.impl().TouchExclusive(coll, 2000);
  if (!alone) {
    if (alone.error().code == ErrorCode::kWriteConflict) return false;
    return alone.error();
  }
  // Writers that were inside have lowered the mark by now: it is lowered before the gate is given
  // up.
  if (index.expiry->resume_millis.load(std::memory_order_acquire) <= through ||
      index.expiry->left_millis.load(std::memory_order_acquire) <= through)
    return false;
  const bool descending = index.fields[0].descending;
  std::string begin = IdPrefix(index.id), end = begin, at;
  EncodeKeyValue(Value::Date({descending ? through : INT64_MIN}).view(), descending, begin);
  if (descending) {
    EncodeTypeClassBegin(BsonType::kDate, at);
    end.push_back(static_cast<char>(static_cast<uint8_t>(~at[0]) + 1));
  } else {
    EncodeKeyValue(Value::Date({through + 1}).view(), false, end);
  }
  if (!last_entry.empty()) {
    if (descending)
      begin = last_entry;
    else
      end.assign(last_entry).push_back('\0');
  }
  unit.EraseRange(index.keyspace, begin, end);
  MAYFLY_TRY(storage.committer().Commit(std::move(unit)));
  return true;
}

Result<bool> CoverReapedDeadlines(Storage& storage, Operation& op, const CollectionInfo& coll,
                                  int64_t through, std::string_view last_entry) {
  WriteUnit unit(storage, op);
  Result<void> alone = unit.impl().TouchExclusive(coll, 2000);
  if (!alone) {
    if (alone.error().code == ErrorCode::kWriteConflict) return false;
    return alone.error();
  }
  if (coll.document_expiry->resume_millis.load(std::memory_order_acquire) <= through ||
      coll.document_expiry->left_millis.load(std::memory_order_acquire) <= through)
    return false;
  std::string end(last_entry);
  if (last_entry.empty()) {
    end = DeadlinePrefix(coll.id);
    AppendTime64(end, {through + 1});
  } else {
    end.push_back('\0');
  }
  unit.EraseRange(Keyspace::kExpiry, DeadlinePrefix(coll.id), end);
  MAYFLY_TRY(storage.committer().Commit(std::move(unit)));
  return true;
}

bool RaiseHeadOnCommit(Storage& storage, WriteUnit& unit, const CollectionInfoPtr& coll,
                       const IndexInfoPtr& index, int64_t millis, std::string entry) {
  if (unit.impl().logged && unit.empty()) return false;
  using Order = ExpiryHead::Order;
  const Order order = !index ? (coll->is_buckets() ? Order::kBuckets : Order::kRecords)
                      : index->fields[0].descending ? Order::kDescending
                                                    : Order::kAscending;
  unit.OnCommit([&storage, order, state = index ? index->expiry : coll->expiry,
                 id = index ? index->id : coll->id, millis, entry = std::move(entry)] {
    Storage::Impl& s = storage.impl();
    state->RaiseHead(order, id, millis, entry, s.kv->LatestSequence(),
                     s.expiry_epoch.load(std::memory_order_acquire));
  });
  return true;
}

}  // namespace mayfly
