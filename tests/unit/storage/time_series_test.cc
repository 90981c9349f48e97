#include "catalog_fixture.h"
#include "protocol/value.h"
#include "storage/catalog/namespace.h"
#include "storage/expiry/record_date.h"
#include "storage/keys/key_encoding.h"
#include "storage/keys/key_format.h"
#include "storage/read/visibility.h"

namespace mayfly {
using testing::CatalogStore;

namespace {

/// An ObjectId of these seconds.
std::string SeriesId(uint32_t seconds, char rest = 'x') {
  std::string id;
  AppendBe32(id, seconds);
  return id.append(8, rest);
}

BsonDocument SeriesBucket(uint32_t seconds) {
  return BuildBson([&](BsonBuilder& b) {
    b.AppendObjectId("_id", SeriesId(seconds));
    b.Append("meta", 1);
  });
}

Result<CollectionInfoPtr> MakeSeries(CatalogStore& s, std::string name = "w") {
  SeriesOptions options;
  options.time_field = "t";
  options.meta_field = "m";
  options.granularity = "seconds";
  CollectionInfo c;
  c.db = "db";
  c.name = std::move(name);
  c.kind = CollectionKind::kTimeSeries;
  c.series = std::make_shared<const SeriesOptions>(options);
  c.expire_after_seconds = 60;
  return s.catalog().Create(*s.op, std::move(c));
}

}  // namespace

TEST_CASE("A time series and its buckets come and go together, and are there after a start",
          "[timeseries]") {
  CatalogStore s;
  REQUIRE(MakeSeries(s));
  for (int pass = 0; pass < 2; ++pass) {
    CAPTURE(pass);
    const CollectionInfoPtr series = s.Coll("w"), buckets = s.Coll("system.buckets.w");
    REQUIRE(series);
    REQUIRE(buckets);
    CHECK(series->is_series());
    CHECK(series->is_view());
    CHECK(series->view_on == "system.buckets.w");
    CHECK(!series->expire_after_seconds);
    CHECK(buckets->is_buckets());
    CHECK(buckets->clustered());
    CHECK(buckets->expire_after_seconds == 60);
    CHECK(*buckets->series == *series->series);
    CHECK(buckets->HasTtlRules());
    CHECK(buckets->RuleSpanSeconds() == 3600);
    REQUIRE(buckets->indexes.size() == 1);
    CHECK(buckets->indexes[0]->name == "m_1_t_1");
    CHECK(buckets->indexes[0]->fields.size() == 3);
    CHECK(buckets->indexes[0]->state == IndexState::kReady);
    CHECK(MakeSeries(s).error().code == ErrorCode::kNamespaceExists);
    if (pass == 0) s.Open();
  }
  SECTION("dropped") { REQUIRE(s.catalog().Drop(*s.op, "db", "w")); }
  SECTION("with the database") { REQUIRE(s.catalog().DropDatabase(*s.op, "db")); }
  CHECK(s.catalog().ListAll().empty());
  s.Open();
  CHECK(s.catalog().ListAll().empty());
  CHECK(MakeSeries(s));
}

TEST_CASE("A name that is taken leaves no half of a time series", "[timeseries]") {
  CatalogStore s;
  s.Make("x");
  CHECK(MakeSeries(s, "x").error().code == ErrorCode::kNamespaceExists);
  CHECK(s.Coll("system.buckets.x") == nullptr);
}

TEST_CASE("No ordinary collection takes the name of a time series' buckets", "[timeseries]") {
  CatalogStore s;
  REQUIRE(MakeSeries(s));
  s.Make("o");
  Catalog& catalog = s.catalog();
  for (const char* name : {"system.buckets.w", "system.buckets.free"}) {
    CAPTURE(name);
    for (const bool drop_target : {false, true})
      CHECK(catalog.Rename(*s.op, *s.Coll("o"), "db", name, drop_target).error().code ==
            ErrorCode::kInvalidNamespace);
    CHECK(catalog.Rename(*s.op, *s.Coll("o"), "other", name, true).error().code ==
          ErrorCode::kInvalidNamespace);
  }
  CHECK(catalog.GetOrCreate(*s.op, "db", "system.buckets.free").error().code ==
        ErrorCode::kInvalidNamespace);
  CHECK(s.Coll("system.buckets.w")->is_buckets());
  CHECK(s.Coll("o") != nullptr);
  CHECK(MakeSeries(s, "free"));
}

TEST_CASE("What a time series is changed to is there after a start", "[timeseries]") {
  CatalogStore s;
  REQUIRE(MakeSeries(s));
  auto changed =
      s.catalog().Modify(*s.op, *s.Coll("system.buckets.w"), [](CollectionInfo& c) -> Result<void> {
        auto next = std::make_shared<SeriesOptions>(*c.series);
        next->suspended = true;
        next->max_span_seconds = 86'400;
        next->granularity = "minutes";
        c.series = std::move(next);
        return Ok();
      });
  REQUIRE(changed);
  s.Open();
  const CollectionInfoPtr buckets = s.Coll("system.buckets.w");
  CHECK(buckets->ExpirySuspended());
  CHECK(buckets->RuleSpanSeconds() == 86'400);
  CHECK(buckets->series->granularity == "minutes");
}

TEST_CASE("Dates of records: in the order of keys, with bounds that hold each once",
          "[timeseries]") {
  const uint32_t seconds[] = {0, 1, 59, 60, 1'900'000'000, 0x7FFF'FFFF, 0x8000'0000, 0xFFFF'FFFF};
  for (const uint32_t at : seconds) {
    const int64_t millis = int64_t{at} * 1000;
    const std::string id = SeriesId(at);
    int64_t date = -1;
    REQUIRE(DateOfRecord(RecordDates::kBuckets, Value::ObjectId(id).view(), &date));
    CHECK(date == millis);
    std::string key, bound;
    EncodeKeyValue(Value::ObjectId(id).view(), false, key);
    Instant decoded;
    REQUIRE(DecodeRecordDate(RecordDates::kBuckets, key, &decoded));
    CHECK(decoded.millis == millis);
    for (const int64_t from : {millis - 1000, millis - 1, millis, millis + 1, millis + 999}) {
      CAPTURE(at, from);
      bound.clear();
      AppendRecordDate(RecordDates::kBuckets, from, bound);
      CHECK((key >= bound) == (millis >= from));
    }
    bound.clear();
    AppendRecordDatesEnd(RecordDates::kBuckets, bound);
    CHECK(key < bound);
  }
  int64_t date;
  CHECK(!DateOfRecord(RecordDates::kBuckets, Value::Date({5}).view(), &date));
  CHECK(!DateOfRecord(RecordDates::kId, Value::Date({-5}).view(), &date));
  CHECK(DateOfRecord(RecordDates::kId, Value::Date({5}).view(), &date));
  CHECK(date == 5);
}

TEST_CASE("Exact reads hide a bucket once its span and the seconds have passed", "[timeseries]") {
  CatalogStore s;
  REQUIRE(MakeSeries(s));
  const CollectionInfoPtr buckets = s.Coll("system.buckets.w");
  const BsonDocument bucket = SeriesBucket(1'000'000);
  REQUIRE(s.Insert(*buckets, bucket));
  s.storage->expiry_policy().index_reads_exact_default = true;
  const int64_t due = (int64_t{1'000'000} + 3600 + 60) * 1000;
  CHECK(Visibility(*s.storage, *buckets, Instant{due - 1}).Shows(bucket, {}));
  CHECK(!Visibility(*s.storage, *buckets, Instant{due}).Shows(bucket, {}));
  auto changed = s.catalog().Modify(*s.op, *buckets, [](CollectionInfo& c) -> Result<void> {
    auto next = std::make_shared<SeriesOptions>(*c.series);
    next->suspended = true;
    c.series = std::move(next);
    return Ok();
  });
  REQUIRE(changed);
  CHECK(Visibility(*s.storage, *changed.value(), Instant{due}).Shows(bucket, {}));
}

}  // namespace mayfly
