#pragma once
#include <string>

#include "storage/catalog/catalog.h"
#include "storage/read/record_source.h"

namespace mayfly {

/// The definitions of a database's views and time series, as the documents of its `system.views`:
/// {_id: "db.view", viewOn, pipeline}, in the order of the names. Nothing is stored for it, and it
/// shows the present, also to reads of an earlier time. Threads: any.
class ViewRows final : public RecordSource {
 public:
  /// `catalog` must outlive it.
  ViewRows(Catalog& catalog, std::string db) : catalog_(catalog), db_(std::move(db)) {}
  std::unique_ptr<RecordCursor> Scan(RecordScan scan) override;
  Result<bool> Fetch(std::string_view record_key, const ReadView& view,
                     Storage::Record* out) override;
  uint64_t Bytes() override;
  int64_t Count() override;

 private:
  Catalog& catalog_;
  const std::string db_;
};

/// The collection `system.views` of a database that has views.
CollectionInfoPtr ViewsCollection(Catalog& catalog, std::string_view db);

}  // namespace mayfly
