#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "security/tls_session.h"
#include "security/user_cache.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// A connection's certificate, and who that is.
struct HttpCertificate {
  std::optional<TlsPeer> peer;  ///< none: no TLS
  UserAccessPtr access;         ///< null: nobody
  uint64_t generation = 0;      ///< of users and roles, when `access` was looked for; 0: never
};

/// The user of an HTTP request while access control is on: a user of `admin` by name and password
/// (RFC 7617, Basic), checked against what is stored for SCRAM; a user of `$external` by the
/// certificate of the connection; or a scraper by its token (RFC 6750, Bearer). A password that was
/// right is remembered for a while by a digest with a key of this process, since checking takes
/// some milliseconds. The HTTP thread's own.
class HttpLogins {
 public:
  HttpLogins(ServerContext& server, IoExecutor io);

  /// Reads the file of mayfly.httpMetricsTokenFile, if it is given. Errors: those of ReadTokenFile.
  Result<void> Start();

  /// The user of an `Authorization` header, or without one of the certificate; null: none, a wrong
  /// password, an address not allowed for the user, or too many checks in progress. Wrong passwords
  /// delay the next attempt, like logins by the wire protocol.
  Awaitable<UserAccessPtr> Find(std::string_view authorization, const HttpOrigin& origin,
                                HttpCertificate& certificate);
  /// Whether scrapers may bring a token.
  bool takes_tokens() const { return !token_digest_.empty(); }

 private:
  struct Known {
    UserAccessPtr access;
    int64_t until = 0;  ///< Clock::MonotonicMicros
  };
  Awaitable<UserAccessPtr> ByPassword(std::string_view authorization, const HttpOrigin& origin);
  Awaitable<UserAccessPtr> ByCertificate(HttpCertificate& certificate, const HttpOrigin& origin);
  UserAccessPtr ByToken(std::string_view authorization, const HttpOrigin& origin);
  Awaitable<UserAccessPtr> Check(CommandContext& ctx, const UserName& name,
                                 std::string_view password, const HttpOrigin& origin);

  ServerContext& server_;
  IoExecutor io_;
  std::string key_;
  std::map<std::string, Known, std::less<>> known_;
  std::string token_digest_;  ///< with key_; empty: there is no token
  UserAccessPtr scraper_;     ///< what the token allows
  int checking_ = 0;
};

/// The token in a file, without the end of its line. Errors: those of ReadSecretFile; BadValue
/// 2 when it is shorter than kMinMetricsToken or has other characters than RFC 6750 allows.
Result<std::string> ReadTokenFile(const std::string& path);

}  // namespace mayfly
