#include "server/dispatch/config.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

using namespace mayfly;

namespace {

Result<ConfigOutcome> Parse(std::vector<std::string> args) {
  args.insert(args.begin(), "mayflyd");
  return ParseConfig(args);
}

struct TempFile {
  explicit TempFile(const std::string& text)
      : path((std::filesystem::temp_directory_path() /
              ("mayfly-config-" + std::to_string(::getpid()) + ".conf"))
                 .string()) {
    std::ofstream(path) << text;
  }
  ~TempFile() { std::remove(path.c_str()); }
  std::string path;
};

}  // namespace

TEST_CASE("Without flags the server listens on the loopback address only", "[config]") {
  auto r = Parse({});
  REQUIRE(r);
  const ServerConfig& c = r.value().config;
  CHECK(c.port == 27017);
  CHECK(c.bind_ips == std::vector<std::string>{"127.0.0.1"});
  CHECK(c.db_path == "./mayfly-data");
  CHECK(c.unix_socket);
  CHECK_FALSE(c.test_clock);
}

TEST_CASE("Flags set what they say", "[config]") {
  auto r = Parse({"--port",
                  "27099",
                  "--bind_ip",
                  "127.0.0.1,localhost",
                  "--dbpath=/data/db",
                  "--setParameter",
                  "ttlMonitorSleepSecs=5",
                  "--setParameter",
                  "logLevel=1",
                  "-vv",
                  "--quiet",
                  "--nounixsocket",
                  "--testClock",
                  "--slowms",
                  "20",
                  "--wiredTigerCacheSizeGB",
                  "0.5",
                  "--networkMessageCompressors",
                  "zstd,snappy",
                  "--maxConns",
                  "50",
                  "--profile",
                  "1"});
  REQUIRE(r);
  const ServerConfig& c = r.value().config;
  CHECK(c.port == 27099);
  CHECK(c.bind_ips == std::vector<std::string>{"127.0.0.1", "localhost"});
  CHECK(c.db_path == "/data/db");
  REQUIRE(c.parameters.size() == 2);
  CHECK(c.parameters[0] == std::pair<std::string, std::string>{"ttlMonitorSleepSecs", "5"});
  CHECK(c.log.verbosity == 2);
  CHECK(c.log.quiet);
  CHECK_FALSE(c.unix_socket);
  CHECK(c.test_clock);
  CHECK(c.slow_ms == 20);
  CHECK(c.cache_bytes == (1ull << 29));
  CHECK(c.compressors == std::vector<std::string>{"zstd", "snappy"});
  CHECK(c.max_connections == 50);
  CHECK(c.profile_level == 1);
  const BsonView parsed = c.parsed.view();
  CHECK(parsed.FindPath("net.port").Int32() == 27099);
  CHECK(parsed.FindPath("storage.dbPath").String() == "/data/db");
  CHECK(parsed.FindPath("setParameter.logLevel").String() == "1");
}

TEST_CASE("What cannot be understood is refused with a reason", "[config]") {
  struct Case {
    std::vector<std::string> args;
    const char* message;
  };
  const auto c = GENERATE(values<Case>({
      {{"--prot", "1"}, "did you mean '--port'"},
      {{"--dbpth", "x"}, "did you mean '--dbpath'"},
      {{"--port", "abc"}, "whole number"},
      {{"--port", "70000"}, "between 0 and 65535"},
      {{"--keyFile", "/x"}, "it needs --replSet"},
      {{"--auth"}, "access control is not part"},
      {{"--tlsMode", "requireTLS"}, "TLS is not part"},
      {{"--directoryperdb"}, "RocksDB"},
      {{"--fork"}, "--logpath"},
      {{"--setParameter", "x"}, "name=value"},
      {{"--networkMessageCompressors", "lz4"}, "lz4"},
      {{"--httpPort", "99000"}, "between 0 and 65535"},
      {{"stray"}, "positional"},
      {{"--bind_ip", "::1"}, "--ipv6"},
  }));
  CAPTURE(c.args);
  auto r = Parse(c.args);
  REQUIRE_FALSE(r);
  CHECK_THAT(r.error().message, Catch::Matchers::Contains(c.message));
}

TEST_CASE("What asks for nothing that is missing is accepted", "[config]") {
  CHECK(Parse({"--tlsMode", "disabled"}));
  CHECK(Parse({"--noauth"}));
}

TEST_CASE("A configuration file sets the same things, and flags win over it", "[config]") {
  TempFile f(R"(
net:
  port: 27050
  bindIp: 127.0.0.1,::1
  ipv6: true
storage:
  dbPath: /srv/data
systemLog:
  destination: file
  path: /tmp/x.log
  logAppend: true
  verbosity: 1
  component:
    index:
      verbosity: 2
security:
  authorization: disabled
operationProfiling:
  mode: slowOp
  slowOpThresholdMs: 7
setParameter:
  ttlMonitorEnabled: false
)");
  auto r = Parse({"--config", f.path, "--port", "27051"});
  REQUIRE(r);
  const ServerConfig& c = r.value().config;
  CHECK(c.port == 27051);
  CHECK(c.bind_ips == std::vector<std::string>{"127.0.0.1", "::1"});
  CHECK(c.db_path == "/srv/data");
  CHECK(c.log.path == "/tmp/x.log");
  CHECK(c.log.append);
  CHECK(c.log.verbosity == 1);
  REQUIRE(c.log.component_verbosity.size() == 1);
  CHECK(c.log.component_verbosity[0] == std::pair{LogComponent::kIndex, 2});
  CHECK(c.profile_level == 1);
  CHECK(c.slow_ms == 7);
  REQUIRE(c.parameters.size() == 1);
  CHECK(c.parameters[0].second == "false");
}

TEST_CASE("A bad configuration file is refused with the key at fault", "[config]") {
  struct Case {
    const char* text;
    const char* message;
  };
  const auto c = GENERATE(values<Case>({
      {"net:\n  prot: 1\n", "did you mean 'net.port'"},
      {"storage:\n  dbpath: x\n", "did you mean 'storage.dbPath'"},
      {"security:\n  authorization: enabled\n", "access control"},
      {"replication:\n  oplogSizeMB: 5\n", "need --replSet"},
      {"net: [1, 2\n", "YAML"},
      {"just text", "keys and values"},
      {"systemLog:\n  destination: syslog\n", "syslog"},
      {"systemLog:\n  component:\n    nonsense:\n      verbosity: 1\n", "nonsense"},
  }));
  CAPTURE(c.text);
  TempFile f(c.text);
  auto r = Parse({"-f", f.path});
  REQUIRE_FALSE(r);
  CHECK_THAT(r.error().message, Catch::Matchers::Contains(c.message));
}

TEST_CASE("--help and --version print and do not run", "[config]") {
  auto help = Parse({"--help"});
  REQUIRE(help);
  CHECK(help.value().action == ConfigOutcome::Action::kPrint);
  CHECK_THAT(help.value().text, Catch::Matchers::Contains("--dbpath"));
  CHECK_THAT(help.value().text, Catch::Matchers::Contains("--replSet"));
  auto version = Parse({"--version"});
  REQUIRE(version);
  CHECK_THAT(version.value().text, Catch::Matchers::Contains(std::string(kMayflyVersion)));
}
