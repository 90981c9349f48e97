#pragma once

namespace mayfly {

class ServerContext;

/// Registers every parameter that the server layer owns, with MongoDB's names, defaults and ranges.
/// Layers that own others add theirs before the command line's --setParameter is applied.
void RegisterParameters(ServerContext& server);

}  // namespace mayfly
