#include "storage/read/any_hidden.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "storage/expiry/expiry_policy.h"
#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

constexpr int64_t kHiddenStart = 1'900'000'000'000;

/// Pauses all rules of TTL indexes.
struct Pause final : ExpiryPolicy {
  bool RuleActive(const CollectionInfo&, const IndexInfo*) const override { return !paused; }
  std::atomic<bool> paused{false};
};

struct Hiding : CatalogStore {
  AnyHidden hidden;
  explicit Hiding(size_t most = AnyHidden::kMostKnown) : hidden(most) {
    clock.Freeze(true);  // first: no millisecond passes in between
    clock.Set({kHiddenStart});
    op = std::make_unique<Operation>(clock);
  }
  /// What is known after `millis` since the start.
  std::optional<bool> Known(int64_t millis) const {
    return hidden.Known(*storage, {kHiddenStart + millis});
  }
  /// The same by a look.
  bool Look(int64_t millis) {
    Operation o(clock);
    o.now = {kHiddenStart + millis};
    return hidden.Look(*storage, o).value();
  }
  /// A collection with a TTL index of ten seconds whose first date is that of the start.
  void MakeRule(ExpireReads reads, std::string_view name = "c") {
    IndexInfo spec = Spec(R"({"key": {"t": 1}, "expireAfterSeconds": 10})");
    spec.expire_reads = reads;
    REQUIRE(catalog().CreateIndexes(*op, *Make(name), {spec}));
    Coll(name)->FindIndex("t_1")->expiry->SetEarliest(kHiddenStart);
  }
};

constexpr std::optional<bool> kYes = true, kNo = false, kUnknown = std::nullopt;

}  // namespace

TEST_CASE("A document's deadline arrives, goes and comes without a change of the catalog",
          "[expiry]") {
  Hiding s;
  CHECK(s.Known(0) == kUnknown);
  const CollectionInfoPtr c = s.Make(), other = s.Make("other");
  CHECK(!s.Look(0));
  CHECK(s.Known(0) == kNo);
  const uint64_t version = s.catalog().Version();
  REQUIRE(s.Insert(*c, R"({"_id": 1})", Instant{kHiddenStart + 100}));
  CHECK(s.Known(99) == kNo);
  CHECK(s.Known(100) == kYes);
  CHECK(s.Look(100));
  CHECK(s.Known(99) == kNo);  // an operation with an earlier reading of the clock
  REQUIRE(s.Insert(*other, R"({"_id": 1})", Instant{kHiddenStart + 50}));
  CHECK(s.Known(49) == kNo);
  CHECK(s.Known(50) == kYes);
  // As the reaper does when it has removed all.
  c->document_expiry->SetEmpty();
  other->document_expiry->SetEmpty();
  CHECK(s.Known(100'000) == kNo);
  // As a member that becomes primary: it knows no mark any more.
  other->document_expiry->SetEarliest(INT64_MIN);
  CHECK(s.Known(0) == kYes);
  // A hold has let a document stay, whose date was the earliest.
  other->document_expiry->SetEmpty();
  other->document_expiry->left_millis = kHiddenStart + 7;
  CHECK(s.Known(6) == kNo);
  CHECK(s.Known(7) == kYes);
  CHECK(s.catalog().Version() == version);
}

TEST_CASE("Parameters and pauses count at once for what may be hidden", "[expiry]") {
  Hiding s;
  auto made = std::make_unique<Pause>();
  Pause& policy = *made;
  s.storage->set_expiry_policy(std::move(made));
  SECTION("of a rule with exact reads") {
    s.MakeRule(ExpireReads::kExact);
    CHECK(!s.Look(9'999));
    CHECK(s.Known(9'999) == kNo);
    CHECK(s.Known(10'000) == kYes);
    policy.paused = true;
    CHECK(s.Known(10'000) == kNo);
    policy.paused = false;
    CHECK(s.Known(10'000) == kYes);
    policy.monitor_enabled = false;
    CHECK(s.Known(10'000) == kNo);
    policy.monitor_enabled = true;
    policy.suspended = true;
    CHECK(s.Known(10'000) == kNo);
    policy.suspended = false;
    // The reaper has moved on, and then a writer has put in an earlier date.
    const IndexInfoPtr index = s.Coll()->FindIndex("t_1");
    index->expiry->SetEarliest(kHiddenStart + 5'000);
    CHECK(s.Known(10'000) == kNo);
    CHECK(s.Known(15'000) == kYes);
    index->expiry->Lower(kHiddenStart);
    CHECK(s.Known(10'000) == kYes);
  }
  SECTION("of a rule that has them by default") {
    s.MakeRule(ExpireReads::kDefault);
    CHECK(!s.Look(20'000));
    CHECK(s.Known(20'000) == kNo);
    policy.index_reads_exact_default = true;
    CHECK(s.Known(20'000) == kUnknown);
    CHECK(s.Look(20'000));
    CHECK(s.Known(20'000) == kYes);
    policy.index_reads_exact_default = false;
    CHECK(s.Known(20'000) == kUnknown);
    CHECK(!s.Look(20'000));
  }
  SECTION("of documents' own deadlines, which follow none but the guard of the clock") {
    REQUIRE(s.Insert(*s.Make(), R"({"_id": 1})", Instant{kHiddenStart}));
    CHECK(s.Look(0));
    policy.paused = true;
    policy.monitor_enabled = false;
    CHECK(s.Known(0) == kYes);
    policy.suspended = true;
    CHECK(s.Known(0) == kNo);
  }
}

TEST_CASE("What may be hidden is looked for again when the catalog has changed", "[expiry]") {
  Hiding s;
  s.Make();
  CHECK(!s.Look(20'000));
  s.MakeRule(ExpireReads::kLazy);
  CHECK(s.Known(20'000) == kUnknown);
  CHECK(!s.Look(20'000));
  REQUIRE(s.catalog().ModifyIndex(*s.op, *s.Coll(), "t_1", [](IndexInfo& i) -> Result<void> {
    i.expire_reads = ExpireReads::kExact;
    return Ok();
  }));
  CHECK(s.Known(20'000) == kUnknown);
  CHECK(s.Look(20'000));
  CHECK(s.Known(20'000) == kYes);
  REQUIRE(s.catalog().ModifyIndex(*s.op, *s.Coll(), "t_1", [](IndexInfo& i) -> Result<void> {
    i.expire_after_seconds = 3600;
    return Ok();
  }));
  CHECK(!s.Look(20'000));
  CHECK(s.Known(20'000) == kNo);
  CHECK(s.Known(3'600'000) == kYes);
  REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
  CHECK(s.Known(3'600'000) == kUnknown);
  CHECK(!s.Look(3'600'000));
  // The first document of a new collection, which is due.
  REQUIRE(s.Insert(*s.Make("new"), R"({"_id": 1})", Instant{kHiddenStart}));
  CHECK(s.Known(0) == kUnknown);
  CHECK(s.Look(0));
  s.hidden.Forget();
  CHECK(s.Known(0) == kUnknown);
}

TEST_CASE("A time series with exact reads may hide points at any time", "[expiry][timeseries]") {
  Hiding s;
  CollectionInfo c;
  c.db = "db";
  c.name = "w";
  c.kind = CollectionKind::kTimeSeries;
  SeriesOptions options;
  options.time_field = "t";
  options.granularity = "seconds";
  c.series = std::make_shared<const SeriesOptions>(options);
  c.expire_after_seconds = 60;
  REQUIRE(s.catalog().Create(*s.op, std::move(c)));
  CHECK(!s.Look(0));
  s.storage->expiry_policy().index_reads_exact_default = true;
  CHECK(s.Look(0));
  CHECK(s.Known(0) == kYes);
  s.storage->expiry_policy().suspended = true;
  CHECK(s.Known(0) == kNo);
}

TEST_CASE("What is remembered does not keep a dropped collection's definition", "[expiry]") {
  Hiding s;
  s.MakeRule(ExpireReads::kExact);
  CHECK(s.Look(20'000));
  // The last pointer but the catalog's, which the drop lets go of.
  CollectionInfoPtr held = s.Coll();
  REQUIRE(s.catalog().Drop(*s.op, "db", "c"));
  CHECK(held.use_count() == 1);
}

TEST_CASE("Many collections are looked at by a worker, who can be interrupted", "[expiry]") {
  Hiding s(3);
  const CollectionInfoPtr c = s.Make();
  s.Make("d");
  s.Make("e");
  CHECK(!s.Look(0));
  CHECK(s.Known(0) == kNo);
  s.Make("f");
  CHECK(!s.Look(0));
  CHECK(s.Known(0) == kUnknown);
  REQUIRE(s.Insert(*c, R"({"_id": 1})", Instant{kHiddenStart + 5}));
  CHECK(!s.Look(4));
  CHECK(s.Look(5));
  for (const bool remembered : {true, false}) {
    CAPTURE(remembered);
    if (!remembered) s.hidden.Forget();
    Operation o(s.clock);
    o.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
    CHECK(CodeOf(s.hidden.Look(*s.storage, o)) == ErrorCode::kInterrupted);
  }
  REQUIRE(s.catalog().Drop(*s.op, "db", "f"));
  CHECK(s.Look(5));
  CHECK(s.Known(5) == kYes);
}

TEST_CASE("Many threads ask what may be hidden while collections come and go", "[expiry]") {
  Hiding s;
  const CollectionInfoPtr c = s.Make();
  std::atomic<bool> due{false}, ended{false};
  std::atomic<int> wrong{0};
  auto ask = [&] {
    while (!ended) {
      const bool must = due;  // before: then the answer has to be yes
      const std::optional<bool> known = s.Known(10);
      if (!(known ? *known : s.Look(10)) && must) ++wrong;
    }
  };
  std::thread one(ask), two(ask);
  for (int i = 0; i < 20; ++i) {
    s.Make("x" + std::to_string(i));
    if (i == 10) {
      CHECK(s.Insert(*c, R"({"_id": 1})", Instant{kHiddenStart + 10}));
      due = true;
    }
    if (i % 2 == 1) CHECK(s.catalog().Drop(*s.op, "db", "x" + std::to_string(i)));
  }
  ended = true;
  one.join();
  two.join();
  CHECK(wrong == 0);
  CHECK(s.Look(10));
}
