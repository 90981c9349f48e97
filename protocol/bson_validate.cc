#include "protocol/bson_validate.h"

#include <string>

#include "protocol/bson_view.h"

namespace mayfly {
namespace {

Error Invalid(const char* what) { return {ErrorCode::kInvalidBSON, std::string("invalid BSON: ") + what}; }

/// Strict UTF-8: no overlong forms, no surrogates, at most U+10FFFF. ASCII runs are checked eight bytes at a time.
bool ValidUtf8(const char* p, size_t n) {
  const auto* s = reinterpret_cast<const uint8_t*>(p);
  const auto* end = s + n;
  while (s < end) {
    if (end - s >= 8 && (LoadLe<uint64_t>(reinterpret_cast<const char*>(s)) & 0x8080808080808080ULL) == 0) {
      s += 8;
      continue;
    }
    uint8_t c = *s++;
    if (c < 0x80) continue;
    int more;
    uint32_t code, least;
    if ((c & 0xe0) == 0xc0) { more = 1; code = c & 0x1f; least = 0x80; }
    else if ((c & 0xf0) == 0xe0) { more = 2; code = c & 0x0f; least = 0x800; }
    else if ((c & 0xf8) == 0xf0) { more = 3; code = c & 0x07; least = 0x10000; }
    else return false;
    if (end - s < more) return false;
    for (int i = 0; i < more; ++i) {
      if ((*s & 0xc0) != 0x80) return false;
      code = code << 6 | (*s++ & 0x3f);
    }
    if (code < least || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
  }
  return true;
}

class Validator {
 public:
  explicit Validator(bool utf8) : utf8_(utf8) {}

  /// A document at p with at most `limit` bytes; its size in *size.
  Result<void> Document(const char* p, size_t limit, int depth, size_t* size) {
    if (depth > kMaxBsonDepth) return Error{ErrorCode::kOverflow, "BSON nesting is deeper than 100 levels"};
    if (limit < 5) return Invalid("document is shorter than 5 bytes");
    int32_t n = LoadLe<int32_t>(p);
    if (n < 5 || static_cast<size_t>(n) > limit) return Invalid("document length is out of bounds");
    const char* end = p + n - 1;
    if (*end != 0) return Invalid("document does not end with a zero byte");
    const char* q = p + 4;
    while (q < end) {
      auto type = static_cast<BsonType>(static_cast<uint8_t>(*q++));
      const char* name_end = static_cast<const char*>(std::memchr(q, 0, static_cast<size_t>(end - q)));
      if (name_end == nullptr) return Invalid("field name is not terminated");
      if (utf8_ && !ValidUtf8(q, static_cast<size_t>(name_end - q))) return Invalid("field name is not UTF-8");
      q = name_end + 1;
      MAYFLY_TRY(auto used, Element(type, q, static_cast<size_t>(end - q), depth));
      q += used;
    }
    *size = static_cast<size_t>(n);
    return Ok();
  }

 private:
  Result<size_t> Element(BsonType type, const char* p, size_t left, int depth) {
    auto fixed = [&](size_t n) -> Result<size_t> {
      if (left < n) return Invalid("value runs past its document");
      return n;
    };
    switch (type) {
      case BsonType::kDouble:
      case BsonType::kDate:
      case BsonType::kTimestamp:
      case BsonType::kInt64: return fixed(8);
      case BsonType::kInt32: return fixed(4);
      case BsonType::kObjectId: return fixed(12);
      case BsonType::kDecimal128: return fixed(16);
      case BsonType::kUndefined:
      case BsonType::kNull:
      case BsonType::kMinKey:
      case BsonType::kMaxKey: return size_t{0};
      case BsonType::kBool:
        if (left < 1) return Invalid("value runs past its document");
        if (*p != 0 && *p != 1) return Invalid("boolean is neither 0 nor 1");
        return size_t{1};
      case BsonType::kString:
      case BsonType::kCode:
      case BsonType::kSymbol: return String(p, left);
      case BsonType::kDocument:
      case BsonType::kArray: {
        size_t n = 0;
        MAYFLY_TRY(Document(p, left, depth + 1, &n));
        return n;
      }
      case BsonType::kBinary: {
        if (left < 5) return Invalid("binary runs past its document");
        int32_t n = LoadLe<int32_t>(p);
        if (n < 0 || static_cast<size_t>(n) > left - 5) return Invalid("binary length is out of bounds");
        if (p[4] == 2 && (n < 4 || LoadLe<int32_t>(p + 5) != n - 4)) return Invalid("old binary has a wrong inner length");
        return static_cast<size_t>(n) + 5;
      }
      case BsonType::kRegex: {
        const char* a = static_cast<const char*>(std::memchr(p, 0, left));
        if (a == nullptr) return Invalid("regex is not terminated");
        size_t used = static_cast<size_t>(a - p) + 1;
        const char* b = static_cast<const char*>(std::memchr(p + used, 0, left - used));
        if (b == nullptr) return Invalid("regex is not terminated");
        if (utf8_ && !(ValidUtf8(p, used - 1) && ValidUtf8(a + 1, static_cast<size_t>(b - a - 1)))) return Invalid("regex is not UTF-8");
        return static_cast<size_t>(b - p) + 1;
      }
      case BsonType::kDbPointer: {
        MAYFLY_TRY(auto n, String(p, left));
        if (left - n < 12) return Invalid("value runs past its document");
        return n + 12;
      }
      case BsonType::kCodeWithScope: {
        if (left < 14) return Invalid("code with scope runs past its document");
        int32_t n = LoadLe<int32_t>(p);
        if (n < 14 || static_cast<size_t>(n) > left) return Invalid("code with scope length is out of bounds");
        MAYFLY_TRY(auto code, String(p + 4, static_cast<size_t>(n) - 4));
        size_t scope = 0;
        MAYFLY_TRY(Document(p + 4 + code, static_cast<size_t>(n) - 4 - code, depth + 1, &scope));
        if (4 + code + scope != static_cast<size_t>(n)) return Invalid("code with scope length does not add up");
        return static_cast<size_t>(n);
      }
      case BsonType::kMissing: break;
    }
    return Invalid("unknown element type");
  }

  Result<size_t> String(const char* p, size_t left) {
    if (left < 5) return Invalid("string runs past its document");
    int32_t n = LoadLe<int32_t>(p);
    if (n < 1 || static_cast<size_t>(n) > left - 4) return Invalid("string length is out of bounds");
    if (p[4 + n - 1] != 0) return Invalid("string does not end with a zero byte");
    if (utf8_ && !ValidUtf8(p + 4, static_cast<size_t>(n) - 1)) return Invalid("string is not UTF-8");
    return static_cast<size_t>(n) + 4;
  }

  bool utf8_;
};

}  // namespace

Result<size_t> ValidateBsonPrefix(std::string_view bytes, bool check_utf8) {
  size_t size = 0;
  MAYFLY_TRY(Validator(check_utf8).Document(bytes.data(), bytes.size(), 0, &size));
  return size;
}

Result<void> ValidateBson(std::string_view bytes, bool check_utf8) {
  MAYFLY_TRY(auto size, ValidateBsonPrefix(bytes, check_utf8));
  if (size != bytes.size()) return Invalid("bytes after the document");
  return Ok();
}

}  // namespace mayfly
