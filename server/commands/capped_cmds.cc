#include "protocol/object_id.h"
#include "query/plan/executor.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/ttl_preview.h"
#include "server/execution/write_ops.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "storage/schema/replace_collection.h"
#include "storage/storage.h"
#include "storage/write/archive.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

constexpr int64_t kMaxCappedBytes = int64_t{1} << 50;

CollectionInfo CappedDefinition(std::string_view db, std::string_view name, int64_t size) {
  CollectionInfo c;
  c.db = db;
  c.name = name;
  c.kind = CollectionKind::kCapped;
  c.capped_bytes = (size + 255) / 256 * 256;
  c.options = BuildBson([&](BsonBuilder& b) {
    b.Append("capped", true);
    if (c.capped_bytes <= INT32_MAX)
      b.Append("size", static_cast<int32_t>(c.capped_bytes));
    else
      b.Append("size", c.capped_bytes);
  });
  return c;
}

/// All documents of `from` in natural order into a capped collection, which keeps what it has room
/// for.
Result<void> CopyDocuments(CommandContext& ctx, const CollectionInfoPtr& from,
                           const CollectionInfo& to) {
  constexpr size_t kDocuments = 500, kBytes = 4 << 20;
  WriteCommand out(WriteServicesOf(ctx.data), ctx.op, to.db, to.name);
  out.set_bypass_validation(true);
  MAYFLY_TRY(out.Open());
  QuerySpec spec;
  spec.coll = from;
  const BsonDocument natural = BuildBson([](BsonBuilder& b) { b.Append("$natural", 1); });
  spec.sort = natural;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor,
             MakeFindExecutor(ctx.data.storage(), ctx.op, spec));
  std::vector<BsonDocument> batch;
  size_t bytes = 0;
  auto flush = [&]() -> Result<void> {
    const std::vector<BsonView> views(batch.begin(), batch.end());
    std::optional<Error> failed;
    MAYFLY_TRY(out.Insert(views, [&](size_t, Error e) {
      failed = std::move(e);
      return false;
    }));
    if (failed) return *failed;
    batch.clear();
    bytes = 0;
    return Ok();
  };
  for (;;) {
    MAYFLY_TRY(PlanExecutor::State state, executor->Next());
    if (state == PlanExecutor::State::kEof) break;
    MAYFLY_TRY(BsonView doc, executor->doc());
    batch.emplace_back(doc);
    bytes += doc.size();
    if (batch.size() >= kDocuments || bytes >= kBytes) {
      MAYFLY_TRY(flush());
    }
  }
  return batch.empty() ? Ok() : flush();
}

Result<CollectionInfoPtr> Source(CommandContext& ctx, std::string_view db, std::string_view name,
                                 int64_t size) {
  MAYFLY_TRY(ValidateNamespace(db, name));
  if (size <= 0 || size > kMaxCappedBytes)
    return Error{ErrorCode::kBadValue,
                 "Capped collection size must be between 1 and 1125899906842624, but is " +
                     std::to_string(size)};
  MAYFLY_TRY(CollectionInfoPtr from, OpenCollection(ctx.data.storage().catalog(), db, name,
                                                    CollectionUse::kConvertToCapped));
  if (name.starts_with("system."))
    return Error{ErrorCode::kIllegalOperation, "cannot copy or convert system collections"};
  return from;
}

/// {convertToCapped: c, size: bytes}: its indexes go, but for that on _id (manual:
/// "convertToCapped"), and with the TTL indexes all other rules of expiry: documents that have not
/// expired stay without a deadline.
Result<void> ConvertToCapped(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const std::string_view name = in.Collection();
  const int64_t size = in.Int64("size");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr from, Source(ctx, req.db, name, size));
  // Expired documents are not copied. With an archive they must be kept, and would be lost.
  if (ArchiveTargetOf(*from))
    return Error{ErrorCode::kInvalidOptions,
                 "expired documents of " + from->ns +
                     " are archived, which those of a capped collection cannot be: end that first "
                     "with {collMod: '" +
                     from->name + "', onExpire: {action: 'delete'}}"};
  if (from->expiry_options.recover_seconds > 0)
    return Error{ErrorCode::kInvalidOptions,
                 "expired documents of " + from->ns +
                     " can be recovered, which those of a capped collection cannot: end that first "
                     "with {collMod: '" +
                     from->name + "', expiry: {recoverSeconds: 0}}"};
  Catalog& catalog = ctx.data.storage().catalog();
  CollectionInfo definition = CappedDefinition(
      req.db, "tmp.convertToCapped." + ObjectIdToHex(NewObjectId(ctx.op.now)), size);
  definition.temporary = true;
  MAYFLY_TRY(CollectionInfoPtr made, catalog.Create(ctx.op, std::move(definition)));
  Result<void> done = ReplaceCollection(ctx.data.storage(), ctx.op, *from, *made,
                                        [&] { return CopyDocuments(ctx, from, *made); });
  if (!done) {
    Operation op(ctx.data.clock());
    (void)catalog.Drop(op, made->db, made->name);
    return done;
  }
  AuditDroppedRules(ctx, *from, "convertToCapped");
  ctx.data.cursors().KillNamespace(req.db, name);
  return ctx.expiry.ttl_controls().ForgetCollection(ctx.op, from->uuid);
}

/// {cloneCollectionAsCapped: from, toCollection: to, size: bytes} (manual:
/// "cloneCollectionAsCapped").
Result<void> CloneAsCapped(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const std::string_view name = in.Collection();
  const std::string_view to = in.String("toCollection");
  const int64_t size = in.Int64("size");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CollectionInfoPtr from, Source(ctx, req.db, name, size));
  MAYFLY_TRY(ValidateNewNamespace(req.db, to));
  Catalog& catalog = ctx.data.storage().catalog();
  if (CollectionInfoPtr there = catalog.Find(req.db, to))
    return Error{ErrorCode::kNamespaceExists,
                 "cloneCollectionAsCapped failed - destination collection " + there->ns +
                     " already exists. source collection: " + from->ns};
  MAYFLY_TRY(CollectionInfoPtr made, catalog.Create(ctx.op, CappedDefinition(req.db, to, size)));
  Result<void> done = CopyDocuments(ctx, from, *made);
  if (!done) {
    Operation op(ctx.data.clock());
    (void)catalog.Drop(op, made->db, made->name);
  }
  return done;
}

}  // namespace

void RegisterCappedCommands(CommandRegistry& registry) {
  registry.Add({.name = "cloneCollectionAsCapped",
                .flags = kWrites | kWorker | kTakesWriteConcern,
                .help = "Copies a collection into a new capped one.",
                .run = &CloneAsCapped,
                .privileges = &privileges::CloneCollectionAsCapped});
  registry.Add({.name = "convertToCapped",
                .flags = kWrites | kWorker | kTakesWriteConcern,
                .help = "Makes a collection capped; its indexes go.",
                .run = &ConvertToCapped,
                .privileges = &privileges::OnCollection<Action::convertToCapped>});
}

}  // namespace mayfly
