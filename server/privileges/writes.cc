#include <boost/container/small_vector.hpp>

#include "server/privileges/privileges.h"
#include "server/privileges/text.h"
#include "storage/catalog/namespace.h"

namespace mayfly::privileges {

namespace {

/// Adds the actions for what the command asks for besides: to bypass validation, and to work on the
/// buckets of a time series.
ActionSet WithBypass(const CommandRequest& req, ActionSet actions) {
  if (Given(req, "bypassDocumentValidation")) actions.Add(Action::bypassDocumentValidation);
  return WithRaw(req, actions);
}

/// Whether the statement sets `upsert`. If the field is repeated, one true value is enough.
bool Upserts(BsonView statement) {
  for (const BsonElement& e : statement)
    if (e.name == "upsert" && e.value.Truthy()) return true;
  return false;
}

}  // namespace

Result<void> Insert(const AuthorizationRequest& r) {
  const ActionSet actions = WithBypass(r.req, {Action::insert});
  return Decide(r.privileges.Allows(r.req.db, FirstText(r.req), actions), r);
}

Result<void> Update(const AuthorizationRequest& r) {
  ActionSet actions = WithBypass(r.req, {Action::update});
  const bool none = ForEachDocument(r.req, "updates", [](BsonView s) { return !Upserts(s); });
  if (!none) actions.Add(Action::insert);
  return Decide(r.privileges.Allows(r.req.db, FirstText(r.req), actions), r);
}

Result<void> FindAndModify(const AuthorizationRequest& r) {
  ActionSet actions = WithBypass(r.req, {Action::find});
  const bool removes = Given(r.req, "remove");
  if (removes) actions.Add(Action::remove);
  if (!removes || !Field(r.req, "update").missing()) actions.Add(Action::update);
  if (Upserts(r.req.body)) actions.Add(Action::insert);
  return Decide(r.privileges.Allows(r.req.db, FirstText(r.req), actions), r);
}

Result<void> BulkWrite(const AuthorizationRequest& r) {
  if (r.user == nullptr) return NotAuthorized(r);
  const ActionSet bypass = WithBypass(r.req, {});
  boost::container::small_vector<std::pair<std::string_view, ActionSet>, 8> namespaces;
  const auto name = [&](BsonView info) {
    const BsonValue ns = info["ns"];
    ParseWork::Made(2 * sizeof(namespaces[0]));
    namespaces.emplace_back(Text(ns), bypass);
    return true;
  };
  const auto note = [&](BsonView op) {
    const BsonElement first = op.First();
    // An operation that names no namespace is refused by the command, before any of them runs.
    const int64_t at = first.value.IsNumber() ? first.value.NumberAsInt64() : -1;
    if (at < 0 || static_cast<size_t>(at) >= namespaces.size()) return true;
    ActionSet& actions = namespaces[static_cast<size_t>(at)].second;
    if (first.name == "insert") actions.Add(Action::insert);
    if (first.name == "delete") actions.Add(Action::remove);
    if (first.name == "update") {
      actions.Add(Action::update);
      if (Upserts(op)) actions.Add(Action::insert);
    }
    return true;
  };
  // False: ended early. Names are missing then, and an operation on one of these would look like
  // one that names no namespace.
  if (!ForEachDocument(r.req, "nsInfo", name) || !ForEachDocument(r.req, "ops", note))
    return NotAuthorized(r);
  for (const auto& [ns, actions] : namespaces) {
    const NamespaceParts parts = SplitNamespace(ns);
    MAYFLY_TRY(ParseWork::Step());
    if (!r.privileges.Allows(parts.db, parts.collection, actions)) return NotAuthorized(r);
  }
  return Ok();
}

ActionSet ApplyOpsActions(OplogEntry::Kind kind, bool upsert) {
  // An insert replaces an existing document, and is not validated.
  if (kind == OplogEntry::Kind::kInsert)
    return {Action::insert, Action::update, Action::bypassDocumentValidation};
  if (kind == OplogEntry::Kind::kDelete) return {Action::remove};
  ActionSet actions{Action::update, Action::bypassDocumentValidation};
  if (upsert) actions.Add(Action::insert);
  return actions;
}

namespace {

/// Checks the entries of applyOps, and those of nested applyOps.
class OplogCheck {
 public:
  explicit OplogCheck(const AuthorizationRequest& r) : r_(r) {
    const BsonValue upsert = Field(r.req, "alwaysUpsert");
    upsert_ = upsert.IsNullish() || upsert.Truthy();
  }

  bool Entries(const std::vector<OplogEntry>& entries) const {
    for (const OplogEntry& e : entries)
      if (!ParseWork::Step() || !Entry(e)) return false;
    return true;
  }

 private:
  bool Entry(const OplogEntry& e) const {
    using Kind = OplogEntry::Kind;
    if (e.kind == Kind::kNoop) return true;
    // Which collection it names is not known here, and even an error tells whether there is one.
    const bool creates = e.kind == Kind::kCommand && e.o.First().name == "create";
    const Action uuid = creates ? Action::forceUUID : Action::useUUID;
    if (e.uuid && !r_.privileges.AllowsOnCluster({uuid})) return false;
    if (e.kind == Kind::kCommand) return Entries(e.nested) && Command(e);
    return r_.privileges.Allows(e.db, e.collection, ApplyOpsActions(e.kind, upsert_));
  }

  bool Command(const OplogEntry& e) const {
    // An entry without a command does nothing, or is refused when it is its turn.
    if (e.command == nullptr) return true;
    const CommandRequest& command = e.command->request;
    constexpr std::pair<std::string_view, Result<void> (*)(const AuthorizationRequest&)> kNeeds[] =
        {{"collMod", &CollMod},
         {"create", &Create},
         {"createIndexes", &CreateIndexes},
         {"deleteIndexes", &OnCollection<Action::dropIndex>},
         {"drop", &OnCollection<Action::dropCollection>},
         {"dropDatabase", &OnDatabase<Action::dropDatabase>},
         {"dropIndexes", &OnCollection<Action::dropIndex>},
         {"renameCollection", &RenameCollection}};
    for (const auto& [name, needs] : kNeeds)
      if (name == command.name) return needs({command, r_.privileges, r_.user}).has_value();
    return false;  // there is no other (InnerRequests)
  }

  const AuthorizationRequest& r_;
  bool upsert_ = true;
};

}  // namespace

Result<void> ApplyOps(const AuthorizationRequest& r) {
  if (!r.privileges.AllowsOnCluster({Action::applyOps})) return NotAuthorized(r);
  const InnerRequests& inner = InnerRequests::Of(r.req);
  // A list that cannot be read is refused by the command, before the first entry is applied.
  if (inner.error) return Ok();
  return Decide(OplogCheck(r).Entries(inner.entries), r);
}

}  // namespace mayfly::privileges
