#include "protocol/database_name.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/data_services.h"
#include "server/execution/write_ops.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"

namespace mayfly {
namespace {

/// The common form of touch, persist and ttlRecover.
struct TouchArgs {
  std::string_view collection;
  UpdateStatement statement;
};

Awaitable<Result<void>> RunTouchStatement(CommandContext& ctx, const CommandRequest& req,
                                          TouchArgs args, BsonBuilder& reply,
                                          std::string_view count_name) {
  ctx.EditReport([&](OperationReport& r) {
    r.op = "update";
    r.ns = JoinNamespace(req.db, args.collection);
  });
  WriteCommand command(WriteServicesOf(ctx.data), ctx.op, req.db, args.collection);
  MAYFLY_CO_TRY(command.Open());
  UpdateResult result;
  if (command.coll()) {
    if (command.coll()->capped())
      co_return Error{ErrorCode::kInvalidOptions, "documents of the capped collection " +
                                                      command.coll()->ns +
                                                      " cannot have an expiration"};
    co_await ctx.MoveToWorker();
    MAYFLY_CO_TRY(result, command.Update(args.statement));
    if (ctx.write_concern.journal) {
      MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.data.storage(), ctx.op)));
    }
  }
  ctx.data.metrics().documents.updated.Add(result.modified);
  reply.Append("n", static_cast<int32_t>(result.matched))
      .Append(count_name, static_cast<int32_t>(result.modified));
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  co_return Ok();
}

/// {touch: c, q, expireAfterSeconds | expireAt, when, multi}: moves deadlines, leaves the documents
/// as they are.
Awaitable<Result<void>> RunTouch(CommandContext& ctx, const CommandRequest& req,
                                 BsonBuilder& reply) {
  ArgReader in(req);
  TouchArgs args;
  args.collection = in.Collection();
  args.statement.filter = in.Document("q");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  std::string_view when = in.StringOr("when", "always");
  args.statement.multi = in.BoolOr("multi", false);
  args.statement.hint = in.Any("hint");
  MAYFLY_CO_TRY(in.Finish());
  MAYFLY_CO_TRY(args.statement.when, ParseExpireWhen(when));
  if (after.missing() && at.missing())
    co_return Error{ErrorCode::kMissingField,
                    "touch needs expireAfterSeconds or expireAt; persist takes an expiration away"};
  MAYFLY_CO_TRY(args.statement.expiry, ParseExpiryFields(after, at, false, ctx.op.now, "touch"));
  // 0 is unset: what there was goes, and maxTTL applies (docs/expiry.md C23).
  if (!args.statement.expiry.given()) args.statement.expiry.kind = ExpirySetting::Kind::kNever;
  co_return co_await RunTouchStatement(ctx, req, std::move(args), reply, "nModified");
}

/// {persist: c, q, multi}: the documents expire no more, so far as maxTTL allows.
Awaitable<Result<void>> RunPersist(CommandContext& ctx, const CommandRequest& req,
                                   BsonBuilder& reply) {
  ArgReader in(req);
  TouchArgs args;
  args.collection = in.Collection();
  args.statement.filter = in.Document("q");
  args.statement.multi = in.BoolOr("multi", false);
  args.statement.hint = in.Any("hint");
  MAYFLY_CO_TRY(in.Finish());
  args.statement.expiry.kind = ExpirySetting::Kind::kNever;
  co_return co_await RunTouchStatement(ctx, req, std::move(args), reply, "nModified");
}

/// {ttlRecover: c, q, expireAfterSeconds | expireAt}: brings back documents that are past their own
/// deadline and kept by expiry.recoverSeconds.
Awaitable<Result<void>> RunRecover(CommandContext& ctx, const CommandRequest& req,
                                   BsonBuilder& reply) {
  ArgReader in(req);
  TouchArgs args;
  args.collection = in.Collection();
  args.statement.filter = in.Document("q");
  args.statement.multi = true;
  args.statement.recover = true;
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  MAYFLY_CO_TRY(in.Finish());
  if (after.missing() && at.missing())
    co_return Error{ErrorCode::kMissingField, "ttlRecover needs expireAfterSeconds or expireAt"};
  MAYFLY_CO_TRY(args.statement.expiry,
                ParseExpiryFields(after, at, false, ctx.op.now, "ttlRecover"));
  if (!args.statement.expiry.given()) args.statement.expiry.kind = ExpirySetting::Kind::kNever;
  if (args.statement.expiry.kind == ExpirySetting::Kind::kAt &&
      args.statement.expiry.at.millis <= ctx.op.now.millis)
    co_return Error{ErrorCode::kBadValue, "ttlRecover.expireAt must lie in the future"};
  co_return co_await RunTouchStatement(ctx, req, std::move(args), reply, "nRecovered");
}

Result<void> CheckDatabase(std::string_view db, const char* command) {
  if (IsInternalDatabase(db))
    return Error{ErrorCode::kInvalidOptions,
                 std::string(command) + " is for databases of users, not for " + std::string(db)};
  return Ok();
}

/// Not a collection's name, which would be taken for the whole database.
Result<void> TakesOne(ArgReader& in, const CommandRequest& req) {
  const BsonValue v = in.Any(req.name);
  if (v.IsNumber() && v.NumberAsDouble() == 1) return Ok();
  return Error{v.IsNumber() ? ErrorCode::kBadValue : ErrorCode::kTypeMismatch,
               std::string(req.name) +
                   " takes 1: it is about the database it is sent to; a collection's maxTTL "
                   "is an option of create"};
}

Result<void> RunSetDatabaseExpiry(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(TakesOne(in, req));
  BsonValue max = in.Any("maxTTL");
  MAYFLY_TRY(in.Finish());
  if (max.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field 'setDatabaseExpiry.maxTTL' is missing but a required field"};
  MAYFLY_TRY(CheckDatabase(req.db, "setDatabaseExpiry"));
  MAYFLY_TRY(int64_t seconds, ParseWholeSeconds(max, INT32_MAX, "setDatabaseExpiry.maxTTL"));
  Catalog& catalog = ctx.data.storage().catalog();
  const int64_t was = catalog.DatabaseMaxTtl(req.db);
  MAYFLY_TRY(catalog.SetDatabaseMaxTtl(ctx.op, req.db, seconds));
  Audit(ctx, "setDatabaseExpiry", [&](BsonBuilder& p) {
    p.Append("db", req.db);
    p.OpenDocument("old").Append("maxTTL", was);
    p.OpenDocument("new").Append("maxTTL", seconds);
  });
  reply.Append("was", was).Append("maxTTL", seconds);
  return Ok();
}

Result<void> RunGetDatabaseExpiry(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  ArgReader in(req);
  MAYFLY_TRY(TakesOne(in, req));
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CheckDatabase(req.db, "getDatabaseExpiry"));
  reply.Append("maxTTL", ctx.data.storage().catalog().DatabaseMaxTtl(req.db));
  return Ok();
}

}  // namespace

void RegisterExpiryCommands(CommandRegistry& registry) {
  registry.Add({.name = "getDatabaseExpiry",
                .flags = kReadOnly | kSecondaryOk,
                .help = "Default and cap of per-document expiry of a database.",
                .run = &RunGetDatabaseExpiry,
                .privileges = &privileges::OnDatabase<Action::viewExpiry>});
  registry.Add({.name = "persist",
                .flags = kWrites | kTakesWriteConcern,
                .help = "Takes the expiration of documents away.",
                .run_async = &RunPersist,
                .privileges = &privileges::OnCollection<Action::update>});
  registry.Add({.name = "setDatabaseExpiry",
                .flags = kWrites | kWorker | kTakesWriteConcern,
                .help = "Sets the default and cap of per-document expiry of a database.",
                .run = &RunSetDatabaseExpiry,
                .privileges = &privileges::OnDatabase<Action::changeExpiry>});
  registry.Add({.name = "touch",
                .flags = kWrites | kTakesWriteConcern,
                .help = "Moves the expiration of documents without changing them.",
                .run_async = &RunTouch,
                .privileges = &privileges::OnCollection<Action::update>});
  registry.Add(
      {.name = "ttlRecover",
       .flags = kWrites | kTakesWriteConcern,
       .help = "Brings back expired documents within the collection's recoverSeconds.",
       .run_async = &RunRecover,
       .privileges = &privileges::OnCollection<Action::changeExpiry, Action::readExpired>});
}

}  // namespace mayfly
