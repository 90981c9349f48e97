#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "security/tls_options.h"
#include "security/x509_facts.h"

namespace mayfly {

/// Decides which certificates belong to members of this set: net.tls.clusterAuthX509 and the
/// parameters tlsX509ClusterAuthDNOverride and tlsClusterAuthX509Override (manual: "x.509
/// Certificate for Membership Authentication"). Without any of them those with the O, OU and DC of
/// this member's own. Immutable. Threads: any.
class MemberRule {
 public:
  /// The parts of a verified certificate that the rule checks.
  struct Certificate {
    std::string_view subject;       ///< SubjectOf
    std::string_view organisation;  ///< OrganisationOf
    std::string_view membership;    ///< MembershipOf
  };

  /// Errors: InvalidOptions 72, naming the option.
  static Result<MemberRule> Make(const TlsOptions& options);
  /// Whether O, OU and DC of this member's own do not count.
  bool has_own_rule() const { return !attributes_.empty() || !extension_.empty(); }
  /// `own`: OrganisationOf this member's certificate; empty: it has none.
  bool Knows(const Certificate& c, std::string_view own) const;
  /// Whether a certificate may belong to a member, judging by its subject alone.
  bool KnowsName(std::string_view subject, std::string_view own) const;
  /// "the attributes …" or "the extension value …", of the option; REQUIRES: has_own_rule().
  std::string Text() const;

 private:
  std::vector<NameAttribute> attributes_, other_attributes_;
  std::string attributes_text_, extension_, other_extension_;
  std::string other_organisation_;  ///< ParseOrganisation of the parameter; empty: none
};

}  // namespace mayfly
