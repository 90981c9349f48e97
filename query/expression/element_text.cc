#include "query/expression/element_text.h"

#include <cstdio>

#include "protocol/decimal128.h"
#include "protocol/hex.h"
#include "protocol/object_id.h"

namespace mayfly::update {
namespace {

constexpr size_t kMaxText = 1000;
constexpr size_t kMaxString = 150;
constexpr int kMaxTextDepth = 10;

void AppendHex(std::string_view bytes, std::string& out) {
  AppendHexDigits(bytes.substr(0, kMaxString), out, kUpperHex);
  if (bytes.size() > kMaxString) out += "...";
}

void AppendDouble(double d, std::string& out) {
  char text[40];
  std::snprintf(text, sizeof text, "%.16g", d);
  out += text;
  if (std::string_view(text).find_first_of(".en") == std::string_view::npos) out += ".0";
}

void AppendQuoted(std::string_view s, std::string& out) {
  out += '"';
  out += s.substr(0, kMaxString);
  if (s.size() > kMaxString) out += "...";
  out += '"';
}

void AppendShortValue(BsonValue v, int depth, std::string& out) {
  switch (v.type()) {
    case BsonType::kMissing:
      out += "EOO";
      return;
    case BsonType::kDouble:
      AppendDouble(v.Double(), out);
      return;
    case BsonType::kString:
    case BsonType::kSymbol:
      AppendQuoted(v.String(), out);
      return;
    case BsonType::kDocument:
    case BsonType::kArray: {
      bool array = v.IsArray();
      BsonView doc = v.Document();
      if (doc.empty()) {
        out += array ? "[]" : "{}";
        return;
      }
      out += array ? "[ " : "{ ";
      if (depth >= kMaxTextDepth) {
        out += "...";
      } else {
        bool first = true;
        for (const BsonElement& e : doc) {
          if (!first) out += ", ";
          first = false;
          if (out.size() > kMaxText) {
            out += "...";
            break;
          }
          if (!array) out.append(e.name).append(": ");
          AppendShortValue(e.value, depth + 1, out);
        }
      }
      out += array ? " ]" : " }";
      return;
    }
    case BsonType::kBinary:
      out += "BinData(" + std::to_string(v.BinarySubtype()) + ", ";
      AppendHex(v.BinaryData(), out);
      out += ")";
      return;
    case BsonType::kUndefined:
      out += "undefined";
      return;
    case BsonType::kObjectId:
      out += "ObjectId('" + ObjectIdToHex(v.ObjectId()) + "')";
      return;
    case BsonType::kBool:
      out += v.Bool() ? "true" : "false";
      return;
    case BsonType::kDate:
      out += "new Date(" + std::to_string(v.Date().millis) + ")";
      return;
    case BsonType::kNull:
      out += "null";
      return;
    case BsonType::kRegex:
      out += "/";
      out.append(v.RegexPattern()).append("/").append(v.RegexOptions());
      return;
    case BsonType::kDbPointer:
      out += "DBRef('";
      out.append(v.DbPointerNamespace())
          .append("',")
          .append(ObjectIdToHex(v.DbPointerId()))
          .append(")");
      return;
    case BsonType::kCode:
      out += v.String().substr(0, kMaxString);
      return;
    case BsonType::kCodeWithScope:
      out += "CodeWScope( ";
      out.append(v.CodeWithScopeCode().substr(0, kMaxString)).append(", ");
      AppendShortValue(v.CodeWithScopeScope().AsValue(), depth + 1, out);
      out += ")";
      return;
    case BsonType::kInt32:
      out += std::to_string(v.Int32());
      return;
    case BsonType::kTimestamp:
      out += "Timestamp(" + std::to_string(v.Timestamp() >> 32) + ", " +
             std::to_string(v.Timestamp() & 0xFFFFFFFF) + ")";
      return;
    case BsonType::kInt64:
      out += std::to_string(v.Int64());
      return;
    case BsonType::kDecimal128:
      out += decimal128::ToString(v.Decimal());
      return;
    case BsonType::kMaxKey:
      out += "MaxKey";
      return;
    case BsonType::kMinKey:
      out += "MinKey";
      return;
  }
}

}  // namespace

std::string ValueText(BsonValue v) {
  std::string out;
  AppendShortValue(v, 0, out);
  return out;
}

std::string ElementText(std::string_view name, BsonValue v) {
  std::string out(name);
  out += ": ";
  AppendShortValue(v, 0, out);
  return out;
}

std::string IdText(BsonView doc) {
  BsonValue id = doc["_id"];
  if (id.missing()) return "{no id}";
  return "{" + ElementText("_id", id) + "}";
}

}  // namespace mayfly::update
