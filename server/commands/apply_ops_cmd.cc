#include <algorithm>
#include <array>
#include <cstring>

#include "protocol/system_names.h"
#include "security/user_cache.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/dump_deadlines.h"
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

/// One entry of the oplog as applyOps takes it; its other fields (ts, t, v, wall, lsid …) concern
/// its origin only. Views live as long as the command.
struct OplogEntry {
  enum class Kind : uint8_t { kInsert, kUpdate, kDelete, kCommand, kNoop } kind = Kind::kNoop;
  std::string db, collection;  ///< kCommand: collection is "$cmd"
  BsonView o, o2;
  std::optional<Uuid> uuid;
};

Error Malformed(std::string why) {
  return {ErrorCode::kFailedToParse, "applyOps: " + std::move(why)};
}

Result<OplogEntry> ParseEntry(BsonView doc) {
  ArgReader in("applyOps.applyOps", doc);
  OplogEntry e;
  const std::string_view op = in.String("op"), ns = in.StringOr("ns");
  const auto o = in.OptDocument("o");
  e.o2 = in.DocumentOr("o2");
  const BsonValue ui = in.Any("ui");
  MAYFLY_TRY(in.FinishLoose());
  constexpr std::string_view kOps = "iudcn";
  const size_t at = op.size() == 1 ? kOps.find(op[0]) : std::string_view::npos;
  if (at == std::string_view::npos)
    return Malformed("an entry's op is i, u, d, c or n, but not '" + std::string(op) + "'");
  e.kind = static_cast<OplogEntry::Kind>(at);
  if (e.kind == OplogEntry::Kind::kNoop) return e;
  if (!o) return Malformed("an entry with op '" + std::string(op) + "' needs a document 'o'");
  e.o = *o;
  const NamespaceParts parts = SplitNamespace(ns);
  if (!parts.whole())
    return Error{ErrorCode::kInvalidNamespace,
                 "applyOps: an entry's ns must be database.collection, "
                 "but it is '" +
                     std::string(ns) + "'"};
  e.db = parts.db;
  e.collection = parts.collection;
  MAYFLY_TRY(ValidateDatabaseName(e.db));
  if (e.kind == OplogEntry::Kind::kCommand) {
    if (e.collection != "$cmd")
      return Error{
          ErrorCode::kInvalidNamespace,
          "applyOps: the ns of a command is database.$cmd, but it is '" + std::string(ns) + "'"};
    if (e.o.empty()) return Malformed("a command's 'o' is empty");
  } else if (e.kind == OplogEntry::Kind::kUpdate ? e.o2["_id"].missing() && e.o["_id"].missing()
                                                 : e.o["_id"].missing()) {
    return Error{ErrorCode::kNoSuchKey, "applyOps: an entry with op '" + std::string(op) +
                                            "' must name its document by _id"};
  }
  e.uuid = UuidOf(ui);
  if (!e.uuid && !ui.missing())
    return Error{ErrorCode::kTypeMismatch, "BSON field 'applyOps.applyOps.ui' must be a UUID"};
  return e;
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
Result<void> ApplyUpdate(WriteCommand& write, const OplogEntry& e, bool upsert) {
  const BsonValue id = e.o2["_id"].missing() ? e.o["_id"] : e.o2["_id"];
  const BsonDocument query = ById(id);
  const BsonElement first = e.o.First();
  using Decided = Result<std::optional<BsonDocument>>;
  if (first.name == "$v" && first.value.IsNumber() && first.value.NumberAsInt64() == 2) {
    const BsonValue changes = e.o["diff"];
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
      if (!e.o["_id"].missing()) return std::optional(BsonDocument(e.o));
      return std::optional(BuildBson([&](BsonBuilder& b) { b.Append("_id", id).AppendAll(e.o); }));
    });
  // Operators, as servers before 5.0 wrote them: {$v: 1, $set: …}.
  const BsonDocument operators = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& f : e.o)
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

ActionSet ActionsOf(OplogEntry::Kind kind, bool upsert) {
  if (kind == OplogEntry::Kind::kInsert) return privileges::ApplyOpsActions('i', upsert);
  if (kind == OplogEntry::Kind::kDelete) return privileges::ApplyOpsActions('d', upsert);
  return privileges::ApplyOpsActions('u', upsert);
}

/// REQUIRES: the command is open, and its collection is there.
Result<void> ApplyTo(WriteCommand& write, const OplogEntry& e, bool upsert) {
  if (e.kind == OplogEntry::Kind::kUpdate) return ApplyUpdate(write, e, upsert);
  const BsonDocument query = ById(e.o["_id"]);
  if (e.kind == OplogEntry::Kind::kInsert) {
    MAYFLY_TRY(
        write.Merge(query, [&](std::optional<BsonView>) -> Result<std::optional<BsonDocument>> {
          return std::optional(BsonDocument(e.o));
        }));
    write.NotifyInserted();
    return Ok();
  }
  DeleteStatement s;
  s.filter = query;
  MAYFLY_TRY(write.Delete(s));
  return Ok();
}

Result<void> ApplyWrite(CommandContext& ctx, const OplogEntry& e, bool upsert) {
  std::string db = e.db, collection = e.collection;
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
        !ctx.access->privileges.Allows(db, collection, ActionsOf(e.kind, upsert)))
      return Error{ErrorCode::kUnauthorized,
                   "not authorized on " + db +
                       " to apply an operation to the collection with the "
                       "UUID of an entry for " +
                       JoinNamespace(e.db, e.collection)};
  }
  WriteCommand write(WriteServicesOf(ctx.data), ctx.op, db, collection);
  write.set_bypass_validation(true);  // it was valid where it was written
  write.set_keep_empty_timestamps(true);
  write.set_restores_buckets(true);
  MAYFLY_TRY(write.Open());
  if (!write.coll())
    return Error{ErrorCode::kNamespaceNotFound,
                 "applyOps: cannot apply insert, delete, or update operation on a non-existent "
                 "namespace " +
                     JoinNamespace(db, collection)};
  OplogEntry own = e;
  std::string without;
  const std::string deadline_field = DeadlineFieldOf(ctx);
  if (!deadline_field.empty() && e.kind != OplogEntry::Kind::kDelete) {
    ExpirySetting expiry;
    MAYFLY_TRY(own.o, TakeDeadline(e.o, deadline_field, &expiry, &without));
    write.set_expiry(expiry);
  }
  const Result<void> done = ApplyTo(write, own, upsert);
  AuditDirectWrite(ctx, db, collection, "applyOps", done ? ErrorCode::kOk : done.error().code);
  return done;
}

/// An index of an oplog, or of older versions. Seconds that no TTL index can have (NaN, of which
/// versions before 5.0 made some) make an inactive one, not none or one that removes everything
/// (EXPIRY.md R22, R23).
void AppendRepairedIndex(BsonView spec, std::string_view without, BsonBuilder out) {
  for (const BsonElement& f : spec) {
    if (f.name == without) continue;
    if (f.name == "expireAfterSeconds" && !ParseExpireAfterSeconds(f.value, ""))
      out.Append(f.name, INT32_MAX);
    else
      out.Append(f);
  }
}

/// `timeseries` of a collMod's entry, which has all options: what it changes. A span only grows,
/// and that of the collection may be newer than the entry.
void AppendSeriesChange(Catalog& catalog, const OplogEntry& e, std::string_view name,
                        BsonView given, BsonBuilder& out) {
  const CollectionInfoPtr series = catalog.Find(e.db, name);
  const CollectionInfoPtr buckets =
      series && series->is_series() ? BucketsOf(catalog, *series) : nullptr;
  const BsonValue span = given["bucketMaxSpanSeconds"];
  if (buckets && span.IsNumber() && span.NumberAsInt64() <= buckets->series->max_span_seconds)
    return;
  BsonBuilder change = out.OpenDocument("timeseries");
  const bool granular = given.Has("granularity");
  for (const BsonElement& f : given)
    if (f.name == "granularity" || (f.name.starts_with("bucket") && !granular)) change.Append(f);
}

/// A collMod as its entry says it: with the command's fields. In one of an earlier version they are
/// all options of the collection, as it was made: what a capped one may have is named otherwise
/// there, and what is fixed is the same.
BsonDocument AsCollMod(Catalog& catalog, const OplogEntry& e) {
  std::string_view name = e.o.First().value.IsString() ? e.o.First().value.String() : "";
  // An index of a time series is one of its buckets.
  if (name.starts_with(kBucketsPrefix)) name.remove_prefix(kBucketsPrefix.size());
  return BuildBson([&](BsonBuilder& b) {
    b.Append("collMod", name);
    for (const BsonElement& f : e.o) {
      if (f.name == "collMod" || f.name == "capped" || f.name == "clusteredIndex") continue;
      if (f.name == "size" || f.name == "max") {
        b.Append(f.name == "size" ? "cappedSize" : "cappedMax", f.value);
      } else if (f.name == "timeseries" && f.value.IsDocument()) {
        AppendSeriesChange(catalog, e, name, f.value.Document(), b);
      } else if (f.name == "expiry" && f.value.IsDocument()) {
        BsonBuilder expiry = b.OpenDocument("expiry");
        for (const BsonElement& x : f.value.Document())
          if (x.name != "maxTTL") expiry.Append(x);
      } else {
        b.Append(f);
      }
    }
  });
}

/// The command that does what an oplog's command says; empty: there is nothing to do.
Result<BsonDocument> CommandOfEntry(Catalog& catalog, const OplogEntry& e) {
  const BsonElement first = e.o.First();
  if (first.name == "startIndexBuild" || first.name == "abortIndexBuild") return BsonDocument();
  if (first.name == "commitIndexBuild" || first.name == "createIndexes") {
    if (!first.value.IsString()) return Malformed("a command on indexes names no collection");
    const BsonValue list = e.o["indexes"];
    return BuildBson([&](BsonBuilder& b) {
      b.Append("createIndexes", first.value);
      {
        BsonArrayBuilder indexes = b.OpenArray("indexes");
        // One index an entry: {createIndexes: collection, v: 2, key: …, name: …}.
        if (!list.IsArray()) {
          AppendRepairedIndex(e.o, "createIndexes", indexes.OpenDocument());
        } else {
          for (const BsonElement& i : list.Document()) {
            if (i.value.IsDocument())
              AppendRepairedIndex(i.value.Document(), "", indexes.OpenDocument());
            else
              indexes.Append(i.value);
          }
        }
      }
      b.Append("ignoreUnknownIndexOptions", true);
    });
  }
  if (first.name == "create") {
    // Only meaningful on the server that wrote it: here the collection is never temporary.
    return BuildBson([&](BsonBuilder& b) {
      for (const BsonElement& f : e.o)
        if (f.name != "temp") b.Append(f);
    });
  }
  if (first.name == "collMod") return AsCollMod(catalog, e);
  for (std::string_view name :
       {"drop", "dropDatabase", "dropIndexes", "deleteIndexes", "renameCollection"})
    if (first.name == name) return BsonDocument(e.o);
  return Error{ErrorCode::kCommandNotFound,
               "applyOps: the command '" + std::string(first.name) + "' cannot be applied"};
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
Result<bool> PutSeriesOf(CommandContext& ctx, const OplogEntry& e) {
  const BsonElement first = e.o.First();
  if (first.name != "renameCollection" || !first.value.IsString() || !e.o["to"].IsString())
    return false;
  // check_names: what is renamed is there, and the new name is looked at below
  const NamespaceParts from = SplitNamespace(first.value.String());
  // check_names: below
  const NamespaceParts to = SplitNamespace(e.o["to"].String());
  if (!from.whole() || !to.whole() || from.db != to.db) return false;
  const CollectionInfoPtr series = ctx.data.storage().catalog().Find(from.db, from.collection);
  if (!series || !series->is_series()) return false;
  if (!e.o["dropTarget"].Truthy() && !e.o["dropTarget"].Is(BsonType::kBinary) &&
      ctx.data.storage().catalog().Find(to.db, to.collection))
    return Error{ErrorCode::kNamespaceExists, "applyOps: there is a collection " +
                                                  std::string(e.o["to"].String()) +
                                                  ", which the entry does not replace"};
  MAYFLY_TRY(ValidateNewNamespace(to.db, to.collection));
  if (to.collection.starts_with("system."))
    return Error{ErrorCode::kInvalidNamespace, "applyOps: a time series cannot be renamed to " +
                                                   std::string(e.o["to"].String()) +
                                                   ", which is a name of the server's own"};
  MAYFLY_TRY(PutSeries(ctx.data.storage(), ctx.op, *series, to.collection));
  return true;
}

Awaitable<Result<void>> ApplyCommand(CommandContext& ctx, const OplogEntry& e) {
  MAYFLY_CO_TRY(const bool put, PutSeriesOf(ctx, e));
  if (put) co_return Ok();
  MAYFLY_CO_TRY(BsonDocument body, CommandOfEntry(ctx.data.storage().catalog(), e));
  if (body.view().empty()) co_return Ok();
  CommandRequest sub;
  sub.body = body;
  sub.name = body.view().First().name;
  sub.db = e.db;
  MAYFLY_CO_TRY(ParseCommandFields(body, &sub));
  std::string scratch;
  BsonBuilder reply(scratch);
  Result<void> done = CheckUuid(ctx, e, sub);
  const CommandRow* row = ctx.server.commands().Find(sub.name);
  if (done && sub.name == "create" && e.uuid)
    done = CreateCollection(ctx, sub, reply, e.uuid);
  else if (done && row->run != nullptr)
    done = row->run(ctx, sub, reply);
  else if (done)
    done = co_await row->run_async(ctx, sub, reply);
  // The target may be gone already: entries may be applied to newer data.
  if (!done && sub.name != "renameCollection" && sub.name != "create" &&
      (done.error().code == ErrorCode::kNamespaceNotFound ||
       done.error().code == ErrorCode::kIndexNotFound))
    co_return Ok();
  co_return done;
}

struct Progress {
  bool upsert = true;
  std::vector<bool> results;
};

Awaitable<Result<void>> ApplyAll(CommandContext& ctx, std::vector<BsonView> docs,
                                 Progress& progress, bool nested) {
  std::vector<OplogEntry> entries;
  for (BsonView doc : docs) {
    MAYFLY_CO_TRY(OplogEntry e, ParseEntry(doc));
    entries.push_back(std::move(e));
  }
  for (const OplogEntry& e : entries) {
    MAYFLY_CO_TRY(ctx.op.CheckInterrupt());
    Result<void> done = Ok();
    if (e.kind == OplogEntry::Kind::kCommand && e.o.First().name == "applyOps") {
      std::vector<BsonView> inner;
      if (!e.o.First().value.IsArray()) done = Malformed("'applyOps' of an entry is no array");
      if (done)
        for (const BsonElement& d : e.o.First().value.Document()) {
          if (!d.value.IsDocument()) done = Malformed("an entry is no document");
          if (!done) break;
          inner.push_back(d.value.Document());
        }
      if (done) done = co_await ApplyAll(ctx, std::move(inner), progress, true);
    } else if (e.kind == OplogEntry::Kind::kCommand) {
      done = co_await ApplyCommand(ctx, e);
    } else if (e.kind != OplogEntry::Kind::kNoop) {
      done = ApplyWrite(ctx, e, progress.upsert);
    }
    if (!nested) progress.results.push_back(done.has_value());
    if (!done) co_return done;
  }
  co_return Ok();
}

Awaitable<Result<void>> RunApplyOps(CommandContext& ctx, const CommandRequest& req,
                                    BsonBuilder& reply) {
  ArgReader in(req);
  std::vector<BsonView> docs = in.Documents("applyOps");
  Progress progress;
  progress.upsert = in.BoolOr("alwaysUpsert", true);
  if (in.BoolOr("allowAtomic", false))
    in.Fail({ErrorCode::kNotImplemented,
             "applyOps applies entry by entry on this server: leave out allowAtomic"});
  // mongorestore says it; entries were valid where they were written, and no validator is asked.
  in.OptBool("bypassDocumentValidation");
  in.NotSupported("preCondition");
  in.NotSupported("oplogApplicationMode");
  MAYFLY_CO_TRY(in.Finish());
  co_await ctx.MoveToWorker();
  Result<void> done = co_await ApplyAll(ctx, std::move(docs), progress, false);
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
