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
  Result<void> InsertBucket(BsonView bucket, bool old) {
    Operation o(store.clock);
    WriteUnit u(*store.storage, o);
    if (old) u.set_merges_buckets();
    MAYFLY_TRY(u.Insert(*buckets, bucket));
    return store.storage->committer().Commit(std::move(u));
  }
  /// One point, which makes a bucket. `told`: the sealer hears of it. `v`: {v: …}, a measurement.
  /// `old`: it was there before the indexes.
  void Insert(bool told = true, std::string_view v = "{}", bool old = false) {
    const BsonDocument point = BuildBson([&](BsonBuilder& b) {
      b.Append("_id", next++).Append("t", Instant{1'700'000'000'000}).Append("m", "a");
      b.AppendAll(testing::Json(v));
    });
    PointGroups groups(*buckets->series);
    REQUIRE(groups.Add(point));
    auto made = groups.Buckets();
    REQUIRE(made);
    std::vector<BucketSealer::Inserted> list;
    for (const PointGroups::Bucket& bucket : made.value()) {
      REQUIRE(InsertBucket(BsonView(bucket.document), old));
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

namespace {

constexpr const char* kIndexOfV = R"({"key":{"control.min.v":1,"control.max.v":1}})";

}  // namespace

TEST_CASE("An index on a measurement is not built over an array between other values", "[series]") {
  // It was, unless an array was the least and the greatest value of a bucket.
  const auto built = [](std::initializer_list<std::string_view> points,
                        std::string_view spec = kIndexOfV) {
    Sealing s;
    for (const std::string_view v : points) s.Insert(true, v);
    Operation op(s.store.clock);
    s.sealer->Settle(op);
    REQUIRE(s.Buckets() == 1);
    const auto r = s.store.catalog().CreateIndexes(*s.store.op, *s.buckets, {testing::Spec(spec)});
    const CollectionInfoPtr now = s.store.Coll("system.buckets.w");
    CHECK(now->indexes.size() == s.buckets->indexes.size() + (r ? 1 : 0));
    s.store.RequireValid(now);
    return r ? std::string() : r.error().message;
  };
  const std::string refused =
      "Indexed measurement field contains an array value: 'v' of the index "
      "'control.min.v_1_control.max.v_1'. Keep arrays out of the field, or do without the index";
  CHECK(built({R"({"v":1})", R"({"v":[1]})"}) == refused);
  CHECK(built({R"({"v":[1]})", R"({"v":true})"}) == refused);
  CHECK(built({R"({"v":[1]})", R"({"v":[2]})"}) == refused);
  CHECK(built({R"({"v":1})", R"({"v":[1]})", R"({"v":true})"}) == refused);
  CHECK(built({R"({"v":1})", R"({"w":[1]})", R"({"v":true})"}).empty());
  CHECK(built({R"({"v":1})", R"({"v":{"a":[1]}})", R"({"v":true})"}).empty());
  const std::string_view of_x = R"({"key":{"control.min.v.x":1,"control.max.v.x":1},"name":"x"})";
  const std::string refused_x =
      "Indexed measurement field contains an array value: 'v.x' of the index 'x'. Keep arrays out "
      "of the field, or do without the index";
  CHECK(built({R"({"v":{"x":1}})", R"({"v":{"x":[2]}})"}, of_x) == refused_x);
  CHECK(built({R"({"v":1})", R"({"v":{"x":[2]}})", R"({"v":true})"}, of_x) == refused_x);
  CHECK(built({R"({"v":1})", R"({"v":[{"x":1}]})", R"({"v":true})"}, of_x) == refused_x);
  CHECK(built({R"({"v":1})", R"({"v":{"x":[2]}})"}, of_x) == refused_x);
  CHECK(built({R"({"v":1})", R"({"v":{"y":[2]}})", R"({"v":true})"}, of_x).empty());
}

TEST_CASE("A new bucket with an array under an index on it is refused, wherever it comes from",
          "[series]") {
  // One with an array beside scalars was taken from an archive's source.
  Sealing s;
  for (const std::string_view v : {R"({"v":1})", R"({"v":[1]})", R"({"v":true})"})
    s.Insert(true, v);
  Operation op(s.store.clock);
  s.sealer->Settle(op);
  const std::vector<std::string> mixed = s.store.Scan(s.buckets);
  REQUIRE(mixed.size() == 1);
  REQUIRE(s.store.Change(*s.buckets, testing::Json(mixed[0]), true));
  REQUIRE(s.store.catalog().CreateIndexes(*s.store.op, *s.buckets, {testing::Spec(kIndexOfV)}));
  s.buckets = s.store.Coll("system.buckets.w");
  CHECK(testing::CodeOf(s.store.Insert(*s.buckets, mixed[0])) == LocationCode(5930501));
}

TEST_CASE("Arrays under an index of an earlier version stop no merge and no change of a bucket",
          "[series]") {
  // Sealing of that meta value and span stopped, and deletes failed with 171.
  Sealing s;
  REQUIRE(s.store.catalog().CreateIndexes(*s.store.op, *s.buckets, {testing::Spec(kIndexOfV)}));
  s.buckets = s.store.Coll("system.buckets.w");
  s.Insert(true, R"({"v":1})", true);
  s.Insert(true, R"({"v":[1,2]})", true);
  s.Insert(true, R"({"v":[3]})", true);
  Operation op(s.store.clock);
  s.sealer->Settle(op);
  CHECK(s.warned == 0);
  CHECK(s.Buckets() == 1);
  const IndexInfoPtr index = s.buckets->FindIndex("control.min.v_1_control.max.v_1");
  REQUIRE(index);
  // So no plan uses it.
  CHECK(index->HasMeasuredArrays());
  s.store.RequireValid(s.buckets);

  // What is left after a delete of the number.
  s.Insert(false, R"({"v":[7]})", true);
  const std::vector<std::string> all = s.store.Scan(s.buckets);
  REQUIRE(all.size() == 2);
  for (const std::string& bucket : all) {
    const BsonDocument next = BuildBson([&](BsonBuilder& b) {
      const BsonDocument was = testing::Json(bucket);
      for (const BsonElement& e : was.view())
        if (e.name != "control") b.Append(e);
      BsonBuilder control = b.OpenDocument("control");
      for (const char* side : {"min", "max"}) control.OpenDocument(side).OpenArray("v").Append(7);
    });
    CHECK(s.store.Change(*s.buckets, next, false));
  }
  s.store.RequireValid(s.buckets);
  for (const std::string& bucket : all)
    CHECK(s.store.Change(*s.buckets, testing::Json(bucket), true));
  CHECK(s.store.CountEntries(*index) == 0);
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
