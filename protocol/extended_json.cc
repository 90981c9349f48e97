#include "protocol/extended_json.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "protocol/base64.h"
#include "protocol/decimal128.h"
#include "protocol/hex.h"
#include "protocol/object_id.h"
#include "protocol/utf8.h"

namespace mayfly {
namespace {

/// The code of a first character that is unsafe in one line of JSON: control characters, DEL,
/// U+0080 to U+009F (readers take U+0085 for the end of a line, terminals obey others), U+2028 and
/// U+2029. `*bytes`: its length. kNoControl: `s`, well-formed UTF-8, begins with no such character.
constexpr uint32_t kNoControl = UINT32_MAX;
uint32_t ControlAt(std::string_view s, size_t* bytes) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : 0u; };
  *bytes = byte(0) < 0x80 ? 1 : byte(0) < 0xE0 ? 2 : 3;
  if (byte(0) < 0x20 || byte(0) == 0x7F) return byte(0);
  if (byte(0) == 0xC2 && byte(1) <= 0x9F) return byte(1);
  if (byte(0) == 0xE2 && byte(1) == 0x80 && (byte(2) == 0xA8 || byte(2) == 0xA9))
    return 0x2000 | (byte(2) & 0x3F);
  return kNoControl;
}

/// Writes extended JSON with the spacing libbson uses. Not libbson's own writer: doubles come out
/// in their shortest exact form here, and nothing is dropped or cut.
class Writer {
 public:
  Writer(bool relaxed, std::string& out) : relaxed_(relaxed), out_(out) {}

  void Fields(BsonView doc, bool array) {
    out_ += array ? "[ " : "{ ";
    bool first = true;
    for (const BsonElement& e : doc) {
      if (!first) out_ += ", ";
      first = false;
      if (!array) {
        Quote(e.name);
        out_ += " : ";
      }
      Value(e.value);
    }
    out_ += array ? " ]" : " }";
  }

  void Value(BsonValue v) {
    switch (v.type()) {
      case BsonType::kDouble:
        return Double(v.Double());
      case BsonType::kString:
        return Quote(v.String());
      case BsonType::kDocument:
        return Fields(v.Document(), false);
      case BsonType::kArray:
        return Fields(v.Document(), true);
      case BsonType::kBinary: {
        char subtype[3] = {kLowerHex[v.BinarySubtype() >> 4], kLowerHex[v.BinarySubtype() & 15], 0};
        std::string_view data = v.BinaryData();
        // The old subtype repeats the length inside; it is not part of the data.
        if (v.BinarySubtype() == 2 && data.size() >= 4) data.remove_prefix(4);
        out_ += "{ \"$binary\" : { \"base64\" : \"";
        AppendBase64(data, out_);
        out_.append("\", \"subType\" : \"").append(subtype).append("\" } }");
        return;
      }
      case BsonType::kUndefined:
        out_ += "{ \"$undefined\" : true }";
        return;
      case BsonType::kObjectId:
        out_.append("{ \"$oid\" : \"").append(ObjectIdToHex(v.ObjectId())).append("\" }");
        return;
      case BsonType::kBool:
        out_ += v.Bool() ? "true" : "false";
        return;
      case BsonType::kDate:
        return Date(v.Date().millis);
      case BsonType::kNull:
        out_ += "null";
        return;
      case BsonType::kRegex: {
        std::string options(v.RegexOptions());
        std::sort(options.begin(), options.end());
        out_ += "{ \"$regularExpression\" : { \"pattern\" : ";
        Quote(v.RegexPattern());
        out_ += ", \"options\" : ";
        Quote(options);
        out_ += " } }";
        return;
      }
      case BsonType::kDbPointer:
        out_ += "{ \"$dbPointer\" : { \"$ref\" : ";
        Quote(v.DbPointerNamespace());
        out_.append(", \"$id\" : { \"$oid\" : \"")
            .append(ObjectIdToHex(v.DbPointerId()))
            .append("\" } } }");
        return;
      case BsonType::kCode:
        out_ += "{ \"$code\" : ";
        Quote(v.String());
        out_ += " }";
        return;
      case BsonType::kSymbol:
        out_ += "{ \"$symbol\" : ";
        Quote(v.String());
        out_ += " }";
        return;
      case BsonType::kCodeWithScope:
        out_ += "{ \"$code\" : ";
        Quote(v.CodeWithScopeCode());
        out_ += ", \"$scope\" : ";
        Fields(v.CodeWithScopeScope(), false);
        out_ += " }";
        return;
      case BsonType::kInt32:
        return Integer(v.Int32(), "$numberInt");
      case BsonType::kInt64:
        return Integer(v.Int64(), "$numberLong");
      case BsonType::kTimestamp:
        out_ += "{ \"$timestamp\" : { \"t\" : ";
        Digits(v.Timestamp() >> 32);
        out_ += ", \"i\" : ";
        Digits(v.Timestamp() & 0xFFFFFFFF);
        out_ += " } }";
        return;
      case BsonType::kDecimal128:
        out_.append("{ \"$numberDecimal\" : \"")
            .append(decimal128::ToString(v.Decimal()))
            .append("\" }");
        return;
      case BsonType::kMaxKey:
        out_ += "{ \"$maxKey\" : 1 }";
        return;
      case BsonType::kMinKey:
        out_ += "{ \"$minKey\" : 1 }";
        return;
      case BsonType::kMissing:
        out_ += "missing";
        return;
    }
  }

 private:
  template <class T>
  void Digits(T v) {
    char text[24];
    out_.append(text, std::to_chars(text, text + sizeof text, v).ptr);
  }

  void Integer(int64_t v, std::string_view wrapper) {
    if (relaxed_) return Digits(v);
    out_.append("{ \"").append(wrapper).append("\" : \"");
    Digits(v);
    out_ += "\" }";
  }

  void Double(double v) {
    char text[40];
    std::string_view shown;
    if (std::isnan(v)) {
      shown = "NaN";
    } else if (std::isinf(v)) {
      shown = v < 0 ? "-Infinity" : "Infinity";
    } else {
      char* end =
          std::to_chars(text, text + sizeof text, v).ptr;  // the shortest text that reads back as v
      shown = {text, static_cast<size_t>(end - text)};
      if (shown.find_first_of(".e") == std::string_view::npos) {
        *end++ = '.';
        *end++ = '0';
        shown = {text, static_cast<size_t>(end - text)};
      }
    }
    if (relaxed_ && std::isfinite(v)) {
      out_ += shown;
      return;
    }
    out_.append("{ \"$numberDouble\" : \"").append(shown).append("\" }");
  }

  void Date(int64_t millis) {
    constexpr int64_t kYear10000 = 253402300800000;
    out_ += "{ \"$date\" : ";
    if (!relaxed_ || millis < 0 || millis >= kYear10000) {
      out_ += "{ \"$numberLong\" : \"";
      Digits(millis);
      out_ += "\" } }";
      return;
    }
    using namespace std::chrono;
    int64_t days_since = millis / 86400000, rest = millis % 86400000;
    year_month_day ymd{sys_days{days{days_since}}};
    char text[40];
    int n = std::snprintf(text, sizeof text, "\"%04d-%02u-%02uT%02d:%02d:%02d",
                          static_cast<int>(ymd.year()), static_cast<unsigned>(ymd.month()),
                          static_cast<unsigned>(ymd.day()), static_cast<int>(rest / 3600000),
                          static_cast<int>(rest / 60000 % 60), static_cast<int>(rest / 1000 % 60));
    out_.append(text, static_cast<size_t>(n));
    if (rest % 1000 != 0) {
      n = std::snprintf(text, sizeof text, ".%03d", static_cast<int>(rest % 1000));
      out_.append(text, static_cast<size_t>(n));
    }
    out_ += "Z\" }";
  }

  void Quote(std::string_view s) { AppendJsonString(out_, s); }

  const bool relaxed_;
  std::string& out_;
};

std::string Write(BsonView doc, bool relaxed) {
  if (doc.empty()) return "{ }";
  std::string out;
  out.reserve(doc.size() * 2);
  Writer(relaxed, out).Fields(doc, false);
  return out;
}

}  // namespace

void AppendJsonString(std::string& out, std::string_view s) {
  // Stored strings may be any bytes; JSON is UTF-8.
  if (!IsUtf8(s)) [[unlikely]]
    return AppendJsonString(out, PrintableUtf8(s));
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  out.push_back('"');
  for (size_t i = 0; i < s.size();) {
    const char c = s[i];
    size_t bytes = 1;
    if (const size_t known = kShort.find(c); known != std::string_view::npos) {
      out.push_back('\\');
      out.push_back(kLetters[known]);
    } else if (const uint32_t code = ControlAt(s.substr(i), &bytes); code != kNoControl) {
      out += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) out.push_back(kLowerHex[code >> shift & 15]);
    } else {
      bytes = 1;
      out.push_back(c);
    }
    i += bytes;
  }
  out.push_back('"');
}

std::string ToCanonicalJson(BsonView doc) { return Write(doc, false); }
std::string ToRelaxedJson(BsonView doc) { return Write(doc, true); }

std::string ToRelaxedJson(BsonValue value) {
  std::string out;
  Writer(true, out).Value(value);
  return out;
}

}  // namespace mayfly
