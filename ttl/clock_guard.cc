#include "ttl/clock_guard.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "storage/catalog/catalog_format.h"

namespace mayfly {
namespace {

/// {highWater: date, suspended: bool, since: date, downtime: bool}
constexpr std::string_view kSetting = "ttl.clock";
constexpr int64_t kSaveEvery = 60'000;

}  // namespace

ClockGuard::ClockGuard(Storage& storage, Clock& clock, const TtlParameters& parameters,
                       TtlMetrics& metrics, std::function<int64_t()> elapsed_micros,
                       std::function<void(char, std::string_view, BsonView)> log)
    : storage_(storage),
      clock_(clock),
      parameters_(parameters),
      metrics_(metrics),
      elapsed_(std::move(elapsed_micros)),
      log_(std::move(log)) {}

void ClockGuard::SetBase(int64_t wall_millis) {
  base_wall_ = wall_millis;
  base_elapsed_ = elapsed_();
  base_us_.store(base_wall_ * 1000 - base_elapsed_, std::memory_order_relaxed);
}

Instant ClockGuard::RightTime() const {
  const Instant now = clock_.Now();
  const int64_t base = base_us_.load(std::memory_order_relaxed);
  const int64_t limit = parameters_.max_clock_jump_secs.load() * 1000;
  if (base == kNoBase || limit == 0) return now;
  const int64_t expected = (base + elapsed_()) / 1000;
  const int64_t off = now.millis > expected ? now.millis - expected : expected - now.millis;
  return off > limit ? Instant{expected} : now;
}

void ClockGuard::Open() {
  std::lock_guard l(mutex_);
  const Instant now = clock_.Now();
  SetBase(now.millis);
  Result<std::optional<std::string>> stored = storage_.catalog().GetSetting(kSetting);
  if (!stored || !stored.value() || !ValidateBson(*stored.value(), false)) return;
  const BsonView row(*stored.value());
  if (!row["highWater"].IsDate()) return;
  saved_ = row["highWater"].Date().millis;
  const int64_t limit = parameters_.max_clock_jump_secs.load() * 1000;
  const int64_t off_limit = parameters_.max_downtime_secs.load() * 1000;
  if (row["suspended"].Truthy() && row["since"].IsDate()) {
    // How long the server was off is unknown. The clock counts as right again once it is near the
    // high-water mark.
    SetBase(saved_);
    suspended_ = true;
    since_ = row["since"].Date();
    downtime_ = row["downtime"].Truthy();
    storage_.expiry_policy().suspended = true;
    Log('W', "Expiry is still suspended: the clock had jumped and was not confirmed", saved_);
  } else if (limit > 0 && now.millis < saved_ - limit) {
    SetBase(saved_);
    Suspend(now, saved_);
  } else if (off_limit > 0 && now.millis - saved_ > off_limit) {
    // A wrong clock and a server that was off for long look the same. Whoever set this limit wants
    // expiry to wait in both cases.
    SetBase(saved_);
    Suspend(now, saved_, true);
  }
}

void ClockGuard::Check(bool may_write) {
  std::lock_guard l(mutex_);
  if (moving_ > 0) return;  // the thread that moves it wakes the monitor again
  const Instant now = clock_.Now();
  if (jumped_) jumped_ = take_as_jump_ = false;
  if (excused_) {
    excused_ = false;
    if (!suspended_) SetBase(now.millis);
  }
  const int64_t expected = Expected();
  const int64_t limit = Limit();
  const int64_t off = now.millis > expected ? now.millis - expected : expected - now.millis;
  if (suspended_) {
    if (limit == 0 || off <= limit) Release("Expiry goes on: the clock is back");
  } else if (limit > 0 && off > limit) {
    Suspend(now, expected);
  } else {
    SetBase(now.millis);
    if (!moved_ && (saved_ == INT64_MIN || now.millis - saved_ >= kSaveEvery)) dirty_ = true;
  }
  if (dirty_ && may_write) Save();
}

bool ClockGuard::Confirm() {
  std::lock_guard l(mutex_);
  if (!suspended_) return false;
  Release("Expiry goes on: the clock was confirmed");
  return true;
}

void ClockGuard::AboutToMove() {
  std::lock_guard l(mutex_);
  ++moving_;
}

void ClockGuard::AfterJump() {
  std::lock_guard l(mutex_);
  moving_ = std::max(moving_ - 1, 0);
  if (take_as_jump_) {
    jumped_ = true;
    return;
  }
  moved_ = excused_ = true;
  if (!suspended_) base_us_.store(kNoBase, std::memory_order_relaxed);  // until Check
}

void ClockGuard::TakeNextAsJump() {
  std::lock_guard l(mutex_);
  take_as_jump_ = true;
}

ClockGuard::State ClockGuard::state() const {
  std::lock_guard l(mutex_);
  State s;
  s.suspended = suspended_;
  s.downtime = downtime_;
  s.since = since_;
  s.expected = {Expected()};
  return s;
}

void ClockGuard::Suspend(Instant now, int64_t expected, bool downtime) {
  suspended_ = true;
  downtime_ = downtime;
  since_ = now;
  storage_.expiry_policy().suspended = true;
  metrics_.clock_holds.Add();
  Log('W',
      downtime ? "By the clock the server was off for longer than ttlMaxDowntimeSecs: expiry is "
                 "suspended until the clock is confirmed with ttlRelease, or is set right"
               : "The clock has jumped: expiry is suspended until it comes back or is confirmed "
                 "with ttlRelease",
      expected);
  // The mark keeps the last time that was right.
  saved_ = std::max(saved_, expected);
  dirty_ = true;
}

void ClockGuard::Release(const char* why) {
  const int64_t expected = Expected();
  suspended_ = downtime_ = false;
  SetBase(clock_.Now().millis);
  storage_.expiry_policy().suspended = false;
  Log('I', why, expected);
  dirty_ = true;
}

// REQUIRES: mutex_. A suspension keeps the mark where it was.
void ClockGuard::Save() {
  if (!suspended_) saved_ = base_wall_;
  const BsonDocument row = BuildBson([&](BsonBuilder& b) {
    b.Append("highWater", Instant{saved_}).Append("suspended", suspended_);
    if (suspended_) b.Append("since", since_);
    if (downtime_) b.Append("downtime", true);
  });
  // The row belongs to this node alone. It does not go through the committer, which would send it
  // to the other members. If the store cannot be written to, that is reported elsewhere, and the
  // next Check tries again.
  auto batch = storage_.kv().NewBatch();
  batch->Put(Keyspace::kCatalog, std::string(kSettingPrefix).append(kSetting), row.bytes());
  if (storage_.kv().Write(*batch, false)) dirty_ = false;
}

void ClockGuard::Log(char severity, std::string_view message, int64_t expected) {
  if (!log_) return;
  const Instant now = clock_.Now();
  log_(severity, message, BuildBson([&](BsonBuilder& b) {
         b.Append("clock", now).Append("expected", Instant{expected});
         b.Append("jumpSeconds", (now.millis - expected) / 1000);
       }));
}

}  // namespace mayfly
