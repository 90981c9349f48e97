#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/error.h"
#include "security/member_rule.h"
#include "security/tls_options.h"
#include "security/tls_session.h"

namespace mayfly {

/// Handshakes since the start; relaxed atomics.
struct TlsCounters {
  std::atomic<int64_t> tls12{0}, tls13{0}, resumed{0}, failed{0}, evicted{0};
  std::atomic<int64_t> under_way{0};  ///< now
};

/// A server's TLS: its mode, its files, and sessions for connections. Reading the files again
/// affects later sessions only; existing ones keep what they have. Threads: any. Outlives nothing:
/// sessions keep what they need.
class Tls {
 public:
  /// `now`: seconds since 1970, from any thread.
  using Now = std::function<int64_t()>;
  /// Reads the files unless TLS is disabled. Errors: InvalidOptions 72, naming the file and what is
  /// wrong with it.
  static Result<std::unique_ptr<Tls>> Make(TlsOptions options, Now now);
  ~Tls();
  Tls(const Tls&) = delete;

  TlsMode mode() const { return mode_.load(std::memory_order_relaxed); }
  bool accepts() const { return mode() != TlsMode::kDisabled; }
  bool accepts_plain() const { return mode() != TlsMode::kRequire; }
  /// Whether connections to other members are encrypted.
  bool dials() const { return mode() >= TlsMode::kPrefer; }
  /// setParameter tlsMode: a step forward, from allowTLS to preferTLS or from that to requireTLS.
  /// Errors: BadValue 2.
  Result<void> SetMode(TlsMode mode);

  ClusterAuthMode cluster_auth() const { return cluster_auth_.load(std::memory_order_relaxed); }
  /// setParameter clusterAuthMode: a step forward, from sendKeyFile to sendX509 or from that to
  /// x509. Errors: BadValue 2.
  Result<void> SetClusterAuth(ClusterAuthMode mode);
  /// Whether the other side has shown a certificate of a member of this set: one that was verified,
  /// and that MemberRule knows.
  bool IsMember(const TlsPeer& peer) const;
  /// The same of a name as RFC 2253 writes it: of a user of `$external`.
  bool IsMemberName(std::string_view subject) const;

  /// Reads all files again. Tickets of earlier sessions are worth nothing afterwards, so a
  /// certificate that was taken back meanwhile is looked at again. Errors: InvalidOptions 72; then
  /// everything stays as it was. Blocks.
  Result<void> Rotate();

  /// The server's side over a connected socket that does not block; `early`: what was read from it.
  /// Null: there is no memory for it. REQUIRES: accepts().
  std::unique_ptr<TlsSession> Accept(int socket, std::string early) const;
  /// The client's side. The other one must have a certificate for `host` (a name or an IP address)
  /// unless that is switched off. REQUIRES: accepts().
  std::unique_ptr<TlsSession> Dial(int socket, const std::string& host) const;
  /// A context for servers that do without TlsSession: of the HTTP endpoint, where a certificate
  /// of the client is looked at when there is one, and not required. Kept by the result. REQUIRES:
  /// accepts().
  std::shared_ptr<SSL_CTX> HttpContext() const;

  /// What serverStatus shows of this server's certificate.
  struct Facts {
    std::string subject;
    int64_t expires = 0;  ///< seconds since 1970
    bool has_authority = false;
  };
  /// The facts of the files as last read; empty while TLS is disabled.
  Facts facts() const;
  /// Warnings about the present files: certificates that will soon expire, checks that are switched
  /// off.
  std::vector<std::string> Warnings() const;
  /// Whether a certificate that ends then should be warned of.
  bool ExpiresSoon(int64_t seconds) const;
  TlsCounters& counters() { return counters_; }
  const TlsOptions& options() const { return options_; }

 private:
  struct Contexts;
  Tls(TlsOptions options, Now now) : options_(std::move(options)), now_(std::move(now)) {}
  Result<std::shared_ptr<const Contexts>> Load() const;
  std::shared_ptr<const Contexts> contexts() const;

  const TlsOptions options_;
  const Now now_;
  std::atomic<TlsMode> mode_{TlsMode::kDisabled};
  std::atomic<ClusterAuthMode> cluster_auth_{ClusterAuthMode::kKeyFile};
  MemberRule members_;
  mutable std::mutex mutex_;
  std::shared_ptr<const Contexts> contexts_;  ///< null: disabled
  mutable TlsCounters counters_;
};

}  // namespace mayfly
