#include "server/aggregate.h"
#include "server/arg_reader.h"
#include "server/commands/aggregate_args.h"
#include "server/commands/find_and_modify.h"
#include "server/commands/write_statements.h"
#include "server/config.h"
#include "server/find_args.h"
#include "server/server_context.h"
#include "storage/namespace.h"

namespace mayfly {
namespace {

/// The search of an update or delete under the stage that changes what it finds. Nothing is
/// changed: the search runs, and says how many documents would be.
Result<void> ExplainWrite(ServerContext& server, Operation& op, std::string_view db,
                          std::string_view collection, BsonView filter, BsonView sort,
                          BsonValue hint, bool multi, const char* stage, bool update, bool upsert,
                          BsonView let, ExplainVerbosity verbosity, BsonBuilder& reply) {
  MAYFLY_TRY(ValidateNamespace(db, collection));
  std::string ns = JoinNamespace(db, collection);
  QuerySpec spec;
  spec.coll = server.storage().catalog().Find(db, collection);
  spec.ns = ns;
  spec.filter = filter;
  spec.sort = sort;
  spec.hint = hint;
  // The one that is first by the sort; without a sort the command itself stops at the first, as in
  // MongoDB's plans.
  spec.limit = multi || sort.empty() ? 0 : 1;
  spec.batch_hint = multi ? 0 : 1;
  spec.let = let;
  spec.explain = true;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> executor, MakeFindExecutor(server.storage(), op, spec));
  int64_t n = 0;
  if (verbosity != ExplainVerbosity::kQueryPlanner) {
    MAYFLY_TRY(n, executor->RunToEnd(multi ? 0 : 1));
  }
  ExplainStage top;
  top.stage = stage;
  top.stats_fields = [=](BsonBuilder& b) {
    if (update)
      b.Append("nMatched", n)
          .Append("nWouldModify", n)
          .Append("nWouldUpsert", upsert && n == 0 ? int64_t{1} : int64_t{0});
    else
      b.Append("nWouldDelete", n);
  };
  return executor->Explain(verbosity, {top}, reply);
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
  CommandRequest sub;
  sub.body = inner;
  sub.name = inner.First().name;
  sub.db = req.db;
  if (BsonValue db = inner["$db"]; db.IsString() && db.String() != req.db)
    co_return Error{ErrorCode::kInvalidNamespace, "Mismatched $db in explain command. Expected " +
                                                      std::string(req.db) + " but got " +
                                                      std::string(db.String())};
  MAYFLY_CO_TRY(ParseCommandFields(inner, &sub));
  co_await ctx.MoveToWorker();
  ServerContext& server = ctx.server;
  Operation& op = ctx.op;
  Catalog& catalog = server.storage().catalog();
  Result<void> done = Ok();
  if (sub.name == "find") {
    MAYFLY_CO_TRY(FindArgs a, ParseFind(sub));
    MAYFLY_CO_TRY(ValidateNamespace(req.db, a.collection));
    CollectionInfoPtr coll = catalog.Find(req.db, a.collection);
    std::string ns = JoinNamespace(req.db, a.collection);
    if (coll && coll->is_view) {
      MAYFLY_CO_TRY(BsonDocument pipeline, a.ToPipeline());
      AggregateSpec spec;
      spec.db = req.db;
      spec.collection = a.collection;
      spec.pipeline = pipeline;
      spec.let = a.let;
      done = ExplainPipeline(server, op, spec, verbosity, reply);
    } else {
      QuerySpec spec = a.ToSpec(coll, ns);
      spec.explain = true;
      MAYFLY_CO_TRY(std::unique_ptr<PlanExecutor> executor,
                    MakeFindExecutor(server.storage(), op, spec));
      if (verbosity != ExplainVerbosity::kQueryPlanner) {
        MAYFLY_CO_TRY(executor->RunToEnd());
      }
      done = executor->Explain(verbosity, {}, reply);
    }
  } else if (sub.name == "aggregate") {
    MAYFLY_CO_TRY(AggregateArgs a, ParseAggregate(sub, true));
    a.spec.ctx = &ctx;
    done = ExplainPipeline(server, op, a.spec, verbosity, reply);
  } else if (sub.name == "count" || sub.name == "distinct") {
    QuerySpec spec;
    std::string ns;
    spec.explain = true;
    if (sub.name == "count") {
      MAYFLY_CO_TRY(CountArgs a, ParseCount(sub));
      ns = JoinNamespace(req.db, a.collection);
      spec.coll = catalog.Find(req.db, a.collection);
      spec.ns = ns;
      spec.filter = a.query;
      spec.hint = a.hint;
      spec.skip = a.skip;
      spec.limit = a.limit;
      if (spec.coll && spec.coll->is_view)
        co_return Error{ErrorCode::kCommandNotSupportedOnView,
                        "explain of count on a view: explain the pipeline with $count"};
      MAYFLY_CO_TRY(std::unique_ptr<CountExecutor> count,
                    MakeCountExecutor(server.storage(), op, spec));
      if (verbosity != ExplainVerbosity::kQueryPlanner) {
        MAYFLY_CO_TRY(count->Count());
      }
      done = count->Explain(verbosity, reply);
    } else {
      MAYFLY_CO_TRY(DistinctArgs a, ParseDistinct(sub));
      ns = JoinNamespace(req.db, a.collection);
      spec.coll = catalog.Find(req.db, a.collection);
      spec.ns = ns;
      spec.filter = a.query;
      spec.hint = a.hint;
      if (spec.coll && spec.coll->is_view)
        co_return Error{ErrorCode::kCommandNotSupportedOnView,
                        "explain of distinct on a view: explain the pipeline with $group"};
      MAYFLY_CO_TRY(std::unique_ptr<DistinctExecutor> distinct,
                    MakeDistinctExecutor(server.storage(), op, spec, a.key));
      if (verbosity != ExplainVerbosity::kQueryPlanner) {
        MAYFLY_CO_TRY(distinct->Run([](BsonValue) -> Result<void> { return Ok(); }));
      }
      done = distinct->Explain(verbosity, reply);
    }
  } else if (sub.name == "update" || sub.name == "delete") {
    ArgReader w(sub);
    std::string_view collection = w.Collection();
    std::vector<BsonView> statements = w.Documents(sub.name == "update" ? "updates" : "deletes");
    w.BoolOr("ordered", true);
    w.LooseBoolOr("bypassDocumentValidation", false);
    BsonView let = w.DocumentOr("let");
    MAYFLY_CO_TRY(w.Finish());
    if (statements.size() != 1)
      co_return Error{ErrorCode::kInvalidLength, "explained write batches must be of size 1"};
    if (sub.name == "update") {
      MAYFLY_CO_TRY(UpdateStatement s, ParseUpdateStatement(statements[0], ctx.op.now));
      VariableScope scope;
      MAYFLY_CO_TRY(
          Update::Parse(s.update, s.array_filters, scope, {.multi = s.multi, .upsert = s.upsert}));
      done = ExplainWrite(server, op, req.db, collection, s.filter, s.sort, s.hint, s.multi,
                          "UPDATE", true, s.upsert, let, verbosity, reply);
    } else {
      MAYFLY_CO_TRY(DeleteStatement s, ParseDeleteStatement(statements[0]));
      done =
          ExplainWrite(server, op, req.db, collection, s.filter, s.sort, s.hint, s.multi,
                       s.multi ? "BATCHED_DELETE" : "DELETE", false, false, let, verbosity, reply);
    }
  } else if (sub.name == "findAndModify" || sub.name == "findandmodify") {
    MAYFLY_CO_TRY(FindAndModifyArgs a, ParseFindAndModify(sub, ctx.op.now));
    done =
        ExplainWrite(server, op, req.db, a.collection, a.filter, a.sort, a.hint, false,
                     a.remove ? "DELETE" : "UPDATE", !a.remove, a.upsert, a.let, verbosity, reply);
  } else if (server.commands().Find(sub.name) != nullptr) {
    co_return Error{ErrorCode::kIllegalOperation, "Cannot explain cmd: " + std::string(sub.name)};
  } else {
    co_return Error{ErrorCode::kCommandNotFound,
                    "Explain failed due to unknown command: " + std::string(sub.name)};
  }
  if (!done) co_return done;
  reply.Append("command", inner);
  {
    BsonBuilder info = reply.OpenDocument("serverInfo");
    const std::string& where = server.host_and_port();
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
                .flags = kReadOnly | kSecondaryOk | kApiV1 | kTakesReadConcern,
                .help = "How a find, aggregate, count, distinct, update, delete or findAndModify "
                        "is carried out.",
                .run_async = &RunExplain});
}

}  // namespace mayfly
