#include <boost/asio/use_awaitable.hpp>

#include "protocol/field_once.h"
#include "protocol/micros.h"
#include "protocol/utf8.h"
#include "server/commands/repl_status.h"
#include "server/commands/sasl_cmds.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/audit_log.h"
#include "server/dispatch/command.h"
#include "server/dispatch/config.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/net/connection.h"

namespace mayfly {

namespace {

constexpr int64_t kMaxAppNameBytes = 128, kMaxMetadataBytes = 512;

struct HelloArgs {
  BsonView client, topology_version;
  bool client_given = false;
  std::optional<BsonView> topology;
  std::optional<int64_t> max_await_ms;
  std::optional<BsonView> compression;
  bool hello_ok = false;
  std::string_view sasl_mechs_user;
  std::optional<BsonView> speculative;
};

void AuditClient(CommandContext& ctx, BsonView client) {
  AuditLog* audit = ctx.server.audit();
  if (audit == nullptr || !audit->enabled() || !audit->AdmitMetadata()) return;
  Audit(ctx, "clientMetadata", [&](BsonBuilder& p) {
    AppendAuditAddress(p, "localEndpoint", ctx.client->local_address);
    p.Append("clientMetadata", client);
  });
}

/// The client document (driver specification "MongoDB Handshake"): kept for currentOp and the log.
Result<void> TakeMetadata(CommandContext& ctx, BsonView client) {
  Connection& c = *ctx.connection;
  if (c.metadata_seen)
    return Error{ErrorCode::kClientMetadataCannotBeMutated,
                 "The client metadata document may only be sent in the first hello"};
  if (client.size() > kMaxMetadataBytes)
    return Error{ErrorCode::kClientMetadataDocumentTooLarge,
                 "The client metadata document must be less then or equal to 512 bytes"};
  MAYFLY_TRY(ArgReader("client", client).FinishLoose());
  for (const BsonElement& part : client) {
    if (!part.value.IsDocument()) continue;
    MAYFLY_TRY(ArgReader("client." + std::string(part.name), part.value.Document()).FinishLoose());
  }
  const BsonValue driver = client["driver"], os = client["os"], application = client["application"];
  if (!driver.IsDocument())
    return Error{ErrorCode::kClientMetadataMissingField,
                 "Missing required sub-document 'driver' in the client metadata document"};
  for (std::string_view f : {"name", "version"})
    if (!driver.Document()[f].IsString())
      return Error{ErrorCode::kClientMetadataMissingField,
                   "Missing required field '" + std::string(f) +
                       "' of driver in the client metadata document"};
  if (!os.IsDocument() || !os.Document()["type"].IsString())
    return Error{ErrorCode::kClientMetadataMissingField,
                 "Missing required field 'type' of os in the client metadata document"};
  std::string app;
  if (application.IsDocument()) {
    if (BsonValue name = application.Document()["name"]; name.IsString())
      app = PrintableUtf8(name.String());
    if (app.size() > kMaxAppNameBytes)
      return Error{ErrorCode::kClientMetadataAppNameTooLarge,
                   "The 'application.name' field must be less than or equal to 128 bytes"};
  }
  c.metadata_seen = true;
  const BsonDocument shown = ShownDefinition({}, {}, {}, client);
  c.slot().SetMetadata(shown, std::move(app));
  Log& log = ctx.data.log();
  if (!log.quiet())
    log.Write(LogSeverity::kInfo, LogComponent::kNetwork, 51800, "client metadata",
              BuildBson([&](BsonBuilder& b) {
                b.Append("remote", c.remote()).Append("client", c.slot().desc).Append("doc", shown);
              }),
              c.slot().desc);
  AuditClient(ctx, shown);
  return Ok();
}

Result<HelloArgs> Parse(const CommandRequest& req) {
  ArgReader in(req);
  HelloArgs a;
  if (auto client = in.OptDocument("client")) {
    a.client = *client;
    a.client_given = true;
  }
  a.topology = in.OptDocument("topologyVersion");
  a.max_await_ms = in.OptInt64("maxAwaitTimeMS");
  a.compression = in.OptArray("compression");
  a.hello_ok = in.LooseBoolOr("helloOk", false);
  a.sasl_mechs_user = in.StringOr("saslSupportedMechs");
  a.speculative = in.OptDocument("speculativeAuthenticate");
  // The handshake takes fields it does not know: newer drivers announce what older servers need not
  // understand.
  MAYFLY_TRY(in.FinishLoose());
  if (a.max_await_ms && !a.topology)
    return Error{LocationCode(31368),
                 "A request with 'maxAwaitTimeMS' must include a 'topologyVersion'"};
  if (a.topology && !a.max_await_ms)
    return Error{LocationCode(31368),
                 "A request with a 'topologyVersion' must include 'maxAwaitTimeMS'"};
  if (a.max_await_ms && *a.max_await_ms < 0)
    return Error{LocationCode(31373), "'maxAwaitTimeMS' must be a non-negative integer"};
  if (a.topology) {
    constexpr std::string_view kFields[] = {"processId", "counter"};
    // An ObjectId and a number; this is read on an io thread.
    if (a.topology->size() > kMaxMetadataBytes)
      return Error{ErrorCode::kFailedToParse,
                   "'topologyVersion' must have no fields but 'processId' and 'counter'"};
    unsigned seen = 0;
    for (const BsonElement& e : *a.topology) {
      MAYFLY_TRY(FieldOnce("topologyVersion", kFields, e.name, &seen));
    }
    const BsonValue id = (*a.topology)["processId"], counter = (*a.topology)["counter"];
    if (!id.Is(BsonType::kObjectId))
      return Error{ErrorCode::kTypeMismatch,
                   "BSON field 'topologyVersion.processId' must be an objectId"};
    if (!counter.Is(BsonType::kInt64))
      return Error{ErrorCode::kTypeMismatch, "BSON field 'topologyVersion.counter' must be a long"};
    if (counter.Int64() < 0)
      return Error{LocationCode(31372), "topologyVersion.counter must be non-negative"};
  }
  return a;
}

/// The counter of the topology that hello tells of; a standalone's never changes.
int64_t TopologyCounter(DataServices& server) {
  return server.replica_set() != nullptr ? server.replica_set()->topology()->counter : 0;
}

/// A member's description of its replica set (driver specification "Server Discovery And
/// Monitoring").
void AppendSet(ReplicaSet& set, const Topology& t, bool legacy_name, BsonBuilder& reply) {
  const std::string_view primary_field = legacy_name ? "ismaster" : "isWritablePrimary";
  if (!t.config || t.self < 0) {
    reply.Append(primary_field, false).Append("secondary", false);
    reply.Append("info", "Does not have a valid replica set config").Append("isreplicaset", true);
    return;
  }
  auto list = [&](std::string_view name, bool passive) {
    std::vector<std::string_view> hosts;
    for (const MemberConfig& m : t.config->members)
      if (!m.hidden && (m.priority == 0) == passive) hosts.push_back(m.host);
    if (hosts.empty()) return;
    BsonArrayBuilder a = reply.OpenArray(name);
    for (std::string_view h : hosts) a.Append(h);
  };
  list("hosts", false);
  list("passives", true);
  const MemberConfig& self = t.config->members[static_cast<size_t>(t.self)];
  reply.Append("setName", t.config->name)
      .Append("setVersion", static_cast<int32_t>(t.config->version));
  reply.Append(primary_field, t.state == MemberState::kPrimary)
      .Append("secondary", t.state == MemberState::kSecondary);
  if (!t.primary.empty()) reply.Append("primary", t.primary);
  if (self.priority == 0) reply.Append("passive", true);
  if (self.hidden) reply.Append("hidden", true);
  if (self.secondary_delay_secs > 0) reply.Append("secondaryDelaySecs", self.secondary_delay_secs);
  if (!self.tags.empty()) {
    BsonBuilder tags = reply.OpenDocument("tags");
    for (const auto& [tag, value] : self.tags) tags.Append(tag, value);
  }
  reply.Append("me", self.host);
  if (t.state == MemberState::kPrimary)
    reply.AppendObjectId("electionId", ReplicaSet::ElectionId(t.term));
  const OpTime applied = set.last_applied();
  BsonBuilder w = reply.OpenDocument("lastWrite");
  AppendOpTime(w, "opTime", applied);
  w.Append("lastWriteDate", Instant{applied.wall_millis / 1000 * 1000});
  AppendOpTime(w, "majorityOpTime", applied);
  w.Append("majorityWriteDate", Instant{applied.wall_millis / 1000 * 1000});
}

void AppendHello(CommandContext& ctx, const HelloArgs& a, bool legacy_name, BsonBuilder& reply) {
  Connection& c = *ctx.connection;
  if (a.hello_ok) reply.Append("helloOk", true);
  ReplicaSet* set = ctx.data.replica_set();
  const TopologyPtr topology = set != nullptr ? set->topology() : nullptr;
  if (set == nullptr) reply.Append(legacy_name ? "ismaster" : "isWritablePrimary", true);
  {
    BsonBuilder t = reply.OpenDocument("topologyVersion");
    t.AppendObjectId("processId", ctx.server.process_id())
        .Append("counter", topology ? topology->counter : int64_t{0});
  }
  if (set != nullptr) AppendSet(*set, *topology, legacy_name, reply);
  reply.Append("maxBsonObjectSize", kMaxBsonUserSize)
      .Append("maxMessageSizeBytes", kMaxMessageSize);
  reply.Append("maxWriteBatchSize", int32_t{100'000}).Append("localTime", ctx.data.clock().Now());
  reply.Append("logicalSessionTimeoutMinutes",
               static_cast<int32_t>(ctx.data.settings().local_session_timeout_minutes.load()));
  reply.Append("connectionId", static_cast<int32_t>(c.id()));
  reply.Append("minWireVersion", kMinWireVersion).Append("maxWireVersion", kMaxWireVersion);
  reply.Append("readOnly", false);  // writes are refused by state, not by this
  if (a.compression) {
    uint8_t agreed = 0;
    std::vector<std::string_view> names;
    for (const BsonElement& e : *a.compression) {
      if (!e.value.IsString()) continue;
      for (const std::string& ours : ctx.server.config().compressors) {
        if (ours != e.value.String()) continue;
        const auto bit = static_cast<uint8_t>(1u << static_cast<int>(CompressorFromName(ours)));
        if (agreed & bit) continue;  // named again
        agreed |= bit;
        names.push_back(ours);
      }
    }
    c.compressors = agreed;
    if (!names.empty()) {
      BsonArrayBuilder list = reply.OpenArray("compression");
      for (std::string_view n : names) list.Append(n);
    }
  }
}

Awaitable<Result<void>> Hello(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  MAYFLY_CO_TRY(HelloArgs args, Parse(req));
  if (ctx.connection == nullptr)
    co_return Error{ErrorCode::kIllegalOperation, "hello needs a client"};
  if (args.client_given) {
    MAYFLY_CO_TRY(TakeMetadata(ctx, args.client));
  }
  ctx.connection->hello_seen = true;
  ctx.connection->metadata_seen = true;
  if (args.topology) {
    // Another process' version is news at once; this one's, when the counter has moved on.
    const bool same = (*args.topology)["processId"].ObjectId() == ctx.server.process_id();
    const int64_t known = (*args.topology)["counter"].Int64();
    std::optional<CollectionNotifier::Watch> watch;
    if (same) watch.emplace(ctx.data.notifier(), static_cast<uint32_t>(ReplEvent::kTopology));
    if (same && known > TopologyCounter(ctx.data))
      co_return Error{LocationCode(31382),
                      "Received a topology version with a counter greater than the server's"};
    if (same && known == TopologyCounter(ctx.data)) {
      Counter& waiting = ctx.data.metrics().connections.awaiting_topology;
      waiting.Add();
      const int64_t until = ctx.data.clock().MonotonicMicros() + MicrosOf(*args.max_await_ms);
      Result<void> waited = Ok();
      while (waited && known == TopologyCounter(ctx.data) &&
             ctx.data.clock().MonotonicMicros() < until) {
        Result<bool> woken = co_await watch->WaitFor(ctx, until);
        if (!woken) waited = woken.error();
      }
      waiting.Add(-1);
      if (!waited) co_return std::move(waited).error();
    }
    ctx.more_to_come = req.exhaust_allowed;
    const int64_t counter = TopologyCounter(ctx.data);
    if ((!same || counter != known) && req.exhaust_allowed) {
      // The stream goes on from what this reply says, not from what the client asked with.
      ctx.next_body = BuildBson([&](BsonBuilder& b) {
        for (const CommandField& f : req.fields) {
          if (f.name == "topologyVersion") {
            BsonBuilder t = b.OpenDocument("topologyVersion");
            t.AppendObjectId("processId", ctx.server.process_id()).Append("counter", counter);
          } else if (f.name != "client") {
            b.Append(f.name, f.value);
          }
        }
      });
    }
  }
  // A stream of these replies is the only command of its connection for as long as it lives.
  if (const UserAccess* access = ctx.connection->login.access.get();
      access != nullptr && access->generation != ctx.server.access().users().generation()) {
    co_await ctx.MoveToWorker();
    MAYFLY_CO_TRY(ctx.connection->RefreshLogin(ctx));
  }
  AppendHello(ctx, args, req.name != "hello", reply);
  if (!args.sasl_mechs_user.empty()) {
    MAYFLY_CO_TRY(co_await AppendMechanisms(ctx, args.sasl_mechs_user, reply));
  }
  if (args.speculative) co_await SpeculativeLogin(ctx, *args.speculative, reply);
  co_return Ok();
}

}  // namespace

void RegisterHello(CommandRegistry& registry) {
  constexpr uint32_t kFlags = kNoAuth | kSecondaryOk | kNoProfile;
  registry.Add({.name = "hello",
                .flags = kFlags | kApiV1,
                .help = "What this server is and can do; with topologyVersion and maxAwaitTimeMS: "
                        "once that changes.",
                .run_async = &Hello});
  registry.Add({.name = "isMaster",
                .aliases = {"ismaster"},
                .flags = kFlags,
                .help = "The older name of hello.",
                .run_async = &Hello});
}

}  // namespace mayfly
