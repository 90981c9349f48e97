#include "protocol/bson_validate.h"

#include <bit>
#include <cstring>
#include <string>

#include "protocol/bson_view.h"
#include "protocol/utf8.h"

namespace mayfly {
namespace {

/// Walks untrusted bytes. Every check compares what is left (`end_ - p`), never a computed end
/// pointer that could pass the buffer. Failure is a literal; the Error is made once at the top, off
/// the hot path.
class Validator {
 public:
  explicit Validator(bool check_utf8) : check_utf8_(check_utf8) {}

  /// The document at `p` with at most `left` bytes; its size, or 0 with why() set.
  size_t Document(const char* p, size_t left, int depth) {
    if (depth > kMaxBsonDepth)
      return Fail("nesting is deeper than 180 levels, or 200 in a command that writes", true);
    if (left < 5) return Fail("document is shorter than 5 bytes");
    int32_t stated = LoadLe<int32_t>(p);
    if (stated < 5) return Fail("document length is below 5");
    if (static_cast<size_t>(stated) > left)
      return Fail("document length passes the end of its container");
    auto size = static_cast<size_t>(stated);
    if (p[size - 1] != 0) return Fail("document does not end with a zero byte");
    const char* const end = p + size - 1;  // the end marker
    p += 4;
    while (p < end) {
      auto type = static_cast<BsonType>(static_cast<uint8_t>(*p++));
      p = Name(p, end);
      if (p == nullptr) return 0;
      size_t n;
      size_t room = static_cast<size_t>(end - p);
      switch (type) {
        case BsonType::kNull:
        case BsonType::kUndefined:
        case BsonType::kMinKey:
        case BsonType::kMaxKey:
          continue;
        case BsonType::kBool:
          if (room < 1) return Fail("value passes the end of its document");
          if (static_cast<uint8_t>(*p) > 1) return Fail("boolean is neither 0 nor 1");
          ++p;
          continue;
        case BsonType::kInt32:
          n = 4;
          break;
        case BsonType::kDouble:
        case BsonType::kDate:
        case BsonType::kTimestamp:
        case BsonType::kInt64:
          n = 8;
          break;
        case BsonType::kObjectId:
          n = 12;
          break;
        case BsonType::kDecimal128:
          n = 16;
          break;
        case BsonType::kString:
        case BsonType::kCode:
        case BsonType::kSymbol:
          n = String(p, room);
          if (n == 0) return 0;
          break;
        case BsonType::kDocument:
        case BsonType::kArray:
          n = Document(p, room, depth + 1);
          if (n == 0) return 0;
          break;
        case BsonType::kBinary:
          n = Binary(p, room);
          if (n == 0) return 0;
          break;
        case BsonType::kRegex: {
          size_t pattern = CString(p, room);
          if (pattern == 0) return 0;
          size_t options = CString(p + pattern, room - pattern);
          if (options == 0) return 0;
          n = pattern + options;
          break;
        }
        case BsonType::kDbPointer:
          n = String(p, room);
          if (n == 0) return 0;
          n += 12;
          break;
        case BsonType::kCodeWithScope:
          n = CodeWithScope(p, room, depth);
          if (n == 0) return 0;
          break;
        default:
          return Fail("unknown type");
      }
      if (n > room) return Fail("value passes the end of its document");
      p += n;
    }
    return size;
  }

  const char* why() const { return why_; }
  bool too_deep() const { return too_deep_; }

 private:
  /// One past the field name at `p`, or null with why() set. Most names are short ASCII: their end
  /// and their bytes are looked at together, eight at a time.
  const char* Name(const char* p, const char* end) {
    constexpr uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
    const char* q = p;
    for (; end - q >= 8; q += 8) {
      auto w = LoadLe<uint64_t>(q);
      uint64_t zero =
          (w - kOnes) & ~w & kHigh;  // its lowest set bit is that of the first zero byte
      uint64_t before = zero ? (zero & (0 - zero)) - 1 : ~uint64_t{0};
      if (w & before & kHigh) break;
      if (zero) return q + std::countr_zero(zero) / 8 + 1;
    }
    auto* nul = static_cast<const char*>(std::memchr(q, 0, static_cast<size_t>(end - q)));
    if (nul == nullptr) return Fail("field name is not terminated"), nullptr;
    if (check_utf8_ && !IsUtf8(p, static_cast<size_t>(nul - p)))
      return Fail("field name is not valid UTF-8"), nullptr;
    return nul + 1;
  }

  size_t Fail(const char* why, bool too_deep = false) {
    why_ = why;
    too_deep_ = too_deep;
    return 0;
  }

  size_t String(const char* p, size_t room) {
    if (room < 5) return Fail("string passes the end of its document");
    int32_t n = LoadLe<int32_t>(p);
    if (n < 1) return Fail("string length is below 1");
    if (static_cast<size_t>(n) > room - 4) return Fail("string passes the end of its document");
    if (p[4 + n - 1] != 0) return Fail("string is not terminated");
    if (check_utf8_ && !IsUtf8(p + 4, static_cast<size_t>(n) - 1))
      return Fail("string is not valid UTF-8");
    return 4 + static_cast<size_t>(n);
  }

  size_t CString(const char* p, size_t room) {
    auto* nul = static_cast<const char*>(std::memchr(p, 0, room));
    if (nul == nullptr) return Fail("regular expression is not terminated");
    auto n = static_cast<size_t>(nul - p);
    if (check_utf8_ && !IsUtf8(p, n)) return Fail("regular expression is not valid UTF-8");
    return n + 1;
  }

  size_t Binary(const char* p, size_t room) {
    if (room < 5) return Fail("binary passes the end of its document");
    int32_t n = LoadLe<int32_t>(p);
    if (n < 0 || static_cast<size_t>(n) > room - 5)
      return Fail("binary length passes its document");
    if (p[4] == 2) {  // the old subtype repeats the length inside
      if (n < 4 || LoadLe<int32_t>(p + 5) != n - 4)
        return Fail("binary of subtype 2 has a wrong inner length");
    }
    return 5 + static_cast<size_t>(n);
  }

  size_t CodeWithScope(const char* p, size_t room, int depth) {
    if (room < 14) return Fail("code with scope passes the end of its document");
    int32_t total = LoadLe<int32_t>(p);
    if (total < 14 || static_cast<size_t>(total) > room)
      return Fail("code with scope has a wrong length");
    size_t left = static_cast<size_t>(total) - 4;
    size_t code = String(p + 4, left);
    if (code == 0) return 0;
    size_t scope = Document(p + 4 + code, left - code, depth + 1);
    if (scope == 0) return 0;
    if (4 + code + scope != static_cast<size_t>(total))
      return Fail("code with scope has a wrong length");
    return static_cast<size_t>(total);
  }

  const bool check_utf8_;
  bool too_deep_ = false;
  const char* why_ = nullptr;
};

Error MakeError(const Validator& v) {
  if (v.too_deep()) return {ErrorCode::kOverflow, std::string("BSON ") + v.why()};
  return {ErrorCode::kInvalidBSON, std::string("invalid BSON: ") + v.why()};
}

}  // namespace

Result<size_t> ValidateBsonPrefix(std::string_view bytes, bool check_utf8, int max_nesting) {
  Validator v(check_utf8);
  size_t n = v.Document(bytes.data(), bytes.size(), kMaxBsonDepth - max_nesting);
  if (n == 0) return MakeError(v);
  return n;
}

Result<void> ValidateBson(std::string_view bytes, bool check_utf8) {
  Validator v(check_utf8);
  size_t n = v.Document(bytes.data(), bytes.size(), 0);
  if (n == 0) return MakeError(v);
  if (n != bytes.size())
    return Error{ErrorCode::kInvalidBSON, "invalid BSON: bytes follow the document"};
  return Ok();
}

}  // namespace mayfly
