// $expr: an aggregation expression as a predicate.
#include "query/match/match_parser.h"

namespace mayfly::match {

Result<MatchPtr> ParseExprMatch(BsonValue v, const MatchParseOptions& options) {
  VariableScope own;
  auto extra = std::make_shared<MatchExpression::Extra>();
  MAYFLY_TRY(extra->expr, ParseExpression(v, options.scope != nullptr ? *options.scope : own));
  extra->slots = options.scope != nullptr ? 0 : own.slots();
  MatchPtr m = Node(MatchKind::kExpr, "");
  m->extra = std::move(extra);
  return m;
}

bool Run::Expr(const MatchExpression& e) {
  EvalContext local;
  EvalContext* c = ctx;
  if (c == nullptr) {
    local.variables.resize(static_cast<size_t>(e.extra->slots));
    c = &local;
  } else if (c->variables.size() < static_cast<size_t>(e.extra->slots)) {
    c->variables.resize(static_cast<size_t>(e.extra->slots));
  }
  BsonView before = c->root;
  c->root = root;
  Result<Value> r = e.extra->expr->Evaluate(*c);
  bool truth = r.has_value() && r.value().view().Truthy();
  c->root = before;
  if (!r.has_value() && !error) error = std::move(r).error();
  return truth;
}

}  // namespace mayfly::match
