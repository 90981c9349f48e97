#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "query/projection/projection.h"

namespace mayfly {

/// What a projection does with one field.
enum class ProjectionAction : uint8_t {
  kInclude,
  kExclude,
  kCompute,    ///< the value of an expression
  kSlice,      ///< find's $slice: part of an array; anything else as it is
  kElemMatch,  ///< find's $elemMatch: an array of the first member that matches
  kDescend,    ///< a sub-projection
};

struct ProjectionNode;

/// One field of a projection. Which members count depends on `action`.
struct ProjectionField {
  std::string name;
  ProjectionAction action = ProjectionAction::kInclude;
  ExpressionPtr expr;                     ///< kCompute
  std::unique_ptr<ProjectionNode> below;  ///< kDescend
  MatchPtr elem_match;                    ///< kElemMatch: a filter on `name`
  bool has_skip = false;                  ///< kSlice
  int32_t skip = 0, limit = 0;            ///< kSlice
};

/// The fields of one level of the projection's tree, in the order of the specification.
struct ProjectionNode {
  std::vector<ProjectionField> fields;
  std::vector<int> by_name;   ///< indexes into `fields`, sorted by name; built when there are many
  bool has_computed = false;  ///< an expression or $elemMatch here or below
  int in_document =
      0;  ///< fields that take something from the document (inclusions may stop after these)

  /// -1 when there is none.
  int Find(std::string_view name) const;
  ProjectionField* FindField(std::string_view name);
  /// To be called once, when all fields are there.
  void Finish();
};

}  // namespace mayfly
