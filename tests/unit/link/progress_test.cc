#include "link/progress.h"

#include <catch2/catch.hpp>

using namespace mayfly;

namespace {

/// A progress whose time the test moves.
struct MovedTimes {
  LinkProgress::Times at{1'000'000, 5'000'000};
  LinkProgress progress{[this] { return at; }};
  void Pass(int64_t millis) { at.steady += millis, at.wall += millis; }
  int64_t lag() const { return progress.Look().lag_millis; }
  bool stalled() const { return !progress.Look().stalled.empty(); }
};

}  // namespace

TEST_CASE("A lag grows while changes wait, however long one command takes", "[link]") {
  MovedTimes m;
  m.progress.Advanced();
  m.progress.Reads();
  m.progress.Heard(m.at.wall - 20);
  CHECK(m.lag() == 20);
  m.Pass(10'000);
  CHECK(m.lag() == 10'020);
  CHECK_FALSE(m.stalled());
  // A later change is not the oldest one.
  m.progress.Heard(m.at.wall);
  m.Pass(10'000);
  CHECK(m.lag() == 20'020);
  CHECK(m.stalled());
  // Once the first is written, the second one counts; and then none does.
  m.progress.Advanced();
  m.progress.Written(20'020, m.at.wall - 10'000);
  CHECK(m.lag() == 10'000);
  CHECK_FALSE(m.stalled());
  m.progress.Heard(std::nullopt);
  m.progress.Written(30, std::nullopt);
  CHECK(m.lag() == 30);
  m.progress.Heard(std::nullopt);
  m.progress.Written(0, std::nullopt);
  m.Pass(1'000);
  CHECK(m.lag() == 0);
}

TEST_CASE("A paused link is behind, but not stalled", "[link]") {
  MovedTimes m;
  m.progress.Reads();
  m.progress.Heard(m.at.wall);
  for (int i = 0; i < 100; ++i) {
    m.Pass(1'000);
    m.progress.Advanced();  // it keeps its lease
  }
  CHECK(m.lag() == 100'000);
  CHECK_FALSE(m.stalled());
}

TEST_CASE("A source that does not answer is a lag, too", "[link]") {
  MovedTimes m;
  m.progress.Reads();
  m.Pass(2'000);
  m.progress.Advanced();
  CHECK(m.lag() == 0);  // it answers each second or so
  m.Pass(18'000);
  m.progress.Advanced();
  CHECK(m.lag() == 20'000);
  CHECK(m.stalled());
  m.progress.Heard(std::nullopt);
  CHECK(m.lag() == 0);
  CHECK_FALSE(m.stalled());
  // Another attempt is no answer.
  m.Pass(9'000);
  m.progress.Reads();
  m.Pass(9'000);
  CHECK(m.lag() == 18'000);
  CHECK(m.stalled());
  m.progress.Copies(m.at.wall);
  CHECK(m.lag() == 0);
}

TEST_CASE("A copy is as far behind as it began, by the source's clock", "[link]") {
  MovedTimes m;
  m.progress.SetSkew(-500);
  m.progress.Copies(m.at.wall - 500);
  m.Pass(7'000);
  CHECK(m.lag() == 7'000);
  m.progress.Copies(std::nullopt);
  CHECK(m.lag() == 0);
}

TEST_CASE("A standby is not behind", "[link]") {
  MovedTimes m;
  m.progress.Heard(m.at.wall);
  m.progress.StandBy();
  m.progress.Heard(m.at.wall);
  m.Pass(60'000);
  CHECK(m.lag() == 0);
  CHECK_FALSE(m.stalled());
}
