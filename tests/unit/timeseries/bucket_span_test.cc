#include "timeseries/bucket_span.h"

#include "protocol/extended_json.h"
#include "timeseries/bucket_control.h"

#include "tests/unit/timeseries/random_points.h"

using namespace mayfly;

namespace {

ErrorCode CodeOf(const Result<SeriesSpan>& r) {
  return r.has_value() ? ErrorCode::kOk : r.error().code;
}
SpanOptions Seconds(std::optional<int64_t> max, std::optional<int64_t> rounding) {
  return {{}, max, rounding};
}
BsonDocument Doc(const char* text) {
  auto doc = ParseJson(text);
  REQUIRE(doc.has_value());
  return doc.value();
}

}  // namespace

TEST_CASE("Spans that create takes", "[bucket]") {
  CHECK(SpanForCreate({}).value().span == BucketSpan{3600, 60});
  CHECK(SpanForCreate({"minutes", {}, {}}).value().span == BucketSpan{86'400, 3600});
  CHECK(SpanForCreate({"hours", {}, {}}).value().span == BucketSpan{2'592'000, 86'400});
  CHECK(SpanForCreate(Seconds(300, 300)).value().span == BucketSpan{300, 300});
  CHECK(SpanForCreate(Seconds(31'536'000, 31'536'000)).has_value());
  CHECK(CodeOf(SpanForCreate({"days", {}, {}})) == ErrorCode::kBadValue);
  CHECK(CodeOf(SpanForCreate(Seconds(0, 0))) == ErrorCode::kBadValue);
  CHECK(CodeOf(SpanForCreate(Seconds(31'536'001, 31'536'001))) == ErrorCode::kBadValue);
  CHECK(CodeOf(SpanForCreate(Seconds(300, 60))) == ErrorCode::kInvalidOptions);
  CHECK(CodeOf(SpanForCreate(Seconds(300, {}))) == ErrorCode::kInvalidOptions);
  CHECK(CodeOf(SpanForCreate(Seconds({}, 300))) == ErrorCode::kInvalidOptions);
  CHECK(CodeOf(SpanForCreate({"hours", 300, 300})) == ErrorCode::kInvalidOptions);
}

TEST_CASE("Spans only grow", "[bucket]") {
  const SeriesSpan seconds = SpanForCreate({}).value();
  const SeriesSpan minutes = SpanForChange(seconds, {"minutes", {}, {}}).value();
  CHECK(minutes.granularity == "minutes");
  CHECK(SpanForChange(minutes, {"hours", {}, {}}).value().span.max_span_seconds == 2'592'000);
  CHECK(CodeOf(SpanForChange(seconds, {"hours", {}, {}})) == ErrorCode::kInvalidOptions);
  CHECK(CodeOf(SpanForChange(minutes, {"seconds", {}, {}})) == ErrorCode::kInvalidOptions);
  CHECK(SpanForChange(minutes, {"minutes", {}, {}}).has_value());
  const SeriesSpan custom = SpanForChange(seconds, Seconds(7200, 7200)).value();
  CHECK(custom.granularity.empty());
  CHECK(CodeOf(SpanForChange(custom, Seconds(3600, 3600))) == ErrorCode::kInvalidOptions);
  CHECK(CodeOf(SpanForChange(custom, {"seconds", {}, {}})) == ErrorCode::kInvalidOptions);
  CHECK(SpanForChange(SpanForCreate(Seconds(60, 60)).value(), {"seconds", {}, {}}).has_value());
}

TEST_CASE("A span that would shrink is named by what shrinks of it", "[bucket]") {
  // "hours" spans 30 days, but rounds to one.
  const SeriesSpan custom = SpanForCreate(Seconds(200'000, 200'000)).value();
  const auto text = [&](const SpanOptions& to) {
    return SpanForChange(custom, to).error().message;
  };
  CHECK(text({"hours", {}, {}}).find("bucketRoundingSeconds cannot become smaller than 200000") !=
        std::string::npos);
  CHECK(text({"seconds", {}, {}}).find("bucketMaxSpanSeconds cannot become smaller than 200000") !=
        std::string::npos);
  CHECK(text(Seconds(100, 100)).find("bucketMaxSpanSeconds cannot become smaller than 200000") !=
        std::string::npos);
}

TEST_CASE("Names of the fields of time series", "[bucket]") {
  const auto code = [](const char* time, std::string meta) {
    auto r = CheckSeriesFields(time, &meta);
    return r.has_value() ? ErrorCode::kOk : r.error().code;
  };
  CHECK(code("t", "m") == ErrorCode::kOk);
  for (const char* bad : {"", "a.b", "$t", "_id"}) {
    CHECK(code(bad, "m") == ErrorCode::kInvalidOptions);
    CHECK(code("t", bad) == ErrorCode::kInvalidOptions);
  }
  CHECK(code("t", "t") == ErrorCode::kInvalidOptions);
}

TEST_CASE("Lower bounds of buckets", "[bucket]") {
  const BucketSpan minute{3600, 60}, year{kMaxBucketSpanSeconds, kMaxBucketSpanSeconds};
  CHECK(BucketFloor(Instant{119'999}, minute).millis == 60'000);
  CHECK(BucketFloor(Instant{120'000}, minute).millis == 120'000);
  CHECK(BucketFloor(Instant{-1}, minute).millis == -60'000);
  CHECK(BucketFloor(Instant{-60'000}, minute).millis == -60'000);
  CHECK(BucketFloor(Instant{-60'001}, minute).millis == -120'000);
  for (const BucketSpan span : {minute, year}) {
    for (const int64_t t : {INT64_MIN, INT64_MIN + 1, INT64_MAX, int64_t{0}}) {
      const Instant floor = BucketFloor(Instant{t}, span);
      CHECK(floor.millis <= t);
      CHECK(FitsBucket(Instant{t}, floor, span));
    }
  }
  CHECK(BucketIdPrefix(Instant{1'893'456'000'999}) == "\x70\xDB\xD8\x80");
  CHECK(BucketIdPrefix(Instant{-1}) == "\xFF\xFF\xFF\xFF");
  CHECK(!FitsBucket(Instant{3'660'000}, Instant{60'000}, minute));
  CHECK(FitsBucket(Instant{3'659'999}, Instant{60'000}, minute));
  CHECK(!FitsBucket(Instant{59'999}, Instant{60'000}, minute));
  CHECK(!FitsBucket(Instant{INT64_MAX}, Instant{INT64_MIN}, year));
}

TEST_CASE("Dates that suspend expiry", "[bucket]") {
  CHECK(!SuspendsExpiry(Instant{0}));
  CHECK(SuspendsExpiry(Instant{-1}));
  CHECK(!SuspendsExpiry(Instant{2'147'483'647'000}));
  CHECK(SuspendsExpiry(Instant{2'147'483'647'001}));
}

TEST_CASE("A point of very many parts is charged while its control is made, and may be interrupted",
          "[bucket]") {
  const SeriesFields fields{"t", "m"};
  const BsonDocument point = BuildBson([](BsonBuilder& b) {
    b.Append("t", Instant{61'000});
    BsonArrayBuilder list = b.OpenArray("a");
    for (int32_t i = 0; i < 100'000; ++i) list.Append(i);
  });
  const std::vector<BsonView> views{point.view()};
  int asked = 0;
  const auto make = [&](int64_t limit, int refused_at) {
    large_memory::Budget budget;
    budget.SetLimit(limit);
    const large_memory::BudgetScope scope(budget);
    asked = 0;
    std::string bytes;
    BsonBuilder b(bytes);
    const Result<void> r =
        AppendBucketDocument(b, views, fields, "123456789012", {}, Instant{60'000},
                             BucketForm::kRows, [&]() -> Result<void> {
                               if (++asked == refused_at)
                                 return Error{ErrorCode::kInterrupted, "enough"};
                               return Ok();
                             });
    CHECK(budget.used() == 0);
    return r ? ErrorCode::kOk : r.error().code;
  };
  CHECK(make(int64_t{1} << 30, 0) == ErrorCode::kOk);
  CHECK(asked > 100);
  CHECK(make(int64_t{1} << 30, 7) == ErrorCode::kInterrupted);
  CHECK(asked == 7);
  CHECK(make(int64_t{8} << 20, 0) == ErrorCode::kExceededMemoryLimit);
}

TEST_CASE("The encoding of large points is charged", "[bucket]") {
  const SeriesFields fields{"t", "m"};
  const auto make = [&](const BsonDocument& point, BucketForm form, int64_t limit) {
    large_memory::Budget budget;
    budget.SetLimit(limit);
    const large_memory::BudgetScope scope(budget);
    std::string bytes;
    BsonBuilder b(bytes);
    const std::vector<BsonView> views(40, point.view());
    const Result<void> r =
        AppendBucketDocument(b, views, fields, "123456789012", {}, Instant{60'000}, form);
    CHECK(budget.used() == 0);
    return r ? ErrorCode::kOk : r.error().code;
  };
  // 20 MB, of which a copy is made.
  const BsonDocument large = BuildBson([](BsonBuilder& b) {
    b.Append("t", Instant{61'000}).Append("s", std::string(500'000, 'a'));
  });
  for (const BucketForm form : {BucketForm::kRows, BucketForm::kColumns}) {
    CHECK(make(large, form, int64_t{1} << 30) == ErrorCode::kOk);
    CHECK(make(large, form, int64_t{30} << 20) == ErrorCode::kExceededMemoryLimit);
  }
  // 10 MB of a million small values, of each of which more is kept than its bytes.
  const BsonDocument many = BuildBson([](BsonBuilder& b) {
    b.Append("t", Instant{61'000});
    for (int i = 0; i < 1000; ++i) b.Append("f" + std::to_string(i), i);
  });
  const std::vector<BsonView> thousand(1000, many.view());
  for (const int64_t limit : {int64_t{1} << 30, int64_t{10} << 20}) {
    large_memory::Budget budget;
    budget.SetLimit(limit);
    const large_memory::BudgetScope scope(budget);
    const auto sealed = SealPoints(thousand, fields, {});
    CHECK(sealed.has_value() == (limit == int64_t{1} << 30));
    if (!sealed) CHECK(sealed.error().code == ErrorCode::kExceededMemoryLimit);
    CHECK(budget.used() == 0);
  }
}

TEST_CASE("Bucket documents, of rows and of columns", "[bucket]") {
  const SeriesFields fields{"t", "m"};
  const std::vector<BsonDocument> points = {
      Doc(R"({"m":"h","t":{"$date":{"$numberLong":"61000"}},"a":5,"d":{"x":1,"y":"s"},"l":[1,9]})"),
      Doc(R"({"t":{"$date":{"$numberLong":"62000"}},"d":{"x":-1,"z":2},"m":"h","l":[3],"m":1})"),
      Doc(R"({"t":{"$date":{"$numberLong":"61500"}},"a":"text","d":4,"m":"h"})")};
  const std::vector<BsonView> views(points.begin(), points.end());
  const std::string all = points[0].bytes() + points[1].bytes() + points[2].bytes();
  for (const BucketForm form : {BucketForm::kRows, BucketForm::kColumns}) {
    const BsonDocument shown = BuildBson([&](BsonBuilder& b) {
      REQUIRE(AppendBucketDocument(b, views, fields, "123456789012", points[0].view()["m"],
                                   Instant{60'000}, form)
                  .has_value());
    });
    CHECK(ToRelaxedJson(shown.view()["control"].Document()) ==
          ToRelaxedJson(Doc(
              R"({"version":128,"min":{"t":{"$date":{"$numberLong":"60000"}},"a":5,"d":4,"l":[1,9]},
                "max":{"t":{"$date":{"$numberLong":"62000"}},"a":"text","d":{"x":1,"y":"s","z":2},
                       "l":[3,9]},"count":3})")));
    auto facts = FactsOfBucketDocument(shown, fields);
    REQUIRE(facts.has_value());
    CHECK(facts.value().count == 3);
    CHECK(facts.value().rows == (form == BucketForm::kRows));
    CHECK(ControlIsRight(shown, views, fields, Instant{60'000}).value());
    CHECK(!ControlIsRight(shown, views, fields, Instant{0}).value());
    std::string out;
    std::vector<size_t> ends;
    large_memory::Hold hold;
    REQUIRE(PointsOfBucketDocument(shown, fields, out, ends, hold).has_value());
    CHECK(out == all);
    REQUIRE(ends.size() == 3);
    const std::set<std::string> only{"a", "m"};
    BucketPoints some;
    REQUIRE(some.Open(shown, fields, &only).has_value());
    CHECK(some.count() == 3);
    const BsonView first = some.Next().value().value();
    CHECK(ToRelaxedJson(first) == ToRelaxedJson(Doc(R"({"m":"h","a":5})")));
    large_memory::Kept kept;  // by a cursor that pauses here
    some.AddKept(&kept);
    CHECK(kept.bytes >= first.size());
    REQUIRE(some.Skip().has_value());
    CHECK(ToRelaxedJson(some.Next().value().value()) ==
          ToRelaxedJson(Doc(R"({"a":"text","m":"h"})")));
    CHECK_FALSE(some.Next().value());
    // No byte of it can do harm.
    std::string bytes(shown.bytes());
    const size_t data = bytes.size() - shown.view()["data"].BinaryData().size() - 1;
    for (size_t i = data; i + 1 < bytes.size(); ++i) {
      for (const char bits : {1, 64, -1}) {
        bytes[i] = static_cast<char>(bytes[i] ^ bits);
        out.clear();
        ends.clear();
        auto decoded = PointsOfBucketDocument(BsonView(bytes), fields, out, ends, hold);
        if (decoded.has_value()) CHECK(ends.size() == 3);
        bytes[i] = static_cast<char>(bytes[i] ^ bits);
      }
    }
  }
}

TEST_CASE("Random points come back from bucket documents byte for byte", "[bucket]") {
  const SeriesFields fields{"t", "m"};
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    RandomPoints random(seed);
    std::vector<BsonDocument> points;
    std::string all;
    for (uint64_t n = 1 + random.Below(30); n > 0; --n) {
      BsonDocument point = random.Point(static_cast<int64_t>(random.Below(1000)));
      // One meta value, or none.
      if (point.view().Has("m") != (seed % 4 != 0)) continue;
      all += point.bytes();
      points.push_back(std::move(point));
    }
    if (points.empty()) continue;
    const std::vector<BsonView> views(points.begin(), points.end());
    for (const BucketForm form : {BucketForm::kRows, BucketForm::kColumns}) {
      const BsonDocument shown = BuildBson([&](BsonBuilder& b) {
        REQUIRE(AppendBucketDocument(b, views, fields, "123456789012", points[0].view()["m"],
                                     Instant{0}, form)
                    .has_value());
      });
      std::string out;
      std::vector<size_t> ends;
      large_memory::Hold hold;
      REQUIRE(PointsOfBucketDocument(shown, fields, out, ends, hold).has_value());
      CAPTURE(seed);
      CHECK(out == all);
    }
  }
}

TEST_CASE("Buckets in the layout by field", "[bucket]") {
  const SeriesFields fields{"t", "m"};
  const BsonDocument shown = Doc(
      R"({"control":{"version":1},"meta":"h","data":{"t":{"0":{"$date":{"$numberLong":"1"}},
          "1":{"$date":{"$numberLong":"2"}}},"a":{"1":[5]}}})");
  std::string out;
  std::vector<size_t> ends;
  large_memory::Hold hold;
  REQUIRE(PointsOfBucketDocument(shown, fields, out, ends, hold).has_value());
  REQUIRE(ends.size() == 2);
  CHECK(ToRelaxedJson(BsonView(out.data() + ends[0])) ==
        ToRelaxedJson(Doc(R"({"t":{"$date":{"$numberLong":"2"}},"a":[5],"m":"h"})")));
  CHECK(FactsOfBucketDocument(shown, fields).value().count == 2);
  for (
      const char* bad :
      {R"({})", R"({"control":{"version":2},"data":{}})", R"({"control":{"version":1},"data":{}})",
       R"({"control":{"version":1},"data":{"t":{"0":5}}})",
       R"({"control":{"version":128,"count":1},"data":{}})",
       R"({"control":{"version":1},"data":{"t":{"1":{"$date":{"$numberLong":"1"}}}}})",
       R"({"control":{"version":1},"data":{"t":{"0":{"$date":{"$numberLong":"1"}}},"a":{"x":1}}})",
       R"({"control":{"version":1},"data":{"t":{"0":{"$date":{"$numberLong":"1"}}},"a":{"1":1}}})"}) {
    CAPTURE(bad);
    CHECK(PointsOfBucketDocument(Doc(bad), fields, out, ends, hold).error().code ==
          ErrorCode::kBadValue);
  }
}
