#include "server/base/login_lines.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "storage/clock.h"

using namespace mayfly;

namespace {

/// {"10.0.0.1:5000 repeated 5"} of the lines about logins, in their order; "" for one of its own.
std::vector<std::string> LoginLines(const Log& log, int id) {
  std::vector<std::string> out;
  size_t total = 0;
  for (const std::string& line : log.RecentLines(&total)) {
    auto parsed = ParseJson(line);
    REQUIRE(parsed);
    const BsonView view = parsed.value().view();
    if (view["id"].NumberAsInt64() != id) continue;
    const BsonValue repeated = view.FindPath("attr.repeated");
    if (!repeated.IsNumber()) {
      out.emplace_back();
      continue;
    }
    out.push_back((view.FindPath("attr.severalAddresses").Truthy()
                       ? std::string("several")
                       : std::string(view.FindPath("attr.client").String())) +
                  " repeated " + std::to_string(repeated.NumberAsInt64()));
  }
  return out;
}

struct LoginLog {
  SystemClock clock;
  std::unique_ptr<Log> log;
  FailedLogins failed;
  int64_t second = 6000;
  LoginLog() {
    auto opened = Log::Open({.path = "/dev/null", .append = true}, clock);
    REQUIRE(opened);
    log = std::move(opened).value();
  }
  void Say(bool good, const std::string& remote, int times = 1) {
    const BsonDocument attributes = BuildBson([&](BsonBuilder& b) { b.Append("client", remote); });
    for (int i = 0; i < times; ++i)
      WriteLoginLine(*log, failed, second,
                     {.good = good,
                      .local = "10.0.0.9:27017",
                      .remote = remote,
                      .attributes = attributes,
                      .context = "conn1"});
  }
  std::vector<std::string> Failures() const { return LoginLines(*log, 5286307); }
};

}  // namespace

TEST_CASE("Failed logins beyond a few of a minute have no line of the log each", "[log]") {
  LoginLog l;
  l.Say(false, "10.0.0.1:5000", 500);
  l.Say(false, "10.0.0.2:5000", 20);
  CHECK(l.Failures() == std::vector<std::string>(40));
  CHECK(l.failed.suppressed() == 480);
  // Who logs in has a line, however many fail.
  l.Say(true, "10.0.0.1:5001", 30);
  CHECK(LoginLines(*l.log, 5286306).size() == 30);
  CHECK(l.Failures().size() == 40);
  // The next line about a login after the minute comes behind the count, also a good one's.
  l.second += 60;
  l.Say(true, "10.0.0.3:5000");
  auto lines = l.Failures();
  REQUIRE(lines.size() == 41);
  CHECK(lines.back() == "10.0.0.1:5000 repeated 480");
  // A new minute has its own lines; what is left is told at the end, once.
  l.Say(false, "10.0.0.1:5000", 22);
  WriteRepeatedLogins(*l.log, l.failed);
  WriteRepeatedLogins(*l.log, l.failed);
  lines = l.Failures();
  REQUIRE(lines.size() == 62);
  CHECK(lines.back() == "10.0.0.1:5000 repeated 2");
}

TEST_CASE("Failed logins from many addresses have a bounded number of lines", "[log]") {
  LoginLog l;
  for (int i = 0; i < 5000; ++i)
    l.Say(false, "10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250) + ":5000");
  CHECK(l.Failures().size() == FailedLogins::kMaxClients);
  WriteRepeatedLogins(*l.log, l.failed);
  const auto lines = l.Failures();
  REQUIRE(lines.size() == FailedLogins::kMaxClients + 1);
  CHECK(lines.back() == "several repeated 4800");
  // An address of the next network of IPv6 is another client, one of the same is not.
  LoginLog six;
  six.Say(false, "[2001:db8:0:1::1]:5000", 20);
  six.Say(false, "[2001:db8:0:1::2]:5000", 20);
  six.Say(false, "[2001:db8:0:2::1]:5000", 20);
  CHECK(six.Failures().size() == 40);
}
