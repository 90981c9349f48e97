// Filters from strangers: parsing, matching, showing, and that what is shown means the same.
// Input: extended JSON, a filter and a document apart by a newline; or the two as BSON.
#include <cstdlib>
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_builder.h"
#include "query/match/match_expression.h"

using namespace mayfly;

namespace {

void Check(BsonView filter, BsonView doc) {
  auto parsed = ParseMatch(filter);
  if (!parsed.has_value()) return;
  int position = -1;
  auto matched = parsed.value()->MatchesWithPosition(doc, nullptr, &position);
  auto plain = parsed.value()->Matches(doc);
  if (matched.has_value() != plain.has_value()) std::abort();
  if (plain.has_value() && matched.value() != plain.value()) std::abort();
  (void)parsed.value()->MatchesValue(doc.AsValue());
  std::string shape;
  parsed.value()->AppendShape(shape);

  BsonDocument shown = BuildBson([&](BsonBuilder& b) { parsed.value()->Serialize(b); });
  auto again = ParseMatch(shown);
  if (!again.has_value()) {
    // A negation is shown one level deeper than it was written.
    if (again.error().message.find("depth limit") != std::string::npos) return;
    std::abort();
  }
  auto same = again.value()->Matches(doc);
  if (plain.has_value() && same.has_value() && same.value() != plain.value()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  WithTwoDocuments({reinterpret_cast<const char*>(data), size}, Check);
  return 0;
}
