#pragma once

namespace mayfly {

class BsonBuilder;
class ServerContext;

/// serverStatus.security: what it says of this server's certificate; nothing where TLS is disabled.
void AppendTlsCertificate(ServerContext& server, BsonBuilder& security);
/// serverStatus.transportSecurity.
void AppendTransportSecurity(ServerContext& server, BsonBuilder& reply);

}  // namespace mayfly
