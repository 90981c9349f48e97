// How members know one another: the keys of a key file, and the O, OU and DC of certificates.
#include "security/cluster_auth.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "../storage/storage_fixture.h"
#include "../test_certificates.h"
#include "security/key_file.h"
#include "security/tls.h"
#include "security/x509_facts.h"

using namespace mayfly;
using testing::Issuer;
using testing::ScratchDir;

namespace {

using Keys = std::vector<std::string>;

std::string Why(const std::string& text) {
  auto r = ParseKeyFile(text, "the file");
  return r ? "" : r.error().message;
}

using Subject = std::vector<std::pair<std::string, std::string>>;

/// A member's TLS, as options of it say.
struct Member {
  ScratchDir dir;
  Issuer issuer;
  TlsOptions o;
  int files = 0;

  explicit Member(Subject unit = {{"O", "Example"}, {"OU", "members"}}) {
    o.mode = TlsMode::kPrefer;
    o.ca_file = issuer.Write(dir.path() + "/ca.pem");
    o.certificate_key_file = Certificate(std::move(unit));
  }
  std::string Certificate(Subject unit) {
    issuer.unit = std::move(unit);
    return issuer.Issue(dir.path() + "/" + std::to_string(++files) + ".pem", "db");
  }
  Result<std::unique_ptr<Tls>> Make() {
    return Tls::Make(o, [] { return ::time(nullptr); });
  }
  std::string Why() {
    auto tls = Make();
    return tls ? "" : tls.error().message;
  }
};

std::string OrganisationOfSubject(const Issuer& issuer) {
  return OrganisationOf(X509_get_subject_name(issuer.own.get()));
}

TlsPeer PeerWith(const std::string& name) {
  TlsPeer p;
  p.organisation = ParseOrganisation(name).value();
  return p;
}

TlsPeer PeerNamed(const std::string& subject) {
  TlsPeer p;
  p.subject = subject;
  return p;
}

}  // namespace

TEST_CASE("A key file has one key, or several while they are rotated", "[members]") {
  CHECK(ParseKeyFile("abc def\nghi\n", "f").value() == Keys{"abcdefghi"});
  CHECK(ParseKeyFile("- abcdef\n- ghi\n  jkl\n", "f").value() == Keys{"abcdef", "ghijkl"});
  CHECK(ParseKeyFile("- 'abc\n  def'\n- \"ghijkl\"\n", "f").value() == Keys{"abcdef", "ghijkl"});
  CHECK(ParseKeyFile("'abcdef'\n\n'ghijkl'", "f").value() == Keys{"abcdef", "ghijkl"});
  CHECK(ParseKeyFile("abc+/=", "f").value() == Keys{"abc+/="});
  CHECK(Why("").find("length 0") != std::string::npos);
  CHECK(Why("- \n- \n").find("length 0") != std::string::npos);
  CHECK(Why("- abcdef\n- abc\n").find("length 3") != std::string::npos);
  CHECK(Why("'abcdef").find("does not end") != std::string::npos);
  CHECK(Why("'abc-def'").find("base64") != std::string::npos);
  CHECK(Why("abc!def").find("base64") != std::string::npos);
  CHECK(Why(std::string(1025, 'a')).find("length 1025") != std::string::npos);
  CHECK(Why("- aaaaaa\n- bbbbbb\n- cccccc\n- dddddd\n- eeeeee").find("5 keys") !=
        std::string::npos);
  // No message shows a key.
  for (const char* bad : {"geheim!", "'geheim", "- geheim\n- gehe"})
    CHECK(Why(bad).find("gehei") == std::string::npos);
}

TEST_CASE("Members have O, OU and DC in common, in any order", "[members]") {
  const std::string name = ParseOrganisation("CN=a,OU=members,O=Example").value();
  CHECK(ParseOrganisation("O=Example, OU=members,CN=b,C=DE").value() == name);
  CHECK(ParseOrganisation("O=Example+OU=members").value() == name);
  CHECK(ParseOrganisation("O=Example").value() != name);
  CHECK(ParseOrganisation("O=members,OU=Example").value() != name);
  CHECK(ParseOrganisation("DC=net,DC=example").value() ==
        ParseOrganisation("DC=example,DC=net").value());
  // A value that looks like attributes is a value.
  CHECK(ParseOrganisation("O=Example\\,OU=members").value() != name);
  CHECK(ParseOrganisation("O=M\\C3\\BCnchen").value() == ParseOrganisation("O=München").value());
  for (const char* bad : {"", "CN=a", "O=", "members", "O=Example,members"})
    CHECK_FALSE(ParseOrganisation(bad));
  // What RFC 2253 writes of a certificate is the same as the certificate.
  Issuer issuer;
  issuer.unit = {{"DC", "net"}, {"O", "Exämple, \"Inc.\" +"}, {"OU", "a\\b;<c>"}};
  issuer.own = issuer.Make("x", issuer.key.get(), nullptr, -1, 1, {});
  CHECK(OrganisationOfSubject(issuer) == ParseOrganisation(SubjectOf(issuer.own.get())).value());
  issuer.unit = {};
  issuer.own = issuer.Make("x", issuer.key.get(), nullptr, -1, 1, {});
  CHECK(OrganisationOfSubject(issuer).empty());
}

TEST_CASE("Who is a member by a certificate", "[members]") {
  Member m;
  m.o.cluster_auth = ClusterAuthMode::kSendKeyFile;
  auto tls = m.Make().value();
  CHECK(tls->IsMember(PeerWith("CN=other,O=Example,OU=members")));
  CHECK_FALSE(tls->IsMember(PeerWith("CN=db,O=Example,OU=clients")));
  CHECK_FALSE(tls->IsMember(PeerWith("CN=db,O=Example")));
  CHECK_FALSE(tls->IsMember(TlsPeer{}));
  CHECK(tls->IsMemberName("CN=anything,OU=members,O=Example"));
  CHECK_FALSE(tls->IsMemberName("CN=anything,O=Example"));
  CHECK_FALSE(tls->IsMemberName("members"));
  // The other name, while certificates get one.
  m.o.member_name_override = "O=Example,OU=new members";
  tls = m.Make().value();
  CHECK(tls->IsMember(PeerWith("O=Example,OU=new members")));
  CHECK(tls->IsMember(PeerWith("O=Example,OU=members")));
  m.o.member_name_override = "CN=db";
  CHECK(m.Why().find("tlsX509ClusterAuthDNOverride") != std::string::npos);
  // New certificates are looked at from when they are read.
  m.o.member_name_override.clear();
  tls = m.Make().value();
  m.files = 0;
  m.Certificate({{"O", "Renamed"}});
  REQUIRE(tls->Rotate());
  CHECK(tls->IsMember(PeerWith("O=Renamed")));
  CHECK_FALSE(tls->IsMember(PeerWith("O=Example,OU=members")));

  Member none(Subject{});
  CHECK(none.Make());
  none.o.cluster_auth = ClusterAuthMode::kX509;
  CHECK(none.Why().find("neither O, OU nor DC") != std::string::npos);
  Member two;
  two.o.cluster_file = two.Certificate({{"O", "Example"}, {"OU", "others"}});
  CHECK(two.Make());
  two.o.cluster_auth = ClusterAuthMode::kSendX509;
  CHECK(two.Why().find("other attributes") != std::string::npos);
  two.o.member_name_override = "O=Example,OU=members";
  CHECK(two.Make());
}

TEST_CASE("Members are known by attributes of one's own choice", "[members]") {
  Member m({{"C", "DE"}, {"L", "Berlin"}});
  m.o.cluster_auth = ClusterAuthMode::kX509;
  CHECK(m.Why().find("neither O, OU nor DC") != std::string::npos);
  m.o.member_attributes = "L=Berlin, C=DE";
  auto tls = m.Make().value();
  CHECK(tls->IsMember(PeerNamed("CN=other,L=Berlin,C=DE")));
  CHECK(tls->IsMember(PeerNamed("CN=other,OU=any,localityName=Berlin,C=DE")));
  CHECK_FALSE(tls->IsMember(PeerNamed("CN=other,L=Berlin")));
  CHECK_FALSE(tls->IsMember(PeerNamed("CN=other,L=Berlin\\,C=DE")));
  CHECK_FALSE(tls->IsMember(PeerNamed("CN=L\\=Berlin,C=DE")));
  CHECK_FALSE(tls->IsMember(TlsPeer{}));  // nothing was verified
  CHECK(tls->IsMemberName("C=DE,L=Berlin,CN=x"));
  CHECK_FALSE(tls->IsMemberName("CN=x"));
  // Not the attributes that would count otherwise.
  Member o;
  o.o.cluster_auth = ClusterAuthMode::kX509;
  o.o.member_attributes = "CN=db";
  tls = o.Make().value();
  CHECK_FALSE(tls->IsMember(PeerWith("O=Example,OU=members")));
  o.o.member_attributes = "L=Berlin";
  CHECK(o.Why().find("certificateKeyFile: its certificate is not a member's") != std::string::npos);
  o.o.other_member_attributes = "OU=members";  // on the way from one to the other
  CHECK(o.Make());
  for (const char* bad : {"Berlin", "L=", ","}) {
    o.o.member_attributes = bad;
    CHECK(o.Why().find("net.tls.clusterAuthX509.attributes") != std::string::npos);
  }
  o.o.member_attributes = "CN=db";
  o.o.member_name_override = "O=Example";
  CHECK(o.Why().find("tlsClusterAuthX509Override") != std::string::npos);
}

TEST_CASE("Members are known by an extension", "[members]") {
  Member m(Subject{});
  m.o.cluster_auth = ClusterAuthMode::kSendX509;
  m.o.member_extension = "blue";
  CHECK(m.Why().find("the extension value 'blue'") != std::string::npos);
  m.issuer.membership = "blue";
  m.o.certificate_key_file = m.Certificate({});
  auto tls = m.Make().value();
  TlsPeer peer = PeerNamed("CN=db");
  CHECK_FALSE(tls->IsMember(peer));
  peer.membership = "blue";
  CHECK(tls->IsMember(peer));
  peer.membership = "blu";
  CHECK_FALSE(tls->IsMember(peer));
  CHECK_FALSE(tls->IsMember(PeerWith("O=Example,OU=members")));
  // The file that is shown to others has it as well.
  m.issuer.membership = "green";
  m.o.cluster_file = m.Certificate({});
  CHECK(m.Why().find("net.tls.clusterFile: its certificate is not a member's") !=
        std::string::npos);
  m.o.other_member_extension = "green";
  CHECK(m.Make());
  m.o.other_member_attributes = "CN=db";
  CHECK(m.Why().find("exclude each other") != std::string::npos);
  m.o.other_member_attributes.clear();
  m.o.member_attributes = "CN=db";
  CHECK(m.Why().find("exclude each other") != std::string::npos);
}

TEST_CASE("clusterAuthMode goes forward one step at a time", "[members]") {
  using enum ClusterAuthMode;
  for (ClusterAuthMode m : {kKeyFile, kSendKeyFile, kSendX509, kX509})
    CHECK(ClusterAuthModeByName(ClusterAuthModeName(m)) == m);
  CHECK_FALSE(ClusterAuthModeByName("X509"));
  Member m;
  auto plain = m.Make().value();
  CHECK(plain->SetClusterAuth(kKeyFile));
  CHECK(plain->SetClusterAuth(kSendKeyFile).error().message ==
        "Illegal state transition for clusterAuthMode, change from keyFile to sendKeyFile");
  m.o.mode = TlsMode::kAllow;
  m.o.cluster_auth = kSendKeyFile;
  auto tls = m.Make().value();
  CHECK(tls->SetClusterAuth(kSendX509).error().code == ErrorCode::kBadValue);  // dials plain
  REQUIRE(tls->SetMode(TlsMode::kPrefer));
  CHECK_FALSE(tls->SetClusterAuth(kX509));
  CHECK(tls->SetClusterAuth(kSendX509));
  CHECK(tls->SetClusterAuth(kSendX509));
  CHECK_FALSE(tls->SetClusterAuth(kSendKeyFile));
  CHECK(tls->SetClusterAuth(kX509));
  CHECK_FALSE(tls->SetClusterAuth(kKeyFile));
}
