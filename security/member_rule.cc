#include "security/member_rule.h"

#include <algorithm>

namespace mayfly {
namespace {

constexpr std::string_view kAttributes = "net.tls.clusterAuthX509.attributes",
                           kExtension = "net.tls.clusterAuthX509.extensionValue",
                           kOther = "tlsClusterAuthX509Override",
                           kOtherName = "tlsX509ClusterAuthDNOverride";

Result<std::vector<NameAttribute>> Attributes(std::string_view option, std::string_view text) {
  if (text.empty()) return std::vector<NameAttribute>();
  Result<std::vector<NameAttribute>> name = ParseName(text);
  if (!name) return InvalidOptions(std::string(option) + ": " + name.error().message);
  if (name.value().empty())
    return InvalidOptions(std::string(option) + ": '" + std::string(text) +
                          "' has no attribute with a value");
  return name;
}

bool Has(const std::vector<NameAttribute>& subject, const std::vector<NameAttribute>& wanted) {
  return !wanted.empty() &&
         std::includes(subject.begin(), subject.end(), wanted.begin(), wanted.end());
}

}  // namespace

Result<MemberRule> MemberRule::Make(const TlsOptions& o) {
  if (!o.member_attributes.empty() && !o.member_extension.empty())
    return InvalidOptions(std::string(kAttributes) + " and " + std::string(kExtension) +
                          " exclude each other: members are known by one of them");
  if (!o.other_member_attributes.empty() && !o.other_member_extension.empty())
    return InvalidOptions(std::string(kOther) +
                          ": attributes and extensionValue exclude each other");
  MemberRule rule;
  MAYFLY_TRY(rule.attributes_, Attributes(kAttributes, o.member_attributes));
  MAYFLY_TRY(rule.other_attributes_, Attributes(kOther, o.other_member_attributes));
  rule.attributes_text_ = o.member_attributes;
  rule.extension_ = o.member_extension;
  rule.other_extension_ = o.other_member_extension;
  if (!o.member_name_override.empty()) {
    if (rule.has_own_rule())
      return InvalidOptions(std::string(kOtherName) +
                            " is about O, OU and DC, by which members do not know one another with "
                            "net.tls.clusterAuthX509: set " +
                            std::string(kOther) + " instead");
    Result<std::string> name = ParseOrganisation(o.member_name_override);
    if (!name) return InvalidOptions(std::string(kOtherName) + ": " + name.error().message);
    rule.other_organisation_ = std::move(name).value();
  }
  return rule;
}

bool MemberRule::Knows(const Certificate& c, std::string_view own) const {
  if (!c.membership.empty() && (c.membership == extension_ || c.membership == other_extension_))
    return true;
  if (!has_own_rule() && !c.organisation.empty() &&
      (c.organisation == own || c.organisation == other_organisation_))
    return true;
  if (attributes_.empty() && other_attributes_.empty()) return false;
  const Result<std::vector<NameAttribute>> name = ParseName(c.subject);
  return name && (Has(name.value(), attributes_) || Has(name.value(), other_attributes_));
}

bool MemberRule::KnowsName(std::string_view subject, std::string_view own) const {
  const Result<std::string> organisation = ParseOrganisation(subject);
  return Knows({subject, organisation ? std::string_view(organisation.value()) : "", ""}, own);
}

std::string MemberRule::Text() const {
  return extension_.empty() ? "the attributes '" + attributes_text_ + "'"
                            : "the extension value '" + extension_ + "'";
}

}  // namespace mayfly
