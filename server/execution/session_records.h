#pragma once
#include "storage/read/record_source.h"

namespace mayfly {

/// What is kept of sessions' transaction numbers, as the documents of `config.transactions`: a row
/// for each session that has written with one, {_id: lsid, txnNum, lastWriteOpTime, lastWriteDate},
/// and `state: "committed"` where the number is a transaction's. Nothing is stored for it. Threads:
/// any.
class SessionRecords final : public RecordSource {
 public:
  explicit SessionRecords(Storage& storage) : storage_(storage) {}
  std::unique_ptr<RecordCursor> Scan(RecordScan scan) override;
  Result<bool> Fetch(std::string_view record_key, const ReadView& view,
                     Storage::Record* out) override;
  uint64_t Bytes() override;
  int64_t Count() override { return -1; }

 private:
  Storage& storage_;
};

/// Makes `config.transactions` show them, as on a member of a replica set. Before the first client;
/// `storage` outlives every use of the collection.
void ShowSessionRecords(Storage& storage);

}  // namespace mayfly
