#include "query/expression/growth.h"
#include "query/expression/operator.h"
#include "query/expression/regex.h"
#include "query/expression/utf8_positions.h"
#include "storage/operation.h"

namespace mayfly {
namespace {

constexpr std::string_view kNames[] = {"input", "regex", "options"};

/// The expression of the call; null when it is null. The last one of this thread is kept: it is the
/// same for every document nearly always.
Result<CompiledRegex::Ptr> CompileArgument(const EvalArgs& a) {
  BsonValue regex = a.view(1), options = a.view(2);
  if (a.has(2) && !options.IsNullish() && !options.IsString())
    return LocationError(51106, OperatorName(a) + " needs 'options' to be of type string");
  if (regex.IsNullish()) return CompiledRegex::Ptr();
  std::string pattern, flags;
  if (regex.Is(BsonType::kRegex)) {
    pattern = regex.RegexPattern();
    flags = regex.RegexOptions();
    if (a.has(2) && options.IsString() && !flags.empty())
      return LocationError(
          51107, OperatorName(a) +
                     ": found regex option(s) specified in both 'regex' and 'option' fields");
  } else if (regex.IsString()) {
    pattern = regex.String();
  } else {
    return LocationError(51105, OperatorName(a) + " needs 'regex' to be of type string or regex");
  }
  if (a.has(2) && options.IsString()) flags = options.String();
  thread_local CompiledRegex::Ptr last;
  if (last && last->pattern() == pattern && last->options() == flags) return last;
  Result<CompiledRegex::Ptr> compiled = CompiledRegex::Compile(pattern, flags);
  if (!compiled) {
    Error e = compiled.error();
    if (e.code == LocationCode(51091)) e.code = LocationCode(51111);
    e.message = "Invalid Regex in " + OperatorName(a) + ": " + e.message;
    return e;
  }
  last = compiled.value();
  // A pattern may be another one for each element of an array.
  if (a.ctx.op) {
    MAYFLY_TRY(a.ctx.op->CheckInterruptNow());
  }
  return last;
}

/// The input, or nothing when it or the regex is null.
Result<bool> HasInput(const EvalArgs& a, const CompiledRegex::Ptr& regex) {
  BsonValue input = a.view(0);
  if (input.IsNullish()) return false;
  if (!input.IsString())
    return LocationError(51104, OperatorName(a) + " needs 'input' to be of type string");
  return regex != nullptr;
}

/// The size of AppendMatch's output: each group may be all of the text.
size_t MatchBytes(const std::vector<CompiledRegex::Span>& groups) {
  size_t n = 0;
  for (const CompiledRegex::Span& g : groups)
    n += kElementExtra + (g.first == CompiledRegex::kUnset ? 0 : g.second - g.first);
  return n + 2 * kElementExtra;
}

void AppendMatch(BsonBuilder& out, std::string_view text,
                 const std::vector<CompiledRegex::Span>& groups, int64_t characters_before) {
  out.Append("match", text.substr(groups[0].first, groups[0].second - groups[0].first));
  out.Append("idx", static_cast<int32_t>(characters_before));
  BsonArrayBuilder captures = out.OpenArray("captures");
  for (size_t i = 1; i < groups.size(); ++i) {
    if (groups[i].first == CompiledRegex::kUnset)
      captures.AppendNull();
    else
      captures.Append(text.substr(groups[i].first, groups[i].second - groups[i].first));
  }
}

Result<Value> RegexMatch(const EvalArgs& a) {
  MAYFLY_TRY(CompiledRegex::Ptr regex, CompileArgument(a));
  MAYFLY_TRY(bool has, HasInput(a, regex));
  if (!has) return Value::Bool(false);
  BsonValue input = a.view(0);
  MAYFLY_TRY(bool matched, regex->Matches(input.String(), a.ctx.op));
  return Value::Bool(matched);
}

Result<Value> RegexFind(const EvalArgs& a) {
  MAYFLY_TRY(CompiledRegex::Ptr regex, CompileArgument(a));
  MAYFLY_TRY(bool has, HasInput(a, regex));
  if (!has) return Value::Null();
  BsonValue input = a.view(0);
  std::string_view text = input.String();
  std::vector<CompiledRegex::Span> groups;
  MAYFLY_TRY(bool matched, regex->Find(text, 0, &groups, a.ctx.op));
  if (!matched) return Value::Null();
  GrowingDocument out(a.ctx);
  MAYFLY_TRY(out.Room(MatchBytes(groups)));
  AppendMatch(out.raw(), text, groups,
              static_cast<int64_t>(CountCodePoints(text.substr(0, groups[0].first))));
  return out.Finish();
}

Result<Value> RegexFindAll(const EvalArgs& a) {
  MAYFLY_TRY(CompiledRegex::Ptr regex, CompileArgument(a));
  MAYFLY_TRY(bool has, HasInput(a, regex));
  GrowingArray out(a.ctx);
  BsonValue input = a.view(0);
  std::string_view text = has ? input.String() : std::string_view();
  std::vector<CompiledRegex::Span> groups;
  size_t counted = 0;
  int64_t characters = 0;
  // The end of the text is a place for an empty match only when the text is empty.
  for (size_t start = 0; has && (start < text.size() || start == 0);) {
    if (a.ctx.op) {
      MAYFLY_TRY(a.ctx.op->CheckInterrupt());
    }
    MAYFLY_TRY(bool matched, regex->Find(text, start, &groups, a.ctx.op));
    if (!matched) break;
    characters +=
        static_cast<int64_t>(CountCodePoints(text.substr(counted, groups[0].first - counted)));
    counted = groups[0].first;
    const size_t more = MatchBytes(groups);
    if (out.size() + more > kMaxValueBytes)
      return LocationError(
          51151, "$regexFindAll: the size of buffer to store output exceeded the 64MB limit");
    MAYFLY_TRY(out.Room(more));
    BsonBuilder b = out.raw().OpenDocument();
    AppendMatch(b, text, groups, characters);
    b.Done();
    // Behind an empty match the search goes on one character further.
    if (groups[0].second > groups[0].first) {
      start = groups[0].second;
    } else {
      if (groups[0].second >= text.size()) break;
      start = ByteOffset(text, groups[0].second, 1);
    }
  }
  return out.Finish();
}

#define REGEX_ROW(NAME, FUNCTION, TEXT, EXAMPLE)                                           \
  {                                                                                        \
    .name = NAME, .eval = &FUNCTION, .names = kNames, .required = 3, .object_code = 51103, \
    .unknown_code = 31024, .missing_code = 31022, .text = TEXT, .example = EXAMPLE         \
  }

constexpr OperatorDef kRegexOps[] = {
    REGEX_ROW("$regexFind", RegexFind, "The first match of a regular expression.",
              R"x({"$regexFind": {"input": "née 42", "regex": "([0-9])([0-9])"}
} => {"match": "42", "idx": 4, "captures": ["4", "2"]})x"),
    REGEX_ROW(
        "$regexFindAll", RegexFindAll, "All matches of a regular expression.",
        R"({"$regexFindAll": {"input": "aXbx", "regex": "x", "options": "i"}} => [{"match": "X", "idx": 1, "captures": []}, {"match": "x", "idx": 3, "captures": []}])"),
    REGEX_ROW("$regexMatch", RegexMatch, "Whether a regular expression matches.",
              R"({"$regexMatch": {"input": "hello", "regex": "^h"}} => true)"),
};
#undef REGEX_ROW

}  // namespace

std::span<const OperatorDef> StringSearchOperators() { return kRegexOps; }

}  // namespace mayfly
