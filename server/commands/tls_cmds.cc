#include "server/commands/tls_status.h"

#include "security/tls.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/command.h"
#include "server/dispatch/server_context.h"
#include "server/privileges/privileges.h"

namespace mayfly {

namespace {

constexpr size_t kMaxMessage = 1024;

/// {rotateCertificates: 1, message: "for the log"} (manual "rotateCertificates").
Result<void> RotateCertificates(CommandContext& ctx, const CommandRequest& req, BsonBuilder&) {
  ArgReader in(req);
  const std::string message(in.StringOr("message", ""));
  MAYFLY_TRY(in.Finish());
  if (message.size() > kMaxMessage)
    return Error{ErrorCode::kBadValue, "rotateCertificates: message has more than 1024 bytes"};
  ServerContext& server = ctx.server;
  MAYFLY_TRY(server.tls().Rotate());
  const Tls::Facts facts = server.tls().facts();
  server.log().Write(
      LogSeverity::kInfo, LogComponent::kNetwork, 4913400, "Successfully rotated X509 certificates",
      BuildBson([&](BsonBuilder& b) {
        b.Append("subject", facts.subject).Append("expires", Instant{facts.expires * 1000});
        if (!message.empty()) b.Append("message", message);
      }));
  for (const std::string& warning : server.tls().Warnings())
    server.log().Warn(LogComponent::kNetwork, 9000122, warning);
  return Ok();
}

}  // namespace

void AppendTlsCertificate(ServerContext& server, BsonBuilder& security) {
  if (!server.tls().accepts()) return;
  const Tls::Facts facts = server.tls().facts();
  security.Append("SSLServerSubjectName", facts.subject);
  security.Append("SSLServerHasCertificateAuthority", facts.has_authority);
  security.Append("SSLServerCertificateExpirationDate", Instant{facts.expires * 1000});
}

void AppendTransportSecurity(ServerContext& server, BsonBuilder& reply) {
  const TlsCounters& c = server.tls().counters();
  BsonBuilder d = reply.OpenDocument("transportSecurity");
  d.Append("1.0", int64_t{0}).Append("1.1", int64_t{0});
  d.Append("1.2", c.tls12.load()).Append("1.3", c.tls13.load()).Append("unknown", int64_t{0});
  BsonBuilder h = d.OpenDocument("handshakes");
  h.Append("underWay", c.under_way.load()).Append("resumed", c.resumed.load());
  h.Append("failed", c.failed.load()).Append("evicted", c.evicted.load());
}

void RegisterRotateCertificates(CommandRegistry& registry) {
  registry.Add({.name = "rotateCertificates",
                .flags = kAdminOnly | kSecondaryOk | kWorker,
                .help = "Reads the files of TLS again: new connections use them, old ones go on.",
                .run = &RotateCertificates,
                .privileges = &privileges::OnCluster<Action::rotateCertificates>});
}

}  // namespace mayfly
