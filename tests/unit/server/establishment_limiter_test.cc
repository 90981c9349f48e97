#include "server/dispatch/establishment_limiter.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "protocol/bson_builder.h"
#include "server/dispatch/parameters.h"

using namespace mayfly;

namespace {

class HandClock final : public Clock {
 public:
  Instant Now() const override { return {micros / 1000}; }
  int64_t MonotonicMicros() const override { return micros; }
  void OnJump(std::function<void()>) override {}
  int64_t micros = 1'000'000;
};

/// What has become of connections, by their names.
struct Story {
  std::vector<std::string> served, closed, gone;
};

class Named final : public NewConnection {
 public:
  Named(Story& story, std::string name) : story_(story), name_(std::move(name)) {}
  ~Named() override {
    if (!served_) story_.closed.push_back(name_);
  }
  bool Gone() override {
    return std::find(story_.gone.begin(), story_.gone.end(), name_) != story_.gone.end();
  }
  void Serve() override {
    served_ = true;
    story_.served.push_back(name_);
  }

 private:
  Story& story_;
  const std::string name_;
  bool served_ = false;
};

struct Limited {
  HandClock clock;
  Story story;
  ParameterRegistry parameters;
  EstablishmentLimiter limiter{clock};

  Limited() { limiter.RegisterParameters(parameters); }
  Result<void> Set(std::string_view name, std::string_view value) {
    return parameters.SetFromText("ingressConnectionEstablishment" + std::string(name), value);
  }
  void On(std::string_view rate, std::string_view burst, std::string_view depth) {
    REQUIRE(Set("RatePerSec", rate));
    REQUIRE(Set("BurstCapacitySecs", burst));
    REQUIRE(Set("MaxQueueDepth", depth));
    REQUIRE(Set("RateLimiterEnabled", "true"));
  }
  EstablishmentLimiter::Outcome Come(std::string name, bool exempt = false) {
    return limiter.Arrived(std::make_unique<Named>(story, std::move(name)), exempt);
  }
};

using Outcome = EstablishmentLimiter::Outcome;
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("the limiter of new connections is off at first", "[net]") {
  Limited l;
  for (int i = 0; i < 100; ++i) CHECK(l.Come("a") == Outcome::kServed);
  CHECK(l.limiter.figures().attempted == 0);
  CHECK_FALSE(l.limiter.Advance());
}

TEST_CASE("connections beyond the rate are refused where none may wait", "[net]") {
  Limited l;
  l.On("2", "1.5", "0");
  CHECK(l.limiter.Tokens() == 3);
  for (const char* name : {"a", "b", "c"}) CHECK(l.Come(name) == Outcome::kServed);
  CHECK(l.Come("d") == Outcome::kRefused);
  CHECK(l.story.closed == Names{"d"});
  l.clock.micros += 499'999;
  CHECK(l.Come("e") == Outcome::kRefused);
  l.clock.micros += 2;
  CHECK(l.Come("f") == Outcome::kServed);
  // It does not keep more than the burst.
  l.clock.micros += 3'600'000'000;
  CHECK(l.limiter.Tokens() == 3);
  CHECK(l.limiter.figures().refused == 2);
  CHECK(l.limiter.figures().served == 4);
  CHECK(l.limiter.figures().attempted == 6);
}

TEST_CASE("a bucket has room for one connection at least", "[net]") {
  Limited l;
  l.On("1", "0", "0");
  CHECK(l.Come("a") == Outcome::kServed);
  CHECK(l.Come("b") == Outcome::kRefused);
  l.clock.micros += 1'000'000;
  CHECK(l.Come("c") == Outcome::kServed);
}

TEST_CASE("connections wait in the order of their coming", "[net]") {
  Limited l;
  l.On("10", "0.1", "2");
  CHECK(l.Come("a") == Outcome::kServed);
  CHECK(l.Come("b") == Outcome::kWaits);
  CHECK(l.Come("c") == Outcome::kWaits);
  CHECK(l.Come("d") == Outcome::kRefused);
  CHECK(l.limiter.figures().waiting == 2);
  // A tenth of a second is a token.
  CHECK(l.limiter.Advance() == 100'000);
  l.clock.micros += 100'000;
  // The one that comes now does not overtake them.
  CHECK(l.Come("e") == Outcome::kRefused);
  CHECK(l.limiter.Advance() == 100'000);
  CHECK(l.story.served == Names{"a", "b"});
  l.clock.micros += 300'000;
  CHECK_FALSE(l.limiter.Advance());
  CHECK(l.story.served == Names{"a", "b", "c"});
  CHECK(l.limiter.figures().waiting == 0);
  CHECK(l.limiter.figures().dequeued == 2);
  CHECK(l.limiter.figures().waited_micros == 100'000 + 400'000);
}

TEST_CASE("a client that has gone leaves the line and takes no token", "[net]") {
  Limited l;
  l.On("1", "1", "10");
  CHECK(l.Come("a") == Outcome::kServed);
  for (const char* name : {"b", "c", "d", "e"}) CHECK(l.Come(name) == Outcome::kWaits);
  l.limiter.Advance();
  l.story.gone = {"b", "d"};
  l.clock.micros += 250'000;
  CHECK(l.limiter.Advance());
  CHECK(l.story.closed == Names{"b", "d"});
  CHECK(l.limiter.figures().gone == 2);
  CHECK(l.limiter.figures().waiting == 2);
  l.story.gone = {"c"};
  l.clock.micros += 750'000;
  CHECK_FALSE(l.limiter.Advance());
  CHECK(l.story.served == Names{"a", "e"});
  CHECK(l.limiter.figures().gone == 3);
}

TEST_CASE("exempt connections neither wait nor take a token", "[net]") {
  Limited l;
  l.On("1", "1", "5");
  CHECK(l.Come("a", true) == Outcome::kServed);
  CHECK(l.limiter.Tokens() == 1);
  CHECK(l.Come("b") == Outcome::kServed);
  CHECK(l.Come("c") == Outcome::kWaits);
  CHECK(l.Come("d", true) == Outcome::kServed);
  CHECK(l.limiter.figures().exempted == 2);
  CHECK(l.limiter.figures().attempted == 2);
}

TEST_CASE("changes of the limiter's parameters reach those that wait", "[net]") {
  Limited l;
  int changes = 0;
  l.limiter.OnChange([&] { ++changes; });
  l.On("1", "1", "200");
  CHECK(changes == 4);
  for (int i = 0; i < 100; ++i) l.Come(std::to_string(i));
  CHECK(l.limiter.figures().waiting == 99);
  REQUIRE(l.Set("RatePerSec", "4"));
  l.clock.micros += 1'000'000;
  CHECK(l.limiter.Advance());
  CHECK(l.limiter.figures().waiting == 95);
  REQUIRE(l.Set("RateLimiterEnabled", "false"));
  // Some at a time.
  CHECK(l.limiter.Advance() == 0);
  CHECK_FALSE(l.limiter.Advance());
  CHECK(l.story.served.size() == 100);
  l.limiter.OnChange({});
  CHECK(l.Set("RatePerSec", "0").error().code == ErrorCode::kBadValue);
  CHECK(l.Set("MaxQueueDepth", "-1").error().code == ErrorCode::kBadValue);
  CHECK(l.Set("BurstCapacitySecs", "-0.5").error().code == ErrorCode::kBadValue);
  CHECK(l.Set("RateLimiterEnabled", "maybe").error().code == ErrorCode::kTypeMismatch);
  CHECK(changes == 6);
}

TEST_CASE("those that wait at the end are closed", "[net]") {
  Limited l;
  l.On("1", "1", "5");
  l.Come("a");
  l.Come("b");
  l.limiter.Clear();
  CHECK(l.story.closed == Names{"b"});
  CHECK(l.limiter.figures().waiting == 0);
  CHECK_FALSE(l.limiter.Advance());
}
