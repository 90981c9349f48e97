#include "query/expression/parse_work.h"
#include "query/projection/projection.h"
#include "server/commands/find_and_modify.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/execution/statement_runner.h"
#include "server/privileges/privileges.h"
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
  a.keep_empty_timestamps = in.BoolOr("bypassEmptyTsReplacement", false);
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

/// `fields`, and what applies it.
class ReturnedFields {
 public:
  /// Errors: BadValue 2, those of `let`, filters and projections.
  Result<void> Parse(const FindAndModifyArgs& a, Operation& op) {
    if (a.fields.empty()) return Ok();
    // The element that the filter found may be another one by then, or gone.
    if (a.return_new)
      for (const BsonElement& e : a.fields)
        if (e.name.ends_with(".$"))
          return Error{ErrorCode::kBadValue,
                       "cannot use a positional projection and return the new document"};
    MAYFLY_TRY(EvaluateLet(a.let, op, &scope_, &variables_));
    const ParseWork work(&op);
    MAYFLY_TRY(filter_, ParseMatch(a.filter, {.scope = &scope_}));
    MAYFLY_TRY(projection_, ParseFindProjection(a.fields, filter_.get(), scope_));
    // The plan that knew these has ended when the document is returned.
    const ProjectionNeeds& needs = projection_->needs();
    if (needs.sort_key || needs.record_id || needs.index_key)
      return Error{ErrorCode::kBadValue, std::string("findAndModify has no $meta: \"") +
                                             (needs.sort_key    ? "sortKey"
                                              : needs.record_id ? "recordId"
                                                                : "indexKey") +
                                             "\" for 'fields': read the document with find"};
    return scope_.CheckConstants();
  }
  /// Appends `value`. `expire_at`: the document's deadline.
  Result<void> Append(const BsonDocument& value, std::optional<Instant> expire_at, Operation& op,
                      BsonBuilder& reply) const {
    if (!projection_) {
      reply.Append("value", value);
      return Ok();
    }
    DocumentMetadata metadata;
    metadata.expire_at = expire_at;
    EvalContext eval;
    eval.variables = variables_;
    eval.variables.resize(static_cast<size_t>(scope_.slots()));
    eval.now = op.now;
    eval.cluster_time = op.cluster_time;
    eval.metadata = &metadata;
    eval.op = &op;
    MAYFLY_TRY(BsonDocument shown, projection_->Apply(value, eval));
    reply.Append("value", shown);
    return Ok();
  }

 private:
  VariableScope scope_;
  std::vector<Value> variables_;  ///< of `let`
  MatchPtr filter_;
  ProjectionPtr projection_;
};

/// The one statement of findAndModify. Its errors are the command's.
class FindAndModifyStatement final : public WriteStatements {
 public:
  FindAndModifyStatement(CommandContext& ctx, WriteCommand& command, const FindAndModifyArgs& a,
                         BsonBuilder& reply)
      : ctx_(ctx), command_(command), a_(a), reply_(reply) {
    remove_ = {.filter = a.filter, .sort = a.sort, .hint = a.hint};
    update_.filter = a.filter;
    update_.update = a.update;
    update_.array_filters = a.array_filters;
    update_.sort = a.sort;
    update_.hint = a.hint;
    update_.upsert = a.upsert;
    update_.expiry = a.expiry;
  }

  size_t size() const override { return 1; }
  bool NeedsWorker() const override { return true; }
  Result<void> Open(StatementRunner& runner) override {
    runner.retry().KeepDocuments(a_.return_new);
    runner.Attach(command_);
    MAYFLY_TRY(command_.SetLet(a_.let));
    MAYFLY_TRY(command_.Open());
    return fields.Parse(a_, ctx_.op);
  }
  size_t Until(size_t i) const override { return i + 1; }
  WriteStatement At(size_t, size_t) override {
    WriteStatement s{.command = &command_, .want_documents = true};
    if (a_.remove)
      s.remove = &remove_;
    else
      s.update = &update_;
    return s;
  }

  Result<void> Replayed(size_t, const StatementResult& before) override {
    const BsonView kept = before.document.view();
    if (before.kind != StatementResult::Kind::kFoundAndModified ||
        kept["existing"].missing() != a_.remove)
      return Error{LocationCode(40606),
                   "findAndModify retry request: the write of this transaction number was another "
                   "one"};
    BsonBuilder last = reply_.OpenDocument("lastErrorObject");
    last.Append("n", kept["n"]);
    if (!a_.remove) last.Append("updatedExisting", kept["existing"]);
    last.Append("upserted", kept["upserted"]);
    last.Done();
    if (const BsonValue v = kept["value"]; v.IsDocument()) value = BsonDocument(v.Document());
    return Ok();
  }
  void Inserted(size_t, size_t) override {}
  void Done(size_t, StatementOutcome o) override {
    if (a_.remove)
      Removed(std::move(o));
    else
      Updated(std::move(o.update));
    ctx_.EditReport([&](OperationReport& r) { r.plan_summary = command_.plan_summary(); });
  }
  Result<bool> Failed(size_t, Error e) override { return e; }

  ReturnedFields fields;
  std::optional<BsonDocument> value;  ///< to return; none: null
  std::optional<Instant> expire_at;

 private:
  void Removed(StatementOutcome o) {
    ctx_.data.metrics().documents.deleted.Add(o.deleted);
    reply_.OpenDocument("lastErrorObject").Append("n", static_cast<int32_t>(o.deleted));
    if (o.deleted > 0) value = std::move(o.document);
  }
  void Updated(UpdateResult r) {
    const bool upserted = !r.upserted_id.missing();
    ctx_.data.metrics().documents.updated.Add(r.modified);
    BsonBuilder last = reply_.OpenDocument("lastErrorObject");
    last.Append("n", static_cast<int32_t>(r.matched + (upserted ? 1 : 0)))
        .Append("updatedExisting", r.matched > 0);
    if (upserted) last.Append("upserted", r.upserted_id.view());
    last.Done();
    if (a_.return_new) {
      value = std::move(r.after);
      expire_at = r.after_expires;
    } else if (r.matched > 0) {
      value = std::move(r.before);
      expire_at = r.before_expires;
    }
  }

  CommandContext& ctx_;
  WriteCommand& command_;
  const FindAndModifyArgs& a_;
  BsonBuilder& reply_;
  UpdateStatement update_;
  DeleteStatement remove_;
};

Awaitable<Result<void>> RunFindAndModify(CommandContext& ctx, const CommandRequest& req,
                                         BsonBuilder& reply) {
  MAYFLY_CO_TRY(RefuseDeadlineField(ctx, "findAndModify"));
  MAYFLY_CO_TRY(const FindAndModifyArgs a, ParseFindAndModify(req, ctx.op.now));
  ctx.EditReport([&](OperationReport& r) {
    r.op = "command";
    r.ns = JoinNamespace(req.db, a.collection);
  });
  ctx.data.metrics().opcounters.command.Add();
  co_await ctx.MoveToWorker();
  WriteCommand command(WriteServicesOf(ctx.data), ctx.op, req.db, a.collection);
  command.set_bypass_validation(a.bypass_validation);
  command.set_keep_empty_timestamps(a.keep_empty_timestamps);
  FindAndModifyStatement statement(ctx, command, a, reply);
  StatementRunner runner(ctx);
  StatementIds ids;
  ids.first = a.statement_id;
  MAYFLY_CO_TRY(co_await runner.RunStatements(statement, ids));
  if (!statement.value) {
    reply.AppendNull("value");
  } else {
    MAYFLY_CO_TRY(statement.fields.Append(*statement.value, statement.expire_at, ctx.op, reply));
  }
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  if (!runner.retry().retried().empty())
    reply.Append("retriedStmtId", runner.retry().retried().front());
  co_return Ok();
}

}  // namespace

void RegisterFindAndModify(CommandRegistry& registry) {
  registry.Add({.name = "findAndModify",
                .aliases = {"findandmodify"},
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Changes or removes one document and returns it.",
                .run_async = &RunFindAndModify,
                .privileges = &privileges::FindAndModify});
}

}  // namespace mayfly
