#include <algorithm>
#include <boost/unordered/unordered_flat_set.hpp>

#include "protocol/decimal128.h"
#include "protocol/seeded_hash.h"
#include "query/expression/convert.h"
#include "query/expression/growth.h"
#include "query/expression/operator.h"
#include "query/expression/utf8_positions.h"

namespace mayfly {
namespace {

/// Inputs of $toLower, $substr … besides strings: numbers and dates as text, null as "".
Result<std::string> CoerceToText(BsonValue v) {
  if (v.IsNullish()) return std::string();
  switch (v.type()) {
    case BsonType::kString:
    case BsonType::kCode:
    case BsonType::kSymbol:
      return std::string(v.String());
    case BsonType::kInt32:
    case BsonType::kInt64:
    case BsonType::kDouble:
    case BsonType::kDecimal128:
    case BsonType::kDate: {
      MAYFLY_TRY(Value text, ConvertValue(v, BsonType::kString));
      return std::string(text.view().String());
    }
    default:
      return LocationError(16007, "can't convert from BSON type " + TypeText(v) + " to String");
  }
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }

Result<Value> ToLower(const EvalArgs& a) {
  MAYFLY_TRY(std::string s, CoerceToText(a.view(0)));
  std::transform(s.begin(), s.end(), s.begin(), &Lower);
  return Value::String(s);
}
Result<Value> ToUpper(const EvalArgs& a) {
  MAYFLY_TRY(std::string s, CoerceToText(a.view(0)));
  std::transform(s.begin(), s.end(), s.begin(), &Upper);
  return Value::String(s);
}

Result<Value> Concat(const EvalArgs& a) {
  GrowingString out(a.ctx);
  for (const Value& v : a.values) {
    BsonValue view = v.view();
    if (view.IsNullish()) return Value::Null();
    if (!view.IsString())
      return LocationError(16702, "$concat only supports strings, not " + TypeText(v));
    MAYFLY_TRY(out.Append(view.String()));
    if (out.size() > static_cast<size_t>(kMaxBsonInternalSize))
      return Error{ErrorCode::kBSONObjectTooLarge, "$concat makes a string over 16 MB"};
  }
  return out.Finish();
}

Result<Value> StrCaseCmp(const EvalArgs& a) {
  MAYFLY_TRY(std::string x, CoerceToText(a.view(0)));
  MAYFLY_TRY(std::string y, CoerceToText(a.view(1)));
  std::transform(x.begin(), x.end(), x.begin(), &Upper);
  std::transform(y.begin(), y.end(), y.begin(), &Upper);
  int c = x.compare(y);
  return Value::Int32(c < 0 ? -1 : c > 0);
}

Result<Value> SubstrBytes(const EvalArgs& a) {
  MAYFLY_TRY(std::string s, CoerceToText(a.view(0)));
  if (!a.view(1).IsNumber())
    return LocationError(16034,
                         "$substrBytes:  starting index must be a numeric type (is BSON type " +
                             TypeText(a[1]) + ")");
  if (!a.view(2).IsNumber())
    return LocationError(16035, "$substrBytes:  length must be a numeric type (is BSON type " +
                                    TypeText(a[2]) + ")");
  int64_t start = a.view(1).NumberAsInt64(), length = a.view(2).NumberAsInt64();
  if (start < 0)
    return LocationError(50752, "$substrBytes:  starting index must be non-negative (got: " +
                                    std::to_string(start) + ")");
  auto size = static_cast<int64_t>(s.size());
  if (start >= size) return Value::String("");
  if (IsContinuation(s[static_cast<size_t>(start)]))
    return LocationError(
        28656, "$substrBytes:  Invalid range, starting index is a UTF-8 continuation byte.");
  int64_t end = length < 0 || length > size - start ? size : start + length;
  if (end < size && IsContinuation(s[static_cast<size_t>(end)]))
    return LocationError(
        28657, "$substrBytes:  Invalid range, ending index is in the middle of a UTF-8 character.");
  return Value::String(
      std::string_view(s).substr(static_cast<size_t>(start), static_cast<size_t>(end - start)));
}

Result<Value> SubstrCodePoints(const EvalArgs& a) {
  MAYFLY_TRY(std::string s, CoerceToText(a.view(0)));
  int32_t start, length;
  if (!a.view(1).IsNumber())
    return LocationError(34450, "$substrCP: starting index must be a numeric type (is BSON type " +
                                    TypeText(a[1]) + ")");
  if (!ExactInt32(a.view(1), &start))
    return LocationError(
        34451, "$substrCP: starting index cannot be represented as a 32-bit integral value: " +
                   ValueText(a[1]));
  if (!a.view(2).IsNumber())
    return LocationError(
        34452, "$substrCP: length must be a numeric type (is BSON type " + TypeText(a[2]) + ")");
  if (!ExactInt32(a.view(2), &length))
    return LocationError(
        34453,
        "$substrCP: length cannot be represented as a 32-bit integral value: " + ValueText(a[2]));
  if (length < 0) return LocationError(34454, "$substrCP: length must be a nonnegative integer.");
  if (start < 0)
    return LocationError(34455, "$substrCP: the starting index must be nonnegative integer.");
  size_t from = ByteOffset(s, 0, start), to = ByteOffset(s, from, length);
  return Value::String(std::string_view(s).substr(from, to - from));
}

Result<Value> Split(const EvalArgs& a) {
  if (a.nullish(0) || a.nullish(1)) return Value::Null();
  if (!a.view(0).IsString())
    return LocationError(
        40085,
        "$split requires an expression that evaluates to a string as a first argument, found: " +
            TypeText(a[0]));
  if (!a.view(1).IsString())
    return LocationError(
        40086,
        "$split requires an expression that evaluates to a string as a second argument, found: " +
            TypeText(a[1]));
  BsonValue text = a.view(0), by = a.view(1);
  std::string_view s = text.String(), separator = by.String();
  if (separator.empty()) return LocationError(40087, "$split requires a non-empty separator");
  GrowingArray out(a.ctx);
  Pace pace(a.ctx);
  for (size_t from = 0;;) {
    MAYFLY_TRY(size_t at, FindText(pace, s, separator, from));
    const size_t end = std::min(at, s.size());
    MAYFLY_TRY(out.Append(s.substr(from, end - from)));
    if (at == s.npos) return out.Finish();
    from = at + separator.size();
  }
}

constexpr std::string_view kTrimNames[] = {"input", "chars"};
Result<Value> TrimSides(const EvalArgs& a, bool left, bool right) {
  if (a.nullish(0) || (a.has(1) && a.nullish(1))) return Value::Null();
  BsonValue text = a.view(0), set = a.view(1);
  if (!text.IsString())
    return LocationError(50699, OperatorName(a) + " requires its input to be a string, got " +
                                    ValueText(a[0]) + " (of type " + TypeText(a[0]) + ") instead.");
  if (a.has(1) && !set.IsString())
    return LocationError(50700, OperatorName(a) + " requires 'chars' to be a string, got " +
                                    ValueText(a[1]) + " (of type " + TypeText(a[1]) + ") instead.");
  constexpr size_t kMostChars = 4096;  // in bytes
  if (a.has(1) && set.String().size() > kMostChars)
    return BadValue(OperatorName(a) + " requires 'chars' to be no greater than " +
                    std::to_string(kMostChars) + " bytes, got " +
                    std::to_string(set.String().size()) + " bytes");
  static constexpr std::string_view kSpaces[] = {std::string_view("\0", 1),
                                                 " ",
                                                 "\t",
                                                 "\n",
                                                 "\v",
                                                 "\f",
                                                 "\r",
                                                 "\u00a0",
                                                 "\u1680",
                                                 "\u2000",
                                                 "\u2001",
                                                 "\u2002",
                                                 "\u2003",
                                                 "\u2004",
                                                 "\u2005",
                                                 "\u2006",
                                                 "\u2007",
                                                 "\u2008",
                                                 "\u2009",
                                                 "\u200a"};
  boost::unordered_flat_set<std::string_view, SeededStringHash> cut;
  Pace pace(a.ctx);
  if (a.has(1)) {
    std::string_view chars = set.String();
    for (size_t i = 0; i < chars.size();) {
      size_t next = ByteOffset(chars, i, 1);
      cut.insert(chars.substr(i, next - i));  // bounded: kMostChars
      i = next;
    }
  } else {
    cut.insert(std::begin(kSpaces), std::end(kSpaces));
  }
  std::string_view s = text.String();
  while (left && !s.empty()) {
    const size_t n = ByteOffset(s, 0, 1);
    MAYFLY_TRY(pace.Step(n));
    if (!cut.contains(s.substr(0, n))) break;
    s.remove_prefix(n);
  }
  while (right && !s.empty()) {
    size_t at = s.size() - 1;
    while (at > 0 && IsContinuation(s[at])) --at;
    MAYFLY_TRY(pace.Step(s.size() - at));
    if (!cut.contains(s.substr(at))) break;
    s.remove_suffix(s.size() - at);
  }
  return Value::String(s);
}
Result<Value> Trim(const EvalArgs& a) { return TrimSides(a, true, true); }
Result<Value> TrimLeft(const EvalArgs& a) { return TrimSides(a, true, false); }
Result<Value> TrimRight(const EvalArgs& a) { return TrimSides(a, false, true); }

Result<Value> StrLenBytes(const EvalArgs& a) {
  if (!a.view(0).IsString())
    return LocationError(34473,
                         "$strLenBytes requires a string argument, found: " + TypeText(a[0]));
  return Value::Int32(static_cast<int32_t>(a.view(0).String().size()));
}
Result<Value> StrLenCodePoints(const EvalArgs& a) {
  if (!a.view(0).IsString())
    return LocationError(34471, "$strLenCP requires a string argument, found: " + TypeText(a[0]));
  BsonValue v = a.view(0);
  return Value::Int32(static_cast<int32_t>(CountCodePoints(v.String())));
}

Result<Value> IndexOf(const EvalArgs& a, bool bytes) {
  if (a.nullish(0)) return Value::Null();
  BsonValue text = a.view(0), token = a.view(1);
  if (!text.IsString())
    return LocationError(
        bytes ? 40091 : 40093,
        OperatorName(a) + " requires a string as the first argument, found: " + TypeText(a[0]));
  if (!token.IsString())
    return LocationError(
        bytes ? 40092 : 40094,
        OperatorName(a) + " requires a string as the second argument, found: " + TypeText(a[1]));
  std::string_view s = text.String();
  int32_t bounds[2] = {0, INT32_MAX};
  for (size_t i = 2; i < a.size(); ++i) {
    const char* what = i == 2 ? "starting" : "ending";
    if (!a.view(i).IsNumber() || !ExactInt32(a.view(i), &bounds[i - 2]))
      return LocationError(40096, OperatorName(a) + " requires an integral " + what +
                                      " index, found a value of type: " + TypeText(a[i]) +
                                      ", with value: " + ValueText(a[i]));
    if (bounds[i - 2] < 0)
      return LocationError(40097, OperatorName(a) + " requires a nonnegative " + what +
                                      " index, found: " + ValueText(a[i]));
  }
  size_t from, to;
  if (bytes) {
    from = static_cast<size_t>(bounds[0]);
    to = std::min<size_t>(s.size(), static_cast<size_t>(bounds[1]));
  } else {
    if (static_cast<size_t>(bounds[0]) > CountCodePoints(s)) return Value::Int32(-1);
    from = ByteOffset(s, 0, bounds[0]);
    to = ByteOffset(s, 0, bounds[1]);
  }
  if (from > s.size() || from > to) return Value::Int32(-1);
  Pace pace(a.ctx);
  MAYFLY_TRY(size_t at, FindText(pace, s.substr(0, to), token.String(), from));
  if (at == s.npos) return Value::Int32(-1);
  return Value::Int32(static_cast<int32_t>(bytes ? at : CountCodePoints(s.substr(0, at))));
}
Result<Value> IndexOfBytes(const EvalArgs& a) { return IndexOf(a, true); }
Result<Value> IndexOfCodePoints(const EvalArgs& a) { return IndexOf(a, false); }

constexpr std::string_view kReplaceNames[] = {"input", "find", "replacement"};
Result<Value> Replace(const EvalArgs& a, bool all) {
  static constexpr int kCodes[] = {51746, 51745, 51744};
  bool null = false;
  for (size_t i = 0; i < 3; ++i) {
    if (a.nullish(i))
      null = true;
    else if (!a.view(i).IsString())
      return LocationError(kCodes[i], OperatorName(a) + " requires that '" +
                                          std::string(kReplaceNames[i]) +
                                          "' be a string, found: " + ValueText(a[i]));
  }
  if (null) return Value::Null();
  BsonValue text = a.view(0), token = a.view(1), with = a.view(2);
  std::string_view s = text.String(), find = token.String(), put = with.String();
  GrowingString out(a.ctx);
  Pace pace(a.ctx);
  size_t from = 0;
  while (from <= s.size()) {
    MAYFLY_TRY(size_t at, FindText(pace, s, find, from));
    if (at == s.npos) break;
    MAYFLY_TRY(out.Append(s.substr(from, at - from)));
    MAYFLY_TRY(out.Append(put));
    from = at + find.size();
    if (find.empty()) {
      // An empty token is found before every character and at the end.
      if (at >= s.size()) {
        from = s.size();
        break;
      }
      const size_t next = all ? ByteOffset(s, at, 1) : at;
      MAYFLY_TRY(out.Append(s.substr(at, next - at)));
      from = next;
    }
    if (!all) break;
    if (out.size() > static_cast<size_t>(kMaxBsonInternalSize))
      return Error{ErrorCode::kBSONObjectTooLarge, OperatorName(a) + " makes a string over 16 MB"};
  }
  MAYFLY_TRY(out.Append(s.substr(std::min(from, s.size()))));
  return out.Finish();
}
Result<Value> ReplaceOne(const EvalArgs& a) { return Replace(a, false); }
Result<Value> ReplaceAll(const EvalArgs& a) { return Replace(a, true); }

constexpr OperatorDef kStringOps[] = {
    {.name = "$concat",
     .eval = &Concat,
     .text = "Strings one after another.",
     .example = R"({"$concat": ["a", "-", "b"]} => "a-b")"},
    {.name = "$indexOfBytes",
     .min_args = 2,
     .max_args = 4,
     .eval = &IndexOfBytes,
     .text = "Position of a string in another, in bytes; -1 if it is not there.",
     .example = R"({"$indexOfBytes": ["née", "e"]} => 3)"},
    {.name = "$indexOfCP",
     .min_args = 2,
     .max_args = 4,
     .eval = &IndexOfCodePoints,
     .text = "Position of a string in another, in characters; -1 if it is not there.",
     .example = R"({"$indexOfCP": ["née", "e"]} => 2)"},
    {.name = "$ltrim",
     .eval = &TrimLeft,
     .names = kTrimNames,
     .required = 1,
     .object_code = 50696,
     .unknown_code = 50694,
     .missing_code = 50695,
     .text = "Without spaces (or given characters) in front.",
     .example = R"({"$ltrim": {"input": "  a "}} => "a ")"},
    {.name = "$replaceAll",
     .eval = &ReplaceAll,
     .names = kReplaceNames,
     .required = 7,
     .object_code = 51751,
     .unknown_code = 51750,
     .missing_code = 51749,
     .text = "Every occurrence replaced.",
     .example =
         R"({"$replaceAll": {"input": "a.b.c", "find": ".", "replacement": "-"}} => "a-b-c")"},
    {.name = "$replaceOne",
     .eval = &ReplaceOne,
     .names = kReplaceNames,
     .required = 7,
     .object_code = 51751,
     .unknown_code = 51750,
     .missing_code = 51749,
     .text = "The first occurrence replaced.",
     .example =
         R"({"$replaceOne": {"input": "a.b.c", "find": ".", "replacement": "-"}} => "a-b.c")"},
    {.name = "$rtrim",
     .eval = &TrimRight,
     .names = kTrimNames,
     .required = 1,
     .object_code = 50696,
     .unknown_code = 50694,
     .missing_code = 50695,
     .text = "Without spaces (or given characters) behind.",
     .example = R"({"$rtrim": {"input": "axx", "chars": "x"}} => "a")"},
    {.name = "$split",
     .min_args = 2,
     .max_args = 2,
     .eval = &Split,
     .text = "The pieces between separators.",
     .example = R"({"$split": ["a,b,", ","]} => ["a", "b", ""])"},
    {.name = "$strLenBytes",
     .min_args = 1,
     .max_args = 1,
     .eval = &StrLenBytes,
     .text = "Length in UTF-8 bytes.",
     .example = R"({"$strLenBytes": "né"} => 3)"},
    {.name = "$strLenCP",
     .min_args = 1,
     .max_args = 1,
     .eval = &StrLenCodePoints,
     .text = "Length in characters.",
     .example = R"({"$strLenCP": "né"} => 2)"},
    {.name = "$strcasecmp",
     .min_args = 2,
     .max_args = 2,
     .eval = &StrCaseCmp,
     .text = "-1, 0 or 1, comparing without regard to ASCII case.",
     .example = R"({"$strcasecmp": ["ABC", "abd"]} => -1)"},
    {.name = "$substr",
     .min_args = 3,
     .max_args = 3,
     .eval = &SubstrBytes,
     .text = "An older name of $substrBytes.",
     .example = R"({"$substr": ["hello", 1, 3]} => "ell")"},
    {.name = "$substrBytes",
     .min_args = 3,
     .max_args = 3,
     .eval = &SubstrBytes,
     .text = "Part of a string, in bytes.",
     .example = R"({"$substrBytes": ["hello", 1, -1]} => "ello")"},
    {.name = "$substrCP",
     .min_args = 3,
     .max_args = 3,
     .eval = &SubstrCodePoints,
     .text = "Part of a string, in characters.",
     .example = R"({"$substrCP": ["née", 1, 1]} => "é")"},
    {.name = "$toLower",
     .min_args = 1,
     .max_args = 1,
     .eval = &ToLower,
     .text = "ASCII letters in lower case.",
     .example = R"({"$toLower": "AbC"} => "abc")"},
    {.name = "$toUpper",
     .min_args = 1,
     .max_args = 1,
     .eval = &ToUpper,
     .text = "ASCII letters in upper case.",
     .example = R"({"$toUpper": "AbC"} => "ABC")"},
    {.name = "$trim",
     .eval = &Trim,
     .names = kTrimNames,
     .required = 1,
     .object_code = 50696,
     .unknown_code = 50694,
     .missing_code = 50695,
     .text = "Without spaces (or given characters) on both sides.",
     .example = R"({"$trim": {"input": "  a b "}} => "a b")"},
};

}  // namespace

std::span<const OperatorDef> StringOperators() { return kStringOps; }

}  // namespace mayfly
