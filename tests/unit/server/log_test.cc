#include "server/base/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "protocol/extended_json.h"
#include "server/base/command_exception.h"
#include "server/base/log_redaction.h"
#include "tests/unit/scratch_dir.h"
#include "tests/unit/server/allocations.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace fs = std::filesystem;

namespace {

const Instant kTime{1'700'000'000'123};  // 2023-11-14T22:13:20.123Z

std::string Read(const std::filesystem::path& p) {
  std::stringstream s;
  s << std::ifstream(p).rdbuf();
  return s.str();
}

}  // namespace

TEST_CASE("A log line is a JSON document with mongod's fields in mongod's order", "[log]") {
  BsonDocument attr = BuildBson(
      [](BsonBuilder& b) { b.Append("remote", "127.0.0.1:5").Append("n", 3).Append("ok", true); });
  const std::string line =
      FormatLogJson(kTime, TimestampFormat::kIso8601Utc, LogSeverity::kInfo, LogComponent::kNetwork,
                    22943, "listener", "Say \"hi\"\n", attr.view());
  auto parsed = ParseJson(line);
  REQUIRE(parsed);
  const BsonView v = parsed.value().view();
  std::vector<std::string> names;
  for (const BsonElement& e : v) names.emplace_back(e.name);
  CHECK(names == std::vector<std::string>{"t", "s", "c", "id", "ctx", "msg", "attr"});
  CHECK(v["t"].Date() == kTime);
  CHECK(v["s"].String() == "I");
  CHECK(v["c"].String() == "NETWORK");
  CHECK(v["id"].Int32() == 22943);
  CHECK(v["msg"].String() == "Say \"hi\"\n");
  CHECK(v.FindPath("attr.n").Int32() == 3);
}

TEST_CASE("An attribute too long for a line is cut, and the line says so", "[log]") {
  const std::string big(20'000, 'x');
  BsonDocument attr = BuildBson([&](BsonBuilder& b) { b.Append("small", 1).Append("big", big); });
  const std::string line = FormatLogJson(kTime, TimestampFormat::kIso8601Utc, LogSeverity::kWarning,
                                         LogComponent::kCommand, 1, "c", "m", attr.view());
  CHECK(line.size() < 12'000);
  auto parsed = ParseJson(line);
  REQUIRE(parsed);
  CHECK(parsed.value().view().FindPath("truncated.big.type").String() == "string");
  CHECK(parsed.value().view().FindPath("attr.small").Int32() == 1);
}

TEST_CASE("Text lines carry the same for people", "[log]") {
  BsonDocument attr = BuildBson([](BsonBuilder& b) { b.Append("port", 27017); });
  const std::string line = FormatLogText(kTime, TimestampFormat::kIso8601Utc, LogSeverity::kError,
                                         LogComponent::kStorage, 9, "main", "Opened", attr.view());
  CHECK_THAT(line, Catch::Matchers::StartsWith("2023-11-14T22:13:20.123Z E"));
  CHECK_THAT(line, Catch::Matchers::Contains("[main] Opened port=27017"));
}

TEST_CASE("Verbosity is by component, and a component without its own inherits", "[log]") {
  SystemClock clock;
  testing::ScratchDir dir;
  LogOptions options;
  options.path = fs::path(dir.path()) / "a.log";
  auto log = Log::Open(options, clock).value();
  CHECK_FALSE(log->Enabled(LogSeverity::kDebug1, LogComponent::kIndex));
  log->SetVerbosity(LogComponent::kDefault, 1);
  CHECK(log->Enabled(LogSeverity::kDebug1, LogComponent::kIndex));
  CHECK_FALSE(log->Enabled(LogSeverity::kDebug2, LogComponent::kIndex));
  log->SetVerbosity(LogComponent::kIndex, 0);
  CHECK_FALSE(log->Enabled(LogSeverity::kDebug1, LogComponent::kIndex));
  log->SetVerbosity(LogComponent::kIndex, -1);
  CHECK(log->Enabled(LogSeverity::kDebug1, LogComponent::kIndex));
}

TEST_CASE("Rotation renames the file and goes on in a new one", "[log]") {
  SystemClock clock;
  testing::ScratchDir dir;
  LogOptions options;
  options.path = fs::path(dir.path()) / "a.log";
  auto log = Log::Open(options, clock).value();
  log->Info(LogComponent::kControl, 1, "first");
  REQUIRE(log->Rotate());
  log->Info(LogComponent::kControl, 2, "second");
  CHECK_THAT(Read(options.path),
             Catch::Matchers::Contains("second") && !Catch::Matchers::Contains("first"));
  int files = 0;
  for (auto& e : std::filesystem::directory_iterator(dir.path())) files += e.is_regular_file();
  CHECK(files == 2);
  size_t total = 0;
  CHECK(log->RecentLines(&total).size() == 2);
  CHECK(total == 2);
}

TEST_CASE("A log file that cannot be opened is an error that names it", "[log]") {
  SystemClock clock;
  LogOptions options;
  options.path = "/nonexistent-folder/a.log";
  auto r = Log::Open(options, clock);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == ErrorCode::kFileNotOpen);
  CHECK_THAT(r.error().message, Catch::Matchers::Contains("/nonexistent-folder/a.log"));
}

TEST_CASE("Redacted attributes keep names, codes and namespaces, and nothing that a client sent",
          "[log]") {
  const BsonDocument attr = BuildBson([](BsonBuilder& b) {
    b.Append("ns", "shop.orders");
    {
      BsonBuilder command = b.OpenDocument("command");
      command.Append("find", "orders").Append("limit", 5);
      command.OpenDocument("filter").Append("card", "canary");
      BsonArrayBuilder list = command.OpenArray("list");
      list.Append("canary").Append(7);
      list.OpenDocument().Append("deep", "canary");
    }
    b.Append("errMsg", "dup key: { card: \"canary\" }").Append("errCode", 11000);
    b.Append("planSummary", "IXSCAN { card: 1 }").Append("error", "canary");
    b.Append("document", "canary");
  });
  const std::string text = ToRelaxedJson(RedactAttributes(51803, attr));
  CHECK(text ==
        R"({ "ns" : "shop.orders", "command" : { "find" : "###", "limit" : "###", "filter" : )"
        R"({ "card" : "###" }, "list" : [ "###", "###", { "deep" : "###" } ] }, "errMsg" : "###", )"
        R"("errCode" : 11000, "planSummary" : "IXSCAN { card: 1 }", "error" : "###", )"
        R"("document" : "###" })");
  // The system's own words stay.
  const BsonDocument own = BuildBson([](BsonBuilder& b) { b.Append("error", "disk full"); });
  CHECK(ToRelaxedJson(RedactAttributes(9000116, own)) == R"({ "error" : "disk full" })");
}

TEST_CASE("redactClientLogData holds for the file and for getLog's lines", "[log]") {
  testing::ScratchDir dir;
  SystemClock clock;
  LogOptions options;
  options.path = (fs::path(dir.path()) / "log").string();
  auto log = Log::Open(options, clock);
  REQUIRE(log);
  const BsonDocument attr = BuildBson([](BsonBuilder& b) { b.Append("document", "canary"); });
  LogRedaction() = true;
  log.value()->Info(LogComponent::kCommand, 1, "it", attr);
  LogRedaction() = false;
  size_t total = 0;
  const std::vector<std::string> lines = log.value()->RecentLines(&total);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("canary") == std::string::npos);
  CHECK(lines[0].find("\"document\":\"###\"") != std::string::npos);
  log.value()->Info(LogComponent::kCommand, 1, "it", attr);
  CHECK(log.value()->RecentLines(&total)[1].find("canary") != std::string::npos);
}

// Issue 29: a document that fails a validator, and a key that an index has twice, were shown.
TEST_CASE("A line about the collections of users has no values of theirs", "[log]") {
  for (const std::string ns : {"admin.system.users", "admin.tempusers", "admin.tempuser"}) {
    INFO(ns);
    const BsonDocument document = BuildBson([&](BsonBuilder& b) {
      b.Append("namespace", ns);
      b.OpenDocument("document").Append("x", "canary");
    });
    const BsonDocument error = BuildBson([&](BsonBuilder& b) {
      b.Append("error", "E11000 duplicate key error collection: " + ns + " dup key: canary");
    });
    const bool hidden = ns != "admin.tempuser";
    for (const BsonDocument* attr : {&document, &error})
      CHECK(TellsOfCredentials(20294, *attr) == hidden);
    // Those that write these lines have looked at their commands.
    CHECK_FALSE(TellsOfCredentials(51803, document));
    testing::ScratchDir dir;
    LogOptions options;
    options.path = (fs::path(dir.path()) / "log").string();
    SystemClock clock;
    auto log = Log::Open(options, clock);
    REQUIRE(log);
    log.value()->Warn(LogComponent::kStorage, 20294, "it", document);
    log.value()->Warn(LogComponent::kStorage, 9000200, "it", error);
    size_t total = 0;
    for (const std::string& line : log.value()->RecentLines(&total))
      CHECK((line.find("canary") == std::string::npos) == hidden);
    CHECK(total == 2);
  }
}

TEST_CASE("Only files are renamed when a log is rotated: no devices, pipes and links", "[log]") {
  testing::ScratchDir dir;
  const fs::path pipe = fs::path(dir.path()) / "pipe", link = fs::path(dir.path()) / "link",
                 file = fs::path(dir.path()) / "file";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(RenameLogTo(pipe.string(), kTime).value().empty());
  CHECK(fs::is_fifo(pipe));
  const fs::path to_pipe = fs::path(dir.path()) / "to_pipe",
                 nowhere = fs::path(dir.path()) / "nowhere";
  fs::create_symlink(pipe, to_pipe);
  fs::create_symlink(fs::path(dir.path()) / "none", nowhere);
  for (const fs::path& stays :
       {to_pipe, nowhere, fs::path(dir.path()) / "none", fs::path(dir.path())}) {
    CHECK(RenameLogTo(stays.string(), kTime).value().empty());
  }
  CHECK(fs::is_symlink(to_pipe));
  CHECK(fs::is_symlink(nowhere));
  // As /dev/stdout is one: what it leads to is renamed.
  std::ofstream(file) << "a line";
  fs::create_symlink(file, link);
  const std::string renamed = RenameLogTo(link.string(), kTime).value();
  CHECK(renamed == fs::canonical(dir.path()).string() + "/file.2023-11-14T22-13-20");
  CHECK(Read(renamed) == "a line");
  CHECK(fs::is_symlink(link));
  CHECK_FALSE(fs::exists(file));
}

TEST_CASE("An exception is an answer, also where there is no memory to say so", "[log]") {
  const ScratchDir dir;
  const SystemClock clock;
  const std::unique_ptr<Log> log = Log::Open({.path = dir.path() + "/log"}, clock).value();
  // Longer than what a string holds without memory of its own.
  const std::string why(100, 'x');
  const auto answer = [&](bool memory, auto exception) {
    std::optional<Error> error;
    std::optional<std::string> text;
    try {
      throw exception;
    } catch (...) {
      std::optional<test::NoMemory> none;
      if (!memory) none.emplace();
      error = CommandException(*log, "find", "conn1");
      LogException(*log, "a thread");
      text = CurrentExceptionText();
    }
    CHECK((text == exception.what() || !memory));
    return *error;
  };
  CHECK(answer(true, std::runtime_error(why)).code == ErrorCode::kInternalError);
  CHECK(answer(true, std::runtime_error(why)).message ==
        "an unexpected failure of the server: " + why);
  CHECK(answer(true, std::bad_alloc()).code == ErrorCode::kExceededMemoryLimit);
  const std::string lines = Read(dir.path() + "/log");
  CHECK(lines.find("A command ended by an exception") != lines.npos);
  CHECK(lines.find("conn1") != lines.npos);
  CHECK(lines.find(why) != lines.npos);
  // Nothing leaves the catch block, on whatever thread that is.
  for (const Error& error :
       {answer(false, std::runtime_error(why)), answer(false, std::bad_alloc())}) {
    CHECK(error.code == ErrorCode::kExceededMemoryLimit);
    CHECK(error.message == "out of memory");
  }
}
