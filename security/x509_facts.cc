#include "security/x509_facts.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/objects.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <memory>
#include <optional>

namespace mayfly {
namespace {

constexpr const char* kRolesOid = "1.3.6.1.4.1.34601.2.1.1";
constexpr const char* kMembershipOid = "1.3.6.1.4.1.34601.2.1.2";

Error BadRoles() { return {ErrorCode::kBadValue, "the roles in the certificate cannot be read"}; }

/// Takes one universal value of this tag off the front. DER alone: lengths are definite.
bool TakeValue(std::string_view* in, int tag, bool constructed, std::string_view* out) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(in->data());
  const unsigned char* at = begin;
  long length = 0;
  int found = 0, kind = 0;
  const int head = ASN1_get_object(&at, &length, &found, &kind, static_cast<long>(in->size()));
  ERR_clear_error();
  // 0x80: not one, or longer than the data; 1: without its own length.
  if ((head & 0x81) != 0 || found != tag || kind != V_ASN1_UNIVERSAL ||
      ((head & V_ASN1_CONSTRUCTED) != 0) != constructed)
    return false;
  const auto header = static_cast<size_t>(at - begin), size = static_cast<size_t>(length);
  *out = in->substr(header, size);
  in->remove_prefix(header + size);
  return true;
}

/// The attributes that members have in common, in the order in which they are written down.
struct Attribute {
  std::string_view name;
  int nid;
};
constexpr std::array<Attribute, 3> kOfMembers = {
    {{"O", NID_organizationName}, {"OU", NID_organizationalUnitName}, {"DC", NID_domainComponent}}};

/// Attributes as (name, value), in one text. Values may have any bytes, so each has its length.
std::string Written(std::vector<std::pair<std::string_view, std::string>> all) {
  std::sort(all.begin(), all.end());
  std::string out;
  for (const auto& [name, value] : all)
    out.append(name) += "=" + std::to_string(value.size()) + ":" + value + "\n";
  return out;
}

/// The byte that two hexadecimal digits at the front stand for; none: they are no such digits.
std::optional<char> HexPair(std::string_view s) {
  if (s.size() < 2) return {};
  const int high = OPENSSL_hexchar2int(static_cast<unsigned char>(s[0]));
  const int low = OPENSSL_hexchar2int(static_cast<unsigned char>(s[1]));
  if (high < 0 || low < 0) return {};
  return static_cast<char>(high << 4 | low);
}

std::string_view Trimmed(std::string_view s) {
  while (s.starts_with(' ')) s.remove_prefix(1);
  while (s.ends_with(' ') && !s.ends_with("\\ ")) s.remove_suffix(1);
  return s;
}

/// As OpenSSL shortens it; what it does not know stays as it is.
std::string ShortType(std::string_view type) {
  const int nid = OBJ_txt2nid(std::string(type).c_str());
  ERR_clear_error();
  return nid == NID_undef ? std::string(type) : OBJ_nid2sn(nid);
}

/// The value of the extension with this number, DER; null: it has none, or several.
const ASN1_OCTET_STRING* ExtensionOf(const X509* certificate, const char* number) {
  const std::unique_ptr<ASN1_OBJECT, decltype(&::ASN1_OBJECT_free)> kind(OBJ_txt2obj(number, 1),
                                                                         &::ASN1_OBJECT_free);
  if (!kind) return nullptr;
  const int at = X509_get_ext_by_OBJ(certificate, kind.get(), -1);
  if (at < 0 || X509_get_ext_by_OBJ(certificate, kind.get(), at) >= 0) return nullptr;
  return X509_EXTENSION_get_data(X509_get_ext(certificate, at));
}

std::string_view BytesOf(const ASN1_OCTET_STRING* value) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
          static_cast<size_t>(ASN1_STRING_length(value))};
}

}  // namespace

std::string OrganisationOf(const X509_NAME* name) {
  std::vector<std::pair<std::string_view, std::string>> found;
  for (int i = 0; i < X509_NAME_entry_count(name); ++i) {
    const X509_NAME_ENTRY* e = X509_NAME_get_entry(name, i);
    const int nid = OBJ_obj2nid(X509_NAME_ENTRY_get_object(e));
    for (const Attribute& a : kOfMembers) {
      if (a.nid != nid) continue;
      unsigned char* text = nullptr;
      const int size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(e));
      // An unreadable value equals nothing.
      if (size < 0) return {};
      if (size > 0) found.emplace_back(a.name, std::string(text, text + size));
      OPENSSL_free(text);
    }
  }
  return Written(std::move(found));
}

Result<std::vector<NameAttribute>> ParseName(std::string_view name) {
  std::vector<NameAttribute> found;
  for (size_t at = 0; at <= name.size();) {
    size_t end = at;
    while (end < name.size() && name[end] != ',' && name[end] != '+')
      end += name[end] == '\\' && end + 1 < name.size() ? 2 : 1;
    const std::string_view part = name.substr(at, end - at);
    at = end + 1;
    const size_t equal = part.find('=');
    if (equal == std::string_view::npos)
      return Error{ErrorCode::kBadValue, "'" + std::string(name) + "' is not a distinguished name"};
    NameAttribute a{ShortType(Trimmed(part.substr(0, equal))), {}};
    const std::string_view raw = Trimmed(part.substr(equal + 1));
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        a.value += raw[i];
      } else if (const auto byte = HexPair(raw.substr(i + 1))) {
        a.value += *byte;
        i += 2;
      } else {
        a.value += raw[++i];
      }
    }
    if (!a.value.empty()) found.push_back(std::move(a));
  }
  std::sort(found.begin(), found.end());
  return found;
}

Result<std::string> ParseOrganisation(std::string_view name) {
  MAYFLY_TRY(const std::vector<NameAttribute> all, ParseName(name));
  std::vector<std::pair<std::string_view, std::string>> found;
  for (const NameAttribute& n : all)
    for (const Attribute& a : kOfMembers)
      if (a.name == n.type) found.emplace_back(a.name, n.value);
  if (found.empty())
    return Error{
        ErrorCode::kBadValue,
        "'" + std::string(name) + "' has neither O, OU nor DC, by which members are known"};
  return Written(std::move(found));
}

std::string SubjectOf(const X509* certificate) {
  std::unique_ptr<BIO, decltype(&::BIO_free_all)> out(BIO_new(BIO_s_mem()), &::BIO_free_all);
  if (!out ||
      X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253) < 0)
    return {};
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return {text, static_cast<size_t>(size)};
}

int64_t ExpiryOf(const X509* certificate) {
  tm when{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &when) != 1) return 0;
  return ::timegm(&when);
}

Result<std::vector<RoleName>> ParseRolesExtension(std::string_view der) {
  std::vector<RoleName> roles;
  std::string_view set;
  if (!TakeValue(&der, V_ASN1_SET, true, &set) || !der.empty()) return BadRoles();
  while (!set.empty()) {
    std::string_view entry, role, db;
    if (!TakeValue(&set, V_ASN1_SEQUENCE, true, &entry) ||
        !TakeValue(&entry, V_ASN1_UTF8STRING, false, &role) ||
        !TakeValue(&entry, V_ASN1_UTF8STRING, false, &db) || !entry.empty() ||
        !CheckPrincipalName(role, "Role") || db.empty() || db.size() > kMaxPrincipalName ||
        db.find('\0') != std::string_view::npos || roles.size() >= kMaxCertificateRoles)
      return BadRoles();
    roles.push_back({std::string(role), std::string(db)});
  }
  return roles;
}

Result<std::vector<RoleName>> RolesOf(const X509* certificate) {
  const ASN1_OCTET_STRING* value = ExtensionOf(certificate, kRolesOid);
  return value == nullptr ? std::vector<RoleName>() : ParseRolesExtension(BytesOf(value));
}

std::string MembershipOf(const X509* certificate) {
  const ASN1_OCTET_STRING* value = ExtensionOf(certificate, kMembershipOid);
  for (const int tag : {V_ASN1_UTF8STRING, V_ASN1_PRINTABLESTRING, V_ASN1_IA5STRING}) {
    std::string_view der = value == nullptr ? std::string_view() : BytesOf(value), text;
    if (TakeValue(&der, tag, false, &text) && der.empty()) return std::string(text);
  }
  return {};
}

}  // namespace mayfly
