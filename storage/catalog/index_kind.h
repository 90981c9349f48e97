#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

class KeySet;
struct IndexField;
struct IndexInfo;

/// What kind an index is. DO NOT RENUMBER: positions in the tables of kinds, here and in
/// query/plan/index_plan_kind.h.
enum class IndexKindId : uint8_t {
  kOrdinary = 0,  ///< keys in the order of values, ascending or descending by field
  kHashed = 1,
  kText = 2,
  k2d = 3,
  k2dSphere = 4,
  kGeoHaystack = 5,
  kWildcard = 6,
  kUnknown = 7,  ///< a row of another version says it
};

/// Storage's row for a kind of index. A kind without `extract` is known by its name only: it has no
/// entries and no plan uses it. To add one: a file with its functions, its row here, and its row in
/// the planner's table.
struct IndexKind {
  IndexKindId id;
  std::string_view name;  ///< value of a key field instead of 1 and -1; empty: ordinary
  /// Keys stand in the order of the values: good for sorts, min and max, deadlines, unique keys.
  bool in_value_order;
  /// Adds the entries of a document that the index is to have (ExtractKeys asks its filter before).
  /// On error `out` is in no order.
  Result<void> (*extract)(const IndexInfo& index, BsonView doc, KeySet* out);

  /// Whether indexes of this kind can be made and used.
  bool maintained() const { return extract != nullptr; }
};

/// The kind of `{field: 1}` and `{field: -1}`. All kinds live as long as the process.
const IndexKind& OrdinaryIndex();
/// By name; of the unknown kind where there is none.
const IndexKind& FindIndexKind(std::string_view name);
/// That of a whole key: of its first field that is not ordinary.
const IndexKind& KindOfKey(std::span<const IndexField> fields);

inline constexpr size_t kMaxIndexFields = 32;
/// {a: 1, "b.c": -1, d: "hashed"} as fields: the one place where keys of indexes are understood.
/// Errors: CannotCreateIndex 67 on a key that MongoDB refuses: empty, a value that is zero or of
/// another type, an empty or dollar-prefixed part of a name, a field twice, too many fields.
Result<std::vector<IndexField>> ParseIndexKey(BsonView key);

}  // namespace mayfly
