// The keys that sign cluster times: what is stored, when the next one comes, what is believed.
#include "security/time_keys.h"

#include <catch2/catch.hpp>
#include <thread>

using namespace mayfly;

namespace {

constexpr int64_t kInterval = 100;
uint64_t At(int64_t seconds, uint32_t n = 1) { return static_cast<uint64_t>(seconds) << 32 | n; }

/// Keys of a set whose first primary began at 1,000.
struct KeptKeys {
  TimeKeys keys;
  std::string stored;
  KeptKeys() { Renew(1000); }
  /// Whether there was something to do.
  bool Renew(int64_t seconds) {
    auto renewed = keys.Renewed(seconds, kInterval).value();
    if (!renewed) return false;
    stored = *renewed;
    REQUIRE(keys.Use(stored));
    return true;
  }
  TimeSignature Sign(uint64_t time) {
    TimeSignature s;
    REQUIRE(keys.Sign(time, &s));
    return s;
  }
};

ErrorCode CodeOf(const Result<void>& r) { return r ? ErrorCode::kOk : r.error().code; }

}  // namespace

TEST_CASE("A time is believed with its own signature alone", "[time_keys]") {
  KeptKeys k;
  const TimeSignature s = k.Sign(At(1010));
  CHECK(s.key_id > 0);
  CHECK(k.keys.Check(At(1010), s.view(), s.key_id));
  CHECK(k.Sign(At(1010)).hash == s.hash);
  CHECK(k.Sign(At(1010, 2)).hash != s.hash);
  CHECK(CodeOf(k.keys.Check(At(1010, 2), s.view(), s.key_id)) == ErrorCode::kTimeProofMismatch);
  CHECK(CodeOf(k.keys.Check(At(2010), s.view(), s.key_id)) == ErrorCode::kKeyNotFound);
  CHECK(CodeOf(k.keys.Check(At(1010), s.view(), s.key_id + 1)) != ErrorCode::kOk);
  CHECK(CodeOf(k.keys.Check(At(1010), s.view(), 0)) == ErrorCode::kKeyNotFound);
  CHECK(CodeOf(k.keys.Check(At(1010), "", s.key_id)) == ErrorCode::kTimeProofMismatch);
  CHECK(CodeOf(k.keys.Check(At(1010), std::string(20, '\0'), s.key_id)) ==
        ErrorCode::kTimeProofMismatch);

  // Another member, and another thread of it, know it by what is stored.
  TimeKeys other;
  TimeSignature there;
  CHECK_FALSE(other.Sign(At(1010), &there));
  REQUIRE(other.Use(k.stored));
  CHECK(other.Check(At(1010), s.view(), s.key_id));
  std::thread([&] { CHECK(other.Sign(At(1010), &there)); }).join();
  CHECK(there.hash == s.hash);
  // A set of its own has its own keys, also on a thread that has just signed with others.
  KeptKeys stranger;
  CHECK(stranger.Sign(At(1010)).hash != s.hash);
  CHECK_FALSE(stranger.keys.Check(At(1010), s.view(), s.key_id));
}

TEST_CASE("The next key is there before it is used, and old ones go", "[time_keys]") {
  KeptKeys k;
  const TimeSignature first = k.Sign(At(1050));
  CHECK(k.Sign(At(1099)).key_id == first.key_id);
  const int64_t second = k.Sign(At(1100)).key_id;
  CHECK(second != first.key_id);
  CHECK_FALSE(k.Renew(1050));
  CHECK_FALSE(k.keys.Due(1099));
  CHECK(k.keys.Due(1100));
  CHECK_FALSE(k.keys.Due(1100));  // told already
  CHECK(k.keys.Due(1101));
  CHECK(k.Renew(1101));
  CHECK_FALSE(k.keys.Due(1102));
  CHECK(k.Sign(At(1150)).key_id == second);
  CHECK(k.keys.Check(At(1050), first.view(), first.key_id));
  // What a key has not been for is not believed by it.
  CHECK(CodeOf(k.keys.Check(At(1150), first.view(), first.key_id)) == ErrorCode::kKeyNotFound);
  // A set that was down for long: both keys are new, and the ones before are gone.
  CHECK(k.Renew(90'000));
  CHECK(k.Sign(At(90'001)).key_id > second);
  CHECK_FALSE(k.keys.Check(At(1050), first.view(), first.key_id));
  for (int64_t at = 90'000; at < 95'000; at += 10) k.Renew(at);
  CHECK(k.stored.size() < 1 + 36 * 9);
}

TEST_CASE("Stored keys that cannot be read change nothing", "[time_keys]") {
  KeptKeys k;
  const TimeSignature s = k.Sign(At(1010));
  const std::string good = k.stored;
  for (size_t n = 0; n < good.size(); ++n)
    if (n != 37) CHECK_FALSE(k.keys.Use(good.substr(0, n)));  // 37: a single key
  CHECK_FALSE(k.keys.Use("\2" + good.substr(1)));
  CHECK_FALSE(k.keys.Use(good + good.substr(1)));  // not in their order
  std::string many = good;
  for (int i = 0; i < 20; ++i) many += good.substr(1);
  CHECK_FALSE(k.keys.Use(many));
  CHECK(k.Sign(At(1010)).hash == s.hash);
}

TEST_CASE("What is believed goes forward alone", "[time_keys]") {
  TimeKeys k;
  CHECK(k.believed() == 0);
  k.Believe(At(5));
  k.Believe(At(3));
  CHECK(k.believed() == At(5));
}
