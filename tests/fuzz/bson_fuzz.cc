// BSON from outside: what ValidateBson accepts can be walked, compared, hashed and written as JSON,
// and that JSON reads back to something stable.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_compare.h"
#include "protocol/bson_validate.h"
#include "protocol/extended_json.h"

namespace {

using namespace mayfly;

void Walk(BsonView doc) {
  for (const BsonElement& e : doc) {
    Require(ValuesEqual(e.value, e.value), "a value equals itself");
    e.value.NumberAsDouble();
    e.value.NumberAsInt64();
    e.value.Truthy();
    if (e.value.IsDocument() || e.value.IsArray()) Walk(e.value.Document());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string input(reinterpret_cast<const char*>(data), size);
  auto first_size = ValidateBsonPrefix(input);
  if (!first_size) {
    Require(!ValidateBson(input), "what has no valid prefix is not valid");
    return 0;
  }
  Require(first_size.value() <= input.size(), "a prefix is not longer than the whole");
  std::string first = input.substr(0, first_size.value()), rest = input.substr(first_size.value());
  Require(ValidateBson(first).has_value(), "the prefix alone is valid");
  BsonView a(first);
  Walk(a);
  std::string text = ToCanonicalJson(a);
  ToRelaxedJson(a);
  // Documents that look like a wrapper may become one or be refused; after that nothing changes any
  // more.
  if (auto once = ParseJson(text)) {
    auto twice = ParseJson(ToCanonicalJson(once.value().view()));
    Require(twice && twice.value().bytes() == once.value().bytes(),
            "canonical JSON reads back to the same bytes");
  }
  if (!ValidateBson(rest)) return 0;
  BsonView b(rest);
  int ab = CompareDocuments(a, b), ba = CompareDocuments(b, a);
  Require((ab < 0) == (ba > 0) && (ab == 0) == (ba == 0), "order does not depend on the side");
  if (ab == 0) Require(HashValue(a.AsValue()) == HashValue(b.AsValue()), "equal values hash equal");
  return 0;
}
