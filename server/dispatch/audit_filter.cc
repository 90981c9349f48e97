#include "server/dispatch/audit_filter.h"

#include "protocol/extended_json.h"
#include "server/dispatch/audit_options.h"

namespace mayfly {

namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '.';
}

/// From the shell's way to write a document to extended JSON.
class FilterText {
 public:
  explicit FilterText(std::string_view in) : in_(in) {}

  Result<std::string> ToJson() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '"' || c == '\'') {
        MAYFLY_TRY(Text(c));
      } else if (c == '/') {
        MAYFLY_TRY(Pattern());
      } else if (IsNameChar(c) || c == '-' || c == '+') {
        Word();
      } else {
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  static Error Unfinished(std::string_view what) {
    return {ErrorCode::kFailedToParse, std::string(what) + " does not end"};
  }

  Result<void> Text(char quote) {
    out_ += '"';
    for (++at_; at_ < in_.size(); ++at_) {
      const char c = in_[at_];
      if (c == quote) {
        ++at_;
        out_ += '"';
        return Ok();
      }
      if (c == '\\' && at_ + 1 < in_.size()) {
        const char next = in_[++at_];
        if (next != '\'') out_ += '\\';
        out_ += next;
      } else {
        if (c == '"') out_ += '\\';
        out_ += c;
      }
    }
    return Unfinished("a text");
  }

  Result<void> Pattern() {
    std::string pattern;
    for (++at_;; ++at_) {
      if (at_ >= in_.size()) return Unfinished("a pattern");
      char c = in_[at_];
      if (c == '/') break;
      if (c == '\\' && at_ + 1 < in_.size()) {
        c = in_[++at_];
        if (c != '\\' && c != '/') pattern += '\\';
        // `\\` stands for the backslash that escapes the next character.
        if (c == '\\') {
          pattern += c;
          continue;
        }
      }
      pattern += c;
    }
    std::string options;
    for (++at_; at_ < in_.size() && in_[at_] >= 'a' && in_[at_] <= 'z'; ++at_) options += in_[at_];
    const BsonDocument regex = BuildBson([&](BsonBuilder& b) {
      b.OpenDocument("$regularExpression").Append("pattern", pattern).Append("options", options);
    });
    out_ += ToRelaxedJson(regex.view());
    return Ok();
  }

  /// A name in front of a colon gets its quotes; numbers, true, false and null stay.
  void Word() {
    const size_t from = at_;
    while (at_ < in_.size() && (IsNameChar(in_[at_]) || in_[at_] == '-' || in_[at_] == '+')) ++at_;
    const std::string_view word = in_.substr(from, at_ - from);
    size_t next = at_;
    while (next < in_.size() && (in_[next] == ' ' || in_[next] == '\t' || in_[next] == '\n'))
      ++next;
    if (next < in_.size() && in_[next] == ':')
      out_.append(1, '"').append(word).append(1, '"');
    else
      out_ += word;
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

Error TooLong() {
  return {ErrorCode::kBadValue,
          "an audit filter has at most " + std::to_string(kMaxAuditFilter) + " bytes"};
}

bool HasExpression(const MatchExpression& m) {
  if (m.kind == MatchKind::kExpr) return true;
  for (const auto& child : m.children)
    if (HasExpression(*child)) return true;
  return false;
}

}  // namespace

Result<BsonDocument> ParseAuditFilter(std::string_view text) {
  if (text.size() > kMaxAuditFilter) return TooLong();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{')
    return Error{ErrorCode::kFailedToParse, "an audit filter is a document: { … }"};
  MAYFLY_TRY(std::string json, FilterText(text).ToJson());
  MAYFLY_TRY(BsonDocument filter, ParseJson(json));
  MAYFLY_TRY(CompileAuditFilter(filter));
  return filter;
}

Result<std::shared_ptr<const MatchExpression>> CompileAuditFilter(BsonView filter) {
  if (filter.size() > kMaxAuditFilter) return TooLong();
  MAYFLY_TRY(MatchPtr match, ParseMatch(filter));
  if (HasExpression(*match))
    return Error{ErrorCode::kBadValue, "an audit filter cannot use $expr: each entry is matched"};
  return std::shared_ptr<const MatchExpression>(std::move(match));
}

}  // namespace mayfly
