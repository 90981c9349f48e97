#pragma once
#include <vector>

#include "query/update/expire.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// The arguments of findAndModify; explain reads them too. Views live as long as the request.
struct FindAndModifyArgs {
  std::string_view collection;
  BsonView filter, sort, fields, let;
  BsonValue update, hint;
  std::vector<BsonView> array_filters;
  std::optional<int64_t> statement_id;
  ExpirySetting expiry;
  bool remove = false, return_new = false, upsert = false, bypass_validation = false;
  bool keep_empty_timestamps = false;  ///< bypassEmptyTsReplacement
};
/// Errors: those of ArgReader; FailedToParse 9 for combinations that make no sense.
Result<FindAndModifyArgs> ParseFindAndModify(const CommandRequest& req, Instant now);

}  // namespace mayfly
