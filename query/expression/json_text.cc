#include "query/expression/json_text.h"

#include <algorithm>
#include <boost/container/static_vector.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "protocol/decimal128.h"
#include "protocol/hex.h"
#include "protocol/seeded_hash.h"
#include "query/expression/convert.h"
#include "query/expression/growth.h"
#include "query/expression/nesting.h"

namespace mayfly {
namespace {

Error JsonTooLarge() {
  return {ErrorCode::kBSONObjectTooLarge, "A conversion between JSON and BSON makes over 16 MB"};
}

class JsonTextWriter {
 public:
  explicit JsonTextWriter(EvalContext& ctx) : out_(ctx) {}

  /// REQUIRES: no deeper than CheckNesting allows.
  Result<void> Write(BsonValue v) {
    if (out_.size() > static_cast<size_t>(kMaxBsonInternalSize)) return JsonTooLarge();
    switch (v.type()) {
      case BsonType::kDocument:
      case BsonType::kArray:
        return Container(v);
      case BsonType::kString:
      case BsonType::kSymbol:
      case BsonType::kCode:
        return Quote(v.String());
      case BsonType::kNull:
      case BsonType::kUndefined:
        return out_.Append("null");
      default:
        break;
    }
    MAYFLY_TRY(const Value text,
               ConvertWith(v, BsonType::kString, {.format = BinaryFormat::kAuto}));
    const BsonValue view = text.view();
    if (v.Is(BsonType::kBool) || IsFinite(v)) return out_.Append(view.String());
    return Quote(view.String());
  }

  Result<Value> Finish() {
    if (out_.size() > static_cast<size_t>(kMaxBsonInternalSize)) return JsonTooLarge();
    return out_.Finish();
  }

 private:
  /// The numbers that JSON has, too.
  static bool IsFinite(BsonValue v) {
    if (v.Is(BsonType::kDouble)) return std::isfinite(v.Double());
    if (v.Is(BsonType::kDecimal128))
      return !decimal128::IsNan(v.Decimal()) && !decimal128::IsInfinite(v.Decimal());
    return v.IsNumber();
  }

  Result<void> Container(BsonValue v) {
    const bool array = v.IsArray();
    MAYFLY_TRY(out_.Append(array ? '[' : '{'));
    bool first = true;
    for (const BsonElement& e : v.Document()) {
      if (!first) {
        MAYFLY_TRY(out_.Append(','));
      }
      first = false;
      if (!array) {
        MAYFLY_TRY(Quote(e.name));
        MAYFLY_TRY(out_.Append(':'));
      }
      MAYFLY_TRY(Write(e.value));
    }
    return out_.Append(array ? ']' : '}');
  }

  /// In quotes; only what JSON cannot have in a string is escaped.
  Result<void> Quote(std::string_view s) {
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
    MAYFLY_TRY(out_.Append('"'));
    size_t from = 0;
    for (size_t i = 0; i < s.size(); ++i) {
      const auto c = static_cast<unsigned char>(s[i]);
      if (c >= 0x20 && c != '"' && c != '\\') continue;
      MAYFLY_TRY(out_.Append(s.substr(from, i - from)));
      from = i + 1;
      if (const size_t known = kShort.find(s[i]); known != std::string_view::npos) {
        const char escape[] = {'\\', kLetters[known]};
        MAYFLY_TRY(out_.Append(std::string_view(escape, 2)));
      } else {
        const char escape[] = {'\\', 'u', '0', '0', kLowerHex[c >> 4], kLowerHex[c & 15]};
        MAYFLY_TRY(out_.Append(std::string_view(escape, 6)));
      }
    }
    MAYFLY_TRY(out_.Append(s.substr(from)));
    return out_.Append('"');
  }

  GrowingString out_;
};

/// Writes BSON while it reads, so a short text cannot become a large tree in between.
class JsonTextReader {
 public:
  JsonTextReader(EvalContext& ctx, std::string_view text)
      : ctx_(ctx), out_(ctx), scratch_(ctx), text_(text) {}

  Result<Value> Whole(BsonType to) {
    Space();
    if (Peek() != '{' && Peek() != '[')
      return NotJson(at_ == text_.size() ? "the text ends early" : "Unexpected standalone value");
    const bool array = Peek() == '[';
    if (array != (to == BsonType::kArray))
      return Error{ErrorCode::kConversionFailure, "Input doesn't match expected type '" +
                                                      std::string(BsonTypeName(to)) +
                                                      "' in $convert with no onError value"};
    if (array) {
      BsonArrayBuilder elements(out_.bytes());
      MAYFLY_TRY(Elements(elements, 1));
    } else {
      BsonBuilder members(out_.bytes());
      MAYFLY_TRY(Members(members, 1));
    }
    Space();
    if (at_ != text_.size()) return NotJson("text after the value");
    return array ? Value::Array(out_.Take()) : Value::Document(out_.Take());
  }

 private:
  Error NotJson(std::string_view why) const {
    return {ErrorCode::kConversionFailure,
            "Input doesn't represent valid JSON: " + std::string(why) + " at offset " +
                std::to_string(at_) + " in $convert with no onError value"};
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Eat(char c) { return at_ < text_.size() && text_[at_] == c ? (++at_, true) : false; }
  void Space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  /// Room for `n` bytes of names and values; what was read since the last time counts as work.
  Result<void> Room(size_t n) {
    MAYFLY_TRY(out_.pace().Step(at_ - counted_));
    counted_ = at_;
    if (out_.bytes().size() + n > static_cast<size_t>(kMaxBsonInternalSize)) return JsonTooLarge();
    return out_.Room(n + kElementExtra);
  }

  Result<void> Members(BsonBuilder& out, int depth) {
    if (depth > kMaxBsonDepth) return NotJson("nesting is too deep");
    const size_t start = out_.bytes().size() - out.size();
    ++at_;
    Space();
    for (bool first = true; !Eat('}'); first = false) {
      if (!first && !Eat(',')) return NotJson("',' or '}' was expected");
      Space();
      if (Peek() != '"') return NotJson("a field name was expected");
      MAYFLY_TRY(const std::string_view name, String(&name_));
      if (name.find('\0') != name.npos) return NotJson("Illegal embedded null byte");
      Space();
      if (!Eat(':')) return NotJson("':' was expected");
      Space();
      MAYFLY_TRY(Element(name, out, depth));
      Space();
    }
    MAYFLY_TRY(Room(0));
    out.Done();
    return KeepLast(start);
  }

  Result<void> Elements(BsonArrayBuilder& out, int depth) {
    if (depth > kMaxBsonDepth) return NotJson("nesting is too deep");
    ++at_;
    Space();
    for (bool first = true; !Eat(']'); first = false) {
      if (!first && !Eat(',')) return NotJson("',' or ']' was expected");
      Space();
      MAYFLY_TRY(Element(out.NextName(), out.raw(), depth));
      Space();
    }
    MAYFLY_TRY(Room(0));
    out.Done();
    return Ok();
  }

  /// `name` may lie in name_, which the names within the value overwrite.
  Result<void> Element(std::string_view name, BsonBuilder& out, int depth) {
    MAYFLY_TRY(Room(name.size()));
    switch (Peek()) {
      case '{': {
        BsonBuilder inner = out.OpenDocument(name);
        return Members(inner, depth + 1);
      }
      case '[': {
        BsonArrayBuilder inner = out.OpenArray(name);
        return Elements(inner, depth + 1);
      }
      case '"': {
        MAYFLY_TRY(const std::string_view s, String(&string_));
        MAYFLY_TRY(Room(name.size() + s.size()));
        out.Append(name, s);
        return Ok();
      }
      case 'n':
        if (!Word("null")) return NotJson("unexpected character");
        out.AppendNull(name);
        return Ok();
      case 't':
        if (!Word("true")) return NotJson("unexpected character");
        out.Append(name, true);
        return Ok();
      case 'f':
        if (!Word("false")) return NotJson("unexpected character");
        out.Append(name, false);
        return Ok();
      default:
        return Number(name, out);
    }
  }

  bool Word(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  bool Digits() {
    const size_t first = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    return at_ > first;
  }

  Result<void> Number(std::string_view name, BsonBuilder& out) {
    const size_t start = at_;
    bool whole = true;
    Eat('-');
    if (Eat('0')) {
      if (Peek() >= '0' && Peek() <= '9') return NotJson("a number has a leading zero");
    } else if (!Digits()) {
      return NotJson(at_ == text_.size() ? "the text ends early" : "unexpected character");
    }
    if (Eat('.')) {
      whole = false;
      if (!Digits()) return NotJson("a digit was expected");
    }
    if (Eat('e') || Eat('E')) {
      whole = false;
      if (!Eat('+')) Eat('-');
      if (!Digits()) return NotJson("a digit was expected");
    }
    const std::string_view digits = text_.substr(start, at_ - start);
    const char *const begin = digits.data(), *const end = begin + digits.size();
    int64_t n = 0;
    if (whole && std::from_chars(begin, end, n).ec == std::errc()) {
      if (n >= INT32_MIN && n <= INT32_MAX)
        out.Append(name, static_cast<int32_t>(n));
      else
        out.Append(name, n);
      return Ok();
    }
    double d = 0;
    // Also what is too small for a double to have all its digits.
    if (std::from_chars(begin, end, d).ec != std::errc())
      d = std::strtod(std::string(digits).c_str(), nullptr);
    if (!std::isfinite(d)) return NotJson("a number is out of range");
    out.Append(name, d);
    return Ok();
  }

  /// A string's characters: those of the text where nothing in it is escaped, else in `*scratch`.
  Result<std::string_view> String(std::string* scratch) {
    const size_t start = ++at_;
    bool escaped = false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20)
        return NotJson("a control character in a string is not escaped");
      if (text_[at_] != '\\') continue;
      escaped = true;
      ++at_;
    }
    if (at_ >= text_.size()) {
      at_ = text_.size();
      return NotJson("a string is not terminated");
    }
    const std::string_view raw = text_.substr(start, at_ - start);
    ++at_;
    if (!escaped) return raw;
    scratch->clear();
    if (scratch->capacity() < raw.size()) {
      MAYFLY_TRY(scratch_.Set(name_.capacity() + string_.capacity() + raw.size()));
      scratch->reserve(raw.size());
    }
    for (size_t i = 0; i < raw.size();) {
      if (raw[i] != '\\') {
        *scratch += raw[i++];
        continue;
      }
      if (!Escape(raw, &i, scratch)) return NotJson("unknown escape or half a surrogate pair");
    }
    return std::string_view(*scratch);
  }

  /// Behind the backslash at `*i`; `*i` is behind all of it then.
  static bool Escape(std::string_view raw, size_t* i, std::string* out) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const char c = raw[*i + 1];  // there is one: the string ends behind it
    *i += 2;
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      *out += kMeant[known];
      return true;
    }
    uint32_t code = 0, low = 0;
    if (c != 'u' || !Hex4(raw, i, &code)) return false;
    if (code >= 0xD800 && code <= 0xDFFF) {
      if (code >= 0xDC00 || raw.substr(*i, 2) != "\\u") return false;
      *i += 2;
      if (!Hex4(raw, i, &low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    const auto put = [out](uint32_t byte) { *out += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
      return true;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    put((more == 1 ? 0xC0 : more == 2 ? 0xE0 : 0xF0) | code >> 6 * more);
    for (int k = more - 1; k >= 0; --k) put(0x80 | (code >> 6 * k & 63));
    return true;
  }

  static bool Hex4(std::string_view raw, size_t* i, uint32_t* out) {
    if (raw.size() - *i < 4) return false;
    const char* const begin = raw.data() + *i;
    const auto [end, error] = std::from_chars(begin, begin + 4, *out, 16);
    if (error != std::errc() || end != begin + 4 || *begin == '-') return false;
    *i += 4;
    return true;
  }

  Result<bool> RepeatsName(BsonView doc) {
    // Few are compared with one another, without a table.
    boost::container::static_vector<std::string_view, 16> few;
    ClientViewSet names;
    Charge charge(ctx_);
    for (const BsonElement& e : doc) {
      MAYFLY_TRY(out_.pace().Step(e.name.size()));
      bool known = std::ranges::find(few, e.name) != few.end();
      if (few.size() < few.capacity()) {
        few.push_back(e.name);
      } else {
        MAYFLY_TRY(charge.Set(kNameBytes * (names.size() + 1)));
        known = !names.insert(e.name).second || known;
      }
      if (known) return true;
    }
    return false;
  }

  /// In the document that begins at `start` and has just been finished.
  Result<void> KeepLast(size_t start) {
    const BsonView doc(out_.bytes().data() + start);
    MAYFLY_TRY(const bool repeats, RepeatsName(doc));
    if (!repeats) return Ok();
    ClientViewMap<BsonValue> last;
    Charge charge(ctx_);
    for (const BsonElement& e : doc) {
      MAYFLY_TRY(out_.pace().Step(e.name.size()));
      MAYFLY_TRY(charge.Set(kNameBytes * (last.size() + 1)));
      last.insert_or_assign(e.name, e.value);
    }
    GrowingDocument kept(ctx_);
    for (const BsonElement& e : doc) {
      const auto found = last.find(e.name);
      if (found == last.end()) continue;
      MAYFLY_TRY(kept.Append(e.name, found->second));
      last.erase(found);
    }
    const Value shorter = kept.Finish();
    out_.bytes().replace(start, std::string::npos, shorter.view().bytes());
    return Ok();
  }

  static constexpr size_t kNameBytes = 96;  ///< of a name in a table
  EvalContext& ctx_;
  GrowingBytes out_;
  Charge scratch_;  ///< of name_ and string_
  std::string name_, string_;
  const std::string_view text_;
  size_t at_ = 0, counted_ = 0;
};

}  // namespace

Result<Value> JsonText(EvalContext& ctx, BsonValue container) {
  MAYFLY_TRY(CheckNesting(container));
  JsonTextWriter writer(ctx);
  MAYFLY_TRY(writer.Write(container));
  return writer.Finish();
}

Result<Value> ParseJsonText(EvalContext& ctx, std::string_view text, BsonType to) {
  return JsonTextReader(ctx, text).Whole(to);
}

}  // namespace mayfly
