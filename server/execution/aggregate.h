#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "query/pipeline/pipeline.h"
#include "query/plan/executor.h"
#include "server/dispatch/command.h"
#include "server/dispatch/cursor_manager.h"
#include "server/dispatch/expiry_services.h"
#include "storage/storage.h"

namespace mayfly {

/// A view taken apart: the collection it stands on in the end, and all pipelines on the way as one
/// array. Errors: ViewDepthLimitExceeded 165.
struct ResolvedView {
  std::string collection;
  BsonDocument pipeline;  ///< array bytes; empty for a collection
  /// PipelineOptions::view_ends of it; a time series has none, since it keeps nothing from anybody.
  std::vector<int> view_ends;
  bool is_view = false;
};
/// A collection, or a name that nobody has, is its own answer. Errors also: those of looking up
/// each collection on the way, ViewPipelineMaxSizeExceeded when all pipelines exceed 16 MB, those
/// of CheckTransactionView.
Result<ResolvedView> ResolveView(Catalog& catalog, const Operation& op, std::string_view db,
                                 std::string_view collection, const ExpiryPolicy& policy,
                                 bool include_expired);

/// The arguments of one aggregation. Owns nothing: the views are those of the request.
struct AggregateSpec {
  std::string_view db, collection;  ///< empty collection: `aggregate: 1`
  BsonView pipeline;                ///< array
  BsonView let;
  BsonValue hint;
  bool allow_disk_use = true, include_expired = false;
  bool bypass_validation = false;
  /// For stages that show what belongs to the client who asks ($currentOp, $listSessions); null:
  /// they show nothing.
  ServerContext* clients = nullptr;
};

/// A parsed pipeline on its source, ready to be pulled: views are resolved, the front of the
/// pipeline is planned. Blocking. The cursor keeps what it needs and does not refer to `spec`
/// afterwards. `plan_summary` may be null.
Result<std::unique_ptr<ServerCursor>> OpenPipeline(ExpiryServices& server, Operation& op,
                                                   const AggregateSpec& spec,
                                                   std::string* plan_summary,
                                                   bool* writes = nullptr);

/// Drops the temporary collections of all $out and convertToCapped that a dead process or a former
/// primary has left. REQUIRES: none of them runs.
std::vector<CollectionInfoPtr> LeftoversOfOut(Catalog& catalog);
void DropLeftoversOfOut(ExpiryServices& server, const std::vector<CollectionInfoPtr>& left);

/// explain of a pipeline, appended to `reply`.
Result<void> ExplainPipeline(ExpiryServices& server, Operation& op, const AggregateSpec& spec,
                             ExplainVerbosity verbosity, BsonBuilder& reply);

}  // namespace mayfly
