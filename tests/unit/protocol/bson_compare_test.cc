#include "protocol/bson_compare.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "protocol/decimal128.h"
#include "protocol/extended_json.h"
#include "protocol/value.h"

using namespace mayfly;

namespace {

Value V(const char* json) {
  BsonDocument d = ParseJson(std::string("{\"v\":") + json + "}").value();
  return Value::Copy(d.view()["v"]);
}
Value Dec(const char* text) { return Value::Decimal(decimal128::Parse(text).value()); }
int Sign(int c) { return c < 0 ? -1 : (c > 0 ? 1 : 0); }

}  // namespace

TEST_CASE("Values ascend in MongoDB's order", "[compare]") {
  // Each row is above the one before it; values within a row are equal.
  const std::vector<std::vector<Value>> rows = {
      {V(R"({"$minKey":1})")},
      {Value(), V(R"({"$undefined":true})")},
      {V("null")},
      {Value::Double(NAN), Value::Double(-NAN), Dec("NaN")},
      {Value::Double(-INFINITY), Dec("-Infinity")},
      {Dec("-1E+6000")},
      {Value::Double(-1.7976931348623157e308)},
      {Value::Int64(INT64_MIN), Value::Double(-9223372036854775808.0), Dec("-9223372036854775808")},
      {Value::Int64(INT64_MIN + 1), Dec("-9223372036854775807")},
      {Value::Int64(-9007199254740993), Dec("-9007199254740993")},
      {Value::Double(-9007199254740992.0), Value::Int64(-9007199254740992)},
      {Value::Double(-1.5), Dec("-1.50")},
      {Value::Int32(-1), Value::Int64(-1), Value::Double(-1), Dec("-1.0")},
      {Value::Double(-0.1)},  // 0.1000000000000000055…
      {Dec("-0.1")},
      {Dec("-1E-6000")},
      {Value::Int32(0), Value::Int64(0), Value::Double(0), Value::Double(-0.0), Dec("0"), Dec("-0"),
       Dec("0E+100")},
      {Dec("1E-6000")},
      {Value::Double(5e-324)},
      {Dec("0.1")},
      {Value::Double(0.1)},
      {Dec("0.1000000000000000055511151231257828")},
      {Value::Int32(1), Value::Int64(1), Value::Double(1), Dec("1.00")},
      {Value::Double(9007199254740992.0), Value::Int64(9007199254740992)},
      {Value::Int64(9007199254740993), Dec("9007199254740993")},
      {Value::Double(9007199254740994.0)},
      {Value::Int64(INT64_MAX), Dec("9223372036854775807")},
      {Value::Double(9223372036854775808.0), Dec("9223372036854775808")},
      {Value::Double(1.7976931348623157e308)},
      {Dec("1E+6000")},
      {Value::Double(INFINITY), Dec("Infinity")},
      {V(R"("")"), V(R"({"$symbol":""})")},
      {V(R"("a")"), V(R"({"$symbol":"a"})")},
      {V(R"("a\u0000")")},
      {V(R"("ab")")},
      {V(R"("é")")},
      {V("{}")},
      {V(R"({"b":1})"), V(R"({"b":1.0})")},
      {V(R"({"b":1,"a":0})")},
      {V(R"({"c":0})")},
      {V(R"({"a":"x"})")},  // the type of the first value goes before its name
      {V("[]")},
      {V("[1]")},
      {V("[1,0]")},
      {V("[2]")},
      {V(R"(["a"])")},
      {V("[[]]")},
      {V(R"({"$binary":{"base64":"","subType":"00"}})")},
      {V(R"({"$binary":{"base64":"/w==","subType":"00"}})")},
      {V(R"({"$binary":{"base64":"AA==","subType":"01"}})")},
      {V(R"({"$binary":{"base64":"AAA=","subType":"00"}})")},
      {V(R"({"$oid":"000000000000000000000001"})")},
      {V(R"({"$oid":"ff0000000000000000000000"})")},
      {V("false")},
      {V("true")},
      {V(R"({"$date":{"$numberLong":"-1"}})")},
      {V(R"({"$date":{"$numberLong":"5"}})")},
      {V(R"({"$timestamp":{"t":1,"i":2}})")},
      {V(R"({"$timestamp":{"t":4294967295,"i":0}})")},
      {V(R"({"$regularExpression":{"pattern":"a","options":""}})")},
      {V(R"({"$regularExpression":{"pattern":"a","options":"i"}})")},
      {V(R"({"$regularExpression":{"pattern":"b","options":""}})")},
      {V(R"({"$dbPointer":{"$ref":"b","$id":{"$oid":"000000000000000000000000"}}})")},
      {V(R"({"$dbPointer":{"$ref":"aa","$id":{"$oid":"000000000000000000000000"}}})")},
      {V(R"({"$code":"a"})")},
      {V(R"({"$code":"a","$scope":{}})")},
      {V(R"({"$code":"a","$scope":{"x":1}})")},
      {V(R"({"$maxKey":1})")},
  };
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < rows.size(); ++j)
      for (const Value& a : rows[i])
        for (const Value& b : rows[j]) {
          int want = i < j ? -1 : (i > j ? 1 : 0);
          int got = Sign(CompareValues(a.view(), b.view()));
          if (got != want) {
            INFO(ToRelaxedJson(a.view()) << " (row " << i << ") against " << ToRelaxedJson(b.view())
                                         << " (row " << j << ")");
            CHECK(got == want);
          }
          if (want == 0) CHECK(HashValue(a.view()) == HashValue(b.view()));
        }
}

TEST_CASE("Hashes of values that differ differ", "[compare]") {
  const char* values[] = {"1",
                          "2",
                          "1.5",
                          "9007199254740992",
                          "9007199254740993",
                          R"("1")",
                          "[1]",
                          "[[1]]",
                          "[[1],2]",
                          "[[1,2]]",
                          R"({"a":1})",
                          R"({"b":1})",
                          R"({"a":{"b":1}})",
                          "null",
                          "true",
                          "false",
                          R"({"$numberDecimal":"0.1"})",
                          "0.1"};
  std::vector<uint64_t> seen;
  for (const char* v : values) {
    uint64_t h = HashValue(V(v).view());
    CAPTURE(v);
    CHECK(std::find(seen.begin(), seen.end(), h) == seen.end());
    CHECK(HashValue(V(v).view(), 1) != h);
    seen.push_back(h);
  }
}
