#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <thread>
#include <utility>

#include "security/builtin_roles.h"
#include "security/login_backoff.h"
#include "security/role_graph.h"
#include "security/user_cache.h"

using namespace mayfly;

namespace {

/// Users and roles in memory, as storage would have them.
struct Kept : UserSource {
  std::mutex mutex;
  std::map<UserName, UserDocument> users;
  std::map<RoleName, RoleDocument> roles;
  std::atomic<int> reads{0};
  std::function<void()> while_reading = [] {};

  Result<std::optional<UserDocument>> ReadUser(const UserName& name) override {
    ++reads;
    std::optional<UserDocument> found;
    {
      std::lock_guard l(mutex);
      if (const auto at = users.find(name); at != users.end()) found = at->second;
    }
    while_reading();
    return found;
  }
  Result<std::optional<RoleDocument>> ReadRole(const RoleName& name, RoleParts parts) override {
    std::lock_guard l(mutex);
    const auto at = roles.find(name);
    if (at == roles.end()) return std::optional<RoleDocument>();
    RoleDocument role = at->second;
    role.privilege_count = role.privileges.size();
    if (parts == RoleParts::kAll)
      ++whole_reads;
    else
      role.privileges.clear();
    return std::optional(std::move(role));
  }
  int whole_reads = 0;
  uint64_t PlaceOfRoles() const override { return place; }
  uint64_t place = 0;
  void AddUser(const char* name, std::vector<RoleName> granted, char id = 'i',
               const char* db = "admin") {
    std::lock_guard l(mutex);
    UserDocument u;
    u.name = {name, db};
    u.id = std::string(16, id);
    u.sha256 = ScramCredential{15000, "s", "k", "v"};
    u.roles = std::move(granted);
    users[u.name] = u;
  }
  void AddRole(const char* name, std::vector<RoleName> of, std::vector<Privilege> privileges = {}) {
    std::lock_guard l(mutex);
    AddRoleOf("admin", name, std::move(of), std::move(privileges));
  }
  /// While nobody reads.
  RoleDocument& AddRoleOf(const char* db, const std::string& name, std::vector<RoleName> of,
                          std::vector<Privilege> privileges) {
    RoleDocument& role = roles[{name, db}];
    role = RoleDocument();
    role.name = {name, db};
    role.privileges = std::move(privileges);
    role.roles = std::move(of);
    return role;
  }
  RoleReader reader() {
    return [this](const RoleName& n, RoleParts parts) { return ReadRole(n, parts); };
  }
};

RoleName R(const std::string& name) { return {name, "admin"}; }

/// So many privileges of find, each on a collection of its own.
std::vector<Privilege> Privileges(const std::string& db, const std::string& name, size_t count) {
  std::vector<Privilege> all;
  for (size_t i = 0; i < count; ++i)
    all.push_back({Resource::Collection(db, name + std::to_string(i)), ActionSet{Action::find}});
  return all;
}

AuthenticationRestrictions OnlyFrom(const std::string& address) {
  AuthenticationRestriction r;
  r.client_source = {ParseAddressRange(address).value()};
  return {r};
}

}  // namespace

TEST_CASE("Roles made of roles come to the privileges of all", "[security][roles]") {
  Kept kept;
  kept.AddRole("a", {R("b"), {"read", "shop"}}, {{Resource::Cluster(), {Action::top}}});
  kept.AddRole("b", {}, {{Resource::Cluster(), {Action::fsync}}});
  auto r = ResolveRoles({R("a"), R("gone")}, kept.reader());
  REQUIRE(r.has_value());
  CHECK(r.value().roles == std::vector<RoleName>{R("a"), R("b"), R("gone"), {"read", "shop"}});
  CHECK(r.value().missing == std::vector<RoleName>{R("gone")});
  const PrivilegeSet set(r.value().privileges);
  CHECK(set.AllowsOnCluster({Action::top, Action::fsync}));
  CHECK(set.Allows("shop", "orders", {Action::find}));
  CHECK_FALSE(set.Allows("shop", "orders", {Action::insert}));
}

TEST_CASE("Roles in a circle end, and are not made", "[security][roles]") {
  Kept kept;
  kept.AddRole("a", {R("b")});
  kept.AddRole("b", {R("c")});
  kept.AddRole("c", {R("a")});
  CHECK(ResolveRoles({R("a")}, kept.reader()).value().roles.size() == 3);
  kept.AddRole("c", {});
  CHECK(CheckNoCycle(R("c"), {R("a")}, kept.reader()).error().code ==
        ErrorCode::kInvalidRoleModification);
  CHECK(CheckNoCycle(R("c"), {R("c")}, kept.reader()).error().code ==
        ErrorCode::kInvalidRoleModification);
  CHECK(CheckNoCycle(R("d"), {R("a")}, kept.reader()).has_value());
  CHECK(CheckNoCycle(R("d"), {R("nobody")}, kept.reader()).error().code ==
        ErrorCode::kRoleNotFound);
}

TEST_CASE("A mesh of roles costs no more than its edges, and has a limit", "[security][roles]") {
  Kept kept;
  // 40 layers of ten: 10^40 ways through.
  for (int layer = 0; layer < 40; ++layer)
    for (int i = 0; i < 10; ++i) {
      std::vector<RoleName> below;
      for (int j = 0; layer < 39 && j < 10; ++j)
        below.push_back(R("r" + std::to_string(layer + 1) + "_" + std::to_string(j)));
      kept.AddRole(("r" + std::to_string(layer) + "_" + std::to_string(i)).c_str(), below);
    }
  CHECK(ResolveRoles({R("r0_0")}, kept.reader()).value().roles.size() == 391);
  std::vector<RoleName> many;
  for (size_t i = 0; i <= kMaxResolvedRoles; ++i) many.push_back(R("x" + std::to_string(i)));
  CHECK(ResolveRoles(many, kept.reader()).error().code == ErrorCode::kExceededMemoryLimit);
  // Here a login fails, too: nobody knows the restrictions of the roles that were not read.
  CHECK(ResolveSomeRoles(many, kept.reader()).error().code == ErrorCode::kExceededMemoryLimit);
  many.pop_back();
  CHECK(ResolveSomeRoles(many, kept.reader()).value().missing.size() == kMaxResolvedRoles);
}

// Of few privileges, or of many: what is read of them has a limit of its own.
TEST_CASE("The documents of roles have a limit together", "[security][roles]") {
  Kept kept;
  kept.AddRole("a", {R("b")});
  kept.AddRole("b", {});
  kept.roles[R("a")].bytes = kMaxResolvedRoleBytes;
  CHECK(ResolveSomeRoles({R("a")}, kept.reader()));
  kept.roles[R("b")].bytes = 1;
  CHECK(ResolveSomeRoles({R("a")}, kept.reader()).error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(ResolveRoles({R("a")}, kept.reader()).error().code == ErrorCode::kExceededMemoryLimit);
}

TEST_CASE("Roles beyond the limit: refused, but a login has as many as fit", "[security][roles]") {
  Kept kept;
  const auto add = [&](const char* name, size_t count) {
    kept.AddRole(name, {}, Privileges("shop", name, count));
  };
  constexpr size_t kHalf = kMaxResolvedPrivileges / 2;
  add("a", kHalf);
  add("b", kHalf);
  add("c", 1);
  CHECK(ResolveRoles({R("a"), R("b")}, kept.reader()));
  CHECK(ResolveRoles({R("a"), R("b"), R("c")}, kept.reader()).error().code ==
        ErrorCode::kExceededMemoryLimit);
  // Built-in ones first, wherever they stand; what is left out grants nothing.
  const ResolvedRoles some =
      ResolveSomeRoles({R("a"), R("b"), R("c"), {"root", "admin"}}, kept.reader()).value();
  CHECK(some.left_out == std::vector<RoleName>{R("b")});  // the small one fits
  CHECK(some.roles.size() == 4);
  CHECK(some.privileges.size() <= kMaxResolvedPrivileges);
  const PrivilegeSet set(some.privileges);
  CHECK(set.AllowsOnCluster({Action::shutdown}));
  CHECK(set.Allows("shop", "a0", {Action::find}));
  // The same privilege many times is one.
  add("a", kHalf);
  kept.AddRole("d", {}, kept.roles[R("a")].privileges);
  kept.AddRole("e", {}, kept.roles[R("a")].privileges);
  const auto same = ResolveSomeRoles({R("a"), R("d"), R("e")}, kept.reader()).value();
  CHECK(same.left_out.empty());
  CHECK(same.privileges.size() == kHalf);
}

// Roles were taken in the order of their names until one did not fit: whoever could grant roles of
// one database gave two to a user, let them grow, and the user had neither the roles that came
// behind nor the restrictions of these.
TEST_CASE("Growing roles of one database takes nothing from those of others", "[security][roles]") {
  Kept kept;
  const auto of_user = [&](size_t own) {
    kept.AddRoleOf("admin", "clerk", {{"vault", "shop"}}, Privileges("shop", "clerk", own))
        .restrictions = OnlyFrom("10.0.0.1");
    kept.AddRoleOf("shop", "vault", {}, Privileges("shop", "vault", own)).restrictions =
        OnlyFrom("10.0.0.2");
    return std::vector<RoleName>{{"!a", "mine"}, {"!b", "mine"}, R("clerk"), {"read", "shop"}};
  };
  const auto check = [&](const std::vector<RoleName>& roles, size_t own) {
    const ResolvedRoles some = ResolveSomeRoles(roles, kept.reader()).value();
    CHECK_FALSE(some.left_out.empty());
    for (const RoleName& name : some.left_out) CHECK(name.db == "mine");
    CHECK(some.privileges.size() <= kMaxResolvedPrivileges);
    CHECK(some.restrictions.size() >= 2);
    const PrivilegeSet set(some.privileges);
    const std::string last = std::to_string(own - 1);
    CHECK(set.Allows("shop", "clerk" + last, {Action::find}));
    CHECK(set.Allows("shop", "vault" + last, {Action::find}));
    CHECK(set.Allows("shop", "any", {Action::find}));  // built in
  };
  constexpr size_t kThird = kMaxResolvedPrivileges / 3;
  for (const size_t own : {size_t{5}, kThird - 100}) {
    INFO(own << " privileges of each role");
    // Two large ones; many small ones, in one of them; a large one and small ones.
    const std::vector<RoleName> roles = of_user(own);
    kept.AddRoleOf("mine", "!a", {}, Privileges("mine", "a", kMaxPrivileges));
    kept.AddRoleOf("mine", "!b", {}, Privileges("mine", "b", kMaxPrivileges)).restrictions =
        OnlyFrom("10.0.0.3");
    check(roles, own);
    CHECK(ResolveSomeRoles(roles, kept.reader()).value().restrictions.size() == 3);
    std::vector<RoleName> small;
    for (int i = 0; i < 9000; ++i) {
      small.push_back({"!" + std::to_string(i), "mine"});
      kept.AddRoleOf("mine", small.back().role, {}, Privileges("mine", small.back().role, 3));
    }
    for (int i = 0; i < 9; ++i) {
      const std::string group = "!group" + std::to_string(i);
      kept.AddRoleOf("mine", group, {small.begin() + i * 1000, small.begin() + (i + 1) * 1000}, {});
      kept.roles[{"!b", "mine"}].roles.push_back({group, "mine"});
    }
    check(roles, own);
    kept.AddRoleOf("mine", "!a", {}, {});
    kept.roles[{"!b", "mine"}].privileges.clear();
    check(roles, own);
  }
}

TEST_CASE("Roles that do not fit are not all read", "[security][roles]") {
  Kept kept;
  std::vector<RoleName> roles;
  for (int i = 0; i < 60; ++i) {
    const std::string name = "r" + std::to_string(i);
    kept.AddRole(name.c_str(), {}, Privileges("shop", name, kMaxPrivileges));
    roles.push_back(R(name));
  }
  const ResolvedRoles some = ResolveSomeRoles(roles, kept.reader()).value();
  CHECK(some.left_out.size() == 58);
  CHECK(some.privileges.size() == kMaxResolvedPrivileges);
  CHECK(kept.whole_reads < 10);
}

TEST_CASE("Users with the same roles share what these come to", "[security][cache]") {
  Kept kept;
  UserCache cache(kept);
  kept.AddRole("clerk", {{"read", "shop"}}, {{Resource::Cluster(), {Action::top}}});
  kept.AddUser("ann", {R("clerk"), {"read", "mine"}});
  kept.AddUser("bob", {{"read", "mine"}, R("clerk")});
  kept.AddUser("eve", {R("clerk")});
  const auto ann = cache.Find({"ann", "admin"}).value();
  const auto bob = cache.Find({"bob", "admin"}).value();
  CHECK(ann->granted == bob->granted);
  CHECK(cache.Find({"eve", "admin"}).value()->granted != ann->granted);
  const UserAccessPtr by_certificate =
      cache.OfCertificate({"CN=ann", "$external"}, {R("clerk"), {"read", "mine"}}).value();
  CHECK(by_certificate->granted == ann->granted);

  // A change of users leaves them; one of roles, or roles that are kept elsewhere, do not.
  cache.Invalidate(/*roles=*/false);
  const auto again = cache.Again(*ann).value();
  CHECK(again != ann);
  CHECK(again->granted == ann->granted);
  kept.AddRole("clerk", {}, {{Resource::Cluster(), {Action::fsync}}});
  cache.Invalidate();
  const auto changed = cache.Again(*ann).value();
  CHECK(changed->granted != ann->granted);
  CHECK(changed->privileges.AllowsOnCluster({Action::fsync}));
  CHECK_FALSE(changed->privileges.AllowsOnCluster({Action::top}));
  CHECK(ann->privileges.AllowsOnCluster({Action::top}));  // whoever has it keeps it
  kept.AddRole("clerk", {}, {});
  kept.place = 7;
  cache.Invalidate(/*roles=*/false);
  CHECK_FALSE(cache.Again(*ann).value()->privileges.AllowsOnCluster({Action::fsync}));
}

TEST_CASE("The roles of whoever is logged in are sorted, and each is there once",
          "[security][cache]") {
  Kept kept;
  const std::vector<RoleName> stored = {R("z"), {"a", "shop"}, R("b"), R("z"), {"a", "mine"}},
                              sorted = {{"a", "mine"}, {"a", "shop"}, R("b"), R("z")};
  kept.AddUser("ann", stored);
  UserCache cache(kept);
  const auto ann = cache.Find({"ann", "admin"}).value();
  CHECK(ann->user.roles == sorted);
  CHECK(std::ranges::is_sorted(ann->user.roles));
  cache.Invalidate();
  CHECK(cache.Again(*ann).value()->user.roles == sorted);
  const auto by_certificate = cache.OfCertificate({"CN=ann", "$external"}, stored).value();
  CHECK(by_certificate->user.roles == sorted);
  CHECK(cache.Again(*WithoutPrivileges(*by_certificate)).value()->user.roles == sorted);
}

TEST_CASE("Privileges count as memory, and go with the last login", "[security][cache]") {
  large_memory::Budget budget;
  budget.SetLimit(int64_t{96} << 20);
  const large_memory::BudgetScope scope(budget);
  Kept kept;
  UserCache cache(kept);
  const auto user_with = [&](const std::string& name) {
    std::vector<Privilege> privileges;
    for (size_t i = 0; i < kMaxPrivileges; ++i)
      privileges.push_back(
          {Resource::Collection("shop", name + "of some length" + std::to_string(i)),
           ActionSet{Action::find}});
    kept.AddRole(name.c_str(), {}, std::move(privileges));
    kept.AddUser(name.c_str(), {R(name)});
  };
  const int64_t most = PrivilegeMemory::Most();
  std::vector<UserAccessPtr> logged_in;
  Result<UserAccessPtr> refused = UserAccessPtr();
  for (int i = 0; i < 20 && refused; ++i) {
    const std::string name = "u" + std::to_string(i);
    user_with(name);
    refused = cache.Find({name, "admin"});
    if (refused) logged_in.push_back(refused.value());
  }
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(logged_in.size() > 1);
  CHECK(cache.privilege_bytes() > 0);
  CHECK(cache.privilege_bytes() <= most);
  CHECK(budget.used() > most / 2);
  // Larger sets have left room for small ones.
  kept.AddUser("root", {{"root", "admin"}});
  CHECK(cache.Find({"root", "admin"}).value() != nullptr);
  // Many users with the same roles need no more but for their names.
  const int64_t used = cache.privilege_bytes();
  for (int i = 0; i < 20; ++i) {
    const std::string name = "same" + std::to_string(i);
    kept.AddUser(name.c_str(), {R("u0")});
    logged_in.push_back(cache.Find({name, "admin"}).value());
  }
  CHECK(cache.privilege_bytes() - used < 20 * 2000);
  logged_in.clear();
  CHECK(cache.privilege_bytes() < 1 << 20);
  CHECK(cache.Find({"u1", "admin"}).value() != nullptr);
}

namespace {

/// Users of several databases with roles of their own, and little memory for all.
struct Crowd {
  large_memory::Budget budget;
  std::optional<large_memory::BudgetScope> scope;
  Kept kept;
  UserCache cache{kept};
  std::vector<UserAccessPtr> logged_in;
  int made = 0;

  explicit Crowd(int64_t limit) {
    budget.SetLimit(limit);
    scope.emplace(budget);
  }
  /// Makes a user of `db` who has a role of so many privileges, and what the login gives.
  Result<UserAccessPtr> LogIn(const char* db, size_t privileges) {
    const std::string name = "u" + std::to_string(made++);
    kept.AddRole(name.c_str(), {}, Privileges("shop", name + " of some length ", privileges));
    return LogIn(db, std::vector<RoleName>{R(name)});
  }
  Result<UserAccessPtr> LogIn(const char* db, std::vector<RoleName> roles) {
    const std::string name = "u" + std::to_string(made++);
    kept.AddUser(name.c_str(), std::move(roles), 'i', db);
    return cache.Find({name, db});
  }
  /// As many as may.
  size_t Fill(const char* db, size_t privileges) {
    size_t n = 0;
    for (; n < 5000; ++n) {
      auto found = LogIn(db, privileges);
      if (!found) {
        CHECK(found.error().code == ErrorCode::kExceededMemoryLimit);
        break;
      }
      logged_in.push_back(std::move(found).value());
    }
    return n;
  }
};

}  // namespace

TEST_CASE("Users of one database leave memory to those of others", "[security][cache]") {
  for (const size_t privileges : {size_t{150}, size_t{3000}}) {
    INFO(privileges << " privileges each");
    Crowd crowd(int64_t{128} << 20);
    const int64_t most = PrivilegeMemory::Most();
    // Three owners of a database each: half, and of the rest never more than they leave.
    CHECK(crowd.Fill("mine", privileges) > 1);
    CHECK(crowd.cache.privilege_bytes() <= most / 2);
    CHECK(crowd.Fill("his", privileges) > 1);
    crowd.Fill("hers", privileges);
    CHECK(crowd.cache.privilege_bytes() < most);
    CHECK(crowd.LogIn("shop", 100));
    CHECK(crowd.LogIn("admin", std::vector<RoleName>{{"readWriteAnyDatabase", "admin"}}));
    crowd.logged_in.clear();
    CHECK(crowd.cache.privilege_bytes() <= most / 2 + (1 << 20));
    CHECK(crowd.Fill("mine", privileges) > 1);
  }
}

// Sets of 64 KB had no limit: all that the cache keeps took 640 MB, and every operation of
// everybody found no memory.
TEST_CASE("Small sets have a limit too, which administrators pass", "[security][cache]") {
  Crowd crowd(int64_t{32} << 20);
  const int64_t most = PrivilegeMemory::Most();
  CHECK(crowd.Fill("admin", 150) > 20);
  CHECK(crowd.cache.privilege_bytes() <= most);
  CHECK_FALSE(crowd.LogIn("admin", 150));
  // Also one to whom somebody has granted a large role.
  crowd.kept.AddRole("large", {}, Privileges("mine", "c", kMaxPrivileges));
  CHECK(crowd.LogIn("admin", std::vector<RoleName>{{"root", "admin"}}));
  CHECK(crowd.LogIn("admin", std::vector<RoleName>{{"userAdminAnyDatabase", "admin"}, R("large")}));
  CHECK_FALSE(crowd.LogIn("mine", std::vector<RoleName>{{"dbOwner", "mine"}, R("large")}));
  // What nobody uses is not kept when there is little room.
  crowd.logged_in.clear();
  CHECK(crowd.cache.privilege_bytes() <= most / 2 + (1 << 20));
}

// 500 roles with names of 1,000 bytes counted 64,000 bytes, took 0.6 MB for each user and 1.7 MB
// for all of them, and were kept for ever as a small set.
TEST_CASE("Names of roles and restrictions count as memory", "[security][cache]") {
  Crowd crowd(int64_t{1} << 30);
  std::vector<RoleName> names;
  for (int i = 0; i < 500; ++i) {
    names.push_back(R(std::to_string(i) + std::string(1000, 'n')));
    crowd.kept.AddRole(names.back().role.c_str(), {});
  }
  auto first = crowd.LogIn("admin", names).value();
  const int64_t one = crowd.cache.privilege_bytes();
  CHECK(one > 500 * 5000);
  auto second = crowd.LogIn("admin", names).value();
  CHECK(second->granted == first->granted);
  CHECK(crowd.cache.privilege_bytes() - one > 500 * 1000);
  first = second = nullptr;
  CHECK(crowd.cache.privilege_bytes() == 0);

  RoleDocument& restricted = crowd.kept.AddRoleOf("admin", "restricted", {}, {});
  AuthenticationRestriction many;
  for (int i = 0; i < 1000; ++i)
    many.client_source.push_back(ParseAddressRange("10.0.0." + std::to_string(i % 250)).value());
  restricted.restrictions = {many};
  first = crowd.LogIn("admin", std::vector<RoleName>{R("restricted")}).value();
  CHECK(crowd.cache.privilege_bytes() > 50'000);
}

TEST_CASE("A set that finds no memory is not counted", "[security][cache]") {
  Crowd crowd(int64_t{128} << 20);
  large_memory::Hold others;
  REQUIRE(others.Set(127 << 20));
  const int64_t used = crowd.budget.used();
  CHECK(crowd.LogIn("admin", kMaxPrivileges).error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(crowd.budget.used() == used);
  CHECK(crowd.cache.privilege_bytes() == 0);
}

// Each waited for the memory of the other's former privileges, until one of the clients went.
TEST_CASE("Whoever finds no memory after a change gives back what it has", "[security][cache]") {
  Crowd crowd(int64_t{96} << 20);
  crowd.Fill("admin", kMaxPrivileges);
  std::vector<UserAccessPtr>& all = crowd.logged_in;
  REQUIRE(all.size() > 1);
  crowd.cache.Invalidate();
  for (const UserAccessPtr& one : all) CHECK_FALSE(crowd.cache.Again(*one));
  for (UserAccessPtr& one : all) {
    const UserName name = one->user.name;
    one = WithoutPrivileges(*one);
    CHECK(one->user.name == name);
    CHECK(one->generation != crowd.cache.generation());
    CHECK_FALSE(one->privileges.Allows("shop", "c", {Action::find}));
  }
  CHECK(crowd.cache.privilege_bytes() == 0);
  for (UserAccessPtr& one : all) {
    auto again = crowd.cache.Again(*one);
    REQUIRE(again);
    one = std::move(again).value();
    CHECK(one->privileges.Allows("shop", one->roles.roles[0].role + " of some length 7",
                                 {Action::find}));
  }
  // A user who was dropped meanwhile does not come back.
  const UserAccessPtr dropped = WithoutPrivileges(*all[0]);
  crowd.kept.AddUser(dropped->user.name.user.c_str(), {}, 'j');
  crowd.cache.Invalidate();
  CHECK(crowd.cache.Again(*dropped).value() == nullptr);
  // What a certificate grants is stored nowhere else.
  const auto by_certificate =
      crowd.cache.OfCertificate({"CN=ann", "$external"}, {{"read", "shop"}}).value();
  CHECK(crowd.cache.Again(*WithoutPrivileges(*by_certificate))
            .value()
            ->privileges.Allows("shop", "c", {Action::find}));
}

TEST_CASE("A change of a user holds at the next look", "[security][cache]") {
  Kept kept;
  UserCache cache(kept);
  CHECK(cache.Find({"ann", "admin"}).value() == nullptr);
  kept.AddUser("ann", {{"read", "shop"}});
  auto ann = cache.Find({"ann", "admin"}).value();
  REQUIRE(ann != nullptr);
  CHECK_FALSE(ann->user.sha256.has_value());  // credentials are not kept
  CHECK(ann->privileges.Allows("shop", "c", {Action::find}));
  const int reads = kept.reads;
  CHECK(cache.Find({"ann", "admin"}).value() == ann);
  CHECK(kept.reads == reads);
  CHECK(ann->generation == cache.generation());

  kept.AddUser("ann", {});
  cache.Invalidate();
  CHECK(ann->generation != cache.generation());
  ann = cache.Again(*ann).value();
  REQUIRE(ann != nullptr);
  CHECK_FALSE(ann->privileges.Allows("shop", "c", {Action::find}));

  // Dropped and made anew: somebody else.
  kept.AddUser("ann", {{"root", "admin"}}, 'j');
  cache.Invalidate();
  CHECK(cache.Again(*ann).value() == nullptr);
  kept.users.clear();
  cache.Invalidate();
  CHECK(cache.Again(*ann).value() == nullptr);
}

TEST_CASE("What was read before a change is not kept after it", "[security][cache]") {
  Kept kept;
  UserCache cache(kept);
  kept.AddUser("ann", {{"root", "admin"}});
  // The change comes while the old user has been read and not yet stored.
  bool changed = false;
  kept.while_reading = [&] {
    if (std::exchange(changed, true)) return;
    kept.AddUser("ann", {});
    cache.Invalidate();
  };
  auto old = cache.Find({"ann", "admin"}).value();
  CHECK(old->generation != cache.generation());  // so its connection asks again
  CHECK(cache.size() == 0);
  CHECK_FALSE(cache.Find({"ann", "admin"}).value()->privileges.Allows("s", "c", {Action::find}));
}

TEST_CASE("Changes and looks from many threads", "[security][cache]") {
  Kept kept;
  UserCache cache(kept);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!stop) {
        auto u = cache.Find({"ann", "admin"});
        if (u.value() != nullptr) (void)cache.Again(*u.value());
      }
    });
  for (int i = 0; i < 2000; ++i) {
    kept.AddUser("ann", {R("r" + std::to_string(i))});
    cache.Invalidate();
    const auto seen = cache.Find({"ann", "admin"}).value();
    REQUIRE(seen->user.roles.front().role == "r" + std::to_string(i));
  }
  stop = true;
  for (auto& t : threads) t.join();
}

TEST_CASE("The cache has a limit", "[security][cache]") {
  Kept kept;
  UserCache cache(kept);
  for (size_t i = 0; i < UserCache::kMaxUsers + 100; ++i) {
    const std::string name = "u" + std::to_string(i);
    kept.AddUser(name.c_str(), {});
    REQUIRE(cache.Find({name, "admin"}).value() != nullptr);
    kept.users.clear();
  }
  CHECK(cache.size() == UserCache::kMaxUsers);
}

namespace {

/// Attempts at a clock that the test moves.
struct Guesses {
  LoginBackoff backoff;
  int64_t now = 0;
  UserName ann{"ann", "admin"}, bob{"bob", "admin"};

  /// How long (milliseconds) an attempt would wait; -1: it fails without a look.
  int64_t Wait(const char* address, const UserName& user, int64_t since = -1) {
    int64_t wait = 0;
    auto attempt = backoff.Begin(address, user, since < 0 ? now : since, now, &wait);
    if (!attempt) return wait == 0 ? -1 : wait;
    attempt->Abandon();
    return 0;
  }
  /// Whether an attempt has its password looked at, now.
  bool Try(const std::string& address, const UserName& user, bool right) {
    int64_t wait = 0;
    auto attempt = backoff.Begin(address, user, now, now, &wait);
    if (attempt && right) attempt->Succeeded();
    return attempt.has_value();
  }
  /// Wrong passwords of so many connections that try without a pause: how many are looked at.
  int Flood(int connections, int64_t millis, const std::function<UserName(int)>& user,
            const std::function<std::string(int)>& address) {
    std::vector<int64_t> since(connections, now), next(connections, now);
    int looked = 0, turn = 0;
    for (const int64_t end = now + millis; now < end; now += 10) {
      std::vector<LoginBackoff::Attempt> under_way;  // all at once, until the next step
      for (int i = 0; i < connections; ++i) {
        if (next[i] > now) continue;
        int64_t wait = 0;
        auto attempt = backoff.Begin(address(i), user(turn), since[i], now, &wait);
        if (attempt || wait == 0) since[i] = now + 10;
        next[i] = now + std::max<int64_t>(wait, 10);
        if (!attempt) continue;
        under_way.push_back(std::move(*attempt));
        ++looked;
        ++turn;
      }
    }
    return looked;
  }
};

}  // namespace

TEST_CASE("Guessing waits, others do not", "[security][backoff]") {
  Guesses g;
  for (int i = 0; i < LoginBackoff::kFreeOfPair; ++i) CHECK(g.Try("10.0.0.1", g.ann, false));
  CHECK(g.Wait("10.0.0.1", g.ann) == 50);
  g.now += 50;
  CHECK(g.Try("10.0.0.1", g.ann, false));
  CHECK(g.Wait("10.0.0.1", g.ann) == 100);
  for (int i = 0; i < 10; ++i) {
    g.now += LoginBackoff::kMaxDelayMillis;
    CHECK(g.Try("10.0.0.1", g.ann, false));
  }
  const int64_t since = g.now;
  CHECK(g.Wait("10.0.0.1", g.ann) == LoginBackoff::kAskAgainMillis);
  CHECK(g.Wait("10.0.0.1", g.bob) == 0);  // from the same address
  CHECK(g.Wait("10.0.0.2", g.ann) == 0);  // the same user, from elsewhere
  g.now += LoginBackoff::kMaxDelayMillis;
  CHECK(g.Wait("10.0.0.1", g.ann, since) == 0);
  g.now += LoginBackoff::kMaxDelayMillis;  // asking has been an attempt, too
  CHECK(g.Try("10.0.0.1", g.ann, true));
  CHECK(g.Wait("10.0.0.1", g.ann) == 0);
  // Whoever has waited for its turn in vain has failed.
  for (int i = 0; i < 70; ++i) {
    g.now += LoginBackoff::kShortDelayMillis;
    CHECK(g.Try("10.0.0.1", g.ann, false));
  }
  CHECK(g.Wait("10.0.0.1", g.ann, g.now - LoginBackoff::kMaxWaitMillis) == -1);
  g.now += LoginBackoff::kForgetMillis + 1;
  CHECK(g.Wait("10.0.0.1", g.ann) == 0);
}

// 300 connections of one address got 913 guesses in 12 seconds: each waited for itself alone.
TEST_CASE("Guesses at the same time wait for one another", "[security][backoff]") {
  Guesses g;
  const auto here = [](int) { return std::string("10.0.0.1"); };
  const auto ann = [&](int) { return g.ann; };
  const int first = g.Flood(300, 12'000, ann, here);
  CHECK(first >= LoginBackoff::kFreeOfPair);
  CHECK(first <= 15);
  CHECK(g.Flood(300, 60'000, ann, here) <= 13);
  // Others of that address do not wait for it: what waits counts for nobody.
  CHECK(g.Wait("10.0.0.1", g.bob) == 0);
}

TEST_CASE("One address with many users, and one user from many addresses", "[security][backoff]") {
  Guesses g;
  const auto many = [](int i) { return UserName{"u" + std::to_string(i), "admin"}; };
  CHECK(g.Try("10.0.0.1", g.bob, true));
  CHECK(g.Flood(300, 60'000, many, [](int) { return "10.0.0.1"; }) <= 120);
  CHECK(g.Wait("10.0.0.1", g.ann) > 0);   // nobody knows her there
  CHECK(g.Wait("10.0.0.1", g.bob) == 0);  // he has logged in from there
  CHECK(g.Wait("10.0.0.2", g.ann) == 0);

  Guesses far;
  const auto from = [](int i) { return "10.1.0." + std::to_string(i); };
  const auto ann = [&](int) { return far.ann; };
  CHECK(far.Try("10.0.0.1", far.ann, true));
  // The first of each address, and ten a second.
  CHECK(far.Flood(300, 60'000, ann, from) <= 300 + 100 + 600);
  CHECK(far.Wait("10.1.0.7", far.ann) > 0);
  CHECK(far.Wait("10.0.0.1", far.ann) == 0);
  CHECK(far.Wait("10.0.0.2", far.ann) == 0);  // her first attempt from there
}

TEST_CASE("Who has logged in from an address is guessed at more slowly there, not kept out",
          "[security][backoff]") {
  Guesses g;
  CHECK(g.Try("10.0.0.1", g.ann, true));
  const int looked = g.Flood(
      300, 12'000, [&](int) { return g.ann; }, [](int) { return "10.0.0.1"; });
  CHECK(looked <= LoginBackoff::kFreeOfKnown + 125);
  CHECK(g.Wait("10.0.0.1", g.ann) <= LoginBackoff::kShortDelayMillis);
  // Logins of its own do not make it new guesses: they take failures away once in a while.
  for (int i = 0; i < 10; ++i) {
    g.now += LoginBackoff::kShortDelayMillis;
    CHECK(g.Try("10.0.0.1", g.ann, true));
  }
  CHECK(g.Wait("10.0.0.1", g.ann) > 0);
  // A pool that opens all its connections at once waits for nothing.
  std::vector<LoginBackoff::Attempt> pool;
  int64_t wait = 0;
  CHECK(g.Try("10.0.0.3", g.bob, true));
  for (int i = 0; i < LoginBackoff::kFreeOfKnown; ++i) {
    auto attempt = g.backoff.Begin("10.0.0.3", g.bob, g.now, g.now, &wait);
    REQUIRE(attempt);
    pool.push_back(std::move(*attempt));
  }
  for (auto& attempt : pool) attempt.Succeeded();
}

TEST_CASE("Names and addresses that are made up take no memory without end",
          "[security][backoff]") {
  Guesses g;
  for (int i = 0; i < 100'000; ++i) {
    g.now = i * 20;
    g.Try("10.0.0.1", {"u" + std::to_string(i), "admin"}, false);
  }
  CHECK(g.backoff.size() <= LoginBackoff::kMaxEntries);
  for (int i = 0; i < 100'000; ++i) g.Try("10.1." + std::to_string(i), {"u", "admin"}, false);
  CHECK(g.backoff.size() <= LoginBackoff::kMaxEntries);
  for (int i = 0; i < 100'000; ++i) g.Try("10.2." + std::to_string(i), {"v", "admin"}, true);
  CHECK(g.backoff.size() <= LoginBackoff::kMaxEntries + LoginBackoff::kMaxKnown);
  // A table with room for two entries, and not for the three of an attempt, was looked through at
  // each login: 30,000 entries, of which none went.
  CHECK(g.backoff.rooms_made() < 200);
}
