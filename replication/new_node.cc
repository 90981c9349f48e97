#include "replication/new_node.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "replication/applied_row.h"
#include "replication/log_store.h"
#include "storage/catalog/catalog_format.h"
#include "storage/keys/key_format.h"

namespace mayfly {

void DropMembersOwnRows(KvBatch& batch) {
  std::string first, end(4, '\xFF');
  AppendBe32(first, kFirstLocalId);
  end.push_back('\xFF');  // the end of the range: ids count up from the first one
  for (std::string_view prefix :
       {kCollectionPrefix, kCountersPrefix, kMultikeyPrefix, kBuildPrefix})
    batch.DeleteRange(Keyspace::kCatalog, std::string(prefix) + first, std::string(prefix) + end);
  const std::string settings = std::string(kSettingPrefix) + "local";
  batch.DeleteRange(Keyspace::kCatalog, settings + "/", settings + "0");
  for (Keyspace ks : {Keyspace::kRecords, Keyspace::kIndexes, Keyspace::kExpiry})
    batch.DeleteRange(ks, first, end);
  const std::string queues(4, '\0');
  batch.DeleteRange(Keyspace::kExpiry, queues + first, queues + end);
}

namespace {

/// val := ts:le64
constexpr std::string_view kFormerRow = "replication/former";

Result<uint64_t> ReadTs(KvStore& kv, std::string_view row) {
  PinnedValue value;
  MAYFLY_TRY(const bool found, kv.Get(Keyspace::kCatalog, row, &value));
  uint64_t ts = 0;
  if (found && value.view().size() >= sizeof ts) std::memcpy(&ts, value.view().data(), sizeof ts);
  return ts;
}

}  // namespace

Result<uint64_t> FormerSetUntil(KvStore& kv) { return ReadTs(kv, kFormerRow); }

Result<void> BecomeNewNode(KvStore& kv, Instant now) {
  bool member = false;
  {
    auto it = kv.NewIterator(Keyspace::kOplog, {});
    it->SeekToFirst();
    member = it->Valid();
    MAYFLY_TRY(it->status());
  }
  auto batch = kv.NewBatch();
  if (member) {
    DropMembersOwnRows(*batch);
  } else {
    const std::string settings = std::string(kSettingPrefix) + "local";
    batch->DeleteRange(Keyspace::kCatalog, settings + "/", settings + "0");
  }
  if (member) {
    MAYFLY_TRY(const uint64_t applied, ReadTs(kv, kAppliedRow));
    const uint64_t until = std::max(applied, static_cast<uint64_t>(now.millis / 1000) << 32);
    batch->Put(Keyspace::kCatalog, kFormerRow,
               std::string_view(reinterpret_cast<const char*>(&until), sizeof until));
  }
  batch->Delete(Keyspace::kCatalog, kAppliedRow);
  batch->DeleteRange(Keyspace::kCatalog, "txn/", "txn0");
  for (std::string_view own : {"ttl.clock", "access/timeKeys"})
    batch->Delete(Keyspace::kCatalog, std::string(kSettingPrefix).append(own));
  MAYFLY_TRY(kv.Write(*batch, false));
  MAYFLY_TRY(ForgetSet(kv));
  return kv.SyncWal();
}

}  // namespace mayfly
