#include "server/commands/register.h"

#include "server/dispatch/command.h"

namespace mayfly {

void RegisterAggregate(CommandRegistry&);
void RegisterApplyOps(CommandRegistry&);
void RegisterBuildInfo(CommandRegistry&);
void RegisterBulkWrite(CommandRegistry&);
void RegisterCappedCommands(CommandRegistry&);
void RegisterClock(CommandRegistry&);
void RegisterClusterParameters(CommandRegistry&);
void RegisterCollMod(CommandRegistry&);
void RegisterCollectionCommands(CommandRegistry&);
void RegisterCompact(CommandRegistry&);
void RegisterConnectionStatus(CommandRegistry&);
void RegisterCreate(CommandRegistry&);
void RegisterCurrentOp(CommandRegistry&);
void RegisterDbHash(CommandRegistry&);
void RegisterDelete(CommandRegistry&);
void RegisterDiagnosticData(CommandRegistry&);
void RegisterExpiryCommands(CommandRegistry&);
void RegisterExplain(CommandRegistry&);
void RegisterFailPoint(CommandRegistry&);
void RegisterFileMd5(CommandRegistry&);
void RegisterFind(CommandRegistry&);
void RegisterFindAndModify(CommandRegistry&);
void RegisterFsync(CommandRegistry&);
void RegisterGetCmdLineOpts(CommandRegistry&);
void RegisterGetLog(CommandRegistry&);
void RegisterGetParameter(CommandRegistry&);
void RegisterHello(CommandRegistry&);
void RegisterHostInfo(CommandRegistry&);
void RegisterIndexCommands(CommandRegistry&);
void RegisterInsert(CommandRegistry&);
void RegisterKillOp(CommandRegistry&);
void RegisterListCommands(CommandRegistry&);
void RegisterLogRotate(CommandRegistry&);
void RegisterMemberStream(CommandRegistry&);
void RegisterPing(CommandRegistry&);
void RegisterPlanCacheClear(CommandRegistry&);
void RegisterProfile(CommandRegistry&);
void RegisterReplicationCommands(CommandRegistry&);
void RegisterReplicationConcerns(CommandRegistry&);
void RegisterServerStatus(CommandRegistry&);
void RegisterSessionCommands(CommandRegistry&);
void RegisterSetParameter(CommandRegistry&);
void RegisterShutdown(CommandRegistry&);
void RegisterStatsCommands(CommandRegistry&);
void RegisterTop(CommandRegistry&);
void RegisterTtlCheck(CommandRegistry&);
void RegisterTtlControl(CommandRegistry&);
void RegisterTtlStatus(CommandRegistry&);
void RegisterUnavailableCommands(CommandRegistry&);
void RegisterUpdate(CommandRegistry&);
void RegisterValidateMetadata(CommandRegistry&);
void RegisterWhatsMyUri(CommandRegistry&);

void RegisterAllCommands(CommandRegistry& registry) {
  // Alphabetical, one a line.
  RegisterAggregate(registry);
  RegisterApplyOps(registry);
  RegisterBuildInfo(registry);
  RegisterBulkWrite(registry);
  RegisterCappedCommands(registry);
  RegisterClock(registry);
  RegisterClusterParameters(registry);
  RegisterCollMod(registry);
  RegisterCollectionCommands(registry);
  RegisterCompact(registry);
  RegisterConnectionStatus(registry);
  RegisterCreate(registry);
  RegisterCurrentOp(registry);
  RegisterDbHash(registry);
  RegisterDelete(registry);
  RegisterDiagnosticData(registry);
  RegisterExpiryCommands(registry);
  RegisterExplain(registry);
  RegisterFailPoint(registry);
  RegisterFileMd5(registry);
  RegisterFind(registry);
  RegisterFindAndModify(registry);
  RegisterFsync(registry);
  RegisterGetCmdLineOpts(registry);
  RegisterGetLog(registry);
  RegisterGetParameter(registry);
  RegisterHello(registry);
  RegisterHostInfo(registry);
  RegisterIndexCommands(registry);
  RegisterInsert(registry);
  RegisterKillOp(registry);
  RegisterListCommands(registry);
  RegisterLogRotate(registry);
  RegisterMemberStream(registry);
  RegisterPing(registry);
  RegisterPlanCacheClear(registry);
  RegisterProfile(registry);
  RegisterReplicationCommands(registry);
  RegisterReplicationConcerns(registry);
  RegisterServerStatus(registry);
  RegisterSessionCommands(registry);
  RegisterSetParameter(registry);
  RegisterShutdown(registry);
  RegisterStatsCommands(registry);
  RegisterTop(registry);
  RegisterTtlCheck(registry);
  RegisterTtlControl(registry);
  RegisterTtlStatus(registry);
  RegisterUnavailableCommands(registry);
  RegisterUpdate(registry);
  RegisterValidateMetadata(registry);
  RegisterWhatsMyUri(registry);
}

}  // namespace mayfly
