#include "protocol/bson_validate.h"

#include <catch2/catch.hpp>
#include <random>

#include "protocol/bson_builder.h"
#include "protocol/bson_check.h"
#include "protocol/bson_compare.h"
#include "protocol/extended_json.h"
#include "protocol/utf8.h"

using namespace mayfly;

namespace {

std::string Nested(int levels) {
  std::string bytes(BsonDocument().bytes());
  for (int i = 0; i < levels; ++i) {
    std::string outer;
    BsonBuilder b(outer);
    b.Append("a", BsonView(bytes.data()));
    b.Done();
    bytes = outer;
  }
  return bytes;
}

std::string EveryType() {
  std::string bytes;
  BsonBuilder b(bytes);
  b.Append("d", 1.5)
      .Append("s", "text")
      .Append("i", 7)
      .Append("l", int64_t{1} << 40)
      .Append("b", true);
  b.Append("t", Instant{1000})
      .AppendNull("n")
      .AppendTimestamp("ts", 77)
      .AppendDecimal("dec", {1, 2});
  b.AppendObjectId("oid", "123456789012")
      .AppendBinary("bin", 0, "abc")
      .AppendBinary("old", 2, std::string("\x01\0\0\0x", 5));
  b.AppendRegex("re", "^a", "i");
  b.AppendStringLike(BsonType::kCode, "code", "f()")
      .AppendStringLike(BsonType::kSymbol, "sym", "s");
  b.OpenDocument("sub").Append("x", 1).Done();
  {
    auto a = b.OpenArray("arr");
    a.Append(1).Append("é");
    a.Done();
  }
  b.Append("min", BsonValue(BsonType::kMinKey, "", 0))
      .Append("max", BsonValue(BsonType::kMaxKey, "", 0));
  b.Append("u", BsonValue(BsonType::kUndefined, "", 0));
  b.Done();
  return bytes;
}

}  // namespace

TEST_CASE("Bytes from outside are checked before anyone looks at them", "[bson]") {
  struct Case {
    const char* name;
    std::string bytes;
    ErrorCode code;  ///< kOk: valid
  };
  auto s = [](const char* p, size_t n) { return std::string(p, n); };
  const std::vector<Case> cases = {
      {"empty document", s("\x05\0\0\0\0", 5), ErrorCode::kOk},
      {"every type", EveryType(), ErrorCode::kOk},
      {"180 levels", Nested(180), ErrorCode::kOk},
      {"181 levels", Nested(181), ErrorCode::kOverflow},
      {"10000 levels", Nested(10000), ErrorCode::kOverflow},
      {"no bytes", "", ErrorCode::kInvalidBSON},
      {"four bytes", s("\x05\0\0\0", 4), ErrorCode::kInvalidBSON},
      {"length 4", s("\x04\0\0\0\0", 5), ErrorCode::kInvalidBSON},
      {"negative length", s("\xff\xff\xff\xff\0", 5), ErrorCode::kInvalidBSON},
      {"huge length", s("\xff\xff\xff\x7f\0", 5), ErrorCode::kInvalidBSON},
      {"no end marker", s("\x05\0\0\0\x01", 5), ErrorCode::kInvalidBSON},
      {"bytes behind", s("\x05\0\0\0\0\0", 6), ErrorCode::kInvalidBSON},
      {"unknown type", s("\x08\0\0\0\x20\x61\0\0", 8), ErrorCode::kInvalidBSON},
      {"zero type inside", s("\x08\0\0\0\0\x61\0\0", 8), ErrorCode::kInvalidBSON},
      {"boolean 2", s("\x09\0\0\0\x08\x61\0\x02\0", 9), ErrorCode::kInvalidBSON},
      {"int32 cut", s("\x0a\0\0\0\x10\x61\0\x01\x01\0", 10), ErrorCode::kInvalidBSON},
      {"string length 0", s("\x0c\0\0\0\x02\x61\0\0\0\0\0\0", 12), ErrorCode::kInvalidBSON},
      {"string length huge", s("\x0e\0\0\0\x02\x61\0\xff\xff\xff\x7f\x62\0\0", 14),
       ErrorCode::kInvalidBSON},
      {"string length negative", s("\x0e\0\0\0\x02\x61\0\xff\xff\xff\xff\x62\0\0", 14),
       ErrorCode::kInvalidBSON},
      {"string not terminated", s("\x0e\0\0\0\x02\x61\0\x02\0\0\0\x62\x62\0", 14),
       ErrorCode::kInvalidBSON},
      {"string not UTF-8", s("\x0e\0\0\0\x02\x61\0\x02\0\0\0\xff\0\0", 14),
       ErrorCode::kInvalidBSON},
      {"name not UTF-8", s("\x08\0\0\0\x0a\xc0\0\0", 8), ErrorCode::kInvalidBSON},
      {"name not terminated", s("\x07\0\0\0\x0a\x61\0", 7), ErrorCode::kInvalidBSON},
      {"binary negative", s("\x0d\0\0\0\x05\x61\0\xff\xff\xff\xff\0\0", 13),
       ErrorCode::kInvalidBSON},
      {"binary huge", s("\x0d\0\0\0\x05\x61\0\xff\xff\xff\x7f\0\0", 13), ErrorCode::kInvalidBSON},
      {"regex with one string", s("\x0a\0\0\0\x0b\x61\0\x62\x62\0", 10), ErrorCode::kInvalidBSON},
      {"sub-document takes the end", s("\x0d\0\0\0\x03\x61\0\x06\0\0\0\0\0", 13),
       ErrorCode::kInvalidBSON},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    auto r = ValidateBson(c.bytes);
    CHECK((r ? ErrorCode::kOk : r.error().code) == c.code);
  }
}

TEST_CASE("UTF-8 may be left unchecked", "[bson]") {
  std::string bytes("\x0e\0\0\0\x02\x61\0\x02\0\0\0\xff\0\0", 14);
  CHECK(ValidateBson(bytes, false).has_value());
}

TEST_CASE("A prefix is measured and what follows is left alone", "[bson]") {
  std::string bytes = EveryType();
  size_t n = bytes.size();
  bytes += "more";
  CHECK(ValidateBsonPrefix(bytes).value() == n);
}

TEST_CASE("No truncation and no changed byte leads a walk out of the document", "[bson]") {
  const std::string whole = EveryType();
  for (size_t n = 0; n < whole.size(); ++n) {
    std::string cut = whole.substr(0, n);  // its own allocation, for the address sanitizer
    CHECK_FALSE(ValidateBson(cut).has_value());
  }
  std::mt19937 random(7);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = whole;
    for (int k = 0; k < 2; ++k) changed[random() % changed.size()] = static_cast<char>(random());
    if (!ValidateBson(changed)) continue;
    ++accepted;
    CHECK(CompareDocuments(BsonView(changed), BsonView(changed)) == 0);
    CHECK_FALSE(ToCanonicalJson(BsonView(changed)).empty());
  }
  CHECK(accepted > 100);
}

TEST_CASE("UTF-8 is what Unicode says it is", "[utf8]") {
  struct Case {
    const char* text;
    bool valid;
  };
  const Case cases[] = {{"", true},
                        {"plain text of some length", true},
                        {"é", true},
                        {"☆", true},
                        {"12345678☆", true},
                        {"😀", true},
                        {"\xf4\x8f\xbf\xbf", true},   // U+10FFFF
                        {"\xf4\x90\x80\x80", false},  // above it
                        {"\xc0\x80", false},          // overlong
                        {"\xc1\xbf", false},          // overlong
                        {"\xe0\x9f\xbf", false},      // overlong
                        {"\xf0\x8f\xbf\xbf", false},  // overlong
                        {"\xed\xa0\x80", false},      // a surrogate
                        {"\xed\x9f\xbf", true},       // the last before them
                        {"\xee\x80\x80", true},       // the first behind them
                        {"\x80", false},              // a continuation alone
                        {"abcdefgh\xc3", false},      // cut short
                        {"abcdefg\xe2\x98", false},   // cut short
                        {"\xf0\x9f\x98", false},      // cut short
                        {"\xc3\x28", false},
                        {"\xff", false}};
  for (const Case& c : cases) {
    CAPTURE(c.text);
    CHECK(IsUtf8(c.text, std::strlen(c.text)) == c.valid);
  }
}

TEST_CASE("What is not UTF-8 is shown as replacement characters", "[utf8]") {
  const std::string r = "\xEF\xBF\xBD";
  CHECK(PrintableUtf8("").empty());
  CHECK(PrintableUtf8("plain é☆😀") == "plain é☆😀");
  CHECK(PrintableUtf8("a\xff"
                      "b") == "a" + r + "b");
  CHECK(PrintableUtf8("\xe2\x98") == r + r);          // cut short
  CHECK(PrintableUtf8("\xc3\x28") == r + "(");        // the second byte stands for itself
  CHECK(PrintableUtf8("\xed\xa0\x80") == r + r + r);  // a surrogate
  CHECK(PrintableUtf8(std::string("\0\xff", 2)) == std::string("\0", 1) + r);
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string s(random() % 12, '\0');
    for (char& c : s) c = static_cast<char>(random());
    const std::string shown = PrintableUtf8(s);
    CHECK(IsUtf8(shown));
    if (IsUtf8(s)) CHECK(shown == s);
  }
}

TEST_CASE("A NUL in a name makes no malformed document", "[bson]") {
  if (bson_check::enabled) return;  // it ends the process there
  const std::string name("a\0\x10\0\0\0more", 10);
  auto valid = [](const BsonDocument& d) { return ValidateBson(d.bytes()).has_value(); };
  const BsonDocument doc = BuildBson([&](BsonBuilder& b) {
    b.Append(name, 1).AppendNull(name).AppendRegex("r", name, name);
    b.Append(BsonElement{name, BsonView().AsValue()});
    b.OpenDocument(name).Append("x", true);
    b.OpenArray(std::string(3, '\0')).Append(1);
  });
  REQUIRE(valid(doc));
  CHECK(doc.view().Count() == 6);
  CHECK(doc.view().First().name == "a");
  CHECK(doc.view()["r"].RegexPattern() == "a");
}
