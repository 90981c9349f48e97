#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "query/match/match_internal.h"

namespace mayfly::match {

/// One parse of one filter.
struct Parser {
  const MatchParseOptions& options;
  bool in_elem_match = false;

  Result<MatchPtr> Top(BsonView filter, int depth);
  /// Null: nothing to match ($comment).
  Result<MatchPtr> TopOperator(const BsonElement& e, int depth);
  Result<void> Field(std::string_view path, BsonValue v, int depth, std::vector<MatchPtr>* out);
  Result<void> Operators(std::string_view path, BsonView ops, int depth,
                         std::vector<MatchPtr>* out);
  /// Null: nothing to match.
  Result<MatchPtr> Operator(std::string_view path, const BsonElement& e, BsonView ops, int depth);

  Result<MatchPtr> Comparison(MatchKind kind, std::string_view path, BsonValue v);
  Result<MatchPtr> In(std::string_view path, const BsonElement& e);
  Result<MatchPtr> NotOperator(std::string_view path, BsonValue v, int depth);
  Result<MatchPtr> RegexOperator(std::string_view path, const BsonElement& e, BsonView ops);
  Result<MatchPtr> All(std::string_view path, BsonValue v, int depth);
  Result<MatchPtr> ElemMatch(std::string_view path, BsonValue v, int depth);
};

MatchPtr Node(MatchKind kind, std::string_view path);
MatchPtr Not(MatchPtr child);
/// Flattens; one child stands for itself and none is kAlwaysTrue.
MatchPtr And(std::vector<MatchPtr> children);
Result<MatchPtr> RegexNode(std::string_view path, std::string_view pattern,
                           std::string_view options);

Result<MatchPtr> ParseTypeMatch(std::string_view path, const BsonElement& e);
Result<MatchPtr> ParseSizeMatch(std::string_view path, const BsonElement& e);
Result<MatchPtr> ParseModMatch(std::string_view path, BsonValue v);
Result<MatchPtr> ParseBitsMatch(MatchKind kind, std::string_view path, const BsonElement& e);
Result<MatchPtr> ParseExprMatch(BsonValue v, const MatchParseOptions& options);

}  // namespace mayfly::match
