#include "query/match/match_expression.h"
#include "query/plan/plan_cache.h"
#include "server/arg_reader.h"
#include "server/command.h"
#include "server/server_context.h"
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
  CollectionInfoPtr coll = ctx.server.storage().catalog().Find(req.db, name);
  if (coll == nullptr) return Ok();
  if (!query) {
    PlanCache::Global().Clear(*coll);
    return Ok();
  }
  MAYFLY_TRY(MatchPtr match, ParseMatch(*query));
  PlanCache::Global().Remove(coll, QueryShape(match.get(), sort.value_or(BsonView()), projection.value_or(BsonView())));
  return Ok();
}

}  // namespace

void RegisterPlanCacheClear(CommandRegistry& registry) {
  registry.Add({.name = "planCacheClear",
                .flags = kSecondaryOk,
                .help = "Forgets the cached plans of a collection, or of one query shape.",
                .run = &PlanCacheClear});
}

}  // namespace mayfly
