#include "security/privilege_set.h"

namespace mayfly {

namespace {

constexpr std::string_view kBuckets = "system.buckets.";

/// The resource {db: "", collection: ""} covers ordinary databases only.
bool IsOrdinaryDatabase(std::string_view db) { return !IsConfigOrLocal(db); }

}  // namespace

PrivilegeSet::PrivilegeSet(const std::vector<Privilege>& privileges) {
  for (const Privilege& p : privileges) {
    const Resource& r = p.resource;
    switch (r.kind) {
      case Resource::Kind::kAny:
        any_ |= p.actions;
        break;
      case Resource::Kind::kCluster:
        cluster_ |= p.actions;
        break;
      case Resource::Kind::kBuckets:
        buckets_[{r.db, r.collection}] |= p.actions;
        has_buckets_ = true;
        break;
      case Resource::Kind::kCollection:
        if (r.db.empty() && r.collection.empty())
          normal_ |= p.actions;
        else if (r.collection.empty())
          databases_[r.db] |= p.actions;
        else if (r.db.empty())
          collections_[r.collection] |= p.actions;
        else
          exact_[{r.db, r.collection}] |= p.actions;
        break;
    }
  }
}

const PrivilegeSet& PrivilegeSet::Everything() {
  static const PrivilegeSet set({{Resource::Any(), ActionSet::All()}});
  return set;
}

ActionSet PrivilegeSet::On(std::string_view db, std::string_view collection) const {
  ActionSet allowed = any_;
  if (!IsSystemCollection(db, collection)) {
    if (IsOrdinaryDatabase(db)) allowed |= normal_;
    if (!databases_.empty())
      if (const auto at = databases_.find(db); at != databases_.end()) allowed |= at->second;
  }
  if (collection.empty()) return allowed;
  if (!collections_.empty())
    if (const auto at = collections_.find(collection); at != collections_.end())
      allowed |= at->second;
  if (!exact_.empty())
    if (const auto at = exact_.find(std::pair(db, collection)); at != exact_.end())
      allowed |= at->second;
  if (has_buckets_ && collection.starts_with(kBuckets)) {
    const std::string_view of = collection.substr(kBuckets.size());
    for (const auto& key :
         {std::pair(db, of), std::pair(db, std::string_view()), std::pair(std::string_view(), of),
          std::pair(std::string_view(), std::string_view())})
      if (const auto at = buckets_.find(key); at != buckets_.end()) allowed |= at->second;
  }
  return allowed;
}

bool PrivilegeSet::Allows(const Resource& resource, const ActionSet& actions) const {
  if (any_.HasAll(actions)) return true;
  switch (resource.kind) {
    case Resource::Kind::kAny:
      return false;
    case Resource::Kind::kCluster:
      return AllowsOnCluster(actions);
    case Resource::Kind::kBuckets: {
      ActionSet allowed = any_;
      for (const auto& key :
           {std::pair<std::string_view, std::string_view>(resource.db, resource.collection),
            std::pair<std::string_view, std::string_view>(resource.db, ""),
            std::pair<std::string_view, std::string_view>("", resource.collection),
            std::pair<std::string_view, std::string_view>("", "")})
        if (const auto at = buckets_.find(key); at != buckets_.end()) allowed |= at->second;
      return allowed.HasAll(actions);
    }
    case Resource::Kind::kCollection:
      break;
  }
  if (!resource.db.empty()) return On(resource.db, resource.collection).HasAll(actions);
  // On all databases: a grant on a single one does not count.
  ActionSet allowed = any_;
  if (resource.collection.empty() || !IsSystemCollection("", resource.collection))
    allowed |= normal_;
  if (!resource.collection.empty())
    if (const auto at = collections_.find(resource.collection); at != collections_.end())
      allowed |= at->second;
  return allowed.HasAll(actions);
}

bool PrivilegeSet::AllowsSomewhereIn(std::string_view db, const ActionSet& actions) const {
  if (On(db, "").HasAny(actions)) return true;
  for (const auto& [name, allowed] : collections_)
    if (allowed.HasAny(actions)) return true;
  for (const auto& [name, allowed] : exact_)
    if (name.first == db && allowed.HasAny(actions)) return true;
  for (const auto& [name, allowed] : buckets_)
    if ((name.first == db || name.first.empty()) && allowed.HasAny(actions)) return true;
  return false;
}

}  // namespace mayfly
