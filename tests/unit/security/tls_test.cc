// TLS without a network: what files say, sessions over a pair of sockets, and the facts that are
// taken from certificates.
#include "security/tls.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <functional>

#include "../scratch_dir.h"
#include "../test_certificates.h"
#include "security/tls_files.h"
#include "security/tls_handshake_limit.h"
#include "security/x509_facts.h"

namespace mayfly {
namespace {

using namespace std::string_literals;
using testing::Issuer;
using testing::ScratchDir;
using Outcome = TlsSession::Outcome;

int64_t Now() { return ::time(nullptr); }

/// Two ends of one connection that do not block.
struct Ends {
  Ends() {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, socket) == 0);
  }
  ~Ends() {
    for (int s : socket) ::close(s);
  }
  int socket[2];
};

/// Steps of both sides, in turn, until neither gets on.
void Greet(TlsSession& dialler, TlsSession& acceptor, TlsSession::Step* dialled,
           TlsSession::Step* accepted) {
  for (int i = 0; i < 20; ++i) {
    if (!dialler.established() && dialler.failure().empty()) *dialled = dialler.Handshake();
    if (!acceptor.established() && acceptor.failure().empty()) *accepted = acceptor.Handshake();
  }
}

struct Place {
  ScratchDir dir;
  Issuer issuer;
  TlsOptions options;
  Place() {
    options.mode = TlsMode::kRequire;
    options.certificate_key_file = issuer.Issue(Path("server.pem"), "server");
    options.ca_file = issuer.Write(Path("ca.pem"));
  }
  std::string Path(const std::string& name) const { return dir.path() + "/" + name; }
  std::string Wrong() const {
    auto made = Tls::Make(options, &Now);
    REQUIRE_FALSE(made);
    CHECK(made.error().code == ErrorCode::kInvalidOptions);
    return made.error().message;
  }
};

std::string Role(std::string_view role, std::string_view db) {
  std::string s = {0x0C, static_cast<char>(role.size())};
  s += role;
  s += {0x0C, static_cast<char>(db.size())};
  s += db;
  return std::string({0x30, static_cast<char>(s.size())}) + s;
}
std::string Set(const std::string& of) {
  return std::string({0x31, static_cast<char>(of.size())}) + of;
}

}  // namespace

TEST_CASE("Roles in a certificate are read, and nothing else is", "[tls]") {
  auto roles = ParseRolesExtension(Set(Role("readWrite", "shop") + Role("read", "test")));
  REQUIRE(roles);
  CHECK(roles.value() == std::vector<RoleName>{{"readWrite", "shop"}, {"read", "test"}});
  CHECK(ParseRolesExtension(Set("")).value().empty());
  // Lengths of two bytes, as of many roles.
  std::string many;
  for (int i = 0; i < 20; ++i) many += Role("role" + std::to_string(i), "database");
  std::string large = {0x31, static_cast<char>(0x82), static_cast<char>(many.size() >> 8),
                       static_cast<char>(many.size() & 0xFF)};
  CHECK(ParseRolesExtension(large + many).value().size() == 20);

  const std::string good = Set(Role("read", "test"));
  for (size_t n = 0; n < good.size(); ++n) {
    CAPTURE(n);
    CHECK_FALSE(ParseRolesExtension(good.substr(0, n)));
  }
  for (const std::string& bad :
       {good + "x", Set(Role("", "test")), Set(Role("read", "")), Set(Role("re\0ad"s, "test")),
        Set(Role("read", "te\0st"s)), Set("\x30\x02\x0C\x00"s), Set("\x02\x01\x05"),
        std::string("\x31\x80", 2) + Role("read", "test") + std::string(2, '\0'),
        std::string("\x31\x84\xFF\xFF\xFF\xFF"), std::string("\x31\x7F")})
    CHECK_FALSE(ParseRolesExtension(bad));
  std::string too_many;
  for (size_t i = 0; i <= kMaxCertificateRoles; ++i) too_many += Role("r", "d");
  std::string head = {0x31, static_cast<char>(0x83), 0, static_cast<char>(too_many.size() >> 8),
                      static_cast<char>(too_many.size() & 0xFF)};
  CHECK_FALSE(ParseRolesExtension(head + too_many));
}

TEST_CASE("A subject is written as RFC 2253 has it", "[tls]") {
  Issuer issuer("app \xC3\xBC");
  CHECK(SubjectOf(issuer.own.get()) == "CN=app \\C3\\BC,O=Example\\, Inc.");
  CHECK(RolesOf(issuer.own.get()).value().empty());
  CHECK(ExpiryOf(issuer.own.get()) > Now() + 900 * 86400);
}

TEST_CASE("Modes have MongoDB's names and go one way", "[tls]") {
  CHECK(TlsModeByName("requireSSL") == TlsMode::kRequire);
  CHECK(TlsModeByName("allowTLS") == TlsMode::kAllow);
  CHECK_FALSE(TlsModeByName("require"));
  Place p;
  p.options.mode = TlsMode::kAllow;
  auto tls = Tls::Make(p.options, &Now).value();
  CHECK((tls->accepts() && tls->accepts_plain() && !tls->dials()));
  CHECK_FALSE(tls->SetMode(TlsMode::kRequire));
  CHECK(tls->SetMode(TlsMode::kAllow));
  CHECK(tls->SetMode(TlsMode::kPrefer));
  CHECK((tls->accepts_plain() && tls->dials()));
  CHECK_FALSE(tls->SetMode(TlsMode::kAllow));
  CHECK(tls->SetMode(TlsMode::kRequire));
  CHECK((!tls->accepts_plain() && tls->dials()));
  CHECK_FALSE(tls->SetMode(TlsMode::kDisabled));
  auto off = Tls::Make({}, &Now).value();
  CHECK_FALSE(off->accepts());
  CHECK_FALSE(off->Rotate());
  CHECK_FALSE(off->SetMode(TlsMode::kAllow));
}

TEST_CASE("Files that cannot be used are named, with what is wrong", "[tls]") {
  Place p;
  using Catch::Matchers::Contains;
  const std::string good = p.options.certificate_key_file;
  p.options.certificate_key_file = p.Path("none.pem");
  CHECK_THAT(p.Wrong(), Contains("none.pem: cannot read it: No such file"));
  p.options.certificate_key_file = p.dir.path();
  CHECK_THAT(p.Wrong(), Contains("it is empty, or no file"));
  p.options.certificate_key_file = p.options.ca_file;
  CHECK_THAT(p.Wrong(), Contains("ca.pem: it has no private key"));
  p.options.certificate_key_file = p.issuer.Issue(p.Path("old.pem"), "old", -20, -10);
  CHECK_THAT(p.Wrong(), Contains("old.pem: its certificate has expired on 20"));
  p.options.certificate_key_file = p.issuer.Issue(p.Path("new.pem"), "new", 10, 20);
  CHECK_THAT(p.Wrong(), Contains("new.pem: its certificate is not valid yet"));
  p.options.certificate_key_file = p.issuer.Issue(p.Path("open.pem"), "open");
  ::chmod(p.Path("open.pem").c_str(), 0604);
  CHECK_THAT(p.Wrong(), Contains("open.pem: its permissions (0604) are too open"));
  p.options.certificate_key_file = p.issuer.Issue(p.Path("locked.pem"), "locked", -5, 400, "open");
  CHECK_THAT(p.Wrong(), Contains("locked.pem: its private key is encrypted, and there is no pass"));
  p.options.certificate_key_password = "wrong";
  CHECK_THAT(p.Wrong(), Contains("locked.pem: the password does not open its private key"));
  p.options.certificate_key_password = "open";
  CHECK(Tls::Make(p.options, &Now));
  p.options.certificate_key_file = good;
  p.options.crl_file = p.options.ca_file;
  CHECK_THAT(p.Wrong(), Contains("net.tls.CRLFile: ") && Contains("it has no revocation list"));
  p.options.crl_file.clear();
  p.options.ciphers = "NONSENSE";
  CHECK_THAT(p.Wrong(), Contains("no cipher in 'NONSENSE'"));
  p.options.ciphers.clear();
  std::ofstream(p.Path("torn.pem"))
      << "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  p.options.ca_file = p.Path("torn.pem");
  CHECK_THAT(p.Wrong(), Contains("torn.pem: one of its certificates cannot be read"));
}

TEST_CASE("Two ends greet each other and talk", "[tls]") {
  Place p;
  const bool tls13 = GENERATE(true, false);
  p.options.tls13 = tls13;
  auto tls = Tls::Make(p.options, &Now).value();
  Ends ends;
  auto dialler = tls->Dial(ends.socket[0], "localhost");
  auto acceptor = tls->Accept(ends.socket[1], {});
  TlsSession::Step dialled, accepted;
  Greet(*dialler, *acceptor, &dialled, &accepted);
  REQUIRE(dialler->established());
  REQUIRE(acceptor->established());
  CHECK(acceptor->peer().subject == "CN=server,O=Example\\, Inc.");
  CHECK(acceptor->peer().sni == "localhost");
  CHECK(acceptor->peer().version == (tls13 ? "TLSv1.3" : "TLSv1.2"));
  CHECK_FALSE(acceptor->peer().resumed);

  // Much, in one direction: what does not fit is asked for again, and all of it comes.
  std::string sent(3'000'000, '\0'), got;
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 7 + i / 251);
  std::string buffer(100'000, '\0');
  for (size_t at = 0; got.size() < sent.size();) {
    if (at < sent.size()) {
      auto step = dialler->Write(sent.data() + at, sent.size() - at);
      REQUIRE((step.outcome == Outcome::kDone || step.outcome == Outcome::kWantWrite));
      at += step.bytes;
    }
    auto step = acceptor->Read(buffer.data(), buffer.size());
    REQUIRE((step.outcome == Outcome::kDone || step.outcome == Outcome::kWantRead));
    got.append(buffer, 0, step.bytes);
  }
  CHECK(got == sent);
  CHECK(acceptor->Read(buffer.data(), 10).outcome == Outcome::kWantRead);
  CHECK_FALSE(acceptor->MayHaveMore());
  // Read by somebody else.
  CHECK(dialler->Write("hello", 5).outcome == Outcome::kDone);
  const ssize_t n = ::read(ends.socket[1], acceptor->RoomForMore(), TlsSession::Room());
  REQUIRE(n > 5);
  acceptor->Came(static_cast<size_t>(n));
  CHECK(acceptor->MayHaveMore());
  CHECK(acceptor->Read(buffer.data(), buffer.size()).bytes == 5);
  CHECK(buffer.starts_with("hello"));
  CHECK_FALSE(acceptor->MayHaveMore());
  dialler->SayGoodbye();
  CHECK(acceptor->Read(buffer.data(), 10).outcome == Outcome::kClosed);
}

TEST_CASE("Bytes that were read before belong to the handshake", "[tls]") {
  Place p;
  auto tls = Tls::Make(p.options, &Now).value();
  Ends ends;
  auto dialler = tls->Dial(ends.socket[0], "127.0.0.1");
  CHECK(dialler->Handshake().outcome == Outcome::kWantRead);
  std::string early(100, '\0');
  REQUIRE(::read(ends.socket[1], early.data(), early.size()) == 100);
  auto acceptor = tls->Accept(ends.socket[1], early);
  CHECK(acceptor->MayHaveMore());
  TlsSession::Step dialled, accepted;
  Greet(*dialler, *acceptor, &dialled, &accepted);
  CHECK(dialler->established());
  CHECK(acceptor->established());
  CHECK(acceptor->peer().sni.empty());  // an address is no name
}

TEST_CASE("Certificates that are not good end the handshake", "[tls]") {
  Place p;
  auto tls = Tls::Make(p.options, &Now).value();
  Issuer foreign("foreign");
  struct Case {
    const char* host;
    std::function<void(TlsOptions&)> dialler;
    std::string dialled, accepted;  ///< what they say of the other; empty: it is fine
  };
  const std::vector<Case> cases = {
      {"localhost", [](TlsOptions&) {}, "", ""},
      {"elsewhere", [](TlsOptions&) {}, "hostname mismatch", "alert"},
      {"127.0.0.2", [](TlsOptions&) {}, "IP address mismatch", "alert"},
      {"elsewhere", [](TlsOptions& o) { o.allow_invalid_hostnames = true; }, "", ""},
      {"localhost", [&](TlsOptions& o) { o.ca_file = foreign.Write(p.Path("f.pem")); },
       "certificate verify failed", "alert"},
      {"localhost",
       [&](TlsOptions& o) {
         o.ca_file = foreign.Write(p.Path("f.pem"));
         o.allow_invalid_certificates = true;
       },
       "", ""},
      {"localhost",
       [&](TlsOptions& o) { o.cluster_file = foreign.Issue(p.Path("stranger.pem"), "stranger"); },
       "*", "certificate verify failed: unable to get local issuer"},
      {"localhost", [&](TlsOptions& o) { o.tls13 = false; }, "", ""},
  };
  for (const Case& c : cases) {
    TlsOptions o = p.options;
    c.dialler(o);
    CAPTURE(c.host, o.ca_file, o.cluster_file);
    auto other = Tls::Make(o, &Now).value();
    Ends ends;
    auto dialler = other->Dial(ends.socket[0], c.host);
    auto acceptor = tls->Accept(ends.socket[1], {});
    TlsSession::Step dialled, accepted;
    Greet(*dialler, *acceptor, &dialled, &accepted);
    if (c.dialled.empty()) CHECK(dialler->failure().empty());
    if (!c.dialled.empty() && c.dialled != "*")
      CHECK_THAT(dialler->failure(), Catch::Matchers::Contains(c.dialled));
    CHECK_THAT(acceptor->failure(), Catch::Matchers::Contains(c.accepted));
    CHECK(acceptor->established() == c.accepted.empty());
  }
}

TEST_CASE("A certificate that nothing vouches for gives nobody a name", "[tls]") {
  Place p;
  Issuer foreign("foreign");
  TlsOptions o = p.options;
  o.cluster_file = foreign.Issue(p.Path("stranger.pem"), "stranger");
  auto stranger = Tls::Make(o, &Now).value();
  p.options.allow_invalid_certificates = true;
  auto tls = Tls::Make(p.options, &Now).value();
  Ends ends;
  auto dialler = stranger->Dial(ends.socket[0], "localhost");
  auto acceptor = tls->Accept(ends.socket[1], {});
  TlsSession::Step dialled, accepted;
  Greet(*dialler, *acceptor, &dialled, &accepted);
  REQUIRE(acceptor->established());
  CHECK(acceptor->peer().has_certificate);
  CHECK(acceptor->peer().subject.empty());
  CHECK_FALSE(acceptor->peer().invalid.empty());
}

TEST_CASE("New files count for new sessions, and old sessions go on", "[tls]") {
  Place p;
  auto tls = Tls::Make(p.options, &Now).value();
  Ends ends, later;
  auto dialler = tls->Dial(ends.socket[0], "localhost");
  auto acceptor = tls->Accept(ends.socket[1], {});
  TlsSession::Step dialled, accepted;
  Greet(*dialler, *acceptor, &dialled, &accepted);
  REQUIRE(acceptor->established());
  p.issuer.Issue(p.options.certificate_key_file, "renewed");
  REQUIRE(tls->Rotate());
  CHECK(tls->facts().subject == "CN=renewed,O=Example\\, Inc.");
  char c = 0;
  CHECK(dialler->Write("x", 1).outcome == Outcome::kDone);
  CHECK(acceptor->Read(&c, 1).outcome == Outcome::kDone);
  auto next = tls->Dial(later.socket[0], "localhost");
  auto met = tls->Accept(later.socket[1], {});
  Greet(*next, *met, &dialled, &accepted);
  REQUIRE(next->established());
  CHECK(next->peer().subject == "CN=renewed,O=Example\\, Inc.");
  std::ofstream(p.options.certificate_key_file) << "nothing";
  CHECK_FALSE(tls->Rotate());
  CHECK(tls->facts().subject == "CN=renewed,O=Example\\, Inc.");
}

TEST_CASE("What soon ends, or is not checked, is warned of", "[tls]") {
  Place p;
  CHECK(Tls::Make(p.options, &Now).value()->Warnings().empty());
  p.options.certificate_key_file = p.issuer.Issue(p.Path("soon.pem"), "soon", -5, 10);
  auto warnings = Tls::Make(p.options, &Now).value()->Warnings();
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::Matchers::Contains("soon.pem expires in"));
  p.options.expiry_warning_days = 0;
  CHECK(Tls::Make(p.options, &Now).value()->Warnings().empty());
  p.options.allow_invalid_certificates = true;
  CHECK(Tls::Make(p.options, &Now).value()->Warnings().size() == 1);
}

TEST_CASE("Garbage ends a session, whenever it comes", "[tls]") {
  Place p;
  auto tls = Tls::Make(p.options, &Now).value();
  for (const std::string& garbage :
       {std::string("\x16\x03\x01\x00\x05hello", 10) + std::string(100, 'x'), std::string(200, 'x'),
        std::string("\x16\x03\x01\xFF\xFF", 5) + std::string(100, '\0'),
        std::string("\x15\x03\x01\x00\x02\x02\x28", 7)}) {
    Ends ends;
    auto acceptor = tls->Accept(ends.socket[1], garbage);
    TlsSession::Step step;
    step = acceptor->Handshake();
    CHECK(step.outcome == Outcome::kFailed);
    CHECK_FALSE(acceptor->failure().empty());
  }
  Ends ends;
  auto dialler = tls->Dial(ends.socket[0], "localhost");
  auto acceptor = tls->Accept(ends.socket[1], {});
  TlsSession::Step dialled, accepted;
  Greet(*dialler, *acceptor, &dialled, &accepted);
  const std::string sealed("\x17\x03\x03\x00\x20", 5);
  REQUIRE(::write(ends.socket[0], (sealed + std::string(32, 'x')).data(), 37) == 37);
  char c = 0;
  CHECK(acceptor->Read(&c, 1).outcome == Outcome::kFailed);
  acceptor->SayGoodbye();
}

TEST_CASE("Who changes keys without end is ended", "[tls]") {
  // Once, one client that had not logged in kept a thread of all clients occupied: a read took what
  // came for as long as more came.
  Place p;
  p.options.allow_connections_without_certificates = true;
  auto tls = Tls::Make(p.options, &Now).value();
  Ends ends;
  const std::unique_ptr<SSL_CTX, decltype(&::SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                    &::SSL_CTX_free);
  const std::unique_ptr<SSL, decltype(&::SSL_free)> client(SSL_new(context.get()), &::SSL_free);
  REQUIRE(SSL_set_fd(client.get(), ends.socket[0]) == 1);
  SSL_set_connect_state(client.get());
  auto acceptor = tls->Accept(ends.socket[1], {});
  for (int i = 0; i < 20; ++i) {
    SSL_do_handshake(client.get());
    if (!acceptor->established()) acceptor->Handshake();
  }
  REQUIRE(acceptor->established());
  REQUIRE(acceptor->peer().version == "TLSv1.3");
  const auto change = [&] {
    SSL_key_update(client.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    REQUIRE(SSL_do_handshake(client.get()) == 1);
  };
  char c = 0;
  for (uint64_t i = 0; i < HandshakeLimit::kFree; ++i) {
    change();
    CHECK(SSL_write(client.get(), "x", 1) == 1);
    CHECK(acceptor->Read(&c, 1).outcome == Outcome::kDone);
  }
  // So many records allow some more.
  for (uint64_t i = 0; i < 2 * HandshakeLimit::kRecordsEach; ++i) {
    REQUIRE(SSL_write(client.get(), "x", 1) == 1);
    REQUIRE(acceptor->Read(&c, 1).outcome == Outcome::kDone);
  }
  change();
  CHECK(acceptor->Read(&c, 1).outcome == Outcome::kWantRead);
  for (int i = 0; i < 100; ++i) change();
  CHECK(SSL_write(client.get(), "x", 1) == 1);
  CHECK(acceptor->Read(&c, 1).outcome == Outcome::kFailed);
  CHECK(acceptor->failure() == "too many handshake messages after the handshake");
  CHECK(acceptor->Read(&c, 1).outcome == Outcome::kFailed);
  acceptor->SayGoodbye();
}

}  // namespace mayfly
