#include "query/expression/parse_work.h"
#include "query/projection/projection.h"
#include "server/commands/find_and_modify.h"
#include "server/dispatch/arg_reader.h"
#include "server/execution/retryable_writes.h"
#include "server/execution/write_ops.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

Result<FindAndModifyArgs> ParseFindAndModify(const CommandRequest& req, Instant now) {
  ArgReader in(req);
  FindAndModifyArgs a;
  a.collection = in.Collection();
  a.filter = in.DocumentOr("query");
  a.sort = in.DocumentOr("sort");
  a.remove = in.LooseBoolOr("remove", false);
  a.update = in.Any("update");
  a.return_new = in.LooseBoolOr("new", false);
  a.upsert = in.LooseBoolOr("upsert", false);
  a.fields = in.DocumentOr("fields");
  a.bypass_validation = in.LooseBoolOr("bypassDocumentValidation", false);
  in.OptBool("bypassEmptyTsReplacement");
  in.SimpleCollation();
  if (auto filters = in.OptArray("arrayFilters"))
    for (const BsonElement& e : *filters) {
      if (!e.value.IsDocument())
        in.Fail({ErrorCode::kTypeMismatch,
                 "BSON field 'findAndModify.arrayFilters' holds a value that is not an object"});
      else
        a.array_filters.push_back(e.value.Document());
    }
  a.hint = in.Any("hint");
  a.let = in.DocumentOr("let");
  a.statement_id = in.OptInt64("stmtId");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  bool preserve = in.BoolOr("preserveExpiry", false);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(a.expiry, ParseExpiryFields(after, at, preserve, now, "findAndModify"));
  if (a.remove && a.expiry.given())
    return Error{
        ErrorCode::kInvalidOptions,
        "expireAfterSeconds, expireAt and preserveExpiry have no meaning with remove=true"};
  auto parse_error = [](const char* why) { return Error{ErrorCode::kFailedToParse, why}; };
  if (a.remove && !a.update.missing())
    return parse_error("Cannot specify both an update and remove=true");
  if (a.remove && a.upsert) return parse_error("Cannot specify both upsert=true and remove=true ");
  if (a.remove && a.return_new)
    return parse_error(
        "Cannot specify both new=true and remove=true; 'remove' always returns the deleted "
        "document");
  if (a.remove && in.Has("arrayFilters"))
    return parse_error("Cannot specify arrayFilters and remove=true");
  if (!a.remove && a.update.missing())
    return parse_error("Either an update or remove=true must be specified");
  if (!a.hint.missing() && !a.hint.IsString() && !a.hint.IsDocument())
    return parse_error("Hint must be a string or an object");
  return a;
}

namespace {

Awaitable<Result<void>> RunFindAndModify(CommandContext& ctx, const CommandRequest& req,
                                         BsonBuilder& reply) {
  MAYFLY_CO_TRY(FindAndModifyArgs a, ParseFindAndModify(req, ctx.op.now));
  ctx.EditReport([&](OperationReport& r) {
    r.op = "command";
    r.ns = JoinNamespace(req.db, a.collection);
  });
  ctx.server.metrics().opcounters.command.Add();
  WriteCommand command(ctx.server, ctx.op, req.db, a.collection);
  command.set_bypass_validation(a.bypass_validation);
  RetryableWrite retry(ctx);
  if (ctx.txn_number) {
    MAYFLY_CO_TRY(retry.SetStatementIds({}, a.statement_id, 1));
    MAYFLY_CO_TRY(co_await retry.Begin());
    retry.KeepDocuments(a.return_new);
    command.set_observer(&retry);
  }
  co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(command.SetLet(a.let));
  MAYFLY_CO_TRY(command.Open());

  VariableScope scope;
  MatchPtr filter;
  ProjectionPtr projection;
  if (!a.fields.empty()) {
    // The element that the filter found may be another one by then, or gone.
    if (a.return_new)
      for (const BsonElement& e : a.fields)
        if (e.name.ends_with(".$"))
          co_return Error{ErrorCode::kBadValue,
                          "cannot use a positional projection and return the new document"};
    auto parse = [&] {
      ParseWork work(&ctx.op);
      return ParseMatch(a.filter, {.scope = &scope});
    };
    MAYFLY_CO_TRY(filter, parse());
    MAYFLY_CO_TRY(projection, ParseFindProjection(a.fields, filter.get(), scope));
    MAYFLY_CO_TRY(scope.CheckConstants());
  }
  std::optional<BsonDocument> value;
  DocumentMetadata metadata;
  const StatementResult* before = retry.active() ? retry.Find(0) : nullptr;
  if (before != nullptr) {
    const BsonView kept = before->document.view();
    if (before->kind != StatementResult::Kind::kFoundAndModified ||
        kept["existing"].missing() != a.remove)
      co_return Error{LocationCode(40606),
                      "findAndModify retry request: the write of this transaction number was "
                      "another one"};
    BsonBuilder last = reply.OpenDocument("lastErrorObject");
    last.Append("n", kept["n"]);
    if (!a.remove) last.Append("updatedExisting", kept["existing"]);
    last.Append("upserted", kept["upserted"]);
    last.Done();
    if (const BsonValue v = kept["value"]; v.IsDocument()) value = BsonDocument(v.Document());
  } else {
    if (a.remove) {
      std::optional<BsonDocument> deleted;
      MAYFLY_CO_TRY(int64_t n,
                    command.Delete({.filter = a.filter, .sort = a.sort, .hint = a.hint}, &deleted));
      ctx.server.metrics().documents.deleted.Add(n);
      reply.OpenDocument("lastErrorObject").Append("n", static_cast<int32_t>(n));
      if (n > 0) value = std::move(deleted);
    } else {
      UpdateStatement s;
      s.filter = a.filter;
      s.update = a.update;
      s.array_filters = a.array_filters;
      s.sort = a.sort;
      s.hint = a.hint;
      s.upsert = a.upsert;
      s.expiry = a.expiry;
      MAYFLY_CO_TRY(UpdateResult r, command.Update(s, true));
      const bool upserted = !r.upserted_id.missing();
      ctx.server.metrics().documents.updated.Add(r.modified);
      BsonBuilder last = reply.OpenDocument("lastErrorObject");
      last.Append("n", static_cast<int32_t>(r.matched + (upserted ? 1 : 0)))
          .Append("updatedExisting", r.matched > 0);
      if (upserted) last.Append("upserted", r.upserted_id.view());
      last.Done();
      if (a.return_new) {
        value = std::move(r.after);
        metadata.expire_at = r.after_expires;
      } else if (r.matched > 0) {
        value = std::move(r.before);
        metadata.expire_at = r.before_expires;
      }
    }
    ctx.EditReport([&](OperationReport& r) { r.plan_summary = command.plan_summary(); });
    if (ctx.write_concern.journal) {
      MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.server.storage(), ctx.op)));
    }
  }
  if (!value) {
    reply.AppendNull("value");
  } else if (projection) {
    EvalContext eval;
    eval.variables.resize(static_cast<size_t>(scope.slots()));
    eval.now = ctx.op.now;
    eval.cluster_time = ctx.op.cluster_time;
    eval.metadata = &metadata;
    eval.op = &ctx.op;
    MAYFLY_CO_TRY(BsonDocument shown, projection->Apply(*value, eval));
    reply.Append("value", shown);
  } else {
    reply.Append("value", *value);
  }
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  if (before != nullptr) reply.Append("retriedStmtId", retry.retried().front());
  co_return Ok();
}

}  // namespace

void RegisterFindAndModify(CommandRegistry& registry) {
  registry.Add({.name = "findAndModify",
                .aliases = {"findandmodify"},
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Changes or removes one document and returns it.",
                .run_async = &RunFindAndModify});
}

}  // namespace mayfly
