#include "server/http/activity_history.h"

#include <algorithm>
#include <numeric>

namespace mayfly {

int64_t Quantile(const std::array<int64_t, LatencyHistogram::kBuckets>& buckets, double share) {
  const int64_t total = std::accumulate(buckets.begin(), buckets.end(), int64_t{0});
  if (total <= 0) return 0;
  const double wanted = share * static_cast<double>(total);
  double below = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    const auto n = static_cast<double>(buckets[i]);
    if (n > 0 && below + n >= wanted) {
      const double low = i == 0 ? 0 : static_cast<double>(uint64_t{1} << i);
      const auto high = static_cast<double>(uint64_t{2} << i);
      return static_cast<int64_t>(low + (high - low) * (wanted - below) / n);
    }
    below += n;
  }
  return int64_t{1} << LatencyHistogram::kBuckets;
}

ActivityHistory::Counts ActivityHistory::Read(const ServerMetrics& m) {
  Counts c;
  c.reaped = m.ttl.deleted_documents.Get();
  for (int i = 0; i < LatencyHistogram::kBuckets; ++i) {
    c.reads[i] = m.reads.buckets[i].Get();
    c.writes[i] = m.writes.buckets[i].Get();
  }
  return c;
}

ActivityHistory::Sample ActivityHistory::Take(const ServerMetrics& metrics, int64_t now_millis) {
  const Counts now = Read(metrics);
  Sample s;
  if (!started_) {
    started_ = true;
    last_ = now;
    return s;
  }
  auto reads = now.reads, writes = now.writes;
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i] -= last_.reads[i];
    writes[i] -= last_.writes[i];
  }
  s.reaped = now.reaped - last_.reaped;
  s.reads = std::accumulate(reads.begin(), reads.end(), int64_t{0});
  s.writes = std::accumulate(writes.begin(), writes.end(), int64_t{0});
  s.read_p50_micros = Quantile(reads, 0.5);
  s.read_p99_micros = Quantile(reads, 0.99);
  s.write_p99_micros = Quantile(writes, 0.99);
  last_ = now;
  for (size_t w = 0; w < kSlotMillis.size(); ++w) {
    const int64_t start = now_millis - now_millis % kSlotMillis[w];
    Slot* slot = &rings_[w][newest_[w]];
    if (start > slot->start_millis) {
      newest_[w] = (newest_[w] + 1) % kSlots;
      slot = &rings_[w][newest_[w]];
      *slot = Slot{.start_millis = start};
    }
    slot->reaped += s.reaped;
    slot->reads += s.reads;
    slot->writes += s.writes;
    slot->read_p99_micros = std::max(slot->read_p99_micros, s.read_p99_micros);
    slot->write_p99_micros = std::max(slot->write_p99_micros, s.write_p99_micros);
  }
  return s;
}

std::vector<ActivityHistory::Slot> ActivityHistory::Slots(int width) const {
  std::vector<Slot> out;
  for (int i = 1; i <= kSlots; ++i) {
    const Slot& s = rings_[width][(newest_[width] + i) % kSlots];
    if (s.start_millis != 0) out.push_back(s);
  }
  return out;
}

}  // namespace mayfly
