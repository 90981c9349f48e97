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
  Result<std::optional<RoleDocument>> ReadRole(const RoleName& name) override {
    std::lock_guard l(mutex);
    const auto at = roles.find(name);
    return at == roles.end() ? std::optional<RoleDocument>() : at->second;
  }
  void AddUser(const char* name, std::vector<RoleName> granted, char id = 'i') {
    std::lock_guard l(mutex);
    UserDocument u;
    u.name = {name, "admin"};
    u.id = std::string(16, id);
    u.sha256 = ScramCredential{15000, "s", "k", "v"};
    u.roles = std::move(granted);
    users[u.name] = u;
  }
  void AddRole(const char* name, std::vector<RoleName> of, std::vector<Privilege> privileges = {}) {
    std::lock_guard l(mutex);
    roles[{name, "admin"}] = {{name, "admin"}, std::move(privileges), std::move(of), {}};
  }
  RoleReader reader() {
    return [this](const RoleName& n) { return ReadRole(n); };
  }
};

RoleName R(const std::string& name) { return {name, "admin"}; }

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
  CHECK(CheckNoCycle(R("c"), {R("a")}, kept.reader()).error().code == kInvalidRoleModification);
  CHECK(CheckNoCycle(R("c"), {R("c")}, kept.reader()).error().code == kInvalidRoleModification);
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

TEST_CASE("Guessing waits, others do not", "[security][backoff]") {
  LoginBackoff b;
  const UserName ann{"ann", "admin"}, bob{"bob", "admin"};
  for (int i = 0; i < LoginBackoff::kFreeOfUser; ++i) {
    CHECK(b.DelayMillis("10.0.0.1", ann, 0) == 0);
    b.Failed("10.0.0.1", ann, 0);
  }
  CHECK(b.DelayMillis("10.0.0.1", ann, 0) == 50);
  b.Failed("10.0.0.1", ann, 0);
  CHECK(b.DelayMillis("10.0.0.1", ann, 0) == 100);
  for (int i = 0; i < 60; ++i) b.Failed("10.0.0.1", ann, 0);
  CHECK(b.DelayMillis("10.0.0.1", ann, 0) == LoginBackoff::kMaxDelayMillis);
  CHECK(b.DelayMillis("10.0.0.1", bob, 0) == 0);  // from the same address
  CHECK(b.DelayMillis("10.0.0.2", ann, 0) == 0);  // the same user, from elsewhere
  b.Succeeded("10.0.0.1", ann);
  CHECK(b.DelayMillis("10.0.0.1", ann, 0) == 0);
  b.Failed("10.0.0.1", ann, 1);
  for (int i = 0; i < 60; ++i) b.Failed("10.0.0.1", ann, 1);
  // Now the address has failed often enough to wait with every user.
  CHECK(b.DelayMillis("10.0.0.1", bob, 1) > 0);
  CHECK(b.DelayMillis("10.0.0.2", bob, 1) == 0);
  CHECK(b.DelayMillis("10.0.0.1", bob, LoginBackoff::kForgetMillis + 2) == 0);
  CHECK(b.DelayMillis("10.0.0.1", ann, LoginBackoff::kForgetMillis + 2) == 0);
}

TEST_CASE("Names and addresses that are made up take no memory without end",
          "[security][backoff]") {
  LoginBackoff b;
  for (int i = 0; i < 100'000; ++i)
    b.Failed("10.0.0.1", {"u" + std::to_string(i), "admin"}, i / 10);
  CHECK(b.size() <= LoginBackoff::kMaxEntries);
  CHECK(b.DelayMillis("10.0.0.1", {"other", "admin"}, 10'000) == LoginBackoff::kMaxDelayMillis);
  for (int i = 0; i < 100'000; ++i) b.Failed("10.1." + std::to_string(i), {"u", "admin"}, 10'000);
  CHECK(b.size() <= LoginBackoff::kMaxEntries);
}
