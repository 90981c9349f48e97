#include "server/replication_wiring.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "security/key_file.h"
#include "server/audit_wiring.h"
#include "server/commands/repl_status.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/config.h"
#include "server/dispatch/replication_gate.h"
#include "server/dispatch/server_context.h"
#include "server/execution/aggregate.h"
#include "server/execution/session_records.h"
#include "server/execution/transactions.h"
#include "storage/storage.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

/// Each member's own: set while the directory is (or was) used outside of its set.
constexpr std::string_view kStandaloneSetting = "local/openedAsStandalone";

}  // namespace

std::string SelfHost(const ServerConfig& config, int port) {
  for (const std::string& ip : config.bind_ips)
    if (!ip.starts_with("127.") && ip != "localhost" && ip != "::1") {
      if (ip != "0.0.0.0" && ip != "::" && ip != "*")
        return (ip.find(':') == std::string::npos ? ip : "[" + ip + "]") + ":" +
               std::to_string(port);
      char name[256] = "localhost";
      ::gethostname(name, sizeof name - 1);
      return std::string(name) + ":" + std::to_string(port);
    }
  return (config.bind_ips.empty() || config.bind_ips[0] == "::1" ? "127.0.0.1"
                                                                 : config.bind_ips[0]) +
         ":" + std::to_string(port);
}

/// On a new primary: stores the set's decoy secret, if it has none yet.
static void KeepDecoySecret(ServerContext& server) {
  Operation op(server.clock());
  if (auto kept = server.access().KeepDecoySecret(op); !kept)
    server.log().Write(LogSeverity::kWarning, LogComponent::kAccess, 9000131,
                       "The secret that hides which users exist could not be stored",
                       BuildBson([&](BsonBuilder& b) { b.Append("error", kept.error().message); }));
}

/// Another member has changed a setting of the catalog. On the log's thread.
static void SettingChanged(ServerContext& server, std::string_view name) {
  if (name == RWConcernDefaults::kSetting) server.rw_defaults().Load(server.storage());
  if (name.starts_with(ClusterParameters::kSettingPrefix))
    server.cluster_parameters().Load(server.storage());
  if (name == AccessControl::kDecoySetting) server.access().LoadDecoySecret();
  if (name == AccessControl::kTimeKeysSetting) (void)server.access().LoadTimeKeys();
  // Pauses and holds count for reads here too. Not on the log's thread: whoever changes them
  // waits for the log.
  if (name == kTtlControlsSetting)
    server.workers().Post([&server] {
      Operation op(server.clock());
      (void)server.ttl_controls().Load(op);
    });
}

/// On a member: a session's transaction ends with the session.
static void OpenTransactions(ServerContext& server) {
  auto transactions = std::make_shared<Transactions>(server);
  server.snapshot_reads().set_transactions(std::move(transactions));
  server.sessions().OnEnd([&server](std::string_view id) {
    server.cursors().KillSession(id);
    TransactionsOf(server)->Forget(id);
  });
  TransactionsOf(server)->OnMade([&server](const Operation& op) -> Transactions::MadeTeller {
    std::function<void(const CollectionInfo&)> audit = AuditMade(server, op);
    if (!audit) return {};
    return [&server, audit = std::move(audit)](std::vector<CollectionInfoPtr> made) {
      server.workers().Post([audit, made = std::move(made)] {
        for (const CollectionInfoPtr& c : made) audit(*c);
      });
    };
  });
  TransactionsOf(server)->OnEnd(
      [&server](int64_t micros, const std::function<FinishedTransaction()>& make) {
        ReportTransaction(server, micros, make);
      });
}

Result<std::unique_ptr<ReplicaSet>> MakeReplicaSet(
    ServerContext& server, std::shared_ptr<const std::atomic<uint64_t>> archive_from) {
  const ServerConfig& config = server.config();
  ReplicaSetOptions o;
  o.storage = &server.storage();
  o.clock = &server.clock();
  o.set_name = config.repl_set;
  if (!config.key_file.empty()) {
    MAYFLY_TRY(std::vector<std::string> keys, ReadKeyFile(config.key_file));
    o.key = std::move(keys.front());
    keys.erase(keys.begin());
    o.more_keys = std::move(keys);
    o.keyless_members = config.transition_to_auth;
  }
  o.old_handshake = [&m = server.member_parameters()] {
    return m.allow_old_member_handshake.load();
  };
  o.tls = &server.tls();
  o.noop_millis = [&m = server.member_parameters()]() -> int64_t {
    return m.write_periodic_noops ? m.periodic_noop_secs * 1000 : 0;
  };
  o.data_directory = config.db_path;
  o.self_host = SelfHost(config, config.port);
  o.port = config.port;
  o.sync_interval_ms = config.sync_interval_ms;
  o.log_max_bytes = config.oplog_size_mb << 20;
  o.log_min_hours = config.oplog_min_retention_hours;
  o.archive_from = std::move(archive_from);
  MAYFLY_TRY(auto was_standalone, server.storage().catalog().GetSetting(kStandaloneSetting));
  // For a set of this member alone: writes made meanwhile are in no log, so no member may be built
  // from it.
  o.history_lost = was_standalone && *was_standalone == "1";
  o.log = [&log = server.log()](char severity, std::string_view message, BsonView attributes) {
    log.Write(LogSeverityOf(severity), LogComponent::kRepl, 9000300, message, attributes,
              "ReplCoord");
  };
  o.event = [&server](ReplEvent e) { server.notifier().Notify(static_cast<uint32_t>(e)); };
  o.collection_grew = [&server](uint32_t id) { server.notifier().Notify(id); };
  o.setting_changed = [&server](std::string_view name) { SettingChanged(server, name); };
  // Unfinished work of the previous primary: looked up before new work can begin here, dropped as
  // soon as writes are possible.
  struct Leftovers {
    std::mutex mutex;
    std::vector<CollectionInfoPtr> of_out;
  };
  auto left = std::make_shared<Leftovers>();
  o.becoming_primary = [&server, left] {
    server.sessions().InvalidateTransactions();
    std::lock_guard l(left->mutex);
    left->of_out = LeftoversOfOut(server.storage().catalog());
  };
  o.primary_changed = [&server, left](bool primary) {
    std::lock_guard l(left->mutex);
    if (primary && !left->of_out.empty())
      server.workers().Post(
          [&server, of_out = std::move(left->of_out)] { DropLeftoversOfOut(server, of_out); });
    left->of_out.clear();
    if (primary && server.access().enforced())
      server.workers().Post([&server] { KeepDecoySecret(server); });
    if (primary && server.access().signs_times())
      server.workers().Post([&server] {
        replication_gate::KeepTimeKeys(server, server.clock().Now().millis / 1000);
      });
    if (server.repl_primary_changed) server.repl_primary_changed(primary);
  };
  o.fatal = [&log = server.log()](std::string_view why) {
    log.Write(LogSeverity::kFatal, LogComponent::kRepl, 9000301,
              "The replication log cannot go on: the process ends at once",
              BuildBson([&](BsonBuilder& b) { b.Append("error", why); }));
    std::fprintf(stderr, "mayflyd: the replication log cannot go on: %s\n",
                 std::string(why).c_str());
    ::_exit(14);
  };
  o.restart = [&server] { server.RequestShutdown(true, kExitRestart); };
  MAYFLY_TRY(auto set, ReplicaSet::Open(std::move(o)));
  set->clock().set_keeps_floor(!config.test_clock);
  const TopologyPtr t = set->topology();
  if (t->config && t->config->name != config.repl_set)
    return BadValue("the data directory belongs to the set " + t->config->name + ", not to " +
                    config.repl_set);
  if (was_standalone && *was_standalone == "1" && t->config) {
    if (t->config->members.size() > 1)
      return BadValue(
          "the data directory was opened without --replSet and may have been written to: it "
          "differs from the other members of " +
          t->config->name + " now. Empty it, and it gets a copy from them");
    Operation op(server.clock());
    MAYFLY_TRY(server.storage().catalog().PutLocalSetting(op, kStandaloneSetting, "0"));
  }
  server.rw_defaults().Load(server.storage());
  server.set_transaction_numbers(true);
  OpenTransactions(server);
  ShowSessionRecords(server.storage());
  server.server_status_hooks.push_back(
      [&server, s = set.get()](BsonBuilder& reply) { AppendServerStatusRepl(server, *s, reply); });
  return set;
}

Result<void> CheckStandaloneStart(ServerContext& server) {
  MAYFLY_TRY(auto stored, ReadStoredConfiguration(server.storage().kv()));
  if (!stored) return Ok();
  ShowSessionRecords(server.storage());  // what it has of them
  Operation op(server.clock());
  MAYFLY_TRY(server.storage().catalog().PutLocalSetting(op, kStandaloneSetting, "1"));
  server.log().AddStartupWarning(LogComponent::kRepl, 9000302,
                                 "The data directory is of a member of a replica set, opened as a "
                                 "standalone: what is written now is not in the set's log");
  return Ok();
}

}  // namespace mayfly
