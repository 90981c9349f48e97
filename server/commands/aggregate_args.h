#pragma once
#include "server/dispatch/command.h"
#include "server/execution/aggregate.h"

namespace mayfly {

/// The arguments of aggregate; explain reads them too. Views live as long as the request.
struct AggregateArgs {
  AggregateSpec spec;
  std::optional<int64_t> batch_size;
  bool explain = false;
};
/// `explained`: inside the explain command, where no cursor is needed. Errors: those of ArgReader;
/// FailedToParse 9.
Result<AggregateArgs> ParseAggregate(const CommandRequest& req, bool explained);

/// Stages that API version 1 leaves out (manual: "Stable API"), also inside sub-pipelines. Errors:
/// APIStrictError 323.
Result<void> CheckStrictStages(BsonView pipeline);

}  // namespace mayfly
