// The BSON corpus of the driver specifications, read from $MAYFLY_CONFORMANCE, which scripts/test
// sets. Without it the test says so and checks nothing.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "protocol/bson_compare.h"
#include "protocol/bson_validate.h"
#include "protocol/decimal128.h"
#include "protocol/extended_json.h"
#include "protocol/json_reader.h"

using namespace mayfly;
namespace fs = std::filesystem;

namespace {

fs::path CorpusFolder() {
  const char* set = std::getenv("MAYFLY_CONFORMANCE");
  return fs::path(set && *set ? set : "/nonexistent") / "bson-corpus";
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string FromHex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return out;
}

JsonNode Tree(std::string_view json) {
  JsonNode node;
  std::string why;
  INFO(json);
  bool ok = ReadJson(json, &node, &why);
  CHECK(ok);
  return node;
}

/// The same extended JSON but for white space, escapes and how a double is written.
bool Same(const JsonNode& a, const JsonNode& b) {
  if (a.kind != b.kind || a.name != b.name || a.children.size() != b.children.size()) return false;
  bool number =
      a.kind == JsonNode::Kind::kNumber && a.text.find_first_of(".eE") != std::string::npos;
  if (number || (a.name == "$numberDouble" && a.text.find_first_of("Na") == std::string::npos)) {
    if (std::strtod(a.text.c_str(), nullptr) != std::strtod(b.text.c_str(), nullptr)) return false;
    if ((a.text[0] == '-') != (b.text[0] == '-')) return false;
  } else if (a.text != b.text) {
    return false;
  }
  for (size_t i = 0; i < a.children.size(); ++i)
    if (!Same(a.children[i], b.children[i])) return false;
  return true;
}

#define CHECK_SAME_JSON(got, want)      \
  {                                     \
    INFO("got  " << (got));             \
    INFO("want " << (want));            \
    CHECK(Same(Tree(got), Tree(want))); \
  }

std::string Field(const JsonNode& node, std::string_view name) {
  const JsonNode* f = node.Find(name);
  return f ? f->text : "";
}

void CheckParses(const std::string& json, const std::string& bytes) {
  INFO(json);
  auto r = ParseJson(json);
  REQUIRE(r.has_value());
  CHECK(r.value().bytes() == bytes);
}

void CheckValid(const JsonNode& test) {
  std::string bytes = FromHex(Field(test, "canonical_bson"));
  std::string canonical = Field(test, "canonical_extjson");
  bool lossy = test.Find("lossy") && test.Find("lossy")->kind == JsonNode::Kind::kTrue;
  auto valid = ValidateBson(bytes);
  REQUIRE(valid.has_value());
  BsonView doc(bytes);
  CHECK_SAME_JSON(ToCanonicalJson(doc), canonical);
  CHECK(CompareDocuments(doc, doc) == 0);
  if (!lossy) CheckParses(canonical, bytes);
  if (std::string relaxed = Field(test, "relaxed_extjson"); !relaxed.empty()) {
    CHECK_SAME_JSON(ToRelaxedJson(doc), relaxed);
    auto parsed = ParseJson(relaxed);
    REQUIRE(parsed.has_value());
    CHECK_SAME_JSON(ToRelaxedJson(parsed.value().view()), relaxed);
  }
  if (std::string degenerate = FromHex(Field(test, "degenerate_bson")); !degenerate.empty()) {
    REQUIRE(ValidateBson(degenerate).has_value());
    CHECK_SAME_JSON(ToCanonicalJson(BsonView(degenerate)), canonical);
  }
  if (std::string degenerate = Field(test, "degenerate_extjson"); !degenerate.empty() && !lossy)
    CheckParses(degenerate, bytes);
}

}  // namespace

TEST_CASE("The BSON corpus of the driver specifications", "[bson][conformance]") {
  fs::path folder = CorpusFolder();
  if (!fs::is_directory(folder)) {
    WARN("SKIPPED: no BSON corpus at " << folder << "; set MAYFLY_CONFORMANCE");
    std::cerr << "SKIPPED: no BSON corpus at " << folder << "; set MAYFLY_CONFORMANCE\n";
    return;
  }
  int cases = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    JsonNode file = Tree(ReadFile(entry.path()));
    std::string type = Field(file, "bson_type");
    auto each = [&](const char* section, auto check) {
      const JsonNode* tests = file.Find(section);
      if (!tests) return;
      for (const JsonNode& test : tests->children) {
        INFO(entry.path().filename() << " " << section << ": " << Field(test, "description"));
        ++cases;
        check(test);
      }
    };
    each("valid", CheckValid);
    each("decodeErrors", [](const JsonNode& t) {
      auto r = ValidateBson(FromHex(Field(t, "bson")));
      CHECK_FALSE(r.has_value());
    });
    each("parseErrors", [&](const JsonNode& t) {
      std::string text = Field(t, "string");
      INFO(text);
      bool accepted =
          type == "0x13" ? decimal128::Parse(text).has_value() : ParseJson(text).has_value();
      CHECK_FALSE(accepted);
    });
  }
  CHECK(cases > 500);
}
