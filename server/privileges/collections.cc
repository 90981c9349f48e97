#include <utility>

#include "server/privileges/pipeline_privileges.h"
#include "server/privileges/privileges.h"
#include "server/privileges/text.h"
#include "storage/catalog/namespace.h"

namespace mayfly::privileges {

namespace {

/// A user who sets an archive for expired documents must have the right to write to the archive,
/// where documents with the same _id are replaced, to read the collection: as with a copy, others
/// may read its documents there; and to remove from it: documents leave it when the rule says so.
/// `creates`: the collection is made with it, as in a restored dump. Who restores reads nothing,
/// and could drop and fill both collections anyway, so that is enough, with the right to set rules.
/// But not for who can read the archive: it would show what others write to the collection.
bool AllowsArchive(const AuthorizationRequest& r, std::string_view name, BsonValue on_expire,
                   bool creates) {
  if (!on_expire.IsDocument()) return true;
  for (const BsonElement& into : on_expire.Document()) {
    if (into.name != "into" || !into.value.IsDocument()) continue;
    std::string_view db, collection;
    for (const BsonElement& e : into.value.Document()) {
      if (!e.value.IsString()) continue;
      if (e.name == "db") db = Text(e.value);
      if (e.name == "coll") collection = Text(e.value);
    }
    const auto has = [&](ActionSet here, ActionSet there) {
      return r.privileges.Allows(r.req.db, name, here) &&
             r.privileges.Allows(db, collection, there);
    };
    const bool restores = creates &&
                          has({Action::changeExpiry, Action::createCollection,
                               Action::dropCollection, Action::insert},
                              {Action::dropCollection, Action::insert}) &&
                          !r.privileges.Allows(db, collection, {Action::find});
    if (!restores && !has({Action::find, Action::remove}, {Action::insert, Action::update}))
      return false;
  }
  return true;
}

/// Checks viewOn and pipeline of create and collMod. If the command has neither, nothing is
/// required.
bool AllowsView(const AuthorizationRequest& r, std::string_view name) {
  const BsonValue on = Field(r.req, "viewOn"), pipeline = Field(r.req, "pipeline");
  if (on.IsNullish() && pipeline.IsNullish()) return true;
  return AllowsViewOf(r.privileges, r.req.db, name, on.IsString() ? on.String() : name,
                      pipeline.IsArray() ? pipeline.Document() : BsonView());
}

}  // namespace

Result<void> Create(const AuthorizationRequest& r) {
  const std::string_view name = FirstText(r.req);
  const auto has = [&](ActionSet actions) { return r.privileges.Allows(r.req.db, name, actions); };
  if (!AllowsArchive(r, name, Field(r.req, "onExpire"), true)) return NotAuthorized(r);
  // A database's settings in a restored dump.
  if (const BsonValue expiry = Field(r.req, "expiry");
      expiry.IsDocument() && expiry.Document().Has("databaseMaxTTL") &&
      !r.privileges.Allows(r.req.db, {}, {Action::changeExpiry}))
    return NotAuthorized(r);
  if (!Field(r.req, "viewOn").IsNullish())
    return Decide(has({Action::createCollection}) && AllowsView(r, name), r);
  if (Given(r.req, "capped"))
    return Decide(has({Action::createCollection, Action::convertToCapped}), r);
  // A user who may insert may also create the collection, because the first insert creates it.
  return Decide(has({Action::createCollection}) || has({Action::insert}), r);
}

Result<void> CreateIndexes(const AuthorizationRequest& r) {
  ActionSet actions{Action::createIndex};
  // Reveals how many documents match the user's filter, and their oldest date.
  if (Given(r.req, "dryRun")) actions.Add(Action::find);
  return Decide(r.privileges.Allows(r.req.db, FirstText(r.req), WithRaw(r.req, actions)), r);
}

Result<void> ListIndexes(const AuthorizationRequest& r) {
  const bool by_uuid = !r.req.fields.empty() && r.req.fields[0].value.Is(BsonType::kBinary);
  // Whose buckets they are it does not say, so it takes the right to those of the database.
  if (by_uuid && r.req.generic.raw_data &&
      !r.privileges.Allows(r.req.db, {}, {Action::performRawDataOperations}))
    return NotAuthorized(r);
  if (by_uuid) return Decide(r.privileges.AllowsOnCluster({Action::useUUID}), r);
  return OnCollection<Action::listIndexes>(r);
}

Result<void> CollMod(const AuthorizationRequest& r) {
  const std::string_view name = FirstText(r.req);
  const BsonValue on_expire = Field(r.req, "onExpire");
  ActionSet actions{Action::collMod};
  // These options are Mayfly's own. expireAfterSeconds requires only collMod, as on MongoDB.
  if (!on_expire.missing() || !Field(r.req, "expiry").missing()) actions.Add(Action::changeExpiry);
  // As for CreateIndexes; MongoDB's own dryRun, of an index that becomes unique, needs no more.
  const BsonValue index = Field(r.req, "index");
  if (Given(r.req, "dryRun") &&
      (!Field(r.req, "expireAfterSeconds").missing() ||
       (index.IsDocument() && index.Document().Has("expireAfterSeconds"))))
    actions.Add(Action::find);
  return Decide(r.privileges.Allows(r.req.db, name, actions) &&
                    AllowsArchive(r, name, on_expire, false) && AllowsView(r, name),
                r);
}

Result<void> CloneCollectionAsCapped(const AuthorizationRequest& r) {
  const BsonValue to = Field(r.req, "toCollection");
  return Decide(
      r.privileges.Allows(r.req.db, FirstText(r.req), {Action::find}) &&
          r.privileges.Allows(r.req.db, Text(to),
                              {Action::insert, Action::createCollection, Action::convertToCapped}),
      r);
}

/// Within one database, renameCollectionSameDB is enough if the user does not gain read access by
/// it (manual: "renameCollectionSameDB"). Everything else, and any rename across databases, needs
/// the privileges of a copy and a drop.
Result<void> RenameCollection(const AuthorizationRequest& r) {
  const BsonValue to = Field(r.req, "to");
  const NamespaceParts source = SplitNamespace(FirstText(r.req));
  const NamespaceParts target = SplitNamespace(Text(to));
  const bool drops = Given(r.req, "dropTarget");
  const auto from = [&](ActionSet a) {
    return r.privileges.Allows(source.db, source.collection, a);
  };
  const auto into = [&](ActionSet a) {
    return r.privileges.Allows(target.db, target.collection, a);
  };
  // A grant on a database does not cover its system collections.
  if (source.db == target.db && from({Action::renameCollectionSameDB}) &&
      into({Action::renameCollectionSameDB}) && (from({Action::find}) || !into({Action::find})))
    return Decide(!drops || into({Action::dropCollection}), r);
  ActionSet writes{Action::insert, Action::createIndex};
  if (drops) writes.Add(Action::dropCollection);
  return Decide(from({Action::find, Action::dropCollection}) && into(writes), r);
}

Result<void> ListCollections(const AuthorizationRequest& r) {
  if (r.req.generic.raw_data &&
      !r.privileges.Allows(r.req.db, {}, {Action::performRawDataOperations}))
    return NotAuthorized(r);
  if (r.privileges.Allows(r.req.db, {}, {Action::listCollections})) return Ok();
  // With it, the command lists only the collections on which the user has any privilege, and only
  // their names.
  return Decide(
      r.user != nullptr && Given(r.req, "nameOnly") && Given(r.req, "authorizedCollections"), r);
}

Result<void> ListDatabases(const AuthorizationRequest& r) {
  if (r.privileges.AllowsOnCluster({Action::listDatabases})) return Ok();
  // The command lists only the databases on which the user has any privilege.
  const BsonValue authorized = Field(r.req, "authorizedDatabases");
  return Decide(r.user != nullptr && (authorized.IsNullish() || authorized.Truthy()), r);
}

Result<void> ValidateDBMetadata(const AuthorizationRequest& r) {
  const BsonValue db = Field(r.req, "db");
  if (db.IsString()) return Decide(r.privileges.Allows(db.String(), {}, {Action::validate}), r);
  return Decide(r.privileges.Allows(Resource::Database(""), {Action::validate}), r);
}

}  // namespace mayfly::privileges
