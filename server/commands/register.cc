#include "server/commands/register.h"

namespace mayfly {

void RegisterBuildInfo(CommandRegistry&);
void RegisterClock(CommandRegistry&);
void RegisterCompact(CommandRegistry&);
void RegisterConnectionStatus(CommandRegistry&);
void RegisterCurrentOp(CommandRegistry&);
void RegisterFsync(CommandRegistry&);
void RegisterGetCmdLineOpts(CommandRegistry&);
void RegisterGetLog(CommandRegistry&);
void RegisterGetParameter(CommandRegistry&);
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
void RegisterUnavailableCommands(CommandRegistry&);
void RegisterWhatsMyUri(CommandRegistry&);

void RegisterAllCommands(CommandRegistry& registry) {
  // Alphabetical, one a line.
  RegisterBuildInfo(registry);
  RegisterClock(registry);
  RegisterCompact(registry);
  RegisterConnectionStatus(registry);
  RegisterCurrentOp(registry);
  RegisterFsync(registry);
  RegisterGetCmdLineOpts(registry);
  RegisterGetLog(registry);
  RegisterGetParameter(registry);
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
  RegisterUnavailableCommands(registry);
  RegisterWhatsMyUri(registry);
}

}  // namespace mayfly
