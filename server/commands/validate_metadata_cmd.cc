#include "server/commands/aggregate_args.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// {validateDBMetadata: 1, apiParameters: {version, strict, deprecationErrors}, db, collections}:
/// metadata that the API version does not have (manual: validateDBMetadata): sparse indexes and
/// stages of views, when strict.
Result<void> ValidateMetadata(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  constexpr size_t kMaxBytes = 4 << 20;
  ArgReader in(req);
  const BsonView parameters = in.Document("apiParameters");
  // check_names: only compared
  const auto db = in.OptString("db");
  const auto only = in.OptArray("collections");
  MAYFLY_TRY(in.Finish());
  ArgReader api("validateDBMetadata.apiParameters", parameters);
  const std::string_view version = api.String("version");
  const bool strict = api.BoolOr("strict", false);
  api.BoolOr("deprecationErrors", false);  // unused: nothing of the metadata is deprecated
  MAYFLY_TRY(api.Finish());
  if (version != "1") return Error{ErrorCode::kAPIVersionError, "API version must be \"1\""};
  auto wanted = [&](const CollectionInfo& coll) {
    if (db && coll.db != *db) return false;
    if (!only) return true;
    for (const BsonElement& e : *only)
      if (e.value.IsString() && e.value.String() == coll.name) return true;
    return false;
  };
  BsonArrayBuilder errors = reply.OpenArray("apiVersionErrors");
  size_t bytes = 0;
  bool more = false;
  auto add = [&](const CollectionInfo& coll, const Error& error) {
    if ((bytes += coll.ns.size() + error.message.size() + 100) > kMaxBytes) {
      more = true;
      return;
    }
    BsonBuilder e = errors.OpenDocument();
    e.Append("ns", coll.ns)
        .Append("code", static_cast<int32_t>(error.code))
        .Append("codeName", ErrorCodeName(error.code))
        .Append("errmsg", error.message);
  };
  if (strict)
    for (const CollectionInfoPtr& coll : ctx.data.storage().catalog().ListAll()) {
      MAYFLY_TRY(ctx.op.CheckInterrupt());
      if (!wanted(*coll)) continue;
      if (coll->is_view()) {
        if (auto ok = CheckStrictStages(coll->view_pipeline.view()); !ok) add(*coll, ok.error());
        continue;
      }
      for (const IndexInfoPtr& index : coll->indexes)
        if (index->sparse)
          add(*coll, {ErrorCode::kAPIStrictError,
                      "The index with name " + index->name + " is not allowed in API version 1."});
    }
  errors.Done();
  reply.Append("hasMoreErrors", more);
  return Ok();
}

}  // namespace

void RegisterValidateMetadata(CommandRegistry& registry) {
  registry.Add({.name = "validateDBMetadata",
                .flags = kReadOnly | kSecondaryOk | kWorker,
                .help = "What of the metadata is not in a version of the stable API.",
                .run = &ValidateMetadata,
                .privileges = &privileges::ValidateDBMetadata});
}

}  // namespace mayfly
