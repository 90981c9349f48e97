#pragma once
#include <memory>

#include "ttl/ttl_monitor.h"

namespace mayfly {

class ServerContext;

/// The TTL monitor as this server runs it: seen by currentOp, the profiler and the log, resting
/// under an fsync lock, moved by the clock command. REQUIRES: the context has its storage. The
/// caller starts it and stops it before the storage closes.
std::unique_ptr<TtlMonitor> MakeTtlMonitor(ServerContext& server);
/// Before it goes: the context asks it no more.
void DetachTtlMonitor(ServerContext& server);

}  // namespace mayfly
