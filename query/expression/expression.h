#pragma once
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/instant.h"
#include "protocol/large_memory.h"
#include "protocol/seeded_hash.h"
#include "protocol/value.h"

namespace mayfly {

class Operation;

/// The source of `{$meta: …}` and per-document facts; the supplier of documents fills it.
struct DocumentMetadata {
  std::optional<Instant> expire_at;
  std::optional<double> text_score;
  Value sort_key, record_id;
  Value index_key;  ///< a document: what the index that found it has of it
};

/// Numbers a variable of `let`, `$let`, `$map` … gets when its expression is parsed; the value sits
/// in the slot with that number while it is evaluated.
using VariableId = int32_t;

/// Names in scope while parsing. Nested scopes shadow. Made once a command; user variables come
/// from its `let`; ROOT, CURRENT, REMOVE, NOW, CLUSTER_TIME and USER_ROLES are always there.
class VariableScope {
 public:
  VariableId Define(std::string_view name);  ///< a new slot that shadows an older one of that name
  void Undefine(VariableId id);              ///< the end of the scope of `id`
  /// The innermost definition of that name that is in scope; none if there is none.
  std::optional<VariableId> Lookup(std::string_view name) const;
  int slots() const { return slots_; }

  /// A constant expression in this scope fails: `{$divide: [1, 0]}`. MongoDB computes such
  /// expressions before it looks at a document, whatever surrounds them. The first one counts.
  void NoteConstantError(Error error) {
    if (!constant_error_) constant_error_ = std::move(error);
  }
  /// The noted error, which is then forgotten. Call it when everything is parsed: parse errors come
  /// first.
  Result<void> CheckConstants() {
    if (!constant_error_) [[likely]]
      return Ok();
    Error e = std::move(*constant_error_);
    constant_error_.reset();
    return e;
  }

  /// Where values of its variables are charged that are large only together (EvaluateLet): they
  /// live as long as it does.
  large_memory::Hold& values_hold() { return values_hold_; }

  static constexpr VariableId kRoot = 0, kCurrent = 1, kRemove = 2, kNow = 3, kClusterTime = 4,
                              kUserRoles = 5;

 private:
  static constexpr size_t kListed = 32;
  std::vector<std::pair<std::string, VariableId>> names_;  ///< those defined
  /// The same by name, the innermost last, where there are more than kListed; else empty.
  ClientStringMap<std::vector<VariableId>> by_name_;
  int slots_ = kUserRoles + 1;
  std::optional<Error> constant_error_;
  large_memory::Hold values_hold_;
};

/// State of one evaluation: the document and the variables' values. One thread.
struct EvalContext {
  BsonView root;  ///< $$ROOT and field paths
  const DocumentMetadata* metadata = nullptr;
  std::vector<Value> variables;  ///< by VariableId; sized VariableScope::slots()
  Instant now;                   ///< $$NOW: the operation's clock reading
  uint64_t cluster_time = 0;     ///< $$CLUSTER_TIME: Operation::cluster_time; 0: there is none
  Operation* op = nullptr;       ///< for interrupt checks in long evaluations; may be null
  /// While parsing, to see whether the value can replace the expression: short expressions with
  /// large values refuse.
  bool folding = false;
};

/// A parsed aggregation expression. Immutable after parsing; evaluation of one tree by several
/// threads is fine with an EvalContext each.
class Expression {
 public:
  virtual ~Expression() = default;
  /// The value, borrowed from the document where it can be; missing when there is none.
  virtual Result<Value> Evaluate(EvalContext& ctx) const = 0;
  /// As BSON, the way explain and view definitions show it.
  virtual void Serialize(class BsonBuilder& out, std::string_view name) const = 0;
  /// Adds the field paths it reads ("" = the whole document), for projection analysis.
  virtual void AddDependencies(std::set<std::string>* paths) const = 0;
  /// The value when it depends on nothing; null otherwise.
  virtual const Value* Constant() const { return nullptr; }
};
using ExpressionPtr = std::unique_ptr<Expression>;

/// Parses any expression: "$path", "$$var.path", literals, {$op: …}, documents and arrays of
/// expressions. Errors: InvalidPipelineOperator 168 "Unrecognized expression '$x'", arity and type
/// errors with MongoDB's own codes, FailedToParse 9.
Result<ExpressionPtr> ParseExpression(BsonValue value, VariableScope& scope);

}  // namespace mayfly
