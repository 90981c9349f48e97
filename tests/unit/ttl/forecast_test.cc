#include "ttl/forecast.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>

#include "storage/keys/key_encoding.h"
#include "tests/unit/storage/catalog_fixture.h"
#include "ttl/rule_date.h"
#include "ttl/ttl_controls.h"
#include "ttl/ttl_guard.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

constexpr int64_t kForecastStart = 1'900'000'000'000;

struct Forecasting : CatalogStore {
  Forecasting() {
    clock.Freeze(true);  // first: no millisecond passes in between
    clock.Set({kForecastStart});
    op = std::make_unique<Operation>(clock);
  }
  std::vector<TtlRule> Rules(std::string_view name = "c") {
    std::vector<InvalidTtlRule> invalid;
    std::vector<TtlRule> out;
    for (TtlRule& r : ListTtlRules(catalog(), &invalid))
      if (r.coll->name == name && r.kind != TtlRule::Kind::kDocument) out.push_back(std::move(r));
    return out;
  }
  /// `at(i)`: the date of document i; nothing: it has none.
  void Fill(int64_t documents, const std::function<std::optional<int64_t>(int64_t)>& at) {
    CollectionInfoPtr c = Coll();
    for (int64_t i = 0; i < documents;) {
      WriteUnit u(*storage, *op);
      std::vector<BsonDocument> docs;
      docs.reserve(1000);
      for (int64_t end = std::min(documents, i + 1000); i < end; ++i) {
        docs.push_back(BuildBson([&](BsonBuilder& b) {
          b.Append("_id", i);
          if (auto date = at(i)) b.Append("at", Instant{*date});
        }));
        REQUIRE(u.Insert(*c, docs.back()));
      }
      REQUIRE(storage->committer().Commit(std::move(u)));
    }
  }
  void Index(std::string_view spec) {
    REQUIRE(catalog().CreateIndexes(*op, *Make(), {Spec(spec)}));
  }
};

}  // namespace

TEST_CASE("The guard trips above the fraction and from the least number on", "[ttl]") {
  struct Case {
    double due;
    int64_t documents;
    bool trips;
  };
  for (Case c : {Case{0, 0, false},
                 {9'999, 10'000, false},
                 {10'000, 20'000, false},
                 {10'001, 20'000, true},
                 {10'000, 10'000, true},
                 {10'000, 1'000'000, false},
                 {600'000, 1'000'000, true}}) {
    CAPTURE(c.due, c.documents);
    CHECK(GuardTrips(c.due, c.documents, 0.5, 10'000) == c.trips);
  }
  CHECK(GuardTrips(1, 100, 0, 0));
  CHECK_FALSE(GuardTrips(0, 100, 0, 0));
  CHECK_FALSE(GuardTrips(100, 100, 1, 0));
}

TEST_CASE("A small collection is forecast exactly: bounds belong to the earlier interval",
          "[ttl]") {
  Forecasting f;
  f.Index(R"({"key": {"at": 1}, "expireAfterSeconds": 10})");
  // Deadlines at -1 s, 0, 1 ms, 60 s, 60.001 s, 120 s, 120.001 s; and none.
  const std::vector<int64_t> offsets = {-1000, 0, 1, 60'000, 60'001, 120'000, 120'001};
  f.Fill(8, [&](int64_t i) -> std::optional<int64_t> {
    if (i == 7) return {};
    return kForecastStart - 10'000 + offsets[static_cast<size_t>(i)];
  });
  auto r = MakeForecast(*f.storage, *f.op, f.Coll(), f.Rules(), {120, 2}, nullptr);
  REQUIRE(r);
  const Forecast& x = r.value();
  CHECK(x.exact);
  CHECK(x.error_fraction == 0);
  CHECK(x.overdue == 2);
  REQUIRE(x.intervals.size() == 2);
  CHECK(x.intervals[0].count == 2);
  CHECK(x.intervals[1].count == 2);
  CHECK(x.beyond == 1);
  CHECK(x.never == 1);
}

TEST_CASE("Ranges of dates hold exactly the entries of these dates, in both directions", "[ttl]") {
  Forecasting f;
  const char* key = GENERATE("1", "-1");
  f.Index(std::string("{\"key\": {\"at\": ") + key + "}, \"expireAfterSeconds\": 0}");
  const std::vector<int64_t> dates = {INT64_MIN, INT64_MIN + 1, -5, 0, 7, INT64_MAX - 1, INT64_MAX};
  f.Fill(8, [&](int64_t i) -> std::optional<int64_t> {
    if (i == 7) return {};
    return dates[static_cast<size_t>(i)];
  });
  const TtlRule rule = f.Rules()[0];
  RangeCounter counter(*f.storage, *f.op, rule);
  // INT64_MAX as the end means no bound.
  auto n = counter.Count({INT64_MIN, INT64_MIN + 1, -5, 0, 8, INT64_MAX - 1, INT64_MAX});
  REQUIRE(n);
  const std::vector<double> want = {1, 1, 1, 2, 0, 2};
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(n.value()[i].n == want[i]);
    CHECK(n.value()[i].exact);
  }
}

TEST_CASE("Overdue buckets are estimated, and few of them read", "[ttl]") {
  Forecasting f;
  CollectionInfo series;
  series.db = "db";
  series.name = "w";
  series.kind = CollectionKind::kTimeSeries;
  series.series = std::make_shared<const SeriesOptions>(SeriesOptions{.time_field = "t"});
  series.expire_after_seconds = 60;
  REQUIRE(f.catalog().Create(*f.op, std::move(series)));
  const CollectionInfoPtr buckets = f.Coll("system.buckets.w");
  const auto put = [&](uint32_t from, uint32_t n) {
    for (uint32_t i = from; i < from + n; ++i) {
      std::string id;
      AppendBe32(id, i);
      REQUIRE(f.Insert(*buckets, BuildBson([&](BsonBuilder& b) {
        b.AppendObjectId("_id", id.append(8, 'x')).Append("data", std::string(1000, 'x'));
      })));
    }
  };
  const auto due = [&] {
    const TtlRule rule = f.Rules("system.buckets.w")[0];
    const int64_t before = f.op->keys_examined;
    auto counted = CountDue(*f.storage, *f.op, rule, true);
    REQUIRE(counted);
    CHECK(f.op->keys_examined - before <= 201);
    return counted.value().n;
  };
  put(1'000'000, 150);
  CHECK(due() == 150);
  put(2'000'000, 850);
  REQUIRE(f.storage->kv().Flush());
  CHECK(due() >= 500);
  CHECK(due() <= 1000);
}

TEST_CASE("A large index is estimated within the error that is stated", "[ttl]") {
  Forecasting f;
  const bool descending = GENERATE(false, true);
  f.Index(std::string("{\"key\": {\"at\": ") + (descending ? "-1" : "1") +
          "}, \"expireAfterSeconds\": 0}");
  constexpr int64_t kDocuments = 200'000;
  // A burst of 40% in one millisecond, a trickle over the day, a tail beyond, and some without.
  f.Fill(kDocuments, [](int64_t i) -> std::optional<int64_t> {
    const int64_t scattered = i * 7'919 % kDocuments;
    if (i % 10 < 4) return kForecastStart + 3'600'000 / 2;
    if (i % 10 < 8) return kForecastStart + 1 + scattered * 86'400'000 / kDocuments;
    if (i % 10 < 9) return kForecastStart + 200'000'000 + scattered;
    return {};
  });
  const bool flushed = GENERATE(false, true);
  if (flushed) REQUIRE(f.storage->kv().Flush());
  CAPTURE(descending, flushed);
  auto r = MakeForecast(*f.storage, *f.op, f.Coll(), f.Rules(), {86'400, 24, 50'000}, nullptr);
  REQUIRE(r);
  const Forecast& x = r.value();
  CHECK_FALSE(x.exact);
  CAPTURE(x.error_fraction);
  CHECK(x.error_fraction > 0);
  CHECK(x.error_fraction < 0.3);
  auto near = [&](double got, double want) {
    CAPTURE(got, want);
    CHECK(std::abs(got - want) <= want * std::max(x.error_fraction, 0.02) + 1);
  };
  near(static_cast<double>(x.intervals[0].count), 0.4 * kDocuments + 0.4 * kDocuments / 24);
  near(static_cast<double>(x.intervals[12].count), 0.4 * kDocuments / 24);
  near(static_cast<double>(x.beyond), 0.1 * kDocuments);
  CHECK(x.overdue == 0);

  // With the usual limit these are counted.
  auto counted = MakeForecast(*f.storage, *f.op, f.Coll(), f.Rules(), {86'400, 24}, nullptr);
  REQUIRE(counted);
  CHECK(counted.value().exact);
  CHECK(counted.value().error_fraction == 0);
  CHECK(counted.value().beyond == kDocuments / 10);
  CHECK(counted.value().never == kDocuments / 10);
}

TEST_CASE("Reasons why documents never expire, by type and place", "[ttl]") {
  Forecasting f;
  f.Index(R"({"key": {"a.t": 1}, "expireAfterSeconds": 0})");
  const TtlRule rule = f.Rules()[0];
  struct Case {
    const char* doc;
    const char* why;
  };
  for (Case c :
       {Case{R"({"_id": 1})", "missing"},
        {R"({"_id": 1, "a": 5})", "missing"},
        {R"({"_id": 1, "a": {"t": null}})", "null"},
        {R"({"_id": 1, "a": {"t": "x"}})", "string"},
        {R"({"_id": 1, "a": {"t": {"$numberDecimal": "1"}}})", "number"},
        {R"({"_id": 1, "a": {"t": {"$timestamp": {"t": 1, "i": 1}}}})", "timestamp"},
        {R"({"_id": 1, "a": {"t": []}})", "emptyArray"},
        {R"({"_id": 1, "a": {"t": [1]}})", "arrayWithoutDate"},
        {R"({"_id": 1, "a": [{"t": 1}]})", "arrayWithoutDate"},
        {R"({"_id": 1, "a": []})", "missing"},
        {R"({"_id": 1, "a": {"t": {"$minKey": 1}}})", "other"},
        {R"({"_id": 1, "a": {"t": {"$date": "1950-01-01T00:00:00Z"}}})", "no"},
        {R"({"_id": 1, "a": [{"t": 1}, {"t": {"$date": "1950-01-01T00:00:00Z"}}]})", "no"}}) {
    CAPTURE(c.doc);
    NeverExpires why;
    auto date = DateByRule(rule, Json(c.doc), {}, &why);
    CHECK(NeverExpiresName(why) == c.why);
    CHECK(date.has_value() == (why == NeverExpires::kNo));
  }
}

TEST_CASE("A census is interrupted", "[ttl]") {
  Forecasting f;
  f.Index(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  f.Fill(100, [](int64_t) { return std::optional<int64_t>(kForecastStart); });
  f.op->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  auto c = TakeCensus(*f.storage, *f.op, f.Rules()[0], 1);
  REQUIRE_FALSE(c);
  CHECK(c.error().code == ErrorCode::kInterrupted);
  auto x = MakeForecast(*f.storage, *f.op, f.Coll(), f.Rules(), {}, nullptr);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == ErrorCode::kInterrupted);
}
