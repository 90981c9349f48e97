#pragma once
#include <functional>

namespace mayfly {

struct CollectionInfo;
class Operation;
class ServerContext;

/// From now on every change of collections and indexes, whatever its cause, leaves an entry in the
/// audit log; with auditFailClosed, a change without an entry is refused. REQUIRES: the server has
/// its storage and its audit log.
void AuditSchema(ServerContext& server);

/// Writes the entries of a collection that a transaction has made, for whoever runs `op`, which may
/// end before; any thread. Empty without an audit log. Of transactions whose client does not wait
/// for the commit: the others' AuditSchema tells.
std::function<void(const CollectionInfo&)> AuditMade(ServerContext& server, const Operation& op);

/// The entry of a server that has started, if it has an audit log.
void AuditStartup(ServerContext& server);

}  // namespace mayfly
