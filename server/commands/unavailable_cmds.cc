#include <span>

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

struct Unavailable {
  std::string_view name;
  ErrorCode code;
  std::string_view message;
  Result<void> (*privileges)(const AuthorizationRequest& request);
};

constexpr std::string_view kNoSearch =
    "search indexes are a service of MongoDB Atlas, which this server does not have";

constexpr std::string_view kNoMapReduce =
    "mapReduce cannot be used: server-side JavaScript execution is disabled; an aggregation with "
    "$group does the same";

/// Commands that MongoDB has and whose answer here is always the same error.
constexpr Unavailable kUnavailable[] = {
    {"createSearchIndexes", ErrorCode::kSearchNotEnabled, kNoSearch,
     &privileges::OnCollection<Action::createSearchIndexes>},
    {"dropSearchIndex", ErrorCode::kSearchNotEnabled, kNoSearch,
     &privileges::OnCollection<Action::dropSearchIndex>},
    {"mapReduce", LocationCode(31264), kNoMapReduce, &privileges::OnCollection<Action::find>},
    {"mapreduce", LocationCode(31264), kNoMapReduce, &privileges::OnCollection<Action::find>},
    {"updateSearchIndex", ErrorCode::kSearchNotEnabled, kNoSearch,
     &privileges::OnCollection<Action::updateSearchIndex>},
};

Result<void> RunUnavailable(CommandContext&, const CommandRequest& req, BsonBuilder&) {
  for (const Unavailable& u : kUnavailable)
    if (u.name == req.name) return Error{u.code, std::string(u.message)};
  return Error{ErrorCode::kInternalError, "a command without its reason"};
}

}  // namespace

void RegisterUnavailableCommands(CommandRegistry& registry) {
  for (const Unavailable& u : kUnavailable) {
    registry.Add({.name = u.name,
                  .flags = kSecondaryOk | kHidden,
                  .help = "Not available on this server.",
                  .run = &RunUnavailable,
                  .privileges = u.privileges});
  }
}

}  // namespace mayfly
