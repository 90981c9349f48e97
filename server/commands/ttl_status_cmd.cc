#include "server/dispatch/arg_reader.h"
#include "server/dispatch/expiry_services.h"
#include "server/execution/existing_collection.h"
#include "server/execution/ttl_status.h"
#include "server/privileges/privileges.h"

namespace mayfly {
namespace {

Result<void> RunStatus(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  TtlStatusPart part;
  part.skip = in.OptInRange("skip", 0, INT32_MAX).value_or(0);
  part.limit = in.OptInRange("limit", 0, INT32_MAX).value_or(0);
  MAYFLY_TRY(in.Finish());
  if (ctx.connection == nullptr) part.most_bytes = SIZE_MAX;  // the expiry page chooses from all
  MAYFLY_TRY(TtlTarget t, ReadTtlTarget(req));
  if (!t.all) {
    MAYFLY_TRY(ExistingCollection(ctx.data, t.db, t.collection));
  }
  return AppendTtlStatus(ctx.expiry, ctx.op, t.db, t.collection, part, reply);
}

Result<void> RunForecast(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const ForecastOptions options = ReadForecastOptions(in);
  MAYFLY_TRY(in.Finish());
  MAYFLY_TRY(TtlTarget t, ReadTtlTarget(req));
  if (t.all) {
    MAYFLY_TRY(Forecast f, ForecastAll(ctx.expiry, ctx.op, t.db, options));
    AppendForecast(f, reply);
    return Ok();
  }
  MAYFLY_TRY(Forecast f, ForecastCollection(ctx.expiry, ctx.op, t.db, t.collection, options));
  AppendForecast(f, reply);
  return Ok();
}

}  // namespace

void RegisterTtlStatus(CommandRegistry& registry) {
  registry.Add({.name = "ttlStatus",
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help =
                    "Rules by which documents expire: state, next deadline, lag, backlog; holds "
                    "and pauses. Of a collection, or 1 for all.",
                .run = &RunStatus,
                .privileges = &privileges::OnExpiryTarget<Action::viewExpiry>});
  registry.Add(
      {.name = "ttlForecast",
       .flags = kReadOnly | kSecondaryOk | kWorker,
       .help = "How many documents of a collection (or, with 1, of all) will expire when, by rule.",
       .run = &RunForecast,
       .privileges = &privileges::OnExpiryTarget<Action::viewExpiry>});
}

}  // namespace mayfly
