#include "ttl/ttl_controls.h"

#include <catch2/catch.hpp>

#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

constexpr int64_t kControlsStart = 1'900'000'000'000;

struct Controlled : CatalogStore {
  std::unique_ptr<TtlControls> controls;
  int changes = 0;

  Controlled() {
    clock.Freeze(true);  // first: no millisecond passes in between
    clock.Set({kControlsStart});
    Fresh();
    REQUIRE(catalog().CreateIndexes(*op, *Make(),
                                    {Spec(R"({"key": {"at": 1}, "expireAfterSeconds": 0})"),
                                     Spec(R"({"key": {"b": 1}, "expireAfterSeconds": 0})")}));
    Load();
  }
  ~Controlled() {
    controls.reset();
    storage.reset();
  }
  void Fresh() { op = std::make_unique<Operation>(clock); }
  void Load() {
    controls = std::make_unique<TtlControls>(*storage);
    controls->on_change = [this] { ++changes; };
    auto loaded = controls->Load(*op);
    if (!loaded) FAIL(loaded.error().message);
  }
  void Reopen(const std::string& path = {}) {
    controls.reset();
    Open(path);
    Fresh();
    Load();
  }
  TtlRule Rule(std::string_view index) {
    std::vector<InvalidTtlRule> invalid;
    for (TtlRule& r : ListTtlRules(catalog(), &invalid))
      if (r.RuleName() == index) return r;
    FAIL("no rule " << index);
    return {};
  }
  TtlScope Scope(TtlScope::Level level, std::string rule = {}) {
    return {level, "db", Coll()->uuid, std::move(rule)};
  }
  TtlStanding State(std::string_view index, int64_t at = kControlsStart) {
    return controls->StateOf(Rule(index), {at});
  }
  TtlHold HoldOf(std::string_view filter, std::optional<Instant> until = {}) {
    TtlHold h;
    h.id = "123456789012";
    h.db = "db";
    h.uuid = Coll()->uuid;
    h.filter = Json(filter);
    h.matches = CompileEqualFilter(h.filter, false).value();
    h.since = {kControlsStart};
    h.until = until;
    h.reason = "because";
    return h;
  }
};

}  // namespace

TEST_CASE("A pause covers its scope, until its end", "[ttl]") {
  Controlled c;
  using L = TtlScope::Level;
  struct Case {
    L level;
    const char* rule;
    TtlStanding at, b;
  };
  constexpr auto kPaused = TtlStanding::kPaused, kActive = TtlStanding::kActive;
  for (Case x : {Case{L::kServer, "", kPaused, kPaused},
                 {L::kDatabase, "", kPaused, kPaused},
                 {L::kCollection, "", kPaused, kPaused},
                 {L::kRule, "at_1", kPaused, kActive}}) {
    CAPTURE(static_cast<int>(x.level));
    REQUIRE(c.controls->Pause(
        *c.op, {c.Scope(x.level, x.rule), {kControlsStart}, Instant{kControlsStart + 1000}}));
    CHECK(c.State("at_1") == x.at);
    CHECK(c.State("b_1") == x.b);
    CHECK(c.State("at_1", kControlsStart + 999) == x.at);
    CHECK(c.State("at_1", kControlsStart + 1000) == kActive);
    CHECK(c.controls->MayReapFrom(c.Rule("at_1"), {kControlsStart}).millis ==
          kControlsStart + 1000);
    CHECK(c.controls->PausedAbove(c.Scope(L::kRule, "at_1"), {kControlsStart}) ==
          (x.level != L::kRule));
    CHECK(c.controls->Resume(*c.op, c.Scope(L::kServer)).value() == 1);
    CHECK(c.State("at_1") == kActive);
    CHECK(c.controls->MayReapFrom(c.Rule("at_1"), {kControlsStart}).millis == kControlsStart);
  }
  // Another database's, another collection's, is not this one's.
  REQUIRE(c.controls->Pause(*c.op, {{L::kDatabase, "other", {}, ""}, {kControlsStart}, {}}));
  CHECK(c.State("at_1") == kActive);
}

TEST_CASE("Pauses, holds and the guard's decisions survive closing and kill -9", "[ttl]") {
  Controlled c;
  REQUIRE(
      c.controls->Pause(*c.op, {c.Scope(TtlScope::Level::kRule, "at_1"), {kControlsStart}, {}}));
  REQUIRE(c.controls->Hold(*c.op, c.HoldOf(R"({"_id": 7})", Instant{kControlsStart + 5000})));
  REQUIRE(
      c.controls->HoldByGuard(*c.op, {c.Coll()->uuid, "db", "b_1", {kControlsStart}, 12, 0.75}));
  const std::string killed = c.CopyAsKilled();
  for (const std::string& path : {std::string(), killed}) {
    CAPTURE(path);
    c.Reopen(path);
    CHECK(c.State("at_1") == TtlStanding::kPaused);
    CHECK(c.State("b_1") == TtlStanding::kHeld);
    CHECK(c.controls->MayReapFrom(c.Rule("b_1"), {kControlsStart}).millis == INT64_MAX);
    auto g = c.controls->GuardHoldOf(c.Rule("b_1"));
    REQUIRE(g);
    CHECK(g->would_expire == 12);
    CHECK(g->fraction == 0.75);
    CHECK(c.controls->Held(*c.Coll(), Json(R"({"_id": 7})"), {kControlsStart}));
    CHECK_FALSE(c.controls->Held(*c.Coll(), Json(R"({"_id": 8})"), {kControlsStart}));
    CHECK(c.controls->HoldEnds(*c.Coll(), {kControlsStart}).millis == kControlsStart + 5000);
    CHECK_FALSE(c.controls->Held(*c.Coll(), Json(R"({"_id": 7})"), {kControlsStart + 5000}));
    CHECK(c.controls->Holds({kControlsStart})[0].reason == "because");
  }
  c.controls.reset();
  c.storage.reset();
  std::filesystem::remove_all(killed);
}

TEST_CASE("Held until the last of the holds that match", "[ttl]") {
  Controlled c;
  REQUIRE(c.controls->Hold(*c.op, c.HoldOf(R"({"a": 1})", Instant{kControlsStart + 10})));
  TtlHold second = c.HoldOf(R"({"b": 1})");
  second.id = "abcdefghijkl";
  REQUIRE(c.controls->Hold(*c.op, second));
  auto until = [&](const char* doc, int64_t at = kControlsStart) {
    return c.controls->HeldUntil(*c.Coll(), Json(doc), {at});
  };
  CHECK(until(R"({"_id": 1, "a": 1})")->millis == kControlsStart + 10);
  CHECK_FALSE(until(R"({"_id": 1, "a": 1})", kControlsStart + 10));
  CHECK(until(R"({"_id": 1, "a": 1, "b": 1})")->millis == INT64_MAX);
  TtlHold was;
  CHECK_FALSE(c.controls->ReleaseHold(*c.op, Uuid{}, "abcdefghijkl", &was).value());
  CHECK(c.controls->ReleaseHold(*c.op, c.Coll()->uuid, "abcdefghijkl", &was).value());
  CHECK_FALSE(until(R"({"_id": 1, "b": 1})"));
  CHECK_FALSE(c.controls->ReleaseHold(*c.op, c.Coll()->uuid, "abcdefghijkl", &was).value());
}

TEST_CASE("Whether there are holds is asked of one collection", "[ttl]") {
  Controlled c;
  const ExpiryPolicy& policy = *c.controls;
  CollectionInfo other = *c.Coll();
  ++other.uuid[1];
  CollectionInfo same_bit = *c.Coll();  // of another collection, where the first bytes are equal
  ++same_bit.uuid[15];
  CHECK_FALSE(policy.HasHolds(*c.Coll()));
  REQUIRE(c.controls->Hold(*c.op, c.HoldOf(R"({"a": 1})")));
  CHECK(policy.HasHolds());
  CHECK(policy.HasHolds(*c.Coll()));
  CHECK(policy.Held(*c.Coll(), Json(R"({"a": 1})"), {kControlsStart}));
  for (const CollectionInfo& no : {other, same_bit}) {
    CHECK_FALSE(policy.HasHolds(no));
    CHECK_FALSE(policy.Held(no, Json(R"({"a": 1})"), {kControlsStart}));
  }
  c.Reopen();
  CHECK(c.controls->HasHolds(*c.Coll()));
  TtlHold was;
  REQUIRE(c.controls->ReleaseHold(*c.op, c.Coll()->uuid, "123456789012", &was));
  CHECK_FALSE(c.controls->HasHolds(*c.Coll()));
}

TEST_CASE("A hold whose filter is interrupted holds", "[ttl]") {
  class KilledFilter final : public RecordFilter {
   public:
    bool Matches(BsonView) const override {
      FilteringFor::Asked()->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
      return false;
    }
  };
  Controlled c;
  TtlHold hold = c.HoldOf(R"({"a": 1})", Instant{kControlsStart + 10});
  hold.matches = std::make_shared<KilledFilter>();
  REQUIRE(c.controls->Hold(*c.op, hold));
  const FilteringFor filtering(c.op.get());
  CHECK(c.controls->HeldUntil(*c.Coll(), Json(R"({"a": 2})"), {kControlsStart})->millis ==
        INT64_MAX);
}

TEST_CASE("Holds and pauses leave room in their row for each other and for the guard", "[ttl]") {
  Controlled c;
  const std::string text(60'000, 'x');
  TtlHold large = c.HoldOf(R"({"a": ")" + text + R"("})");
  int holds = 0;
  Result<void> r = Ok();
  while (holds < 1000 && (r = c.controls->Hold(*c.op, large))) ++holds;
  CHECK(CodeOf(r) == ErrorCode::kExceededMemoryLimit);
  CHECK(holds == static_cast<int>(TtlControls::kMaxHoldBytes /
                                  (large.filter.view().size() + large.reason.size() + 160)));
  int pauses = 0;
  auto pause = [&] {
    TtlPause p{c.Scope(TtlScope::Level::kDatabase), {kControlsStart}, {}};
    p.scope.db = text + std::to_string(pauses);
    return p;
  };
  while (pauses < 1000 && (r = c.controls->Pause(*c.op, pause()))) ++pauses;
  CHECK(CodeOf(r) == ErrorCode::kExceededMemoryLimit);
  CHECK(pauses > 30);
  REQUIRE(
      c.controls->HoldByGuard(*c.op, {c.Coll()->uuid, "db", "b_1", {kControlsStart}, 12, 0.75}));
  c.Reopen();
  CHECK(c.controls->Holds({kControlsStart}).size() == static_cast<size_t>(holds));
  CHECK(c.State("b_1") == TtlStanding::kHeld);
  // What has been released makes room.
  TtlHold was;
  REQUIRE(c.controls->ReleaseHold(*c.op, large.uuid, large.id, &was).value());
  CHECK(c.controls->Hold(*c.op, large));
  CHECK(c.controls->Resume(*c.op, c.Scope(TtlScope::Level::kServer)).value() == pauses);
}

TEST_CASE("What ended or has no collection any more leaves the row", "[ttl]") {
  Controlled c;
  REQUIRE(c.controls->Hold(*c.op, c.HoldOf(R"({"a": 1})", Instant{kControlsStart + 10})));
  REQUIRE(c.controls->Pause(*c.op, {c.Scope(TtlScope::Level::kCollection), {kControlsStart}, {}}));
  c.clock.Advance(10);
  c.Fresh();
  REQUIRE(c.controls->Pause(*c.op, {c.Scope(TtlScope::Level::kServer), {kControlsStart}, {}}));
  c.Reopen();
  CHECK(c.controls->Holds({kControlsStart}).empty());
  CHECK(c.controls->Pauses({kControlsStart}).size() == 2);
  REQUIRE(c.catalog().DropIndexes(*c.op, *c.Coll(), {"at_1"}));
  REQUIRE(
      c.controls->Pause(*c.op, {c.Scope(TtlScope::Level::kRule, "at_1"), {kControlsStart}, {}}));
  c.Reopen();
  CHECK(c.controls->Pauses({kControlsStart}).size() == 2);
  REQUIRE(c.catalog().Drop(*c.op, "db", "c"));
  c.Reopen();
  CHECK(c.controls->Pauses({kControlsStart}).size() == 1);
}

TEST_CASE("A row of another version is refused, not forgotten", "[ttl]") {
  Controlled c;
  const char* row = GENERATE(R"({"v": 3, "pauses": [], "holds": [], "guards": []})",
                             R"({"v": 2, "pauses": [], "holds": [], "guards": []})",
                             R"({"v": 1, "pauses": [{"level": 9}], "holds": [], "guards": []})",
                             R"({"v": 1, "pauses": [], "holds": 5, "guards": []})");
  REQUIRE(c.catalog().PutSetting(*c.op, "ttl/controls", Json(row).view().bytes()));
  TtlControls fresh(*c.storage);
  auto loaded = fresh.Load(*c.op);
  REQUIRE_FALSE(loaded);
  CHECK(loaded.error().code == ErrorCode::kUnsupportedFormat);
}

TEST_CASE("What was restored is held until it is released, also over a restart", "[ttl]") {
  Controlled c;
  CHECK_FALSE(RemovalHeld(*c.controls));
  CHECK_FALSE(c.controls->ReleaseRestored(*c.op).value());
  REQUIRE(c.controls->HoldRestored(
      *c.op, {"b1", {kControlsStart - 5}, {kControlsStart}, {kControlsStart - 3}}));
  c.Reopen();
  const auto hold = c.controls->RestoreHold();
  REQUIRE(hold);
  CHECK(hold->backup == "b1");
  CHECK(hold->backup_time == Instant{kControlsStart - 5});
  CHECK(hold->since == Instant{kControlsStart});
  CHECK(hold->data_time == Instant{kControlsStart - 3});
  CHECK(RemovalHeld(*c.controls));
  CHECK(c.State("at_1") == TtlStanding::kHeld);
  CHECK(c.controls->MayReapFrom(c.Rule("at_1"), {kControlsStart}) == Instant{INT64_MAX});
  // What reads see is not changed: the rule hides as it would.
  CHECK(c.controls->RuleActive(*c.Coll(), c.Rule("at_1").index.get()));
  // A pause beside it, and its end, leave it alone.
  REQUIRE(
      c.controls->Pause(*c.op, {c.Scope(TtlScope::Level::kRule, "at_1"), {kControlsStart}, {}}));
  REQUIRE(c.controls->Resume(*c.op, c.Scope(TtlScope::Level::kRule, "at_1")));
  CHECK(RemovalHeld(*c.controls));
  const int before = c.changes;
  auto released = c.controls->ReleaseRestored(*c.op);
  REQUIRE(released);
  CHECK(released.value()->backup == "b1");
  CHECK(c.changes == before + 1);  // the monitor is told
  CHECK(c.State("at_1") == TtlStanding::kActive);
  c.Reopen();
  CHECK_FALSE(c.controls->RestoreHold());
  CHECK(c.controls->MayReapFrom(c.Rule("at_1"), {kControlsStart}) == Instant{kControlsStart});
}

TEST_CASE("While a rule is looked at by the guard it does not act", "[ttl]") {
  Controlled c;
  {
    TtlControls::Evaluation e(*c.controls, c.Coll()->uuid, {"at_1"});
    CHECK(c.State("at_1") == TtlStanding::kHeld);
    CHECK_FALSE(c.controls->RuleActive(*c.Coll(), c.Rule("at_1").index.get()));
    CHECK(c.State("b_1") == TtlStanding::kActive);
  }
  CHECK(c.State("at_1") == TtlStanding::kActive);
  CHECK(c.changes > 0);
}
