#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "server/commands/info_cmds.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {
namespace {

/// The next line of `text`, without its end; false when there is none.
bool NextLine(std::string_view* text, std::string_view* line) {
  if (text->empty()) return false;
  const size_t end = text->find('\n');
  *line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return true;
}

/// The next word of `line`; empty at its end.
std::string_view NextWord(std::string_view* line) {
  const size_t begin = line->find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  line->remove_prefix(begin);
  const size_t end = std::min(line->find_first_of(" \t"), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(end);
  return word;
}

int64_t ParseWord(std::string_view word) {
  int64_t n = 0;
  std::from_chars(word.data(), word.data() + word.size(), n);
  return n;
}

/// /proc/stat: the machine's processors together, in milliseconds since it was started.
void AppendProcessors(BsonBuilder& out) {
  static constexpr std::string_view kTimes[] = {
      "user_ms", "nice_ms",    "system_ms", "idle_ms",  "iowait_ms",
      "irq_ms",  "softirq_ms", "steal_ms",  "guest_ms", "guest_nice_ms"};
  static constexpr std::string_view kCounts[] = {"ctxt", "btime", "processes", "procs_running",
                                                 "procs_blocked"};
  BsonBuilder cpu = out.OpenDocument("cpu");
  cpu.Append("num_cpus", static_cast<int32_t>(::sysconf(_SC_NPROCESSORS_ONLN)));
  const int64_t millis_a_tick = 1000 / std::max<int64_t>(1, ::sysconf(_SC_CLK_TCK));
  const std::string stat = ReadSmallFile("/proc/stat");
  std::string_view rest = stat, line;
  while (NextLine(&rest, &line)) {
    const std::string_view name = NextWord(&line);
    if (name == "cpu")
      for (std::string_view field : kTimes)
        cpu.Append(field, ParseWord(NextWord(&line)) * millis_a_tick);
    for (std::string_view field : kCounts)
      if (name == field) cpu.Append(field, ParseWord(NextWord(&line)));
  }
}

/// /proc/meminfo, as "MemTotal_kb" and the like.
void AppendMemory(BsonBuilder& out) {
  static constexpr std::string_view kFields[] = {
      "MemTotal",       "MemFree",      "Cached",        "Dirty",    "Buffers",
      "SwapTotal",      "SwapFree",     "Active",        "Inactive", "Active(anon)",
      "Inactive(anon)", "Active(file)", "Inactive(file)"};
  BsonBuilder memory = out.OpenDocument("memory");
  const std::string info = ReadSmallFile("/proc/meminfo");
  std::string_view rest = info, line;
  while (NextLine(&rest, &line)) {
    std::string_view name = NextWord(&line);
    if (name.empty()) continue;
    name.remove_suffix(1);  // the colon
    for (std::string_view field : kFields)
      if (name == field) memory.Append(std::string(field) + "_kb", ParseWord(NextWord(&line)));
  }
}

/// What another command answers, as a sub-document with the times around it. One that fails says
/// why.
void AppendAnswer(CommandContext& ctx, std::string_view command, BsonBuilder& out) {
  const CommandRow* row = ctx.server.commands().Find(command);
  const BsonDocument body = BuildBson([&](BsonBuilder& b) { b.Append(command, 1); });
  CommandRequest request;
  BsonBuilder answer = out.OpenDocument(command);
  answer.Append("start", ctx.data.clock().Now());
  Result<void> done = ParseCommandFields(body, &request, "admin");
  // Apart, so that one that fails half-way leaves nothing behind.
  std::string bytes;
  BsonBuilder fields(bytes);
  if (done) done = row->run(ctx, request, fields);
  fields.Done();
  if (done)
    answer.AppendAll(BsonView(bytes));
  else
    answer.Append("error", done.error().message);
  answer.Append("end", ctx.data.clock().Now());
}

/// For monitoring agents: the newest figures of the server, its set and the machine in one
/// reply.
Result<void> GetDiagnosticData(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  in.Any("getDiagnosticData");  // unused: the command's name
  MAYFLY_TRY(in.Finish());
  BsonBuilder data = reply.OpenDocument("data");
  data.Append("start", ctx.data.clock().Now());
  AppendAnswer(ctx, "serverStatus", data);
  if (ctx.data.replica_set() != nullptr) AppendAnswer(ctx, "replSetGetStatus", data);
  {
    BsonBuilder system = data.OpenDocument("systemMetrics");
    system.Append("start", ctx.data.clock().Now());
    AppendProcessors(system);
    AppendMemory(system);
    system.Append("end", ctx.data.clock().Now());
  }
  data.Append("end", ctx.data.clock().Now());
  return Ok();
}

}  // namespace

void RegisterDiagnosticData(CommandRegistry& registry) {
  registry.Add(
      {.name = "getDiagnosticData",
       .flags = kAdminOnly | kSecondaryOk | kWorker,
       .help = "Figures of the server, its replica set and the machine, for monitoring.",
       .run = &GetDiagnosticData,
       .privileges = &privileges::OnCluster<Action::replSetGetStatus, Action::serverStatus>});
}

}  // namespace mayfly
