#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

void AppendOne(const ParameterRow& row, bool details, BsonBuilder& reply) {
  if (!details) return row.get(reply, row.name);
  BsonBuilder d = reply.OpenDocument(row.name);
  row.get(d, "value");
  d.Append("settableAtRuntime", row.set && row.at_runtime)
      .Append("settableAtStartup", row.set && row.at_startup);
}

Result<void> GetParameter(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  bool all = false, details = false;
  std::optional<bool> runtime, startup;
  const BsonValue first = req.fields[0].value;
  if (first.IsString() && first.String() == "*") all = true;
  if (first.IsDocument()) {
    ArgReader in("getParameter", first.Document());
    all = in.LooseBoolOr("allParameters", false);
    details = in.LooseBoolOr("showDetails", false);
    const std::string_view set_at = in.StringOr("setAt");
    if (!set_at.empty() && set_at != "runtime" && set_at != "startup")
      in.Fail({ErrorCode::kBadValue, "Enumeration value '" + std::string(set_at) +
                                         "' for field 'getParameter.setAt' is not a valid value."});
    if (set_at == "runtime") runtime = true;
    if (set_at == "startup") startup = true;
    MAYFLY_TRY(in.Finish());
  }
  bool any = false;
  auto shown = [&](const ParameterRow& r) {
    return (!runtime || (r.set && r.at_runtime)) && (!startup || (r.set && r.at_startup));
  };
  if (all) {
    for (const ParameterRow* r : ctx.server.parameters().All()) {
      if (!shown(*r)) continue;
      AppendOne(*r, details, reply);
      any = true;
    }
  } else {
    for (size_t i = 1; i < req.fields.size(); ++i) {
      if (req.fields[i].generic) continue;
      const ParameterRow* r = ctx.server.parameters().Find(req.fields[i].name);
      if (r == nullptr || !shown(*r)) continue;
      AppendOne(*r, details, reply);
      any = true;
    }
  }
  if (!any) return Error{ErrorCode::kInvalidOptions, "no option found to get"};
  return Ok();
}

Result<void> SetParameter(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  // Names first: one that is wrong changes nothing.
  std::vector<const CommandField*> given;
  for (size_t i = 1; i < req.fields.size(); ++i)
    if (!req.fields[i].generic) given.push_back(&req.fields[i]);
  if (given.empty())
    return Error{ErrorCode::kInvalidOptions,
                 "no option found to set, use help:true to see options "};
  if (given.size() > 1)
    for (const CommandField* f : given)
      if (ctx.server.parameters().Find(f->name) == nullptr)
        return ctx.server.parameters().Set(f->name, f->value, false, nullptr);
  for (size_t i = 0; i < given.size(); ++i) {
    // Parameters of expiry and of the logs are audited.
    const bool audited = given[i]->name.starts_with("ttl") ||
                         given[i]->name == "metadataPurgeIntervalSecs" ||
                         given[i]->name == "redactClientLogData";
    const bool audit_itself = ConfiguresAudit(given[i]->name);
    if (audited) {
      MAYFLY_TRY(CheckAudit(ctx.server));
    }
    const BsonDocument audit_was = audit_itself ? AuditConfiguration(ctx.server) : BsonDocument();
    const BsonDocument old = audited ? BuildBson([&](BsonBuilder& b) {
      const ParameterRow* row = ctx.server.parameters().Find(given[i]->name);
      if (row && row->get) row->get(b, "old");
    })
                                     : BsonDocument();
    MAYFLY_TRY(ctx.server.parameters().Set(given[i]->name, given[i]->value, false,
                                           i == 0 ? &reply : nullptr));
    if (audited)
      Audit(ctx, "setParameter", [&](BsonBuilder& p) {
        p.Append("parameter", given[i]->name).AppendAll(old).Append("new", given[i]->value);
      });
    if (audit_itself) AuditConfigured(ctx, audit_was, AuditConfiguration(ctx.server));
    ctx.data.log().Write(
        LogSeverity::kInfo, LogComponent::kControl, 23435, "Successfully set parameter",
        BuildBson([&](BsonBuilder& b) {
          b.Append("parameterName", given[i]->name).Append("newValue", given[i]->value);
        }),
        ctx.client ? std::string_view(ctx.client->desc) : std::string_view());
  }
  return Ok();
}

}  // namespace

void RegisterGetParameter(CommandRegistry& registry) {
  registry.Add({.name = "getParameter",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Server parameters: {getParameter: 1, name: 1} or {getParameter: '*'}.",
                .run = &GetParameter,
                .privileges = &privileges::OnCluster<Action::getParameter>});
}

void RegisterSetParameter(CommandRegistry& registry) {
  registry.Add({.name = "setParameter",
                .flags = kAdminOnly | kSecondaryOk,
                .help = "Sets a server parameter and answers what it was.",
                .run = &SetParameter,
                .privileges = &privileges::OnCluster<Action::setParameter>});
}

}  // namespace mayfly
