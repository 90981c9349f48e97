#pragma once
#include <memory>
#include <string>
#include <vector>

#include "replication/consensus.h"
#include "storage/read/record_source.h"
#include "storage/write/log_format.h"

namespace mayfly {

/// Calls `f(ts, document)` for each record of an entry of the log, as `local.oplog.rs` shows it (v2
/// entries: i, u, d, c, n; several deletes by expiry as one applyOps, a transaction as one or a
/// chain of several). `term`: of the entry, which is no chunk and no end. `deadline_field`:
/// RecordScan's. Errors: InternalError 1 when the entry is damaged.
Result<void> ForEachOplogDocument(std::string_view entry, uint64_t term,
                                  const std::function<void(uint64_t ts, BsonDocument doc)>& f,
                                  std::string_view deadline_field = {});

/// "ttlIndex", "document" or "clustered".
std::string_view ExpiryReasonName(DeleteReason r);
/// Whether a delete is one by expiry.
bool IsExpiry(const LogRecord& r);
/// The document that an insert or update left. `expire_at`, unless null: its own deadline.
BsonView LoggedDocument(const LogUnit& u, const LogRecord& r,
                        std::optional<Instant>* expire_at = nullptr);
/// First and last timestamp of an entry; false when it has none.
bool TimesOfEntry(const CommittedEntry& e, uint64_t* first, uint64_t* last);
/// To the first entry that ends at or after `target`; invalid when there is none. Indexes have no
/// gaps and timestamps go up with them: halving finds the place.
Result<void> SeekOplog(LogCursor& log, uint64_t target);

/// The replication log as the documents of `local.oplog.rs`: nothing is stored for it. Threads:
/// any.
class OplogSource final : public RecordSource {
 public:
  OplogSource(Consensus& consensus, uint32_t collection_id)
      : consensus_(consensus), collection_id_(collection_id) {}
  std::unique_ptr<RecordCursor> Scan(RecordScan scan) override;
  Result<bool> Fetch(std::string_view record_key, const ReadView& view,
                     Storage::Record* out) override;
  uint64_t Bytes() override;
  int64_t Count() override;

 private:
  Consensus& consensus_;
  const uint32_t collection_id_;
};

}  // namespace mayfly
