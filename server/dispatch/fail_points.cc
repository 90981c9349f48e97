#include "server/dispatch/fail_points.h"

#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

namespace {

constexpr std::string_view kNames[] = {
    "failCommand",         "failGetMoreAfterCursorCheckout", "maxTimeAlwaysTimeOut",
    "maxTimeNeverTimeOut", "onPrimaryTransactionalWrite",    "rsSyncApplyStop",
    "stopReplProducer"};

bool StopsReplication(std::string_view name) {
  return name == "stopReplProducer" || name == "rsSyncApplyStop";
}

Result<void> CheckStrings(std::string_view field, std::optional<BsonView> list) {
  if (!list) return Ok();
  for (const BsonElement& e : *list)
    if (!e.value.IsString())
      return Error{ErrorCode::kTypeMismatch, "configureFailPoint: data." + std::string(field) +
                                                 " must be an array of strings"};
  return Ok();
}

/// The types of the fields that a fail point has; the names of those that it has not.
Result<std::vector<std::string>> CheckData(std::string_view name, BsonView data) {
  ArgReader in("configureFailPoint.data", data);
  if (name.starts_with("maxTime") || StopsReplication(name)) return in.Unread();
  auto bools = [&](std::initializer_list<std::string_view> fields) {
    // unused: what fires reads the value
    for (std::string_view field : fields) in.OptBool(field);
  };
  auto numbers = [&](std::initializer_list<std::string_view> fields) {
    // unused: what fires reads the value
    for (std::string_view field : fields) in.OptInt64(field);
  };
  numbers({"errorCode"});
  bools({"closeConnection"});
  if (name == "failCommand") {
    const auto commands = in.OptArray("failCommands");
    bools({"failAllCommands", "failInternalCommands", "blockConnection"});
    numbers({"blockTimeMS"});
    const auto labels = in.OptArray("errorLabels");
    const auto wc = in.OptDocument("writeConcernError");
    in.OptDocument("errorExtraInfo");  // unused: what fires reads it
    for (std::string_view field : {"appName", "threadName", "namespace"})
      in.OptString(field);  // unused: what fires reads the value
    MAYFLY_TRY(in.FinishLoose());
    MAYFLY_TRY(CheckStrings("failCommands", commands));
    MAYFLY_TRY(CheckStrings("errorLabels", labels));
    if (wc && !(*wc)["code"].IsNumber())
      return Error{ErrorCode::kBadValue,
                   "configureFailPoint: data.writeConcernError needs a numeric 'code'"};
    if (data["blockConnection"].Truthy() && data["blockTimeMS"].missing())
      return Error{
          ErrorCode::kInvalidOptions,
          "must specify 'blockTimeMS' when 'blockConnection' is true in the failCommand data"};
    if (!data["blockTimeMS"].missing() && data["blockTimeMS"].NumberAsInt64() < 0)
      return Error{ErrorCode::kInvalidOptions, "'blockTimeMS' must not be negative"};
    return in.Unread();
  }
  if (name == "onPrimaryTransactionalWrite") numbers({"failBeforeCommitExceptionCode"});
  MAYFLY_TRY(in.FinishLoose());
  return in.Unread();
}

}  // namespace

FailPoints::FailPoints() : random_(std::random_device{}()) {
  for (std::string_view n : kNames) points_.emplace(n, Point());
}

Result<FailPoints::Configured> FailPoints::Configure(std::string_view name, BsonValue mode,
                                                     BsonView data) {
  Point next;
  next.data = BsonDocument(data);
  if (mode.IsString()) {
    if (mode.String() == "alwaysOn")
      next.mode = Mode::kAlwaysOn;
    else if (mode.String() != "off")
      return Error{ErrorCode::kBadValue,
                   "unknown fail point mode: " + std::string(mode.String()) +
                       "; use \"off\", \"alwaysOn\", {times: n}, {skip: n} or "
                       "{activationProbability: p}"};
  } else if (mode.IsDocument()) {
    ArgReader in("configureFailPoint.mode", mode.Document());
    const auto times = in.OptInt64("times"), skip = in.OptInt64("skip");
    const auto probability = in.OptDouble("activationProbability");
    MAYFLY_TRY(in.Finish());
    // Drivers that fill in a structure send {times: 2, skip: 0}: a zero beside another is none.
    const int given = int{times.has_value()} + int{skip.has_value()} + int{probability.has_value()};
    const int set = int{times.value_or(0) != 0} + int{skip.value_or(0) != 0} +
                    int{probability.value_or(0) != 0};
    if (given == 0 || set > 1)
      return Error{ErrorCode::kFailedToParse,
                   "a fail point's mode takes exactly one of times, skip and "
                   "activationProbability"};
    const bool is_times = set == 1 ? times.value_or(0) != 0 : times.has_value();
    const bool is_skip = set == 1 ? skip.value_or(0) != 0 : !is_times && skip.has_value();
    const int64_t n = is_times ? *times : is_skip ? *skip : 0;
    if (n < 0 || n > INT32_MAX)
      return Error{ErrorCode::kBadValue, "'times' and 'skip' must be from 0 to 2147483647"};
    if (probability && !(*probability >= 0 && *probability <= 1))
      return Error{ErrorCode::kBadValue, "activationProbability must be between 0.0 and 1.0"};
    next.left = n;
    next.probability = probability.value_or(0);
    next.mode = is_times ? (n == 0 ? Mode::kOff : Mode::kTimes)
                         : (is_skip ? Mode::kSkip : Mode::kProbability);
  } else {
    return Error{ErrorCode::kTypeMismatch,
                 "BSON field 'configureFailPoint.mode' is the wrong type '" +
                     std::string(BsonTypeName(mode.type())) +
                     "', expected types '[string, object]'"};
  }
  std::lock_guard l(mutex_);
  auto it = points_.find(name);
  if (it == points_.end())
    return Error{ErrorCode::kFailPointSetFailed, std::string(name) + " not found"};
  if (StopsReplication(name)) {
    if (!stop_applying_)
      return Error{ErrorCode::kFailPointSetFailed,
                   std::string(name) + " is for members of replica sets"};
    if (next.mode != Mode::kOff && next.mode != Mode::kAlwaysOn)
      return Error{ErrorCode::kBadValue,
                   std::string(name) + " is \"alwaysOn\" or \"off\" on this server"};
  }
  Configured out;
  if (next.mode != Mode::kOff) {
    MAYFLY_TRY(out.ignored, CheckData(name, data));
  }
  out.entered = next.entered = it->second.entered;
  active_.fetch_add(int{next.mode != Mode::kOff} - int{it->second.mode != Mode::kOff});
  it->second = std::move(next);
  if (StopsReplication(name)) {
    stop_applying_(points_.find("stopReplProducer")->second.mode != Mode::kOff ||
                   points_.find("rsSyncApplyStop")->second.mode != Mode::kOff);
  }
  return out;
}

Result<int64_t> FailPoints::Entered(std::string_view name) const {
  std::lock_guard l(mutex_);
  auto it = points_.find(name);
  if (it == points_.end())
    return Error{ErrorCode::kFailPointSetFailed, std::string(name) + " not found"};
  return it->second.entered;
}

std::optional<BsonDocument> FailPoints::Fire(std::string_view name,
                                             const std::function<bool(BsonView)>& applies) {
  if (!any()) return std::nullopt;
  std::lock_guard l(mutex_);
  auto it = points_.find(name);
  if (it == points_.end()) return std::nullopt;
  Point& p = it->second;
  if (p.mode == Mode::kOff || (applies && !applies(p.data.view()))) return std::nullopt;
  switch (p.mode) {
    case Mode::kTimes:
      if (--p.left == 0) {
        p.mode = Mode::kOff;
        active_.fetch_sub(1);
      }
      break;
    case Mode::kSkip:
      if (p.left > 0) {
        --p.left;
        return std::nullopt;
      }
      break;
    case Mode::kProbability:
      if (std::uniform_real_distribution<double>()(random_) >= p.probability) return std::nullopt;
      break;
    default:
      break;
  }
  ++p.entered;
  return p.data;
}

Result<void> FireMaxTime(FailPoints& points, Operation& op) {
  if (op.deadline_micros == 0 || !points.any()) return Ok();
  if (points.Fire("maxTimeAlwaysTimeOut"))
    return Error{ErrorCode::kMaxTimeMSExpired, "operation exceeded time limit"};
  if (points.Fire("maxTimeNeverTimeOut")) op.deadline_micros = 0;
  return Ok();
}

std::optional<FailCommandAction> FireFailCommand(FailPoints& points, const CommandRow& row,
                                                 const CommandRequest& request,
                                                 std::string_view app_name,
                                                 std::string_view thread_name,
                                                 bool internal_client) {
  // Otherwise nobody could switch it off.
  if (row.name == "configureFailPoint") return std::nullopt;
  auto named = [&](std::string_view name) {
    if (name == row.name) return true;
    for (std::string_view alias : row.aliases)
      if (name == alias) return true;
    return false;
  };
  std::optional<BsonDocument> fired = points.Fire("failCommand", [&](BsonView data) {
    if (internal_client && !data["failInternalCommands"].Truthy()) return false;
    if (data["appName"].IsString() && data["appName"].String() != app_name) return false;
    if (data["threadName"].IsString() && data["threadName"].String() != thread_name) return false;
    if (data["namespace"].IsString()) {
      const std::string_view ns = data["namespace"].String();  // check_names: is only compared
      const BsonValue first = request.fields[0].value;
      const std::string_view collection =
          first.IsString()
              ? first.String()
              : (request.body["collection"].IsString() ? request.body["collection"].String()
                                                       : std::string_view());
      if (ns != JoinNamespace(request.db, collection)) return false;
    }
    if (data["failAllCommands"].Truthy()) return true;
    const BsonValue names = data["failCommands"];
    if (!names.IsArray()) return false;
    for (const BsonElement& e : names.Document())
      if (named(e.value.String())) return true;
    return false;
  });
  if (!fired) return std::nullopt;
  const BsonView data = fired->view();
  FailCommandAction a;
  a.close_connection = data["closeConnection"].Truthy();
  if (data["blockConnection"].Truthy()) a.block_ms = data["blockTimeMS"].NumberAsInt64();
  if (data["errorLabels"].IsArray()) {
    a.labels.emplace();
    for (const BsonElement& e : data["errorLabels"].Document())
      a.labels->emplace_back(e.value.String());
  }
  const BsonValue code = data["errorCode"];
  if (code.IsNumber() && !a.close_connection) {
    a.error = Error{static_cast<ErrorCode>(code.NumberAsInt64()),
                    "Failing command via 'failCommand' failpoint"};
    if (data["errorExtraInfo"].IsDocument())
      a.error->details = std::string(data["errorExtraInfo"].Document().bytes());
  }
  if (data["writeConcernError"].IsDocument() && (row.flags & kTakesWriteConcern))
    a.write_concern_error = BsonDocument(data["writeConcernError"].Document());
  return a;
}

}  // namespace mayfly
