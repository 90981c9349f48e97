#pragma once
#include <openssl/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "security/names.h"

namespace mayfly {

class Tls;

/// What is known of the other side of a TLS connection after its handshake. Immutable.
struct TlsPeer {
  std::string version;   ///< "TLSv1.3"
  std::string cipher;    ///< as OpenSSL names it
  std::string sni;       ///< the name that the client asked for; empty: none
  bool resumed = false;  ///< by a ticket of an earlier connection
  bool has_certificate = false;
  /// RFC 2253; empty without a certificate, and for an untrusted one (allowInvalidCertificates):
  /// such a certificate cannot log anybody in.
  std::string subject;
  std::string invalid;          ///< why the certificate is not trusted; empty: it is
  int64_t expires = 0;          ///< seconds since 1970
  std::vector<RoleName> roles;  ///< that the certificate grants by itself
  std::string organisation;     ///< OrganisationOf the certificate; empty as subject is
  std::string membership;       ///< MembershipOf the certificate; empty as subject is
};

/// What is known of the other side of `ssl`, whose handshake is complete. Errors: BadValue 2 for a
/// certificate with roles that cannot be read, and one that has expired since its session began:
/// the connection must end.
Result<TlsPeer> PeerOf(const SSL* ssl);

/// TLS over one connected socket that does not block. It neither owns nor closes the socket, and
/// never waits: when the socket has to become readable or writable first it says so, and the call
/// is repeated then. Bytes that were read before it was made are taken first.
///
/// Memory: about 20 kB for an idle connection; the buffers for records are there only while there
/// is something in them. Threads: one at a time.
class TlsSession {
 public:
  enum class Outcome : uint8_t { kDone, kWantRead, kWantWrite, kClosed, kFailed };
  struct Step {
    Outcome outcome = Outcome::kFailed;
    size_t bytes = 0;  ///< kDone: how many were read or written, at least one
  };

  ~TlsSession();
  TlsSession(const TlsSession&) = delete;

  /// The next part of the handshake. It may compute for a millisecond. kDone: it is complete, and
  /// peer() is known.
  Step Handshake();
  Step Read(char* data, size_t size);
  /// For callers that read the socket themselves, which saves a wait: they read at most Room()
  /// bytes to RoomForMore(), and call Came with their number. The next Read begins with them.
  /// REQUIRES: MayHaveMore() is false.
  char* RoomForMore();
  static constexpr size_t Room() { return 2048; }
  void Came(size_t bytes);
  /// After kWantWrite it must be called with the same bytes again, and may be given more behind
  /// them.
  Step Write(const char* data, size_t size);
  /// Whether a Read may give something although the socket has nothing: waiting for the socket
  /// would be wrong.
  bool MayHaveMore() const;
  /// Tells the other side that nothing more comes, if that is possible without waiting.
  void SayGoodbye();

  /// What went wrong, after kFailed.
  const std::string& failure() const { return failure_; }
  bool established() const { return peer_ != nullptr; }
  /// REQUIRES: established().
  const TlsPeer& peer() const { return *peer_; }

 private:
  friend class Tls;
  struct Wire;
  TlsSession(SSL* ssl, std::shared_ptr<const void> keeps, int socket, std::string early);
  Step After(int result);
  Step Fail(std::string why);
  Step Finish();

  const std::shared_ptr<const void> keeps_;  ///< what the SSL's context refers to
  SSL* const ssl_;
  const std::unique_ptr<Wire> wire_;
  std::string failure_;
  std::unique_ptr<const TlsPeer> peer_;
};

}  // namespace mayfly
