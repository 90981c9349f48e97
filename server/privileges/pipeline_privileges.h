#pragma once
#include <string_view>

#include "protocol/bson_view.h"
#include "security/privilege_set.h"

namespace mayfly::privileges {

/// How a pipeline is run.
struct PipelineUse {
  bool logged_in = true;           ///< what is everybody's own (`$currentOp`) needs no more
  bool include_expired = false;    ///< all it reads, with what has expired
  bool bypass_validation = false;  ///< of $out and $merge
};

/// Whether a pipeline (array bytes) on `db.collection` is allowed: its source, and what its stages
/// read and write, also those of pipelines within pipelines. A view counts as itself: what it
/// stands on is not asked for. An empty collection: `aggregate: 1`. Stages that the parser refuses
/// may be passed over. In time that the pipeline's bytes bound; allocates nothing.
bool AllowsPipeline(const PrivilegeSet& privileges, std::string_view db,
                    std::string_view collection, BsonView pipeline, const PipelineUse& use);

/// Whether whoever has `privileges` may make the view `db.name` of `on` through the pipeline: who
/// may read the view must be allowed to read what it shows (manual: "create", "Access Control").
bool AllowsViewOf(const PrivilegeSet& privileges, std::string_view db, std::string_view name,
                  std::string_view on, BsonView pipeline);

}  // namespace mayfly::privileges
