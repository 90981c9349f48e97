#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "query/match/match_internal.h"

namespace mayfly::match {

/// The operators of one field.
struct FieldOperators {
  BsonView all;
  /// The $options, looked for once for all $regex of the field; missing where there are none.
  std::optional<BsonValue> options;
};

/// One parse of one filter.
struct Parser {
  const MatchParseOptions& options;
  bool in_elem_match = false;

  /// A whole filter: its fields and top-level operators, all of which have to hold. `depth`: how
  /// deep the filter is in others; above 100 is BadValue 2.
  Result<MatchPtr> Top(BsonView filter, int depth);
  /// Null: nothing to match ($comment).
  Result<MatchPtr> TopOperator(const BsonElement& e, int depth);
  Result<void> Field(std::string_view path, BsonValue v, int depth, std::vector<MatchPtr>* out);
  Result<void> Operators(std::string_view path, BsonView ops, int depth,
                         std::vector<MatchPtr>* out);
  /// Null: nothing to match.
  Result<MatchPtr> Operator(std::string_view path, const BsonElement& e, FieldOperators& ops,
                            int depth);

  /// One operator each, of the field at `path`; operands are copied. Errors: BadValue 2, 51074 and
  /// 51075 (options given twice), those of regular expressions. RegexOperator reads $regex and the
  /// $options beside it (`ops`) at once, so for $options it returns null.
  Result<MatchPtr> Comparison(MatchKind kind, std::string_view path, BsonValue v);
  Result<MatchPtr> In(std::string_view path, const BsonElement& e);
  Result<MatchPtr> NotOperator(std::string_view path, BsonValue v, int depth);
  Result<MatchPtr> RegexOperator(std::string_view path, const BsonElement& e, FieldOperators& ops);
  Result<MatchPtr> All(std::string_view path, BsonValue v, int depth);
  Result<MatchPtr> ElemMatch(std::string_view path, BsonValue v, int depth);
};

/// Node() counts its memory as the parse's (ParseWork). Not() of a constant is the other constant.
MatchPtr Node(MatchKind kind, std::string_view path);
MatchPtr Not(MatchPtr child);
/// Flattens; one child stands for itself and none is kAlwaysTrue.
MatchPtr And(std::vector<MatchPtr> children);
/// Compiles the pattern, whose cost counts as work of the parse. Errors: those of the pattern.
Result<MatchPtr> RegexNode(std::string_view path, std::string_view pattern,
                           std::string_view options);

/// The operands of $type, $size, $mod, of the $bits… operators (`kind` says which) and of $expr.
/// Errors: BadValue 2, and for $type and $expr those of the names and expressions in them.
Result<MatchPtr> ParseTypeMatch(std::string_view path, const BsonElement& e);
Result<MatchPtr> ParseSizeMatch(std::string_view path, const BsonElement& e);
Result<MatchPtr> ParseModMatch(std::string_view path, BsonValue v);
Result<MatchPtr> ParseBitsMatch(MatchKind kind, std::string_view path, const BsonElement& e);
Result<MatchPtr> ParseExprMatch(BsonValue v, const MatchParseOptions& options);

}  // namespace mayfly::match
