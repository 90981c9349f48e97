#include "server/dispatch/audit_log.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "protocol/extended_json.h"
#include "security/user_cache.h"
#include "server/dispatch/audit_filter.h"
#include "server/dispatch/config.h"
#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using mayfly::testing::ScratchDir;

namespace {

Result<std::unique_ptr<AuditLog>> OpenLog(const std::string& path, bool rename, const Clock& clock,
                                          AuditOptions options = {}) {
  options.rename_on_rotate = rename;
  return AuditLog::Open(options, path, clock);
}

BsonDocument Filter(const std::string& text) {
  auto filter = ParseAuditFilter(text);
  CAPTURE(text);
  REQUIRE(filter);
  return filter.value();
}

class MovedClock final : public Clock {
 public:
  Instant Now() const override { return {1'900'000'000'000}; }
  void OnJump(std::function<void()>) override {}
  int64_t MonotonicMicros() const override { return seconds * 1'000'000; }
  int64_t seconds = 6000;
};

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace

TEST_CASE(
    "The audit log makes its folder, appends whole JSON lines, and keeps them when opened again",
    "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  clock.Freeze(true);  // first: no millisecond passes in between
  clock.Set({1'900'000'000'000});
  const std::string path = dir.path() + "/a/b/audit.json";
  for (int i = 0; i < 2; ++i) {
    auto log = OpenLog(path, true, clock);
    REQUIRE(log);
    CHECK(log.value()->enabled());
    log.value()->Write(nullptr, "ttlPause",
                       [&](BsonBuilder& p) { p.Append("ns", "db.\"c\n").Append("n", i); });
  }
  auto lines = Lines(path);
  REQUIRE(lines.size() == 2);
  auto parsed = ParseJson(lines[1]);
  REQUIRE(parsed);
  BsonView v = parsed.value();
  CHECK(v["atype"].String() == "ttlPause");
  CHECK(v["ts"].Date().millis == 1'900'000'000'000);
  CHECK(v.FindPath("param.ns").String() == "db.\"c\n");
  CHECK(v.FindPath("param.n").NumberAsInt64() == 1);
  CHECK(v["result"].NumberAsInt64() == 0);
  CHECK(std::filesystem::status(path).permissions() ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("Rotation renames the file, or opens the one that another program put in its place",
          "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  const bool rename = GENERATE(true, false);
  auto log = OpenLog(path, rename, clock);
  REQUIRE(log);
  auto write = [&](int n) {
    log.value()->Write(nullptr, "x", [&](BsonBuilder& p) { p.Append("n", n); });
  };
  write(1);
  if (!rename) std::filesystem::rename(path, path + ".moved");
  REQUIRE(log.value()->Rotate());
  write(2);
  REQUIRE(Lines(path).size() == 2);
  CHECK(Lines(path)[0].find("rotateLog") != std::string::npos);
  CHECK(Lines(path)[1].find("\"n\" : 2") != std::string::npos);
  int files = 0;
  for (auto& f : std::filesystem::directory_iterator(dir.path())) files += f.is_regular_file();
  CHECK(files == 2);
}

TEST_CASE("Threads write whole lines", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = OpenLog(path, true, clock);
  REQUIRE(log);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i)
        log.value()->Write(nullptr, "x",
                           [&](BsonBuilder& p) { p.Append("text", std::string(200, 'a')); });
    });
  for (auto& t : threads) t.join();
  auto lines = Lines(path);
  REQUIRE(lines.size() == 800);
  for (const std::string& l : lines) REQUIRE(ParseJson(l));
  CHECK(log.value()->Check().lost == 0);
}

TEST_CASE(
    "Entries that cannot be written wait, in order; beyond a megabyte they are lost and counted",
    "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  std::filesystem::create_symlink("/dev/full", path);
  auto log = OpenLog(path, false, clock);
  REQUIRE(log);
  std::vector<AuditLog::State> told;
  log.value()->set_problem([&](const AuditLog::State& s) { told.push_back(s); });
  const std::string text(100'000, 'a');
  for (int i = 0; i < 12; ++i)
    log.value()->Write(nullptr, "x",
                       [&](BsonBuilder& p) { p.Append("n", i).Append("text", text); });
  const AuditLog::State state = log.value()->Check();
  CHECK(state.waiting == 10);
  CHECK(state.lost == 2);
  CHECK_FALSE(state.error.empty());
  REQUIRE(told.size() == 3);  // it fails; one is lost; another one
  CHECK(told[0].waiting == 1);
  CHECK(told[2].lost == 2);
  std::filesystem::remove(path);
  REQUIRE(log.value()->Rotate());
  CHECK(told.back().error.empty());
  auto lines = Lines(path);
  REQUIRE(lines.size() == 11);
  CHECK(lines[10].find("rotateLog") != std::string::npos);
  for (int i = 0; i < 10; ++i)
    CHECK(BsonView(ParseJson(lines[static_cast<size_t>(i)]).value())
              .FindPath("param.n")
              .NumberAsInt64() == i);
  CHECK(log.value()->Check().waiting == 0);
}

TEST_CASE("An audit log that cannot be opened is refused; none is none", "[audit]") {
  SystemClock clock;
  auto bad = OpenLog("/proc/no/such/audit.json", true, clock);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == ErrorCode::kFileNotOpen);
  auto none = OpenLog("", true, clock, {.destination = AuditDestination::kNone});
  REQUIRE(none);
  CHECK_FALSE(none.value()->enabled());
  none.value()->Write(nullptr, "x", [](BsonBuilder&) {});
  CHECK(none.value()->Rotate());
}

TEST_CASE("Each connection has a uuid of its own, in MongoDB's form", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = OpenLog(path, true, clock);
  REQUIRE(log);
  const UserName name{"ann", "admin"};
  for (std::string_view connection : {"conn1", "conn1", "conn2"})
    log.value()->Write({.connection = connection,
                        .local = "127.0.0.1:27017",
                        .remote = "[::1]:5000",
                        .user = &name},
                       "logout", [](BsonBuilder&) {});
  std::vector<std::string> uuids;
  for (const std::string& line : Lines(path)) {
    // As text: the parser makes binary data of it.
    const size_t at = line.find("\"uuid\" : { \"$binary\" : \"");
    REQUIRE(at != std::string::npos);
    CHECK(line.find("\"$type\" : \"04\" }", at) != std::string::npos);
    uuids.push_back(line.substr(at, 60));
    auto parsed = ParseJson(line);
    REQUIRE(parsed);
    const BsonView v = parsed.value();
    CHECK(v.FindPath("local.ip").String() == "127.0.0.1");
    CHECK(v.FindPath("remote.ip").String() == "::1");
    CHECK(v.FindPath("remote.port").NumberAsInt64() == 5000);
    CHECK(v.FindPath("users.0.user").String() == "ann");
  }
  REQUIRE(uuids.size() == 3);
  CHECK(uuids[0] == uuids[1]);
  CHECK(uuids[0] != uuids[2]);
}

TEST_CASE("A filter decides which entries are written; a wrong one is refused and changes nothing",
          "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log =
      OpenLog(path, true, clock,
              {.filter = Filter("{ atype: { $in: [ 'a', \"b\" ] }, 'param.ns': /^test\\\\./ }")});
  REQUIRE(log);
  auto write = [&](std::string_view atype, std::string_view ns) {
    log.value()->Write(nullptr, atype, [&](BsonBuilder& p) { p.Append("ns", ns); });
  };
  write("a", "test.x");
  write("b", "testing");
  write("c", "test.x");
  write("b", "test.y");
  CHECK(Lines(path).size() == 2);
  CHECK_FALSE(log.value()->SetFilter(ParseJson("{\"a\": {\"$no\": 1}}").value()));
  write("c", "test.x");
  CHECK(Lines(path).size() == 2);
  REQUIRE(log.value()->SetFilter(BsonDocument()));
  write("c", "test.x");
  CHECK(Lines(path).size() == 3);
  REQUIRE(log.value()->SetFilter(Filter("{atype: 'none'}")));
  log.value()->WriteAlways({}, "auditConfigure", [](BsonBuilder&) {});
  CHECK(Lines(path).size() == 4);
}

TEST_CASE("What an audit filter may be", "[audit]") {
  for (std::string text :
       {"{}", "{ atype: 'x' }", "{\"param.db\": \"test\"}", "{ $or: [ { a: 1 } ] }",
        "{ a: { $gt: -1.5e3 } }", "{ roles: { role: \"readWrite\", db: \"t\" } }",
        "{ a: 'it\\'s \"so\"' }", "{ a: true, b: null }", "{a: /x\\/y/i}"}) {
    CAPTURE(text);
    CHECK(ParseAuditFilter(text));
  }
  for (std::string text :
       {"", "x", "[]", "{ a: 'x }", "{ a: /x }", "{ a: }", "{ a: { $nope: 1 } }", "{ $where: 'x' }",
        "{ $expr: { $eq: [ 1, 1 ] } }", "{ $or: [ { $expr: true } ] }", "{ a: /(/ }"}) {
    CAPTURE(text);
    CHECK_FALSE(ParseAuditFilter(text));
  }
  CHECK_FALSE(ParseAuditFilter("{ a: '" + std::string(kMaxAuditFilter, 'x') + "' }"));
  // Two backslashes, as the manual writes them, and one.
  for (std::string text : {"{a: /^t\\\\.x$/}", "{a: /^t\\.x$/}"}) {
    auto match = CompileAuditFilter(Filter(text));
    REQUIRE(match);
    CHECK(match.value()->Matches(ParseJson("{\"a\": \"t.x\"}").value()).value());
    CHECK_FALSE(match.value()->Matches(ParseJson("{\"a\": \"tyx\"}").value()).value());
  }
}

TEST_CASE("BSON entries follow one another in the file", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.bson";
  {
    auto log = OpenLog(path, true, clock, {.format = AuditFormat::kBson});
    REQUIRE(log);
    for (int i = 0; i < 3; ++i)
      log.value()->Write(nullptr, "x", [&](BsonBuilder& p) { p.Append("n", i); });
  }
  std::ifstream in(path);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  size_t at = 0;
  int n = 0;
  for (; at < bytes.size(); ++n) {
    const BsonView v(bytes.data() + at);
    CHECK(v["uuid"].Is(BsonType::kBinary));
    CHECK(v.FindPath("param.n").NumberAsInt64() == n);
    at += v.size();
  }
  CHECK(n == 3);
  CHECK(at == bytes.size());
}

TEST_CASE("Syslog gets a datagram an entry; while nobody takes them they wait", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/log";
  auto log =
      OpenLog("", true, clock, {.destination = AuditDestination::kSyslog, .syslog_socket = path});
  REQUIRE(log);
  auto write = [&](std::string_view text) {
    log.value()->Write(nullptr, "x", [&](BsonBuilder& p) { p.Append("text", text); });
  };
  write("early");
  CHECK(log.value()->Check().waiting == 1);
  auto daemon = [&] {
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::strcpy(at.sun_path, path.c_str());
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
    return fd;
  };
  auto take = [](int fd) {
    std::string text(1 << 16, 0);
    const ssize_t n = ::recv(fd, text.data(), text.size(), MSG_DONTWAIT);
    text.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return text;
  };
  int fd = daemon();
  write("one");
  const std::string first = take(fd);
  CHECK(first.starts_with("<14>mayflyd["));
  CHECK(first.find("early") != std::string::npos);
  CHECK(first.find('\n') == std::string::npos);
  CHECK(take(fd).find("one") != std::string::npos);
  // What no datagram holds comes without its long values: once it was lost, and whoever made a
  // change large enough left no entry of it.
  log.value()->Write(nullptr, "large", [&](BsonBuilder& p) {
    p.Append("ns", "shop.c").Append("text", std::string(900'000, 'x'));
    for (int i = 0; i < 10'000; ++i) p.Append("f" + std::to_string(i), std::string(1000, '"'));
  });
  const std::string large = take(fd);
  CHECK(large.find(R"("ns" : "shop.c", "text" : "...", "f0" : )") != std::string::npos);
  CHECK(large.find(R"("$truncated" : true }, "result" : 0 })") != std::string::npos);
  write("two");
  CHECK(take(fd).find("two") != std::string::npos);
  CHECK(log.value()->Check().lost == 0);
  // A daemon that restarts.
  ::close(fd);
  ::unlink(path.c_str());
  write("three");
  CHECK(log.value()->Check().waiting == 1);
  fd = daemon();
  CHECK(log.value()->Check().waiting == 0);
  CHECK(take(fd).find("three") != std::string::npos);
  ::close(fd);
}

TEST_CASE("Clients that have not logged in cannot fill the audit log", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  clock.Freeze(true);
  clock.Set({1'900'000'000'000});
  auto log = OpenLog(dir.path() + "/audit.json", true, clock);
  REQUIRE(log);
  auto admitted = [&] {
    int64_t n = 0;
    for (int i = 0; i < 3000; ++i) n += log.value()->AdmitAnonymous();
    return n;
  };
  const int64_t first = admitted();
  CHECK(first >= AuditLog::kAnonymousBurst);
  CHECK(first <= AuditLog::kAnonymousBurst + 2 * AuditLog::kAnonymousPerSecond);
  CHECK(log.value()->Check().suppressed == 3000 - first);
}

TEST_CASE("Failed logins beyond a few of a minute are counted by address", "[audit]") {
  ScratchDir dir;
  MovedClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = OpenLog(path, true, clock);
  REQUIRE(log);
  auto fail = [&](const std::string& remote, int times) {
    for (int i = 0; i < times; ++i)
      log.value()->WriteFailedLogin(
          {.connection = "conn1", .local = "10.0.0.9:27017", .remote = remote},
          [](BsonBuilder& p) { p.Append("user", "u"); }, ErrorCode::kAuthenticationFailed);
  };
  auto repeated = [&] {
    std::vector<std::string> out;
    for (const std::string& line : Lines(path))
      if (auto e = ParseJson(line); e && e.value().view().FindPath("param.repeated").IsNumber())
        out.push_back(std::string(e.value().view().FindPath("remote.ip").String()) + " " +
                      std::to_string(e.value().view().FindPath("param.repeated").NumberAsInt64()));
    std::sort(out.begin(), out.end());
    return out;
  };
  fail("10.0.0.1:5000", 25);
  fail("10.0.0.2:5000", 21);
  fail("10.0.0.3:5000", 20);
  CHECK(Lines(path).size() == 60);
  CHECK(log.value()->Check().suppressed == 6);
  clock.seconds += 59;
  log.value()->Write(nullptr, "x", [](BsonBuilder&) {});
  CHECK(repeated().empty());
  // The next entry of any kind after the minute.
  clock.seconds += 1;
  log.value()->Write(nullptr, "x", [](BsonBuilder&) {});
  CHECK(repeated() == std::vector<std::string>{"10.0.0.1 5", "10.0.0.2 1"});
  // A new minute has its own; what is left is written at the end.
  fail("10.0.0.1:5000", 22);
  log.value()->Close();
  CHECK(repeated() == std::vector<std::string>{"10.0.0.1 2", "10.0.0.1 5", "10.0.0.2 1"});
}

TEST_CASE("Refused commands beyond those of a minute are counted by user and address", "[audit]") {
  ScratchDir dir;
  MovedClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = OpenLog(path, true, clock);
  REQUIRE(log);
  const UserName ann{"ann", "admin"}, bob{"bob", "admin"};
  auto refuse = [&](const UserName& user, const std::string& remote, int times, size_t size = 10) {
    const std::string text(size, 'x');
    for (int i = 0; i < times; ++i)
      log.value()->WriteRefused(
          {.connection = "conn1", .local = "10.0.0.9:27017", .remote = remote, .user = &user},
          [&](BsonBuilder& p) { p.Append("command", "find").Append("args", text); },
          ErrorCode::kUnauthorized);
  };
  auto repeated = [&] {
    std::vector<std::string> out;
    for (const std::string& line : Lines(path))
      if (auto e = ParseJson(line); e && e.value().view().FindPath("param.repeated").IsNumber())
        out.push_back(std::string(e.value().view().FindPath("users.0.user").String()) + " " +
                      std::string(e.value().view().FindPath("remote.ip").String()) + " " +
                      std::to_string(e.value().view().FindPath("param.repeated").NumberAsInt64()));
    std::sort(out.begin(), out.end());
    return out;
  };
  log.value()->set_refused_limit(10);
  refuse(ann, "10.0.0.1:5000", 15);
  refuse(ann, "10.0.0.1:5001", 1);
  refuse(ann, "10.0.0.2:5000", 12);
  refuse(bob, "10.0.0.1:5000", 9);
  CHECK(Lines(path).size() == 29);
  CHECK(log.value()->Check().suppressed == 8);
  clock.seconds += 60;
  log.value()->Write(nullptr, "x", [](BsonBuilder&) {});
  CHECK(repeated() == std::vector<std::string>{"ann 10.0.0.1 6", "ann 10.0.0.2 2"});
  // Changes and logins are written whatever was refused; so is everything when all are asked for.
  refuse(ann, "10.0.0.1:5000", 20);
  const size_t before = Lines(path).size();
  log.value()->Write({.user = &ann}, "createUser", [](BsonBuilder&) {});
  CHECK(Lines(path).size() == before + 1);
  log.value()->set_all_checks(true);
  refuse(ann, "10.0.0.1:5000", 20);
  log.value()->set_all_checks(false);
  log.value()->set_refused_limit(0);
  refuse(ann, "10.0.0.1:5000", 20);
  CHECK(Lines(path).size() == before + 41);
  // By their bytes as well: each has 2 KiB on average.
  clock.seconds += 60;
  log.value()->set_refused_limit(10);
  log.value()->Write(nullptr, "x", [](BsonBuilder&) {});
  const size_t lines = Lines(path).size();
  refuse(bob, "10.0.0.1:5000", 10, 15'000);
  CHECK(Lines(path).size() == lines + 2);
  log.value()->Close();
  CHECK(repeated() == std::vector<std::string>{"ann 10.0.0.1 10", "ann 10.0.0.1 6",
                                               "ann 10.0.0.2 2", "bob 10.0.0.1 8"});
}

TEST_CASE("Of many roles an entry has the first", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = OpenLog(path, true, clock);
  REQUIRE(log);
  auto granted = std::make_shared<GrantedRoles>();
  for (int i = 0; i < 1000; ++i)
    granted->roles.roles.push_back({"r" + std::to_string(10'000 + i), "d"});
  UserAccess access(granted);
  access.user.name = {"ann", "admin"};
  access.user.roles = {{"r10999", "d"}};
  const auto entry = [&] {
    log.value()->Write({.connection = "conn1", .user = &access.user.name, .access = &access}, "x",
                       [](BsonBuilder&) {});
    return ParseJson(Lines(path).back()).value();
  };
  BsonDocument e = entry();
  int n = 0;
  for ([[maybe_unused]] const BsonElement& r : e.view()["roles"].Document()) ++n;
  CHECK(n == 100);
  CHECK(e.view().FindPath("roles.0.role").String() == "r10999");
  CHECK(e.view()["rolesLeftOut"].NumberAsInt64() == 900);
  for (RoleName& r : granted->roles.roles) r.role += std::string(1000, 'x');
  e = entry();
  CHECK(e.view()["rolesLeftOut"].NumberAsInt64() > 990);
  CHECK(Lines(path).back().size() < 20'000);
  granted->roles.roles.resize(3);
  CHECK(entry().view()["rolesLeftOut"].missing());
}

TEST_CASE("Many addresses whose logins fail have few entries", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = OpenLog(path, true, clock);
  REQUIRE(log);
  for (int i = 0; i < 5000; ++i)
    log.value()->WriteFailedLogin(
        {.connection = "conn1",
         .local = "10.0.0.9:27017",
         .remote = "10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250) + ":5000"},
        [](BsonBuilder&) {}, ErrorCode::kAuthenticationFailed);
  log.value()->Close();
  // It may have begun in one minute and ended in the next.
  CHECK(Lines(path).size() <= 2 * (FailedLogins::kMaxClients + 1));
  const auto lines = Lines(path);
  CHECK(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("severalAddresses") != std::string::npos;
  }));
}

TEST_CASE("Room for the next entry is there before, and given back", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  struct stat s;
  {
    auto log = OpenLog(path, true, clock);
    REQUIRE(log);
    CHECK(log.value()->Check(true).error.empty());
    REQUIRE(::stat(path.c_str(), &s) == 0);
    CHECK(s.st_size == 0);
    log.value()->Write(nullptr, "x", [](BsonBuilder&) {});
    CHECK(log.value()->Check(true).error.empty());
  }
  REQUIRE(::stat(path.c_str(), &s) == 0);
  CHECK(s.st_blocks * 512 < 256 * 1024);
  CHECK(Lines(path).size() == 1);
}

TEST_CASE("Audit options: a file in the data directory by default, none turns it off",
          "[audit][config]") {
  auto parse = [](std::vector<std::string> args) {
    args.insert(args.begin(), "mayflyd");
    return ParseConfig(args);
  };
  CHECK(parse({"--dbpath", "/data"}).value().config.EffectiveAuditPath() ==
        "/data/audit/audit.json");
  CHECK(parse({"--auditPath", "/var/log/a.json", "--auditDestination", "file", "--auditFormat",
               "JSON"})
            .value()
            .config.EffectiveAuditPath() == "/var/log/a.json");
  CHECK(parse({"--auditDestination", "none"}).value().config.EffectiveAuditPath().empty());
  const ServerConfig bson =
      parse({"--dbpath", "/data", "--auditFormat", "BSON", "--auditFilter", "{atype: 'x'}"})
          .value()
          .config;
  CHECK(bson.EffectiveAuditPath() == "/data/audit/audit.bson");
  CHECK(bson.audit.filter.view()["atype"].String() == "x");
  CHECK(parse({"--auditDestination", "console"}).value().config.EffectiveAuditPath().empty());
  CHECK(parse({"--auditDestination", "syslog"}).value().config.audit.destination ==
        AuditDestination::kSyslog);
  for (std::vector<std::string> bad : std::vector<std::vector<std::string>>{
           {"--auditDestination", "x"},
           {"--auditFormat", "json"},
           {"--auditFormat", "BSON", "--auditDestination", "console"},
           {"--auditFilter", "{a: {$no: 1}}"},
           {"--auditFilter", "{$where: 'x'}"},
           {"--auditFilter", "nonsense"},
           {"--auditDestination", "none", "--auditFilter", "{a: 1}"},
           {"--auditDestination", "syslog", "--auditPath", "/x"},
           {"--auditDestination", "none", "--auditPath", "/x"}}) {
    CAPTURE(bad);
    CHECK_FALSE(parse(bad));
  }
}
