#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "query/plan/index_bounds.h"
#include "query/plan/plan_stage.h"

namespace mayfly {

/// Appends the fields of a decoded key as a document has them: {"a.b": 1, c: 1, "a.d": 1} becomes
/// {a: {b: …, d: …}, c: …}. `values`: one for each of `fields`, or for the first of them.
void AppendKeyFields(const std::vector<IndexField>& fields, const std::vector<Value>& values,
                     BsonBuilder& out);

/// Clauses of a filter that the keys of an index decide, so that documents which do not match are
/// never read. A key says less than its document: null stands for a missing field too, and elements
/// stand for their array. So fields with arrays count only for a condition that some element has to
/// satisfy, and the answer may be that the document must be read. Refers to the clauses; immutable
/// but for its scratch space, one thread.
class KeyFilter {
 public:
  enum class Verdict : uint8_t { kNo, kYes, kUnknown };

  /// Takes those out of `*clauses` that read nothing but fields of `index` without arrays.
  /// `multikey`: the fields that have met arrays, as ReadView::Multikey says.
  /// `elements`: the bounds of the scan, if it may find a record at any of its keys (no order is
  /// expected of it). Then one clause may also be on elements of arrays.
  static KeyFilter Take(const IndexInfo& index, uint64_t multikey,
                        std::vector<const MatchExpression*>* clauses,
                        const IndexBounds* elements = nullptr);

  bool empty() const { return nodes_.empty(); }
  /// What a copy takes, about; in bytes.
  size_t bytes() const { return made_ * sizeof(Node); }
  /// All of them, for explain, and for the document if it must be read.
  const ResidualFilter& clauses() const { return clauses_; }
  /// Whether the clauses match the document of a key. An error of a clause is kUnknown: the
  /// document may be hidden.
  Verdict Test(const IndexInfo& index, std::string_view key_values, std::string_view type_bits,
               EvalContext& eval);

 private:
  /// A part of a clause. `field`: of the index, for a predicate on one value. `reads`: likewise of
  /// an expression.
  struct Node {
    const MatchExpression* expression;
    size_t field = 0;
    std::vector<Node> children;
    std::vector<size_t> reads;
    std::vector<IndexField> read_fields;  ///< those of `reads`
  };
  static bool Compile(const IndexInfo& index, uint64_t multikey, const MatchExpression& e,
                      Node* out);
  static bool CompileOnElements(const IndexInfo& index, uint64_t multikey,
                                const IndexBounds& bounds, const MatchExpression& e, Node* out);
  static size_t NodesIn(const Node& node);
  /// How many fields of a key, from the first on, have to be decoded for it.
  static size_t FieldsRead(const Node& node);
  Verdict Test(const Node& node, EvalContext& eval);
  Verdict TestLeaf(const MatchExpression& e, BsonValue v, EvalContext& eval);
  Verdict TestExpression(const Node& node, EvalContext& eval);

  ResidualFilter clauses_;
  std::vector<Node> nodes_;
  size_t made_ = 0;     ///< nodes, with those within others
  size_t decoded_ = 0;  ///< how many fields of a key are read: up to the last that a clause needs
  std::vector<Value> values_, read_;
  std::string document_;
};

}  // namespace mayfly
