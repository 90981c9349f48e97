#include "server/dispatch/dump_deadlines.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/dispatch/operation_registry.h"

namespace mayfly {
namespace {

/// As the handshake allows for `application.name`.
constexpr size_t kMostNameBytes = 128;
constexpr size_t kMostApplications = 32, kMostFieldBytes = 256;

Error BadField(std::string_view name) {
  return {ErrorCode::kBadValue,
          "dumpDeadlines.field must be the name of a top-level field other than _id, or empty, but "
          "it is '" +
              std::string(name) + "'"};
}

}  // namespace

Result<DumpDeadlines> DumpDeadlines::Parse(BsonView given) {
  ArgReader in("dumpDeadlines", given);
  DumpDeadlines d;
  d.field = in.String("field");
  const auto applications = in.OptArray("applications");
  MAYFLY_TRY(in.Finish());
  if (d.field == "_id" || d.field.starts_with('$') || d.field.size() > kMostFieldBytes ||
      d.field.find('.') != std::string::npos || d.field.find('\0') != std::string::npos)
    return BadField(d.field);
  if (!applications) {
    d.applications = {"mongodump", "mongorestore", "mongoexport", "mongoimport"};
    return d;
  }
  for (const BsonElement& e : *applications) {
    if (!e.value.IsString() || e.value.String().empty() ||
        e.value.String().size() > kMostNameBytes || d.applications.size() == kMostApplications)
      return Error{ErrorCode::kBadValue,
                   "dumpDeadlines.applications must be at most 32 names of applications, of 1 to "
                   "128 bytes"};
    d.applications.emplace_back(e.value.String());
  }
  return d;
}

BsonDocument DumpDeadlines::Describe() const {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("field", field);
    BsonArrayBuilder list = b.OpenArray("applications");
    for (const std::string& name : applications) list.Append(name);
  });
}

std::string DeadlineFieldOf(const CommandContext& ctx) {
  const ClusterParameters& parameters = ctx.data.cluster_parameters();
  if (!parameters.has_dump_deadlines() || ctx.client == nullptr) [[likely]]
    return {};
  const std::shared_ptr<const DumpDeadlines> d = parameters.dump_deadlines();
  const std::string name = ctx.client->app_name();
  if (d == nullptr || std::ranges::find(d->applications, name) == d->applications.end()) return {};
  return d->field;
}

Result<void> RefuseDeadlineFilter(BsonView filter, std::string_view field) {
  // As deep as BSON may be: it was checked when it came.
  for (const BsonElement& e : filter) {
    if (e.name == field || (e.name.starts_with(field) && e.name[field.size()] == '.'))
      return Error{ErrorCode::kInvalidOptions,
                   "the field '" + std::string(field) +
                       "' shows deadlines (dumpDeadlines), and documents cannot be chosen or "
                       "ordered by it: use {$expr: {$lt: [{$meta: 'expireAt'}, <date>]}}"};
    if ((e.name != "$and" && e.name != "$or" && e.name != "$nor") || !e.value.IsArray()) continue;
    for (const BsonElement& one : e.value.Document())
      if (one.value.IsDocument()) {
        MAYFLY_TRY(RefuseDeadlineFilter(one.value.Document(), field));
      }
  }
  return Ok();
}

Result<void> RefuseDeadlineField(const CommandContext& ctx, std::string_view command) {
  const std::string field = DeadlineFieldOf(ctx);
  if (field.empty()) [[likely]]
    return Ok();
  return Error{ErrorCode::kInvalidOptions,
               std::string(command) + " takes no deadlines in '" + field +
                   "', which this application gives there (dumpDeadlines): use insert and update"};
}

}  // namespace mayfly
