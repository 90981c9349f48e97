#include "server/dispatch/snapshot_points.h"

#include "tests/unit/storage/catalog_fixture.h"

namespace mayfly::testing {
namespace {

/// Points of a store, numbered by their times.
struct Points {
  CatalogStore store;
  SnapshotPoints points;
  uint64_t last = 0;

  /// A point that is used as long as the result lives.
  std::shared_ptr<ReadPoint> Take(std::string_view owner) {
    auto point = ReadPoint::Take(*store.storage, ++last);
    points.Add(point, owner, static_cast<int64_t>(last), Instant{static_cast<int64_t>(last)});
    return point;
  }
  /// As many as the owner may have.
  std::vector<std::shared_ptr<ReadPoint>> TakeAll(std::string_view owner) {
    std::vector<std::shared_ptr<ReadPoint>> taken;
    while (points.MayTake(owner)) taken.push_back(Take(owner));
    return taken;
  }
  size_t Sweep(int64_t before = 0) {
    SnapshotPoints::Gone gone;
    points.Sweep(before, Instant{before}, &gone);
    for (const auto& p : gone) p->Release();
    return gone.size();
  }
};

}  // namespace

TEST_CASE("who reads at many points in time ends nobody else's", "[snapshot_points]") {
  Points p;
  const auto others = p.Take("other");
  const auto many = p.TakeAll("many");
  CHECK(many.size() == SnapshotPoints::kMostUsedOfOwner);
  CHECK(p.Sweep() == 0);
  CHECK(others->held());
  CHECK(p.points.MayTake("other"));
  CHECK(p.points.MayTake("third"));
}

TEST_CASE("who is alone may have most points, and leaves some for others", "[snapshot_points]") {
  Points p;
  auto many = p.TakeAll("many");
  CHECK(many.size() == SnapshotPoints::kMostUsed / 4 * 3);
  CHECK(p.TakeAll("other").size() > 100);
  CHECK_FALSE(p.points.MayTake("many"));
  many.resize(SnapshotPoints::kMostUsedOfOwner - 1);
  CHECK(p.points.MayTake("many"));
}

TEST_CASE("of points that nobody uses the oldest of who has the most go", "[snapshot_points]") {
  Points p;
  p.Take("other");
  for (size_t i = 0; i < SnapshotPoints::kMostUnused + 9; ++i) p.Take("many");
  CHECK(p.Sweep() == 10);
  CHECK(p.points.size() == SnapshotPoints::kMostUnused);
  CHECK(p.points.Find(1) != nullptr);
  for (uint64_t ts = 2; ts <= 11; ++ts) CHECK(p.points.Find(ts) == nullptr);
  CHECK(p.points.Find(12) != nullptr);
}

TEST_CASE("a point goes with its window, also from who uses it", "[snapshot_points]") {
  Points p;
  const auto used = p.Take("one");
  p.Take("one");
  CHECK(p.Sweep(2) == 1);
  CHECK_FALSE(used->held());
  CHECK(p.points.Find(2) != nullptr);
  for (const auto& point : p.points.Clear()) point->Release();
  CHECK(p.points.size() == 0);
}

TEST_CASE("points of transactions count once another read uses them", "[snapshot_points]") {
  Points p;
  const auto others = p.Take("other");
  std::vector<std::shared_ptr<ReadPoint>> of_transactions;
  for (int i = 0; i < 200; ++i) {
    of_transactions.push_back(ReadPoint::Take(*p.store.storage, ++p.last));
    p.points.Add(of_transactions.back(), "many", 0, Instant{}, true);
  }
  const auto many = p.TakeAll("many");
  CHECK(many.size() == SnapshotPoints::kMostUsedOfOwner);
  const uint64_t ts = of_transactions.front()->ts();
  CHECK_FALSE(p.points.Use(ts, "many"));
  CHECK(p.points.Use(others->ts(), "many"));  // it stays the other's
  CHECK(p.points.Use(ts, "third"));
  CHECK(p.points.Use(ts, "many"));
}

}  // namespace mayfly::testing
