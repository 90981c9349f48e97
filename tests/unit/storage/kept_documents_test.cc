#include "storage/expiry/kept_documents.h"

#include <catch2/catch.hpp>

using namespace mayfly;

namespace {

std::shared_ptr<KeptUnit> UnitOf(std::vector<KeptDocument> documents) {
  auto u = std::make_shared<KeptUnit>();
  u->prepared = 1000;
  for (const KeptDocument& d : documents) u->earliest = std::min(u->earliest, d.deadline);
  u->documents = std::move(documents);
  return u;
}

}  // namespace

TEST_CASE("Documents are kept from when a unit's time is fixed until it is long visible",
          "[expiry]") {
  // Found one by one, or among many.
  const uint64_t more = GENERATE(0, 5000);
  const auto documents = [&](uint64_t hash, int64_t deadline, int64_t until, int64_t latest) {
    std::vector<KeptDocument> out{{hash, deadline, until, latest}};
    for (uint64_t n = 1; n <= more; ++n) out.push_back({hash + n, deadline, until, latest});
    return out;
  };
  KeptDocuments kept;
  CHECK_FALSE(kept.Any(1000));
  const auto unit = UnitOf(documents(7, 2000, 5000, INT64_MIN));
  CHECK_FALSE(kept.Keeps(7, 2000, 2500, 2500));
  CHECK(kept.Decide(unit, [] { return int64_t{1999}; }) == 1999);
  CHECK(kept.Any(2500));
  CHECK(kept.Keeps(7, 2000, 2500, 2500));
  CHECK(kept.Keeps(7, 2000, 4999, 4999));
  CHECK_FALSE(kept.Keeps(7, 2000, 5000, 5000));
  CHECK_FALSE(kept.Keeps(7, 2001, 2500, 2500));
  CHECK_FALSE(kept.Keeps(6, 2000, 2500, 2500));
  CHECK(kept.Keeps(7 + more, 2000, 2500, 2500));

  SECTION("visible before the deadline: nobody asks any more") {
    kept.Release(unit, 1999, true);
    CHECK_FALSE(kept.Any(2500));
  }
  SECTION("visible after it: for a while") {
    kept.Release(unit, 2500, true);
    kept.Release(unit, 2500, true);  // its locks are released once more when it goes
    CHECK(kept.Keeps(7, 2000, 2500, 2500));
    CHECK(kept.Decide(UnitOf(documents(100, 90'000, INT64_MAX, INT64_MIN)),
                      [] { return int64_t{62'500}; }));
    CHECK(kept.Keeps(7, 2000, 2500, 2500));
    CHECK(kept.Decide(UnitOf(documents(20'000, 90'000, INT64_MAX, INT64_MIN)),
                      [] { return int64_t{62'501}; }));
    CHECK_FALSE(kept.Keeps(7, 2000, 2500, 2500));
    CHECK(kept.Keeps(100, 90'000, 95'000, 95'000));
  }
  SECTION("visible after it, and no other unit comes: readers forget it") {
    kept.Release(unit, 2500, true);
    CHECK(kept.Any(62'500));
    CHECK(kept.Keeps(7, 2000, 2500, 2500));
    CHECK_FALSE(kept.Any(62'501));
    CHECK_FALSE(kept.Keeps(7, 2000, 2500, 2500));
  }
  SECTION("visible after it: whoever asks of one document forgets it, too") {
    kept.Release(unit, 2500, true);
    CHECK(kept.Keeps(7, 2000, 2500, 62'500));
    CHECK(kept.MayKeep());
    CHECK_FALSE(kept.Keeps(7, 2000, 2500, 62'501));
    CHECK_FALSE(kept.MayKeep());
  }
  SECTION("never visible") {
    kept.Release(unit, 2500, false);
    CHECK_FALSE(kept.Any(2500));
    CHECK_FALSE(kept.Keeps(7, 2000, 2500, 2500));
  }
}

TEST_CASE("A unit is too late at the first deadline of its documents", "[expiry]") {
  KeptDocuments kept;
  const auto at = [](int64_t now) { return [now] { return now; }; };
  CHECK(kept.Decide(UnitOf({{7, 2000, 5000, INT64_MIN}}), at(2000)) == std::nullopt);
  CHECK_FALSE(kept.Any(2500));
  auto far = UnitOf({});
  far->looked_to = 3000;
  CHECK(kept.Decide(far, at(3000)) == 3000);
  CHECK(kept.Decide(far, at(3001)) == std::nullopt);
  CHECK_FALSE(kept.Any(2500));
}

TEST_CASE("A deadline that counts from the commit is kept by the time in the log", "[expiry]") {
  KeptDocuments kept;
  const auto unit = UnitOf({{7, 2000, 2100, INT64_MAX}, {8, 2000, 2100, 2300}});
  REQUIRE(kept.Decide(unit, [] { return int64_t{1500}; }));
  CHECK(kept.Keeps(7, 2000, 2599, 2599));
  CHECK_FALSE(kept.Keeps(7, 2000, 2600, 2600));
  CHECK(kept.Keeps(8, 2000, 2299, 2299));
  CHECK_FALSE(kept.Keeps(8, 2000, 2300, 2300));
}

TEST_CASE("Of documents that are long visible the latest are remembered", "[expiry]") {
  KeptDocuments kept;
  for (uint64_t n = 0; n < 100'100; ++n) {
    const auto unit = UnitOf({{n, 2000, INT64_MAX, INT64_MIN}});
    REQUIRE(kept.Decide(unit, [] { return int64_t{1999}; }));
    kept.Release(unit, 2000, true);
  }
  CHECK_FALSE(kept.Keeps(99, 2000, 2001, 2001));
  CHECK(kept.Keeps(100, 2000, 2001, 2001));
}
