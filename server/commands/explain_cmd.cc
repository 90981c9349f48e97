#include "query/expression/parse_work.h"
#include "query/pipeline/bucket_filter.h"
#include "query/pipeline/bucket_test.h"
#include "query/update/update.h"
#include "server/commands/aggregate_args.h"
#include "server/commands/find_and_modify.h"
#include "server/commands/write_statements.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/config.h"
#include "server/dispatch/inner_requests.h"
#include "server/dispatch/server_context.h"
#include "server/execution/aggregate.h"
#include "server/execution/find_args.h"
#include "server/execution/raw_data.h"
#include "server/execution/series_definition.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"
#include "timeseries/bucket_control.h"

namespace mayfly {
namespace {

/// The common input of the explainers of single commands.
struct Explained {
  CommandContext& ctx;
  const CommandRequest& command;  ///< the one to explain
  ExplainVerbosity verbosity;
  BsonBuilder& reply;

  Storage& storage() const { return ctx.data.storage(); }
  bool runs() const { return verbosity != ExplainVerbosity::kQueryPlanner; }
};

/// A write whose documents are to be found.
struct ExplainedWrite {
  std::string_view collection;
  BsonView filter, sort;
  BsonValue hint;
  BsonView let;
  bool multi = false, update = false, upsert = false, find_and_modify = false;
  std::string_view stage;  ///< a literal
};

/// What a delete or an update of a time series would meet.
struct PointsChanged {
  int64_t examined = 0, unpacked = 0,
          points = 0;  ///< buckets, of those with points to test; points
};

/// Runs the search for buckets to its end and counts the points in them that the write is for.
Result<PointsChanged> CountPoints(const Explained& e, const ExplainedWrite& w,
                                  const CollectionInfo& buckets, PlanExecutor& found) {
  const SeriesFields fields{buckets.series->time_field, buckets.series->meta_field};
  VariableScope scope;
  EvalContext eval;
  eval.now = e.ctx.op.now;
  eval.cluster_time = e.ctx.op.cluster_time;
  eval.op = &e.ctx.op;
  MAYFLY_TRY(EvaluateLet(w.let, e.ctx.op, &scope, &eval.variables));
  ParseWork work(&e.ctx.op);
  MAYFLY_TRY(const MatchPtr match, ParseMatch(w.filter, {.scope = &scope, .allow_where = true}));
  eval.variables.resize(static_cast<size_t>(scope.slots()));
  PointsChanged n;
  for (;;) {
    MAYFLY_TRY(const PlanExecutor::State state, found.Next());
    if (state != PlanExecutor::State::kAdvanced) return n;
    ++n.examined;
    const BsonView bucket = found.input_doc();
    MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(bucket, fields));
    // An update is for the meta value, of which a bucket has one.
    BucketVerdict verdict = BucketVerdict::kAll;
    if (!w.update) {
      MAYFLY_TRY(verdict, TestBucket(*match, bucket, fields, &eval));
    }
    if (verdict == BucketVerdict::kNone) continue;
    if (verdict == BucketVerdict::kAll && (w.update || w.multi)) {
      n.points += static_cast<int64_t>(facts.count);
      continue;
    }
    ++n.unpacked;
    BucketPoints points;
    MAYFLY_TRY(points.Open(bucket, fields));
    for (;;) {
      MAYFLY_TRY(e.ctx.op.CheckInterrupt());
      MAYFLY_TRY(const std::optional<BsonView> point, points.Next());
      if (!point) break;
      eval.root = *point;
      MAYFLY_TRY(const bool matches, match->Matches(eval.root, &eval));
      n.points += matches;
      if (matches && !w.multi) return n;
    }
  }
}

/// The same of a time series: the search is for buckets.
Result<void> ExplainSeriesWrite(const Explained& e, const ExplainedWrite& w,
                                const CollectionInfo& series) {
  const auto refused = [&](std::string_view what) {
    return Error{ErrorCode::kInvalidOptions, "Cannot perform " + std::string(what) +
                                                 " on a time-series collection: " + series.ns};
  };
  if (w.find_and_modify) return refused("a findAndModify");
  if (w.upsert) return refused("an upsert");
  if (w.update && !w.multi) return refused("a non-multi update");
  QuerySpec spec;
  spec.coll = BucketsOf(e.storage().catalog(), series);
  if (!spec.coll) return Error{ErrorCode::kNamespaceNotFound, series.ns + " is being dropped"};
  const SeriesOptions& options = *spec.coll->series;
  BsonDocument filter, hint;
  bool exact = w.update;
  if (w.update) {
    std::optional<BsonDocument> moved = BucketMetaFilter(options, w.filter);
    if (!moved) return refused("an update by a field that is not the metaField");
    filter = std::move(*moved);
  } else if (std::optional<BucketFilter> moved = FilterOfBuckets(w.filter, ShapeOf(*spec.coll))) {
    filter = std::move(moved->filter);
    exact = moved->exact;
  }
  spec.ns = spec.coll->ns;
  spec.filter = filter;
  MAYFLY_TRY(spec.hint, BucketHint(*spec.coll, w.hint, &hint));
  spec.let = w.let;
  spec.explain = true;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor, MakeFindExecutor(e.storage(), e.ctx.op, spec));
  PointsChanged n;
  if (e.runs()) {
    MAYFLY_TRY(n, CountPoints(e, w, *spec.coll, *executor));
  }
  e.ctx.op.n_returned = 0;
  ExplainStage top;
  top.stage = "TS_MODIFY";
  top.plan_fields = [&](BsonBuilder& b) {
    b.Append("opType", w.update  ? "updateMany"
                       : w.multi ? "deleteMany"
                                 : "deleteOne")
        .Append("bucketFilter", filter)
        .Append("residualFilter", exact ? BsonView() : w.filter);
  };
  top.stats_fields = [n, update = w.update](BsonBuilder& b) {
    b.Append("nBucketsExamined", n.examined).Append("nBucketsUnpacked", n.unpacked);
    b.Append("nMeasurementsMatched", n.points);
    b.Append(update ? "nMeasurementsUpdated" : "nMeasurementsDeleted", n.points);
  };
  return executor->Explain(e.verbosity, {top}, e.reply);
}

/// The search of an update or delete under the stage that changes what it finds. Nothing is
/// changed: the search runs, and says how many documents would be.
Result<void> ExplainWrite(const Explained& e, const ExplainedWrite& w) {
  MAYFLY_TRY(ValidateNamespace(e.command.db, w.collection));
  std::string ns = JoinNamespace(e.command.db, w.collection);
  QuerySpec spec;
  spec.coll = e.storage().catalog().Find(e.command.db, w.collection);
  if (spec.coll && spec.coll->is_series()) return ExplainSeriesWrite(e, w, *spec.coll);
  if (spec.coll) {
    MAYFLY_TRY(CheckUse(*spec.coll, CollectionUse::kExplain));
  }
  spec.ns = ns;
  spec.filter = w.filter;
  spec.sort = w.sort;
  spec.hint = w.hint;
  // The one that is first by the sort; without a sort the command itself stops at the first, as in
  // MongoDB's plans.
  spec.limit = w.multi || w.sort.empty() ? 0 : 1;
  spec.batch_hint = w.multi ? 0 : 1;
  spec.let = w.let;
  spec.explain = true;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor, MakeFindExecutor(e.storage(), e.ctx.op, spec));
  if (w.upsert) {
    MAYFLY_TRY(CheckUpsertFilter(w.filter));
  }
  int64_t n = 0;
  if (e.runs()) {
    MAYFLY_TRY(n, executor->RunToEnd(w.multi ? 0 : 1));
  }
  e.ctx.op.n_returned = 0;  // what was found was not handed out
  e.ctx.EditReport([&](OperationReport& r) { r.plan_summary = executor->PlanSummary(); });
  ExplainStage top;
  top.stage = w.stage;
  top.stats_fields = [n, update = w.update, upsert = w.upsert](BsonBuilder& b) {
    if (update)
      b.Append("nMatched", n)
          .Append("nWouldModify", n)
          .Append("nWouldUpsert", upsert && n == 0 ? int64_t{1} : int64_t{0});
    else
      b.Append("nWouldDelete", n);
  };
  return executor->Explain(e.verbosity, {top}, e.reply);
}

Result<void> ExplainFind(const Explained& e) {
  MAYFLY_TRY(FindArgs a, ParseFind(e.command));
  MAYFLY_TRY(ValidateNamespace(e.command.db, a.collection));
  CollectionInfoPtr coll = e.storage().catalog().Find(e.command.db, a.collection);
  if (coll && coll->is_view()) {
    MAYFLY_TRY(BsonDocument pipeline, a.ToPipeline());
    AggregateSpec spec = a.OnView(e.command.db, pipeline);
    spec.clients = &e.ctx.server;
    return ExplainPipeline(e.ctx.expiry, e.ctx.op, spec, e.verbosity, e.reply);
  }
  const std::string ns = JoinNamespace(e.command.db, a.collection);
  QuerySpec spec = a.ToSpec(coll, ns);
  spec.explain = true;
  spec.memory_limit = e.ctx.data.settings().sort_bytes();
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor, MakeFindExecutor(e.storage(), e.ctx.op, spec));
  if (e.runs()) {
    MAYFLY_TRY(executor->RunToEnd());
  }
  return executor->Explain(e.verbosity, {}, e.reply);
}

Result<void> ExplainAggregate(const Explained& e) {
  MAYFLY_TRY(AggregateArgs a, ParseAggregate(e.command, true));
  if (e.command.generic.api_strict) {
    MAYFLY_TRY(CheckStrictStages(a.spec.pipeline));
  }
  a.spec.clients = &e.ctx.server;
  return ExplainPipeline(e.ctx.expiry, e.ctx.op, a.spec, e.verbosity, e.reply);
}

/// For count and distinct. `ns` must outlive the specification.
QuerySpec ExplainedQuery(const Explained& e, const std::string& ns, BsonView filter,
                         BsonValue hint) {
  QuerySpec spec;
  spec.explain = true;
  spec.coll = e.storage().catalog().Find(e.command.db, ns.substr(e.command.db.size() + 1));
  spec.ns = ns;
  spec.filter = filter;
  spec.hint = hint;
  return spec;
}

/// count and distinct on a view: the pipeline that they are there.
Result<void> ExplainOnView(const Explained& e, std::string_view collection, BsonView pipeline,
                           BsonValue hint) {
  AggregateSpec spec;
  spec.clients = &e.ctx.server;
  spec.db = e.command.db;
  spec.collection = collection;
  spec.pipeline = pipeline;
  spec.hint = hint;
  return ExplainPipeline(e.ctx.expiry, e.ctx.op, spec, e.verbosity, e.reply);
}

Result<void> ExplainCount(const Explained& e) {
  MAYFLY_TRY(CountArgs a, ParseCount(e.command));
  const std::string ns = JoinNamespace(e.command.db, a.collection);
  QuerySpec spec = ExplainedQuery(e, ns, a.query, a.hint);
  if (spec.coll && spec.coll->is_view())
    return ExplainOnView(e, a.collection, a.ToPipeline(), a.hint);
  spec.skip = a.skip;
  spec.limit = a.limit;
  MAYFLY_TRY(std::unique_ptr<CountExecutor> count, MakeCountExecutor(e.storage(), e.ctx.op, spec));
  if (e.runs()) {
    MAYFLY_TRY(count->Count());
  }
  return count->Explain(e.verbosity, e.reply);
}

Result<void> ExplainDistinct(const Explained& e) {
  MAYFLY_TRY(DistinctArgs a, ParseDistinct(e.command));
  const std::string ns = JoinNamespace(e.command.db, a.collection);
  const QuerySpec spec = ExplainedQuery(e, ns, a.query, a.hint);
  if (spec.coll && spec.coll->is_view())
    return ExplainOnView(e, a.collection,
                         a.ToPipeline(spec.coll->series ? spec.coll->series->meta_field : ""),
                         a.hint);
  MAYFLY_TRY(std::unique_ptr<DistinctExecutor> distinct,
             MakeDistinctExecutor(e.storage(), e.ctx.op, spec, a.key));
  if (e.runs()) {
    MAYFLY_TRY(distinct->Run([](BsonValue) -> Result<void> { return Ok(); }));
  }
  return distinct->Explain(e.verbosity, e.reply);
}

/// update and delete.
Result<void> ExplainStatement(const Explained& e) {
  const bool update = e.command.name == "update";
  ArgReader in(e.command);
  std::string_view collection = in.Collection();
  const DocumentList statements = in.Documents(update ? "updates" : "deletes");
  in.BoolOr("ordered", true);                          // unused: there is one statement
  in.LooseBoolOr("bypassDocumentValidation", false);   // unused: nothing is stored
  if (update) in.OptBool("bypassEmptyTsReplacement");  // unused: nothing is stored
  BsonView let = in.DocumentOr("let");
  MAYFLY_TRY(in.Finish());
  if (statements.size() != 1)
    return Error{ErrorCode::kInvalidLength, "explained write batches must be of size 1"};
  if (update) {
    MAYFLY_TRY(UpdateStatement s, ParseUpdateStatement(statements[0], e.ctx.op.now));
    VariableScope scope;
    ParseWork work(&e.ctx.op);
    MAYFLY_TRY(
        Update::Parse(s.update, s.array_filters, scope, {.multi = s.multi, .upsert = s.upsert}));
    return ExplainWrite(e, {.collection = collection,
                            .filter = s.filter,
                            .sort = s.sort,
                            .hint = s.hint,
                            .let = let,
                            .multi = s.multi,
                            .update = true,
                            .upsert = s.upsert,
                            .stage = "UPDATE"});
  }
  MAYFLY_TRY(DeleteStatement s, ParseDeleteStatement(statements[0]));
  return ExplainWrite(e, {.collection = collection,
                          .filter = s.filter,
                          .sort = s.sort,
                          .hint = s.hint,
                          .let = let,
                          .multi = s.multi,
                          .stage = s.multi ? "BATCHED_DELETE" : "DELETE"});
}

Result<void> ExplainFindAndModify(const Explained& e) {
  MAYFLY_TRY(FindAndModifyArgs a, ParseFindAndModify(e.command, e.ctx.op.now));
  if (e.storage().catalog().List(e.command.db).empty())
    return Error{ErrorCode::kNamespaceNotFound,
                 "database " + std::string(e.command.db) + " does not exist"};
  return ExplainWrite(e, {.collection = a.collection,
                          .filter = a.filter,
                          .sort = a.sort,
                          .hint = a.hint,
                          .let = a.let,
                          .update = !a.remove,
                          .upsert = a.upsert,
                          .find_and_modify = true,
                          .stage = a.remove ? "DELETE" : "UPDATE"});
}

constexpr std::pair<std::string_view, Result<void> (*)(const Explained&)> kExplainers[] = {
    {"aggregate", &ExplainAggregate},
    {"count", &ExplainCount},
    {"delete", &ExplainStatement},
    {"distinct", &ExplainDistinct},
    {"find", &ExplainFind},
    {"findAndModify", &ExplainFindAndModify},
    {"findandmodify", &ExplainFindAndModify},
    {"update", &ExplainStatement}};

Result<void> ExplainCommand(const Explained& e) {
  for (const auto& [name, explain] : kExplainers)
    if (name == e.command.name) return explain(e);
  if (e.ctx.server.commands().Find(e.command.name) != nullptr)
    return Error{ErrorCode::kIllegalOperation,
                 "Cannot explain cmd: " + std::string(e.command.name)};
  return Error{ErrorCode::kCommandNotFound,
               "Explain failed due to unknown command: " + std::string(e.command.name)};
}

Awaitable<Result<void>> RunExplain(CommandContext& ctx, const CommandRequest& req,
                                   BsonBuilder& reply) {
  ArgReader in(req);
  BsonView inner = in.Document("explain");
  std::string_view verbosity_name = in.StringOr("verbosity", "allPlansExecution");
  MAYFLY_CO_TRY(in.Finish());
  MAYFLY_CO_TRY(ExplainVerbosity verbosity, ParseVerbosity(verbosity_name));
  if (inner.empty())
    co_return Error{ErrorCode::kFailedToParse,
                    "The explain command's first field must name a command"};
  const InnerRequests& within = InnerRequests::Of(req);
  if (within.error) co_return *within.error;
  // Its arguments that every command has: Dispatcher::JoinExplained.
  const CommandRequest& sub = within.explained->request;  // its document is not empty
  MAYFLY_CO_TRY(ApplyRawData(ctx.data, within.explained->request));
  co_await ctx.MoveToWorker();
  const Explained explained{ctx, sub, verbosity, reply};
  MAYFLY_CO_TRY(ExplainCommand(explained));
  // The command with its explanation may be more than a document can be.
  if (reply.size() + inner.size() + 4096 <= static_cast<size_t>(kMaxBsonUserSize)) {
    reply.Append("command", inner);
  } else {
    reply.Append("warning",
                 "'command' is left out: the reply would be larger than a document may be");
  }
  {
    BsonBuilder info = reply.OpenDocument("serverInfo");
    const std::string& where = ctx.data.host_and_port();
    size_t colon = where.rfind(':');
    info.Append("host", where.substr(0, colon))
        .Append("port", std::atoi(where.c_str() + colon + 1));
    info.Append("version", kCompatibleVersion).Append("gitVersion", MAYFLY_GIT_VERSION);
  }
  co_return Ok();
}

}  // namespace

void RegisterExplain(CommandRegistry& registry) {
  registry.Add({.name = "explain",
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kApiV1 | kTakesReadConcern,
                .help = "How a find, aggregate, count, distinct, update, delete or findAndModify "
                        "is carried out.",
                .run_async = &RunExplain,
                .privileges = &privileges::Explain});
}

}  // namespace mayfly
