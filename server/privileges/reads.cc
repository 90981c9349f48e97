#include <string>

#include "server/dispatch/inner_requests.h"
#include "server/privileges/pipeline_privileges.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/namespace.h"

namespace mayfly::privileges {

Result<void> Find(const AuthorizationRequest& r) {
  ActionSet actions{Action::find};
  if (Given(r.req, "includeExpired")) actions.Add(Action::readExpired);
  return Decide(r.privileges.Allows(r.req.db, FirstText(r.req), WithRaw(r.req, actions)), r);
}

Result<void> Aggregate(const AuthorizationRequest& r) {
  const BsonValue pipeline = Field(r.req, "pipeline");
  const PipelineUse use{.logged_in = r.user != nullptr,
                        .user = r.user,
                        .include_expired = Given(r.req, "includeExpired"),
                        .bypass_validation = Given(r.req, "bypassDocumentValidation")};
  const std::string_view collection = FirstText(r.req);
  if (r.req.generic.raw_data && !r.privileges.Allows(r.req.db, collection, WithRaw(r.req, {})))
    return NotAuthorized(r);
  return Decide(AllowsPipeline(r.privileges, r.req.db, collection,
                               pipeline.IsArray() ? pipeline.Document() : BsonView(), use),
                r);
}

Result<void> DataSize(const AuthorizationRequest& r) {
  const NamespaceParts ns = SplitNamespace(FirstText(r.req));
  return Decide(r.privileges.Allows(ns.db, ns.collection, {Action::find}), r);
}

Result<void> FileMd5(const AuthorizationRequest& r) {
  const BsonValue root = Field(r.req, "root");
  std::string chunks = root.IsString() ? std::string(root.String()) : "fs";
  chunks += ".chunks";
  return Decide(r.privileges.Allows(r.req.db, chunks, {Action::find}), r);
}

Result<void> Explain(const AuthorizationRequest& r) {
  const InnerRequests& inner = InnerRequests::Of(r.req);
  // A command that cannot be read or explained is refused later, with its own error.
  if (inner.explained == nullptr) return LoggedIn(r);
  const CommandRequest& sub = inner.explained->request;
  const AuthorizationRequest of{sub, r.privileges, r.user};
  constexpr std::pair<std::string_view, Result<void> (*)(const AuthorizationRequest&)> kNeeds[] = {
      {"aggregate", &Aggregate},
      {"count", &OnCollection<Action::find>},
      {"delete", &OnCollection<Action::remove>},
      {"distinct", &OnCollection<Action::find>},
      {"find", &Find},
      {"findAndModify", &FindAndModify},
      {"findandmodify", &FindAndModify},
      {"update", &Update}};
  for (const auto& [name, needs] : kNeeds)
    if (name == sub.name) return Decide(needs(of).has_value(), r);
  return LoggedIn(r);
}

}  // namespace mayfly::privileges
