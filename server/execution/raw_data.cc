#include "server/execution/raw_data.h"

#include <algorithm>

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/execution/series_definition.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

constexpr std::string_view kTakeRawData[] = {
    "aggregate",     "bulkWrite", "count",           "createIndexes", "delete",
    "deleteIndexes", "distinct",  "dropIndexes",     "find",          "findAndModify",
    "findandmodify", "insert",    "listCollections", "listIndexes",   "update"};

}  // namespace

std::optional<std::string> NameOfBuckets(Catalog& catalog, std::string_view db,
                                         std::string_view collection) {
  const CollectionInfoPtr coll = catalog.Find(db, collection);
  if (!coll || !coll->is_series()) return std::nullopt;
  return BucketsName(coll->name);
}

Result<void> ApplyRawData(DataServices& server, CommandRequest& request) {
  if (!request.generic.raw_data) return Ok();
  if (std::ranges::find(kTakeRawData, request.name) == std::end(kTakeRawData))
    return Error{ErrorCode::kInvalidOptions,
                 "Command " + ShownName(request.name) + " does not support rawData"};
  if (!server.has_storage() || request.fields.empty()) return Ok();
  const BsonValue named = request.fields[0].value;
  // listIndexes also takes a UUID.
  Catalog& catalog = server.storage().catalog();
  std::optional<std::string> buckets;
  if (named.IsString()) {
    buckets = NameOfBuckets(catalog, request.db, named.String());  // check_names: looked up
  } else if (const std::optional<Uuid> uuid = UuidOf(named)) {
    const CollectionInfoPtr coll = catalog.FindByUuid(*uuid);
    if (coll && coll->is_series()) buckets = BucketsName(coll->name);
  }
  if (!buckets) return Ok();
  request.buckets_name = std::make_shared<const BsonDocument>(
      BuildBson([&](BsonBuilder& b) { b.Append(request.name, *buckets); }));
  request.fields[0].value = request.buckets_name->view().First().value;
  return Ok();
}

}  // namespace mayfly
