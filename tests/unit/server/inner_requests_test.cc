// The commands within commands, as those who decide about them and those who run them see them.
#include "server/dispatch/inner_requests.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "protocol/extended_json.h"
#include "server/dispatch/arg_reader.h"
#include "tests/unit/server/listed_commands.h"

using namespace mayfly;

std::vector<test::ListedCommand> test::ReadListedCommands(const std::string& path) {
  std::ifstream in(path);
  REQUIRE(in);
  std::vector<ListedCommand> cases;
  for (std::string line; std::getline(in, line);) {
    const size_t brace = line.find('{'), bar = line.rfind(" | ");
    if (line.empty() || line[0] == '#' || brace == line.npos || bar == line.npos) continue;
    ListedCommand c{brace == 0 ? "shop" : line.substr(0, line.find(':')),
                    line.substr(brace, bar - brace)};
    for (size_t at; (at = c.json.find("<db>")) != c.json.npos;) c.json.replace(at, 4, "shop");
    for (size_t at; (at = c.json.find("<other>")) != c.json.npos;) c.json.replace(at, 7, "other");
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST_CASE("The requests within a request are made once", "[inner_requests]") {
  const BsonDocument body = ParseJson(
                                R"({"applyOps": [{"op": "i", "ns": "shop.c", "o": {"_id": 1}},
              {"op": "c", "ns": "shop.$cmd", "o": {"applyOps": [
                {"op": "c", "ns": "other.$cmd", "o": {"collMod": "system.buckets.c", "size": 1}}]}}]})")
                                .value();
  CommandRequest request;
  REQUIRE(ParseCommandFields(body, &request, "admin"));
  const InnerRequests& inner = InnerRequests::Of(request);
  CHECK(&InnerRequests::Of(request) == &inner);
  REQUIRE(inner.entries.size() == 2);
  REQUIRE(inner.entries[1].nested.size() == 1);
  // The command as it is run, not as the entry says it.
  const CommandRequest& made = inner.entries[1].nested[0].command->request;
  CHECK(made.db == "other");
  CHECK(made.fields[0].value.String() == "c");
  CHECK(made.fields[1].name == "cappedSize");
  // Another request in the same place has its own.
  const BsonDocument next = ParseJson(R"({"explain": {"find": "d"}})").value();
  REQUIRE(ParseCommandFields(next, &request, "shop"));
  CHECK(InnerRequests::Of(request).entries.empty());
  REQUIRE(InnerRequests::Of(request).explained != nullptr);
  CHECK(InnerRequests::Of(request).explained->request.db == "shop");
}

namespace {

/// `doc` with the field at `at` once more, as `value`, behind the one at `after`.
BsonDocument WithTwice(BsonView doc, size_t at, size_t after, BsonValue value) {
  std::vector<BsonElement> fields;
  for (const BsonElement& e : doc) fields.push_back(e);
  return BuildBson([&](BsonBuilder& b) {
    for (size_t i = 0; i < fields.size(); ++i) {
      b.Append(fields[i]);
      if (i == after) b.Append(fields[at].name, value);
    }
  });
}

/// Each way to have one field of `doc` twice.
template <class F>
void ForEachTwice(BsonView doc, F&& f) {
  size_t fields = 0;
  for (const BsonElement& e : doc) fields += !e.name.empty();
  const BsonDocument other = ParseJson(R"({"x": "other", "y": true})").value();
  for (size_t at = 0; at < fields; ++at)
    for (size_t after = 0; after < fields; ++after)
      for (const BsonElement& value : other.view()) f(WithTwice(doc, at, after, value.value));
}

/// Whether nothing of the request is decided about or run: it is an error, or all within it is.
bool Refused(BsonView command, const std::string& db) {
  CommandRequest req;
  if (const Result<void> read = ParseCommandFields(command, &req, db); !read)
    return static_cast<int>(read.error().code) == 40413;
  const InnerRequests& inner = InnerRequests::Of(req);
  if (inner.error) return static_cast<int>(inner.error->code) == 40413;
  for (const OplogEntry& e : inner.entries)
    if (e.refused == nullptr || static_cast<int>(e.refused->code) != 40413) return false;
  return !inner.entries.empty();
}

}  // namespace

TEST_CASE("No field of a command is there twice, nor of a command in a command",
          "[inner_requests]") {
  size_t tried = 0;
  for (const test::ListedCommand& c :
       test::ReadListedCommands(MAYFLY_SOURCE_DIR "/tests/data/privileges.txt")) {
    CAPTURE(c.json);
    const BsonDocument command = ParseJson(c.json).value();
    ForEachTwice(command, [&](const BsonDocument& twice) {
      ++tried;
      CHECK(Refused(twice, c.db));
    });
    const BsonElement first = command.view().First();
    if (first.name == "explain" && first.value.IsDocument())
      ForEachTwice(first.value.Document(), [&](const BsonDocument& twice) {
        CHECK(Refused(BuildBson([&](BsonBuilder& b) { b.Append("explain", twice); }), c.db));
      });
    if (first.name != "applyOps") continue;
    for (const BsonElement& entry : first.value.Document()) {
      const auto refused = [&](const BsonDocument& e) {
        return Refused(
            BuildBson([&](BsonBuilder& b) { b.OpenArray("applyOps").Append(e.view().AsValue()); }),
            c.db);
      };
      ForEachTwice(entry.value.Document(),
                   [&](const BsonDocument& twice) { CHECK(refused(twice)); });
      if (entry.value.Document()["op"].String() != "c") continue;
      ForEachTwice(entry.value.Document()["o"].Document(), [&](const BsonDocument& twice) {
        CHECK(refused(BuildBson([&](BsonBuilder& b) {
          for (const BsonElement& f : entry.value.Document())
            f.name == "o" ? b.Append("o", twice) : b.Append(f);
        })));
      });
    }
  }
  CHECK(tried > 1000);
}

TEST_CASE("An entry's command has no arguments that a client's request has", "[inner_requests]") {
  for (const char* field :
       {R"("writeConcern": {"w": 1})", R"("maxTimeMS": 1)", R"("apiVersion": "1")",
        R"("lsid": {"q": 1})", R"("txnNumber": 1)", R"("autocommit": false)",
        R"("startTransaction": true)", R"("readConcern": {})", R"("help": true)",
        R"("$readPreference": {"mode": "primary"})", R"("$clusterTime": {})",
        R"("rawData": true)"}) {
    CAPTURE(field);
    for (const std::string first : {R"("drop": "c")", R"("applyOps": [])"}) {
      const BsonDocument body = ParseJson(R"({"applyOps": [{"op": "c", "ns": "shop.$cmd", "o": {)" +
                                          first + ", " + field + "}}]}")
                                    .value();
      CommandRequest request;
      REQUIRE(ParseCommandFields(body, &request, "admin"));
      const InnerRequests& inner = InnerRequests::Of(request);
      const Error* refused = inner.error             ? &*inner.error
                             : inner.entries.empty() ? nullptr
                                                     : inner.entries[0].refused.get();
      REQUIRE(refused != nullptr);
      CHECK(refused->code == ErrorCode::kInvalidOptions);
    }
  }
  // These change nothing.
  const BsonDocument body = ParseJson(R"({"applyOps": [{"op": "c", "ns": "shop.$cmd",
      "lsid": {"q": 1}, "o": {"drop": "c", "$db": "shop", "comment": 1}}]})")
                                .value();
  CommandRequest request;
  REQUIRE(ParseCommandFields(body, &request, "admin"));
  REQUIRE(InnerRequests::Of(request).entries.size() == 1);
  CHECK(InnerRequests::Of(request).entries[0].command != nullptr);
}
