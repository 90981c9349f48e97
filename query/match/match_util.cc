// What updates ask of a filter: the fields an upsert starts with, and arrayFilters.
#include <set>

#include "query/match/match_parser.h"

namespace mayfly {

namespace {

struct EqualityCollector {
  std::vector<std::pair<std::string, BsonValue>>* out;
  std::set<std::string> paths = {};

  static Error Conflict(std::string text) {
    return {ErrorCode::kNotSingleValueField,
            "cannot infer query fields to set, " + std::move(text)};
  }

  Result<void> Add(const MatchExpression& e) {
    auto both = [&](const std::string& other) {
      return Conflict("both paths '" + other + "' and '" + e.path + "' are matched");
    };
    if (paths.contains(e.path)) return Conflict("path '" + e.path + "' is matched twice");
    for (size_t dot = e.path.find('.'); dot != std::string::npos; dot = e.path.find('.', dot + 1))
      if (paths.contains(e.path.substr(0, dot))) return both(e.path.substr(0, dot));
    auto below = paths.lower_bound(e.path + ".");
    if (below != paths.end() && below->starts_with(e.path + ".")) return both(*below);
    paths.insert(e.path);
    out->emplace_back(e.path, e.operand.view());
    return Ok();
  }

  Result<void> Walk(const MatchExpression& e) {
    if (e.kind == MatchKind::kEq) return Add(e);
    if (e.kind == MatchKind::kAnd || e.kind == MatchKind::kAll)
      for (const MatchPtr& c : e.children) {
        MAYFLY_TRY(Walk(*c));
      }
    return Ok();
  }
};

Error ArrayFilterError(ErrorCode code, std::string text) {
  return {code, "Error parsing array filter :: caused by :: " + std::move(text)};
}

/// Takes the identifier off every path; not below $elemMatch, whose paths begin anew.
Result<void> StripIdentifier(MatchExpression& e, std::string* identifier) {
  switch (e.kind) {
    case MatchKind::kAnd:
    case MatchKind::kOr:
    case MatchKind::kNor:
    case MatchKind::kNot:
    case MatchKind::kAll:
      for (MatchPtr& c : e.children) {
        MAYFLY_TRY(StripIdentifier(*c, identifier));
      }
      return Ok();
    case MatchKind::kAlwaysTrue:
    case MatchKind::kAlwaysFalse:
    case MatchKind::kExpr:
    case MatchKind::kJsonSchema:
    case MatchKind::kWhere:
      return Ok();
    default:
      break;
  }
  size_t dot = e.path.find('.');
  std::string name = e.path.substr(0, dot);
  if (!identifier->empty() && *identifier != name)
    return ArrayFilterError(
        ErrorCode::kFailedToParse,
        "Expected a single top-level field name, found '" + *identifier + "' and '" + name + "'");
  if (name.empty() || name[0] < 'a' || name[0] > 'z' ||
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") !=
          std::string::npos)
    return ArrayFilterError(
        ErrorCode::kBadValue,
        "The top-level field name must be an alphanumeric string beginning with a lowercase "
        "letter, found '" +
            name + "'");
  *identifier = name;
  e.path = dot == std::string::npos ? "" : e.path.substr(dot + 1);
  return Ok();
}

/// The first field name in a filter: `$in: []` and the like leave none in the tree.
std::string FirstFieldName(BsonView filter) {
  for (const BsonElement& e : filter) {
    if (!e.name.starts_with('$')) return std::string(e.name.substr(0, e.name.find('.')));
    if (e.name != "$and" && e.name != "$or" && e.name != "$nor") continue;
    for (const BsonElement& m : e.value.Document()) {
      std::string name = FirstFieldName(m.value.Document());
      if (!name.empty()) return name;
    }
  }
  return "";
}

}  // namespace

Result<void> CollectEqualities(const MatchExpression& filter,
                               std::vector<std::pair<std::string, BsonValue>>* out) {
  EqualityCollector collector{out};
  return collector.Walk(filter);
}

Result<ArrayFilter> ParseArrayFilter(BsonView filter) {
  MatchParseOptions options;
  options.allow_expr = false;
  Result<MatchPtr> parsed = ParseMatch(filter, options);
  if (!parsed.has_value()) return ArrayFilterError(parsed.error().code, parsed.error().message);
  ArrayFilter out;
  out.filter = std::move(parsed).value();
  MAYFLY_TRY(StripIdentifier(*out.filter, &out.identifier));
  if (out.identifier.empty()) out.identifier = FirstFieldName(filter);
  if (out.identifier.empty())
    return Error{ErrorCode::kFailedToParse,
                 "Cannot use an expression without a top-level field name in arrayFilters"};
  return out;
}

}  // namespace mayfly
