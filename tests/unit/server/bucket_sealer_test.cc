#include "server/execution/bucket_sealer.h"

#include <catch2/catch.hpp>
#include <random>

#include "protocol/extended_json.h"
#include "server/execution/point_groups.h"
#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;

namespace {

/// Merges as the sealer does, and counts the points that are written again.
struct Buckets {
  std::vector<BucketRef> refs;
  uint64_t rewritten = 0, full = 0;

  void Insert(uint32_t points, bool last = false) {
    BucketRef ref;
    ref.points = points;
    ref.bytes = points * 50;
    refs.push_back(ref);
    Merge(last);
  }
  void Merge(bool last) {
    for (std::vector<size_t> some = BucketsToMerge(refs, last); !some.empty();
         some = BucketsToMerge(refs, last)) {
      BucketRef made;
      made.rows = false;
      std::vector<BucketRef> left;
      std::sort(some.begin(), some.end());
      for (size_t i = 0; i < refs.size(); ++i) {
        if (!std::binary_search(some.begin(), some.end(), i)) {
          left.push_back(refs[i]);
          continue;
        }
        made.points += refs[i].points;
        made.bytes += refs[i].bytes;
      }
      rewritten += made.points;
      while (made.points > 0) {
        BucketRef one = made;
        one.points = std::min<uint32_t>(made.points, 1000);
        one.bytes = one.points * 50;
        made.points -= one.points;
        if (one.points >= 512)
          ++full;
        else
          left.push_back(one);
      }
      refs = std::move(left);
    }
  }
};

/// A store with a time series, and a sealer that has no thread: only Settle merges.
struct Sealing {
  testing::CatalogStore store;
  ServerParameters settings;
  bool may_run = true, throws = false;
  int warned = 0;
  CollectionInfoPtr buckets;
  std::unique_ptr<BucketSealer> sealer;
  int32_t next = 0;

  Sealing() {
    SeriesOptions options;
    options.time_field = "t";
    options.meta_field = "m";
    CollectionInfo c;
    c.db = "db";
    c.name = "w";
    c.kind = CollectionKind::kTimeSeries;
    c.series = std::make_shared<const SeriesOptions>(options);
    REQUIRE(store.catalog().Create(*store.op, std::move(c)));
    buckets = store.Coll("system.buckets.w");
    settings.series_idle_secs = 0;
    sealer = std::make_unique<BucketSealer>(
        *store.storage, store.clock, settings,
        BucketSealer::Environment{[this] { return may_run; },
                                  [this](std::string_view, BsonView) {
                                    ++warned;
                                    if (std::exchange(throws, false)) throw std::bad_alloc();
                                  }});
  }
  /// One point, which makes a bucket. `told`: the sealer hears of it.
  void Insert(bool told = true) {
    const BsonDocument point = BuildBson([&](BsonBuilder& b) {
      b.Append("_id", next++).Append("t", Instant{1'700'000'000'000}).Append("m", "a");
    });
    PointGroups groups(*buckets->series);
    REQUIRE(groups.Add(point));
    auto made = groups.Buckets();
    REQUIRE(made);
    std::vector<BucketSealer::Inserted> list;
    for (const PointGroups::Bucket& bucket : made.value()) {
      REQUIRE(store.Insert(*buckets, BsonDocument(BsonView(bucket.document))));
      BucketSealer::Inserted& i = list.emplace_back();
      i.meta.assign(1, static_cast<char>(bucket.meta.type()));
      i.meta.append(bucket.meta.data(), bucket.meta.size());
      i.floor = bucket.floor;
      std::copy_n(bucket.id.data(), i.ref.id.size(), i.ref.id.data());
      i.ref.points = 1;
      i.ref.bytes = static_cast<uint32_t>(bucket.bytes);
    }
    if (told) sealer->NoteInserted(buckets->id, 3600, std::move(list));
  }
  int64_t Buckets() const { return buckets->counters->documents.load(); }
};

}  // namespace

TEST_CASE("A point for which no bucket has room is refused before a bucket is made of it",
          "[series]") {
  const BsonDocument point = BuildBson([](BsonBuilder& b) {
    b.Append("_id", 1).Append("t", Instant{1'700'000'000'000});
    BsonArrayBuilder list = b.OpenArray("a");
    for (int32_t i = 0; i < 800'000; ++i) list.Append(i);
  });
  // Not even the first part of the bucket's least values has room here.
  large_memory::Budget budget;
  budget.SetLimit(1 << 20);
  const large_memory::BudgetScope scope(budget);
  SeriesOptions options;
  options.time_field = "t";
  PointGroups groups(options);
  const Result<void> r = groups.Add(point);
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kBSONObjectTooLarge);
}

TEST_CASE("What is kept out rests, and does not keep the sealer busy", "[series]") {
  // Without a time to be idle it was taken up again at once, every 2 ms, and Settle never ended.
  Sealing s;
  for (int i = 0; i < 3; ++i) s.Insert();
  REQUIRE(s.Buckets() == 3);
  {
    auto kept = s.sealer->KeepOut(s.buckets->id, *s.store.op);
    REQUIRE(kept);
    Operation op(s.store.clock);
    op.deadline_micros = s.store.clock.MonotonicMicros() + 60'000'000;
    s.sealer->Settle(op);
    CHECK(op.CheckInterruptNow());
    CHECK(s.Buckets() == 3);
  }
  // It is not forgotten.
  Operation op(s.store.clock);
  op.deadline_micros = s.store.clock.MonotonicMicros() + 60'000'000;
  while (s.Buckets() != 1 && op.CheckInterruptNow()) s.sealer->Settle(op);
  CHECK(s.Buckets() == 1);
}

TEST_CASE("A merge that throws is left for later, and nobody waits for its end", "[series]") {
  // The exception ended the process; with one thread more, KeepOut would have waited for ever.
  Sealing s;
  s.Insert();
  s.Insert();
  BucketSealer::Inserted damaged;
  damaged.meta = std::string("\x02\x02\0\0\0a\0", 7);
  damaged.floor = Instant{1'700'000'000'000 / 60'000 * 60'000};
  damaged.ref.id.fill('x');
  damaged.ref.points = 1;
  REQUIRE(s.store.Insert(*s.buckets, BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", std::string(12, 'x'));
    b.OpenDocument("control").OpenDocument("min").Append("t", damaged.floor);
    b.Append("meta", "a").Append("data", 1);
  })));
  s.sealer->NoteInserted(s.buckets->id, 3600, {damaged});
  s.throws = true;
  Operation op(s.store.clock);
  op.deadline_micros = s.store.clock.MonotonicMicros() + 60'000'000;
  s.sealer->Settle(op);
  CHECK(s.warned == 1);
  CHECK(s.sealer->groups() == 1);
  REQUIRE(s.sealer->KeepOut(s.buckets->id, op));
  while (s.warned < 2 && op.CheckInterruptNow()) s.sealer->Settle(op);
  CHECK(s.warned == 2);
  CHECK(s.sealer->groups() == 0);
}

TEST_CASE("Counts of collections that are dropped go", "[series]") {
  // They stayed until the end of the process.
  Sealing s;
  s.Insert();
  for (uint32_t dropped = 0; dropped < 1000; ++dropped)
    s.sealer->NoteInserted(1'000'000 + dropped, 3600, {});
  CHECK(s.sealer->counted() < 200);
  const BsonDocument stats =
      BuildBson([&](BsonBuilder& b) { s.sealer->AppendStats(s.buckets->id, b); });
  CHECK(stats.view()["numBucketInserts"].NumberAsInt64() == 1);
}

TEST_CASE("A start finds all small buckets of a meta value, however many", "[series]") {
  // Those above 64 stayed as they were until the next point came.
  Sealing s;
  REQUIRE(s.store.catalog().CreateIndexes(
      *s.store.op, *s.buckets, {testing::Spec(R"({"key":{"meta":1,"control.min.t":1}})")}));
  s.buckets = s.store.Coll("system.buckets.w");
  const int n = GENERATE(3, 65, 72, 200);
  for (int i = 0; i < n; ++i) s.Insert(false);
  REQUIRE(s.Buckets() == n);
  s.sealer->Restart();
  Operation op(s.store.clock);
  op.deadline_micros = s.store.clock.MonotonicMicros() + 60'000'000;
  s.sealer->Settle(op);
  CHECK(op.CheckInterruptNow());
  // A bucket that is more than four times as large as the rest is left alone.
  CHECK(s.Buckets() <= 3);
}

TEST_CASE("Settling ends with its operation, whatever is left", "[series]") {
  Sealing s;
  for (int i = 0; i < 3; ++i) s.Insert();
  Operation op(s.store.clock);
  op.kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  s.sealer->Settle(op);
  CHECK(s.Buckets() == 3);
  Operation late(s.store.clock);
  late.deadline_micros = s.store.clock.MonotonicMicros() - 1;
  s.sealer->Settle(late);
  CHECK(s.Buckets() == 3);
  Operation now(s.store.clock);
  s.sealer->Settle(now);
  CHECK(s.Buckets() == 1);
}

TEST_CASE("A point is merged a few times only, however points come", "[series]") {
  for (const uint32_t size : {1u, 2u, 10u, 100u, 999u, 1000u}) {
    CAPTURE(size);
    Buckets b;
    const uint64_t points = 200'000;
    size_t most = 0;
    for (uint64_t n = 0; n < points; n += size) {
      b.Insert(size);
      most = std::max(most, b.refs.size());
    }
    CHECK(b.rewritten <= 5 * points);
    CHECK(most <= 40);
    b.Merge(true);
    CHECK(b.refs.size() <= 2);
    CHECK(b.full >= points / 1000);
  }
}

TEST_CASE("Late points, each after a while, do not rewrite large buckets", "[series]") {
  Buckets b;
  for (int i = 0; i < 300; ++i) b.Insert(1);
  b.Merge(true);
  b.rewritten = 0;
  for (int i = 0; i < 100; ++i) b.Insert(1, true);
  CHECK(b.rewritten <= 1000);
  CHECK(b.refs.size() <= 5);
}

TEST_CASE("Buckets of random sizes are merged to an end", "[series]") {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Buckets b;
    uint64_t points = 0;
    for (int i = 0; i < 100; ++i) {
      const auto n = static_cast<uint32_t>(1 + random() % (random() % 2 ? 5 : 1000));
      points += n;
      b.Insert(n, random() % 5 == 0);
    }
    b.Merge(true);
    CHECK(b.refs.size() <= 6);
    CHECK(b.rewritten <= 8 * points);
  }
}

TEST_CASE("Points in order of time are cut into buckets by span, number and bytes", "[series]") {
  const BucketSpan hour{3600, 60};
  const BsonDocument small = BuildBson([](BsonBuilder& b) { b.Append("v", 1); });
  const std::string text(100 << 10, 'x');
  const BsonDocument large = BuildBson([&](BsonBuilder& b) { b.Append("v", text); });
  const auto cut = [&](const std::vector<int64_t>& seconds, BsonView point) {
    std::vector<TimedPoint> points;
    for (const int64_t s : seconds) points.push_back({s * 1000, point});
    return CutIntoBuckets(points, hour);
  };
  CHECK(cut({}, small).empty());
  // From a full minute on, an hour; not from a full hour on.
  auto two = cut({3590, 3600, 7139, 7140}, small);
  REQUIRE(two.size() == 2);
  CHECK(two[0].end == 3);
  CHECK(two[0].floor.millis == 3'540'000);
  CHECK(two[1].end == 4);
  CHECK(two[1].floor.millis == 7'140'000);
  CHECK(cut(std::vector<int64_t>(2500, 60), small).size() == 3);
  CHECK(cut({1, 2, 3}, large).size() == 3);
  CHECK(cut({-1, 0}, small)[0].floor.millis == -60'000);
  const TimedPoint extreme[] = {{INT64_MIN, small.view()}, {INT64_MAX, small.view()}};
  CHECK(CutIntoBuckets(extreme, hour).size() == 2);
}
