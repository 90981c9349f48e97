#pragma once
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/large_memory.h"
#include "query/expression/expression.h"
#include "query/match/match_expression.h"

namespace mayfly {

/// How a projection treats fields that it does not name.
enum class ProjectionKind : uint8_t {
  kInclusion,  ///< named fields (and computed ones) only
  kExclusion,  ///< all but the named fields; with find's $slice and $meta also changed ones
  kAddFields,  ///< all fields, some replaced or added
};

/// The parts of the document that a projection reads.
struct ProjectionNeeds {
  bool whole_document = false;  ///< `paths` says nothing: everything may be read
  /// Dotted, "_id" included when it is returned; "" when an expression reads the whole document.
  std::set<std::string> paths;
  bool expire_at = false;   ///< reads DocumentMetadata::expire_at
  bool sort_key = false;    ///< reads DocumentMetadata::sort_key
  bool text_score = false;  ///< reads DocumentMetadata::text_score
  bool record_id = false;   ///< reads DocumentMetadata::record_id
  bool index_key = false;   ///< reads DocumentMetadata::index_key
};

struct ProjectionNode;  // query/projection/projection_node.h

/// A parsed find projection, `$project`, `$addFields`/`$set` or `$unset`. Immutable; threads: any,
/// each with an EvalContext of its own. Owns what it refers to, but for the filter of a positional
/// projection (see below); a large one counts as large memory for as long as it lives.
class ProjectionExecutor {
 public:
  ~ProjectionExecutor();
  ProjectionExecutor(const ProjectionExecutor&) = delete;
  ProjectionExecutor& operator=(const ProjectionExecutor&) = delete;

  /// Appends the fields of the projected `doc` to `out` (an open document). Sets `ctx.root` to
  /// `doc` when an expression is evaluated; `ctx.variables` must have the slots of the scope it was
  /// parsed with, and `ctx.metadata` be set where `needs()` says that metadata is read. On an
  /// error, `out` holds half a document: Abandon() it. Errors: those of the expressions; 51246 and
  /// 51247 (positional); 40218 (metadata that is not there).
  Result<void> Apply(BsonView doc, EvalContext& ctx, BsonBuilder& out) const;
  /// The same as a new document.
  Result<BsonDocument> Apply(BsonView doc, EvalContext& ctx) const;

  ProjectionKind kind() const { return kind_; }
  const ProjectionNeeds& needs() const { return needs_; }
  /// Only plain inclusions (`a: 1`, `"a.b": 1`, `_id: 0`): an index that has all of needs().paths
  /// can answer.
  bool coverable() const { return coverable_; }
  /// Returns every document as it is (an empty find projection).
  bool identity() const { return identity_; }
  /// May this projection change what is at `path` (or below or above it)? False: sorts and filters
  /// on `path` may be moved in front of it.
  bool Touches(std::string_view path) const;
  /// The field of the document whose value this top-level field gets ({z: "$a"}: "a" for "z");
  /// empty when it is another value, or part of one.
  std::string RenamedFrom(std::string_view field) const;
  /// As explain shows it, appended to `out` (an open document).
  void Serialize(BsonBuilder& out) const;

 private:
  friend class ProjectionParser;
  ProjectionExecutor();
  ProjectionKind kind_ = ProjectionKind::kExclusion;
  bool coverable_ = false, identity_ = false;
  ProjectionNeeds needs_;
  std::unique_ptr<ProjectionNode> root_;
  const MatchExpression* filter_ = nullptr;
  std::string positional_path_;
  large_memory::Hold held_;  ///< of what it was parsed into
};
using ProjectionPtr = std::unique_ptr<const ProjectionExecutor>;

/// A find projection: inclusion, exclusion, $slice, $elemMatch, positional `a.$`, $meta and
/// expressions. `filter`: the query's filter, needed by the positional operator; must outlive the
/// result; may be null. Errors: 31253, 31254 (mixing), 31249, 31250 (path collision), 31252, 31255,
/// 31256, 31276, 31394, 31395 (positional and $elemMatch), 28667 ($slice), 17308 ($meta), 31325
/// (unknown expression), 16410 and others of field paths.
Result<ProjectionPtr> ParseFindProjection(BsonView spec, const MatchExpression* filter,
                                          VariableScope& scope);

/// `$project`. Messages begin with "Invalid $project :: caused by :: ". Errors: as above, 51272
/// (empty).
Result<ProjectionPtr> ParseAggProject(BsonView spec, VariableScope& scope);

/// `$addFields` and `$set`; `stage` is the name for messages.
/// Errors: 40176, 40177 (path collision, empty), 40180 (an empty object below), those of the
/// expressions.
Result<ProjectionPtr> ParseAddFields(BsonView spec, VariableScope& scope,
                                     std::string_view stage = "$addFields");

/// `$unset`: a string or a non-empty array of strings. Errors: 31002, 31119, 31120, path
/// collisions.
Result<ProjectionPtr> ParseUnset(BsonValue spec, VariableScope& scope);

}  // namespace mayfly
