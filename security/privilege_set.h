#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/database_name.h"
#include "protocol/seeded_hash.h"
#include "security/privilege.h"

namespace mayfly {

/// The privileges of one user, prepared for checks: each check takes a few look-ups in tables and
/// never allocates. Immutable once made, so any number of threads ask it.
class PrivilegeSet {
 public:
  PrivilegeSet() = default;
  explicit PrivilegeSet(const std::vector<Privilege>& privileges);
  /// A set that allows everything: that of the process itself, and of all clients while access
  /// control is off.
  static const PrivilegeSet& Everything();

  /// Whether all of `actions` are allowed on the collection. An empty `collection` asks for the
  /// database itself (dropDatabase, createUser …).
  bool Allows(std::string_view db, std::string_view collection, const ActionSet& actions) const {
    // What is granted widely is found without a look-up.
    if (any_.HasAll(actions)) return true;
    if (normal_.HasAll(actions) && !IsConfigOrLocal(db) && !IsSystemCollection(db, collection))
      return true;
    return On(db, collection).HasAll(actions);
  }
  /// … on the cluster.
  bool AllowsOnCluster(const ActionSet& actions) const { return OnCluster().HasAll(actions); }
  /// … on the resource as a whole; `anyResource` needs a grant of `anyResource`, and "all
  /// databases" one of all databases.
  bool Allows(const Resource& resource, const ActionSet& actions) const;

  /// Every action on it that is allowed.
  ActionSet On(std::string_view db, std::string_view collection) const;
  ActionSet OnCluster() const { return any_ | cluster_; }
  /// Whether anything is allowed on the database or one of its collections: for example, whether
  /// listDatabases shows it (`actions`: find).
  bool AllowsSomewhereIn(std::string_view db, const ActionSet& actions) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return SeededHash(s); }
  };
  struct PairHash {
    using is_transparent = void;
    template <class P>
    size_t operator()(const P& p) const {
      return SeededHash(p.second, SeededHash(p.first));
    }
  };
  struct PairEqual {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return std::string_view(a.first) == std::string_view(b.first) &&
             std::string_view(a.second) == std::string_view(b.second);
    }
  };
  using ByName = std::unordered_map<std::string, ActionSet, Hash, std::equal_to<>>;
  using ByPair =
      std::unordered_map<std::pair<std::string, std::string>, ActionSet, PairHash, PairEqual>;

  ActionSet any_;       // {anyResource: true}
  ActionSet cluster_;   // {cluster: true}
  ActionSet normal_;    // {db: "", collection: ""}
  ByName databases_;    // {db: "x", collection: ""}
  ByName collections_;  // {db: "", collection: "x"}
  ByPair exact_;        // {db: "x", collection: "y"}
  ByPair buckets_;      // {db: "x", system_buckets: "y"}, either may be empty
  bool has_buckets_ = false;
};

}  // namespace mayfly
