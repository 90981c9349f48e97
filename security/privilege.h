#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"
#include "security/action.h"

namespace mayfly {

/// The resource of a privilege. In `kCollection` an empty name means "any", as in MongoDB: an
/// empty collection means all except the system's, an empty database all except `local` and
/// `config`.
struct Resource {
  enum class Kind : uint8_t { kCollection, kBuckets, kCluster, kAny };
  Kind kind = Kind::kCollection;
  std::string db, collection;  ///< kBuckets: of the time series' measurements

  /// One collection; an empty name means "any", as said above.
  static Resource Collection(std::string db, std::string collection) {
    return {Kind::kCollection, std::move(db), std::move(collection)};
  }
  static Resource Database(std::string db) { return {Kind::kCollection, std::move(db), ""}; }
  static Resource Cluster() { return {Kind::kCluster, "", ""}; }
  static Resource Any() { return {Kind::kAny, "", ""}; }
  auto operator<=>(const Resource&) const = default;
};

/// Actions that are allowed on a resource.
struct Privilege {
  Resource resource;
  ActionSet actions;
  bool operator==(const Privilege&) const = default;
};

/// {db: , collection: }, {db: , system_buckets: }, {cluster: true} or {anyResource: true}. Errors:
/// FailedToParse 9, TypeMismatch 14.
Result<Resource> ParseResource(BsonValue value);
/// {resource: , actions: [ … ]}. Errors: those of ParseResource; BadValue 2 for unknown actions, of
/// which the message names the first.
Result<Privilege> ParsePrivilege(BsonValue value);
/// An array of them; those with the same resource become one. At most `kMaxPrivileges`.
Result<std::vector<Privilege>> ParsePrivileges(BsonValue value);
inline constexpr size_t kMaxPrivileges = 10'000;  ///< of one role

/// The document that ParseResource reads, as the field `name`.
void AppendResource(BsonBuilder& out, std::string_view name, const Resource& resource);
/// The array as roles store and show it. All actions are shown as "anyAction".
void AppendPrivileges(BsonBuilder& out, std::string_view name,
                      const std::vector<Privilege>& privileges);

/// Adds to what `privileges` has for the same resource.
void AddPrivilege(std::vector<Privilege>& privileges, const Privilege& privilege);
/// Sorts by resource and makes one privilege of those with the same resource: for many at once.
void UnitePrivileges(std::vector<Privilege>& privileges);

/// "system.…", and `replset.…` of `local`: what {db, collection: ""} does not cover.
bool IsSystemCollection(std::string_view db, std::string_view collection);

}  // namespace mayfly
