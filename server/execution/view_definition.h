#pragma once
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog.h"

namespace mayfly {

/// The longest chain of views below a view.
inline constexpr int kMaxViewDepth = 20;

/// Whether `db.name` may be a view of `on` through `stages` (array bytes): the pipeline can be run
/// and does not write, and nothing that it reads is, by way of other views, `db.name` again.
/// Errors: those of pipelines, OptionNotSupportedOnView 167, GraphContainsCycle 5,
/// ViewDepthLimitExceeded 165.
Result<void> CheckViewDefinition(Catalog& catalog, std::string_view db, std::string_view name,
                                 std::string_view on, BsonView stages);

}  // namespace mayfly
