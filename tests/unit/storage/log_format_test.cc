#include "storage/log_format.h"

#include <catch2/catch.hpp>

#include "protocol/extended_json.h"
#include "storage/document_diff.h"
#include "storage/log_apply.h"
#include "tests/unit/storage/storage_fixture.h"

namespace mayfly {
namespace {

BsonDocument J(std::string_view json) { return ParseJson(json).value(); }

/// What the oplog's readers do with `diff`: the manual of $v: 2 entries, in a few lines.
BsonDocument Patch(BsonView before, BsonView diff) {
  return BuildBson([&](BsonBuilder& b) {
    const bool array = diff["a"].Is(BsonType::kBool);
    if (array) {
      int n = before.Count();
      if (diff.Has("l")) n = static_cast<int>(diff["l"].NumberAsInt64());
      for (const BsonElement& e : diff)
        if (e.name[0] == 'u' || e.name[0] == 's')
          n = std::max(n, std::stoi(std::string(e.name.substr(1))) + 1);
      for (int i = 0; i < n; ++i) {
        const std::string k = std::to_string(i);
        if (diff.Has("u" + k))
          b.Append(k, diff["u" + k]);
        else if (diff.Has("s" + k))
          b.Append(k, Patch(before[k].Document(), diff["s" + k].Document()).view().AsValue(before[k].type()));
        else
          b.Append(k, before[k]);
      }
      return;
    }
    auto part = [&](const char* name) {
      return diff[name].IsDocument() ? diff[name].Document() : BsonView();
    };
    for (const BsonElement& e : before) {
      const std::string sub = "s" + std::string(e.name);
      if (part("d").Has(e.name) || part("i").Has(e.name)) continue;
      if (part("u").Has(e.name))
        b.Append(e.name, part("u")[e.name]);
      else if (diff.Has(sub))
        b.Append(e.name, Patch(e.value.Document(), diff[sub].Document()).view().AsValue(e.value.type()));
      else
        b.Append(e);
    }
    for (const BsonElement& e : part("i")) b.Append(e);
  });
}

TEST_CASE("A diff of two documents makes the second of the first", "[replication]") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"_id":1,"a":1,"pad":"0123456789012345678901234567890"})", R"({"_id":1,"a":2,"pad":"0123456789012345678901234567890"})"},
      {R"({"_id":1,"a":1,"pad":"0123456789012345678901234567890"})", R"({"_id":1,"pad":"0123456789012345678901234567890"})"},
      {R"({"_id":1,"a":1,"c":3,"pad":"012345678901234567890123456789001234567890"})",
       R"({"_id":1,"a":1,"b":2,"c":3,"pad":"012345678901234567890123456789001234567890"})"},
      {R"({"_id":1,"pad":"0123456789012345678901234567890","o":{"x":1,"y":{"z":2}}})",
       R"({"_id":1,"pad":"0123456789012345678901234567890","o":{"x":1,"y":{"z":3,"w":4}}})"},
      {R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1,2,3,{"k":1}]})",
       R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1,5,3,{"k":2},9]})"},
      {R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1,2,3]})",
       R"({"_id":1,"pad":"0123456789012345678901234567890","l":[1]})"},
      {R"({"_id":1,"b":1,"a":{"q":[1]},"pad":"01234567890123456789012345678900123456789001234567890"})",
       R"({"_id":1,"a":[2],"b":2,"pad":"01234567890123456789012345678900123456789001234567890"})"},
  };
  for (const auto& [before, after] : cases) {
    const BsonDocument a = J(before), b = J(after);
    std::string diff;
    CAPTURE(before, after);
    AppendDocumentDiff(a, b, diff);
    CAPTURE(ToRelaxedJson(BsonView(diff).AsValue()));
    CHECK(ToRelaxedJson(Patch(a, BsonView(diff)).view().AsValue()) == ToRelaxedJson(b.view().AsValue()));
  }
}

TEST_CASE("What is no replacement is a diff, however small the document", "[replication]") {
  const BsonDocument a = J(R"({"_id":1,"a":1})"), b = J(R"({"_id":1,"b":"something else entirely"})");
  std::string diff;
  AppendDocumentDiff(a, b, diff);
  CHECK(BsonView(diff).bytes() == J(R"({"d":{"a":false},"i":{"b":"something else entirely"}})").view().bytes());
}

TEST_CASE("A damaged entry of the log is an error wherever it ends", "[replication]") {
  std::string entry;
  BeginLogEntry(7, 9, entry);
  EncodeNoopUnit(J(R"({"msg":"hello"})"), entry);
  SetUnitTime(entry.data() + kLogEntryHeader, 5ull << 32 | 1, 5000);
  auto header = ReadLogEntryHeader(entry);
  REQUIRE(header);
  CHECK(header.value().origin == 7);
  CHECK(header.value().sequence == 9);
  std::string_view rest = std::string_view(entry).substr(kLogEntryHeader);
  LogUnit u;
  REQUIRE(ReadLogUnit(&rest, &u).value());
  CHECK(u.ts == (5ull << 32 | 1));
  CHECK(u.ticks == 1);
  REQUIRE(u.records.size() == 1);
  CHECK(u.records[0].kind == LogRecord::kNoop);
  CHECK_FALSE(ReadLogUnit(&rest, &u).value());
  for (size_t n = kLogEntryHeader + 1; n < entry.size(); ++n) {
    std::string_view cut = std::string_view(entry).substr(kLogEntryHeader, n - kLogEntryHeader);
    CAPTURE(n);
    CHECK_FALSE(ReadLogUnit(&cut, &u).has_value());
  }
  entry[0] = 2;
  CHECK(ReadLogEntryHeader(entry).error().code == ErrorCode::kUnsupportedFormat);
}

}  // namespace
}  // namespace mayfly
