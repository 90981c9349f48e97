#pragma once
#include <memory>
#include <string>
#include <vector>

#include "replication/consensus.h"
#include "storage/log_format.h"
#include "storage/record_source.h"

namespace mayfly {

/// Calls `f(ts, document)` for each record of an entry of the log, as `local.oplog.rs` shows it (v2 entries: i, u, d, c, n; several deletes
/// by expiry as one applyOps). `term`: of the entry. Errors: InternalError 1 when the entry is damaged.
Result<void> ForEachOplogDocument(std::string_view entry, uint64_t term,
                                  const std::function<void(uint64_t ts, BsonDocument doc)>& f);

/// The replication log as the documents of `local.oplog.rs`: nothing is stored for it. Threads: any.
class OplogSource final : public RecordSource {
 public:
  OplogSource(Consensus& consensus, uint32_t collection_id)
      : consensus_(consensus), collection_id_(collection_id) {}
  std::unique_ptr<RecordCursor> Scan(RecordScan scan) override;
  Result<bool> Fetch(std::string_view record_key, Storage::Record* out) override;
  uint64_t Bytes() override;
  int64_t Count() override;

 private:
  Consensus& consensus_;
  const uint32_t collection_id_;
};

}  // namespace mayfly
