#pragma once
#include <span>
#include <string>
#include <string_view>

#include "query/expression/expression.h"

namespace mayfly {

/// An expression that the planner can read: fields of the document and operators over them. Those
/// that are not of this kind say nothing about indexes.
class ReadableExpression : public Expression {
 public:
  /// True when every document gets the same value, from constants and variables of the whole
  /// operation.
  virtual bool Fixed() const = 0;
  /// The dotted path when this is a field of the document and nothing else; empty otherwise.
  virtual std::string DocumentPath() const { return {}; }
  /// "$eq" of {$eq: [a, b]}; empty when it is not an operator with a list of operands.
  virtual std::string_view Operator() const { return {}; }
  virtual std::span<const ExpressionPtr> Operands() const { return {}; }
};

/// The same object; null for an expression that does not show its parts.
inline const ReadableExpression* AsReadable(const Expression& e) {
  return dynamic_cast<const ReadableExpression*>(&e);
}
/// Whether every document gets the same value. False also if unknown.
inline bool IsFixed(const Expression& e) {
  if (e.Constant() != nullptr) return true;
  const ReadableExpression* r = AsReadable(e);
  return r != nullptr && r->Fixed();
}

}  // namespace mayfly
