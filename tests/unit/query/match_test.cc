#include "query/match/match_expression.h"
#include "query/match/match_internal.h"

#include <rapidcheck.h>

#include "protocol/bson_builder.h"
#include "storage/clock.h"
#include "storage/operation.h"
#include "tests/unit/query/query_test_util.h"

using namespace mayfly;

namespace {

struct MatchRow {
  const char* filter;
  const char* matches[6];  // documents that do; the list ends with null
  const char* others[6];   // documents that do not
};

/// Each filter must match, directly and after a round through Serialize().
void CheckMatches(const std::vector<MatchRow>& rows) {
  for (const MatchRow& row : rows) {
    CAPTURE(row.filter);
    BsonDocument filter = Json(row.filter);
    auto parsed = ParseMatch(filter);
    if (!parsed.has_value()) FAIL(row.filter << ": " << parsed.error().message);
    BsonDocument again = BuildBson([&](BsonBuilder& b) { parsed.value()->Serialize(b); });
    auto reparsed = ParseMatch(again);
    if (!reparsed.has_value()) FAIL(Text(again) << ": " << reparsed.error().message);
    auto check = [&](const char* doc, bool expected) {
      CAPTURE(doc);
      BsonDocument d = Json(doc);
      CHECK(parsed.value()->Matches(d).value() == expected);
      CAPTURE(Text(again));
      CHECK(reparsed.value()->Matches(d).value() == expected);
    };
    for (const char* doc : row.matches) {
      if (doc == nullptr) break;
      check(doc, true);
    }
    for (const char* doc : row.others) {
      if (doc == nullptr) break;
      check(doc, false);
    }
  }
}

}  // namespace

TEST_CASE("Equality", "[match]") {
  CheckMatches({
      {"{}", {"{}", "{'a': 1}"}, {}},
      {"{'a': 1}",
       {"{'a': 1}", "{'a': 1.0}", "{'a': {'$numberLong': '1'}}",
        "{'a': {'$numberDecimal': '1.00'}}", "{'a': [2, 1]}"},
       {"{'a': 2}", "{'a': '1'}", "{}", "{'a': [[1]]}", "{'a': true}", "{'b': 1}"}},
      {"{'a': 'x'}",
       {"{'a': 'x'}", "{'a': ['y', 'x']}", "{'a': {'$symbol': 'x'}}"},
       {"{'a': 'X'}", "{'a': 'xx'}", "{'a': null}"}},
      {"{'a': true}", {"{'a': true}"}, {"{'a': 1}", "{'a': false}"}},
      {"{'a': {'$date': {'$numberLong': '5'}}}",
       {"{'a': {'$date': {'$numberLong': '5'}}}"},
       {"{'a': 5}", "{'a': {'$timestamp': {'t': 0, 'i': 5}}}"}},
      {"{'a': {'b': 1}}",
       {"{'a': {'b': 1}}", "{'a': [{'b': 1}]}", "{'a': {'b': 1.0}}"},
       {"{'a': {'b': 1, 'c': 2}}", "{'a': {'c': 1}}", "{'a': {'b': 2}}"}},
      {"{'a': {'b': 1, 'c': 2}}",
       {"{'a': {'b': 1, 'c': 2}}"},
       {"{'a': {'c': 2, 'b': 1}}", "{'a': {'b': 1}}"}},
      {"{'a': {}}", {"{'a': {}}", "{'a': [{}]}"}, {"{'a': []}", "{'a': {'b': 1}}", "{}"}},
      {"{'a': [1, 2]}",
       {"{'a': [1, 2]}", "{'a': [[1, 2], 3]}", "{'a': [1.0, 2]}"},
       {"{'a': [2, 1]}", "{'a': [1, 2, 3]}", "{'a': 1}", "{'a': [1]}"}},
      {"{'a': []}",
       {"{'a': []}", "{'a': [[]]}", "{'a': [1, []]}"},
       {"{'a': [1]}", "{}", "{'a': {}}"}},
      {"{'a': null}",
       {"{'a': null}", "{}", "{'a': [1, null]}", "{'b': 1}"},
       {"{'a': []}", "{'a': 0}", "{'a': [[null]]}", "{'a': {'$undefined': true}}"}},
      {"{'a.b': null}",
       {"{}", "{'a': 4}", "{'a': {}}", "{'a': null}", "{'a': [{'a': 4}, {'b': 4}]}",
        "{'a': [{'b': null}]}"},
       {"{'a': [4]}", "{'a': [{'b': 4}]}", "{'a': []}", "{'a': {'b': 4}}", "{'a': {'b': []}}"}},
      {"{'a': {'$eq': 1}}", {"{'a': 1}", "{'a': [0, 1]}"}, {"{'a': 2}"}},
      {"{'a': {'$eq': null}}", {"{'a': null}", "{}"}, {"{'a': 1}"}},
      {"{'a': {'$eq': {'$regularExpression': {'pattern': '^x', 'options': ''}}}}",
       {"{'a': {'$regularExpression': {'pattern': '^x', 'options': ''}}}"},
       {"{'a': 'x'}", "{'a': {'$regularExpression': {'pattern': '^x', 'options': 'i'}}}"}},
      {"{'a': {'$ne': 1}}",
       {"{'a': 2}", "{}", "{'a': [2, 3]}", "{'a': null}"},
       {"{'a': 1}", "{'a': [2, 1]}", "{'a': 1.0}"}},
      {"{'a': {'$ne': null}}",
       {"{'a': 1}", "{'a': []}"},
       {"{'a': null}", "{}", "{'a': [null, 1]}"}},
      {"{'a': {'$ne': [1]}}", {"{'a': 1}", "{'a': [2]}"}, {"{'a': [1]}", "{'a': [[1]]}"}},
      {"{'a': {'$numberDouble': 'NaN'}}",
       {"{'a': {'$numberDouble': 'NaN'}}", "{'a': {'$numberDecimal': 'NaN'}}"},
       {"{'a': 0}", "{}"}},
      {"{'a': {'$minKey': 1}}",
       {"{'a': {'$minKey': 1}}"},
       {"{'a': 1}", "{}", "{'a': {'$maxKey': 1}}"}},
      {"{'a': {'$oid': '0123456789abcdef01234567'}}",
       {"{'a': {'$oid': '0123456789abcdef01234567'}}"},
       {"{'a': '0123456789abcdef01234567'}"}},
      {"{'a': {'$binary': {'base64': 'AQI=', 'subType': '00'}}}",
       {"{'a': {'$binary': {'base64': 'AQI=', 'subType': '00'}}}"},
       {"{'a': {'$binary': {'base64': 'AQI=', 'subType': '05'}}}"}},
      {"{'a': 1, 'b': 2}", {"{'a': 1, 'b': 2}"}, {"{'a': 1}", "{'b': 2}", "{'a': 2, 'b': 2}"}},
      {"{'a': -0.0}", {"{'a': 0}", "{'a': 0.0}"}, {"{'a': 1}"}},
      {"{'': 1}", {"{'': 1}"}, {"{'a': 1}"}},
      {"{'a': {'$ref': 'c', '$id': 1}}",
       {"{'a': {'$ref': 'c', '$id': 1}}"},
       {"{'a': {'$ref': 'c', '$id': 2}}"}},
      {"{'a.$id': 1}", {"{'a': {'$ref': 'c', '$id': 1}}"}, {"{'a': {'$ref': 'c', '$id': 2}}"}},
      {"{'a': 9007199254740993}",
       {"{'a': {'$numberLong': '9007199254740993'}}"},
       {"{'a': 9007199254740992.0}"}},
  });
}

TEST_CASE("Order comparisons keep to one type", "[match]") {
  CheckMatches({
      {"{'a': {'$gt': 1}}",
       {"{'a': 2}", "{'a': 1.5}", "{'a': [0, 5]}", "{'a': {'$numberDecimal': '1.1'}}"},
       {"{'a': 1}", "{'a': '2'}", "{}", "{'a': [[2]]}", "{'a': true}", "{'a': null}"}},
      {"{'a': {'$gte': 1}}",
       {"{'a': 1}", "{'a': 2}"},
       {"{'a': 0}", "{'a': 'z'}", "{'a': {'$date': {'$numberLong': '5'}}}"}},
      {"{'a': {'$lt': 1}}",
       {"{'a': 0}", "{'a': -5.5}", "{'a': [9, 0]}"},
       {"{'a': 1}", "{}", "{'a': null}", "{'a': {'$minKey': 1}}",
        "{'a': {'$numberDouble': 'NaN'}}"}},
      {"{'a': {'$lte': 1}}",
       {"{'a': 1}", "{'a': 0}", "{'a': {'$numberDouble': '-Infinity'}}"},
       {"{'a': 2}", "{'a': {'$numberDouble': 'NaN'}}"}},
      {"{'a': {'$gt': 'b'}}",
       {"{'a': 'c'}", "{'a': 'ba'}"},
       {"{'a': 'b'}", "{'a': 'a'}", "{'a': 5}", "{'a': {}}"}},
      {"{'a': {'$lt': 'b'}}", {"{'a': 'a'}", "{'a': ''}"}, {"{'a': 1}", "{'a': 'b'}"}},
      {"{'a': {'$gte': null}}", {"{'a': null}", "{}"}, {"{'a': 1}", "{'a': []}"}},
      {"{'a': {'$lte': null}}", {"{'a': null}", "{}"}, {"{'a': 1}"}},
      {"{'a': {'$gt': null}}", {}, {"{'a': null}", "{}", "{'a': 1}"}},
      {"{'a': {'$lt': null}}", {}, {"{'a': null}", "{}", "{'a': 1}"}},
      {"{'a': {'$gt': {'$minKey': 1}}}",
       {"{'a': 1}", "{'a': null}", "{'a': {'$maxKey': 1}}", "{}"},
       {"{'a': {'$minKey': 1}}"}},
      {"{'a': {'$gte': {'$minKey': 1}}}", {"{'a': 1}", "{'a': {'$minKey': 1}}"}, {}},
      {"{'a': {'$lt': {'$minKey': 1}}}",
       {},
       {"{'a': 1}", "{'a': {'$minKey': 1}}", "{'a': {'$maxKey': 1}}"}},
      {"{'a': {'$lt': {'$maxKey': 1}}}",
       {"{'a': 1}", "{'a': {'$minKey': 1}}", "{'a': 'x'}"},
       {"{'a': {'$maxKey': 1}}"}},
      {"{'a': {'$gt': {'$maxKey': 1}}}", {}, {"{'a': 1}", "{'a': {'$maxKey': 1}}"}},
      {"{'a': {'$gte': {'$numberDouble': 'NaN'}}}",
       {"{'a': {'$numberDouble': 'NaN'}}"},
       {"{'a': 1}", "{'a': {'$numberDouble': 'Infinity'}}"}},
      {"{'a': {'$gt': {'$numberDouble': 'NaN'}}}",
       {},
       {"{'a': {'$numberDouble': 'NaN'}}", "{'a': 1}"}},
      {"{'a': {'$lt': {'$numberDouble': 'NaN'}}}",
       {},
       {"{'a': {'$numberDouble': 'NaN'}}", "{'a': 1}"}},
      {"{'a': {'$gt': false}}", {"{'a': true}"}, {"{'a': false}", "{'a': 1}"}},
      {"{'a': {'$gte': {'$date': {'$numberLong': '5'}}}}",
       {"{'a': {'$date': {'$numberLong': '5'}}}", "{'a': {'$date': {'$numberLong': '6'}}}"},
       {"{'a': {'$date': {'$numberLong': '4'}}}", "{'a': 9}",
        "{'a': {'$timestamp': {'t': 9, 'i': 1}}}"}},
      {"{'a': {'$lt': {'$timestamp': {'t': 5, 'i': 1}}}}",
       {"{'a': {'$timestamp': {'t': 4, 'i': 9}}}"},
       {"{'a': {'$timestamp': {'t': 5, 'i': 1}}}", "{'a': {'$date': {'$numberLong': '1'}}}"}},
      {"{'a': {'$gt': {'$oid': '000000000000000000000005'}}}",
       {"{'a': {'$oid': '000000000000000000000006'}}"},
       {"{'a': {'$oid': '000000000000000000000005'}}", "{'a': 'z'}"}},
      {"{'a': {'$gt': {'b': 1}}}",
       {"{'a': {'b': 2}}", "{'a': {'b': 1, 'c': 0}}", "{'a': {'c': 0}}"},
       {"{'a': {'b': 1}}", "{'a': 5}", "{'a': {}}"}},
      {"{'a': {'$gt': [1]}}",
       {"{'a': [2]}", "{'a': [1, 0]}", "{'a': [[2]]}"},
       {"{'a': [1]}", "{'a': 2}", "{'a': [0, 5]}"}},
      {"{'a': {'$lte': [1, 2]}}",
       {"{'a': [1, 2]}", "{'a': [1]}", "{'a': []}"},
       {"{'a': [2]}", "{'a': 1}"}},
      {"{'a': {'$gt': 1, '$lt': 5}}",
       {"{'a': 3}", "{'a': [0, 9]}"},
       {"{'a': 5}", "{'a': 0}", "{'a': [0, 1]}"}},
      {"{'a': {'$gt': {'$numberLong': '9007199254740992'}}}",
       {"{'a': {'$numberLong': '9007199254740993'}}"},
       {"{'a': 9007199254740992.0}"}},
      {"{'a': {'$gte': {'$binary': {'base64': 'AQI=', 'subType': '00'}}}}",
       {"{'a': {'$binary': {'base64': 'AQI=', 'subType': '00'}}}",
        "{'a': {'$binary': {'base64': 'AQID', 'subType': '00'}}}"},
       {"{'a': {'$binary': {'base64': '/w==', 'subType': '00'}}}", "{'a': 'zz'}"}},
      {"{'a': {'$not': {'$gt': 1}}}",
       {"{'a': 1}", "{}", "{'a': 'x'}"},
       {"{'a': 2}", "{'a': [0, 2]}"}},
      {"{'a': {'$not': {'$gt': 1, '$lt': 5}}}", {"{'a': 1}", "{'a': 5}", "{}"}, {"{'a': 3}"}},
  });
}

TEST_CASE("Dotted paths, arrays and numbers in paths", "[match]") {
  CheckMatches({
      {"{'a.b': 1}",
       {"{'a': {'b': 1}}", "{'a': [{'b': 1}]}", "{'a': [5, {'b': 2}, {'b': 1}]}",
        "{'a': {'b': [0, 1]}}", "{'a': [{'b': [1]}]}"},
       {"{'a.b': 1}", "{'a': 1}", "{'a': [[{'b': 1}]]}", "{'a': [{'c': 1}]}", "{}"}},
      {"{'a.b.c': 1}",
       {"{'a': {'b': {'c': 1}}}", "{'a': [{'b': [{'c': 1}]}]}",
        "{'a': {'b': [{'c': 0}, {'c': [2, 1]}]}}"},
       {"{'a': {'b': {'c': 2}}}", "{'a': {'b': 1}}"}},
      {"{'a.0': 1}",
       {"{'a': [1, 2]}", "{'a': {'0': 1}}", "{'a': [{'0': 1}]}", "{'a': [[1]]}",
        "{'a': [5, {'0': 1}]}"},
       {"{'a': [2, 1]}", "{'a': 1}", "{'a': []}"}},
      {"{'a.1': 2}", {"{'a': [1, 2]}", "{'a': [0, [3, 2]]}"}, {"{'a': [2, 1]}", "{'a': [2]}"}},
      {"{'a.0.b': 1}",
       {"{'a': [{'b': 1}]}", "{'a': {'0': {'b': 1}}}", "{'a': [{'0': {'b': 1}}]}",
        "{'a': [[{'b': 1}]]}", "{'a': [{'b': [1]}]}"},
       {"{'a': [{'b': 2}, {'b': 1}]}"}},
      {"{'a.0.0': 1}", {"{'a': [[1]]}", "{'a': [[[1]]]}"}, {"{'a': [1]}", "{'a': [[2, 1]]}"}},
      {"{'a.b.0': 1}", {"{'a': {'b': [1]}}", "{'a': [{'b': [1, 2]}]}"}, {"{'a': {'b': [2, 1]}}"}},
      {"{'a.01': 1}", {"{'a': {'01': 1}}"}, {"{'a': [0, 1]}"}},
      {"{'a.0': null}",
       {"{'a': [null]}", "{}", "{'a': 5}", "{'a': {}}"},
       {"{'a': [1]}", "{'a': [{'b': 1}]}"}},
      {"{'a.b': {'$gt': 1, '$lt': 3}}",
       {"{'a': [{'b': 0}, {'b': 5}]}", "{'a': {'b': 2}}"},
       {"{'a': [{'b': 0}]}"}},
      {"{'a.b': {'$ne': 1}}",
       {"{'a': [{'b': 2}]}", "{}", "{'a': [1]}"},
       {"{'a': [{'b': 2}, {'b': 1}]}"}},
      {"{'a.b': [1, 2]}",
       {"{'a': {'b': [1, 2]}}", "{'a': [{'b': [1, 2]}]}"},
       {"{'a': [{'b': 1}, {'b': 2}]}"}},
      {"{'a.b': {'$exists': true}}",
       {"{'a': {'b': null}}", "{'a': [{}, {'b': 1}]}"},
       {"{'a': {}}", "{'a': []}", "{'a': [1]}", "{}"}},
      {"{'a.b': {'$exists': false}}",
       {"{'a': {}}", "{}", "{'a': []}", "{'a': [{'c': 1}]}", "{'a': 1}"},
       {"{'a': {'b': null}}", "{'a': [{}, {'b': 1}]}"}},
      {"{'a.0': {'$exists': true}}", {"{'a': [1]}", "{'a': {'0': 1}}"}, {"{'a': []}", "{'a': 1}"}},
      {"{'a.0': {'$exists': false}}", {"{'a': []}", "{}", "{'a': 1}"}, {"{'a': [1]}"}},
  });
}

TEST_CASE("$in and $nin", "[match]") {
  CheckMatches({
      {"{'a': {'$in': [1, 'x']}}",
       {"{'a': 1}", "{'a': 'x'}", "{'a': [5, 1]}", "{'a': 1.0}"},
       {"{'a': 2}", "{}", "{'a': ['1']}"}},
      {"{'a': {'$in': []}}", {}, {"{}", "{'a': 1}", "{'a': []}"}},
      {"{'a': {'$nin': []}}", {"{}", "{'a': 1}"}, {}},
      {"{'a': {'$in': [null, 5]}}",
       {"{}", "{'a': null}", "{'a': 5}"},
       {"{'a': 1}", "{'a': []}", "{'a': {'$undefined': true}}"}},
      {"{'a': {'$in': [[1, 2], 3]}}",
       {"{'a': [1, 2]}", "{'a': [[1, 2]]}", "{'a': 3}"},
       {"{'a': [1]}", "{'a': 1}"}},
      {"{'a': {'$in': [{'$regularExpression': {'pattern': '^x', 'options': 'i'}}, 3]}}",
       {"{'a': 'Xyz'}", "{'a': 3}", "{'a': ['q', 'x']}",
        "{'a': {'$regularExpression': {'pattern': '^x', 'options': 'i'}}}"},
       {"{'a': 'yx'}", "{'a': {'$regularExpression': {'pattern': '^x', 'options': ''}}}"}},
      {"{'a': {'$in': [{'$regularExpression': {'pattern': 'b', 'options': ''}}]}}",
       {"{'a': 'abc'}"},
       {"{'a': 'x'}"}},
      {"{'a': {'$nin': [1, 2]}}", {"{'a': 3}", "{}", "{'a': [3]}"}, {"{'a': 1}", "{'a': [3, 2]}"}},
      {"{'a': {'$nin': [null]}}", {"{'a': 1}"}, {"{}", "{'a': null}"}},
      {"{'a': {'$in': [{'b': 1}, {}]}}", {"{'a': {'b': 1}}", "{'a': {}}"}, {"{'a': {'b': 2}}"}},
      {"{'a': {'$in': [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}}",
       {"{'a': 1}", "{'a': 12}", "{'a': 7.0}"},
       {"{'a': 13}", "{'a': 0}", "{'a': 7.5}"}},
      {"{'a': {'$in': [{'$numberDouble': 'NaN'}, 4]}}",
       {"{'a': {'$numberDouble': 'NaN'}}", "{'a': 4}"},
       {"{'a': 0}"}},
      {"{'a': {'$in': [{'$minKey': 1}, 2]}}",
       {"{'a': {'$minKey': 1}}", "{'a': 2}"},
       {"{'a': 0}", "{}"}},
      {"{'a': {'$in': [1]}}", {"{'a': 1}"}, {"{'a': 2}"}},
      {"{'a.b': {'$in': [1, 2]}}",
       {"{'a': [{'b': 2}]}", "{'a': {'b': [7, 1]}}"},
       {"{'a': {'b': 3}}"}},
      {"{'a': {'$not': {'$in': [1, 2]}}}", {"{'a': 3}"}, {"{'a': 1}"}},
      {"{'a': {'$in': [{'$ref': 'c', '$id': 1}, 2]}}",
       {"{'a': {'$ref': 'c', '$id': 1}}"},
       {"{'a': 1}"}},
  });
}

TEST_CASE("Logical operators", "[match]") {
  CheckMatches({
      {"{'$and': [{'a': 1}, {'b': 2}]}", {"{'a': 1, 'b': 2}"}, {"{'a': 1}", "{'b': 2}"}},
      {"{'$or': [{'a': 1}, {'b': 2}]}", {"{'a': 1}", "{'b': 2}"}, {"{'a': 2, 'b': 1}", "{}"}},
      {"{'$nor': [{'a': 1}, {'b': 2}]}", {"{}", "{'a': 2}"}, {"{'a': 1}", "{'b': 2}"}},
      {"{'$or': [{'a': 1}]}", {"{'a': 1}"}, {"{'a': 2}"}},
      {"{'$nor': [{'a': 1}]}", {"{'a': 2}"}, {"{'a': 1}"}},
      {"{'$and': [{'$or': [{'a': 1}, {'a': 2}]}, {'$or': [{'b': 1}, {'b': 2}]}]}",
       {"{'a': 1, 'b': 2}"},
       {"{'a': 1, 'b': 3}", "{'a': 3, 'b': 1}"}},
      {"{'$and': [{}, {'a': 1}]}", {"{'a': 1}"}, {"{'a': 2}"}},
      {"{'$or': [{}, {'a': 1}]}", {"{'a': 2}", "{}"}, {}},
      {"{'$nor': [{}]}", {}, {"{}"}},
      {"{'a': 1, '$or': [{'b': 1}, {'c': 1}]}", {"{'a': 1, 'c': 1}"}, {"{'a': 1}", "{'b': 1}"}},
      {"{'$and': [{'$and': [{'a': 1}]}, {'$and': [{'b': 1}]}]}",
       {"{'a': 1, 'b': 1}"},
       {"{'a': 1}"}},
      {"{'a': {'$not': {'$eq': 1}}}", {"{'a': 2}", "{}"}, {"{'a': 1}"}},
      {"{'a': {'$not': {'$not': {'$eq': 1}}}}", {"{'a': 1}"}, {"{'a': 2}", "{}"}},
      {"{'a': {'$not': {'$ne': 1}}}", {"{'a': 1}"}, {"{'a': 2}"}},
      {"{'a': {'$not': {'$regularExpression': {'pattern': '^x', 'options': ''}}}}",
       {"{'a': 'y'}", "{}", "{'a': 5}"},
       {"{'a': 'x'}"}},
      {"{'a': {'$not': {'$regex': '^x'}}}", {"{'a': 'y'}"}, {"{'a': 'x'}"}},
      {"{'a': {'$not': {'$size': 2}}}", {"{'a': [1]}", "{'a': 1}"}, {"{'a': [1, 2]}"}},
      {"{'$comment': 'hello'}", {"{}"}, {}},
      {"{'a': 1, '$comment': {'x': 1}}", {"{'a': 1}"}, {"{'a': 2}"}},
      {"{'a': {'$gt': 1, '$comment': 'c'}}", {"{'a': 2}"}, {"{'a': 1}"}},
      {"{'$alwaysTrue': 1}", {"{}"}, {}},
      {"{'$alwaysFalse': 1}", {}, {"{}"}},
      {"{'$nor': [{'a': {'$exists': true}}, {'b': {'$gt': 5}}]}",
       {"{'b': 5}"},
       {"{'a': null}", "{'b': 6}"}},
  });
}

TEST_CASE("$exists and $type", "[match]") {
  CheckMatches({
      {"{'a': {'$exists': true}}", {"{'a': 1}", "{'a': null}", "{'a': []}"}, {"{}", "{'b': 1}"}},
      {"{'a': {'$exists': false}}", {"{}"}, {"{'a': 1}", "{'a': null}", "{'a': []}", "{'a': [1]}"}},
      {"{'a': {'$exists': 1}}", {"{'a': 1}"}, {"{}"}},
      {"{'a': {'$exists': 0}}", {"{}"}, {"{'a': 1}"}},
      {"{'a': {'$exists': null}}", {"{}"}, {"{'a': 1}"}},
      {"{'a': {'$not': {'$exists': true}}}", {"{}"}, {"{'a': 1}"}},
      {"{'a': {'$not': {'$exists': false}}}", {"{'a': 1}"}, {"{}"}},
      {"{'a': {'$type': 'double'}}", {"{'a': 1.5}", "{'a': ['x', 1.5]}"}, {"{'a': 1}", "{}"}},
      {"{'a': {'$type': 1}}", {"{'a': 1.5}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 2}}", {"{'a': 'x'}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 'string'}}", {"{'a': 'x'}", "{'a': [1, 'x']}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 'object'}}", {"{'a': {}}", "{'a': [{}]}"}, {"{'a': []}"}},
      {"{'a': {'$type': 'array'}}",
       {"{'a': []}", "{'a': [1]}", "{'a': [[]]}"},
       {"{'a': {}}", "{'a': 1}"}},
      {"{'a': {'$type': 4}}", {"{'a': [1, 2]}"}, {"{'a': 4}"}},
      {"{'a': {'$type': 'binData'}}",
       {"{'a': {'$binary': {'base64': '', 'subType': '00'}}}"},
       {"{'a': ''}"}},
      {"{'a': {'$type': 'undefined'}}", {"{'a': {'$undefined': true}}"}, {"{}", "{'a': null}"}},
      {"{'a': {'$type': 'objectId'}}",
       {"{'a': {'$oid': '000000000000000000000005'}}"},
       {"{'a': 'x'}"}},
      {"{'a': {'$type': 'bool'}}", {"{'a': false}"}, {"{'a': 0}"}},
      {"{'a': {'$type': 'date'}}", {"{'a': {'$date': {'$numberLong': '1'}}}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 'null'}}", {"{'a': null}"}, {"{}", "{'a': 0}"}},
      {"{'a': {'$type': 10}}", {"{'a': null}", "{'a': [null]}"}, {"{}"}},
      {"{'a': {'$type': 'regex'}}",
       {"{'a': {'$regularExpression': {'pattern': 'x', 'options': ''}}}"},
       {"{'a': 'x'}"}},
      {"{'a': {'$type': 'javascript'}}", {"{'a': {'$code': 'x'}}"}, {"{'a': 'x'}"}},
      {"{'a': {'$type': 'symbol'}}", {"{'a': {'$symbol': 'x'}}"}, {"{'a': 'x'}"}},
      {"{'a': {'$type': 'int'}}", {"{'a': 1}"}, {"{'a': 1.0}", "{'a': {'$numberLong': '1'}}"}},
      {"{'a': {'$type': 'timestamp'}}", {"{'a': {'$timestamp': {'t': 1, 'i': 1}}}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 'long'}}", {"{'a': {'$numberLong': '1'}}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 'decimal'}}", {"{'a': {'$numberDecimal': '1'}}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 'minKey'}}", {"{'a': {'$minKey': 1}}"}, {"{'a': 1}"}},
      {"{'a': {'$type': -1}}", {"{'a': {'$minKey': 1}}"}, {"{'a': -1}"}},
      {"{'a': {'$type': 'maxKey'}}", {"{'a': {'$maxKey': 1}}"}, {"{'a': 1}"}},
      {"{'a': {'$type': 127}}", {"{'a': {'$maxKey': 1}}"}, {"{'a': 127}"}},
      {"{'a': {'$type': 'number'}}",
       {"{'a': 1}", "{'a': 1.5}", "{'a': {'$numberLong': '1'}}", "{'a': {'$numberDecimal': '1'}}"},
       {"{'a': '1'}", "{'a': true}"}},
      {"{'a': {'$type': ['string', 'null', 16]}}",
       {"{'a': 'x'}", "{'a': null}", "{'a': 1}"},
       {"{'a': 1.5}", "{}"}},
      {"{'a': {'$type': {'$numberDouble': '2.0'}}}", {"{'a': 'x'}"}, {"{'a': 2.5}"}},
      {"{'a.b': {'$type': 'int'}}", {"{'a': [{'b': 'x'}, {'b': 1}]}"}, {"{'a': [1]}"}},
  });
}

TEST_CASE("Array operators", "[match]") {
  CheckMatches({
      {"{'a': {'$size': 0}}", {"{'a': []}"}, {"{'a': [1]}", "{}", "{'a': 0}"}},
      {"{'a': {'$size': 2}}",
       {"{'a': [1, 2]}", "{'a': [[], []]}"},
       {"{'a': [1]}", "{'a': [1, 2, 3]}", "{'a': [[1, 2]]}"}},
      {"{'a': {'$size': 2.0}}", {"{'a': [1, 2]}"}, {"{'a': [1]}"}},
      {"{'a': {'$size': {'$numberLong': '1'}}}", {"{'a': [1]}"}, {"{'a': []}"}},
      {"{'a.b': {'$size': 1}}",
       {"{'a': {'b': [1]}}", "{'a': [{'b': []}, {'b': [3]}]}"},
       {"{'a': [{'b': 1}]}"}},
      {"{'a.0': {'$size': 2}}", {"{'a': [[1, 2]]}"}, {"{'a': [1, 2]}"}},
      {"{'a': {'$all': [1, 2]}}",
       {"{'a': [2, 1]}", "{'a': [1, 2, 3]}"},
       {"{'a': [1]}", "{'a': 1}", "{}"}},
      {"{'a': {'$all': [1]}}", {"{'a': 1}", "{'a': [1]}"}, {"{'a': 2}"}},
      {"{'a': {'$all': []}}", {}, {"{}", "{'a': []}", "{'a': 1}"}},
      {"{'a': {'$all': [null]}}", {"{}", "{'a': null}", "{'a': [null]}"}, {"{'a': 1}"}},
      {"{'a': {'$all': [[1, 2]]}}", {"{'a': [1, 2]}", "{'a': [[1, 2]]}"}, {"{'a': [2, 1]}"}},
      {"{'a': {'$all': [{'$regularExpression': {'pattern': '^x', 'options': ''}}, 'y']}}",
       {"{'a': ['xx', 'y']}"},
       {"{'a': ['y']}", "{'a': 'xx'}"}},
      {"{'a': {'$all': [{'$elemMatch': {'b': 1}}, {'$elemMatch': {'b': 2, 'c': 3}}]}}",
       {"{'a': [{'b': 1}, {'b': 2, 'c': 3}]}"},
       {"{'a': [{'b': 1}, {'b': 2}]}", "{'a': {'b': 1}}"}},
      {"{'a.b': {'$all': [1, 2]}}",
       {"{'a': [{'b': 1}, {'b': 2}]}", "{'a': {'b': [1, 2]}}"},
       {"{'a': [{'b': 1}]}"}},
      {"{'a': {'$elemMatch': {'b': 1, 'c': 2}}}",
       {"{'a': [{'b': 1, 'c': 2}]}", "{'a': [5, {'b': [1], 'c': 2}]}"},
       {"{'a': [{'b': 1}, {'c': 2}]}", "{'a': {'b': 1, 'c': 2}}", "{'a': [[{'b': 1, 'c': 2}]]}",
        "{}"}},
      {"{'a': {'$elemMatch': {'0': 1}}}", {"{'a': [[1]]}", "{'a': [{'0': 1}]}"}, {"{'a': [1]}"}},
      {"{'a': {'$elemMatch': {'$gt': 1, '$lt': 5}}}",
       {"{'a': [0, 3]}"},
       {"{'a': [0, 9]}", "{'a': 3}", "{'a': []}"}},
      {"{'a': {'$elemMatch': {'$eq': 1}}}", {"{'a': [1]}"}, {"{'a': 1}", "{'a': [[1]]}"}},
      {"{'a': {'$elemMatch': {'$in': [1, 2]}}}", {"{'a': [2]}"}, {"{'a': [3]}", "{'a': 2}"}},
      {"{'a': {'$elemMatch': {'$nin': [1, 2]}}}",
       {"{'a': [1, 3]}"},
       {"{'a': [1, 2]}", "{'a': []}"}},
      {"{'a': {'$elemMatch': {'$ne': 1}}}", {"{'a': [1, 2]}"}, {"{'a': [1]}"}},
      {"{'a': {'$elemMatch': {'$not': {'$gt': 1}}}}", {"{'a': [0, 5]}"}, {"{'a': [5]}"}},
      {"{'a': {'$elemMatch': {'$elemMatch': {'$eq': 1}}}}",
       {"{'a': [[1]]}", "{'a': [2, [3, 1]]}"},
       {"{'a': [1]}"}},
      {"{'a': {'$elemMatch': {'$size': 2}}}", {"{'a': [[1, 2]]}"}, {"{'a': [1, 2]}"}},
      {"{'a': {'$elemMatch': {'$type': 'string'}}}",
       {"{'a': [1, 'x']}"},
       {"{'a': 'x'}", "{'a': [['x']]}"}},
      {"{'a': {'$elemMatch': {'$exists': true}}}", {"{'a': [1]}", "{'a': [null]}"}, {"{'a': []}"}},
      {"{'a': {'$elemMatch': {'$regex': '^x'}}}",
       {"{'a': ['q', 'xx']}"},
       {"{'a': 'xx'}", "{'a': ['q']}"}},
      {"{'a': {'$elemMatch': {'$or': [{'b': 1}, {'c': 1}]}}}",
       {"{'a': [{'c': 1}]}"},
       {"{'a': [{'d': 1}]}"}},
      {"{'a': {'$elemMatch': {'$and': [{'b': 1}, {'c': 1}]}}}",
       {"{'a': [{'b': 1, 'c': 1}]}"},
       {"{'a': [{'b': 1}, {'c': 1}]}"}},
      {"{'a': {'$elemMatch': {}}}", {"{'a': [{}]}", "{'a': [[]]}"}, {"{'a': [1]}", "{'a': []}"}},
      {"{'a': {'$elemMatch': {'b': {'$exists': false}}}}",
       {"{'a': [{'c': 1}]}"},
       {"{'a': [{'b': 1}]}", "{'a': [1]}"}},
      {"{'a.b': {'$elemMatch': {'c': 1}}}",
       {"{'a': [{'b': [{'c': 1}]}]}", "{'a': {'b': [{'c': 1}]}}"},
       {"{'a': [{'b': {'c': 1}}]}"}},
      {"{'a': {'$not': {'$elemMatch': {'b': 1}}}}",
       {"{'a': [{'b': 2}]}", "{}"},
       {"{'a': [{'b': 1}]}"}},
      {"{'a': {'$elemMatch': {'$in': []}}}", {}, {"{'a': [1]}"}},
      {"{'a': {'$elemMatch': {'$all': [{'$regularExpression': {'pattern': 'x', 'options': 'i'}}, "
       "{'$regularExpression': {'pattern': 'y', 'options': ''}}]}}}",
       {"{'a': ['Xy']}"},
       {"{'a': ['XY']}", "{'a': ['X', 'y']}"}},
      {"{'a': {'$elemMatch': {'$ref': 'c', '$id': 1}}}",
       {"{'a': [{'$ref': 'c', '$id': 1}]}"},
       {"{'a': [{'$ref': 'c', '$id': 2}]}"}},
  });
}

TEST_CASE("$mod", "[match]") {
  CheckMatches({
      {"{'a': {'$mod': [4, 1]}}",
       {"{'a': 5}", "{'a': 5.9}", "{'a': [2, 9]}", "{'a': {'$numberLong': '1'}}",
        "{'a': {'$numberDecimal': '13.7'}}"},
       {"{'a': 4}", "{'a': 'x'}", "{}", "{'a': -5}", "{'a': {'$numberDouble': 'NaN'}}",
        "{'a': {'$numberDouble': 'Infinity'}}"}},
      {"{'a': {'$mod': [4, -1]}}", {"{'a': -5}"}, {"{'a': 5}"}},
      {"{'a': {'$mod': [-4, 1]}}", {"{'a': 5}"}, {"{'a': -5}"}},
      {"{'a': {'$mod': [4.9, 0.9]}}", {"{'a': 8}"}, {"{'a': 5}"}},
      {"{'a': {'$mod': [-1, 0]}}",
       {"{'a': {'$numberLong': '-9223372036854775808'}}", "{'a': 7}"},
       {"{'a': 1e300}"}},
      {"{'a': {'$mod': [2, 5]}}", {}, {"{'a': 5}", "{'a': 1}"}},
      {"{'a': {'$mod': [3, 0]}}",
       {"{'a': 0}", "{'a': -3}", "{'a': {'$numberLong': '9223372036854775806'}}"},
       {"{'a': 1e19}", "{'a': true}", "{'a': null}"}},
  });
}

TEST_CASE("Regular expressions", "[match]") {
  CheckMatches({
      {"{'a': {'$regularExpression': {'pattern': 'b.d', 'options': ''}}}",
       {"{'a': 'abcd'}", "{'a': ['x', 'bcd']}", "{'a': {'$symbol': 'bcd'}}",
        "{'a': {'$regularExpression': {'pattern': 'b.d', 'options': ''}}}"},
       {"{'a': 'bd'}", "{'a': 5}", "{}",
        "{'a': {'$regularExpression': {'pattern': 'b.d', 'options': 'i'}}}"}},
      {"{'a': {'$regex': '^AB', '$options': 'i'}}", {"{'a': 'abc'}"}, {"{'a': 'xab'}"}},
      {"{'a': {'$options': 'i', '$regex': '^AB'}}", {"{'a': 'abc'}"}, {"{'a': 'xab'}"}},
      {"{'a': {'$regex': '^b', '$options': 'm'}}", {"{'a': 'a\\nb'}"}, {"{'a': 'ab'}"}},
      {"{'a': {'$regex': 'a.b', '$options': 's'}}", {"{'a': 'a\\nb'}"}, {"{'a': 'ab'}"}},
      {"{'a': {'$regex': 'a.b'}}", {"{'a': 'axb'}"}, {"{'a': 'a\\nb'}"}},
      {"{'a': {'$regex': 'a b # note', '$options': 'x'}}", {"{'a': 'ab'}"}, {"{'a': 'a b'}"}},
      {"{'a': {'$regex': 'é', '$options': 'iu'}}", {"{'a': 'CAFÉ'}"}, {"{'a': 'cafe'}"}},
      {"{'a': {'$regex': '^.$'}}", {"{'a': 'é'}", "{'a': '日'}"}, {"{'a': 'éé'}"}},
      {"{'a': {'$regex': {'$regularExpression': {'pattern': '^x', 'options': 'i'}}}}",
       {"{'a': 'X'}"},
       {"{'a': 'y'}"}},
      {"{'a': {'$regex': {'$regularExpression': {'pattern': '^x', 'options': ''}}, '$options': "
       "'i'}}",
       {"{'a': 'X'}"},
       {"{'a': 'y'}"}},
      {"{'a': {'$regex': '^x', '$ne': 'xy'}}", {"{'a': 'xz'}"}, {"{'a': 'xy'}", "{'a': 'y'}"}},
      {"{'a': {'$regex': ''}}", {"{'a': ''}", "{'a': 'x'}"}, {"{'a': 1}"}},
      {"{'a': {'$regex': '(?i)AbC'}}", {"{'a': 'abc'}"}, {"{'a': 'ab'}"}},
      {"{'a': {'$regex': '(a)\\\\1'}}", {"{'a': 'aa'}"}, {"{'a': 'ab'}"}},
      {"{'a.b': {'$regularExpression': {'pattern': '^x', 'options': ''}}}",
       {"{'a': [{'b': 'x1'}]}"},
       {"{'a': {'b': 'y'}}"}},
  });
}

TEST_CASE("Bitwise operators", "[match]") {
  CheckMatches({
      {"{'a': {'$bitsAllSet': 5}}",
       {"{'a': 5}", "{'a': 7}", "{'a': 13.0}", "{'a': [1, 5]}", "{'a': -1}"},
       {"{'a': 4}", "{'a': 5.5}", "{'a': 'x'}", "{}"}},
      {"{'a': {'$bitsAllSet': [0, 2]}}",
       {"{'a': 5}", "{'a': {'$binary': {'base64': 'BQ==', 'subType': '00'}}}"},
       {"{'a': 4}", "{'a': {'$binary': {'base64': 'BA==', 'subType': '00'}}}"}},
      {"{'a': {'$bitsAllClear': [0, 2]}}",
       {"{'a': 2}", "{'a': 0}", "{'a': {'$binary': {'base64': '', 'subType': '00'}}}"},
       {"{'a': 1}", "{'a': 5}"}},
      {"{'a': {'$bitsAnySet': [0, 2]}}", {"{'a': 1}", "{'a': 4}"}, {"{'a': 2}", "{'a': 0}"}},
      {"{'a': {'$bitsAnyClear': [0, 2]}}", {"{'a': 1}", "{'a': 0}"}, {"{'a': 5}", "{'a': 7}"}},
      {"{'a': {'$bitsAllSet': [200]}}",
       {"{'a': -1}"},
       {"{'a': 1}", "{'a': {'$binary': {'base64': '/////w==', 'subType': '00'}}}"}},
      {"{'a': {'$bitsAllClear': [200]}}",
       {"{'a': 1}", "{'a': {'$binary': {'base64': '/w==', 'subType': '00'}}}"},
       {"{'a': -1}"}},
      {"{'a': {'$bitsAnySet': [200, 1]}}", {"{'a': -4}", "{'a': 2}"}, {"{'a': 5}"}},
      {"{'a': {'$bitsAnyClear': [200, 1]}}", {"{'a': 2}", "{'a': -3}"}, {"{'a': -1}"}},
      {"{'a': {'$bitsAllSet': {'$binary': {'base64': 'BQ==', 'subType': '00'}}}}",
       {"{'a': 5}", "{'a': {'$binary': {'base64': 'BwE=', 'subType': '00'}}}"},
       {"{'a': 4}", "{'a': {'$binary': {'base64': '', 'subType': '00'}}}"}},
      {"{'a': {'$bitsAnyClear': {'$binary': {'base64': 'BQE=', 'subType': '00'}}}}",
       {"{'a': 5}", "{'a': {'$binary': {'base64': 'BQ==', 'subType': '00'}}}"},
       {"{'a': {'$binary': {'base64': 'BQE=', 'subType': '00'}}}", "{'a': 261}"}},
      {"{'a': {'$bitsAllSet': []}}", {"{'a': 5}", "{'a': 0}"}, {"{'a': 'x'}"}},
      {"{'a': {'$bitsAnySet': []}}", {}, {"{'a': 5}"}},
      {"{'a': {'$bitsAllSet': 0}}", {"{'a': 5}"}, {"{'a': 1.5}"}},
      {"{'a': {'$bitsAllClear': 255}}",
       {"{'a': 256}", "{'a': {'$numberLong': '-256'}}", "{'a': {'$numberDecimal': '512'}}"},
       {"{'a': 1}", "{'a': 1e300}"}},
  });
}

TEST_CASE("$expr", "[match]") {
  CheckMatches({
      {"{'$expr': {'$gt': ['$a', '$b']}}", {"{'a': 2, 'b': 1}"}, {"{'a': 1, 'b': 2}"}},
      {"{'$expr': '$a'}",
       {"{'a': 1}", "{'a': 'x'}"},
       {"{}", "{'a': 0}", "{'a': null}", "{'a': false}"}},
      {"{'$expr': true}", {"{}"}, {}},
      {"{'b': 1, '$expr': {'$eq': ['$a.c', 3]}}",
       {"{'b': 1, 'a': {'c': 3}}"},
       {"{'a': {'c': 3}}", "{'b': 1}"}},
      {"{'$or': [{'b': 1}, {'$expr': {'$lt': ['$a', 3]}}]}",
       {"{'b': 1, 'a': 5}", "{'a': 2}"},
       {"{'a': 5}"}},
      {"{'$expr': {'$let': {'vars': {'x': '$a'}, 'in': {'$eq': ['$$x', 3]}}}}",
       {"{'a': 3}"},
       {"{'a': 4}"}},
  });
}

TEST_CASE("$jsonSchema", "[match]") {
  CheckMatches({
      {"{'$jsonSchema': {}}", {"{}", "{'a': 1}"}, {}},
      {"{'$jsonSchema': {'required': ['a', 'b']}}", {"{'a': 1, 'b': null}"}, {"{'a': 1}"}},
      {"{'$jsonSchema': {'bsonType': 'object', 'properties': {'a': {'bsonType': 'int'}}}}",
       {"{'a': 1}", "{}"},
       {"{'a': 'x'}", "{'a': 1.5}"}},
      {"{'$jsonSchema': {'properties': {'a': {'bsonType': ['int', 'null']}}}}",
       {"{'a': 1}", "{'a': null}"},
       {"{'a': 'x'}"}},
      {"{'$jsonSchema': {'properties': {'a': {'bsonType': 'number'}}}}",
       {"{'a': 1.5}"},
       {"{'a': 'x'}"}},
      {"{'$jsonSchema': {'properties': {'a': {'type': 'boolean'}}}}",
       {"{'a': true}"},
       {"{'a': 1}"}},
      {"{'$jsonSchema': {'properties': {'a': {'type': ['string', 'null']}}}}",
       {"{'a': null}", "{'a': 'x'}"},
       {"{'a': 1}", "{'a': []}"}},
      {"{'$jsonSchema': {'properties': {'a': {'minimum': 5}}}}",
       {"{'a': 5}", "{'a': 'x'}"},
       {"{'a': 4}"}},
      {"{'$jsonSchema': {'properties': {'a': {'minimum': 5, 'exclusiveMinimum': true, 'maximum': "
       "9}}}}",
       {"{'a': 6}", "{'a': 9}"},
       {"{'a': 5}", "{'a': 10}"}},
      {"{'$jsonSchema': {'properties': {'a': {'maximum': 9, 'exclusiveMaximum': true}}}}",
       {"{'a': 8}"},
       {"{'a': 9}"}},
      {"{'$jsonSchema': {'properties': {'a': {'multipleOf': 0.1}}}}",
       {"{'a': 0.3}", "{'a': 2}"},
       {"{'a': 0.35}", "{'a': {'$numberDouble': 'NaN'}}"}},
      {"{'$jsonSchema': {'properties': {'a': {'minLength': 2, 'maxLength': 3}}}}",
       {"{'a': 'éé'}", "{'a': 5}"},
       {"{'a': 'é'}", "{'a': 'abcd'}"}},
      {"{'$jsonSchema': {'properties': {'a': {'pattern': '^x'}}}}",
       {"{'a': 'xy'}", "{'a': 1}"},
       {"{'a': 'y'}"}},
      {"{'$jsonSchema': {'properties': {'a': {'enum': [1, 'x', {'p': 1, 'q': 2}]}}}}",
       {"{'a': 1}", "{'a': {'q': 2, 'p': 1}}"},
       {"{'a': 2}", "{'a': {'p': 1}}"}},
      {"{'$jsonSchema': {'properties': {'a': {'items': {'bsonType': 'int'}}}}}",
       {"{'a': [1, 2]}", "{'a': []}", "{'a': 'x'}"},
       {"{'a': [1, 'x']}"}},
      {"{'$jsonSchema': {'properties': {'a': {'items': [{'bsonType': 'int'}, {'bsonType': "
       "'string'}], 'additionalItems': false}}}}",
       {"{'a': [1, 'x']}", "{'a': [1]}"},
       {"{'a': [1, 'x', 2]}", "{'a': ['x']}"}},
      {"{'$jsonSchema': {'properties': {'a': {'items': [{}], 'additionalItems': {'bsonType': "
       "'int'}}}}}",
       {"{'a': ['x', 1]}"},
       {"{'a': [1, 'x']}"}},
      {"{'$jsonSchema': {'properties': {'a': {'minItems': 1, 'maxItems': 2, 'uniqueItems': "
       "true}}}}",
       {"{'a': [1, 2]}"},
       {"{'a': []}", "{'a': [1, 2, 3]}", "{'a': [1, 1.0]}",
        "{'a': [{'p': 1, 'q': 2}, {'q': 2, 'p': 1}]}"}},
      {"{'$jsonSchema': {'additionalProperties': false, 'properties': {'a': {}}, "
       "'patternProperties': {'^x': {'bsonType': 'int'}}}}",
       {"{'a': 1, 'x1': 2}"},
       {"{'b': 1}", "{'x1': 'y'}"}},
      {"{'$jsonSchema': {'additionalProperties': {'bsonType': 'int'}, 'properties': {'a': {}}}}",
       {"{'a': 'x', 'b': 1}"},
       {"{'b': 'x'}"}},
      {"{'$jsonSchema': {'minProperties': 1, 'maxProperties': 2}}",
       {"{'a': 1}"},
       {"{}", "{'a': 1, 'b': 1, 'c': 1}"}},
      {"{'$jsonSchema': {'dependencies': {'a': ['b'], 'c': {'required': ['d']}}}}",
       {"{'a': 1, 'b': 1}", "{}", "{'c': 1, 'd': 1}"},
       {"{'a': 1}", "{'c': 1}"}},
      {"{'$jsonSchema': {'allOf': [{'required': ['a']}, {'required': ['b']}]}}",
       {"{'a': 1, 'b': 1}"},
       {"{'a': 1}"}},
      {"{'$jsonSchema': {'anyOf': [{'required': ['a']}, {'required': ['b']}]}}",
       {"{'a': 1}"},
       {"{}"}},
      {"{'$jsonSchema': {'oneOf': [{'required': ['a']}, {'required': ['b']}]}}",
       {"{'a': 1}"},
       {"{}", "{'a': 1, 'b': 1}"}},
      {"{'$jsonSchema': {'not': {'required': ['a']}}}", {"{}"}, {"{'a': 1}"}},
      {"{'$jsonSchema': {'title': 't', 'description': 'd', 'properties': {'a': {'properties': "
       "{'b': {'bsonType': 'int'}}}}}}",
       {"{'a': {'b': 1}}", "{'a': 1}"},
       {"{'a': {'b': 'x'}}"}},
      {"{'$jsonSchema': {'required': ['a']}, 'b': 1}",
       {"{'a': 1, 'b': 1}"},
       {"{'a': 1}", "{'b': 1}"}},
  });
}

TEST_CASE("A path of numbers that are names too does not lead through a document for ever",
          "[match][limits]") {
  // Each level can be entered as a position and as a field's name: 2^40 ways.
  std::string nested = "1";
  for (int i = 0; i < 40; ++i) nested = "[{\"0\": " + nested + "}]";
  std::string path = "a";
  for (int i = 0; i < 60; ++i) path += ".0";
  BsonDocument filter = ParseJson("{\"" + path + "\": 5}").value();
  BsonDocument doc = ParseJson("{\"a\": " + nested + "}").value();
  MatchPtr match = ParseMatch(filter).value();
  Result<bool> r = match->Matches(doc);
  REQUIRE(!r);
  CHECK(r.error().code == ErrorCode::kBadValue);
  // Where there are few ways each is taken: by name twice, or by position and name twice; not by
  // more.
  BsonDocument one = ParseJson(R"({"a": [{"0": [{"0": 5}]}]})").value();
  BsonDocument way = ParseJson(R"({"a.0.0": 5})").value();
  CHECK(ParseMatch(way).value()->Matches(one).value());
  BsonDocument all = ParseJson(R"({"a.0.0.0.0": 5})").value();
  CHECK(ParseMatch(all).value()->Matches(one).value());
  BsonDocument longer = ParseJson(R"({"a.0.0.0.0.0": 5})").value();
  CHECK_FALSE(ParseMatch(longer).value()->Matches(one).value());
}

TEST_CASE("A walk along a path of numbers ends by itself, and with its operation",
          "[match][limits]") {
  std::string nested = "1", path = "a";
  for (int i = 0; i < 40; ++i) nested = "[{\"0\": " + nested + "}]";
  for (int i = 0; i < 60; ++i) path += ".0";
  const BsonDocument doc = ParseJson("{\"a\": " + nested + "}").value();
  SystemClock clock;
  Operation op(clock);
  size_t values = 0;
  auto each = [&](BsonValue, int) {
    ++values;
    return false;
  };

  match::AmbiguousSteps all(&op);
  CHECK(match::WalkPath(doc, path, true, -1, each, all));
  CHECK(all.TooMany());
  CHECK(all.steps() <= match::AmbiguousSteps::kMost + 1);
  CHECK(values <= 2 * size_t{match::AmbiguousSteps::kMost});
  CHECK(all.Status(path).error().code == ErrorCode::kBadValue);

  op.kill_code = 11601;
  match::AmbiguousSteps killed(&op);
  CHECK(match::WalkPath(doc, path, true, -1, each, killed));
  CHECK_FALSE(killed.TooMany());
  CHECK(killed.steps() <= 1024);
  CHECK(static_cast<int>(killed.Status(path).error().code) == 11601);

  // Where nothing is ambiguous no step is counted, and nobody is asked.
  match::AmbiguousSteps none(&op);
  CHECK_FALSE(match::WalkPath(doc, "a.b.c", true, -1, each, none));
  CHECK(none.steps() == 0);
  CHECK(none.Status("a.b.c"));
}

TEST_CASE("The sort of uniqueItems ends with its operation", "[match]") {
  // So few items that only their sort is long enough to look whether the operation must stop.
  BsonDocument doc = BuildBson([](BsonBuilder& b) {
    BsonArrayBuilder list = b.OpenArray("a");
    for (int i = 0; i < 200; ++i) list.Append(std::string(400, 'x') + std::to_string(i * 37 % 200));
  });
  MatchPtr match =
      ParseMatch(Json("{'$jsonSchema': {'properties': {'a': {'uniqueItems': true}}}}")).value();
  SystemClock clock;
  Operation op(clock);
  EvalContext ctx;
  ctx.op = &op;
  CHECK(match->Matches(doc, &ctx).value());
  op.kill_code = 11601;
  Result<bool> killed = match->Matches(doc, &ctx);
  REQUIRE(!killed);
  CHECK(killed.error().code == ErrorCode::kInterrupted);
}
