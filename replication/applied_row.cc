#include "replication/applied_row.h"

#include "storage/keys/key_format.h"

namespace mayfly {
Result<bool> ReadAppliedRow(KvStore& kv, const KvSnapshot* at, AppliedRow* out) {
  PinnedValue v;
  MAYFLY_TRY(const bool found, kv.Get(Keyspace::kCatalog, kAppliedRow, &v, at));
  if (!found) return false;
  if (v.view().size() != 24)
    return Error{ErrorCode::kInternalError, "corrupt catalog row 'replication/applied'"};
  out->ts = LoadLe<uint64_t>(v.view().data());
  out->wall_millis = LoadLe<int64_t>(v.view().data() + 8);
  out->term = LoadLe<int64_t>(v.view().data() + 16);
  return true;
}

void StageAppliedRow(KvBatch& batch, const AppliedRow& row) {
  char value[24];
  StoreLe<uint64_t>(value, row.ts);
  StoreLe<int64_t>(value + 8, row.wall_millis);
  StoreLe<int64_t>(value + 16, row.term);
  batch.Put(Keyspace::kCatalog, kAppliedRow, {value, sizeof value});
}

}  // namespace mayfly
