#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace mayfly {

/// How the members of a set prove to one another that they are its members:
/// security.clusterAuthMode (manual: "Internal/Membership Authentication"). Each mode talks to the
/// ones beside it, so a running set goes from the first to the last one member by member.
enum class ClusterAuthMode : uint8_t {
  kKeyFile,      ///< by the key file
  kSendKeyFile,  ///< by the key file; certificates of others are taken too
  kSendX509,     ///< by certificate; the key file of others is taken too
  kX509,         ///< by certificate
};

/// "keyFile", "sendKeyFile", "sendX509", "x509".
std::string_view ClusterAuthModeName(ClusterAuthMode mode);
std::optional<ClusterAuthMode> ClusterAuthModeByName(std::string_view name);

constexpr bool ShowsCertificate(ClusterAuthMode m) { return m >= ClusterAuthMode::kSendX509; }
constexpr bool TakesCertificates(ClusterAuthMode m) { return m >= ClusterAuthMode::kSendKeyFile; }
constexpr bool TakesKeys(ClusterAuthMode m) { return m <= ClusterAuthMode::kSendX509; }

}  // namespace mayfly
