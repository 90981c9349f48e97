#include "ttl/reap_limits.h"

#include <catch2/catch.hpp>

#include "query/expression/date_util.h"
#include "tests/unit/ttl/reaping_fixture.h"
#include "ttl/ttl_parameters.h"

using namespace mayfly;
using namespace mayfly::testing;

namespace {

Instant At(std::string_view text) { return ParseDateText(text).value(); }

/// The option as the catalog keeps it.
void SetReap(Reaping& r, std::string_view json) {
  BsonDocument option = Json(json);
  REQUIRE(r.catalog().ModifyIndex(*r.op, *r.Coll(), "at_1", [&](IndexInfo& i) -> Result<void> {
    i.extra = BuildBson([&](BsonBuilder& b) { b.Append("reap", option); });
    return Ok();
  }));
}

}  // namespace

TEST_CASE("A lag of any length has a bucket", "[ttl]") {
  LagHistogram h;
  h.Record(-5);
  CHECK(h.Percentile(1) == 0);
  h.Record(INT64_MAX, 1000);  // the deadline of the first date there is
  CHECK(h.Percentile(0.99) == INT64_MAX);
  CHECK(h.Max() == INT64_MAX);
}

TEST_CASE("The reap option is checked field by field", "[ttl][limits]") {
  struct Row {
    const char* option;
    int code;
    const char* says;
  };
  for (Row row :
       {Row{R"({"maxDocsPerSecond": -1})", 67, ".maxDocsPerSecond"},
        Row{R"({"maxDocsPerSecond": 1.5})", 67, "whole number"},
        Row{R"({"maxDocsPerSecond": 2147483648})", 67, "2147483647"},
        Row{R"({"maxDocsPerSecond": {"$numberDouble": "NaN"}})", 67, "NaN"},
        Row{R"({"maxDocsPerSecond": "9"})", 14, "string"},
        Row{R"({"catchUpSeconds": true})", 14, "bool"},
        Row{R"({"catchUpSeconds": 5})", 67, "can lift"}, Row{R"({"window": "2-5"})", 67, "2-5"},
        Row{R"({"window": "02:00-25:00"})", 67, "02:00-25:00"},
        Row{R"({"window": "24:00-05:00"})", 67, "24:00"},
        Row{R"({"window": "02:60-05:00"})", 67, "02:60"},
        Row{R"({"window": "02:00-02:00"})", 67, "empty"}, Row{R"({"window": 2})", 14, ".window"},
        Row{R"({"timezone": "Europe/Berlin"})", 67, "needs a window"},
        Row{R"({"window": "02:00-05:00", "timezone": "Mars/Olympus"})", 67, "Mars"},
        Row{R"({"window": "02:00-05:00", "timezone": 2})", 14, ".timezone"},
        Row{R"({"speed": 1})", 67, "speed"}}) {
    INFO(row.option);
    BsonDocument option = Json(row.option);
    auto r = ParseReapLimits(option.view().AsValue(), ErrorCode::kCannotCreateIndex, "i");
    REQUIRE_FALSE(r);
    CHECK(static_cast<int>(r.error().code) == row.code);
    CHECK(r.error().message.find(row.says) != std::string::npos);
    CHECK(r.error().message.find("'i'") != std::string::npos);
  }
  BsonDocument whole = Json(
      R"({"maxDocsPerSecond": 500, "window": "22:30-24:00", "timezone": "+02:00", "catchUpSeconds": 60})");
  ReapLimits l =
      ParseReapLimits(whole.view().AsValue(), ErrorCode::kCannotCreateIndex, "i").value();
  CHECK(l.max_docs_per_second == 500);
  CHECK(l.catch_up_seconds == 60);
  CHECK(l.window->begin_minute == 22 * 60 + 30);
  CHECK(l.window->end_minute == 24 * 60);
  CHECK(l.window->timezone == "+02:00");
}

TEST_CASE("A window is open by the clock of its time zone", "[ttl][limits]") {
  ReapWindow berlin{2 * 60, 5 * 60, "Europe/Berlin"};
  CHECK_FALSE(berlin.Contains(At("2030-01-10T00:59:59Z")));
  CHECK(berlin.Contains(At("2030-01-10T01:00:00Z")));
  CHECK(berlin.Contains(At("2030-01-10T03:59:59Z")));
  CHECK_FALSE(berlin.Contains(At("2030-01-10T04:00:00Z")));
  CHECK(berlin.Contains(At("2030-07-10T00:00:00Z")));  // summer time
  CHECK_FALSE(berlin.Contains(At("2030-07-10T03:00:00Z")));
  CHECK(berlin.Opens(At("2030-01-10T04:00:00Z")) == At("2030-01-11T01:00:00Z"));
  CHECK(berlin.Opens(At("2030-01-10T02:00:30Z")) == At("2030-01-10T02:00:30Z"));
  // The night on which 02:00 to 03:00 does not exist.
  ReapWindow gap{2 * 60, 3 * 60, "Europe/Berlin"};
  CHECK(gap.Opens(At("2030-03-30T12:00:00Z")) == At("2030-04-01T00:00:00Z"));
  ReapWindow night{22 * 60, 4 * 60, ""};
  CHECK(night.Contains(At("2030-01-10T23:00:00Z")));
  CHECK(night.Contains(At("2030-01-10T03:59:00Z")));
  CHECK_FALSE(night.Contains(At("2030-01-10T04:00:00Z")));
  CHECK(night.Opens(At("1969-12-31T12:00:00.5Z")) == At("1969-12-31T22:00:00Z"));
}

TEST_CASE("The rate limiter gives what time is worth", "[ttl][limits]") {
  RateLimiter l;
  CHECK(l.Available(0) == INT64_MAX);
  l.SetRate(100, 1000);
  CHECK(l.Available(1000) == 0);
  CHECK(l.NextMillis() == 1050);  // half a tenth of a second's worth
  CHECK(l.Available(1050) == 5);
  l.Spend(5);
  CHECK(l.Available(1050) == 0);
  CHECK(l.Available(3050) == 200);  // it waited
  l.Spend(150);
  CHECK(l.Available(9000) == 10);  // it rested
  l.SetRate(100, 9000);
  CHECK(l.Available(9000) == 10);
  CHECK(l.Available(100) == 10);  // the clock was set back
  l.SetRate(0, 100);
  CHECK(l.Available(100) == INT64_MAX);
}

TEST_CASE("ttlMaxDocsPerSecond and an index's maxDocsPerSecond hold", "[ttl][limits]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  const bool global = GENERATE(true, false);
  if (global)
    r.parameters.max_docs_per_second = 100;
  else
    SetReap(r, R"({"maxDocsPerSecond": 100})");
  for (int64_t i = 0; i < 1000; ++i) REQUIRE(r.Insert(*c, r.Doc(i, kStart - 1000 + i)));
  r.Start();
  r.monitor->Settle();
  CHECK(r.Count() == 1000);
  for (int second = 1; second <= 5; ++second) {
    r.clock.Advance(1000);
    r.monitor->Settle();
    CHECK(r.Count() == 1000 - second * 100);
  }
  TtlRule rule = ListTtlRules(r.catalog(), nullptr).back();
  TtlRuleFigures f = r.monitor->Figures(rule);
  CHECK(f.waits_for == TtlWait::kLimit);
  CHECK(f.deleted == 500);
  CHECK(f.lag_millis == 5000 + 500);
  CHECK(f.rate_per_second == Approx(50));  // of ten seconds, five of them at 100
  // Lifted, it goes at once.
  r.parameters.max_docs_per_second = 0;
  SetReap(r, "{}");
  r.monitor->Settle();
  CHECK(r.Count() == 0);
  CHECK(r.monitor->Figures(rule).waits_for == TtlWait::kNothing);
}

TEST_CASE("A rule outside its window waits, and catchUpSeconds ends the waiting", "[ttl][limits]") {
  Reaping r;
  auto c = r.WithIndex(R"({"key": {"at": 1}, "expireAfterSeconds": 0})");
  SetReap(r, R"({"window": "02:00-05:00", "timezone": "Europe/Berlin"})");
  r.clock.Set(At("2030-01-10T12:00:00Z"));
  r.Start();
  REQUIRE(r.Insert(*c, r.Doc(1, At("2030-01-10T12:00:01Z").millis)));
  r.clock.Set(At("2030-01-11T00:59:59Z"));
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  CHECK(r.monitor->Figures(ListTtlRules(r.catalog(), nullptr).back()).waits_for ==
        TtlWait::kWindow);
  r.clock.Set(At("2030-01-11T01:00:00Z"));
  r.monitor->Settle();
  CHECK(r.Count() == 0);

  SetReap(r, R"({"window": "02:00-05:00", "catchUpSeconds": 3600})");
  r.clock.Set(At("2030-01-11T12:00:00Z"));
  REQUIRE(r.Insert(*c, r.Doc(1, At("2030-01-11T12:00:00Z").millis)));
  r.clock.Set(At("2030-01-11T13:00:00Z"));
  r.monitor->Settle();
  CHECK(r.Count() == 1);
  r.clock.Advance(1001);
  r.monitor->Settle();
  CHECK(r.Count() == 0);
}
