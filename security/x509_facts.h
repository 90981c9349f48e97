#pragma once
#include <openssl/types.h>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "security/names.h"

namespace mayfly {

/// The subject as `openssl x509 -subject -nameopt RFC2253` shows it, which is how MongoDB names
/// users of `$external`: "CN=app,OU=clients,O=Example".
std::string SubjectOf(const X509* certificate);
/// The part that members of one set share: the attributes O, OU and DC of a subject, in a fixed
/// order, so that two texts are equal when the attributes are. Empty without any of them.
std::string OrganisationOf(const X509_NAME* name);
/// The same of a name as text, "OU=members,O=Example": separated by commas, `\` before a literal
/// character. Errors: BadValue 2 where there is none of the three, or no name.
Result<std::string> ParseOrganisation(std::string_view name);
/// An attribute of a distinguished name: the type as OpenSSL shortens it ("CN"), or its number.
struct NameAttribute {
  std::string type, value;
  auto operator<=>(const NameAttribute&) const = default;
};
/// All attributes of a name in writing, "CN=a,O=Example" (as for ParseOrganisation, and as
/// SubjectOf writes it), in the order of NameAttribute. Errors: BadValue 2 for what is no name.
Result<std::vector<NameAttribute>> ParseName(std::string_view name);
/// The text in the extension 1.3.6.1.4.1.34601.2.1.2, by which members can know one another
/// (manual: "net.tls.clusterAuthX509.extensionValue"): a UTF8String, PrintableString or IA5String.
/// Empty without one, and when it is none of these.
std::string MembershipOf(const X509* certificate);
/// The end of its validity, in seconds since 1970.
int64_t ExpiryOf(const X509* certificate);
/// The roles that a certificate grants by itself, in the extension 1.3.6.1.4.1.34601.2.1.1
/// (manual: "x.509 certificates extension for authorization"): none without one. Errors: BadValue 2
/// for an extension that cannot be read.
Result<std::vector<RoleName>> RolesOf(const X509* certificate);
/// The extension's value: DER of a SET of SEQUENCEs of two UTF8Strings, role and database. At most
/// kMaxCertificateRoles. Any bytes may be given. Errors: BadValue 2.
Result<std::vector<RoleName>> ParseRolesExtension(std::string_view der);
inline constexpr size_t kMaxCertificateRoles = 1000;

}  // namespace mayfly
