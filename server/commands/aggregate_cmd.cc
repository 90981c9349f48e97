#include "server/commands/aggregate_args.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "server/dispatch/short_reads.h"
#include "server/execution/aggregate.h"
#include "server/execution/change_stream_cursor.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

Result<AggregateArgs> ParseAggregate(const CommandRequest& req, bool explained) {
  ArgReader in(req);
  AggregateArgs a;
  BsonValue first = in.Any("aggregate");
  if (first.IsString())
    a.spec.collection = first.String();
  else if (!first.IsNumber() || first.NumberAsInt64() != 1)
    in.Fail({ErrorCode::kFailedToParse,
             "Invalid command format: the 'aggregate' field must specify a collection name or 1"});
  if (first.IsString() && !a.spec.collection.empty()) {
    // The same rules for a name as everywhere; "" has its own message.
    if (Result<void> ns = ValidateNamespace(req.db, a.spec.collection); !ns) in.Fail(ns.error());
  }
  if (first.IsString() && a.spec.collection.empty())
    in.Fail({ErrorCode::kInvalidNamespace,
             "Invalid namespace specified '" + std::string(req.db) + ".'"});
  a.spec.db = req.db;
  a.spec.pipeline = in.Array("pipeline");
  a.spec.allow_disk_use = in.LooseBoolOr("allowDiskUse", true);
  a.spec.bypass_validation = in.LooseBoolOr("bypassDocumentValidation", false);
  a.spec.include_expired = in.BoolOr("includeExpired", false);
  a.spec.hint = in.Any("hint");
  a.spec.let = in.DocumentOr("let");
  in.SimpleCollation();
  a.explain = in.LooseBoolOr("explain", false);
  auto cursor = in.OptDocument("cursor");
  MAYFLY_TRY(in.Finish());
  for (const BsonElement& e : a.spec.pipeline)
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch,
                   "Each element of the 'pipeline' array must be an object"};
  if (!cursor && !a.explain && !explained)
    return Error{ErrorCode::kFailedToParse,
                 "The 'cursor' option is required, except for aggregate with the explain argument"};
  if (cursor) {
    ArgReader c("aggregate.cursor", *cursor);
    if (c.Has("batchSize")) a.batch_size = c.NonNegativeOr("batchSize", kDefaultFirstBatch);
    MAYFLY_TRY(c.Finish());
  }
  if (!a.spec.hint.missing() && !a.spec.hint.IsString() && !a.spec.hint.IsDocument())
    return Error{ErrorCode::kFailedToParse, "Hint must be a string or an object"};
  if (!a.spec.collection.empty()) {
    MAYFLY_TRY(ValidateNamespace(req.db, a.spec.collection));
  }
  return a;
}

Result<void> CheckStrictStages(BsonView pipeline) {
  static constexpr std::string_view kRefused[] = {
      "$currentOp",      "$indexStats", "$listLocalSessions", "$listSessions", "$listSearchIndexes",
      "$planCacheStats", "$search",     "$searchMeta",        "$tombstones",   "$vectorSearch"};
  auto refused = [](std::string_view stage) {
    return Error{ErrorCode::kAPIStrictError, "stage " + std::string(stage) +
                                                 " is not allowed with 'apiStrict: true' in API "
                                                 "Version 1"};
  };
  for (const BsonElement& e : pipeline) {
    if (!e.value.IsDocument() || e.value.Document().empty()) continue;
    const BsonElement stage = e.value.Document().First();
    for (std::string_view name : kRefused)
      if (stage.name == name) return refused(name);
    if (!stage.value.IsDocument()) continue;
    const BsonView args = stage.value.Document();
    // Only the number of documents is allowed in $collStats.
    if (stage.name == "$collStats")
      for (const BsonElement& a : args)
        if (a.name != "count") return refused("$collStats with " + std::string(a.name));
    if (stage.name == "$facet") {
      for (const BsonElement& a : args)
        if (a.value.IsArray()) {
          MAYFLY_TRY(CheckStrictStages(a.value.Document()));
        }
    } else if (const BsonValue inner = args["pipeline"]; inner.IsArray()) {
      MAYFLY_TRY(CheckStrictStages(inner.Document()));
    }
  }
  return Ok();
}

namespace {

std::string_view CursorCollection(const AggregateArgs& a) {
  return a.spec.collection.empty() ? std::string_view("$cmd.aggregate") : a.spec.collection;
}

/// The pipeline up to its first batch. Blocking. `*writes`: it ended in $out or $merge.
Result<void> AnswerAggregate(CommandContext& ctx, const CommandRequest& req, const AggregateArgs& a,
                             bool* writes, BsonBuilder& reply) {
  std::string ns = JoinNamespace(req.db, CursorCollection(a));
  ctx.EditReport([&](OperationReport& r) { r.ns = ns; });
  std::string plan_summary;
  MAYFLY_TRY(std::unique_ptr<ServerCursor> source,
             OpenPipeline(ctx.expiry, ctx.op, a.spec, &plan_summary, writes));
  ctx.EditReport([&](OperationReport& r) { r.plan_summary = plan_summary; });
  if (*writes) {
    // Such a pipeline does all its work at once, whatever the batch size, and answers nothing.
    std::string none;
    BsonArrayBuilder batch(none);
    MAYFLY_TRY(source->NextBatch(ctx.op, 1, kMaxBatchBytes, batch));
    batch.Done();
  }
  MAYFLY_TRY(const int64_t id, ReplyFirstBatch(
                                   ctx.data.cursors(), ctx.op, std::move(source), ns,
                                   a.batch_size.value_or(kDefaultFirstBatch), false,
                                   [&] {
                                     auto client = MakeClientCursor(ctx, req, ns);
                                     client->plan_summary = std::move(plan_summary);
                                     return client;
                                   },
                                   reply));
  ReportCursor(ctx, id);
  ctx.data.metrics().documents.returned.Add(ctx.op.n_returned);
  return Ok();
}

/// On an io thread, when it is short there.
std::optional<Result<void>> AggregateNow(CommandContext& ctx, const CommandRequest& req,
                                         BsonBuilder& reply) {
  MAYFLY_TRY(AggregateArgs a, ParseAggregate(req, false));
  if (req.generic.api_strict) {
    MAYFLY_TRY(CheckStrictStages(a.spec.pipeline));
  }
  if (a.explain || a.spec.collection.empty() || !a.spec.let.empty() ||
      !req.generic.write_concern.missing() || IsChangeStream(ctx.data, a.spec.pipeline))
    return std::nullopt;
  MAYFLY_TRY(CollectionInfoPtr coll,
             FindCollection(ctx.data.storage().catalog(), ctx.op, req.db, a.spec.collection));
  if (coll && IsNeverShort(*coll)) return std::nullopt;
  a.spec.clients = &ctx.server;
  const uint32_t shape = ReadShape("aggregate", req.db, a.spec.collection, {a.spec.pipeline});
  return TryShortRead(ctx, coll.get(), shape, [&] {
    bool writes = false;  // no shape has a stage that does
    return AnswerAggregate(ctx, req, a, &writes, reply);
  });
}

/// The last stage when it is $out or $merge (anywhere else they are refused), or empty.
std::string_view EndsInWrite(BsonView pipeline) {
  std::string_view last;
  for (const BsonElement& e : pipeline) last = e.value.Document().First().name;
  return last == "$out" || last == "$merge" ? last : std::string_view();
}

Awaitable<Result<void>> RunAggregate(CommandContext& ctx, const CommandRequest& req,
                                     BsonBuilder& reply) {
  MAYFLY_CO_TRY(AggregateArgs a, ParseAggregate(req, false));
  a.spec.clients = &ctx.server;
  if (IsChangeStream(ctx.data, a.spec.pipeline) && !req.generic.read_concern.missing()) {
    // Without a level, as with a time to read after alone, it is majority (manual: Change Streams).
    const BsonValue level = req.generic.read_concern.Document()["level"];
    if (!level.missing() && ctx.read_concern != ReadConcernLevel::kMajority)
      co_return Error{
          ErrorCode::kInvalidOptions,
          "$changeStream cannot run with a readConcern other than 'majority', but got '" +
              std::string(level.String()) + "'"};
  }
  if (req.generic.api_strict) {
    MAYFLY_CO_TRY(CheckStrictStages(a.spec.pipeline));
  }
  const std::string_view last = EndsInWrite(a.spec.pipeline);
  if (!last.empty() && ctx.read_concern == ReadConcernLevel::kLinearizable)
    co_return Error{ErrorCode::kInvalidOptions,
                    std::string(last) + " cannot be used with a 'linearizable' read concern level"};
  if (last.empty() && !req.generic.write_concern.missing())
    co_return Error{ErrorCode::kInvalidOptions,
                    "Command aggregate does not support writeConcern without $out or $merge"};
  if (a.explain && !req.generic.write_concern.missing())
    co_return Error{ErrorCode::kFailedToParse,
                    "Aggregation explain does not support the 'writeConcern' option"};
  if (a.explain && !last.empty())
    co_return Error{ErrorCode::kFailedToParse,
                    "The 'explain' option is not for a pipeline that writes with " +
                        std::string(last) +
                        ": use the explain command with verbosity 'queryPlanner'"};
  if (!a.explain && !last.empty()) {
    MAYFLY_CO_TRY(co_await ctx.WaitToWrite());
  }
  MAYFLY_CO_TRY(co_await ctx.MoveToWorkerWithRoom());
  if (a.explain) {
    ctx.EditReport([&](OperationReport& r) { r.ns = JoinNamespace(req.db, CursorCollection(a)); });
    co_return ExplainPipeline(ctx.expiry, ctx.op, a.spec, ExplainVerbosity::kQueryPlanner, reply);
  }
  bool writes = false;
  MAYFLY_CO_TRY(AnswerAggregate(ctx, req, a, &writes, reply));
  if (writes && ctx.write_concern.journal) {
    MAYFLY_CO_TRY(co_await ctx.Commit(WriteUnit(ctx.data.storage(), ctx.op)));
  }
  co_return Ok();
}

}  // namespace

void RegisterAggregate(CommandRegistry& registry) {
  registry.Add({.name = "aggregate",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kTakesReadConcern |
                         kTakesWriteConcern,
                .help = "Runs a pipeline of stages and answers a cursor.",
                .run_async = &RunAggregate,
                .run_now = &AggregateNow,
                .privileges = &privileges::Aggregate});
}

}  // namespace mayfly
