#include "server/commands/register.h"

namespace mayfly {

void RegisterAggregate(CommandRegistry&);
void RegisterBuildInfo(CommandRegistry&);
void RegisterBulkWrite(CommandRegistry&);
void RegisterClock(CommandRegistry&);
void RegisterCollMod(CommandRegistry&);
void RegisterCollectionCommands(CommandRegistry&);
void RegisterCompact(CommandRegistry&);
void RegisterConnectionStatus(CommandRegistry&);
void RegisterCurrentOp(CommandRegistry&);
void RegisterDelete(CommandRegistry&);
void RegisterExplain(CommandRegistry&);
void RegisterFailPoint(CommandRegistry&);
void RegisterFind(CommandRegistry&);
void RegisterFindAndModify(CommandRegistry&);
void RegisterFsync(CommandRegistry&);
void RegisterGetCmdLineOpts(CommandRegistry&);
void RegisterGetLog(CommandRegistry&);
void RegisterGetParameter(CommandRegistry&);
void RegisterIndexCommands(CommandRegistry&);
void RegisterInsert(CommandRegistry&);
void RegisterUpdate(CommandRegistry&);
void RegisterHello(CommandRegistry&);
void RegisterHostInfo(CommandRegistry&);
void RegisterKillOp(CommandRegistry&);
void RegisterListCommands(CommandRegistry&);
void RegisterLogRotate(CommandRegistry&);
void RegisterPing(CommandRegistry&);
void RegisterProfile(CommandRegistry&);
void RegisterServerStatus(CommandRegistry&);
void RegisterSessionCommands(CommandRegistry&);
void RegisterSetParameter(CommandRegistry&);
void RegisterShutdown(CommandRegistry&);
void RegisterTop(CommandRegistry&);
void RegisterTtlCheck(CommandRegistry&);
void RegisterTtlControl(CommandRegistry&);
void RegisterTtlStatus(CommandRegistry&);
void RegisterUnavailableCommands(CommandRegistry&);
void RegisterWhatsMyUri(CommandRegistry&);

void RegisterAllCommands(CommandRegistry& registry) {
  // Alphabetical, one a line.
  RegisterAggregate(registry);
  RegisterBuildInfo(registry);
  RegisterBulkWrite(registry);
  RegisterClock(registry);
  RegisterCollMod(registry);
  RegisterCollectionCommands(registry);
  RegisterCompact(registry);
  RegisterConnectionStatus(registry);
  RegisterCurrentOp(registry);
  RegisterDelete(registry);
  RegisterExplain(registry);
  RegisterFailPoint(registry);
  RegisterFind(registry);
  RegisterFindAndModify(registry);
  RegisterFsync(registry);
  RegisterGetCmdLineOpts(registry);
  RegisterGetLog(registry);
  RegisterGetParameter(registry);
  RegisterIndexCommands(registry);
  RegisterInsert(registry);
  RegisterUpdate(registry);
  RegisterHello(registry);
  RegisterHostInfo(registry);
  RegisterKillOp(registry);
  RegisterListCommands(registry);
  RegisterLogRotate(registry);
  RegisterPing(registry);
  RegisterProfile(registry);
  RegisterServerStatus(registry);
  RegisterSessionCommands(registry);
  RegisterSetParameter(registry);
  RegisterShutdown(registry);
  RegisterTop(registry);
  RegisterTtlCheck(registry);
  RegisterTtlControl(registry);
  RegisterTtlStatus(registry);
  RegisterUnavailableCommands(registry);
  RegisterWhatsMyUri(registry);
}

}  // namespace mayfly
