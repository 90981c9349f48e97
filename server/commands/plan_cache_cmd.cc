#include "query/match/match_expression.h"
#include "query/plan/query_state.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

/// Manual, "planCacheClear": all of a collection's cached plans, or those of one query shape.
Result<void> PlanCacheClear(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const std::string_view name = in.Collection();
  const auto query = in.OptDocument("query");
  const auto sort = in.OptDocument("sort");
  const auto projection = in.OptDocument("projection");
  in.SimpleCollation();
  MAYFLY_TRY(in.Finish());
  if (!query && (sort || projection))
    return Error{ErrorCode::kBadValue, "sort or projection provided without query"};
  CollectionInfoPtr coll = ctx.data.storage().catalog().Find(req.db, name);
  if (coll == nullptr) return Ok();
  if (!query) {
    QueryState::Of(ctx.data.storage()).plans.Clear(*coll);
    return Ok();
  }
  MAYFLY_TRY(MatchPtr match, ParseMatch(*query));
  QueryState::Of(ctx.data.storage())
      .plans.Remove(coll, QueryShape(match.get(), sort.value_or(BsonView()),
                                     projection.value_or(BsonView())));
  return Ok();
}

/// The shape that these commands name, with the parts as given.
struct GivenShape {
  std::string_view collection;
  std::optional<BsonView> query, sort, projection;
  void Read(ArgReader& in) {
    collection = in.Collection();
    query = in.OptDocument("query");
    sort = in.OptDocument("sort");
    projection = in.OptDocument("projection");
    in.SimpleCollation();
  }
  Result<std::string> Shape() const {
    MAYFLY_TRY(MatchPtr match, ParseMatch(*query));
    return QueryShape(match.get(), sort.value_or(BsonView()), projection.value_or(BsonView()));
  }
};

/// Manual, "planCacheSetFilter": the planner considers these indexes alone for a query shape, hints
/// notwithstanding.
Result<void> PlanCacheSetFilter(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  GivenShape given;
  given.Read(in);
  const BsonValue indexes = in.Any("indexes");
  MAYFLY_TRY(in.Finish());
  auto bad = [](const char* why) { return Error{ErrorCode::kBadValue, why}; };
  if (!given.query) return bad("required field query missing");
  if (indexes.missing()) return bad("required field indexes missing");
  if (!indexes.IsArray()) return bad("required field indexes must be an array");
  if (indexes.Document().empty())
    return bad("required field indexes must contain at least one index");
  for (const BsonElement& e : indexes.Document()) {
    if (!e.value.IsDocument() && !e.value.IsString())
      return bad("each item in indexes must be an object or string");
    if (e.value.IsDocument() && e.value.Document().empty())
      return bad("index specification cannot be empty");
    if (e.value.IsString() && e.value.String().empty())
      return bad("string index specification cannot be empty");
  }
  CollectionInfoPtr coll = ctx.data.storage().catalog().Find(req.db, given.collection);
  if (coll == nullptr || coll->is_view()) return bad("ns doesn't exist");
  MAYFLY_TRY(std::string shape, given.Shape());
  MAYFLY_TRY(
      QueryState::Of(ctx.data.storage())
          .filters.Set(*coll, shape,
                       {BsonDocument(*given.query), BsonDocument(given.sort.value_or(BsonView())),
                        BsonDocument(given.projection.value_or(BsonView())),
                        BsonDocument(indexes.Document())}));
  QueryState::Of(ctx.data.storage()).plans.Clear(*coll);
  return Ok();
}

Result<void> PlanCacheClearFilters(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  GivenShape given;
  given.Read(in);
  MAYFLY_TRY(in.Finish());
  if (!given.query && (given.sort || given.projection))
    return Error{ErrorCode::kBadValue, "sort or projection provided without query"};
  CollectionInfoPtr coll = ctx.data.storage().catalog().Find(req.db, given.collection);
  if (coll == nullptr) return Ok();
  if (given.query) {
    MAYFLY_TRY(std::string shape, given.Shape());
    QueryState::Of(ctx.data.storage()).filters.Clear(coll->uuid, &shape);
  } else {
    QueryState::Of(ctx.data.storage()).filters.Clear(coll->uuid, nullptr);
  }
  QueryState::Of(ctx.data.storage()).plans.Clear(*coll);
  return Ok();
}

Result<void> PlanCacheListFilters(CommandContext& ctx, const CommandRequest& req,
                                  BsonBuilder& reply) {
  ArgReader in(req);
  const std::string_view name = in.Collection();
  MAYFLY_TRY(in.Finish());
  CollectionInfoPtr coll = ctx.data.storage().catalog().Find(req.db, name);
  BsonArrayBuilder list = reply.OpenArray("filters");
  if (coll == nullptr) return Ok();
  QueryState::Of(ctx.data.storage()).filters.ForEach(coll->uuid, [&](const IndexFilter& f) {
    BsonBuilder b = list.OpenDocument();
    b.Append("query", f.query).Append("sort", f.sort).Append("projection", f.projection);
    b.AppendArray("indexes", f.indexes);
  });
  return Ok();
}

}  // namespace

void RegisterPlanCacheClear(CommandRegistry& registry) {
  registry.Add({.name = "planCacheClear",
                .flags = kSecondaryOk | kWorker,
                .help = "Forgets the cached plans of a collection, or of one query shape.",
                .run = &PlanCacheClear,
                .privileges = &privileges::OnCollection<Action::planCacheWrite>});
  registry.Add({.name = "planCacheClearFilters",
                .flags = kSecondaryOk | kWorker,
                .help = "Takes away the index filters of a collection, or of one query shape.",
                .run = &PlanCacheClearFilters,
                .privileges = &privileges::OnCollection<Action::planCacheIndexFilter>});
  registry.Add({.name = "planCacheListFilters",
                .flags = kSecondaryOk | kWorker,
                .help = "The index filters of a collection.",
                .run = &PlanCacheListFilters,
                .privileges = &privileges::OnCollection<Action::planCacheIndexFilter>});
  registry.Add({.name = "planCacheSetFilter",
                .flags = kSecondaryOk | kWorker,
                .help = "Which indexes the planner may use for a query shape.",
                .run = &PlanCacheSetFilter,
                .privileges = &privileges::OnCollection<Action::planCacheIndexFilter>});
}

}  // namespace mayfly
