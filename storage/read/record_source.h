#pragma once
#include <memory>
#include <string_view>

#include "storage/core/open_storage.h"
#include "storage/read/cursors.h"

namespace mayfly {

/// Where the documents of a collection come from that has no records of its own: `local.oplog.rs`
/// shows the replication log, `config.transactions` what is kept of sessions, `system.views` the
/// definitions of views. Record keys of a capped one are the collection's id and eight bytes, big-
/// endian, in the order of the documents; of others those that records with their `_id` would have.
/// Read-only. Threads: any.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  /// As Storage::ScanRecords; the cursor may outlive the call, not the source.
  virtual std::unique_ptr<RecordCursor> Scan(RecordScan scan) = 0;
  /// As `view` sees it, if there are earlier states; false when there is no such document.
  virtual Result<bool> Fetch(std::string_view record_key, const ReadView& view,
                             Storage::Record* out) = 0;
  virtual uint64_t Bytes() = 0;
  /// How many documents, about; -1: they have to be counted.
  virtual int64_t Count() = 0;
};

}  // namespace mayfly
