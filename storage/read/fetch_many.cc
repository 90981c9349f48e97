#include "storage/read/fetch_many.h"

#include "storage/keys/key_format.h"

namespace mayfly {

Result<void> RecordBatch::Fetch(Storage& storage, const CollectionInfo& coll,
                                std::span<const std::string_view> record_keys,
                                const ReadView& view) {
  entries_.assign(record_keys.size(), Entry{});
  if (pinned_.size() < record_keys.size()) pinned_.resize(record_keys.size());
  MAYFLY_TRY(view.MultiGet(storage.kv(), Keyspace::kRecords, record_keys,
                           std::span(pinned_).first(record_keys.size())));
  for (size_t i = 0; i < entries_.size(); ++i) {
    // A record is never empty: it has its header.
    const std::string_view value = pinned_[i].view();
    if (value.empty()) continue;
    Entry& e = entries_[i];
    e.found = true;
    if (!DecodeRecord(value, &e.doc, &e.expire_at)) return DamagedRecord(coll);
  }
  return Ok();
}

void RecordBatch::Reset() {
  entries_.clear();
  for (PinnedValue& p : pinned_) p.Reset();
}

}  // namespace mayfly
