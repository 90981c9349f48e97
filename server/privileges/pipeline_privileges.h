#pragma once
#include <string_view>

#include "protocol/bson_view.h"
#include "security/names.h"
#include "security/privilege_set.h"

namespace mayfly::privileges {

/// How a pipeline is run.
struct PipelineUse {
  bool logged_in = true;           ///< what is everybody's own (`$currentOp`) needs no more
  const UserName* user = nullptr;  ///< whose own sessions need no more; null: nobody's
  bool include_expired = false;    ///< all it reads, with what has expired
  bool bypass_validation = false;  ///< of $out and $merge
};

/// Whether a pipeline (array bytes) on `db.collection` is allowed: its source, and what its stages
/// read and write, also those of pipelines within pipelines. A view counts as itself: the
/// collection below is not checked. An empty collection: `aggregate: 1`. Stages that the parser
/// refuses may be passed over. In time that the pipeline's bytes bound.
bool AllowsPipeline(const PrivilegeSet& privileges, std::string_view db,
                    std::string_view collection, BsonView pipeline, const PipelineUse& use);

/// Whether a user with `privileges` may create the view `db.name` of `on`: a creator who may read
/// the view must also have the right to read its data (manual: "create", "Access Control").
bool AllowsViewOf(const PrivilegeSet& privileges, std::string_view db, std::string_view name,
                  std::string_view on, BsonView pipeline);

}  // namespace mayfly::privileges
