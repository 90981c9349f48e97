#pragma once
#include "query/plan/executor.h"
#include "server/dispatch/command.h"

namespace mayfly {

struct AggregateSpec;  // server/execution/aggregate.h

/// The arguments of find; explain reads them too. Views live as long as the request.
struct FindArgs {
  std::string_view collection;
  BsonView filter, projection, sort, let, min, max;
  BsonValue hint;
  int64_t skip = 0, limit = 0;
  std::optional<int64_t> batch_size;
  bool single_batch = false, tailable = false, await_data = false, no_cursor_timeout = false;
  bool return_key = false, show_record_id = false, allow_disk_use = true, include_expired = false;

  /// What the planner takes; an empty hint is none. The views stay those of the request, and `ns`
  /// must live as long.
  QuerySpec ToSpec(CollectionInfoPtr coll, std::string_view ns) const;
  /// The same as a pipeline, for a view. Errors: OptionNotSupportedOnView 167.
  Result<BsonDocument> ToPipeline() const;
  /// The aggregation that it is then, with all else that it says. `pipeline`: that of ToPipeline,
  /// which must live as long as the answer, and so must the request.
  AggregateSpec OnView(std::string_view db, BsonView pipeline) const;
};
/// Errors: those of ArgReader; InvalidOptions 72, FailedToParse 9, Location51024.
Result<FindArgs> ParseFind(const CommandRequest& req);

/// count's arguments. Views live as long as the request.
struct CountArgs {
  std::string_view collection;
  BsonView query;
  BsonValue hint;
  int64_t skip = 0, limit = 0;

  /// The same as a pipeline, for a view: its one document has the number as `n`; none is zero.
  BsonDocument ToPipeline() const;
};
/// Errors: those of ArgReader; FailedToParse 9 (hint), Location51024.
Result<CountArgs> ParseCount(const CommandRequest& req);
/// distinct's arguments. Views live as long as the request.
struct DistinctArgs {
  std::string_view collection, key;
  BsonView query;
  BsonValue hint;

  /// The same as a pipeline, for a view: its one document, if any, has the values as `values`.
  /// `meta_field`: that of a time series; empty: it has none, or it is a view.
  BsonDocument ToPipeline(std::string_view meta_field) const;
};
/// Errors: those of ArgReader and of the hint; Location31032 for a NUL in `key`.
Result<DistinctArgs> ParseDistinct(const CommandRequest& req);

}  // namespace mayfly
