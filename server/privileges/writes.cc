#include <boost/container/small_vector.hpp>

#include "server/dispatch/arg_reader.h"
#include "server/privileges/privileges.h"
#include "server/privileges/text.h"
#include "storage/catalog/namespace.h"

namespace mayfly::privileges {

namespace {

/// Adds the action that bypasses validation, if the command asks for that.
ActionSet WithBypass(const CommandRequest& req, ActionSet actions) {
  if (Given(req, "bypassDocumentValidation")) actions.Add(Action::bypassDocumentValidation);
  return actions;
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
  boost::container::small_vector<std::pair<std::string_view, ActionSet>, 8> namespaces;
  ForEachDocument(r.req, "nsInfo", [&](BsonView info) {
    const BsonValue ns = info["ns"];
    namespaces.emplace_back(Text(ns), WithBypass(r.req, {}));
    return true;
  });
  ForEachDocument(r.req, "ops", [&](BsonView op) {
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
  });
  for (const auto& [ns, actions] : namespaces) {
    const NamespaceParts parts = SplitNamespace(ns);
    if (!r.privileges.Allows(parts.db, parts.collection, actions)) return NotAuthorized(r);
  }
  return Ok();
}

ActionSet ApplyOpsActions(char op, bool upsert) {
  // An insert replaces an existing document, and is not validated.
  if (op == 'i') return {Action::insert, Action::update, Action::bypassDocumentValidation};
  if (op == 'd') return {Action::remove};
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

  bool Entry(BsonView entry) const {
    const BsonValue op = entry["op"], o = entry["o"], ns = entry["ns"];
    // Something that is not an entry is refused by the command before the first entry is applied.
    if (!op.IsString() || op.String().size() != 1 || !o.IsDocument() || !ns.IsString()) return true;
    const NamespaceParts parts = SplitNamespace(Text(ns));
    const bool by_uuid = !entry["ui"].missing();
    const char kind = Text(op)[0];
    switch (kind) {
      case 'i':
      case 'u':
      case 'd':
        if (by_uuid && !r_.privileges.AllowsOnCluster({Action::useUUID})) return false;
        return r_.privileges.Allows(parts.db, parts.collection, ApplyOpsActions(kind, upsert_));
      case 'c':
        return Command(parts.db, o.Document(), by_uuid);
      default:
        return true;
    }
  }

 private:
  bool Command(std::string_view db, BsonView command, bool by_uuid) const {
    const BsonElement first = command.First();
    if (first.name == "applyOps") {
      if (first.value.IsArray())
        for (const BsonElement& e : first.value.Document())
          if (e.value.IsDocument() && !Entry(e.value.Document())) return false;
      return true;
    }
    if (first.name == "startIndexBuild" || first.name == "abortIndexBuild") return true;
    if (first.name == "create" && by_uuid && !r_.privileges.AllowsOnCluster({Action::forceUUID}))
      return false;
    constexpr std::pair<std::string_view, Result<void> (*)(const AuthorizationRequest&)> kNeeds[] =
        {{"collMod", &CollMod},
         {"commitIndexBuild", &OnCollection<Action::createIndex>},
         {"create", &Create},
         {"createIndexes", &CreateIndexes},
         {"deleteIndexes", &OnCollection<Action::dropIndex>},
         {"drop", &OnCollection<Action::dropCollection>},
         {"dropDatabase", &OnDatabase<Action::dropDatabase>},
         {"dropIndexes", &OnCollection<Action::dropIndex>},
         {"renameCollection", &RenameCollection}};
    for (const auto& [name, needs] : kNeeds) {
      if (name != first.name) continue;
      CommandRequest sub;
      sub.db = db;
      if (!ParseCommandFields(command, &sub)) return false;
      return needs({sub, r_.privileges, r_.user}).has_value();
    }
    return true;  // the command refuses all other kinds
  }

  const AuthorizationRequest& r_;
  bool upsert_ = true;
};

}  // namespace

Result<void> ApplyOps(const AuthorizationRequest& r) {
  if (!r.privileges.AllowsOnCluster({Action::applyOps})) return NotAuthorized(r);
  const OplogCheck check(r);
  return Decide(ForEachDocument(r.req, "applyOps", [&](BsonView e) { return check.Entry(e); }), r);
}

}  // namespace mayfly::privileges
