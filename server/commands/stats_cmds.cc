#include <sys/statvfs.h>

#include "query/plan/find_executor.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/aggregate_stages.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "storage/read/record_source.h"
#include "storage/read/visibility.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

Result<int64_t> Scale(ArgReader& in) {
  int64_t scale = in.Int64Or("scale", 1);
  if (scale < 1)
    return Error{ErrorCode::kBadValue, "BSON field 'scale' value must be >= 1, actual value '" +
                                           std::to_string(scale) + "'"};
  return scale;
}

/// Used and total bytes of the file system that `path` is on; zeros when it cannot be asked.
void FileSystemBytes(const std::string& path, uint64_t* used, uint64_t* total) {
  struct statvfs s;
  *used = *total = 0;
  if (statvfs(path.c_str(), &s) != 0) return;
  *total = s.f_blocks * s.f_frsize;
  *used = (s.f_blocks - s.f_bfree) * s.f_frsize;
}

Result<void> RunDbStats(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("dbStats");  // unused: the command's name
  in.Any("dbstats");  // unused: the command's name
  MAYFLY_TRY(int64_t scale, Scale(in));
  const bool free_storage = in.LooseBoolOr("freeStorage", false);
  MAYFLY_TRY(in.Finish());
  Storage& storage = ctx.data.storage();
  int64_t collections = 0, views = 0, objects = 0, data = 0, indexes = 0;
  uint64_t stored = 0, index_bytes = 0;
  for (const CollectionInfoPtr& c : storage.catalog().List(req.db)) {
    if (c->is_view()) {
      ++views;
      continue;
    }
    ++collections;
    MAYFLY_TRY(int64_t documents, Visibility(storage, *c, ctx.op).CountVisible(ctx.op));
    objects += documents;
    data += c->source ? static_cast<int64_t>(c->source->Bytes()) : c->counters->bytes.load();
    stored += storage.StorageBytes(*c);
    indexes += c->ShownIndexes();
    for (const IndexInfoPtr& i : c->indexes) index_bytes += storage.IndexBytes(*c, *i);
  }
  const double s = static_cast<double>(scale);
  reply.Append("db", req.db)
      .Append("collections", collections)
      .Append("views", views)
      .Append("objects", objects);
  reply.Append("avgObjSize",
               objects > 0 ? static_cast<double>(data) / static_cast<double>(objects) : 0.0);
  reply.Append("dataSize", static_cast<double>(data) / s)
      .Append("storageSize", static_cast<double>(stored) / s);
  // The store's files hold no free room: what is removed goes with the next compaction.
  if (free_storage) reply.Append("freeStorageSize", 0.0);
  reply.Append("indexes", indexes).Append("indexSize", static_cast<double>(index_bytes) / s);
  if (free_storage) reply.Append("indexFreeStorageSize", 0.0);
  reply.Append("totalSize", static_cast<double>(stored + index_bytes) / s);
  if (free_storage) reply.Append("totalFreeStorageSize", 0.0);
  reply.Append("scaleFactor", scale);
  uint64_t used = 0, total = 0;
  FileSystemBytes(storage.options().path, &used, &total);
  reply.Append("fsUsedSize", static_cast<double>(used) / s)
      .Append("fsTotalSize", static_cast<double>(total) / s);
  return Ok();
}

Result<void> RunCollStats(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view name = in.Collection();
  MAYFLY_TRY(int64_t scale, Scale(in));
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr coll, OpenCollection(ctx.data.storage().catalog(), req.db, name,
                                                    CollectionUse::kStatistics));
  if (coll) {
    int64_t documents = 0;
    if (!coll->is_view()) {
      MAYFLY_TRY(documents, Visibility(ctx.data.storage(), *coll, ctx.op).CountVisible(ctx.op));
    }
    AppendCollectionStats(ctx.expiry, *coll, documents, scale, true, reply);
    return Ok();
  }
  reply.Append("ns", JoinNamespace(req.db, name))
      .Append("size", int32_t{0})
      .Append("count", int32_t{0})
      .Append("numOrphanDocs", int32_t{0});
  reply.Append("storageSize", int32_t{0})
      .Append("totalSize", int32_t{0})
      .Append("nindexes", int32_t{0})
      .Append("totalIndexSize", int32_t{0});
  reply.Append("indexDetails", BsonView())
      .Append("indexSizes", BsonView())
      .Append("scaleFactor", static_cast<int32_t>(scale));
  return Ok();
}

Result<void> RunDataSize(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  std::string_view ns = in.String("dataSize");
  BsonView pattern = in.DocumentOr("keyPattern");
  auto min = in.OptDocument("min");
  auto max = in.OptDocument("max");
  bool estimate = in.LooseBoolOr("estimate", false);
  const int64_t max_size = in.NonNegativeOr("maxSize", 0);
  const int64_t max_objects = in.NonNegativeOr("maxObjects", 0);
  MAYFLY_TRY(in.Finish());
  const NamespaceParts parts = SplitNamespace(ns);
  const int64_t begin = ctx.data.clock().MonotonicMicros();
  MAYFLY_TRY(CollectionInfoPtr coll, OpenCollection(ctx.data.storage().catalog(), parts.db,
                                                    parts.collection, CollectionUse::kStatistics));
  int64_t bytes = 0, objects = 0;
  bool max_reached = false;
  if (coll) {
    if (min.has_value() != max.has_value())
      return Error{ErrorCode::kBadValue, "only one of min or max specified"};
    const bool limited = max_size > 0 || max_objects > 0;
    if (!min && !limited) {
      bytes =
          coll->source ? static_cast<int64_t>(coll->source->Bytes()) : coll->counters->bytes.load();
      MAYFLY_TRY(objects, Visibility(ctx.data.storage(), *coll, ctx.op).CountVisible(ctx.op));
    } else {
      QuerySpec spec;
      spec.coll = coll;
      BsonDocument hint;
      if (min) {
        spec.min = *min;
        spec.max = *max;
        hint = pattern.empty() ? BuildBson([&](BsonBuilder& b) {
          for (const BsonElement& e : *min) b.Append(e.name, 1);
        })
                               : BsonDocument(pattern);
        spec.hint = hint.view().AsValue();
      }
      MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
                 MakeFindExecutor(ctx.data.storage(), ctx.op, spec));
      for (;;) {
        MAYFLY_TRY(PlanExecutor::State state, executor->Next());
        if (state == PlanExecutor::State::kEof) break;
        MAYFLY_TRY(BsonView doc, executor->doc());
        bytes += doc.size();
        ++objects;
        // The document that went too far is counted, as in MongoDB.
        max_reached =
            (max_size > 0 && bytes > max_size) || (max_objects > 0 && objects > max_objects);
        if (max_reached) break;
      }
    }
  }
  reply.Append("estimate", estimate).Append("size", bytes).Append("numObjects", objects);
  reply.Append("millis", (ctx.data.clock().MonotonicMicros() - begin) / 1000)
      .Append("maxReached", max_reached);
  return Ok();
}

}  // namespace

void RegisterStatsCommands(CommandRegistry& registry) {
  constexpr uint32_t kStats = kReadOnly | kSecondaryOk | kSecondaryOptIn | kWorker;
  registry.Add({.name = "collStats",
                .aliases = {"collstats"},
                .flags = kStats,
                .help = "Sizes of a collection and its indexes.",
                .run = &RunCollStats,
                .privileges = &privileges::OnCollection<Action::collStats>});
  registry.Add({.name = "dataSize",
                .aliases = {"datasize"},
                .flags = kStats,
                .help = "Bytes of the documents of a collection or a range of it.",
                .run = &RunDataSize,
                .privileges = &privileges::DataSize});
  registry.Add({.name = "dbStats",
                .aliases = {"dbstats"},
                .flags = kStats,
                .help = "Sizes of a database.",
                .run = &RunDbStats,
                .privileges = &privileges::OnDatabase<Action::dbStats>});
}

}  // namespace mayfly
