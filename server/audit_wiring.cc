#include "server/audit_wiring.h"

#include <algorithm>

#include "security/user_cache.h"
#include "server/dispatch/audit_events.h"
#include "server/dispatch/cluster_parameters.h"
#include "server/dispatch/config.h"
#include "server/dispatch/redacted_command.h"
#include "server/dispatch/server_context.h"
#include "server/execution/aggregate_stages.h"
#include "server/execution/collection_options.h"
#include "server/execution/view_definition.h"
#include "storage/schema/schema_watch.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// A client and its user, copied from what runs.
struct Client {
  std::string connection, local, remote;
  std::optional<UserName> user;
  UserAccessPtr access;

  AuditActor actor() const {
    return {.connection = connection,
            .local = local,
            .remote = remote,
            .user = user ? &*user : nullptr,
            .access = access.get()};
  }
};

/// Whose operation it is; the server's own if it is no client's.
Client FindClient(ServerContext& server, const Operation& op) {
  Client c;
  if (op.id == 0) return c;
  server.operations().ForEach([&](const ClientSlot::View& v) {
    if (v.op == nullptr || v.op->id != op.id || v.slot.connection_id == 0) return;
    c.connection = v.slot.desc;
    c.local = v.slot.local_address;
    c.remote = v.slot.address;
    if (v.user != nullptr) c.user = *v.user;
  });
  if (!c.user || !server.access().enforced()) return c;
  // Whatever runs for a client knows its user, also the commit of a transaction, which has its
  // number: nothing is read of the store here.
  c.access = op.user();
  return c;
}

/// What makes documents of a collection expire, as entries show it; empty: nothing.
BsonDocument RulesOf(const CollectionInfo& c) {
  return BuildBson([&](BsonBuilder& b) {
    if (c.clustered() && c.expire_after_seconds)
      b.Append("expireAfterSeconds", *c.expire_after_seconds);
    if (const BsonValue archive = c.options.view()["onExpire"]; !archive.missing())
      b.Append("onExpire", archive);
    if (c.expiry_options.set()) b.Append("expiry", DescribeExpiryOptions(c.expiry_options));
    const auto is_rule = [](const IndexInfoPtr& i) { return i->expire_after_seconds.has_value(); };
    if (std::none_of(c.indexes.begin(), c.indexes.end(), is_rule)) return;
    BsonArrayBuilder list = b.OpenArray("indexes");
    for (const IndexInfoPtr& i : c.indexes)
      if (is_rule(i)) {
        BsonBuilder one = list.OpenDocument();
        one.Append("index", i->name).Append("expireAfterSeconds", *i->expire_after_seconds);
      }
  });
}

/// {old, new} of rules that begin with what is made, or end with what is dropped.
void AppendRules(BsonBuilder& p, BsonView rules, bool made) {
  if (rules.empty()) return;
  if (made) p.AppendNull("old");
  p.Append(made ? "new" : "old", rules);
  if (!made) p.AppendNull("new");
}

/// The collection that a view reads in the end, by way of other views; empty for a collection.
std::string BehindView(Catalog& catalog, const CollectionInfo& c) {
  std::string name = c.view_on;
  for (int depth = 0; depth < kMaxViewDepth; ++depth) {
    const CollectionInfoPtr next = name.empty() ? nullptr : catalog.Find(c.db, name);
    if (next == nullptr || !next->is_view()) break;
    name = next->view_on;
  }
  return name;
}

/// A view's pipeline, as far as it may be shown.
void AppendPipeline(Catalog& catalog, const CollectionInfo& c, BsonBuilder& out) {
  const BsonDocument definition = BuildBson([&](BsonBuilder& b) {
    if (c.view_pipeline.view().size() <= kMaxAuditValue)
      b.AppendArray("pipeline", c.view_pipeline);
    else
      b.Append("pipeline", "...");
  });
  out.AppendAll(ShownDefinition(c.db, c.name, BehindView(catalog, c), definition));
}

/// What collMod changes besides rules of expiry, whose entries the command writes itself.
BsonDocument OptionsOf(Catalog& catalog, const CollectionInfo& c) {
  return BuildBson([&](BsonBuilder& b) {
    const BsonDocument shown = ShownDefinition(c.db, c.name, BehindView(catalog, c), c.options);
    for (const BsonElement& e : shown.view())
      if (e.name != "expiry" && e.name != "onExpire") AppendAuditValue(b, e.name, e.value);
    if (!c.is_view()) return;
    b.Append("viewOn", c.view_on);
    AppendPipeline(catalog, c, b);
  });
}

/// One change of the catalog on its way into the audit log.
class SchemaChange {
 public:
  SchemaChange(ServerContext& server, Client client)
      : server_(server), log_(*server.audit()), client_(std::move(client)) {}

  void Tell(const CollectionInfo* before, const CollectionInfo* after) {
    if (before == nullptr && after != nullptr) {
      if (server_.storage().catalog().List(after->db).size() == 1)
        Write("createDatabase", [&](BsonBuilder& p) { p.Append("ns", after->db); });
      TellCollection("createCollection", *after, true);
      return;
    }
    if (after == nullptr) return TellCollection("dropCollection", *before, false);
    if (before->ns != after->ns)
      Write("renameCollection",
            [&](BsonBuilder& p) { p.Append("old", before->ns).Append("new", after->ns); });
    TellIndexes(*before, *after);
    Catalog& catalog = server_.storage().catalog();
    const BsonDocument was = OptionsOf(catalog, *before), is = OptionsOf(catalog, *after);
    if (was.bytes() != is.bytes())
      Write("collMod", [&](BsonBuilder& p) {
        p.Append("ns", after->ns).Append("old", was).Append("new", is);
      });
  }

 private:
  void Write(std::string_view atype, const AuditLog::Param& param,
             ErrorCode result = ErrorCode::kOk) {
    log_.Write(client_.actor(), atype, param, result);
  }

  void TellCollection(std::string_view atype, const CollectionInfo& c, bool made) {
    Write(atype, [&](BsonBuilder& p) {
      p.Append("ns", c.ns);
      if (c.is_view()) {
        p.Append("viewOn", c.db + "." + c.view_on);
        AppendPipeline(server_.storage().catalog(), c, p);
      }
      AppendRules(p, RulesOf(c), made);
    });
  }

  static IndexInfoPtr Find(const CollectionInfo& c, uint32_t id) {
    for (const IndexInfoPtr& i : c.indexes)
      if (i->id == id) return i;
    return nullptr;
  }

  void TellBuild(const CollectionInfo& c, const IndexInfo& i, std::string_view state,
                 ErrorCode result = ErrorCode::kOk) {
    Write(
        "createIndex",
        [&](BsonBuilder& p) {
          p.Append("ns", c.ns).Append("indexName", i.name);
          const BsonDocument spec = BuildBson([&](BsonBuilder& b) { AppendIndexSpec(c, &i, b); });
          p.Append("indexSpec", ShownDefinition(c.db, c.name, {}, spec));
          p.Append("indexBuildState", state);
        },
        result);
  }

  void TellIndexes(const CollectionInfo& before, const CollectionInfo& after) {
    for (const IndexInfoPtr& i : after.indexes) {
      const IndexInfoPtr was = Find(before, i->id);
      if (was == nullptr) {
        TellBuild(after, *i, "IndexBuildStarted");
        if (i->state == IndexState::kReady) TellBuild(after, *i, "IndexBuildSucceeded");
      } else if (was->state != i->state && i->state == IndexState::kReady) {
        TellBuild(after, *i, "IndexBuildSucceeded");
      } else if (was->hidden != i->hidden || was->prepare_unique != i->prepare_unique) {
        TellFlags(after, *was, *i);
      }
    }
    for (const IndexInfoPtr& i : before.indexes) {
      if (Find(after, i->id) != nullptr) continue;
      if (i->state == IndexState::kBuilding) {
        TellBuild(after, *i, "IndexBuildAborted", ErrorCode::kIndexBuildAborted);
      } else if (const IndexInfoPtr now = after.FindIndex(i->name); now == nullptr) {
        Write("dropIndex", [&](BsonBuilder& p) {
          p.Append("ns", after.ns).Append("indexName", i->name);
          if (!i->expire_after_seconds) return;
          p.OpenDocument("old").Append("expireAfterSeconds", *i->expire_after_seconds);
          p.AppendNull("new");
        });
      }
    }
  }

  void TellFlags(const CollectionInfo& c, const IndexInfo& was, const IndexInfo& is) {
    Write("collMod", [&](BsonBuilder& p) {
      p.Append("ns", c.ns).Append("index", is.name);
      for (const auto& [side, i] : {std::pair("old", &was), std::pair("new", &is)})
        p.OpenDocument(side).Append("hidden", i->hidden).Append("prepareUnique", i->prepare_unique);
    });
  }

  ServerContext& server_;
  AuditLog& log_;
  const Client client_;
};

}  // namespace

void AuditSchema(ServerContext& server) {
  SchemaWatch watch;
  watch.may_change = [&server](Operation& op, const CollectionInfo*,
                               const CollectionInfo*) -> Result<void> {
    if (op.id == 0) return Ok();  // the server's own
    return CheckAudit(server);
  };
  watch.changed = [&server](Operation& op, const CollectionInfo* before,
                            const CollectionInfo* after) {
    SchemaChange(server, FindClient(server, op)).Tell(before, after);
  };
  WatchSchema(server.storage(), std::move(watch));
}

std::function<void(const CollectionInfo&)> AuditMade(ServerContext& server, const Operation& op) {
  if (server.audit() == nullptr) return {};
  return [&server, client = FindClient(server, op)](const CollectionInfo& made) {
    SchemaChange(server, client).Tell(nullptr, &made);
  };
}

void AuditStartup(ServerContext& server) {
  AuditLog* log = server.audit();
  if (log == nullptr) return;
  log->Write(nullptr, "startup", [&](BsonBuilder& p) {
    p.Append("startupOptions", server.config().parsed);
    BsonArrayBuilder list = p.OpenArray("initialClusterServerParameters");
    for (const std::string_view name : ClusterParameters::Names(server.replica_set()))
      (void)server.cluster_parameters().Append(server.storage(), server.replica_set(), name, list);
  });
}

}  // namespace mayfly
