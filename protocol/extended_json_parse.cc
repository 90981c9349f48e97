#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "protocol/base64.h"
#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "protocol/decimal128.h"
#include "protocol/extended_json.h"
#include "protocol/json_reader.h"

namespace mayfly {
namespace {

/// Turns a JSON tree into BSON, reading the `$` wrappers of extended JSON v2. An object that has
/// the name of a wrapper among its fields must be that wrapper in full; anything else is an
/// ordinary document, `$regex`,
/// `$options` and `$type` included: in a filter they are operators.
class Converter {
 public:
  bool Fields(const JsonNode& node, BsonBuilder& b) {
    for (const JsonNode& child : node.children) {
      if (child.name.find('\0') != std::string::npos)
        return Fail("a field name contains a null byte");
      if (!Value(child.name, child, b)) return false;
    }
    return true;
  }

  bool Elements(const JsonNode& node, BsonArrayBuilder& b) {
    for (const JsonNode& child : node.children)
      if (!Value(std::string(b.NextName()), child, b.raw())) return false;
    return true;
  }

  const std::string& why() const { return why_; }

 private:
  using Kind = JsonNode::Kind;

  bool Fail(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool Value(const std::string& name, const JsonNode& node, BsonBuilder& b) {
    switch (node.kind) {
      case Kind::kNull:
        b.AppendNull(name);
        return true;
      case Kind::kTrue:
        b.Append(name, true);
        return true;
      case Kind::kFalse:
        b.Append(name, false);
        return true;
      case Kind::kString:
        b.Append(name, node.text);
        return true;
      case Kind::kNumber:
        return Number(name, node.text, b);
      case Kind::kArray: {
        BsonArrayBuilder a = b.OpenArray(name);
        return Elements(node, a);
      }
      case Kind::kObject: {
        for (const JsonNode& child : node.children)
          if (child.name.size() > 1 && child.name[0] == '$')
            for (const Wrapper& w : kWrappers)
              if (child.name == w.name) {
                if ((this->*w.read)(name, node, child, b)) return true;
                return why_.empty() ? Fail("malformed " + child.name) : false;
              }
        BsonBuilder d = b.OpenDocument(name);
        return Fields(node, d);
      }
    }
    return false;
  }

  bool Number(const std::string& name, const std::string& text, BsonBuilder& b) {
    const char* end = text.data() + text.size();
    if (text.find_first_of(".eE") == std::string::npos) {
      int64_t i;
      auto r = std::from_chars(text.data(), end, i);
      if (r.ec == std::errc() && r.ptr == end) {
        if (i >= INT32_MIN && i <= INT32_MAX)
          b.Append(name, static_cast<int32_t>(i));
        else
          b.Append(name, i);
        return true;
      }
    }
    double d;
    if (!ReadDouble(text, &d)) return Fail("number " + text + " is out of range");
    b.Append(name, d);
    return true;
  }

  /// JSON's form of a finite number, a leading dot or plus sign allowed besides.
  static bool ReadDouble(std::string_view text, double* out) {
    if (!text.empty() && text[0] == '+') text.remove_prefix(1);
    if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string_view::npos)
      return false;
    auto r = std::from_chars(text.data(), text.data() + text.size(), *out);
    if (r.ptr != text.data() + text.size()) return false;
    if (r.ec == std::errc::result_out_of_range)
      *out = std::strtod(std::string(text).c_str(), nullptr);
    return std::isfinite(*out);
  }

  // --- wrappers: `node` is the whole object, `value` the field that names the wrapper ------------
  using Read = bool (Converter::*)(const std::string&, const JsonNode&, const JsonNode&,
                                   BsonBuilder&);
  struct Wrapper {
    std::string_view name;
    Read read;
  };

  static bool Alone(const JsonNode& node, const JsonNode& value, Kind kind) {
    return node.children.size() == 1 && value.kind == kind;
  }

  static bool Hex(std::string_view text, std::string* out) {
    if (text.size() % 2 != 0) return false;
    auto digit = [](char c) {
      if (c >= '0' && c <= '9') return c - '0';
      if (c >= 'a' && c <= 'f') return c - 'a' + 10;
      if (c >= 'A' && c <= 'F') return c - 'A' + 10;
      return -1;
    };
    for (size_t i = 0; i < text.size(); i += 2) {
      int high = digit(text[i]), low = digit(text[i + 1]);
      if (high < 0 || low < 0) return false;
      out->push_back(static_cast<char>(high << 4 | low));
    }
    return true;
  }

  static bool OidBytes(const JsonNode& node, std::string* out) {
    return node.kind == Kind::kString && node.text.size() == 24 && Hex(node.text, out);
  }

  template <class T>
  static bool Whole(std::string_view text, T* out) {
    auto r = std::from_chars(text.data(), text.data() + text.size(), *out);
    return r.ec == std::errc() && r.ptr == text.data() + text.size();
  }

  bool Oid(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    std::string oid;
    if (node.children.size() != 1 || !OidBytes(value, &oid)) return false;
    b.AppendObjectId(name, oid);
    return true;
  }
  bool Symbol(const std::string& name, const JsonNode& node, const JsonNode& value,
              BsonBuilder& b) {
    if (!Alone(node, value, Kind::kString)) return false;
    b.AppendStringLike(BsonType::kSymbol, name, value.text);
    return true;
  }
  bool Int(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    int32_t i;
    if (!Alone(node, value, Kind::kString) || !Whole(value.text, &i)) return false;
    b.Append(name, i);
    return true;
  }
  bool Long(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    int64_t i;
    if (!Alone(node, value, Kind::kString) || !Whole(value.text, &i)) return false;
    b.Append(name, i);
    return true;
  }
  bool DoubleText(const std::string& name, const JsonNode& node, const JsonNode& value,
                  BsonBuilder& b) {
    if (!Alone(node, value, Kind::kString)) return false;
    double d;
    if (value.text == "Infinity") {
      d = HUGE_VAL;
    } else if (value.text == "-Infinity") {
      d = -HUGE_VAL;
    } else if (value.text == "NaN") {
      d = std::nan("");
    } else if (!ReadDouble(value.text, &d)) {
      return false;
    }
    b.Append(name, d);
    return true;
  }
  bool DecimalText(const std::string& name, const JsonNode& node, const JsonNode& value,
                   BsonBuilder& b) {
    if (!Alone(node, value, Kind::kString) || value.text.empty()) return false;
    auto d = decimal128::Parse(value.text);
    if (!d) return Fail(d.error().message);
    b.AppendDecimal(name, d.value());
    return true;
  }
  bool Binary(const std::string& name, const JsonNode& node, const JsonNode& value,
              BsonBuilder& b) {
    const JsonNode *base64, *subtype;
    if (value.kind == Kind::kString) {  // extended JSON v1
      base64 = &value;
      subtype = node.children.size() == 2 ? node.Find("$type") : nullptr;
    } else {
      if (!Alone(node, value, Kind::kObject) || value.children.size() != 2) return false;
      base64 = value.Find("base64");
      subtype = value.Find("subType");
    }
    if (!base64 || !subtype || base64->kind != Kind::kString || subtype->kind != Kind::kString)
      return false;
    std::string hex = subtype->text.size() == 1 ? "0" + subtype->text : subtype->text;
    std::string type_byte, data;
    if (hex.size() != 2 || !Hex(hex, &type_byte)) return false;
    if (type_byte[0] == 2) data.resize(4);
    if (!DecodeBase64(base64->text, data)) return false;
    if (type_byte[0] == 2) StoreLe<int32_t>(data.data(), static_cast<int32_t>(data.size() - 4));
    b.AppendBinary(name, static_cast<uint8_t>(type_byte[0]), data);
    return true;
  }
  bool Uuid(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    if (!Alone(node, value, Kind::kString) || value.text.size() != 36) return false;
    std::string hex, bytes;
    for (size_t i = 0; i < 36; ++i) {
      bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;
      if (hyphen != (value.text[i] == '-')) return false;
      if (!hyphen) hex.push_back(value.text[i]);
    }
    if (!Hex(hex, &bytes)) return false;
    b.AppendBinary(name, 4, bytes);
    return true;
  }
  bool Code(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    if (value.kind != Kind::kString) return false;
    if (node.children.size() == 1) {
      b.AppendStringLike(BsonType::kCode, name, value.text);
      return true;
    }
    const JsonNode* scope = node.Find("$scope");
    if (node.children.size() != 2 || !scope || scope->kind != Kind::kObject) return false;
    std::string bytes(4, '\0');
    AppendStringBytes(value.text, bytes);
    {
      BsonBuilder s(bytes);
      if (!Fields(*scope, s)) return false;
    }
    StoreLe<int32_t>(bytes.data(), static_cast<int32_t>(bytes.size()));
    b.Append(name, BsonValue(BsonType::kCodeWithScope, bytes.data(),
                             static_cast<uint32_t>(bytes.size())));
    return true;
  }
  bool Timestamp(const std::string& name, const JsonNode& node, const JsonNode& value,
                 BsonBuilder& b) {
    if (!Alone(node, value, Kind::kObject) || value.children.size() != 2) return false;
    const JsonNode *t = value.Find("t"), *i = value.Find("i");
    uint32_t seconds, increment;
    if (!t || !i || t->kind != Kind::kNumber || i->kind != Kind::kNumber ||
        !Whole(t->text, &seconds) || !Whole(i->text, &increment))
      return false;
    b.AppendTimestamp(name, static_cast<uint64_t>(seconds) << 32 | increment);
    return true;
  }
  bool Regex(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    if (!Alone(node, value, Kind::kObject) || value.children.size() != 2) return false;
    const JsonNode *pattern = value.Find("pattern"), *options = value.Find("options");
    if (!pattern || !options || pattern->kind != Kind::kString || options->kind != Kind::kString)
      return false;
    if (pattern->text.find('\0') != std::string::npos ||
        options->text.find('\0') != std::string::npos)
      return Fail("a regular expression contains a null byte");
    std::string sorted = options->text;
    std::sort(sorted.begin(), sorted.end());
    b.AppendRegex(name, pattern->text, sorted);
    return true;
  }
  bool DbPointer(const std::string& name, const JsonNode& node, const JsonNode& value,
                 BsonBuilder& b) {
    if (!Alone(node, value, Kind::kObject) || value.children.size() != 2) return false;
    const JsonNode *ref = value.Find("$ref"), *id = value.Find("$id");
    if (!ref || !id || ref->kind != Kind::kString || id->kind != Kind::kObject) return false;
    const JsonNode* oid = id->children.size() == 1 ? id->Find("$oid") : nullptr;
    std::string bytes, oid_bytes;
    if (!oid || !OidBytes(*oid, &oid_bytes)) return false;
    AppendStringBytes(ref->text, bytes);
    bytes += oid_bytes;
    b.Append(name,
             BsonValue(BsonType::kDbPointer, bytes.data(), static_cast<uint32_t>(bytes.size())));
    return true;
  }
  bool Date(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    int64_t millis;
    if (node.children.size() != 1) return false;
    if (value.kind == Kind::kString) {
      if (!ParseIsoDate(value.text, &millis)) return Fail("not an ISO 8601 date: " + value.text);
    } else {
      const JsonNode* number = value.kind == Kind::kObject && value.children.size() == 1
                                   ? value.Find("$numberLong")
                                   : nullptr;
      if (!number || number->kind != Kind::kString || !Whole(number->text, &millis)) return false;
    }
    b.Append(name, Instant{millis});
    return true;
  }
  template <BsonType kType>
  bool Key(const std::string& name, const JsonNode& node, const JsonNode& value, BsonBuilder& b) {
    if (!Alone(node, value, Kind::kNumber) || value.text != "1") return false;
    b.Append(name, BsonValue(kType, "", 0));
    return true;
  }
  bool Undefined(const std::string& name, const JsonNode& node, const JsonNode& value,
                 BsonBuilder& b) {
    if (!Alone(node, value, Kind::kTrue)) return false;
    b.Append(name, BsonValue(BsonType::kUndefined, "", 0));
    return true;
  }

  static void AppendStringBytes(std::string_view s, std::string& out) {
    auto n = static_cast<int32_t>(s.size() + 1);
    out.append(reinterpret_cast<const char*>(&n), 4).append(s).push_back('\0');
  }

  static constexpr Wrapper kWrappers[] = {
      {"$oid", &Converter::Oid},
      {"$symbol", &Converter::Symbol},
      {"$numberInt", &Converter::Int},
      {"$numberLong", &Converter::Long},
      {"$numberDouble", &Converter::DoubleText},
      {"$numberDecimal", &Converter::DecimalText},
      {"$binary", &Converter::Binary},
      {"$uuid", &Converter::Uuid},
      {"$code", &Converter::Code},
      {"$timestamp", &Converter::Timestamp},
      {"$regularExpression", &Converter::Regex},
      {"$dbPointer", &Converter::DbPointer},
      {"$date", &Converter::Date},
      {"$minKey", &Converter::Key<BsonType::kMinKey>},
      {"$maxKey", &Converter::Key<BsonType::kMaxKey>},
      {"$undefined", &Converter::Undefined},
  };

  std::string why_;
};

}  // namespace

bool ParseIsoDate(std::string_view s, int64_t* millis) {
  size_t at = 0;
  auto digits = [&](size_t n, int* out) {
    *out = 0;
    for (size_t i = 0; i < n; ++i, ++at) {
      if (at >= s.size() || s[at] < '0' || s[at] > '9') return false;
      *out = *out * 10 + (s[at] - '0');
    }
    return true;
  };
  auto eat = [&](char c) { return at < s.size() && s[at] == c ? (++at, true) : false; };
  int y, mo, d, h, mi, sec = 0, offset = 0;
  int64_t ms = 0;
  if (!digits(4, &y) || !eat('-') || !digits(2, &mo) || !eat('-') || !digits(2, &d) || !eat('T') ||
      !digits(2, &h) || !eat(':') || !digits(2, &mi))
    return false;
  if (eat(':')) {
    if (!digits(2, &sec)) return false;
    if (eat('.')) {
      int64_t scale = 100;
      size_t first = at;
      for (; at < s.size() && s[at] >= '0' && s[at] <= '9'; ++at, scale /= 10)
        ms += (s[at] - '0') * scale;
      if (at == first) return false;
    }
  }
  if (!eat('Z')) {
    int sign = eat('+') ? 1 : (eat('-') ? -1 : 0), oh, om = 0;
    if (sign == 0 || !digits(2, &oh)) return false;
    if (at < s.size()) {
      eat(':');
      if (!digits(2, &om)) return false;
    }
    if (oh > 23 || om > 59) return false;
    offset = sign * (oh * 60 + om);
  }
  using namespace std::chrono;
  year_month_day ymd{year{y}, month{static_cast<unsigned>(mo)}, day{static_cast<unsigned>(d)}};
  if (at != s.size() || !ymd.ok() || h > 23 || mi > 59 || sec > 59) return false;
  int64_t day_number = sys_days{ymd}.time_since_epoch().count();
  *millis = (((day_number * 24 + h) * 60 + mi - offset) * 60 + sec) * 1000 + ms;
  return true;
}

Result<BsonDocument> ParseJson(std::string_view json) {
  auto fail = [](const std::string& why) {
    return Error{ErrorCode::kFailedToParse, "not extended JSON: " + why};
  };
  JsonNode root;
  std::string why;
  if (!ReadJson(json, &root, &why)) return fail(why);
  Converter c;
  std::string bytes;
  bool ok;
  if (root.kind == JsonNode::Kind::kArray) {
    BsonArrayBuilder a(bytes);
    ok = c.Elements(root, a);
  } else if (root.kind == JsonNode::Kind::kObject) {
    BsonBuilder b(bytes);
    ok = c.Fields(root, b);
  } else {
    return fail("neither a document nor an array");
  }
  if (!ok) return fail(c.why());
  // Nesting and UTF-8 are checked where they always are.
  auto valid = ValidateBson(bytes);
  if (!valid) return fail(valid.error().message);
  return BsonDocument(std::move(bytes));
}

}  // namespace mayfly
