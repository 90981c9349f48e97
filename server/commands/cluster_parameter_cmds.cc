#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/command.h"
#include "server/dispatch/config.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"

namespace mayfly {
namespace {

/// {setClusterParameter: {name: {…}}}
Result<void> SetClusterParameter(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const BsonView given = in.Document("setClusterParameter");
  MAYFLY_TRY(in.Finish());
  if (given.Count() != 1)
    return Error{ErrorCode::kInvalidOptions, "setClusterParameter takes exactly one parameter"};
  const BsonElement e = given.First();
  auto value = [&] {
    return BuildBson([&](BsonBuilder& b) {
      BsonArrayBuilder list = b.OpenArray("parameters");
      // One without a value has no entry.
      (void)ctx.data.cluster_parameters().Append(ctx.data.storage(), ctx.data.replica_set(), e.name,
                                                 list);
    });
  };
  const BsonDocument before = value();
  MAYFLY_TRY(ctx.data.cluster_parameters().Set(ctx.data.storage(), ctx.data.replica_set(), ctx.op,
                                               e.name, e.value));
  const BsonDocument after = value();
  Audit(ctx, "setClusterParameter", [&](BsonBuilder& p) {
    auto side = [&](std::string_view name, BsonView list) {
      const BsonValue first = list["parameters"].Document().First().value;
      if (!first.missing()) p.Append(name, first);
    };
    side("originalClusterServerParameter", before);
    side("updatedClusterServerParameter", after);
  });
  return Ok();
}

/// {getClusterParameter: name | [names] | "*"}
Result<void> GetClusterParameter(CommandContext& ctx, const CommandRequest& req,
                                 BsonBuilder& reply) {
  ArgReader in(req);
  const BsonValue wanted = in.Any("getClusterParameter");
  in.LooseBoolOr("omitInFTDC", false);  // unused: what is for diagnostics is no secret here
  MAYFLY_TRY(in.Finish());
  std::vector<std::string_view> names;
  if (wanted.IsString() && wanted.String() == "*") {
    names = ClusterParameters::Names(ctx.data.replica_set());
  } else if (wanted.IsString()) {
    names.push_back(wanted.String());
  } else if (wanted.IsArray()) {
    for (const BsonElement& e : wanted.Document()) {
      if (!e.value.IsString())
        return in.WrongType("getClusterParameter." + std::string(e.name), e.value.type(), "string");
      names.push_back(e.value.String());
    }
    if (names.empty())
      return Error{ErrorCode::kBadValue,
                   "Must supply at least one cluster server parameter name to getClusterParameter"};
  } else {
    return in.WrongType("getClusterParameter", wanted.type(), "[string, array]");
  }
  Audit(ctx, "getClusterParameter",
        [&](BsonBuilder& p) { AppendAuditValue(p, "requestedClusterServerParameters", wanted); });
  BsonArrayBuilder list = reply.OpenArray("clusterParameters");
  for (std::string_view name : names) {
    MAYFLY_TRY(ctx.data.cluster_parameters().Append(ctx.data.storage(), ctx.data.replica_set(),
                                                    name, list));
  }
  return Ok();
}

/// The formats and behaviour of this server are one MongoDB release's and no other's, so there is
/// only one version to set; setting it changes nothing, as with MongoDB when it is the one in
/// force.
Result<void> SetFeatureCompatibilityVersion(CommandContext&, const CommandRequest& req,
                                            BsonBuilder&) {
  ArgReader in(req);
  const std::string_view version = in.String("setFeatureCompatibilityVersion");
  const bool confirmed = in.BoolOr("confirm", false);
  MAYFLY_TRY(in.Finish());
  const std::string_view own = kCompatibleVersion.substr(0, 3);
  if (version != own) {
    if (version == "7.0" || version == "7.3")
      return Error{ErrorCode::kIllegalOperation,
                   "cannot set featureCompatibilityVersion to '" + std::string(version) +
                       "': this server's data is not for other servers, so there is nothing to go "
                       "back to; it stays '" +
                       std::string(own) + "'"};
    return Error{LocationCode(4926900), "Invalid feature compatibility version value '" +
                                            std::string(version) + "', expected '" +
                                            std::string(own) + "'"};
  }
  if (!confirmed)
    return Error{LocationCode(7369100), "Once you have upgraded to " + std::string(own) +
                                            ", you will not be able to downgrade FCV and binary "
                                            "version without support assistance. Please "
                                            "re-run this command with 'confirm: true' to "
                                            "acknowledge this and continue with the FCV upgrade."};
  return Ok();
}

}  // namespace

void RegisterClusterParameters(CommandRegistry& registry) {
  registry.Add({.name = "getClusterParameter",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Parameters of the whole set: a name, a list of names, or '*'.",
                .run = &GetClusterParameter,
                .privileges = &privileges::OnCluster<Action::getClusterParameter>});
  registry.Add({.name = "setClusterParameter",
                .flags = kAdminOnly | kWrites | kWorker | kTakesWriteConcern,
                .help = "Sets a parameter of the whole set: {name: {…}}.",
                .run = &SetClusterParameter,
                .privileges = &privileges::OnCluster<Action::setClusterParameter>});
  registry.Add({.name = "setFeatureCompatibilityVersion",
                .flags = kAdminOnly | kWrites | kWorker | kTakesWriteConcern,
                .help = "The MongoDB release whose formats are in use: there is one.",
                .run = &SetFeatureCompatibilityVersion,
                .privileges = &privileges::OnCluster<Action::setFeatureCompatibilityVersion>});
}

}  // namespace mayfly
