#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"
#include "storage/keys/key_format.h"
#include "storage/storage.h"
#include "ttl/remove_due.h"
#include "ttl/ttl_controls.h"

namespace mayfly {

namespace {

Result<void> Compact(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const std::string_view name = in.Collection();
  in.LooseBoolOr("force", false);  // unused: asks for a primary, too; nobody is kept waiting on one
  const auto target_mb = in.OptInRange("freeSpaceTargetMB", 1, INT64_MAX >> 21);
  const bool dry_run = in.BoolOr("dryRun", false);
  MAYFLY_TRY(in.Finish());
  Storage& storage = ctx.data.storage();
  MAYFLY_TRY(CollectionInfoPtr coll,
             OpenCollection(storage.catalog(), req.db, name, CollectionUse::kCompact));
  auto bytes = [&] {
    uint64_t n = storage.StorageBytes(*coll);
    for (const IndexInfoPtr& i : coll->indexes) n += storage.IndexBytes(*coll, *i);
    return static_cast<int64_t>(n);
  };
  const int64_t before = bytes();
  // The space that can be freed is the files' size beyond the documents themselves.
  const int64_t estimate = std::max<int64_t>(0, before - coll->counters->bytes.load());
  if (dry_run) {
    reply.Append("estimatedBytesFreed", estimate);
    return Ok();
  }
  // Due documents are removed first, so that their space is freed too.
  if (!RemovalHeld(storage.expiry_policy())) {
    MAYFLY_TRY(RemoveDue(storage, ctx.op, coll));
  }
  if (target_mb && estimate < *target_mb << 20) {
    reply.Append("bytesFreed", int64_t{0});
    return Ok();
  }
  MAYFLY_TRY(storage.kv().Flush());
  MAYFLY_TRY(ctx.op.CheckInterrupt());
  MAYFLY_TRY(storage.kv().Compact(Keyspace::kRecords, IdPrefix(coll->id), IdPrefixEnd(coll->id)));
  for (const IndexInfoPtr& i : coll->indexes) {
    MAYFLY_TRY(ctx.op.CheckInterrupt());
    MAYFLY_TRY(storage.kv().Compact(i->keyspace, IdPrefix(i->id), IdPrefixEnd(i->id)));
  }
  MAYFLY_TRY(storage.kv().Compact(Keyspace::kExpiry, DeadlinePrefix(coll->id),
                                  DeadlinePrefixEnd(coll->id)));
  reply.Append("bytesFreed", std::max<int64_t>(0, before - bytes()));
  return Ok();
}

}  // namespace

void RegisterCompact(CommandRegistry& registry) {
  registry.Add({.name = "compact",
                .flags = kWorker | kSecondaryOk | kTakesWriteConcern,
                .help = "Gives the space of removed documents of a collection back.",
                .run = &Compact,
                .privileges = &privileges::OnCollection<Action::compact>});
}

}  // namespace mayfly
