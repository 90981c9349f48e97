#include "server/dispatch/config.h"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "protocol/secret_arguments.h"
#include "server/base/environment.h"
#include "tests/unit/scratch_dir.h"

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
      {{"--auth", "--noauth"}, "exclude each other"},
      {{"--auth", "--replSet", "rs"}, "--keyFile is required"},
      {{"--transitionToAuth"}, "must be used with --keyFile"},
      {{"--replSet", "rs", "--keyFile", "/x", "--auth", "--transitionToAuth"}, "leave --auth out"},
      {{"--clusterAuthMode", "certificates"}, "sendKeyFile, sendX509 and x509"},
      {{"--clusterAuthMode", "x509"}, "it needs --replSet"},
      {{"--clusterAuthMode", "x509", "--replSet", "rs"}, "needs TLS"},
      {{"--clusterAuthMode", "sendX509", "--replSet", "rs", "--tlsMode", "allowTLS",
        "--tlsCertificateKeyFile", "/c", "--tlsCAFile", "/a", "--keyFile", "/x"},
       "cannot have x.509 cluster authentication in allowTLS mode"},
      {{"--clusterAuthMode", "x509", "--replSet", "rs", "--tlsMode", "preferTLS",
        "--tlsCertificateKeyFile", "/c"},
       "needs tlsCAFile"},
      {{"--clusterAuthMode", "sendX509", "--replSet", "rs", "--tlsMode", "preferTLS",
        "--tlsCertificateKeyFile", "/c", "--tlsCAFile", "/a", "--noauth"},
       "needs --keyFile"},
      {{"--clusterAuthMode", "sendKeyFile", "--replSet", "rs", "--tlsMode", "allowTLS",
        "--tlsCertificateKeyFile", "/c", "--tlsCAFile", "/a", "--keyFile", "/x",
        "--transitionToAuth"},
       "certificates come after"},
      {{"--tlsMode", "requireTLS"}, "need tlsCertificateKeyFile"},
      {{"--enableEncryption"}, "--enableEncryption needs --encryptionKeyFile"},
      {{"--encryptionKeyFile", "/k"}, "need --enableEncryption"},
      {{"--encryptionRotateFrom", "/k"}, "need --enableEncryption"},
      {{"--enableEncryption", "--encryptionRotateFrom", "/k"}, "needs --encryptionKeyFile"},
      {{"--enableEncryption", "--encryptionKeyFile", "/k", "--encryptionCipherMode", "AES256-CBC"},
       "AES256-CTR"},
      {{"--kmipServerName", "x"}, "encryptionKeyFile"},
      {{"--kmipRotateMasterKey"}, "encryptionRotateFrom"},
      {{"--tlsMode", "always"}, "requireTLS"},
      {{"--tlsCAFile", "/x"}, "need to enable TLS"},
      {{"--tlsAllowInvalidHostnames"}, "need to enable TLS"},
      {{"--tlsMode", "allowTLS", "--tlsCertificateKeyFile", "/x", "--tlsClusterCAFile", "/y"},
       "requires that tlsCAFile"},
      {{"--tlsMode", "allowTLS", "--tlsCertificateKeyFile", "/x", "--tlsCRLFile", "/y"},
       "requires that tlsCAFile"},
      {{"--tlsDisabledProtocols", "TLS1_2,TLS1_3"}, "leaves nothing"},
      {{"--tlsDisabledProtocols", "none"}, "not safe"},
      {{"--tlsDisabledProtocols", "TLS1_4"}, "Unrecognized"},
      {{"--tlsFIPSMode"}, "FIPS"},
      {{"--sslMode", "requireSSL"}, "net.tls"},
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

TEST_CASE("TLS is configured by MongoDB's names, and passwords are shown nowhere", "[config]") {
  auto r = Parse({"--tlsMode", "preferTLS", "--tlsCertificateKeyFile", "/c", "--tlsCAFile", "/ca",
                  "--tlsCertificateKeyFilePassword", "s3cret", "--tlsClusterFile", "/m",
                  "--tlsClusterPassword=s3cret", "--tlsDisabledProtocols", "TLS1_1,TLS1_2",
                  "--tlsAllowConnectionsWithoutCertificates"});
  REQUIRE(r);
  const ServerConfig& c = r.value().config;
  CHECK(c.tls.mode == TlsMode::kPrefer);
  CHECK(c.tls.certificate_key_file == "/c");
  CHECK(c.tls.certificate_key_password == "s3cret");
  CHECK(c.tls.cluster_password == "s3cret");
  CHECK_FALSE(c.ask_certificate_password);
  CHECK_FALSE(c.tls.tls12);
  CHECK(c.tls.tls13);
  CHECK(c.tls.allow_connections_without_certificates);
  CHECK(c.parsed.view().FindPath("net.tls.certificateKeyFilePassword").String() == "<password>");
  CHECK(c.parsed.view().FindPath("net.tls.mode").String() == "preferTLS");
  for (const std::string& shown : c.shown_argv) CHECK(shown.find("s3cret") == std::string::npos);

  // Without a value it is asked for.
  auto asks = Parse({"--tlsMode", "allowTLS", "--tlsCertificateKeyFile", "/c",
                     "--tlsCertificateKeyFilePassword", "--tlsCAFile", "/ca"});
  REQUIRE(asks);
  CHECK(asks.value().config.ask_certificate_password);
  CHECK(asks.value().config.tls.ca_file == "/ca");
}

TEST_CASE("Passwords are overwritten where the system shows them", "[config]") {
  std::vector<std::string> given = {"mayflyd",
                                    "--tlsClusterPassword",
                                    "s3cret",
                                    "--port",
                                    "1",
                                    "--tlsCertificateKeyFilePassword=s3cret",
                                    "--tlsClusterPassword",
                                    "--quiet"};
  std::vector<char*> argv;
  for (std::string& g : given) argv.push_back(g.data());
  HideArguments(static_cast<int>(argv.size()), argv.data(),
                {"--tlsCertificateKeyFilePassword", "--tlsClusterPassword"});
  CHECK(given == std::vector<std::string>{"mayflyd", "--tlsClusterPassword", "xxxxxx", "--port",
                                          "1", "--tlsCertificateKeyFilePassword=xxxxxx",
                                          "--tlsClusterPassword", "--quiet"});
  REQUIRE(LeaveSecrets({"one", "", "three"}));
  CHECK(TakeLeftSecrets() == std::vector<std::string>{"one", "", "three"});
  CHECK(TakeLeftSecrets().empty());
}

TEST_CASE("What asks for nothing that is missing is accepted", "[config]") {
  CHECK(Parse({"--tlsMode", "disabled"}));
  CHECK(Parse({"--noauth"}));
}

TEST_CASE("Access control is on by a flag, by the file, or because of a key file", "[config]") {
  auto on = [](std::vector<std::string> args) {
    auto r = Parse(std::move(args));
    REQUIRE(r);
    return r.value().config.access_control();
  };
  CHECK_FALSE(on({}));
  CHECK(on({"--auth"}));
  CHECK(on({"--replSet", "rs", "--keyFile", "/x"}));
  CHECK_FALSE(on({"--replSet", "rs", "--keyFile", "/x", "--transitionToAuth"}));
  CHECK(on({"--replSet", "rs", "--clusterAuthMode", "x509", "--tlsMode", "requireTLS",
            "--tlsCertificateKeyFile", "/c", "--tlsCAFile", "/a"}));
  CHECK_FALSE(on({"--replSet", "rs", "--keyFile", "/x", "--noauth"}));
  TempFile enabled("security:\n  authorization: enabled\n");
  CHECK(on({"-f", enabled.path}));
  CHECK_FALSE(on({"-f", enabled.path, "--noauth"}));
  TempFile disabled("security:\n  authorization: disabled\n");
  CHECK_FALSE(on({"-f", disabled.path}));
  CHECK(on({"-f", disabled.path, "--auth"}));
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
      {"security:\n  authorization: maybe\n", "one of 'enabled' or 'disabled'"},
      {"storage:\n  oplogMinRetentionHours: 5\n", "needs --replSet"},
      {"net: [1, 2\n", "YAML"},
      {"just text", "keys and values"},
      {"systemLog:\n  destination: syslog\n", "syslog"},
      {"systemLog:\n  component:\n    nonsense:\n      verbosity: 1\n", "nonsense"},
      {"setParameter: {\"a\\0b\": 1}\n", "line 1 holds a null byte"},
      {"net: {port: 1}\nstorage: {dbPath: \"/tmp\\0x\"}\n", "line 2 holds a null byte"},
      {"net: {bindIp: [\"::1\\0\"]}\n", "line 1 holds a null byte"},
  }));
  CAPTURE(c.text);
  TempFile f(c.text);
  auto r = Parse({"-f", f.path});
  REQUIRE_FALSE(r);
  CHECK_THAT(r.error().message, Catch::Matchers::Contains(c.message));
}

TEST_CASE("A file in the format before YAML sets flags", "[config]") {
  TempFile f(
      "# as mongo-orchestration writes it\n\nport=27051\r\n  dbpath = /srv/data  # here\n"
      "setParameter = enableTestCommands=1\nsetParameter = logLevel=1\njournal=true\n"
      "nojournal=false\nbind_ip=127.0.0.1,localhost\nverbose=vv\nreplSet=rs\noplogSize=500\n"
      "networkMessageCompressors=zstd,noop\n");
  auto r = Parse({"-f", f.path, "--oplogSize", "600"});
  REQUIRE(r);
  const ServerConfig& c = r.value().config;
  CHECK(c.port == 27051);
  CHECK(c.db_path == "/srv/data");
  CHECK(c.bind_ips == std::vector<std::string>{"127.0.0.1", "localhost"});
  CHECK(c.log.verbosity == 2);
  CHECK(c.repl_set == "rs");
  CHECK(c.oplog_size_mb == 600);
  CHECK(c.compressors == std::vector<std::string>{"zstd"});
  REQUIRE(c.parameters.size() == 2);
  CHECK(c.parameters[1] == std::pair<std::string, std::string>{"logLevel", "1"});
  CHECK(c.parsed.view().FindPath("net.port").NumberAsInt64() == 27051);
  CHECK(c.parsed.view().FindPath("storage.dbPath").String() == "/srv/data");
  CHECK(c.parsed.view().FindPath("setParameter.enableTestCommands").String() == "1");
  CHECK(c.parsed.view().FindPath("systemLog.verbosity").NumberAsInt64() == 2);
}

TEST_CASE("A bad file in the format before YAML is refused with the flag at fault", "[config]") {
  struct Case {
    std::string text, message;
  };
  auto c = GENERATE(values<Case>({
      {"prt=1\n", "unrecognised option 'prt'; did you mean 'port'?"},
      {"port=1\nport=2\n", "Multiple occurrences of option \"--port\""},
      {"port=many\n", "whole number"},
      {"nojournal=true\n", "cannot be switched off"},
      {"config=/x\n", "unrecognised option 'config'"},
      {"port=1\nnonsense\n", "keys and values"},
      {"po rt=1\n", "keys and values"},
  }));
  CAPTURE(c.text);
  TempFile f(c.text);
  auto r = Parse({"-f", f.path});
  REQUIRE_FALSE(r);
  CHECK_THAT(r.error().message, Catch::Matchers::Contains(c.message));
}

TEST_CASE("What test harnesses of MongoDB say is understood", "[config]") {
  CHECK(Parse({"--storageEngine", "wiredTiger", "--bind_ip", "127.0.0.1", "--noauth"}));
  CHECK(Parse({"--storageEngine", "rocksdb", "--noscripting"}));
  CHECK(Parse({"--oplogSize", "500"}));  // of a standalone
  auto other = Parse({"--storageEngine", "inMemory"});
  REQUIRE_FALSE(other);
  CHECK_THAT(other.error().message, Catch::Matchers::Contains("cannot be chosen"));
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
  CHECK(version.value().text.starts_with("db version v8.0.0\n"));
}

TEST_CASE("Each flag has a variable", "[config]") {
  CHECK(VariableOfOption("--port") == "MAYFLYD_PORT");
  CHECK(VariableOfOption("--bind_ip_all") == "MAYFLYD_BIND_IP_ALL");
  CHECK(VariableOfOption("--tlsCAFile") == "MAYFLYD_TLS_CA_FILE");
  CHECK(VariableOfOption("--tlsCertificateKeyFile") == "MAYFLYD_TLS_CERTIFICATE_KEY_FILE");
  CHECK(VariableOfOption("--cacheSizeGB") == "MAYFLYD_CACHE_SIZE_GB");
  CHECK(VariableOfOption("--httpBindIp") == "MAYFLYD_HTTP_BIND_IP");
}

TEST_CASE("Variables count with --environment only, and a password does not stay there",
          "[config]") {
  ::setenv("MAYFLYD_MAX_CONNS", "77", 1);
  ::setenv("MAYFLYD_SLOWMS", "5", 1);
  ::setenv("MONGO_INITDB_ROOT_USERNAME", "boss", 1);
  ::setenv("MONGO_INITDB_ROOT_PASSWORD", "secret", 1);
  auto without = Parse({});
  REQUIRE(without);
  CHECK(without.value().config.max_connections == 65536);
  CHECK_FALSE(without.value().config.access_control());
  auto with = Parse({"--environment", "--slowms", "7"});
  REQUIRE(with);
  const ServerConfig& c = with.value().config;
  CHECK(c.max_connections == 77);
  CHECK(c.slow_ms == 7);
  CHECK(c.initial_user == "boss");
  CHECK(c.initial_password == "secret");
  CHECK(c.access_control());
  CHECK(::getenv("MONGO_INITDB_ROOT_PASSWORD") == nullptr);
  REQUIRE(c.hidden_variables.size() == 1);
  CHECK(c.hidden_variables[0].second == "secret");
  auto half = Parse({"--environment"});
  REQUIRE_FALSE(half);
  CHECK(half.error().message.find("the password is missing") != std::string::npos);
  ::setenv("MAYFLYD_NONSENSE", "1", 1);
  CHECK(Parse({"--environment"}).error().message.find("MAYFLYD_NONSENSE") != std::string::npos);
  for (const char* name :
       {"MAYFLYD_MAX_CONNS", "MAYFLYD_SLOWMS", "MAYFLYD_NONSENSE", "MONGO_INITDB_ROOT_USERNAME"})
    ::unsetenv(name);
}

TEST_CASE("A configuration file with a password is its owner's alone", "[config]") {
  const testing::ScratchDir dir;
  const std::string path = dir.path() + "/conf";
  const auto parse = [&](const std::string& text, mode_t mode) {
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return Parse({"--config", path});
  };
  const std::string own =
      "net:\n  tls:\n    mode: requireTLS\n    certificateKeyFile: /c\n    CAFile: /ca\n";
  const std::string secret = own + "    certificateKeyFilePassword: x\n";
  CHECK(parse(own, 0644));
  CHECK(parse(secret, 0600));
  const std::string old = "tlsMode = requireTLS\ntlsCertificateKeyFile = /c\ntlsCAFile = /ca\n";
  CHECK(parse(old, 0644));
  for (const std::string& text : {secret, old + "tlsCertificateKeyFilePassword = x\n"}) {
    const auto refused = parse(text, 0604);
    REQUIRE_FALSE(refused);
    CHECK_THAT(refused.error().message, Catch::Contains(path) && Catch::Contains("chmod 600"));
  }
}

TEST_CASE("Scripts that nobody would run are not passed over", "[config]") {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("mayfly-scripts-" + std::to_string(::getpid()));
  CHECK(CheckNoScripts(folder.string()));  // there is no such directory
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "README.md") << "x";
  CHECK(CheckNoScripts(folder.string()));
  std::ofstream(folder / "users.js") << "x";
  const auto refused = CheckNoScripts(folder.string());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("users.js") != std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST_CASE("Clients that do not count for the limit are named by address or socket", "[config]") {
  auto r = Parse({"--maxIncomingConnectionsOverride", "10.1.0.0/16,::1",
                  "--maxIncomingConnectionsOverride", "/tmp/mongodb-27017.sock"});
  REQUIRE(r);
  const ServerConfig& c = r.value().config;
  CHECK(c.IsExempt("10.1.2.3:4711", true));
  CHECK(c.IsExempt("[::1]:4711", true));
  CHECK_FALSE(c.IsExempt("10.2.2.3:4711", true));
  CHECK(c.IsExempt("/tmp/mongodb-27017.sock", false));
  CHECK_FALSE(c.IsExempt("/tmp/other.sock", false));
  CHECK_FALSE(Parse({"--maxIncomingConnectionsOverride", "db.example"}));
}

TEST_CASE("Where members may come from is a list of addresses", "[config]") {
  auto r = Parse({"--clusterIpSourceAllowlist", "10.1.0.0/16, ::1"});
  REQUIRE(r);
  const char* kPath = "security.clusterIpSourceAllowlist";
  CHECK(r.value().config.parsed.view().FindPath(kPath).String() == "10.1.0.0/16, ::1");
  r = Parse({"--clusterIpSourceAllowlist", "10.1.0.0/16", "--clusterIpSourceAllowlist", "::1"});
  REQUIRE(r);
  const BsonView parsed = r.value().config.parsed.view();
  REQUIRE(parsed.FindPath(kPath).IsArray());
  CHECK(parsed.FindPath(std::string(kPath) + ".1").String() == "::1");
  for (const char* bad : {"", ",", "db.example", "10.0.0.0/33", "10.0.0.1;10.0.0.2"})
    CHECK_FALSE(Parse({"--clusterIpSourceAllowlist", bad}));
  // In a file, an empty list restricts nothing although somebody wrote it to restrict.
  for (const char* empty : {"[]", "", "~", "\"\"", "[\"\"]", "[::ffff:10.0.0.0/8]"}) {
    INFO(empty);
    const TempFile file(std::string("security:\n  clusterIpSourceAllowlist: ") + empty + "\n");
    CHECK_FALSE(Parse({"--config", file.path}));
  }
  const TempFile file("security:\n  clusterIpSourceAllowlist: [10.1.0.0/16]\n");
  CHECK(Parse({"--config", file.path}));
}
