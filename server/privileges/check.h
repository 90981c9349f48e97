#pragma once
#include <string_view>

#include "query/expression/parse_work.h"
#include "server/dispatch/authorization.h"

namespace mayfly::privileges {

/// Unauthorized 13: "not authorized on <db> to execute command { … }", with the command shortened
/// and its secrets taken out.
Error NotAuthorized(const AuthorizationRequest& r);

/// Only a refusal pays for the message, which has to go through the command.
inline Result<void> Decide(bool allowed, const AuthorizationRequest& r) {
  if (allowed) [[likely]]
    return Ok();
  return NotAuthorized(r);
}

/// The command's first field as the name of a collection. Empty if it is no text: the check is then
/// on the whole database, and the command reports the error in its argument.
inline std::string_view FirstText(const CommandRequest& req) {
  return !req.fields.empty() && req.fields[0].value.IsString() ? req.fields[0].value.String()
                                                               : std::string_view();
}

/// The first field of this name, as commands read it; missing if there is none.
inline BsonValue Field(const CommandRequest& req, std::string_view name) {
  for (const CommandField& f : req.fields)
    if (f.name == name) return f.value;
  return {};
}

/// A field that asks for something: there, and neither null, false nor 0.
inline bool Given(const CommandRequest& req, std::string_view name) {
  return Field(req, name).Truthy();
}

/// `f(BsonView)` for each document of an array field and of a document sequence of this name, until
/// it answers false. A command reads one of the two. Also false when the operation is interrupted,
/// which is then the answer whatever is decided (Dispatcher::DecideNow).
template <class F>
[[nodiscard]] bool ForEachDocument(const CommandRequest& req, std::string_view name, F&& f) {
  if (const DocumentSequence* s = req.Sequence(name))
    for (BsonView d : s->documents)
      if (!ParseWork::Step() || !f(d)) return false;
  if (const BsonValue list = Field(req, name); list.IsArray())
    for (const BsonElement& e : list.Document())
      if (!ParseWork::Step() || (e.value.IsDocument() && !f(e.value.Document()))) return false;
  return true;
}

/// Adds the action that a request with `rawData: true` needs besides the others.
inline ActionSet WithRaw(const CommandRequest& req, ActionSet actions) {
  if (req.generic.raw_data) actions.Add(Action::performRawDataOperations);
  return actions;
}

/// Any logged-in user: the command shows or changes only the client's own data.
Result<void> LoggedIn(const AuthorizationRequest& r);

/// The actions on the cluster.
template <Action... kActions>
Result<void> OnCluster(const AuthorizationRequest& r) {
  return Decide(r.privileges.AllowsOnCluster(ActionSet{kActions...}), r);
}

/// … on the database that the command was sent to.
template <Action... kActions>
Result<void> OnDatabase(const AuthorizationRequest& r) {
  return Decide(r.privileges.Allows(r.req.db, {}, ActionSet{kActions...}), r);
}

/// … on the collection that the command's first field names.
template <Action... kActions>
Result<void> OnCollection(const AuthorizationRequest& r) {
  const ActionSet actions = WithRaw(r.req, ActionSet{kActions...});
  return Decide(r.privileges.Allows(r.req.db, FirstText(r.req), actions), r);
}

/// … on the resource of an expiry command: a collection, or for 1 the database, or the cluster if
/// the command was sent to `admin`. An action on the cluster covers all of them.
template <Action... kActions>
Result<void> OnExpiryTarget(const AuthorizationRequest& r) {
  constexpr ActionSet kSet{kActions...};
  if (r.privileges.AllowsOnCluster(kSet)) return Ok();
  const std::string_view collection = FirstText(r.req);
  if (collection.empty() && r.req.db == "admin") return NotAuthorized(r);
  return Decide(r.privileges.Allows(r.req.db, collection, kSet), r);
}

}  // namespace mayfly::privileges
