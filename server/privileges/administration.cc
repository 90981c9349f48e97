#include "server/privileges/privileges.h"

#include "protocol/system_names.h"

namespace mayfly::privileges {

Result<void> CurrentOp(const AuthorizationRequest& r) {
  if (r.privileges.AllowsOnCluster({Action::inprog})) return Ok();
  return Decide(Given(r.req, "$ownOps") && r.user != nullptr, r);
}

Result<void> KillAllSessionsByPattern(const AuthorizationRequest& r) {
  ActionSet actions{Action::killAnySession};
  if (!r.req.fields.empty() && r.req.fields[0].value.IsArray())
    for (const BsonElement& e : r.req.fields[0].value.Document()) {
      MAYFLY_TRY(ParseWork::Step());
      if (!e.value.IsDocument()) continue;
      const BsonView pattern = e.value.Document();
      if (pattern.Has("users") || pattern.Has("roles")) actions.Add(Action::impersonate);
    }
  return Decide(r.privileges.AllowsOnCluster(actions), r);
}

/// A user who may read the profile may also read its settings.
Result<void> Profile(const AuthorizationRequest& r) {
  if (r.privileges.Allows(r.req.db, {}, {Action::enableProfiler})) return Ok();
  for (const CommandField& f : r.req.fields) {
    const bool asks = f.name == "profile" && f.value.IsNumber() && f.value.NumberAsDouble() == -1;
    if (!asks && !f.generic) return NotAuthorized(r);
  }
  return Decide(r.privileges.Allows(r.req.db, kProfileCollection, {Action::find}), r);
}

}  // namespace mayfly::privileges
