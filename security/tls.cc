#include "security/tls.h"

#include <arpa/inet.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <cstring>

#include "security/tls_files.h"
#include "security/x509_facts.h"

namespace mayfly {
namespace {

constexpr int64_t kDaySeconds = 86'400;
/// A ticket is valid for this long, and a key seals new tickets for as long.
constexpr int64_t kTicketSeconds = 3600;
/// Ciphers with forward secrecy and authenticated encryption come first. All drivers of the last
/// ten years support one of them.
constexpr const char* kCiphers =
    "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20:ECDHE+AES:DHE+AES:!aNULL:!eNULL:!SHA1:"
    "!DSS";
constexpr unsigned char kSessionContext[] = "mayfly";

/// The keys that seal session tickets. A new one is made every hour; the previous one still opens
/// tickets.
class TicketKeys {
 public:
  explicit TicketKeys(const Tls::Now& now) : now_(now) {}

  /// The function for SSL_CTX_set_tlsext_ticket_key_evp_cb.
  int Use(unsigned char* name, unsigned char* iv, EVP_CIPHER_CTX* cipher, EVP_MAC_CTX* mac,
          bool seal) {
    std::lock_guard l(mutex_);
    if (!Refresh()) return -1;
    const Key* key = &current_;
    if (seal) {
      if (RAND_bytes(iv, EVP_MAX_IV_LENGTH) != 1) return -1;
      std::memcpy(name, current_.name, sizeof current_.name);
    } else if (std::memcmp(name, current_.name, sizeof current_.name) != 0) {
      if (previous_.made == 0 || now_() - previous_.made >= 2 * kTicketSeconds ||
          std::memcmp(name, previous_.name, sizeof previous_.name) != 0)
        return 0;  // not our key, or too old: a full handshake follows
      key = &previous_;
    }
    OSSL_PARAM parameters[3] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, const_cast<unsigned char*>(key->mac),
                                          sizeof key->mac),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, const_cast<char*>("SHA256"), 0),
        OSSL_PARAM_construct_end()};
    if (EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), nullptr, key->aes, iv, seal ? 1 : 0) != 1 ||
        EVP_MAC_CTX_set_params(mac, parameters) != 1)
      return -1;
    return key == &current_ ? 1 : 2;
  }

 private:
  struct Key {
    unsigned char name[16], aes[32], mac[32];
    int64_t made = 0;
  };
  bool Refresh() {
    const int64_t now = now_();
    if (current_.made != 0 && now - current_.made < kTicketSeconds && now >= current_.made)
      return true;
    Key next;
    if (RAND_bytes(next.name, sizeof next.name) != 1 ||
        RAND_priv_bytes(next.aes, sizeof next.aes) != 1 ||
        RAND_priv_bytes(next.mac, sizeof next.mac) != 1)
      return false;
    next.made = std::max<int64_t>(now, 1);
    previous_ = current_;
    current_ = next;
    return true;
  }

  const Tls::Now now_;
  std::mutex mutex_;
  Key current_, previous_;
};

int TicketKeysIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}
int UseTicketKey(SSL* ssl, unsigned char* name, unsigned char* iv, EVP_CIPHER_CTX* cipher,
                 EVP_MAC_CTX* mac, int seal) {
  auto* keys =
      static_cast<TicketKeys*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), TicketKeysIndex()));
  return keys == nullptr ? -1 : keys->Use(name, iv, cipher, mac, seal != 0);
}

/// Continues although the certificate is not trusted. SSL_get_verify_result still tells what was
/// wrong.
int AcceptInvalid(int, X509_STORE_CTX*) { return 1; }

/// A list of revoked certificates must be there of the authority that has signed the certificate.
/// Those of the authorities above count if they are there.
int NeedsOneList(int ok, X509_STORE_CTX* c) {
  if (ok != 0 || X509_STORE_CTX_get_error(c) != X509_V_ERR_UNABLE_TO_GET_CRL ||
      X509_STORE_CTX_get_error_depth(c) == 0)
    return ok;
  // There was no error before this one: the verification would have ended there.
  X509_STORE_CTX_set_error(c, X509_V_OK);
  return 1;
}

SSL_verify_cb CheckOf(const TlsOptions& o) {
  if (o.allow_invalid_certificates) return &AcceptInvalid;
  return o.crl_file.empty() ? nullptr : &NeedsOneList;
}

using TlsContext = std::shared_ptr<SSL_CTX>;

/// What all contexts have in common.
Result<TlsContext> NewContext(const TlsOptions& o, const SSL_METHOD* method) {
  TlsContext context(SSL_CTX_new(method), [](SSL_CTX* c) { SSL_CTX_free(c); });
  if (!context) return InvalidOptions("TLS: OpenSSL cannot make a context");
  SSL_CTX* c = context.get();
  SSL_CTX_set_options(c, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION |
                             SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF |
                             SSL_OP_SINGLE_ECDH_USE);
  SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                          SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(c, 1);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_min_proto_version(c, o.tls12 ? TLS1_2_VERSION : TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(c, o.tls13 ? TLS1_3_VERSION : TLS1_2_VERSION);
  SSL_CTX_set_dh_auto(c, 1);
  if (SSL_CTX_set_cipher_list(c, o.ciphers.empty() ? kCiphers : o.ciphers.c_str()) != 1)
    return InvalidOptions("opensslCipherConfig: there is no cipher in '" + o.ciphers + "'");
  if (!o.cipher_suites.empty() && SSL_CTX_set_ciphersuites(c, o.cipher_suites.c_str()) != 1)
    return InvalidOptions("opensslCipherSuiteConfig: there is no cipher suite in '" +
                          o.cipher_suites + "'");
  ERR_clear_error();
  return context;
}

Result<void> UseIdentity(SSL_CTX* c, const TlsIdentity& id, std::string_view option,
                         const std::string& path) {
  bool used = SSL_CTX_use_certificate(c, id.certificate.get()) == 1 &&
              SSL_CTX_use_PrivateKey(c, id.key.get()) == 1;
  for (const auto& between : id.chain)
    used = used && SSL_CTX_add1_chain_cert(c, between.get()) == 1;
  if (used) return Ok();
  const char* why = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return InvalidOptions(std::string(option) + ": " + path + ": " +
                        (why != nullptr ? why : "OpenSSL does not take it"));
}

struct Authorities {
  std::vector<std::shared_ptr<X509>> certificates;
  std::vector<std::shared_ptr<X509_CRL>> revoked;
  bool of_system = false;
};

/// `whole_chain`: whether a revoked authority invalidates its certificates. Not with AcceptInvalid,
/// which continues after errors and remembers only the last.
Result<void> UseAuthorities(SSL_CTX* c, const Authorities& a, bool tell_clients, bool whole_chain) {
  X509_STORE* store = SSL_CTX_get_cert_store(c);
  if (a.of_system && SSL_CTX_set_default_verify_paths(c) != 1)
    return InvalidOptions("tlsUseSystemCA: the system's certificates cannot be read");
  for (const auto& ca : a.certificates) {
    X509_STORE_add_cert(store, ca.get());
    if (tell_clients) SSL_CTX_add_client_CA(c, ca.get());
  }
  for (const auto& list : a.revoked) X509_STORE_add_crl(store, list.get());
  if (!a.revoked.empty())
    X509_STORE_set_flags(store,
                         X509_V_FLAG_CRL_CHECK | (whole_chain ? X509_V_FLAG_CRL_CHECK_ALL : 0));
  ERR_clear_error();
  return Ok();
}

/// Finds the certificates between a certificate and its authority once. OpenSSL would look for
/// them, and check their signatures, in every handshake. What is found need not be valid: the other
/// side judges.
void KeepChain(SSL_CTX* c, const TlsIdentity& id) {
  if (id.chain.empty())
    SSL_CTX_build_cert_chain(c, SSL_BUILD_CHAIN_FLAG_NO_ROOT | SSL_BUILD_CHAIN_FLAG_IGNORE_ERROR |
                                    SSL_BUILD_CHAIN_FLAG_CLEAR_ERROR);
  SSL_CTX_set_mode(c, SSL_MODE_NO_AUTO_CHAIN);
  ERR_clear_error();
}

}  // namespace

/// The contexts that were made from the files. Immutable, except for the ticket keys, which have a
/// lock of their own.
struct Tls::Contexts {
  explicit Contexts(const Now& now) : tickets(now) {}
  mutable TicketKeys tickets;
  TlsContext clients, http, dialler;
  Facts facts;
  std::string organisation;  ///< of this member's certificate; empty: it has none
  int64_t dialler_expires = 0;
};

std::string_view ClusterAuthModeName(ClusterAuthMode mode) {
  switch (mode) {
    case ClusterAuthMode::kKeyFile:
      return "keyFile";
    case ClusterAuthMode::kSendKeyFile:
      return "sendKeyFile";
    case ClusterAuthMode::kSendX509:
      return "sendX509";
    case ClusterAuthMode::kX509:
      return "x509";
  }
  return "";
}

std::optional<ClusterAuthMode> ClusterAuthModeByName(std::string_view name) {
  using enum ClusterAuthMode;
  for (ClusterAuthMode m : {kKeyFile, kSendKeyFile, kSendX509, kX509})
    if (name == ClusterAuthModeName(m)) return m;
  return {};
}

std::string_view TlsModeName(TlsMode mode) {
  switch (mode) {
    case TlsMode::kDisabled:
      return "disabled";
    case TlsMode::kAllow:
      return "allowTLS";
    case TlsMode::kPrefer:
      return "preferTLS";
    case TlsMode::kRequire:
      return "requireTLS";
  }
  return "";
}

std::optional<TlsMode> TlsModeByName(std::string_view name) {
  for (TlsMode m : {TlsMode::kDisabled, TlsMode::kAllow, TlsMode::kPrefer, TlsMode::kRequire}) {
    std::string older(TlsModeName(m));
    if (const size_t at = older.find("TLS"); at != std::string::npos) older.replace(at, 3, "SSL");
    if (name == TlsModeName(m) || name == older) return m;
  }
  return {};
}

Result<std::unique_ptr<Tls>> Tls::Make(TlsOptions options, Now now) {
  std::unique_ptr<Tls> tls(new Tls(std::move(options), std::move(now)));
  MAYFLY_TRY(tls->members_, MemberRule::Make(tls->options_));
  tls->cluster_auth_ = tls->options_.cluster_auth;
  if (tls->options_.mode == TlsMode::kDisabled) return tls;
  MAYFLY_TRY(tls->contexts_, tls->Load());
  tls->mode_ = tls->options_.mode;
  return tls;
}

Tls::~Tls() = default;

Result<std::shared_ptr<const Tls::Contexts>> Tls::Load() const {
  const TlsOptions& o = options_;
  constexpr std::string_view kOwn = "net.tls.certificateKeyFile", kCluster = "net.tls.clusterFile";
  auto made = std::make_shared<Contexts>(now_);
  MAYFLY_TRY(TlsIdentity own,
             ReadTlsIdentity(kOwn, o.certificate_key_file, o.certificate_key_password, now_()));
  TlsIdentity cluster = own;
  if (!o.cluster_file.empty()) {
    MAYFLY_TRY(cluster, ReadTlsIdentity(kCluster, o.cluster_file, o.cluster_password, now_()));
  }
  Authorities servers, clients;
  if (!o.ca_file.empty()) {
    MAYFLY_TRY(servers.certificates, ReadTlsAuthorities("net.tls.CAFile", o.ca_file));
  }
  clients.certificates = servers.certificates;
  if (!o.cluster_ca_file.empty()) {
    MAYFLY_TRY(clients.certificates,
               ReadTlsAuthorities("net.tls.clusterCAFile", o.cluster_ca_file));
  }
  if (!o.crl_file.empty()) {
    MAYFLY_TRY(servers.revoked, ReadTlsRevocations("net.tls.CRLFile", o.crl_file));
    clients.revoked = servers.revoked;
  }
  servers.of_system = clients.of_system = o.use_system_ca && o.ca_file.empty();

  for (TlsContext* door : {&made->clients, &made->http}) {
    MAYFLY_TRY(*door, NewContext(o, TLS_server_method()));
    SSL_CTX* c = door->get();
    MAYFLY_TRY(UseIdentity(c, own, kOwn, o.certificate_key_file));
    MAYFLY_TRY(UseAuthorities(c, clients, true, !o.allow_invalid_certificates));
    KeepChain(c, own);
    const bool required = door == &made->clients && !o.allow_connections_without_certificates;
    // Only with authorities that were named: the system's authorities vouch for servers, and would
    // accept anybody's certificate.
    if (!clients.certificates.empty())
      SSL_CTX_set_verify(c, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                         CheckOf(o));
    SSL_CTX_set_session_id_context(c, kSessionContext, sizeof kSessionContext - 1);
    SSL_CTX_set_timeout(c, kTicketSeconds);
  }
  SSL_CTX_set_num_tickets(made->clients.get(), 1);
  SSL_CTX_set_ex_data(made->clients.get(), TicketKeysIndex(), &made->tickets);
  SSL_CTX_set_tlsext_ticket_key_evp_cb(made->clients.get(), &UseTicketKey);
  // The HTTP context has no ticket keys, so it issues no tickets.
  SSL_CTX_set_options(made->http.get(), SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(made->http.get(), 0);

  MAYFLY_TRY(made->dialler, NewContext(o, TLS_client_method()));
  MAYFLY_TRY(UseIdentity(made->dialler.get(), cluster, o.cluster_file.empty() ? kOwn : kCluster,
                         o.cluster_file.empty() ? o.certificate_key_file : o.cluster_file));
  MAYFLY_TRY(UseAuthorities(made->dialler.get(), servers, false, !o.allow_invalid_certificates));
  KeepChain(made->dialler.get(), cluster);
  SSL_CTX_set_verify(made->dialler.get(), SSL_VERIFY_PEER, CheckOf(o));

  made->organisation = OrganisationOf(X509_get_subject_name(cluster.certificate.get()));
  if (TakesCertificates(cluster_auth())) {
    // Others have to see a member on either side of a connection.
    for (const auto& [option, identity] : {std::pair(kOwn, &own), std::pair(kCluster, &cluster)}) {
      const X509* c = identity->certificate.get();
      const std::string subject = SubjectOf(c), membership = MembershipOf(c);
      if (members_.has_own_rule() && !members_.Knows({subject, {}, membership}, {}))
        return InvalidOptions(std::string(option) +
                              ": its certificate is not a member's: it does not have " +
                              members_.Text() + " (net.tls.clusterAuthX509)");
    }
  }
  if (TakesCertificates(cluster_auth()) && !members_.has_own_rule()) {
    const std::string shown = OrganisationOf(X509_get_subject_name(own.certificate.get()));
    if (made->organisation.empty())
      return InvalidOptions(
          std::string(o.cluster_file.empty() ? kOwn : kCluster) +
          ": the subject of the certificate has neither O, OU nor DC, by which the members "
          "of a set know one another (clusterAuthMode " +
          std::string(ClusterAuthModeName(cluster_auth())) + ")");
    if (!members_.Knows({.organisation = shown}, made->organisation))
      return InvalidOptions(std::string(kCluster) +
                            ": its certificate has other attributes O, OU and DC than that of " +
                            std::string(kOwn) + ": the members of a set know one another by these");
  }
  made->facts.subject = SubjectOf(own.certificate.get());
  made->facts.expires = ExpiryOf(own.certificate.get());
  made->facts.has_authority = !clients.certificates.empty();
  made->dialler_expires = ExpiryOf(cluster.certificate.get());
  return std::shared_ptr<const Contexts>(std::move(made));
}

std::shared_ptr<const Tls::Contexts> Tls::contexts() const {
  std::lock_guard l(mutex_);
  return contexts_;
}

Result<void> Tls::SetMode(TlsMode mode) {
  const TlsMode now = this->mode();
  if (mode == now) return Ok();
  const bool forward = (now == TlsMode::kAllow && mode == TlsMode::kPrefer) ||
                       (now == TlsMode::kPrefer && mode == TlsMode::kRequire);
  if (!forward)
    return Error{ErrorCode::kBadValue,
                 "Illegal state transition for tlsMode, attempt to change "
                 "from " +
                     std::string(TlsModeName(now)) + " to " + std::string(TlsModeName(mode))};
  mode_ = mode;
  return Ok();
}

Result<void> Tls::SetClusterAuth(ClusterAuthMode mode) {
  using enum ClusterAuthMode;
  const ClusterAuthMode now = cluster_auth();
  if (mode == now) return Ok();
  const bool forward =
      (now == kSendKeyFile && mode == kSendX509) || (now == kSendX509 && mode == kX509);
  if (!forward)
    return Error{ErrorCode::kBadValue,
                 "Illegal state transition for clusterAuthMode, change from " +
                     std::string(ClusterAuthModeName(now)) + " to " +
                     std::string(ClusterAuthModeName(mode))};
  if (!dials())
    return Error{ErrorCode::kBadValue,
                 "Illegal state transition for clusterAuthMode, need to enable TLS for outgoing "
                 "connections: set tlsMode to preferTLS first"};
  cluster_auth_ = mode;
  return Ok();
}

bool Tls::IsMember(const TlsPeer& peer) const {
  const auto c = contexts();
  return c && members_.Knows({peer.subject, peer.organisation, peer.membership}, c->organisation);
}

bool Tls::IsMemberName(std::string_view subject) const {
  const auto c = contexts();
  return c && members_.KnowsName(subject, c->organisation);
}

Result<void> Tls::Rotate() {
  if (!accepts())
    return Error{ErrorCode::kIllegalOperation,
                 "rotateCertificates: TLS is disabled, there are no certificates to read"};
  MAYFLY_TRY(std::shared_ptr<const Contexts> next, Load());
  std::lock_guard l(mutex_);
  contexts_.swap(next);
  return Ok();
}

std::unique_ptr<TlsSession> Tls::Accept(int socket, std::string early) const {
  auto c = contexts();
  SSL* ssl = SSL_new(c->clients.get());
  if (ssl == nullptr) return nullptr;
  SSL_set_accept_state(ssl);
  return std::unique_ptr<TlsSession>(new TlsSession(ssl, std::move(c), socket, std::move(early)));
}

std::unique_ptr<TlsSession> Tls::Dial(int socket, const std::string& host) const {
  auto c = contexts();
  SSL* ssl = SSL_new(c->dialler.get());
  if (ssl == nullptr) return nullptr;
  SSL_set_connect_state(ssl);
  in6_addr any{};
  const bool address = ::inet_pton(AF_INET, host.c_str(), &any) == 1 ||
                       ::inet_pton(AF_INET6, host.c_str(), &any) == 1;
  bool ready = true;
  if (!address) ready = SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
  if (!options_.allow_invalid_hostnames && !options_.allow_invalid_certificates)
    ready = ready && (address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str())
                              : SSL_set1_host(ssl, host.c_str())) == 1;
  if (!ready) {
    SSL_free(ssl);
    return nullptr;
  }
  return std::unique_ptr<TlsSession>(new TlsSession(ssl, std::move(c), socket, {}));
}

std::shared_ptr<SSL_CTX> Tls::HttpContext() const {
  auto c = contexts();
  return {c, c->http.get()};
}

Tls::Facts Tls::facts() const {
  const auto c = contexts();
  return c ? c->facts : Facts{};
}

bool Tls::ExpiresSoon(int64_t seconds) const {
  return options_.expiry_warning_days > 0 &&
         seconds - now_() < options_.expiry_warning_days * kDaySeconds;
}

std::vector<std::string> Tls::Warnings() const {
  std::vector<std::string> out;
  const auto c = contexts();
  if (!c) return out;
  auto expiring = [&](const std::string& path, int64_t expires) {
    if (!ExpiresSoon(expires)) return;
    const int64_t days = std::max<int64_t>(0, (expires - now_()) / kDaySeconds);
    out.push_back("The certificate in " + path + " expires in " + std::to_string(days) +
                  " days: put a new one in its place and run rotateCertificates");
  };
  expiring(options_.certificate_key_file, c->facts.expires);
  if (!options_.cluster_file.empty()) expiring(options_.cluster_file, c->dialler_expires);
  if (options_.allow_invalid_certificates)
    out.push_back(
        "net.tls.allowInvalidCertificates is set: certificates of others are not "
        "verified");
  else if (options_.allow_invalid_hostnames)
    out.push_back(
        "net.tls.allowInvalidHostnames is set: other members may have certificates for "
        "other names");
  return out;
}

}  // namespace mayfly
