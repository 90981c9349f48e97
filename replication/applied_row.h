#pragma once
#include <cstdint>
#include <string_view>

#include "protocol/error.h"
#include "storage/kv/kv.h"

namespace mayfly {

/// The row of the catalog with the newest record that is applied.
inline constexpr std::string_view kAppliedRow = "replication/applied";

/// What the row has, in the batch that applied the record.
///   kAppliedRow  val := ts:le64 wall:le64 term:le64
struct AppliedRow {
  uint64_t ts = 0;
  int64_t wall_millis = 0;
  int64_t term = 0;
};
/// False: nothing is applied. `at` null: now. Errors: InternalError 1 (damaged), as KvStore::Get.
Result<bool> ReadAppliedRow(KvStore& kv, const KvSnapshot* at, AppliedRow* out);
void StageAppliedRow(KvBatch& batch, const AppliedRow& row);

}  // namespace mayfly
