#include "server/dispatch/audit_log.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "protocol/extended_json.h"
#include "server/dispatch/config.h"
#include "tests/unit/storage/catalog_fixture.h"

using namespace mayfly;
using mayfly::testing::ScratchDir;

namespace {

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
    auto log = AuditLog::Open(path, true, clock);
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
  auto log = AuditLog::Open(path, rename, clock);
  REQUIRE(log);
  auto write = [&](int n) {
    log.value()->Write(nullptr, "x", [&](BsonBuilder& p) { p.Append("n", n); });
  };
  write(1);
  if (!rename) std::filesystem::rename(path, path + ".moved");
  REQUIRE(log.value()->Rotate());
  write(2);
  REQUIRE(Lines(path).size() == 1);
  CHECK(Lines(path)[0].find("\"n\" : 2") != std::string::npos);
  int files = 0;
  for (auto& f : std::filesystem::directory_iterator(dir.path())) files += f.is_regular_file();
  CHECK(files == 2);
}

TEST_CASE("Threads write whole lines", "[audit]") {
  ScratchDir dir;
  SystemClock clock;
  const std::string path = dir.path() + "/audit.json";
  auto log = AuditLog::Open(path, true, clock);
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
  auto log = AuditLog::Open(path, false, clock);
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
  REQUIRE(lines.size() == 10);
  for (int i = 0; i < 10; ++i)
    CHECK(BsonView(ParseJson(lines[static_cast<size_t>(i)]).value())
              .FindPath("param.n")
              .NumberAsInt64() == i);
  CHECK(log.value()->Check().waiting == 0);
}

TEST_CASE("An audit log that cannot be opened is refused; none is none", "[audit]") {
  SystemClock clock;
  auto bad = AuditLog::Open("/proc/no/such/audit.json", true, clock);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == ErrorCode::kFileNotOpen);
  auto none = AuditLog::Open("", true, clock);
  REQUIRE(none);
  CHECK_FALSE(none.value()->enabled());
  none.value()->Write(nullptr, "x", [](BsonBuilder&) {});
  CHECK(none.value()->Rotate());
}

TEST_CASE("Audit options: file in the data directory by default, JSON only, none turns it off",
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
  for (std::vector<std::string> bad :
       std::vector<std::vector<std::string>>{{"--auditDestination", "syslog"},
                                             {"--auditDestination", "console"},
                                             {"--auditDestination", "x"},
                                             {"--auditFormat", "BSON"},
                                             {"--auditFormat", "json"},
                                             {"--auditFilter", "{}"},
                                             {"--auditDestination", "none", "--auditPath", "/x"}}) {
    CAPTURE(bad);
    CHECK_FALSE(parse(bad));
  }
}
