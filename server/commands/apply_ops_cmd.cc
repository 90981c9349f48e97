#include <algorithm>
#include <array>
#include <cstring>

#include "query/expression/parse_work.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/dispatch/inner_requests.h"
#include "server/dispatch/server_context.h"
#include "server/execution/collection_options.h"
#include "server/execution/index_spec.h"
#include "server/execution/series_definition.h"
#include "server/execution/write_ops.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "storage/schema/replace_collection.h"
#include "storage/storage.h"
#include "storage/write/document_diff.h"

namespace mayfly {
namespace {

Error Malformed(std::string why) {
  return {ErrorCode::kFailedToParse, "applyOps: " + std::move(why)};
}

/// By `_id` alone, whatever its type.
BsonDocument ById(BsonValue id) {
  return BuildBson([&](BsonBuilder& b) { b.OpenDocument("_id").Append("$eq", id); });
}

Error NotThere() {
  return {ErrorCode::kNoMatchingDocument,
          "applyOps: the document that an update changes is not there, and alwaysUpsert is false"};
}

/// With `upsert` an update of a document that is not there makes it, also of a diff alone: it was
/// deleted by an entry that follows.
Result<void> ApplyUpdate(WriteCommand& write, const OplogEntry& e, BsonView o, bool upsert) {
  const BsonValue id = e.o2["_id"].missing() ? o["_id"] : e.o2["_id"];
  const BsonDocument query = ById(id);
  const BsonElement first = o.First();
  using Decided = Result<std::optional<BsonDocument>>;
  if (first.name == "$v" && first.value.IsNumber() && first.value.NumberAsInt64() == 2) {
    const BsonValue changes = o["diff"];
    if (!changes.IsDocument()) return Malformed("an update of version 2 has no document 'diff'");
    const BsonDocument only_id = BuildBson([&](BsonBuilder& b) { b.Append("_id", id); });
    return write.Merge(query, [&](std::optional<BsonView> now) -> Decided {
      if (!now && !upsert) return NotThere();
      if (!now && write.coll()->is_buckets()) return std::optional<BsonDocument>();
      std::string next;
      MAYFLY_TRY(ApplyDocumentDiff(now ? *now : only_id.view(), changes.Document(), next));
      return std::optional(BsonDocument(std::move(next)));
    });
  }
  if (!first.name.starts_with('$'))
    return write.Merge(query, [&](std::optional<BsonView> now) -> Decided {
      if (!now && !upsert) return NotThere();
      if (!o["_id"].missing()) return std::optional(BsonDocument(o));
      return std::optional(BuildBson([&](BsonBuilder& b) { b.Append("_id", id).AppendAll(o); }));
    });
  // Operators, as servers before 5.0 wrote them: {$v: 1, $set: …}.
  const BsonDocument operators = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& f : o)
      if (f.name != "$v") b.Append(f);
  });
  UpdateStatement s;
  s.filter = query;
  s.update = operators.view().AsValue();
  s.upsert = upsert;
  MAYFLY_TRY(UpdateResult done, write.Update(s));
  if (done.matched == 0 && !upsert) return NotThere();
  return Ok();
}

/// REQUIRES: the command is open, and its collection is there.
Result<void> ApplyTo(WriteCommand& write, const OplogEntry& e, BsonView o, bool upsert) {
  if (e.kind == OplogEntry::Kind::kUpdate) return ApplyUpdate(write, e, o, upsert);
  const BsonDocument query = ById(o["_id"]);
  if (e.kind == OplogEntry::Kind::kInsert) {
    MAYFLY_TRY(
        write.Merge(query, [&](std::optional<BsonView>) -> Result<std::optional<BsonDocument>> {
          return std::optional(BsonDocument(o));
        }));
    write.NotifyInserted();
    return Ok();
  }
  DeleteStatement s;
  s.filter = query;
  MAYFLY_TRY(write.Delete(s));
  return Ok();
}

/// What the command says of all its entries, and what came of them.
struct Progress {
  bool upsert = true, bypass_validation = true;
  std::vector<bool> results;
};

Result<void> ApplyWrite(CommandContext& ctx, const OplogEntry& e, const Progress& progress) {
  const bool upsert = progress.upsert;
  std::string db(e.db), collection(e.collection);
  MAYFLY_TRY(ValidateNamespace(db, collection));
  if (e.uuid) {
    const CollectionInfoPtr named = ctx.data.storage().catalog().FindByUuid(*e.uuid);
    if (!named)
      return Error{
          ErrorCode::kNamespaceNotFound,
          "applyOps: no collection has the UUID of an entry for " + JoinNamespace(db, collection)};
    db = named->db;
    collection = named->name;
    // Only now it is known which collection that is.
    if (ctx.access != nullptr &&
        !ctx.access->privileges.Allows(db, collection, privileges::ApplyOpsActions(e.kind, upsert)))
      return Error{ErrorCode::kUnauthorized,
                   "not authorized on " + db +
                       " to apply an operation to the collection with the "
                       "UUID of an entry for " +
                       JoinNamespace(e.db, e.collection)};
  }
  WriteCommand write(WriteServicesOf(ctx.data), ctx.op, db, collection);
  write.set_bypass_validation(progress.bypass_validation);
  write.set_keep_empty_timestamps(true);
  write.set_restores_buckets(true);
  MAYFLY_TRY(write.Open());
  if (!write.coll())
    return Error{ErrorCode::kNamespaceNotFound,
                 "applyOps: cannot apply insert, delete, or update operation on a non-existent "
                 "namespace " +
                     JoinNamespace(db, collection)};
  BsonView o = e.o;
  std::string without;
  const std::string deadline_field = DeadlineFieldOf(ctx);
  if (!deadline_field.empty() && e.kind != OplogEntry::Kind::kDelete) {
    ExpirySetting expiry;
    MAYFLY_TRY(o, TakeDeadline(e.o, deadline_field, &expiry, &without));
    write.set_expiry(expiry);
  }
  const Result<void> done = ApplyTo(write, e, o, upsert);
  AuditDirectWrite(ctx, db, collection, "applyOps", done ? ErrorCode::kOk : done.error().code);
  return done;
}

/// A command's entry is about the collection with its UUID: one of the same name that was made
/// later stays as it is. Errors: NamespaceNotFound 26 when that collection is gone,
/// InvalidNamespace 73 when it has another name than the entry says.
Result<void> CheckUuid(CommandContext& ctx, const OplogEntry& e, const CommandRequest& sub) {
  const BsonValue first = sub.body.First().value;
  if (!e.uuid || sub.name == "create" || !first.IsString()) return Ok();
  const CollectionInfoPtr named = ctx.data.storage().catalog().FindByUuid(*e.uuid);
  if (!named)
    return Error{ErrorCode::kNamespaceNotFound,
                 "applyOps: no collection has the UUID of an entry with the command '" +
                     std::string(sub.name) + "'"};
  // Of a time series' change, the entry names the buckets.
  // check_names: is only compared
  const std::string entry_ns = JoinNamespace(e.db, first.String());
  const bool same = sub.name == "renameCollection"
                        ? JoinNamespace(named->db, named->name) == first.String()
                        : named->db == e.db && (named->name == first.String() ||
                                                SeriesNamespace(*named) == entry_ns);
  if (same) return Ok();
  return Error{ErrorCode::kInvalidNamespace,
               "applyOps: the collection with the UUID of an entry is not that of its command '" +
                   std::string(sub.name) + "'"};
}

/// The end of an $out into a time series, which renameCollection does not do for clients. False: it
/// is no such entry.
Result<bool> PutSeriesOf(CommandContext& ctx, const CommandRequest& sub) {
  const BsonElement first = sub.body.First();
  const BsonValue target = sub.body["to"], drop = sub.body["dropTarget"];
  if (sub.name != "renameCollection" || !first.value.IsString() || !target.IsString()) return false;
  // check_names: what is renamed is there, and the new name is looked at below
  const NamespaceParts from = SplitNamespace(first.value.String());
  // check_names: below
  const NamespaceParts to = SplitNamespace(target.String());
  if (!from.whole() || !to.whole() || from.db != to.db) return false;
  const CollectionInfoPtr series = ctx.data.storage().catalog().Find(from.db, from.collection);
  if (!series || !series->is_series()) return false;
  if (!drop.Truthy() && !drop.Is(BsonType::kBinary) &&
      ctx.data.storage().catalog().Find(to.db, to.collection))
    return Error{ErrorCode::kNamespaceExists, "applyOps: there is a collection " +
                                                  std::string(target.String()) +
                                                  ", which the entry does not replace"};
  MAYFLY_TRY(ValidateNewNamespace(to.db, to.collection));
  if (to.collection.starts_with("system."))
    return Error{ErrorCode::kInvalidNamespace, "applyOps: a time series cannot be renamed to " +
                                                   std::string(target.String()) +
                                                   ", which is a name of the server's own"};
  MAYFLY_TRY(PutSeries(ctx.data.storage(), ctx.op, *series, to.collection));
  return true;
}

/// A command that has no need to wait. As for one that comes alone, its parsing can be interrupted
/// and is charged.
Result<void> RunEntry(CommandContext& ctx, const OplogEntry& e, const CommandRow& row,
                      BsonBuilder& reply) {
  const ParseWork work(&ctx.op);
  const CommandRequest& sub = e.command->request;
  if (sub.name == "create" && e.uuid) return CreateCollection(ctx, sub, reply, e.uuid);
  return row.run(ctx, sub, reply);
}

Awaitable<Result<void>> ApplyCommand(CommandContext& ctx, const OplogEntry& e) {
  if (e.refused != nullptr) co_return *e.refused;
  if (e.command == nullptr) co_return Ok();
  const CommandRequest& sub = e.command->request;
  MAYFLY_CO_TRY(const bool put, PutSeriesOf(ctx, sub));
  if (put) co_return Ok();
  std::string scratch;
  BsonBuilder reply(scratch);
  Result<void> done = CheckUuid(ctx, e, sub);
  const CommandRow* row = ctx.server.commands().Find(sub.name);
  if (done && row->run != nullptr)
    done = RunEntry(ctx, e, *row, reply);
  else if (done)
    done = co_await row->run_async(ctx, sub, reply);
  // The target may be gone already: entries may be applied to newer data.
  if (!done && sub.name != "renameCollection" && sub.name != "create" &&
      (done.error().code == ErrorCode::kNamespaceNotFound ||
       done.error().code == ErrorCode::kIndexNotFound))
    co_return Ok();
  co_return done;
}

Awaitable<Result<void>> ApplyAll(CommandContext& ctx, const std::vector<OplogEntry>& entries,
                                 Progress& progress, bool nested) {
  for (const OplogEntry& e : entries) {
    MAYFLY_CO_TRY(ctx.op.CheckInterrupt());
    Result<void> done = Ok();
    if (e.kind == OplogEntry::Kind::kCommand) {
      if (!e.nested.empty()) done = co_await ApplyAll(ctx, e.nested, progress, true);
      if (done) done = co_await ApplyCommand(ctx, e);
    } else if (e.kind != OplogEntry::Kind::kNoop) {
      done = ApplyWrite(ctx, e, progress);
    }
    if (!nested) progress.results.push_back(done.has_value());
    if (!done) co_return done;
  }
  co_return Ok();
}

/// The entries, made before access was decided, or now. Errors: those of InnerRequests.
Result<const std::vector<OplogEntry>*> Entries(CommandContext& ctx, const CommandRequest& req) {
  ParseWork work(&ctx.op);
  const InnerRequests& inner = InnerRequests::Of(req);
  if (inner.error) return *inner.error;
  return &inner.entries;
}

Awaitable<Result<void>> RunApplyOps(CommandContext& ctx, const CommandRequest& req,
                                    BsonBuilder& reply) {
  ArgReader in(req);
  in.Array("applyOps");  // unused: InnerRequests has read it
  Progress progress;
  progress.upsert = in.BoolOr("alwaysUpsert", true);
  if (in.BoolOr("allowAtomic", false))
    in.Fail({ErrorCode::kNotImplemented,
             "applyOps applies entry by entry on this server: leave out allowAtomic"});
  // Entries were valid where they were written: without a word, no validator is asked.
  progress.bypass_validation = in.LooseBoolOr("bypassDocumentValidation", true);
  in.NotSupported("preCondition");
  in.NotSupported("oplogApplicationMode");
  MAYFLY_CO_TRY(in.Finish());
  co_await ctx.MoveToWorker();
  MAYFLY_CO_TRY(const std::vector<OplogEntry>* const entries, Entries(ctx, req));
  Result<void> done = co_await ApplyAll(ctx, *entries, progress, false);
  const auto applied =
      static_cast<int32_t>(std::count(progress.results.begin(), progress.results.end(), true));
  auto report = [&](BsonBuilder& b) {
    b.Append("applied", applied);
    BsonArrayBuilder results = b.OpenArray("results");
    for (bool ok : progress.results) results.Append(ok);
  };
  if (!done) {
    // In addition to the entry's own error.
    Error error = std::move(done).error();
    BsonDocument details = BuildBson([&](BsonBuilder& b) {
      report(b);
      if (!error.details.empty()) b.AppendAll(BsonView(error.details.data()));
    });
    error.details = details.bytes();
    co_return error;
  }
  report(reply);
  co_return Ok();
}

}  // namespace

void RegisterApplyOps(CommandRegistry& registry) {
  registry.Add({.name = "applyOps",
                .flags = kWrites | kTakesWriteConcern,
                .help = "Applies entries of an oplog one after another: what mongorestore "
                        "--oplogReplay sends.",
                .run_async = &RunApplyOps,
                .privileges = &privileges::ApplyOps});
}

}  // namespace mayfly
