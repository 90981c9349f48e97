#include "timeseries/bucket_codec.h"

#include <rapidcheck.h>

#include <bit>
#include <cmath>

#include "protocol/bson_compare.h"
#include "protocol/bson_validate.h"
#include "protocol/extended_json.h"
#include "tests/unit/timeseries/random_points.h"

using namespace mayfly;

namespace {

const SeriesFields kFields{"t", "m"};

BsonDocument Json(const char* text) {
  auto doc = ParseJson(text);
  REQUIRE(doc.has_value());
  return doc.value();
}

std::vector<BsonView> Views(const std::vector<BsonDocument>& points) {
  return {points.begin(), points.end()};
}

BsonValue MetaOf(const std::vector<BsonDocument>& points) {
  return points.empty() ? BsonValue() : points[0].view()["m"];
}

std::string Seal(const std::vector<BsonDocument>& points) {
  auto bucket = SealPoints(Views(points), kFields, MetaOf(points));
  REQUIRE(bucket.has_value());
  return bucket.value();
}

/// What comes out of the bucket is what went in, at once and from any point on.
bool ComesBack(const std::vector<BsonDocument>& points, size_t from = 0) {
  const std::string bucket = Seal(points);
  auto reader = BucketReader::Open(bucket, MetaOf(points));
  if (!reader.has_value() || reader.value().count() != points.size()) return false;
  std::string out, expected;
  std::vector<size_t> ends, expected_ends;
  if (!reader.value().Append(from, points.size(), nullptr, out, ends).has_value()) return false;
  for (size_t i = from; i < points.size(); ++i) {
    expected.append(points[i].bytes());
    expected_ends.push_back(expected.size());
  }
  return out == expected && ends == expected_ends;
}

std::vector<BsonDocument> Random(uint64_t seed, size_t n) {
  RandomPoints random(seed);
  std::vector<BsonDocument> points;
  for (size_t i = 0; i < n; ++i)
    points.push_back(random.Point(static_cast<int64_t>(i * 10'000 + random.Below(3))));
  return points;
}

}  // namespace

TEST_CASE("Random points come back byte for byte", "[bucket]") {
  CHECK(rc::check("seal and read", [] {
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const auto n = *rc::gen::inRange<size_t>(0, 300);
    const auto points = Random(seed, n);
    for (const auto& p : points) RC_ASSERT(ValidateBson(p.bytes(), false).has_value());
    RC_ASSERT(ComesBack(points));
    RC_ASSERT(ComesBack(points, n / 3));
  }));
}

TEST_CASE("Integers of all widths come back", "[bucket]") {
  CHECK(rc::check("put and take", [] {
    const auto shift = *rc::gen::inRange(0, 64);
    const auto start = *rc::gen::arbitrary<int64_t>();
    auto values = *rc::gen::arbitrary<std::vector<int64_t>>();
    uint64_t sum = static_cast<uint64_t>(start);
    for (int64_t& v : values) v = static_cast<int64_t>(sum += static_cast<uint64_t>(v >> shift));
    std::string bytes;
    PutIntegers(bytes, values);
    DecodeBudget budget(1 << 20);
    BucketBytes in(bytes);
    auto back = TakeIntegers(in, values.size(), budget);
    RC_ASSERT(back.has_value());
    RC_ASSERT(in.done());
    RC_ASSERT(back.value() == values);
  }));
}

TEST_CASE("Points of even intervals cost almost nothing", "[bucket]") {
  std::vector<BsonDocument> points;
  for (int i = 0; i < 1000; ++i)
    points.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("t", Instant{1'700'000'000'000 + i * 10'000});
      b.Append("m", "host_1");
      b.Append("v", 21.5);
    }));
  CHECK(Seal(points).size() < 100);
  CHECK(ComesBack(points));
}

TEST_CASE("What BSON allows comes back", "[bucket]") {
  const auto field = [](auto&& fill) {
    return BuildBson([&](BsonBuilder& b) {
      b.Append("t", Instant{5});
      fill(b);
    });
  };
  // Names twice, empty names and names with dots; empty documents and arrays; the meta field in the
  // middle, missing, twice, and of another value than the bucket's.
  std::vector<BsonDocument> points = {
      field(
          [](BsonBuilder& b) { b.Append("a", 1).Append("a", "x").Append("", 2).Append("a.b", 3); }),
      field([](BsonBuilder& b) { b.OpenDocument("a"); }),
      field([](BsonBuilder& b) { b.OpenArray("a"); }),
      field([](BsonBuilder& b) { b.Append("m", 1).Append("b", 2).Append("m", 3); }),
      field([](BsonBuilder& b) { b.Append("m", Json(R"({"x":{"y":1}})")); }),
      field([](BsonBuilder&) {}),
  };
  CHECK(ComesBack(points));
  // An array whose names are not those that arrays have.
  points.push_back(field([](BsonBuilder& b) {
    b.Append("a", Json(R"({"7":1,"x":2})").view().AsValue(BsonType::kArray));
  }));
  CHECK(ComesBack(points));
  // Deeper than documents are taken apart.
  std::string deep = R"({"v":1})";
  for (int i = 0; i < 40; ++i) deep = R"({"d":)" + deep + "}";
  points.push_back(field([&](BsonBuilder& b) { b.Append("a", Json(deep.c_str())); }));
  CHECK(ComesBack(points));
}

TEST_CASE("Points of too many shapes are rows", "[bucket]") {
  std::vector<BsonDocument> points;
  for (int i = 0; i < 3000; ++i)
    points.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("t", Instant{i});
      for (int f = 0; f < 3; ++f) b.Append("f" + std::to_string(3 * i + f), i);
    }));
  CHECK(Seal(points)[1] == 0);
  CHECK(ComesBack(points));
  CHECK(ComesBack(points, 2999));
  // Too many paths below a field alone: that field stays whole.
  points.clear();
  for (int i = 0; i < 3000; ++i)
    points.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("t", Instant{i});
      BsonBuilder d = b.OpenDocument("d");
      for (int f = 0; f < 3; ++f) d.Append("f" + std::to_string(3 * i + f), i);
    }));
  CHECK(Seal(points)[1] == 1);
  CHECK(ComesBack(points));
}

TEST_CASE("Projections unpack what they ask for", "[bucket]") {
  CHECK(rc::check("projection", [] {
    const auto points = Random(*rc::gen::arbitrary<uint64_t>(), 50);
    const std::vector<std::string> names = {"t", "c", "zz"};
    const std::string bucket = Seal(points);
    const BsonDocument first = points[0];
    auto reader = BucketReader::Open(bucket, first.view()["m"]);
    RC_ASSERT(reader.has_value());
    std::string out, expected;
    std::vector<size_t> ends;
    RC_ASSERT(reader.value().Append(0, 50, &names, out, ends).has_value());
    for (const auto& p : points) {
      BsonBuilder b(expected);
      for (const BsonElement& e : p.view())
        if (e.name == "t" || e.name == "c") b.Append(e);
    }
    RC_ASSERT(out == expected);
    for (const char* name : {"t", "a", "m", "zz", "c"}) {
      auto values = reader.value().Field(name);
      RC_ASSERT(values.has_value());
      if (values.value() == nullptr) continue;  // a document in one of them
      for (size_t i = 0; i < points.size(); ++i)
        RC_ASSERT((*values.value())[i].BinaryEquals(points[i].view()[name]));
    }
  }));
}

TEST_CASE("A column that is not asked for is not read", "[bucket]") {
  const auto points = Random(7, 40);
  std::string bucket = Seal(points);
  // The last column's bytes: damaged, which only who reads it meets.
  bucket.back() = static_cast<char>(bucket.back() ^ 0x5A);
  auto reader = BucketReader::Open(bucket, points[0].view()["m"]);
  REQUIRE(reader.has_value());
  std::string out;
  std::vector<size_t> ends;
  const std::vector<std::string> names = {"t"};
  CHECK(reader.value().Append(0, 40, &names, out, ends).has_value());
}

TEST_CASE("Damaged buckets are errors", "[bucket]") {
  const auto points = Random(3, 60);
  const std::string bucket = Seal(points);
  std::mt19937_64 random(1);
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = bucket;
    if (i % 3 == 0) bytes.resize(random() % bytes.size());
    for (uint64_t n = random() % 4; n > 0; --n)
      if (!bytes.empty()) bytes[random() % bytes.size()] = static_cast<char>(random());
    auto reader = BucketReader::Open(bytes, points[0].view()["m"], 4 << 20);
    if (!reader.has_value()) continue;
    std::string out;
    std::vector<size_t> ends;
    if (!reader.value().Append(0, reader.value().count(), nullptr, out, ends).has_value()) continue;
    size_t at = 0;
    for (const size_t end : ends) {
      CHECK(ValidateBson(std::string_view(out).substr(at, end - at), false).has_value());
      at = end;
    }
  }
}

TEST_CASE("A small bucket that unpacks to much is refused before the memory is taken", "[bucket]") {
  std::vector<BsonDocument> points;
  for (int i = 0; i < 200; ++i)
    points.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("t", Instant{i}).Append("s", std::string(50'000, i % 2 ? 'a' : 'b'));
    }));
  const std::string bucket = Seal(points);
  CHECK(bucket.size() < 1000);
  auto reader = BucketReader::Open(bucket, {}, 60'000);
  REQUIRE(reader.has_value());
  std::string out;
  std::vector<size_t> ends;
  auto refused = reader.value().Append(0, 200, nullptr, out, ends);
  REQUIRE(!refused.has_value());
  CHECK(refused.error().code == ErrorCode::kInternalError);
  CHECK(out.empty());
  CHECK(ComesBack(points));
}

TEST_CASE("A bucket has limits", "[bucket]") {
  const BsonDocument point = BuildBson([](BsonBuilder& b) { b.Append("t", Instant{0}); });
  const std::vector<BsonView> points(kMaxBucketPoints + 1, point.view());
  CHECK(!SealPoints(points, kFields, {}).has_value());
  CHECK(SealPoints(std::span(points).first(kMaxBucketPoints), kFields, {}).has_value());
}

TEST_CASE("A reader of a part of its points gives these", "[bucket]") {
  CHECK(rc::check("seal and read a part", [] {
    const auto seed = *rc::gen::arbitrary<uint64_t>();
    const auto n = *rc::gen::inRange<size_t>(1, 300);
    const auto points = Random(seed, n);
    const std::string bucket = Seal(points);
    const auto end = *rc::gen::inRange<size_t>(0, n + 2), from = *rc::gen::inRange<size_t>(0, n);
    auto whole = BucketReader::Open(bucket, MetaOf(points));
    auto part = BucketReader::Open(bucket, MetaOf(points));
    // Some columns may be there already, whole.
    if (n % 2 == 0) RC_ASSERT(part.value().Field("t").has_value());
    part.value().Only(from, end);
    // A part of the part, as of a bucket whose newest point is asked for.
    const size_t least = from + seed % 3, most = end - std::min(end, seed % 5 / 2);
    if (n % 3 == 0) part.value().Only(least, most);
    const size_t first = n % 3 == 0 ? least : from, last = n % 3 == 0 ? most : end;
    std::string expected, out;
    std::vector<size_t> expected_ends, ends;
    RC_ASSERT(whole.value().Append(first, last, nullptr, expected, expected_ends).has_value());
    RC_ASSERT(part.value().Append(seed % 2 == 0 ? 0 : first, n, nullptr, out, ends).has_value());
    RC_ASSERT(out == expected);
    RC_ASSERT(ends == expected_ends);
    for (const char* name : {"a", "b", "c", "d"}) {
      const auto all = whole.value().Field(name), some = part.value().Field(name);
      RC_ASSERT((all.value() == nullptr) == (some.value() == nullptr));
      if (all.value() == nullptr) continue;
      for (size_t i = first; i < std::min(last, n); ++i)
        RC_ASSERT((*all.value())[i].BinaryEquals((*some.value())[i]));
    }
  }));
}

TEST_CASE("Numbers of every kind and width come back from any part", "[bucket]") {
  CHECK(rc::check("columns of one type", [] {
    const auto n = *rc::gen::inRange<size_t>(1, 400);
    const auto width = *rc::gen::inRange<int>(0, 65);
    const auto kind = *rc::gen::inRange<int>(0, 4);
    std::vector<BsonDocument> points;
    for (size_t i = 0; i < n; ++i) {
      const uint64_t bits = *rc::gen::arbitrary<uint64_t>();
      const auto v = static_cast<int64_t>(width == 0 ? 0 : bits >> (64 - width));
      points.push_back(BuildBson([&](BsonBuilder& b) {
        b.Append("t", Instant{static_cast<int64_t>(i)});
        if (kind == 0) b.Append("v", v);
        if (kind == 1) b.Append("v", static_cast<int32_t>(v));
        if (kind == 2) b.Append("v", static_cast<double>(v) / 100);
        if (kind == 3) b.Append("v", std::bit_cast<double>(bits));
      }));
    }
    const std::string bucket = Seal(points);
    const auto from = *rc::gen::inRange<size_t>(0, n), to = *rc::gen::inRange<size_t>(from, n + 1);
    auto reader = BucketReader::Open(bucket, {});
    RC_ASSERT(reader.has_value());
    reader.value().Only(from, to);
    std::string out, expected;
    std::vector<size_t> ends;
    RC_ASSERT(reader.value().Append(from, to, nullptr, out, ends).has_value());
    for (size_t i = from; i < to; ++i) expected.append(points[i].bytes());
    RC_ASSERT(out == expected);
  }));
}
