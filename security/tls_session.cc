#include "security/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "security/tls_handshake_limit.h"
#include "security/x509_facts.h"

namespace mayfly {

/// The BIO that OpenSSL reads from and writes to. It is our own kind because it must not raise
/// SIGPIPE, must return bytes that were read before the handshake first, and must know when the
/// socket has been read empty.
struct TlsSession::Wire {
  int socket = -1;
  /// Bytes that were read already: the first `have` are valid, and `used` of these are consumed.
  std::string early;
  size_t have = 0, used = 0;
  bool drained = true;  ///< the last read got less than it asked for
  HandshakeLimit limit;

  static int Write(BIO* bio, const char* data, int size) {
    auto& w = *static_cast<Wire*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const ssize_t n = ::send(w.socket, data, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
    return static_cast<int>(n);
  }
  static int Read(BIO* bio, char* data, int size) {
    auto& w = *static_cast<Wire*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (w.used < w.have) {
      const size_t n = std::min(w.have - w.used, static_cast<size_t>(size));
      std::memcpy(data, w.early.data() + w.used, n);
      w.used += n;
      return static_cast<int>(n);
    }
    const ssize_t n = ::recv(w.socket, data, static_cast<size_t>(size), 0);
    w.drained = n < size;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    return static_cast<int>(n);
  }
  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
  static BIO_METHOD* Method() {
    static BIO_METHOD* const method = [] {
      BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "mayfly socket");
      BIO_meth_set_write(m, &Write);
      BIO_meth_set_read(m, &Read);
      BIO_meth_set_ctrl(m, &Control);
      return m;
    }();
    return method;
  }
};

namespace {

/// Returns the oldest error of this thread's queue and empties the queue.
std::string TakeError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? std::string("the TLS connection failed") : std::string(reason);
}

}  // namespace

TlsSession::TlsSession(SSL* ssl, std::shared_ptr<const void> keeps, int socket, std::string early)
    : keeps_(std::move(keeps)), ssl_(ssl), wire_(std::make_unique<Wire>()) {
  wire_->socket = socket;
  wire_->early = std::move(early);
  wire_->have = wire_->early.size();
  BIO* bio = BIO_new(Wire::Method());
  if (bio == nullptr) return;  // OpenSSL has no memory: every step fails
  BIO_set_data(bio, wire_.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_, bio, bio);
}

TlsSession::~TlsSession() { SSL_free(ssl_); }

TlsSession::Step TlsSession::Fail(std::string why) {
  failure_ = std::move(why);
  return {Outcome::kFailed, 0};
}

TlsSession::Step TlsSession::After(int result) {
  if (wire_->limit.exceeded()) return Fail("too many handshake messages after the handshake");
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      return {Outcome::kWantRead, 0};
    case SSL_ERROR_WANT_WRITE:
      return {Outcome::kWantWrite, 0};
    case SSL_ERROR_ZERO_RETURN:
      return {Outcome::kClosed, 0};
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return {Outcome::kClosed, 0};
    default:
      return Fail(TakeError());
  }
}

TlsSession::Step TlsSession::Handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_);
  if (result == 1) return Finish();
  Step step = After(result);
  if (step.outcome == Outcome::kFailed) {
    // The result of the verification says more than that the handshake failed.
    if (const long verified = SSL_get_verify_result(ssl_); verified != X509_V_OK)
      failure_ += std::string(": ") + X509_verify_cert_error_string(verified);
  }
  return step;
}

Result<TlsPeer> PeerOf(const SSL* ssl) {
  TlsPeer peer;
  peer.version = SSL_get_version(ssl);
  peer.cipher = SSL_get_cipher_name(ssl);
  if (const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name)) peer.sni = name;
  peer.resumed = SSL_session_reused(ssl) == 1;
  const X509* certificate = SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr) return peer;
  peer.has_certificate = true;
  peer.expires = ExpiryOf(certificate);
  // The certificate may have expired after the ticket was made.
  if (peer.resumed && X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0)
    return Error{ErrorCode::kBadValue, "the certificate of the resumed session has expired"};
  if (const long verified = SSL_get_verify_result(ssl); verified != X509_V_OK) {
    peer.invalid = X509_verify_cert_error_string(verified);
  } else {
    peer.subject = SubjectOf(certificate);
    peer.organisation = OrganisationOf(X509_get_subject_name(certificate));
    peer.membership = MembershipOf(certificate);
    MAYFLY_TRY(peer.roles, RolesOf(certificate));
  }
  return peer;
}

TlsSession::Step TlsSession::Finish() {
  Result<TlsPeer> peer = PeerOf(ssl_);
  if (!peer) return Fail(peer.error().message);
  peer_ = std::make_unique<const TlsPeer>(std::move(peer).value());
  wire_->limit.Watch(ssl_);
  return {Outcome::kDone, 1};
}

TlsSession::Step TlsSession::Read(char* data, size_t size) {
  ERR_clear_error();
  size_t n = 0;
  const int result = SSL_read_ex(ssl_, data, size, &n);
  if (result == 1) return {Outcome::kDone, n};
  return After(result);
}

TlsSession::Step TlsSession::Write(const char* data, size_t size) {
  ERR_clear_error();
  size_t n = 0;
  const int result = SSL_write_ex(ssl_, data, size, &n);
  if (result == 1) return {Outcome::kDone, n};
  const Step step = After(result);
  // Renegotiation is off, so a write never waits for a read.
  return step.outcome == Outcome::kWantRead ? Fail("a TLS write that waits for a read") : step;
}

char* TlsSession::RoomForMore() {
  if (wire_->early.size() != Room()) std::string(Room(), '\0').swap(wire_->early);
  wire_->have = wire_->used = 0;
  return wire_->early.data();
}

void TlsSession::Came(size_t bytes) {
  wire_->have = bytes;
  wire_->drained = bytes < Room();
}

bool TlsSession::MayHaveMore() const {
  return wire_->used < wire_->have || !wire_->drained || SSL_has_pending(ssl_) == 1;
}

void TlsSession::SayGoodbye() {
  if (!established()) return;
  ERR_clear_error();
  SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace mayfly
