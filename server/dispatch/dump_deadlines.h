#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"

namespace mayfly {

struct CommandContext;

/// The cluster parameter `dumpDeadlines`: clients that see and give documents' own deadlines as a
/// field of the document. mongodump, mongorestore, mongoexport and mongoimport have no option for
/// such things, and each gives its name as the application's, which nothing can change: so a
/// deadline goes with its document through unchanged tools, and no other client sees the field.
/// Threads: immutable.
struct DumpDeadlines {
  std::string field;  ///< a top-level field; empty: nobody does
  std::vector<std::string> applications;

  /// Parses the value that `{setClusterParameter: {dumpDeadlines: …}}` gives, or the stored one.
  /// Errors: those of ArgReader; BadValue 2.
  static Result<DumpDeadlines> Parse(BsonView given);
  BsonDocument Describe() const;
};

/// The field in which the client of a command sees and gives deadlines; empty: none, as for nearly
/// all. One relaxed load while the parameter is not set.
std::string DeadlineFieldOf(const CommandContext& ctx);

/// For `command`, which takes no deadlines in a field: a deadline must not be stored as an ordinary
/// date. Errors: InvalidOptions 72 for such a client.
Result<void> RefuseDeadlineField(const CommandContext& ctx, std::string_view command);

/// For a filter or a sort of such a client: the field is none of the stored documents', so asking
/// for it would find nothing, or order nothing, and not say so. Errors: InvalidOptions 72.
Result<void> RefuseDeadlineFilter(BsonView filter, std::string_view field);

}  // namespace mayfly
