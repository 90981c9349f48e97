#include "protocol/extended_json.h"

#include <catch2/catch.hpp>

#include "protocol/bson_builder.h"
#include "protocol/object_id.h"

using namespace mayfly;

TEST_CASE("Documents read back from the JSON they are written as", "[json]") {
  struct Case {
    const char* in;
    const char* relaxed;
  };
  const Case cases[] = {
      {"{}", "{ }"},
      {" [1, \"x\"] ", R"({ "0" : 1, "1" : "x" })"},
      {R"({"a":{},"b":[],"c":[1,{"x":[2]}]})",
       R"({ "a" : {  }, "b" : [  ], "c" : [ 1, { "x" : [ 2 ] } ] })"},
      {R"({"a":2147483647,"b":2147483648,"c":9223372036854775808,"d":-0.0})",
       R"({ "a" : 2147483647, "b" : 2147483648, "c" : 9223372036854775808.0, "d" : -0.0 })"},
      {R"({"a":0.1,"b":1e3,"c":5e-324,"d":1E-400})",
       R"({ "a" : 0.1, "b" : 1000.0, "c" : 5e-324, "d" : 0.0 })"},
      {R"({"s":"\"\\\/\b\f\n\r\t\u0001\u00e9\ud83d\ude00é"})",
       R"({ "s" : "\"\\/\b\f\n\r\t\u0001éé" })"},
      {R"({"d":{"$date":"2012-12-24T12:15:30.501Z"}})",
       R"({ "d" : { "$date" : "2012-12-24T12:15:30.501Z" } })"},
      {R"({"d":{"$date":"2012-12-24T12:15+01:30"}})",
       R"({ "d" : { "$date" : "2012-12-24T10:45:00Z" } })"},
      {R"({"d":{"$date":"1960-02-29T00:00:00-0100"}})",
       R"({ "d" : { "$date" : { "$numberLong" : "-310518000000" } } })"},
      {R"({"u":{"$uuid":"73ffd264-44b3-4c69-90e8-e7d1dfc035d4"}})",
       R"({ "u" : { "$binary" : { "base64" : "c//SZESzTGmQ6OfR38A11A==", "subType" : "04" } } })"},
      {R"({"b":{"$binary":"AQI=","$type":"80"}})",
       R"({ "b" : { "$binary" : { "base64" : "AQI=", "subType" : "80" } } })"},
      {R"({"$match":{"a":{"$regex":"x","$options":"i"},"b":{"$type":"int"}}})",
       R"({ "$match" : { "a" : { "$regex" : "x", "$options" : "i" }, "b" : { "$type" : "int" } } })"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.in);
    auto doc = ParseJson(c.in);
    REQUIRE(doc.has_value());
    std::string want = c.relaxed;
    if (size_t at = want.find("\xc3\xa9\xc3\xa9"); at != std::string::npos)
      want.insert(at + 2, "\xf0\x9f\x98\x80");
    CHECK(ToRelaxedJson(doc.value().view()) == want);
    auto again = ParseJson(ToCanonicalJson(doc.value().view()));
    REQUIRE(again.has_value());
    CHECK(again.value().bytes() == doc.value().bytes());
  }
}

TEST_CASE("A string of JSON is one line for every reader", "[json]") {
  // A user named like that once looked as if the audit log had another entry: Python's splitlines
  // and others end a line at U+0085 and U+2028, terminals obey U+009B.
  const auto written = [](std::string_view s) {
    std::string out;
    AppendJsonString(out, s);
    return out;
  };
  CHECK(written("a\xc2\x85"
                "b\xe2\x80\xa8"
                "c\xe2\x80\xa9") == R"("a\u0085b\u2028c\u2029")");
  CHECK(written("\xc2\x80\xc2\x9b\xc2\x9f\x7f\x1b\x01") ==
        R"("\u0080\u009b\u009f\u007f\u001b\u0001")");
  CHECK(written("\xc2\xa0\xe2\x80\xa7\xe2\x80\xaa\xe2\x82\xac") ==
        "\"\xc2\xa0\xe2\x80\xa7\xe2\x80\xaa\xe2\x82\xac\"");
  CHECK(written("\"\\\b\f\n\r\t/") == R"("\"\\\b\f\n\r\t/")");
  CHECK(written("\xc2") == "\"\xef\xbf\xbd\"");
}

TEST_CASE("What is not extended JSON is refused with a reason", "[json]") {
  const std::string deep = std::string(5000, '[');
  std::string too_deep = "1";
  for (int i = 0; i < 190; ++i) too_deep = "{\"a\":" + too_deep + "}";
  const std::string cases[] = {"",
                               "1",
                               "null",
                               "{",
                               "{}x",
                               "{\"a\"}",
                               "{\"a\":}",
                               "{a:1}",
                               "{\"a\":1,}",
                               "[1,]",
                               "{\"a\":01}",
                               "{\"a\":1.}",
                               "{\"a\":+1}",
                               "{\"a\":1e}",
                               "{\"a\":1e400}",
                               "{\"a\":NaN}",
                               "{\"a\":\"\n\"}",
                               "{\"a\":\"\\x\"}",
                               "{\"a\":\"\\ud800\"}",
                               "{\"a\":\"\\udc00\"}",
                               "{\"a\":\"\xff\"}",
                               "{\"a\":\"x",
                               "{\"a\\u0000\":1}",
                               "{\"d\":{\"$date\":\"2012-13-01T00:00:00Z\"}}",
                               "{\"d\":{\"$date\":\"2012-02-30T00:00:00Z\"}}",
                               "{\"d\":{\"$date\":\"yesterday\"}}",
                               "{\"b\":{\"$binary\":{\"base64\":\"A\",\"subType\":\"00\"}}}",
                               "{\"b\":{\"$binary\":{\"base64\":\"=A==\",\"subType\":\"00\"}}}",
                               "{\"i\":{\"$numberInt\":\"2147483648\"}}",
                               "{\"i\":{\"$numberLong\":\" 1\"}}",
                               deep,
                               too_deep};
  for (const std::string& text : cases) {
    CAPTURE(text);
    auto r = ParseJson(text);
    REQUIRE_FALSE(r.has_value());
    CHECK(r.error().code == ErrorCode::kFailedToParse);
    CHECK(r.error().message.size() > std::string("not extended JSON: ").size());
  }
}

TEST_CASE("One value can be written alone", "[json]") {
  BsonDocument d = BuildBson([](BsonBuilder& b) { b.Append("a", "x").Append("n", 1.0); });
  CHECK(ToRelaxedJson(d.view()["a"]) == "\"x\"");
  CHECK(ToRelaxedJson(d.view()["n"]) == "1.0");
  CHECK(ToRelaxedJson(d.view()["none"]) == "missing");
}

TEST_CASE("ObjectIds carry the given second and never repeat", "[object_id]") {
  std::string a = NewObjectId(Instant{0x12345678LL * 1000 + 999}),
              b = NewObjectId(Instant{0x12345678LL * 1000});
  CHECK(a.size() == 12);
  CHECK(ObjectIdToHex(a).substr(0, 8) == "12345678");
  CHECK(ObjectIdToHex(a).substr(8, 10) == ObjectIdToHex(b).substr(8, 10));
  CHECK(a != b);
}
