#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "query/match/match_expression.h"
#include "query/update/update.h"

namespace mayfly {

/// Extended JSON with less ink: names need no quotes, strings may have single ones. `{a: 'x',
/// 'b.c': 1}`
inline std::string LooseJson(std::string_view text) {
  auto name_char = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$';
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    char c = text[i];
    if (c == '\'' || c == '"') {
      size_t end = text.find(c, i + 1);
      out.append("\"").append(text.substr(i + 1, end - i - 1)).append("\"");
      i = end + 1;
    } else if (name_char(c)) {
      size_t end = i;
      while (end < text.size() && (name_char(text[end]) || text[end] == '.' || text[end] == '+'))
        ++end;
      size_t colon = text.find_first_not_of(' ', end);
      bool name = colon != std::string_view::npos && text[colon] == ':';
      if (name) out += '"';
      out.append(text.substr(i, end - i));
      if (name) out += '"';
      i = end;
    } else {
      out += c;
      ++i;
    }
  }
  return out;
}

inline BsonDocument Doc(std::string_view loose) {
  auto doc = ParseJson(LooseJson(loose));
  if (!doc) FAIL("not JSON: " << LooseJson(loose) << ": " << doc.error().message);
  return doc.value();
}

/// A pipeline or a document: `Doc` cannot be an array at its top.
struct UpdateArgument {
  explicit UpdateArgument(std::string_view loose)
      : holder(Doc("{u: " + std::string(loose) + "}")) {}
  BsonValue value() const { return holder.view()["u"]; }
  BsonDocument holder;
};

inline const Instant kTestNow{1'893'456'000'000};  // 2030-01-01

/// What an update gives: the new document as JSON, "=" when nothing changes, or "error CODE
/// message".
struct UpdateRow {
  const char* old;
  const char* update;
  const char*
      expected;  ///< "error 14" matches any message; with text after the code that text must occur
  const char* filter = "";   ///< for `$`
  const char* filters = "";  ///< arrayFilters, a JSON array
};

inline std::string ErrorText(const Error& e) {
  return "error " + std::to_string(static_cast<int>(e.code)) + " " + e.message;
}

inline Result<std::unique_ptr<Update>> ParseUpdate(std::string_view update,
                                                   std::string_view filters, VariableScope& scope,
                                                   UpdateOptions options = {}) {
  UpdateArgument u(update);
  BsonDocument holder = Doc("{f: " + std::string(filters.empty() ? "[]" : filters) + "}");
  std::vector<BsonView> views;
  for (const BsonElement& e : holder.view()["f"].Document()) views.push_back(e.value.Document());
  return Update::Parse(u.value(), views, scope, options);
}

inline EvalContext TestContext(const VariableScope& scope) {
  EvalContext ctx;
  ctx.now = kTestNow;
  ctx.variables.resize(static_cast<size_t>(scope.slots()));
  ctx.variables[VariableScope::kNow] = Value::Date(kTestNow);
  return ctx;
}

inline std::string RunUpdate(const UpdateRow& row) {
  VariableScope scope;
  auto update = ParseUpdate(row.update, row.filters, scope);
  if (!update) return ErrorText(update.error());
  BsonDocument old = Doc(row.old);
  EvalContext ctx = TestContext(scope);
  int position = -1;
  if (*row.filter) {
    auto match = ParseMatch(Doc(row.filter), {.scope = &scope});
    if (!match) return ErrorText(match.error());
    auto matched = match.value()->MatchesWithPosition(old, &ctx, &position);
    if (!matched || !matched.value()) return "no match";
  }
  auto outcome = update.value()->Apply(old, position, false, ctx);
  if (!outcome) return ErrorText(outcome.error());
  return outcome.value().modified ? ToCanonicalJson(BsonView(outcome.value().bytes.data())) : "=";
}

inline void CheckRow(const UpdateRow& row) {
  CAPTURE(row.old, row.update, row.filter, row.filters);
  std::string got = RunUpdate(row);
  std::string_view expected = row.expected;
  if (expected.starts_with("error ")) {
    size_t code_end = std::min(expected.find(' ', 6), expected.size());
    std::string code(expected.substr(0, code_end));
    CHECK_THAT(got, Catch::StartsWith(code + " "));
    if (code_end < expected.size())
      CHECK_THAT(got, Catch::Contains(std::string(expected.substr(code_end + 1))));
  } else if (expected == "=") {
    CHECK(got == "=");
  } else {
    CHECK(got == ToCanonicalJson(Doc(expected)));
  }
}

}  // namespace mayfly
