#include "ttl/forecast.h"

#include <algorithm>
#include <cmath>

#include "storage/key_format.h"
#include "ttl/rule_date.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

/// A rule with no more entries than this is counted.
constexpr int64_t kCountAll = 50'000;
/// An interval that is estimated at less is counted instead, as long as the allowance for that
/// lasts: near the size of a block of the store's files, bytes say little.
constexpr double kCountSmall = 3'000;
constexpr int64_t kSmallAllowance = 60'000;
/// Stretches counted to calibrate, and entries of each.
constexpr int kStretches = 8;
constexpr int64_t kStretch = 4'000;
constexpr size_t kSamples = 256;

int64_t Middle(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) +
                              (static_cast<uint64_t>(b) - static_cast<uint64_t>(a)) / 2);
}

double Bytes(Storage& storage, const RuleRange& r) {
  if (r.begin >= r.end) return 0;
  return static_cast<double>(storage.kv().ApproximateBytes(r.keyspace, r.begin, r.end));
}

}  // namespace

bool RangeCounter::KnownTotal(int64_t* total) const {
  if (rule_.kind == TtlRule::Kind::kDocument) return false;
  if (rule_.index && (rule_.index->sparse || rule_.index->has_partial_filter ||
                      rule_.index->is_multikey()))
    return false;
  *total = Storage::DocumentCount(*rule_.coll);
  return true;
}

/// Counts at most `most` + 1.
Result<int64_t> RangeCounter::Scan(const RuleRange& range, int64_t most, size_t samples_every) {
  if (range.begin >= range.end) return 0;
  KvIterOptions options;
  options.lower = range.begin;
  options.upper = range.end;
  options.fill_cache = false;
  auto it = storage_.kv().NewIterator(range.keyspace, std::move(options));
  int64_t n = 0;
  for (it->SeekToFirst(); it->Valid() && n <= most; it->Next(), ++n) {
    MAYFLY_TRY(op_.CheckInterrupt());
    if (samples_every && static_cast<size_t>(n) % samples_every == 0) {
      samples_.emplace_back();
      RecordKeyOfEntry(rule_, it->key(), it->value(), &samples_.back());
    }
  }
  op_.keys_examined += n;
  MAYFLY_TRY(it->status());
  return n;
}

Result<void> RangeCounter::Calibrate(const std::vector<int64_t>& bounds,
                                     const std::vector<double>& bytes) {
  double total = 0;
  for (double b : bytes) total += b;
  std::vector<double> ratios;
  double entries = 0, measured = 0;
  const RuleRange all = DatesOf(rule_, INT64_MIN, INT64_MAX);
  for (int k = 0; k < kStretches; ++k) {
    // The date below which this share of the bytes lies.
    double target = total * (k + 0.5) / kStretches;
    size_t i = 0;
    while (i + 1 < bytes.size() && target > bytes[i]) target -= bytes[i++];
    int64_t low = bounds[i], high = bounds[i + 1];
    for (int step = 0; step < 64 && low < high - 1; ++step) {
      const int64_t mid = Middle(low, high);
      if (Bytes(storage_, DatesOf(rule_, bounds[i], mid)) < target)
        low = mid;
      else
        high = mid;
    }
    RuleRange from = DatesOf(rule_, low, low == INT64_MAX ? low : low + 1);
    KvIterOptions options;
    options.lower = from.begin;
    options.upper = all.end;
    options.fill_cache = false;
    auto it = storage_.kv().NewIterator(all.keyspace, std::move(options));
    RuleRange stretch{all.keyspace, {}, {}};
    int64_t n = 0;
    for (it->SeekToFirst(); it->Valid() && n < kStretch; it->Next(), ++n) {
      MAYFLY_TRY(op_.CheckInterrupt());
      if (n == 0) stretch.begin = it->key();
      stretch.end = it->key();
      if (n % (kStretch * kStretches / static_cast<int64_t>(kSamples)) == 0) {
        samples_.emplace_back();
        RecordKeyOfEntry(rule_, it->key(), it->value(), &samples_.back());
      }
    }
    MAYFLY_TRY(it->status());
    op_.keys_examined += n;
    const double b = Bytes(storage_, stretch);
    if (n < kStretch / 2 || b <= 0) continue;
    entries += static_cast<double>(n);
    measured += b;
    ratios.push_back(static_cast<double>(n) / b);
  }
  int64_t known = 0;
  const double everything = Bytes(storage_, EverythingOf(rule_));
  if (KnownTotal(&known) && everything > 0)
    per_byte_ = static_cast<double>(known) / everything;
  else
    per_byte_ = measured > 0 ? entries / measured : 0;
  double squares = 0;
  for (double r : ratios) squares += (r / per_byte_ - 1) * (r / per_byte_ - 1);
  error_ = ratios.empty() ? 1
                          : std::clamp(2 * std::sqrt(squares / static_cast<double>(ratios.size())),
                                       0.01, 1.0);
  return Ok();
}

Result<std::vector<Counted>> RangeCounter::Count(const std::vector<int64_t>& bounds) {
  const size_t n = bounds.size() - 1;
  std::vector<Counted> out(n);
  samples_.clear();
  error_ = 0;
  std::vector<RuleRange> ranges;
  for (size_t i = 0; i < n; ++i) ranges.push_back(DatesOf(rule_, bounds[i], bounds[i + 1]));
  int64_t known = 0;
  if (!KnownTotal(&known) || known <= kCountAll) {
    int64_t left = kCountAll;
    bool all = true;
    for (size_t i = 0; i < n && all; ++i) {
      MAYFLY_TRY(int64_t found, Scan(ranges[i], left, kCountAll / kSamples));
      out[i] = {static_cast<double>(found), true};
      left -= found;
      all = left >= 0;
    }
    if (all) return out;
    samples_.clear();
  }
  std::vector<double> bytes;
  for (const RuleRange& r : ranges) {
    MAYFLY_TRY(op_.CheckInterrupt());
    bytes.push_back(Bytes(storage_, r));
  }
  MAYFLY_TRY(Calibrate(bounds, bytes));
  int64_t allowance = kSmallAllowance;
  for (size_t i = 0; i < n; ++i) {
    const double estimate = bytes[i] * per_byte_;
    out[i] = {estimate, false};
    if (estimate > kCountSmall || allowance <= 0) continue;
    const int64_t most = std::min<int64_t>(allowance, static_cast<int64_t>(2 * kCountSmall));
    MAYFLY_TRY(int64_t found, Scan(ranges[i], most, 0));
    allowance -= found;
    out[i] = {static_cast<double>(found), found <= most};
  }
  return out;
}

Result<double> RangeCounter::CountRoughly(int64_t from, int64_t to) {
  constexpr int64_t kFew = 2'000;
  const RuleRange range = DatesOf(rule_, from, to);
  MAYFLY_TRY(int64_t n, Scan(range, kFew, 0));
  if (n <= kFew) return static_cast<double>(n);
  int64_t known = 0;
  double bytes = Bytes(storage_, range), all = Bytes(storage_, EverythingOf(rule_));
  if (KnownTotal(&known) && all > 0) return bytes * static_cast<double>(known) / all;
  MAYFLY_TRY(Calibrate({from, to}, {bytes}));
  return std::max(bytes * per_byte_, static_cast<double>(kFew));
}

Result<Counted> CountDue(Storage& storage, Operation& op, const TtlRule& rule) {
  const int64_t threshold = rule.Threshold(op.now);
  if (rule.state().resume_millis.load() > threshold || threshold == INT64_MIN)
    return Counted{};
  RangeCounter counter(storage, op, rule);
  const int64_t end = threshold == INT64_MAX ? threshold : threshold + 1;
  MAYFLY_TRY(std::vector<Counted> c, counter.Count({INT64_MIN, end}));
  return c[0];
}

namespace {

/// The earliest deadline of a document, and the rule that sets it; -1: none.
struct Deciding {
  int rule = -1;
  int64_t deadline = INT64_MAX;
};
Deciding Decide(const std::vector<TtlRule>& rules, BsonView doc, std::optional<Instant> header) {
  Deciding d;
  for (size_t r = 0; r < rules.size(); ++r) {
    std::optional<int64_t> date = DateByRule(rules[r], doc, header, nullptr);
    if (!date) continue;
    const int64_t deadline = ExpiryOf(rules[r], *date);
    if (d.rule < 0 || deadline < d.deadline) d = {static_cast<int>(r), deadline};
  }
  return d;
}

Result<void> CountDocuments(Storage& storage, Operation& op, const CollectionInfoPtr& coll,
                            const std::vector<TtlRule>& rules, const TtlControls* controls,
                            int64_t horizon_millis, Forecast* f) {
  RecordScan scan;
  scan.fill_cache = false;
  auto cursor = storage.ScanRecords(coll, std::move(scan));
  const auto buckets = static_cast<int64_t>(f->intervals.size());
  for (;;) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(bool found, cursor->Next());
    if (!found) return Ok();
    ++op.docs_examined;
    Deciding d = Decide(rules, cursor->doc(), cursor->expire_at());
    if (d.rule < 0) {
      ++f->never;
      continue;
    }
    if (controls) {
      std::optional<Instant> until = controls->HeldUntil(*coll, cursor->doc(), op.now);
      if (until) d.deadline = std::max(d.deadline, until->millis);
    }
    if (d.deadline <= op.now.millis) {
      ++f->overdue;
    } else if (d.deadline > f->intervals.back().to.millis) {
      ++f->beyond;
    } else {
      // (from, to]: the bounds are integer shares of the horizon.
      auto i = std::min<int64_t>(buckets - 1, static_cast<int64_t>(
          static_cast<double>(d.deadline - op.now.millis) / static_cast<double>(horizon_millis) *
          static_cast<double>(buckets)));
      while (i > 0 && d.deadline <= f->intervals[static_cast<size_t>(i)].from.millis) --i;
      while (d.deadline > f->intervals[static_cast<size_t>(i)].to.millis) ++i;
      Forecast::Interval& interval = f->intervals[static_cast<size_t>(i)];
      ++interval.count;
      ++interval.by_rule[static_cast<size_t>(d.rule)];
    }
  }
}

}  // namespace

Result<Forecast> MakeForecast(Storage& storage, Operation& op, const CollectionInfoPtr& coll,
                              const std::vector<TtlRule>& rules, const ForecastOptions& options,
                              const TtlControls* controls) {
  Forecast f;
  const int64_t now = op.now.millis, horizon = options.horizon_seconds * 1000;
  const auto buckets = static_cast<size_t>(options.buckets);
  for (const TtlRule& r : rules) f.rules.emplace_back(r.RuleName());
  for (size_t i = 0; i < buckets; ++i) {
    Forecast::Interval x;
    auto bound = [&](size_t k) {
      return Instant{now + static_cast<int64_t>(static_cast<__int128>(horizon) * k / buckets)};
    };
    x.from = bound(i);
    x.to = bound(i + 1);
    x.by_rule.resize(rules.size());
    f.intervals.push_back(std::move(x));
  }
  const int64_t documents = Storage::DocumentCount(*coll);
  if (rules.empty()) {
    f.never = documents;
    return f;
  }
  if (documents <= kForecastExactDocuments) {
    MAYFLY_TRY(CountDocuments(storage, op, coll, rules, controls, horizon, &f));
    return f;
  }
  double counted = 0, weighted_error = 0;
  for (size_t r = 0; r < rules.size(); ++r) {
    const TtlRule& rule = rules[r];
    // A deadline in (from, to] is a date in [from + 1 - seconds, to + 1 - seconds).
    std::vector<int64_t> bounds = {INT64_MIN};
    auto date = [&](int64_t deadline) {
      const int64_t d = rule.kind == TtlRule::Kind::kDocument
                            ? deadline
                            : SaturatingDeadline(deadline, -rule.seconds);
      return d == INT64_MAX ? d : d + 1;
    };
    bounds.push_back(date(now));
    for (const Forecast::Interval& x : f.intervals) bounds.push_back(date(x.to.millis));
    bounds.push_back(INT64_MAX);
    RangeCounter counter(storage, op, rule);
    MAYFLY_TRY(std::vector<Counted> counts, counter.Count(bounds));
    // Entries that do not decide when their document goes are not counted for it: an array's later
    // dates, documents that another rule takes first, held ones.
    double share = 1, share_error = 0;
    const bool plain = rules.size() == 1 && !(rule.index && rule.index->is_multikey()) &&
                       !(controls && controls->HasHolds(*coll));
    if (!plain && !counter.samples().empty()) {
      int64_t looked = 0, deciding = 0;
      for (const std::string& key : counter.samples()) {
        MAYFLY_TRY(op.CheckInterrupt());
        Storage::Record record;
        MAYFLY_TRY(bool found, storage.Fetch(*coll, key, &record));
        if (!found) continue;
        ++looked;
        ++op.docs_examined;
        const Deciding d = Decide(rules, record.doc, record.expire_at);
        if (d.rule == static_cast<int>(r) &&
            !(controls && controls->HeldUntil(*coll, record.doc, op.now)))
          ++deciding;
      }
      if (looked > 0) {
        share = static_cast<double>(deciding) / static_cast<double>(looked);
        share_error = 2 * std::sqrt(std::max(share * (1 - share), 0.0) / static_cast<double>(looked));
      }
      f.exact = false;
    }
    double total = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      const double c = counts[i].n * share;
      if (!counts[i].exact) f.exact = false;
      total += c;
      const auto whole = static_cast<int64_t>(std::llround(c));
      if (i == 0) {
        f.overdue += whole;
      } else if (i + 1 == counts.size()) {
        f.beyond += whole;
      } else {
        f.intervals[i - 1].by_rule[r] += whole;
        f.intervals[i - 1].count += whole;
      }
    }
    counted += total;
    weighted_error += total * std::sqrt(counter.error_fraction() * counter.error_fraction() +
                                        share_error * share_error);
  }
  f.error_fraction = f.exact || counted <= 0 ? 0 : std::min(1.0, weighted_error / counted);
  f.never = std::max<int64_t>(0, documents - static_cast<int64_t>(std::llround(counted)));
  return f;
}

}  // namespace mayfly
