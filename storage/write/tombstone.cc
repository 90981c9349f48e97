#include "storage/write/tombstone.h"

#include "protocol/bson_builder.h"
#include "storage/core/open_storage.h"
#include "storage/expiry/expiry_policy.h"
#include "storage/keys/key_encoding.h"

namespace mayfly {
namespace {
constexpr size_t kHeadSize = 12;    // of a key: time and collection
constexpr size_t kExpirySize = 12;  // of a value: index and deadline

Error DamagedTombstone() { return {ErrorCode::kInternalError, "damaged tombstone"}; }
}  // namespace

void AppendTombstoneValue(const DeleteCause& cause, BsonValue id, std::string_view key,
                          std::string& out) {
  out.push_back(static_cast<char>(cause.reason));
  if (cause.expired()) {
    AppendBe32(out, cause.index);
    AppendTime64(out, cause.deadline);
  }
  if (HasCutId(key.substr(kHeadSize))) {
    BsonBuilder b(out);
    b.Append("", id);
    b.Done();
    return;
  }
  size_t from = out.size();
  EncodeTypeBits(id, out);
  TrimTypeBits(out, from);
}

Result<Tombstone> DecodeTombstone(std::string_view key, std::string_view value) {
  if (key.size() <= kHeadSize || value.empty()) return DamagedTombstone();
  Tombstone t;
  t.at = LoadTime64(key.data());
  t.collection = LoadBe32(key.data() + 8);
  key.remove_prefix(kHeadSize);
  auto reason = static_cast<uint8_t>(value[0]);
  if (reason > static_cast<uint8_t>(DeleteReason::kExpiredClustered)) return DamagedTombstone();
  t.cause.reason = static_cast<DeleteReason>(reason);
  value.remove_prefix(1);
  if (t.cause.expired()) {
    if (value.size() < kExpirySize) return DamagedTombstone();
    t.cause.index = LoadBe32(value.data());
    t.cause.deadline = LoadTime64(value.data() + 4);
    value.remove_prefix(kExpirySize);
  }
  if (HasCutId(key)) {
    if (value.size() < 5) return DamagedTombstone();
    const BsonView whole(value.data());
    if (whole.size() != value.size() || whole.empty()) return DamagedTombstone();
    t.id = Value::Copy(whole.First().value);
    return t;
  }
  MAYFLY_TRY(t.id, DecodeKeyValue(&key, false, &value));
  return t;
}

Result<void> ForEachTombstone(Storage& storage, Operation& op, uint32_t collection,
                              std::string* position,
                              const std::function<Result<bool>(const Tombstone&)>& each) {
  KvIterOptions o;
  o.lower = *position;
  o.fill_cache = false;
  auto it = storage.kv().NewIterator(Keyspace::kTombstones, std::move(o));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    MAYFLY_TRY(op.CheckInterrupt());
    ++op.keys_examined;
    if (it->key() == *position) continue;
    if (collection != 0 && it->key().size() > kHeadSize &&
        LoadBe32(it->key().data() + 8) != collection)
      continue;
    MAYFLY_TRY(Tombstone t, DecodeTombstone(it->key(), it->value()));
    position->assign(it->key());
    MAYFLY_TRY(bool more, each(t));
    if (!more) return Ok();
  }
  return it->status();
}

Result<bool> PurgeTombstones(Storage& storage, Operation& op) {
  const int64_t keep = storage.expiry_policy().tombstone_seconds.load(std::memory_order_relaxed);
  std::string end;
  AppendTime64(end, {SaturatingDeadline(op.now.millis, -keep)});
  std::string begin;
  {
    KvIterOptions o;
    o.upper = end;
    o.fill_cache = false;
    auto it = storage.kv().NewIterator(Keyspace::kTombstones, std::move(o));
    it->SeekToFirst();
    MAYFLY_TRY(it->status());
    if (!it->Valid()) return false;
    begin = it->key();
  }
  WriteUnit unit(storage, op);
  unit.EraseRange(Keyspace::kTombstones, begin, end);
  MAYFLY_TRY(storage.committer().Commit(std::move(unit)));
  return true;
}

}  // namespace mayfly
