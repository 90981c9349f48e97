#include "protocol/extended_json.h"

#include <bson/bson.h>

#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

template <class F>
std::string Write(BsonView doc, F format) {
  bson_t b;
  if (!bson_init_static(&b, reinterpret_cast<const uint8_t*>(doc.data()), doc.size())) return "{}";
  size_t length = 0;
  char* text = format(&b, &length);
  if (text == nullptr) return "{}";
  std::string out(text, length);
  bson_free(text);
  return out;
}

}  // namespace

std::string ToCanonicalJson(BsonView doc) { return Write(doc, bson_as_canonical_extended_json); }
std::string ToRelaxedJson(BsonView doc) { return Write(doc, bson_as_relaxed_extended_json); }

std::string ToRelaxedJson(BsonValue value) {
  if (value.missing()) return "missing";
  std::string text = ToRelaxedJson(BuildBson([&](BsonBuilder& b) { b.Append("v", value); }).view());
  // `{ "v" : … }` without its wrapping.
  size_t begin = text.find(':') + 2;
  return text.substr(begin, text.size() - begin - 2);
}

Result<BsonDocument> ParseJson(std::string_view json) {
  bson_error_t error;
  bson_t* b = bson_new_from_json(reinterpret_cast<const uint8_t*>(json.data()), static_cast<ssize_t>(json.size()), &error);
  if (b == nullptr) return Error{ErrorCode::kFailedToParse, std::string("not extended JSON: ") + error.message};
  BsonDocument doc(std::string(reinterpret_cast<const char*>(bson_get_data(b)), b->len));
  bson_destroy(b);
  return doc;
}

}  // namespace mayfly
