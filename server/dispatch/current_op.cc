#include "server/dispatch/current_op.h"

#include "protocol/extended_json.h"
#include "server/dispatch/server_context.h"
#include "storage/storage.h"

namespace mayfly {

namespace {

constexpr uint32_t kTruncateAt = 1000;
/// With whole commands asked for: when those so far have this many bytes, the others are cut all
/// the same.
constexpr size_t kMaxWholeCommands = size_t{32} << 20;

void AppendCommand(BsonView command, bool truncate, BsonBuilder& b) {
  if (!truncate || command.size() <= kTruncateAt) {
    b.Append("command", command);
    return;
  }
  // The whole command is rendered only when it is short enough for that to be quick.
  std::string text = command.size() <= 64 * 1024 ? ToRelaxedJson(command)
                                                 : std::to_string(command.size()) + " bytes of " +
                                                       std::string(command.First().name);
  if (text.size() > kTruncateAt) {
    size_t n = kTruncateAt;
    while (n > 0 && (static_cast<uint8_t>(text[n]) & 0xC0) == 0x80) --n;
    text.resize(n);
  }
  BsonBuilder c = b.OpenDocument("command");
  c.Append("$truncated", text);
  if (BsonValue comment = command["comment"]; !comment.missing() && comment.size() <= kTruncateAt)
    c.Append("comment", comment);
}

void AppendSession(std::string_view name, std::string_view id, BsonBuilder& b) {
  if (id.empty()) return;
  BsonBuilder lsid = b.OpenDocument(name);
  lsid.AppendBinary("id", 4, id);
}

}  // namespace

std::vector<BsonDocument> CollectOperations(const CommandContext& ctx,
                                            const CurrentOpOptions& options) {
  ServerContext& server = ctx.server;
  std::vector<BsonDocument> out;
  size_t whole = 0;
  const int64_t now_micros = server.clock().MonotonicMicros();
  const Instant now = server.clock().Now();
  const std::string now_text = FormatTimestamp(now, TimestampFormat::kIso8601Local);
  std::vector<Catalog::BuildProgress> builds;
  if (server.has_storage()) builds = server.storage().catalog().Builds();

  server.operations().ForEach([&](const ClientSlot::View& v) {
    if (v.op == nullptr && !options.idle_connections) return;
    if (options.own_only && &v.slot != ctx.client) return;
    out.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("type", "op").Append("host", server.host_and_port()).Append("desc", v.slot.desc);
      if (v.slot.connection_id != 0) {
        b.Append("connectionId", v.slot.connection_id).Append("client", v.slot.address);
        if (!v.app_name.empty()) b.Append("appName", v.app_name);
        if (!v.metadata.empty()) b.Append("clientMetadata", v.metadata);
      }
      b.Append("active", v.op != nullptr).Append("currentOpTime", now_text);
      if (v.op == nullptr) return;
      b.OpenArray("effectiveUsers").Done();
      b.Append("threaded", true).Append("opid", static_cast<int64_t>(v.op->id));
      AppendSession("lsid", v.session, b);
      const int64_t micros = now_micros - v.start_micros;
      b.Append("secs_running", micros / 1'000'000).Append("microsecs_running", micros);
      const OperationReport* r = v.report;
      b.Append("op", r ? r->op : std::string_view("none"));
      std::string ns = r ? r->ns : std::string();
      if (ns.empty() && !v.db.empty()) {
        const BsonValue first = v.command.First().value;
        ns.append(v.db).append(1, '.').append(first.IsString() ? first.String()
                                                               : std::string_view("$cmd"));
      }
      b.Append("ns", ns).Append("redacted", false);
      whole += v.command.size();
      AppendCommand(v.command, options.truncate || whole > kMaxWholeCommands, b);
      if (r != nullptr && !r->originating_command.view().empty())
        b.Append("originatingCommand", r->originating_command);
      if (r != nullptr && !r->plan_summary.empty()) b.Append("planSummary", r->plan_summary);
      for (const Catalog::BuildProgress& build : builds) {
        if (build.op_id != v.op->id || build.op_id == 0) continue;
        b.Append("msg", "Index Build: " +
                            std::to_string(build.total ? build.done * 100 / build.total : 0) + "%");
        BsonBuilder p = b.OpenDocument("progress");
        p.Append("done", build.done).Append("total", build.total);
      }
      if (v.kill_pending) b.Append("killPending", true);
      b.Append("numYields", int64_t{0});
      b.OpenDocument("locks").Done();
      b.Append("waitingForLock", false);
      b.OpenDocument("lockStats").Done();
      b.Append("waitingForFlowControl", false);
      b.OpenDocument("flowControlStats").Done();
    }));
  });

  // Builds that nobody waits for any more: resumed at start-up.
  for (const Catalog::BuildProgress& build : builds) {
    if (build.op_id != 0 || options.own_only) continue;
    out.push_back(BuildBson([&](BsonBuilder& b) {
      b.Append("type", "op")
          .Append("host", server.host_and_port())
          .Append("desc", "IndexBuildsCoordinatorMongod");
      b.Append("active", true)
          .Append("currentOpTime", now_text)
          .Append("op", "command")
          .Append("ns", build.ns);
      {
        BsonBuilder c = b.OpenDocument("command");
        BsonArrayBuilder names = c.OpenArray("createIndexes");
        for (const std::string& n : build.indexes) names.Append(n);
      }
      b.Append("msg", "Index Build: " +
                          std::to_string(build.total ? build.done * 100 / build.total : 0) + "%");
      BsonBuilder p = b.OpenDocument("progress");
      p.Append("done", build.done).Append("total", build.total);
    }));
  }

  if (options.idle_cursors) {
    server.cursors().ForEachIdle([&](const ClientCursor& c) {
      out.push_back(BuildBson([&](BsonBuilder& b) {
        b.Append("type", "idleCursor").Append("host", server.host_and_port()).Append("ns", c.ns);
        AppendSession("lsid", c.session, b);
        if (!c.plan_summary.empty()) b.Append("planSummary", c.plan_summary);
        BsonBuilder d = b.OpenDocument("cursor");
        d.Append("cursorId", c.id)
            .Append("createdDate", c.created)
            .Append("lastAccessDate", c.last_used);
        d.Append("nDocsReturned", c.documents_returned).Append("nBatchesReturned", c.batches);
        d.Append("noCursorTimeout", c.no_timeout).Append("tailable", c.cursor->tailable());
        d.Append("awaitData", c.cursor->await_data());
        if (c.originating_command.view().size() <= kTruncateAt || !options.truncate)
          d.Append("originatingCommand", c.originating_command);
        d.Append("operationUsingCursorId", int64_t{0});
      }));
    });
  }
  return out;
}

}  // namespace mayfly
