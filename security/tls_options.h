#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "security/cluster_auth.h"

namespace mayfly {

/// Which connections are encrypted: net.tls.mode (manual: "tls.mode").
enum class TlsMode : uint8_t {
  kDisabled,  ///< none
  kAllow,     ///< incoming may be encrypted, outgoing to members is not
  kPrefer,    ///< incoming may be encrypted, outgoing to members is
  kRequire,   ///< all
};

/// "disabled", "allowTLS", "preferTLS", "requireTLS".
std::string_view TlsModeName(TlsMode mode);
/// By the name above, or the older one with SSL for TLS. None: no such mode.
std::optional<TlsMode> TlsModeByName(std::string_view name);

/// How TLS was asked for: the options net.tls.* and the parameters that go with them.
struct TlsOptions {
  TlsMode mode = TlsMode::kDisabled;
  std::string certificate_key_file;  ///< PEM: this server's certificate, its chain, its key
  std::string certificate_key_password;
  std::string ca_file;       ///< who may have signed the certificates of others
  std::string crl_file;      ///< certificates that their authority has taken back
  std::string cluster_file;  ///< shown to other members; empty: certificate_key_file
  std::string cluster_password;
  std::string cluster_ca_file;  ///< for those who connect here; empty: ca_file
  bool allow_connections_without_certificates = false;
  bool allow_invalid_certificates = false;
  bool allow_invalid_hostnames = false;
  bool tls12 = true, tls13 = true;
  ClusterAuthMode cluster_auth = ClusterAuthMode::kKeyFile;
  // Parameters.
  bool use_system_ca = false;        ///< tlsUseSystemCA: where there is no ca_file
  std::string ciphers;               ///< opensslCipherConfig: of TLS 1.2; empty: the default
  std::string cipher_suites;         ///< opensslCipherSuiteConfig: of TLS 1.3; empty: the default
  int64_t expiry_warning_days = 30;  ///< tlsX509ExpirationWarningThresholdDays; 0: none
  /// tlsX509ClusterAuthDNOverride: certificates with the O, OU and DC of this name are members'
  /// too; empty: none.
  std::string member_name_override;
  // net.tls.clusterAuthX509: identifies members instead of O, OU and DC. At most one.
  std::string member_attributes;  ///< attributes that the subjects of members have, among others
  std::string member_extension;   ///< MembershipOf their certificates
  /// tlsClusterAuthX509Override: the same for certificates that are members' too. At most one.
  std::string other_member_attributes, other_member_extension;
};

}  // namespace mayfly
