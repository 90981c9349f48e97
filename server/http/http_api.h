#pragma once
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>

#include "security/user_cache.h"
#include "server/dispatch/command.h"
#include "server/http/activity_history.h"

namespace mayfly {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;

/// An answer before it is put into HTTP.
struct HttpAnswer {
  int status = 200;
  std::string type = "application/json";
  std::string body;
};

/// The answers for the paths of the HTTP endpoint. The HTTP thread's own.
class HttpApi {
 public:
  HttpApi(ServerContext& server, IoExecutor io) : server_(server), io_(io) {}

  /// GET: everything but /events. 404 for an unknown path.
  Awaitable<HttpAnswer> Get(std::string_view path, std::string_view query);
  /// POST /api/action with {"action": "pause" | "resume" | "rateLimit" | "purgeInterval", …}. The
  /// caller has checked where it comes from.
  /// `access`: the user and its privileges; null: anybody.
  Awaitable<HttpAnswer> Act(std::string_view body, const HttpOrigin& origin, UserAccessPtr access);
  /// One event of the stream at /events: status of the rules and what happened since the last one,
  /// as JSON on one line. `query`: filter=TEXT, see AppendRuleSelection.
  Awaitable<std::string> LiveStatus(ActivityHistory::Sample sample, std::string_view query);

  /// Reads the counters into the history; call it about once a second.
  ActivityHistory::Sample Tick();

 private:
  Awaitable<HttpAnswer> Metrics();
  Awaitable<HttpAnswer> Forecast(std::string_view query);
  Awaitable<HttpAnswer> History(std::string_view query);
  HttpAnswer Ready();

  ServerContext& server_;
  IoExecutor io_;
  ActivityHistory history_;
  // Several viewers, and one with several tabs, cost no more than one.
  struct Kept {
    BsonDocument reply;
    int64_t at = INT64_MIN;  ///< monotonic microseconds
  };
  Kept status_, forecasts_[3];
};

}  // namespace mayfly
