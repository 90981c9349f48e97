#include <memory>
#include <vector>

#include "protocol/field_once.h"
#include "protocol/large_memory.h"
#include "query/update/update_pipeline.h"
#include "server/commands/write_statements.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

WriteBatchFields ReadWriteBatchFields(ArgReader& in) {
  WriteBatchFields f;
  f.collection = in.Collection();
  f.ordered = in.BoolOr("ordered", true);
  // Delete takes it too, although it has nothing to validate: PyMongo's bulk writes send it.
  f.bypass_validation = in.LooseBoolOr("bypassDocumentValidation", false);
  f.statement_ids.ids = in.OptArray("stmtIds");
  f.statement_ids.first = in.OptInt64("stmtId");
  return f;
}

Result<void> CheckWriteBatchSize(size_t writes) {
  constexpr size_t kMost = 100'000;
  if (writes >= 1 && writes <= kMost) return Ok();
  return Error{ErrorCode::kInvalidLength, "Write batch sizes must be between 1 and 100000. Got " +
                                              std::to_string(writes) + " operations."};
}

Result<UpdateStatement> ParseUpdateStatement(BsonView doc, Instant now,
                                             const ExpirySetting& command) {
  ArgReader in("update.updates", doc);
  UpdateStatement s;
  s.filter = in.Document("q");
  s.update = in.Any("u");
  if (s.update.missing())
    in.Fail({ErrorCode::kMissingField,
             "BSON field 'update.updates.u' is missing but a required field"});
  s.multi = in.BoolOr("multi", false);
  s.upsert = in.BoolOr("upsert", false);
  in.BoolOr("upsertSupplied", false);  // unused: a router's note that 'c.new' is there
  in.SimpleCollation();
  if (auto filters = in.OptArray("arrayFilters"))
    for (const BsonElement& e : *filters) {
      if (!e.value.IsDocument())
        in.Fail({ErrorCode::kTypeMismatch, "BSON field 'update.updates.arrayFilters." +
                                               std::string(e.name) + "' is the wrong type '" +
                                               std::string(BsonTypeName(e.value.type())) +
                                               "', expected type 'object'"});
      else
        s.array_filters.push_back(e.value.Document());
    }
  s.hint = in.Any("hint");
  s.sort = in.DocumentOr("sort");
  s.constants = in.OptDocument("c");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  std::optional<bool> preserve = in.OptBool("preserveExpiry");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(s.expiry, ParseExpiryFields(after, at, preserve.value_or(false), now, in.where()));
  // A statement's own settings replace all of the command's.
  if (after.missing() && at.missing() && !preserve) s.expiry = command;
  if (!s.hint.missing() && !s.hint.IsString() && !s.hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  if (s.constants && !s.update.IsArray())
    return Error{LocationCode(51198), "Constant values may only be specified for pipeline updates"};
  if (s.multi && !s.sort.empty())
    return Error{ErrorCode::kFailedToParse, "Cannot specify sort with multi=true"};
  return s;
}

Result<DeleteStatement> ParseDeleteStatement(BsonView doc) {
  ArgReader in("delete.deletes", doc);
  DeleteStatement s;
  s.filter = in.Document("q");
  int64_t limit = in.Int64("limit");
  in.SimpleCollation();
  s.hint = in.Any("hint");
  s.tombstone = in.BoolOr("tombstone", true);
  MAYFLY_TRY(in.Finish());
  if (limit != 0 && limit != 1)
    return Error{ErrorCode::kFailedToParse,
                 "The limit field in delete objects must be 0 or 1. Got " + std::to_string(limit)};
  if (!s.hint.missing() && !s.hint.IsString() && !s.hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  s.multi = limit == 0;
  return s;
}

namespace {

/// Whether reading the statements alone takes longer than an io thread has for it.
bool IsLarge(const CommandRequest& req) {
  constexpr size_t kInlineStatements = 500, kInlineBytes = 64 << 10;
  size_t statements = 0, bytes = req.body.size();
  for (const DocumentSequence& s : req.sequences) statements += s.documents.size();
  if (statements > kInlineStatements) return true;
  for (const DocumentSequence& s : req.sequences)
    for (const BsonView d : s.documents) bytes += d.size();
  return bytes > kInlineBytes;
}

struct UpdateArgs {
  WriteBatchFields batch;
  bool keep_empty_timestamps = false;
  BsonView let;
  std::vector<UpdateStatement> statements;
  /// Replacements for statements' documents. No deque: even an empty one allocates.
  std::vector<std::unique_ptr<BsonDocument>> without;
  large_memory::Hold hold;  ///< of all of it
};

/// Operators but $set, and stages, do not give deadlines: the field would be stored as any other.
Result<void> RefuseElsewhere(BsonValue update, std::string_view field) {
  if (!update.IsDocument() && !update.IsArray()) return Ok();
  bool set = false;
  for (const BsonElement& part : update.Document()) {
    if (update.IsDocument() && part.name == "$set") {
      if (set)  // the deadline would be that of one of them
        return DuplicateField("update.updates.u", part.name);
      set = true;
    }
    if (update.IsDocument() && (part.name == "$set" || !part.name.starts_with('$'))) continue;
    const BsonView in = part.value.IsDocument() ? part.value.Document() : BsonView();
    bool named = in.Has(field);
    if (update.IsArray())
      for (const BsonElement& stage : in)
        named = named || (stage.value.IsDocument() && stage.value.Document().Has(field)) ||
                (stage.value.IsString() && stage.value.String() == field);
    if (named)
      return Error{ErrorCode::kInvalidOptions,
                   "the field '" + std::string(field) +
                       "' gives a deadline (dumpDeadlines): a replacement or $set may have it, "
                       "nothing else"};
  }
  return Ok();
}

/// For a client that gives deadlines in a field (server/dispatch/dump_deadlines.h): takes it out of
/// a replacement or a $set, which mongoimport sends.
Result<void> TakeDeadlineOf(UpdateStatement& s, std::string_view field,
                            std::vector<std::unique_ptr<BsonDocument>>& without) {
  MAYFLY_TRY(RefuseElsewhere(s.update, field));
  if (!s.update.IsDocument()) return Ok();
  const BsonView given = s.update.Document();
  const bool operators = !given.empty() && given.First().name.starts_with('$');
  const BsonValue set = given["$set"];
  if (operators && !set.IsDocument()) return Ok();
  std::string bytes;
  const BsonView from = operators ? set.Document() : given;
  MAYFLY_TRY(const BsonView rest, TakeDeadline(from, field, &s.expiry, &bytes));
  if (rest.data() == from.data()) return Ok();
  BsonDocument left = operators ? BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : given) {
      if (e.name == "$set")
        b.Append("$set", rest);
      else
        b.Append(e);
    }
  })
                                : BsonDocument(rest);
  without.push_back(std::make_unique<BsonDocument>(std::move(left)));
  s.update = without.back()->view().AsValue();
  return Ok();
}

Result<UpdateArgs> ReadUpdate(const CommandRequest& req, Instant now,
                              std::string_view deadline_field) {
  ArgReader in(req);
  UpdateArgs a;
  a.batch = ReadWriteBatchFields(in);
  const DocumentList updates = in.Documents("updates");
  a.keep_empty_timestamps = in.BoolOr("bypassEmptyTsReplacement", false);
  a.let = in.DocumentOr("let");
  BsonValue after = in.Any("expireAfterSeconds"), at = in.Any("expireAt");
  bool preserve = in.BoolOr("preserveExpiry", false);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(ExpirySetting expiry, ParseExpiryFields(after, at, preserve, now, "update"));
  MAYFLY_TRY(CheckWriteBatchSize(updates.size()));
  size_t bytes = updates.size() * sizeof(UpdateStatement);
  MAYFLY_TRY(a.hold.Set(bytes));
  a.statements.reserve(updates.size());
  for (BsonView u : updates) {
    MAYFLY_TRY(UpdateStatement s, ParseUpdateStatement(u, now, expiry));
    if (!s.array_filters.empty()) {
      MAYFLY_TRY(a.hold.Set(bytes += s.array_filters.capacity() * sizeof(BsonView)));
    }
    if (s.update.IsArray()) {
      MAYFLY_TRY(CheckStageNames(s.update.Document()));
    }
    if (!deadline_field.empty()) [[unlikely]] {
      MAYFLY_TRY(RefuseDeadlineFilter(s.filter, deadline_field));
      const size_t before = a.without.size();
      MAYFLY_TRY(TakeDeadlineOf(s, deadline_field, a.without));
      if (a.without.size() > before) {
        MAYFLY_TRY(a.hold.Set(bytes += a.without.back()->bytes().size()));
      }
    }
    a.statements.push_back(std::move(s));
  }
  return a;
}

struct DeleteArgs {
  WriteBatchFields batch;
  BsonView let;
  std::vector<DeleteStatement> statements;
  large_memory::Hold hold;  ///< of them
};

Result<DeleteArgs> ReadDelete(const CommandRequest& req) {
  ArgReader in(req);
  DeleteArgs a;
  a.batch = ReadWriteBatchFields(in);
  const DocumentList deletes = in.Documents("deletes");
  a.let = in.DocumentOr("let");
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(CheckWriteBatchSize(deletes.size()));
  MAYFLY_TRY(a.hold.Set(deletes.size() * sizeof(DeleteStatement)));
  a.statements.reserve(deletes.size());
  for (BsonView d : deletes) {
    MAYFLY_TRY(DeleteStatement s, ParseDeleteStatement(d));
    a.statements.push_back(s);
  }
  return a;
}

/// The common part of updates and deletes: one collection, and errors reported one by one.
template <class Args>
class BatchStatements : public WriteStatements {
 public:
  BatchStatements(WriteCommand& command, const Args& args) : command_(command), args_(args) {}

  size_t size() const override { return args_.statements.size(); }
  bool NeedsWorker() const override { return !args_.let.empty(); }  // expressions
  Result<void> Open(StatementRunner& runner) override {
    runner.Attach(command_);
    MAYFLY_TRY(command_.SetLet(args_.let));
    return command_.Open();
  }
  size_t Until(size_t i) const override { return i + 1; }
  Result<void> Inserted(size_t, size_t) override { return Ok(); }
  Result<bool> Failed(size_t i, Error e) override {
    MAYFLY_TRY(errors.Add(i, std::move(e)));
    return !args_.batch.ordered;
  }

  int64_t n = 0;
  WriteErrors errors;

 protected:
  WriteCommand& command_;
  const Args& args_;
};

class UpdateStatements final : public BatchStatements<UpdateArgs> {
 public:
  using BatchStatements::BatchStatements;
  WriteStatement At(size_t i, size_t) override {
    return {.command = &command_, .update = &args_.statements[i]};
  }
  Result<void> Replayed(size_t i, const StatementResult& before) override {
    ++n;
    if (before.kind == StatementResult::Kind::kUpserted)
      return Upserted(i, Value::Copy(before.document.view()["_id"]));
    ++modified;
    return Ok();
  }
  Result<void> Done(size_t i, StatementOutcome o) override {
    n += o.update.matched;
    modified += o.update.modified;
    if (o.update.upserted_id.missing()) return Ok();
    ++n;
    return Upserted(i, std::move(o.update.upserted_id));
  }

  int64_t modified = 0;
  std::vector<std::pair<int32_t, Value>> upserted;

 private:
  /// An expression may make each _id far longer than its statement.
  Result<void> Upserted(size_t i, Value id) {
    bytes_ += id.view().size();
    upserted.emplace_back(static_cast<int32_t>(i), std::move(id));
    return hold_.Set(bytes_ + upserted.capacity() * sizeof upserted[0]);
  }
  size_t bytes_ = 0;
  large_memory::Hold hold_;  ///< of upserted
};

class DeleteStatements final : public BatchStatements<DeleteArgs> {
 public:
  using BatchStatements::BatchStatements;
  WriteStatement At(size_t i, size_t) override {
    return {.command = &command_, .remove = &args_.statements[i]};
  }
  Result<void> Replayed(size_t, const StatementResult&) override {
    ++n;
    return Ok();
  }
  Result<void> Done(size_t, StatementOutcome o) override {
    n += o.deleted;
    return Ok();
  }
};

Awaitable<Result<void>> RunUpdate(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  const std::string deadline_field = DeadlineFieldOf(ctx);
  if (IsLarge(req) || !deadline_field.empty()) co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(const UpdateArgs args, ReadUpdate(req, ctx.op.now, deadline_field));
  const WriteBatchFields& batch = args.batch;
  ctx.EditReport([&](OperationReport& r) {
    r.op = "update";
    r.ns = JoinNamespace(req.db, batch.collection);
  });
  ctx.data.metrics().opcounters.update.Add(static_cast<int64_t>(args.statements.size()));
  WriteCommand command(WriteServicesOf(ctx.data), ctx.op, req.db, batch.collection);
  command.set_bypass_validation(batch.bypass_validation);
  command.set_keep_empty_timestamps(args.keep_empty_timestamps);
  UpdateStatements statements(command, args);
  StatementRunner runner(ctx);
  MAYFLY_CO_TRY(co_await runner.RunStatements(statements, batch.statement_ids));
  auto& upserted = statements.upserted;
  ctx.data.metrics().documents.updated.Add(statements.modified);
  ctx.data.metrics().documents.inserted.Add(static_cast<int64_t>(upserted.size()));
  ctx.EditReport([&](OperationReport& r) {
    r.plan_summary = command.plan_summary();
    r.upsert = !upserted.empty();
  });
  if (ctx.write_concern.unacknowledged) co_return Ok();  // w: 0 is told nothing, as by MongoDB
  reply.Append("n", static_cast<int32_t>(statements.n));
  statements.errors.AppendTo(reply);
  if (!upserted.empty()) {
    BsonArrayBuilder list = reply.OpenArray("upserted");
    for (auto& [index, id] : upserted)
      list.OpenDocument().Append("index", index).Append("_id", id.view());
  }
  reply.Append("nModified", static_cast<int32_t>(statements.modified));
  if (command.expiry_clamped() > 0)
    reply.Append("expiryClamped", static_cast<int32_t>(command.expiry_clamped()));
  runner.retry().AppendRetried(reply);
  co_return Ok();
}

Awaitable<Result<void>> RunDelete(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  if (IsLarge(req)) co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(const DeleteArgs args, ReadDelete(req));
  const WriteBatchFields& batch = args.batch;
  ctx.EditReport([&](OperationReport& r) {
    r.op = "remove";
    r.ns = JoinNamespace(req.db, batch.collection);
  });
  ctx.data.metrics().opcounters.remove.Add(static_cast<int64_t>(args.statements.size()));
  WriteCommand command(WriteServicesOf(ctx.data), ctx.op, req.db, batch.collection);
  DeleteStatements statements(command, args);
  StatementRunner runner(ctx);
  MAYFLY_CO_TRY(co_await runner.RunStatements(statements, batch.statement_ids));
  ctx.data.metrics().documents.deleted.Add(statements.n);
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = command.plan_summary(); });
  if (ctx.write_concern.unacknowledged) co_return Ok();  // w: 0 is told nothing, as by MongoDB
  reply.Append("n", static_cast<int32_t>(statements.n));
  statements.errors.AppendTo(reply);
  runner.retry().AppendRetried(reply);
  co_return Ok();
}

}  // namespace

void RegisterUpdate(CommandRegistry& registry) {
  registry.Add({.name = "update",
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Changes documents by operators, replacement or pipeline.",
                .run_async = &RunUpdate,
                .privileges = &privileges::Update});
}

void RegisterDelete(CommandRegistry& registry) {
  registry.Add({.name = "delete",
                .flags = kWrites | kApiV1 | kTakesWriteConcern | kCountsItself | kRetryableWrite,
                .help = "Removes documents.",
                .run_async = &RunDelete,
                .privileges = &privileges::OnCollection<Action::remove>});
}

}  // namespace mayfly
