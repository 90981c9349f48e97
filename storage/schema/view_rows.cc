#include "storage/schema/view_rows.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/system_names.h"
#include "storage/catalog/namespace.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

/// Its id in the catalog, in each database; no real collection has it, nor has another source.
constexpr uint32_t kId = 0xFFFF'FFF2;

BsonDocument DescribeViewRow(Catalog& catalog, const CollectionInfo& view) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("_id", view.ns).Append("viewOn", view.view_on);
    if (!view.is_series()) {
      b.AppendArray("pipeline", view.view_pipeline);
      return;
    }
    // What MongoDB has there. Here the buckets say it.
    BsonArrayBuilder pipeline = b.OpenArray("pipeline");
    BsonBuilder stage = pipeline.OpenDocument();
    BsonBuilder unpack = stage.OpenDocument("$_internalUnpackBucket");
    const CollectionInfoPtr buckets = catalog.Find(view.db, view.view_on);
    if (buckets == nullptr || !buckets->series) return;
    const SeriesOptions& s = *buckets->series;
    unpack.Append("timeField", s.time_field);
    if (!s.meta_field.empty()) unpack.Append("metaField", s.meta_field);
    unpack.Append("bucketMaxSpanSeconds", s.max_span_seconds);
  });
}

std::string RecordKey(const CollectionInfo& view) {
  const BsonDocument id = BuildBson([&](BsonBuilder& b) { b.Append("_id", view.ns); });
  std::string key;
  AppendRecordKeyOfId(kId, id.view()["_id"], key);
  return key;
}

std::vector<CollectionInfoPtr> ViewsOf(Catalog& catalog, std::string_view db) {
  std::vector<CollectionInfoPtr> views = catalog.List(db);
  std::erase_if(views, [](const CollectionInfoPtr& c) { return !c->is_view(); });
  return views;
}

/// Each definition is described when it is shown, so that a large one is there once.
class ViewCursor final : public RecordCursor {
 public:
  ViewCursor(Catalog& catalog, std::string_view db, RecordScan scan)
      : catalog_(catalog), db_(db), scan_(std::move(scan)) {}

  Result<bool> Next() override {
    if (!open_) {
      // The order of names is that of the keys.
      views_ = ViewsOf(catalog_, db_);
      if (scan_.backward) std::reverse(views_.begin(), views_.end());
      open_ = true;
      at_ = 0;
    }
    for (; at_ < views_.size(); ++at_) {
      std::string key = RecordKey(*views_[at_]);
      // Shown before the cursor was opened anew.
      if (!last_.empty() && (scan_.backward ? key >= last_ : key <= last_)) continue;
      if (key < scan_.lower || (!scan_.upper.empty() && key >= scan_.upper)) continue;
      last_ = std::move(key);
      shown_ = DescribeViewRow(catalog_, *views_[at_++]);
      Show(last_, shown_.view(), std::nullopt);
      return true;
    }
    return false;
  }
  void Reposition(ReadView) override {
    views_.clear();
    // A definition may have 16 MB, and a cursor that waits is not charged for it. To assign an
    // empty document would keep its room.
    std::exchange(shown_, {});
    open_ = false;
  }

 private:
  Catalog& catalog_;
  const std::string db_;
  const RecordScan scan_;
  std::vector<CollectionInfoPtr> views_;
  bool open_ = false;
  size_t at_ = 0;
  std::string last_;
  BsonDocument shown_;
};

}  // namespace

std::unique_ptr<RecordCursor> ViewRows::Scan(RecordScan scan) {
  return std::make_unique<ViewCursor>(catalog_, db_, std::move(scan));
}

Result<bool> ViewRows::Fetch(std::string_view record_key, const ReadView&, Storage::Record* out) {
  if (record_key.size() < kIdPrefixSize) return false;
  std::string_view rest = record_key.substr(kIdPrefixSize), no_bits;
  MAYFLY_TRY(const Value id, DecodeKeyValue(&rest, false, &no_bits));
  if (!id.view().IsString()) return false;
  // check_names: only looked up
  const NamespaceParts name = SplitNamespace(id.view().String());
  if (name.db != db_) return false;
  const CollectionInfoPtr view = catalog_.Find(db_, name.collection);
  if (view == nullptr || !view->is_view()) return false;
  const BsonDocument doc = DescribeViewRow(catalog_, *view);
  out->pinned.Assign(doc.view().bytes());
  out->doc = BsonView(out->pinned.view());
  out->expire_at.reset();
  return true;
}

uint64_t ViewRows::Bytes() {
  uint64_t n = 0;
  for (const CollectionInfoPtr& view : ViewsOf(catalog_, db_))
    n += view->view_pipeline.view().size() + view->ns.size() + view->view_on.size();
  return n;
}

int64_t ViewRows::Count() { return static_cast<int64_t>(ViewsOf(catalog_, db_).size()); }

CollectionInfoPtr ViewsCollection(Catalog& catalog, std::string_view db) {
  auto coll = std::make_shared<CollectionInfo>();
  coll->id = kId;
  // One for each database, the same at each start and on each member (FNV-1a; RFC 9562, version 8).
  for (size_t half = 0; half < 2; ++half) {
    uint64_t hash = 0xcbf29ce484222325 + half;
    for (const char c : db) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    for (size_t i = 0; i < 8; ++i) coll->uuid[half * 8 + i] = static_cast<uint8_t>(hash >> (8 * i));
  }
  coll->uuid[6] = (coll->uuid[6] & 0x0F) | 0x80;
  coll->uuid[8] = (coll->uuid[8] & 0x3F) | 0x80;
  coll->db = db;
  coll->name = kViewsCollection;
  coll->ns = JoinNamespace(db, kViewsCollection);
  coll->unreplicated = true;
  coll->counters = std::make_shared<CollectionCounters>();
  coll->source = std::make_shared<ViewRows>(catalog, std::string(db));
  return coll;
}

}  // namespace mayfly
