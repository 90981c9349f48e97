#include "server/http/http_api.h"

#include "protocol/extended_json.h"
#include "protocol/seeded_hash.h"
#include "replication/replica_set.h"
#include "server/dispatch/config.h"
#include "server/dispatch/server_context.h"
#include "server/http/local_command.h"
#include "server/http/page_files.h"
#include "server/http/prometheus_text.h"
#include "server/http/rule_selection.h"
#include "storage/catalog/namespace.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

HttpAnswer Json(BsonView doc) { return {.body = ToRelaxedJson(doc)}; }

HttpAnswer Failure(int status, const Error& error) {
  HttpAnswer a = Json(BuildBson([&](BsonBuilder& b) {
    b.Append("code", static_cast<int32_t>(error.code))
        .Append("codeName", ErrorCodeName(error.code))
        .Append("errmsg", error.message);
  }));
  a.status = status;
  return a;
}

/// The width of slot that ?range= asks for; -1: none there is.
int Range(std::string_view query) {
  if (query == "range=hour" || query.empty()) return 0;
  if (query == "range=day") return 1;
  if (query == "range=month") return 2;
  return -1;
}

/// How long an expensive answer is reused.
constexpr int64_t kStatusMicros = 500'000, kForecastMicros = 2'000'000;

BsonDocument One(std::string_view command) {
  return BuildBson([&](BsonBuilder& b) { b.Append(command, int32_t{1}); });
}

/// The page's part of serverStatus.rocksdb. A look-up searches the runs of one keyspace: the
/// maximum over all keyspaces.
BsonDocument StoreSummary(BsonView rocksdb) {
  int64_t runs = 0, waiting = 0;
  for (const BsonElement& e : rocksdb) {
    if (!e.value.IsDocument()) continue;
    runs = std::max(runs, e.value.Document()["sortedRuns"].NumberAsInt64());
    waiting += e.value.Document()["pendingCompactionBytes"].NumberAsInt64();
  }
  const BsonView stalls = rocksdb["stalls"].Document();
  return BuildBson([&](BsonBuilder& b) {
    b.Append("cacheHits", rocksdb.FindPath("blockCache.dataHits").NumberAsInt64());
    b.Append("cacheMisses", rocksdb.FindPath("blockCache.dataMisses").NumberAsInt64());
    b.Append("amplification", rocksdb.FindPath("writes.amplification"));
    b.Append("sortedRuns", runs).Append("pendingCompactionBytes", waiting);
    b.Append("stalls", stalls["slowdowns"].NumberAsInt64() + stalls["stops"].NumberAsInt64());
  });
}

/// Collections where a rule has had something to remove for longer than a pass takes.
ClientStringSet Held(BsonView status) {
  constexpr int64_t kLateMillis = 200;
  ClientStringSet out;
  const BsonValue rules = status["rules"];
  if (!rules.IsArray()) return out;
  for (const BsonElement& e : rules.Document()) {
    if (!e.value.IsDocument()) continue;
    const BsonView rule = e.value.Document();
    if (rule["pending"].NumberAsInt64() > 0 && rule["lagMillis"].NumberAsInt64() > kLateMillis &&
        rule["ns"].IsString())
      out.emplace(rule["ns"].String());
  }
  return out;
}

/// The open transactions (of currentOp) that have locked documents in these collections, the oldest
/// first.
void AppendHoldingTransactions(BsonView inprog, const ClientStringSet& held, BsonBuilder& out) {
  constexpr int64_t kShown = 5;
  int64_t total = 0;
  {
    BsonArrayBuilder list = out.OpenArray("transactions");
    for (const BsonElement& e : inprog) {
      const BsonView op = e.value.Document(), t = op["transaction"].Document();
      std::string_view in;
      for (const BsonElement& ns : t["collections"].Document())
        if (in.empty() && held.contains(std::string(ns.value.String()))) in = ns.value.String();
      if (in.empty() || ++total > kShown) continue;
      BsonBuilder d = list.OpenDocument();
      d.Append("ns", in).Append("openMillis", t["timeOpenMicros"].NumberAsInt64() / 1000);
      d.Append("locks", t["locks"]).Append("expiryTime", t["expiryTime"]);
      for (const char* name : {"client", "appName"})
        if (!op[name].missing()) d.Append(name, op[name]);
    }
  }
  out.Append("transactionsTotal", total);
}

}  // namespace

ActivityHistory::Sample HttpApi::Tick() {
  return history_.Take(server_.metrics(), server_.clock().Now().millis);
}

HttpAnswer HttpApi::Ready() {
  if (!server_.has_storage() || server_.shutting_down())
    return {.status = 503, .type = "text/plain", .body = "not serving\n"};
  if (Result<void> writes = server_.storage().kv().WritesPossible(); !writes)
    return {.status = 503,
            .type = "text/plain",
            .body = "not serving: writes are refused: " + writes.error().message + "\n"};
  if (const ReplicaSet* set = server_.replica_set(); set != nullptr && !set->readable())
    return {.status = 503,
            .type = "text/plain",
            .body = "not serving: " + std::string(MemberStateName(set->topology()->state)) + "\n"};
  return {.type = "text/plain", .body = "ready\n"};
}

Awaitable<HttpAnswer> HttpApi::Metrics() {
  auto status = co_await RunLocalCommand(server_, io_, "admin", BuildBson([](BsonBuilder& b) {
                                           b.Append("serverStatus", 1).Append("none", 1);
                                           b.Append("metrics", 1).Append("transactions", 1);
                                           b.Append("backup", 1);
                                         }));
  if (!status) co_return Failure(500, status.error());
  auto rules = co_await RunLocalCommand(server_, io_, "admin", BuildBson([](BsonBuilder& b) {
                                          b.Append("ttlStatus", 1).Append("limit", kMaxRules);
                                        }));
  // Without the rules the rest is still worth having.
  const BsonValue list = rules ? rules.value().view().Find("rules") : BsonValue();
  co_return HttpAnswer{
      .type = "text/plain; version=0.0.4; charset=utf-8",
      .body = PrometheusText(server_, status.value(),
                             list.Is(BsonType::kArray) ? list.Document() : BsonView())};
}

Awaitable<HttpAnswer> HttpApi::Forecast(std::string_view query) {
  const int width = Range(query);
  if (width < 0) co_return Failure(400, BadValue("range must be hour, day or month"));
  Kept& kept = forecasts_[width];
  const int64_t began = server_.clock().MonotonicMicros();
  if (kept.at > began - kForecastMicros) co_return Json(kept.reply);
  auto reply = co_await RunLocalCommand(
      server_, io_, "admin", BuildBson([&](BsonBuilder& b) {
        b.Append("ttlForecast", 1)
            .Append("horizonSeconds",
                    ActivityHistory::kSlotMillis[width] / 1000 * ActivityHistory::kSlots)
            .Append("buckets", static_cast<int32_t>(ActivityHistory::kSlots));
      }));
  if (!reply) co_return Failure(500, reply.error());
  HttpAnswer answer = Json(reply.value());
  kept = {std::move(reply).value(), server_.clock().MonotonicMicros()};
  co_return answer;
}

Awaitable<HttpAnswer> HttpApi::History(std::string_view query) {
  const int width = Range(query);
  if (width < 0) co_return Failure(400, BadValue("range must be hour, day or month"));
  co_return Json(BuildBson([&](BsonBuilder& b) {
    b.Append("slotMillis", ActivityHistory::kSlotMillis[width]);
    BsonArrayBuilder slots = b.OpenArray("slots");
    for (const ActivityHistory::Slot& s : history_.Slots(width)) {
      BsonBuilder d = slots.OpenDocument();
      d.Append("from", s.start_millis).Append("reaped", s.reaped).Append("reads", s.reads);
      d.Append("writes", s.writes).Append("readP99Micros", s.read_p99_micros);
      d.Append("writeP99Micros", s.write_p99_micros);
    }
  }));
}

Awaitable<std::string> HttpApi::LiveStatus(ActivityHistory::Sample sample, std::string_view query) {
  const std::string filter = QueryValue(query, "filter");
  std::string failed;
  if (status_.at <= server_.clock().MonotonicMicros() - kStatusMicros) {
    auto rules = co_await RunLocalCommand(server_, io_, "admin", One("ttlStatus"));
    if (rules)
      status_ = {std::move(rules).value(), server_.clock().MonotonicMicros()};
    else
      failed = rules.error().message;
  }
  auto limits = co_await RunLocalCommand(server_, io_, "admin", BuildBson([](BsonBuilder& b) {
                                           b.Append("getParameter", 1)
                                               .Append("ttlMaxDocsPerSecond", 1)
                                               .Append("ttlMonitorEnabled", 1)
                                               .Append("metadataPurgeIntervalSecs", 1);
                                         }));
  BsonDocument set;
  if (server_.replica_set() != nullptr) {
    auto status = co_await RunLocalCommand(server_, io_, "admin", One("replSetGetStatus"));
    if (status) set = std::move(status).value();  // else: not initiated yet
  }
  BsonDocument open;
  const ClientStringSet held = Held(status_.reply.view());
  if (!held.empty() && server_.replica_set() != nullptr) {
    auto ops = co_await RunLocalCommand(server_, io_, "admin", BuildBson([](BsonBuilder& b) {
                                          b.Append("currentOp", 1);
                                          b.OpenDocument("transaction").Append("$exists", true);
                                        }));
    if (ops) open = std::move(ops).value();
  }
  auto store =
      co_await RunLocalCommand(server_, io_, "admin", BuildBson([](BsonBuilder& b) {
                                 b.Append("serverStatus", 1).Append("none", 1).Append("rocksdb", 1);
                                 b.Append("backup", 1);
                               }));
  const ServerMetrics& m = server_.metrics();
  co_return ToRelaxedJson(BuildBson([&](BsonBuilder& b) {
    b.Append("now", server_.clock().Now().millis).Append("uptimeMillis", server_.UptimeMillis());
    b.Append("version", kMayflyVersion).Append("host", server_.host_and_port());
    b.Append("connections", m.connections.current.Get());
    b.Append("reaped", sample.reaped).Append("reads", sample.reads).Append("writes", sample.writes);
    b.Append("readP50Micros", sample.read_p50_micros);
    b.Append("readP99Micros", sample.read_p99_micros);
    b.Append("writeP99Micros", sample.write_p99_micros);
    b.Append("deletedDocuments", m.ttl.deleted_documents.Get());
    if (store) b.Append("store", StoreSummary(store.value().view()["rocksdb"].Document()));
    if (store)
      if (const BsonValue archive = store.value().view()["logArchive"]; archive.IsDocument())
        b.Append("logArchive", archive);
    if (store)
      if (const BsonValue backup = store.value().view()["backup"]; backup.IsDocument())
        b.Append("backup", backup);
    if (limits) {
      BsonBuilder p = b.OpenDocument("parameters");
      p.AppendAll(limits.value());
    }
    if (!set.view().empty()) b.Append("replicaSet", set.view());
    if (const BsonValue list = open.view()["inprog"]; list.IsArray())
      AppendHoldingTransactions(list.Document(), held, b);
    if (!failed.empty()) {
      b.Append("error", failed);
      return;
    }
    for (const BsonElement& e : status_.reply.view()) {
      if (e.name == "rules")
        AppendRuleSelection(e.value.Document(), filter, b);
      else
        b.Append(e);
    }
  }));
}

Awaitable<HttpAnswer> HttpApi::Get(std::string_view path, std::string_view query) {
  if (path == "/healthz") co_return HttpAnswer{.type = "text/plain", .body = "ok\n"};
  if (path == "/readyz") co_return Ready();
  if (path == "/metrics") co_return co_await Metrics();
  if (path == "/api/forecast") co_return co_await Forecast(query);
  if (path == "/api/history") co_return co_await History(query);
  if (path == "/api/status") {
    const std::string json = co_await LiveStatus({}, query);
    co_return HttpAnswer{.body = json};
  }
  if (const PageFile* file = FindPageFile(path))
    co_return HttpAnswer{.type = std::string(file->type), .body = std::string(file->content)};
  co_return HttpAnswer{.status = 404, .type = "text/plain", .body = "there is no such page\n"};
}

Awaitable<HttpAnswer> HttpApi::Act(std::string_view body, const HttpOrigin& origin,
                                   UserAccessPtr access) {
  auto parsed = ParseJson(body);
  if (!parsed) co_return Failure(400, parsed.error());
  const BsonView request = parsed.value();
  const BsonValue action = request.Find("action");
  if (!action.IsString()) co_return Failure(400, BadValue("'action' must be a string"));
  std::string db = "admin";
  BsonDocument command;
  if (action.String() == "pause" || action.String() == "resume") {
    const bool pause = action.String() == "pause";
    const BsonValue ns = request.Find("ns"), index = request.Find("index"),
                    until = request.Find("until");
    const NamespaceParts parts = ns.IsString() ? SplitNamespace(ns.String()) : NamespaceParts();
    if (parts.collection.empty())
      co_return Failure(400, BadValue("'ns' must name a collection as database.collection"));
    db = parts.db;
    if (Result<void> named = ValidateNamespace(db, parts.collection); !named)
      co_return Failure(400, named.error());
    command = BuildBson([&](BsonBuilder& b) {
      b.Append(pause ? "ttlPause" : "ttlResume", parts.collection);
      if (!index.missing()) b.Append("index", index);
      if (pause && !until.missing()) b.Append("until", until);
    });
  } else if (action.String() == "rateLimit" || action.String() == "purgeInterval") {
    const BsonValue value = request.Find("value");
    if (!value.IsNumber()) co_return Failure(400, BadValue("'value' must be a number"));
    command = BuildBson([&](BsonBuilder& b) {
      b.Append("setParameter", 1);
      b.Append(action.String() == "rateLimit" ? "ttlMaxDocsPerSecond" : "metadataPurgeIntervalSecs",
               value);
    });
  } else {
    co_return Failure(400,
                      BadValue("'action' must be pause, resume, rateLimit or purgeInterval, not '" +
                               std::string(action.String()) + "'"));
  }
  auto reply =
      co_await RunLocalCommand(server_, io_, db, std::move(command), &origin, std::move(access));
  if (!reply)
    co_return Failure(reply.error().code == ErrorCode::kUnauthorized ? 403 : 400, reply.error());
  status_ = {};  // the next event shows what was done
  co_return Json(reply.value());
}

}  // namespace mayfly
