#include "ttl/forecast.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "storage/catalog/index_keys.h"
#include "storage/keys/key_format.h"
#include "timeseries/bucket_control.h"
#include "ttl/rule_date.h"
#include "ttl/ttl_controls.h"

namespace mayfly {
namespace {

/// An interval with an estimate below this is counted instead, as long as the allowance for
/// counting lasts. Near the size of one block of the store's files, bytes say little about the
/// number of entries.
constexpr double kCountSmall = 6'000;
constexpr int64_t kSmallAllowance = 60'000;
/// How many stretches are counted to calibrate the estimates, and the entries of each: it is some
/// blocks long.
constexpr int kStretches = 16;
constexpr int64_t kStretch = 8'000;
constexpr size_t kSamples = 256;
constexpr int64_t kSampleEvery = kStretch * kStretches / static_cast<int64_t>(kSamples);
/// Entries between two checks whether a block has ended.
constexpr int64_t kBlockCheck = 64;
/// No estimate claims a smaller relative error than this.
constexpr double kLeastError = 0.05;
/// What CountRoughly counts, in less than a millisecond; more is estimated.
constexpr int64_t kFewEntries = 20'000, kFewBuckets = 200;
/// If memtables hold more than this share of a keyspace's entries, the keyspace is flushed first:
/// how much of a range lies in memtables is known much less exactly.
constexpr double kMemtableShare = 0.04;

/// A key about half-way from `a` to `b`, or `a` itself if no key lies usefully between them.
std::string MiddleKey(std::string_view a, std::string_view b) {
  size_t same = 0;
  while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
  auto load = [&](std::string_view s) {
    uint64_t v = 0;
    for (size_t i = 0; i < 8; ++i)
      v = v << 8 | (same + i < s.size() ? static_cast<uint8_t>(s[same + i]) : 0);
    return v;
  };
  const uint64_t low = load(a), high = load(b);
  if (high - low < 2) return std::string(a);
  const uint64_t mid = low + (high - low) / 2;
  std::string out(a.substr(0, same));
  for (int shift = 56; shift >= 0; shift -= 8)
    out.push_back(static_cast<char>(mid >> shift & 0xFF));
  return out;
}

double Bytes(Storage& storage, const RuleRange& r) {
  if (r.begin >= r.end) return 0;
  return static_cast<double>(storage.kv().ApproximateBytes(r.keyspace, r.begin, r.end));
}

/// Where each document has one entry, there cannot be more entries than documents. Estimates are
/// reduced accordingly; counted intervals stay as they are.
void ShrinkTo(double known, std::vector<Counted>* counted) {
  double all = 0, estimated = 0;
  for (const Counted& c : *counted) {
    all += c.n;
    if (!c.exact) estimated += c.n;
  }
  if (all <= known || estimated <= 0) return;
  const double shrink = std::max(0.0, (known - (all - estimated)) / estimated);
  for (Counted& c : *counted)
    if (!c.exact) c.n *= shrink;
}

}  // namespace

bool RangeCounter::KnownTotal(int64_t* total) const {
  if (rule_.kind == TtlRule::Kind::kDocument) return false;
  if (rule_.index &&
      (rule_.index->sparse || rule_.index->has_partial_filter || rule_.index->is_multikey()))
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

Result<void> RangeCounter::FlushIfNeeded() {
  const RuleRange all = EverythingOf(rule_);
  const KvStats stats = storage_.kv().Stats(all.keyspace);
  // An entry takes several times as many bytes in a memtable as in a file, so numbers of entries
  // are compared.
  int64_t entries = 0;
  if (!KnownTotal(&entries)) entries = static_cast<int64_t>(stats.estimated_keys);
  if (static_cast<double>(stats.memtable_entries) <= kMemtableShare * static_cast<double>(entries))
    return Ok();
  return storage_.kv().Flush(all.keyspace);
}

Result<RangeCounter::Stretch> RangeCounter::Measure(const RuleRange& whole, double bytes,
                                                    double share) {
  // Keys are halved, not dates: very many entries may have the same date.
  RuleRange range = whole, before_it = whole;
  std::string high = whole.end;
  for (int step = 0; step < 64; ++step) {
    before_it.end = MiddleKey(range.begin, high);
    if (before_it.end == range.begin) break;
    if (Bytes(storage_, before_it) < bytes * share)
      range.begin = before_it.end;
    else
      high = before_it.end;
  }
  KvIterOptions options;
  options.lower = range.begin;
  options.upper = range.end;
  options.fill_cache = false;
  auto it = storage_.kv().NewIterator(range.keyspace, std::move(options));
  // The store reports sizes in whole blocks. The stretch therefore begins and ends where a block
  // does. Otherwise it would seem up to one block shorter than it is.
  RuleRange upto{range.keyspace, {}, {}};
  double before = 0, at_length = -1, size = 0;
  int64_t looked = 0, n = 0;
  bool begun = false, ended = false;
  for (it->SeekToFirst(); it->Valid() && looked < 4 * kStretch; it->Next(), ++looked) {
    MAYFLY_TRY(op_.CheckInterrupt());
    if (looked == 0) upto.begin = it->key();
    if (looked % kSampleEvery == 0 && looked < kStretch) {
      samples_.emplace_back();
      RecordKeyOfEntry(rule_, it->key(), it->value(), &samples_.back());
    }
    if (looked % kBlockCheck == 0) {
      upto.end = it->key();
      size = Bytes(storage_, upto);
      if (!begun && size > 0) {
        begun = true;
        before = size;
        n = 0;
      } else if (begun && n >= kStretch) {
        if (at_length < 0) at_length = size;
        ended = size > at_length;
        if (ended) break;
      }
    }
    ++n;
  }
  MAYFLY_TRY(it->status());
  op_.keys_examined += looked;
  if (begun && ended) return Stretch{static_cast<double>(n), size - before, true};
  // The range, or the allowance, ended first: the stretch is everything that was looked at.
  upto.end = it->Valid() ? std::string(it->key()) : range.end;
  return Stretch{static_cast<double>(looked), Bytes(storage_, upto), false};
}

Result<std::vector<Counted>> RangeCounter::Count(const std::vector<int64_t>& bounds) {
  Sampled s;
  for (size_t i = 0; i + 1 < bounds.size(); ++i)
    s.ranges.push_back(DatesOf(rule_, bounds[i], bounds[i + 1]));
  samples_.clear();
  error_ = 0;
  int64_t known = 0;
  const bool is_known = KnownTotal(&known);
  if (!is_known || known <= count_all_) {
    MAYFLY_TRY(auto all, CountAll(s.ranges));
    if (all) return std::move(*all);
    samples_.clear();
  }
  MAYFLY_TRY(FlushIfNeeded());
  MAYFLY_TRY(const bool measured, Sample(&s));
  if (!measured) {
    error_ = 1;
    return std::vector<Counted>(s.ranges.size(), Counted{0, false});
  }
  MAYFLY_TRY(std::vector<Counted> out, Estimate(s));
  error_ = ErrorOf(s, out);
  if (is_known) ShrinkTo(static_cast<double>(known), &out);
  return out;
}

Result<std::optional<std::vector<Counted>>> RangeCounter::CountAll(
    const std::vector<RuleRange>& ranges) {
  std::vector<Counted> out;
  int64_t left = count_all_;
  for (const RuleRange& range : ranges) {
    MAYFLY_TRY(int64_t found, Scan(range, left, static_cast<size_t>(count_all_) / kSamples + 1));
    out.push_back({static_cast<double>(found), true});
    left -= found;
    if (left < 0) return std::optional<std::vector<Counted>>();
  }
  return std::optional(std::move(out));
}

Result<bool> RangeCounter::Sample(Sampled* s) {
  const size_t n = s->ranges.size();
  s->bytes.resize(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) {
    MAYFLY_TRY(op_.CheckInterrupt());
    total += s->bytes[i] = Bytes(storage_, s->ranges[i]);
  }
  // Stretches lie at equal distances over all the bytes. A range that contains several of them is
  // calibrated by these. Every other range is too small for that, and is calibrated by all ranges
  // that contain just one.
  s->in_range.resize(n);
  Stretch rest;  // cut short by the end of their range: better than nothing
  double passed = 0;
  for (size_t i = 0, k = 0; i < n && total > 0; passed += s->bytes[i++]) {
    for (; k < kStretches; ++k) {
      const double at = total * (static_cast<double>(k) + 0.5) / kStretches;
      if (at >= passed + s->bytes[i]) break;
      MAYFLY_TRY(Stretch found, Measure(s->ranges[i], s->bytes[i], (at - passed) / s->bytes[i]));
      if (found.bytes <= 0 || found.entries <= 0) continue;
      if (found.whole)
        s->in_range[i].push_back(found);
      else
        rest.entries += found.entries, rest.bytes += found.bytes;
    }
  }
  return Weigh(rest, s);
}

bool RangeCounter::Weigh(const Stretch& rest, Sampled* s) {
  auto add = [](Stretch* sum, const std::vector<Stretch>& list) {
    for (const Stretch& one : list) sum->entries += one.entries, sum->bytes += one.bytes;
  };
  Stretch light, any;
  for (const auto& list : s->in_range) {
    add(&any, list);
    if (list.size() == 1) add(&light, list);
  }
  if (light.bytes <= 0) light = any.bytes > 0 ? any : rest;
  if (light.bytes <= 0) return false;
  s->of_range.assign(s->ranges.size(), light);
  for (size_t i = 0; i < s->ranges.size(); ++i) {
    if (s->in_range[i].size() < 2) continue;
    s->of_range[i] = {};
    add(&s->of_range[i], s->in_range[i]);
  }
  return true;
}

Result<std::vector<Counted>> RangeCounter::Estimate(const Sampled& s) {
  std::vector<Counted> out(s.ranges.size());
  int64_t allowance = kSmallAllowance;
  for (size_t i = 0; i < s.ranges.size(); ++i) {
    const double estimate = s.bytes[i] * s.of_range[i].entries / s.of_range[i].bytes;
    out[i] = {estimate, false};
    if (estimate > kCountSmall || allowance <= 0) continue;
    const int64_t most = std::min<int64_t>(allowance, static_cast<int64_t>(2 * kCountSmall));
    MAYFLY_TRY(int64_t found, Scan(s.ranges[i], most, 0));
    allowance -= found;
    if (found <= most) out[i] = {static_cast<double>(found), true};
  }
  return out;
}

double RangeCounter::ErrorOf(const Sampled& s, const std::vector<Counted>& counted) {
  // Twice the standard error. For a range with stretches of its own it is the error of their mean;
  // for a range that is judged by the stretches of others it is that of a single value.
  auto spread = [](const std::vector<double>& offs) {
    double squares = 0;
    for (double off : offs) squares += off * off;
    return squares / static_cast<double>(std::max<size_t>(1, offs.size() - 1));
  };
  std::vector<double> light_offs;
  double weight = 0, light_weight = 0, weighted = 0;
  for (size_t i = 0; i < counted.size(); ++i) {
    if (counted[i].exact) continue;
    const double ratio = s.of_range[i].entries / s.of_range[i].bytes;
    std::vector<double> offs;
    for (const Stretch& one : s.in_range[i]) offs.push_back(one.entries / one.bytes / ratio - 1);
    weight += counted[i].n;
    if (offs.size() > 1) {
      weighted += counted[i].n * 2 * std::sqrt(spread(offs) / static_cast<double>(offs.size()));
    } else {
      light_weight += counted[i].n;
      light_offs.insert(light_offs.end(), offs.begin(), offs.end());
    }
  }
  if (light_weight > 0)
    weighted += light_weight * (light_offs.size() > 1 ? 2 * std::sqrt(spread(light_offs)) : 0.5);
  return weight > 0 ? std::clamp(weighted / weight, kLeastError, 1.0) : 0;
}

Result<double> RangeCounter::CountRoughly(int64_t from, int64_t to) {
  // Entries are keys of some bytes, but buckets of a time series are records of some thousand.
  const int64_t few = rule_.coll->is_buckets() && !rule_.index ? kFewBuckets : kFewEntries;
  const RuleRange range = DatesOf(rule_, from, to);
  MAYFLY_TRY(int64_t n, Scan(range, few, 0));
  if (n <= few) return static_cast<double>(n);
  int64_t known = Storage::DocumentCount(*rule_.coll);
  const double bytes = Bytes(storage_, range);
  double estimate = 0;
  if (const double all = Bytes(storage_, EverythingOf(rule_)); KnownTotal(&known) && all > 0) {
    estimate = bytes * static_cast<double>(known) / all;
  } else {
    MAYFLY_TRY(Stretch s, Measure(range, bytes, 0.5));
    if (s.bytes > 0) estimate = bytes * s.entries / s.bytes;
  }
  return std::clamp(estimate, static_cast<double>(few),
                    std::max(static_cast<double>(few), static_cast<double>(known)));
}

Result<Counted> CountDue(Storage& storage, Operation& op, const TtlRule& rule, bool roughly) {
  const int64_t threshold = rule.Threshold(op.now);
  if (rule.state().resume_millis.load() > threshold || threshold == INT64_MIN) return Counted{};
  RangeCounter counter(storage, op, rule);
  const int64_t end = threshold == INT64_MAX ? threshold : threshold + 1;
  if (roughly) {
    MAYFLY_TRY(double n, counter.CountRoughly(INT64_MIN, end));
    return Counted{n, false};
  }
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

/// The points and bytes of a bucket; none if it cannot be read.
std::pair<double, double> WeightOf(const CollectionInfo& coll, BsonView bucket) {
  const Result<BucketFacts> facts =
      FactsOfBucketDocument(bucket, {coll.series->time_field, coll.series->meta_field});
  if (!facts) return {};
  return {static_cast<double>(facts.value().count), static_cast<double>(bucket.size())};
}

/// The average points and bytes of a bucket, over some of a time series' buckets.
Result<std::pair<double, double>> AverageWeight(Storage& storage, Operation& op,
                                                const CollectionInfo& coll,
                                                const std::vector<std::string>& samples) {
  std::pair<double, double> sum;
  double n = 0;
  for (const std::string& key : samples) {
    MAYFLY_TRY(op.CheckInterrupt());
    Storage::Record record;
    MAYFLY_TRY(bool found, storage.Fetch(coll, key, &record));
    if (!found) continue;
    ++op.docs_examined;
    const auto [points, bytes] = WeightOf(coll, record.doc);
    sum.first += points;
    sum.second += bytes;
    ++n;
  }
  if (n == 0) return sum;
  return std::pair(sum.first / n, sum.second / n);
}

Result<void> CountDocuments(Storage& storage, Operation& op, const CollectionInfoPtr& coll,
                            const std::vector<TtlRule>& rules, const TtlControls* controls,
                            int64_t horizon_millis, Forecast* f) {
  RecordScan scan;
  scan.fill_cache = false;
  auto cursor = storage.ScanRecords(coll, std::move(scan));
  const auto buckets = static_cast<int64_t>(f->intervals.size());
  const FilteringFor filtering(&op);
  for (;;) {
    MAYFLY_TRY(op.CheckInterrupt());
    MAYFLY_TRY(bool found, cursor->Next());
    if (!found) return op.CheckInterruptNow();  // a filter that was stopped has said no
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
      auto i = std::min<int64_t>(
          buckets - 1,
          static_cast<int64_t>(static_cast<double>(d.deadline - op.now.millis) /
                               static_cast<double>(horizon_millis) * static_cast<double>(buckets)));
      while (i > 0 && d.deadline <= f->intervals[static_cast<size_t>(i)].from.millis) --i;
      while (d.deadline > f->intervals[static_cast<size_t>(i)].to.millis) ++i;
      Forecast::Interval& interval = f->intervals[static_cast<size_t>(i)];
      ++interval.count;
      ++interval.by_rule[static_cast<size_t>(d.rule)];
      if (f->of_buckets) {
        const auto [points, bytes] = WeightOf(*coll, cursor->doc());
        interval.points += points;
        interval.bytes += bytes;
      }
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
  f.of_buckets = coll->is_buckets();
  if (rules.empty()) {
    f.never = documents;
    return f;
  }
  if (documents <= options.exact_documents) {
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
    RangeCounter counter(storage, op, rule, options.count_all);
    MAYFLY_TRY(std::vector<Counted> counts, counter.Count(bounds));
    // Only entries that decide when their document is removed are counted. The later dates of an
    // array, documents that another rule removes first, and documents on hold are not.
    double share = 1, share_error = 0;
    const bool plain = rules.size() == 1 && !(rule.index && rule.index->is_multikey()) &&
                       !(controls && controls->HasHolds(*coll));
    if (!plain && !counter.samples().empty()) {
      int64_t looked = 0, deciding = 0;
      const FilteringFor filtering(&op);
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
      MAYFLY_TRY(op.CheckInterruptNow());
      if (looked > 0) {
        share = static_cast<double>(deciding) / static_cast<double>(looked);
        share_error =
            2 * std::sqrt(std::max(share * (1 - share), 0.0) / static_cast<double>(looked));
      }
      f.exact = false;
    }
    std::pair<double, double> weight;
    if (f.of_buckets) {
      MAYFLY_TRY(weight, AverageWeight(storage, op, *coll, counter.samples()));
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
        f.intervals[i - 1].points += c * weight.first;
        f.intervals[i - 1].bytes += c * weight.second;
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
