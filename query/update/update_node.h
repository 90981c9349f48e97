#pragma once
#include <forward_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "query/expression/expression.h"
#include "query/match/match_expression.h"

// The inside of an operator update: paths, the tree they form, and the operators at its leaves.

namespace mayfly::update {

/// One step from the root to the field at hand; frames live on the stack of the descent. For
/// messages.
struct PathFrame {
  const PathFrame* parent = nullptr;
  std::string_view name;
  /// The path from the root to this frame, as messages show it: "a.0.b".
  std::string Dotted() const;
};

/// The constants of one Apply.
struct ApplyContext {
  BsonView root;  ///< the old document
  bool is_insert = false;
  Instant now;
  EvalContext* eval = nullptr;
  const BsonValue* rename_sources = nullptr;  ///< by rename number
};

/// The new document is larger than a document may be. Errors: 17419, or 17420 of an upsert.
Error TooLarge(bool upsert);

/// The result of a leaf. kReplaced: it wrote one element, name included, to the output. kUnchanged:
/// it wrote nothing and the old element (or its absence) stays.
enum class Effect : uint8_t { kUnchanged, kReplaced, kRemoved };

/// Where a leaf acts.
struct Target {
  BsonValue old;          ///< missing: the field does not exist
  std::string_view name;  ///< of the element to write
  const PathFrame& path;  ///< its last frame is `name`
  std::string& out;
};

/// Type and name of an element: the bytes of its value must follow.
inline void EmitHeader(std::string& out, BsonType type, std::string_view name) {
  out.push_back(static_cast<char>(type));
  AppendCString(out, name);
}
/// Appends an element to an open document. REQUIRES: `v` is not missing.
inline void Emit(std::string& out, std::string_view name, BsonValue v) {
  EmitHeader(out, v.type(), name);
  out.append(v.data(), v.size());
}

/// One operator at the end of one path.
class Leaf {
 public:
  virtual ~Leaf() = default;
  /// Errors: the operator's own. Emits through `t.out` when it returns kReplaced.
  virtual Result<Effect> Apply(const Target& t, const ApplyContext& ctx) const = 0;

  /// When an element on the way is neither document nor array (or the array has no such place).
  enum class OnBlocked : uint8_t { kCannotCreate, kCannotTraverse, kNothing };
  virtual OnBlocked on_blocked(const ApplyContext&) const { return on_blocked_; }
  /// How deep what it writes may nest (NestingDepth).
  virtual int depth(const ApplyContext&) const { return depth_; }

 protected:
  OnBlocked on_blocked_ = OnBlocked::kCannotCreate;
  int depth_ = 0;
};
using LeafPtr = std::unique_ptr<Leaf>;

/// One part of an operator's dotted path: a name, `$`, or `$[name]`.
struct PathPart {
  enum class Kind : uint8_t { kField, kPositional, kFiltered };
  Kind kind = Kind::kField;
  std::string_view name;  ///< field name, or the identifier of `$[name]` ("" for `$[]`)
};

/// Splits and checks the path of an operator. The parts view `path`.
/// Errors: EmptyFieldName 56, BadValue 2 (positional part first or twice), Overflow 15,
/// DollarPrefixedFieldName 52 ($expire). ApplyTree checks other names that begin with a dollar,
/// because they depend on the operation.
Result<std::vector<PathPart>> ParsePath(std::string_view path);

/// DollarPrefixedFieldName 52: an update would write the document's field `name` by way of `path`.
Error DollarPrefixed(std::string_view name, std::string_view path);

/// The position a path part names in an array: digits without a leading zero. -1 when it names
/// none.
int64_t ArrayIndex(std::string_view name);

/// The order in which missing fields are created: numbers by value, then names by bytes.
bool CreatedBefore(std::string_view a, std::string_view b);

/// A node of the tree of paths. Nodes are owned by a NodePool and never change after parsing.
struct Node {
  enum class Kind : uint8_t { kNew, kLeaf, kObject, kFiltered };
  /// A node below this one, by the name or array filter that leads to it. Does not own it.
  struct Child {
    std::string name;
    const Node* node;
  };
  Kind kind = Kind::kNew;
  const Leaf* leaf = nullptr;
  std::vector<Child> children;       ///< kObject: in CreatedBefore order; kFiltered: by identifier
  const Node* positional = nullptr;  ///< kObject: the child for `$`

  /// Where the child is in `children`, or -1.
  int Find(std::string_view name) const {
    if (children.size() <= 8) {
      for (size_t i = 0; i < children.size(); ++i)
        if (children[i].name == name) return static_cast<int>(i);
      return -1;
    }
    return FindSorted(name);
  }

 private:
  int FindSorted(std::string_view name) const;
};

/// Owns nodes; addresses are stable.
class NodePool {
 public:
  Node* New() { return &nodes_.emplace_front(); }

 private:
  std::forward_list<Node> nodes_;  // nothing allocated until the first node
};

/// Adds `leaf` at `parts` below `root`. Errors: ConflictingUpdateOperators 40.
Result<void> AddPath(NodePool& pool, Node* root, std::string_view path,
                     const std::vector<PathPart>& parts, const Leaf* leaf);

/// A node that combines both. Errors: ConflictingUpdateOperators 40 when they meet at a leaf.
Result<const Node*> MergeNodes(NodePool& pool, const Node& a, const Node& b, const PathFrame& path);

/// `node` with its child for `$` as the child named `position` (merged with one that is there).
Result<const Node*> ResolvePositional(NodePool& pool, const Node& node, std::string_view position,
                                      const PathFrame& path);

/// A predicate on one value: an array filter, a condition of $pull. The filter was parsed with
/// every path below `name`.
struct ElementFilter {
  std::string name;  ///< identifier of the array filter
  MatchPtr match;
  /// Tests {name: v}, built in `scratch`, whose contents are lost; it spares an allocation a value.
  /// Errors: those of $expr.
  Result<bool> Matches(BsonValue v, const ApplyContext& ctx, std::string& scratch) const;
};

/// Parses a statement's arrayFilters. Errors: FailedToParse 9, BadValue 2, the filters' own.
Result<std::vector<ElementFilter>> ParseArrayFilters(std::span<const BsonView> filters,
                                                     VariableScope& scope);

/// Inputs for parsing an operator besides its operand.
struct LeafParser {
  VariableScope& scope;
};

/// Applies the tree to `old` in one pass into `*out` (overwritten): true, or false if nothing
/// changes (`*out` is then unspecified). `position`: for `$`; -1 is none. The `_id` of `old` is
/// immutable. Errors: Update::Apply's.
Result<bool> ApplyTree(const Node& root, std::span<const ElementFilter> filters,
                       const ApplyContext& ctx, int position, std::string* out);

/// A row of the operator table: the operand of one path becomes a leaf. `operand` views bytes the
/// update owns.
struct OperatorRow {
  std::string_view name;
  Result<LeafPtr> (*parse)(const BsonElement& operand, LeafParser& parser);
};

/// Null when there is none of that name. $rename, which has two paths, is not a row.
const OperatorRow* FindOperator(std::string_view name);

// Rows' functions, by file.
Result<LeafPtr> ParseSet(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseSetOnInsert(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseUnset(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseInc(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseMul(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseMin(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseMax(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseCurrentDate(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseBit(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParseAddToSet(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParsePop(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParsePull(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParsePullAll(const BsonElement& operand, LeafParser& parser);
Result<LeafPtr> ParsePush(const BsonElement& operand, LeafParser& parser);

/// $set of a value that outlives the leaf.
LeafPtr MakeSet(BsonValue v);
/// The two ends of a $rename. `number` indexes ApplyContext::rename_sources.
LeafPtr MakeRenameSource(int number);
LeafPtr MakeRenameDestination(int number);

}  // namespace mayfly::update
