#include "server/commands/register.h"

namespace mayfly {

void RegisterHello(CommandRegistry&);
void RegisterPing(CommandRegistry&);

void RegisterAllCommands(CommandRegistry& registry) {
  // Alphabetical, one a line.
  RegisterHello(registry);
  RegisterPing(registry);
}

}  // namespace mayfly
