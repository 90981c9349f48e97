#include "server/dispatch/arg_reader.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>

#include "protocol/extended_json.h"

using namespace mayfly;

namespace {

struct Request {
  explicit Request(std::string_view json) : body(ParseJson(json).value()) {
    auto r = ParseCommandFields(body.view(), &request);
    if (!r) error = r.error();
  }
  BsonDocument body;
  CommandRequest request;
  std::optional<Error> error;
};

/// Reads a little find.
Result<void> ReadFind(const CommandRequest& req) {
  ArgReader in(req);
  in.Collection();
  in.DocumentOr("filter");
  in.NonNegativeOr("limit", 0);
  in.BoolOr("singleBatch", false);
  in.OptInRange("batch", 0, 10);
  in.OptString("note");
  in.LooseBoolOr("loose", false);
  return in.Finish();
}

}  // namespace

TEST_CASE("Fields are refused as MongoDB refuses them", "[args]") {
  struct Case {
    const char* json;
    int code;
    const char* message;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"find": "c", "foo": 1})", 40415, "BSON field 'find.foo' is an unknown field."},
      {R"({"find": "c", "limit": "x"})", 14,
       "BSON field 'find.limit' is the wrong type 'string', expected types '[long, int, decimal, "
       "double]'"},
      {R"({"find": "c", "filter": 5})", 14,
       "BSON field 'find.filter' is the wrong type 'int', expected type 'object'"},
      {R"({"find": "c", "singleBatch": 1})", 14,
       "BSON field 'find.singleBatch' is the wrong type 'int', expected type 'bool'"},
      {R"({"find": "c", "loose": "yes"})", 14,
       "BSON field 'find.loose' is the wrong type 'string', expected types '[bool, long, int, "
       "decimal, double]'"},
      {R"({"find": "c", "limit": -1})", 51024,
       "BSON field 'limit' value must be >= 0, actual value '-1'"},
      {R"({"find": "c", "batch": 11})", 2,
       "BSON field 'batch' value must be <= 10, actual value '11'"},
      {R"({"find": 1})", 73, "collection name has invalid type int"},
      {R"({"find": ""})", 73, "Invalid namespace specified '.'"},
  }));
  CAPTURE(c.json);
  Request r(c.json);
  REQUIRE_FALSE(r.error);
  auto result = ReadFind(r.request);
  REQUIRE_FALSE(result);
  CHECK(static_cast<int>(result.error().code) == c.code);
  CHECK(result.error().message == c.message);
}

TEST_CASE("A field that is there twice is an error, whatever it is", "[args]") {
  struct Case {
    const char* json;
    const char* field;
  };
  // Once the last generic one counted, and others only for who read all fields.
  const auto c = GENERATE(values<Case>({
      {R"({"find": "c", "limit": 1, "limit": 2})", "find.limit"},
      {R"({"find": "c", "limit": 1, "$db": "a", "limit": 1})", "find.limit"},
      {R"({"find": "c", "find": "d"})", "find.find"},
      {R"({"find": "c", "unknown": 1, "unknown": 1})", "find.unknown"},
      {R"({"find": "c", "$db": "a", "$db": "a"})", "find.$db"},
      {R"({"find": "c", "$db": "a", "$db": "b"})", "find.$db"},
      {R"({"find": "c", "lsid": {}, "lsid": {}})", "find.lsid"},
      {R"({"find": "c", "txnNumber": 1, "x": 1, "txnNumber": 2})", "find.txnNumber"},
      {R"({"find": "c", "apiVersion": "1", "apiVersion": "2"})", "find.apiVersion"},
      {R"({"find": "c", "comment": 1, "comment": 1})", "find.comment"},
  }));
  CAPTURE(c.json);
  const std::string message = "BSON field '" + std::string(c.field) + "' is a duplicate field";
  Request r(c.json);
  REQUIRE(r.error);
  CHECK(static_cast<int>(r.error->code) == 40413);
  CHECK(r.error->message == message);
  // The same in a document within a command, also for readers that take any field.
  ArgReader in("find", r.body.view());
  const Result<void> read = in.FinishLoose();
  REQUIRE_FALSE(read);
  CHECK(read.error().message == message);
}

TEST_CASE("A field is there once in the documents that every command takes", "[args]") {
  struct Case {
    const char* json;
    const char* field;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"$readPreference": {"mode": "nearest", "mode": "primary"}})", "$readPreference.mode"},
      {R"({"$readPreference": {"mode": "nearest", "hedge": {"enabled": true, "enabled": false}}})",
       "$readPreference.hedge.enabled"},
      {R"({"$readPreference": {"mode": "nearest", "tags": [{"b": "x"}, {"a": "x", "a": "y"}]}})",
       "$readPreference.tags.a"},
      {R"({"$clusterTime": {"clusterTime": {"$timestamp": {"t": 1, "i": 1}},
                            "signature": {"hash": 1, "hash": 2, "keyId": 0}}})",
       "$clusterTime.signature.hash"},
      {R"({"$clusterTime": {"signature": {"keyId": 0, "keyId": 1}}})",
       "$clusterTime.signature.keyId"},
  }));
  CAPTURE(c.json);
  const BsonDocument generic = ParseJson(c.json).value();
  const BsonDocument body = BuildBson([&](BsonBuilder& b) {
    b.Append("find", "c");
    b.AppendAll(generic.view());
  });
  CommandRequest request;
  const Result<void> read = ParseCommandFields(body.view(), &request);
  REQUIRE_FALSE(read);
  CHECK(read.error().code == LocationCode(40413));
  CHECK(read.error().message == "BSON field '" + std::string(c.field) + "' is a duplicate field");
}

TEST_CASE("A field that is there twice is found among many", "[args]") {
  // More than there are bits that tell names apart.
  for (const size_t fields : std::initializer_list<size_t>{1, 60, 63, 64, 65, 500}) {
    for (const size_t twice : {size_t{0}, fields / 2, fields - 1, fields}) {
      CAPTURE(fields, twice);
      const BsonDocument body = BuildBson([&](BsonBuilder& b) {
        for (size_t i = 0; i < fields; ++i) b.Append("f" + std::to_string(i), 1);
        b.Append("f" + std::to_string(twice), 1);
      });
      CommandRequest request;
      CHECK(ParseCommandFields(body.view(), &request).has_value() == (twice == fields));
      ArgReader in("where", body.view());
      CHECK(in.FinishLoose().has_value() == (twice == fields));
    }
  }
}

TEST_CASE("Names longer than all that are read are not compared, and unknown", "[args]") {
  // A body may have 64 names of 250 kB, equal but for the last letter but one, or a thousand
  // of 16 kB: comparing these took 60 ms, on a thread that serves others.
  const auto body = [](size_t length) {
    return BuildBson([&](BsonBuilder& b) {
      b.Append("find", "c");
      for (int i = 0; i < 160; ++i) {
        std::string name(length, 'n');
        name[length - 2] = static_cast<char>('!' + i / 2);
        b.Append(name, 1);
      }
    });
  };
  for (const size_t length : {size_t{100}, kShownName, kShownName + 1, size_t{10'000}}) {
    CAPTURE(length);
    const BsonDocument doc = body(length);
    CommandRequest request;
    const Result<void> read = ParseCommandFields(doc.view(), &request);
    CHECK(read.has_value() == (length > kShownName));
    ArgReader in("find", doc.view());
    in.Any("find");
    const Result<void> finished = in.Finish();
    REQUIRE_FALSE(finished);
    CHECK(static_cast<int>(finished.error().code) == (length > kShownName ? 40415 : 40413));
    CHECK(finished.error().message.size() < 500);
  }
}

TEST_CASE("Fields that every command takes are known, null counts as absent, numbers convert",
          "[args]") {
  Request r(
      R"({"find": "c", "filter": null, "limit": 2.9, "loose": 1, "$db": "d", "lsid": {"id": 1}, "maxTimeMS": 5,
               "comment": [1], "readConcern": {}, "$readPreference": {"mode": "primary"}, "apiVersion": "1"})");
  REQUIRE_FALSE(r.error);
  ArgReader in(r.request);
  CHECK(in.Collection() == "c");
  CHECK_FALSE(in.OptDocument("filter"));
  CHECK(in.NonNegativeOr("limit", 0) == 2);
  CHECK(in.LooseBoolOr("loose", false));
  CHECK(in.Finish());
  CHECK(r.request.db == "d");
  CHECK(r.request.generic.max_time_ms == 5);
  CHECK(r.request.generic.api_version == "1");
}

TEST_CASE("Generic fields have types and ranges of their own", "[args]") {
  struct Case {
    const char* json;
    int code;
  };
  const auto c = GENERATE(values<Case>({
      {R"({"ping": 1, "maxTimeMS": -1})", 2},
      {R"({"ping": 1, "maxTimeMS": 1.5})", 9},
      {R"({"ping": 1, "maxTimeMS": "1"})", 14},
      {R"({"ping": 1, "lsid": 1})", 14},
      {R"({"ping": 1, "$db": 1})", 14},
      {R"({"ping": 1, "apiVersion": 1})", 14},
      {R"({"ping": 1, "readConcern": "majority"})", 14},
      {R"({"ping": 1, "writeConcern": 1})", 14},
      {R"({"ping": 1, "$readPreference": {"mode": "primary", "mode": "secondary"}})", 40413},
      {R"({"ping": 1, "$readPreference": {"mode": "nearest", "tags": [], "tags": []}})", 40413},
      {R"({"ping": 1, "$clusterTime": {"clusterTime": 1, "clusterTime": 2}})", 40413},
  }));
  CAPTURE(c.json);
  Request r(c.json);
  REQUIRE(r.error);
  CHECK(static_cast<int>(r.error->code) == c.code);
}

TEST_CASE("Documents come from the array or from the sequence beside it", "[args]") {
  Request r(R"({"insert": "c", "documents": [{"a": 1}, {"a": 2}]})");
  REQUIRE(r.request.Documents("documents"));
  CHECK(r.request.Documents("documents").value().size() == 2);
  CHECK(r.request.Documents("other").error().code == ErrorCode::kMissingField);
  Request bad(R"({"insert": "c", "documents": [{"a": 1}, 5]})");
  CHECK(bad.request.Documents("documents").error().code == ErrorCode::kTypeMismatch);
  BsonDocument doc = ParseJson(R"({"x": 1})").value();
  Request s(R"({"insert": "c"})");
  s.request.sequences.push_back({"documents", {doc.view()}});
  REQUIRE(s.request.Documents("documents"));
  CHECK(s.request.Documents("documents").value()[0].data() == doc.view().data());
  // A sequence is not listed once more.
  CHECK(s.request.Documents("documents").value().documents().data() ==
        s.request.sequences[0].documents.data());
}

TEST_CASE("The list of an array's documents is charged", "[args]") {
  constexpr size_t kDocuments = 300'000;
  const BsonDocument body = BuildBson([&](BsonBuilder& b) {
    b.Append("insert", "c");
    BsonArrayBuilder list = b.OpenArray("documents");
    for (size_t i = 0; i < kDocuments; ++i) list.Append(BsonView());
  });
  CommandRequest request;
  REQUIRE(ParseCommandFields(body, &request, "db"));
  large_memory::Budget budget;
  const large_memory::BudgetScope scope(budget);
  budget.SetLimit(int64_t{64} << 20);
  {
    const Result<DocumentList> list = request.Documents("documents");
    REQUIRE(list);
    CHECK(list.value().size() == kDocuments);
    CHECK(budget.used() >= static_cast<int64_t>(kDocuments * sizeof(BsonView)));
  }
  CHECK(budget.used() == 0);
  budget.SetLimit(1 << 20);
  CHECK(request.Documents("documents").error().code == ErrorCode::kExceededMemoryLimit);
  ArgReader in(request);
  CHECK(in.Documents("documents").empty());
  CHECK(in.Finish().error().code == ErrorCode::kExceededMemoryLimit);
  CHECK(budget.used() == 0);
}

TEST_CASE("A write concern is what a standalone can promise", "[args]") {
  struct Case {
    const char* json;
    int code;  // 0: fine
  };
  const auto c = GENERATE(values<Case>({{R"({"w": 1})", 0},
                                        {R"({"w": "majority", "j": true, "wtimeout": 100})", 0},
                                        {R"({"w": 0})", 0},
                                        {R"({"w": 2})", 2},
                                        {R"({"w": 51})", 9},
                                        {R"({"w": -1})", 9},
                                        {R"({"w": "tag"})", 2},
                                        {R"({"w": true})", 9},
                                        {R"({"w": 0, "j": true})", 9},
                                        {R"({"j": "x"})", 9},
                                        {R"({"j": true, "fsync": true})", 9},
                                        {R"({"w": 1, "w": "majority"})", 40413},
                                        {R"({"j": true, "w": 1, "j": false})", 40413},
                                        {R"({"nonsense": 1})", 40415}}));
  CAPTURE(c.json);
  BsonDocument doc = ParseJson(c.json).value();
  auto r = ParseWriteConcern(doc.view().AsValue());
  CHECK(r.has_value() == (c.code == 0));
  if (!r) CHECK(static_cast<int>(r.error().code) == c.code);
}

TEST_CASE("The nearest name is near, or none", "[args]") {
  const std::vector<std::string_view> names = {"--port", "--dbpath", "--bind_ip"};
  CHECK(NearestName("--prot", names) == "--port");
  CHECK(NearestName("--DBPATH", names) == "--dbpath");
  CHECK(NearestName("--completelyDifferent", names).empty());
  // As many steps as both have letters, multiplied: not for what no name is like.
  CHECK(NearestName(std::string(10'000'000, 'p'), names).empty());
}

TEST_CASE("A command has so many fields and no more", "[args]") {
  auto fields = [](size_t n) {
    return BuildBson([&](BsonBuilder& b) {
      for (size_t i = 0; i < n; ++i) b.Append("f" + std::to_string(i), 1);
    });
  };
  CommandRequest request;
  const BsonDocument most = fields(kMaxCommandFields), more = fields(kMaxCommandFields + 1);
  CHECK(ParseCommandFields(most.view(), &request));
  auto r = ParseCommandFields(more.view(), &request);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kBadValue);
  CHECK(request.name == "f0");
  ArgReader in("where", more.view());
  CHECK_FALSE(in.Finish());
}

TEST_CASE("What every command takes is small", "[args]") {
  const std::string text(kMaxGenericBytes, 'x');
  for (const char* name :
       {"lsid", "readConcern", "writeConcern", "$clusterTime", "$readPreference"}) {
    CAPTURE(name);
    const BsonDocument doc = BuildBson([&](BsonBuilder& b) {
      b.Append("ping", 1);
      b.OpenDocument(name).Append("x", text);
    });
    CommandRequest request;
    auto r = ParseCommandFields(doc.view(), &request);
    REQUIRE_FALSE(r);
    CHECK(r.error().code == ErrorCode::kBadValue);
  }
}

TEST_CASE("How long it takes to read the fields of a command", "[.bench]") {
  // As drivers send a find by _id and an insert on a member of a set.
  for (const char* json :
       {R"({"find": "c", "filter": {"_id": 1}, "limit": 1, "singleBatch": true, "lsid": {"id": 1},
            "$clusterTime": {}, "$db": "shop", "$readPreference": {"mode": "primary"}})",
        R"({"insert": "c", "ordered": true, "documents": [{"_id": 1, "a": 1}], "lsid": {"id": 1},
            "txnNumber": 5, "$clusterTime": {}, "$db": "shop"})"}) {
    const BsonDocument body = ParseJson(json).value();
    CommandRequest request;
    constexpr int kTimes = 3'000'000;
    int read = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kTimes; ++i) read += ParseCommandFields(body.view(), &request).has_value();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    CHECK(read == kTimes);
    std::cout << request.name << ": " << took.count() / kTimes << " ns\n";
  }
}

TEST_CASE("A collation's field is there once", "[args]") {
  Request r(R"({"find": "c", "collation": {"locale": "simple", "locale": "de"}})");
  REQUIRE_FALSE(r.error);
  ArgReader in(r.request);
  in.SimpleCollation();
  const Result<void> read = in.Finish();
  REQUIRE_FALSE(read);
  CHECK(static_cast<int>(read.error().code) == 40413);
  CHECK(read.error().message == "BSON field 'find.collation.locale' is a duplicate field");
}

TEST_CASE("Every field of the commands that read and write is there once", "[args]") {
  for (const char* json :
       {R"({"find": "c", "let": {"x": 1}, "let": {"x": 2}})", R"({"find": "c", "find": "d"})",
        R"({"aggregate": "c", "pipeline": [], "cursor": {}, "pipeline": []})",
        R"({"count": "c", "query": {}, "query": {"a": 1}})",
        R"({"distinct": "c", "key": "a", "key": "b"})",
        R"({"update": "c", "updates": [], "ordered": true, "ordered": false})",
        R"({"delete": "c", "deletes": [], "deletes": []})",
        R"({"find": "c", "comment": 1, "comment": 1})", R"({"find": "c", "$db": "a", "$db": "a"})",
        R"({"find": "c", "maxTimeMS": 1, "maxTimeMS": 1})"}) {
    CAPTURE(json);
    Request r(json);
    REQUIRE(r.error);
    CHECK(static_cast<int>(r.error->code) == 40413);
    CHECK(r.error->message.ends_with("' is a duplicate field"));
  }
}
