#include "security/privilege.h"

#include <algorithm>

#include "protocol/field_once.h"
#include "protocol/utf8.h"

namespace mayfly {

namespace {

Error Unreadable(std::string what) { return {ErrorCode::kFailedToParse, std::move(what)}; }

std::string Shown(std::string_view text) { return PrintableUtf8(text.substr(0, 128)); }

/// The name may be empty, and it may name a database that does not exist.
Result<std::string> ResourceName(const BsonElement& e) {
  if (!e.value.IsString())
    return Error{ErrorCode::kTypeMismatch, "'" + std::string(e.name) +
                                               "' of a resource must be a string, not " +
                                               std::string(BsonTypeName(e.value.type()))};
  const std::string_view s = e.value.String();
  if (s.size() > 255 || s.find('\0') != std::string_view::npos || !IsUtf8(s))
    return Unreadable("'" + std::string(e.name) +
                      "' of a resource must be at most 255 bytes of UTF-8 without NUL");
  return std::string(s);
}

}  // namespace

Result<Resource> ParseResource(BsonValue value) {
  if (!value.IsDocument())
    return Error{ErrorCode::kTypeMismatch, "'resource' of a privilege must be a document"};
  bool db = false, collection = false, buckets = false, cluster = false, any = false;
  Resource r;
  constexpr std::string_view kFields[] = {"db", "collection", "system_buckets", "cluster",
                                          "anyResource"};
  unsigned seen = 0;
  for (const BsonElement& e : value.Document()) {
    MAYFLY_TRY(FieldOnce("resource", kFields, e.name, &seen));
    if (e.name == "db") {
      db = true;
      MAYFLY_TRY(r.db, ResourceName(e));
    } else if ((e.name == "collection" || e.name == "system_buckets") && !collection && !buckets) {
      (e.name == "collection" ? collection : buckets) = true;
      MAYFLY_TRY(r.collection, ResourceName(e));
    } else if (e.name == "cluster" || e.name == "anyResource") {
      if (!e.value.Is(BsonType::kBool) || !e.value.Bool())
        return Unreadable("'" + std::string(e.name) + "' of a resource must be true");
      (e.name == "cluster" ? cluster : any) = true;
    } else {
      return Unreadable("'" + Shown(e.name) +
                        "' is no field of a resource, or stands beside another");
    }
  }
  if (cluster + any + (db || collection || buckets) != 1 || (db != (collection || buckets)))
    return Unreadable(
        "a resource is {db: , collection: }, {db: , system_buckets: }, {cluster: true} or "
        "{anyResource: true}");
  if (cluster) r.kind = Resource::Kind::kCluster;
  if (any) r.kind = Resource::Kind::kAny;
  if (buckets) r.kind = Resource::Kind::kBuckets;
  return r;
}

Result<Privilege> ParsePrivilege(BsonValue value) {
  if (!value.IsDocument()) return Error{ErrorCode::kTypeMismatch, "a privilege must be a document"};
  Privilege p;
  bool resource = false, actions = false;
  constexpr std::string_view kFields[] = {"resource", "actions"};
  unsigned seen = 0;
  for (const BsonElement& e : value.Document()) {
    MAYFLY_TRY(FieldOnce("privilege", kFields, e.name, &seen));
    if (e.name == "resource") {
      resource = true;
      MAYFLY_TRY(p.resource, ParseResource(e.value));
    } else if (e.name == "actions") {
      actions = true;
      if (!e.value.IsArray())
        return Error{ErrorCode::kTypeMismatch, "'actions' of a privilege must be an array"};
      for (const BsonElement& a : e.value.Document()) {
        if (!a.value.IsString())
          return Error{ErrorCode::kTypeMismatch, "an action must be a string"};
        if (a.value.String() == "anyAction") {
          p.actions = ActionSet::All();
          continue;
        }
        const auto action = FindAction(a.value.String());
        if (!action)
          return Error{ErrorCode::kBadValue,
                       "Unrecognized action privilege strings: " + Shown(a.value.String())};
        p.actions.Add(*action);
      }
    } else {
      return Unreadable("'" + Shown(e.name) + "' is no field of a privilege");
    }
  }
  if (!resource || !actions)
    return Unreadable("a privilege needs the fields 'resource' and 'actions'");
  if (p.actions.empty())
    return Unreadable("'actions' of a privilege must name at least one action");
  return p;
}

Result<std::vector<Privilege>> ParsePrivileges(BsonValue value) {
  if (!value.IsArray()) return Error{ErrorCode::kTypeMismatch, "'privileges' must be an array"};
  std::vector<Privilege> all;
  for (const BsonElement& e : value.Document()) {
    if (all.size() == kMaxPrivileges)
      return Error{ErrorCode::kBadValue,
                   "a role has at most 10,000 privileges: use resources of whole databases"};
    MAYFLY_TRY(auto p, ParsePrivilege(e.value));
    all.push_back(std::move(p));
  }
  UnitePrivileges(all);
  return all;
}

void AppendResource(BsonBuilder& out, std::string_view name, const Resource& resource) {
  BsonBuilder r = out.OpenDocument(name);
  switch (resource.kind) {
    case Resource::Kind::kCluster:
      r.Append("cluster", true);
      break;
    case Resource::Kind::kAny:
      r.Append("anyResource", true);
      break;
    case Resource::Kind::kCollection:
      r.Append("db", resource.db).Append("collection", resource.collection);
      break;
    case Resource::Kind::kBuckets:
      r.Append("db", resource.db).Append("system_buckets", resource.collection);
      break;
  }
}

void AppendPrivileges(BsonBuilder& out, std::string_view name,
                      const std::vector<Privilege>& privileges) {
  BsonArrayBuilder list = out.OpenArray(name);
  for (const Privilege& p : privileges) {
    BsonBuilder one = list.OpenDocument();
    AppendResource(one, "resource", p.resource);
    BsonArrayBuilder actions = one.OpenArray("actions");
    if (p.actions == ActionSet::All()) {
      actions.Append("anyAction");
      continue;
    }
    p.actions.ForEach([&](Action a) { actions.Append(ActionName(a)); });
  }
}

void AddPrivilege(std::vector<Privilege>& privileges, const Privilege& privilege) {
  for (Privilege& p : privileges)
    if (p.resource == privilege.resource) {
      p.actions |= privilege.actions;
      return;
    }
  privileges.push_back(privilege);
}

void UnitePrivileges(std::vector<Privilege>& privileges) {
  std::stable_sort(privileges.begin(), privileges.end(),
                   [](const Privilege& a, const Privilege& b) { return a.resource < b.resource; });
  size_t n = 0;
  for (size_t i = 0; i < privileges.size(); ++i) {
    if (n > 0 && privileges[n - 1].resource == privileges[i].resource) {
      privileges[n - 1].actions |= privileges[i].actions;
    } else {
      if (n != i) privileges[n] = std::move(privileges[i]);
      ++n;
    }
  }
  privileges.resize(n);
}

bool IsSystemCollection(std::string_view db, std::string_view collection) {
  return collection.starts_with("system.") || (db == "local" && collection.starts_with("replset."));
}

}  // namespace mayfly
