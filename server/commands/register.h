#pragma once

namespace mayfly {

class CommandRegistry;

/// Adds every command of this server to the table: one Register function a file in this folder,
/// listed by name in register.cc, so that a command that is not listed does not exist.
void RegisterAllCommands(CommandRegistry& registry);

}  // namespace mayfly
