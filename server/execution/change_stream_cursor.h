#pragma once
#include <memory>

#include "server/execution/aggregate.h"

namespace mayfly {

/// Whether the pipeline is a change stream that this server can open: it begins with
/// `$changeStream`, and the server is a replica set's member. (Elsewhere the pipeline's parser
/// refuses it: 40573.)
bool IsChangeStream(DataServices& server, BsonView pipeline);

/// The cursor of a pipeline that begins with `$changeStream`: tailable, awaits data, ends behind
/// `invalidate` (manual: $changeStream). Blocking. Errors: those of the stage's options (40415, 14,
/// 2, 9, 40674, 260, 72, 73), of stages that may not follow (20) and their own, 286.
Result<std::unique_ptr<ServerCursor>> OpenChangeStream(DataServices& server, Operation& op,
                                                       const AggregateSpec& spec);

/// explain: the stages. Errors: as OpenChangeStream.
Result<void> ExplainChangeStream(DataServices& server, Operation& op, const AggregateSpec& spec,
                                 BsonBuilder& reply);

/// Adds `ResumableChangeStreamError` to the error of a change stream's getMore when the client may
/// resume after it (driver specification "Change Streams").
void LabelStreamError(Error* error);

}  // namespace mayfly
