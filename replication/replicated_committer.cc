#include "replication/replicated_committer.h"

#include <random>

namespace mayfly {
namespace {

/// So many entries may be on their way; units that come then gather in the next one. Few, so that
/// entries grow with the load.
constexpr int kEntriesOnTheirWay = 4;
constexpr size_t kEntryBytes = 1 << 20;  ///< an entry this large takes no more units

Error NotPrimary() { return {ErrorCode::kNotWritablePrimary, "not primary"}; }

}  // namespace

ReplicatedCommitter::ReplicatedCommitter(Storage& storage, int sync_interval_ms)
    : storage_(storage),
      local_(MakeLocalCommitter(storage, sync_interval_ms)),
      origin_(std::random_device{}() | uint64_t{std::random_device{}()} << 32) {}

ReplicatedCommitter::~ReplicatedCommitter() = default;

void ReplicatedCommitter::set_consensus(Consensus* consensus) {
  std::lock_guard l(mutex_);
  consensus_ = consensus;
  if (consensus == nullptr) writable_ = false;
}

void ReplicatedCommitter::SetWritable(bool on) { writable_ = on; }

void ReplicatedCommitter::AdvanceTo(uint64_t ts) {
  uint64_t now = last_ts_.load(std::memory_order_relaxed);
  while (now < ts && !last_ts_.compare_exchange_weak(now, ts, std::memory_order_relaxed)) {
  }
}

std::span<WriteUnit> ReplicatedCommitter::UnitsOf(void* context) {
  return context == nullptr ? std::span<WriteUnit>() : static_cast<Group*>(context)->units;
}

ReplicatedCommitter::Totals ReplicatedCommitter::totals() const {
  std::lock_guard l(mutex_);
  return totals_;
}

void ReplicatedCommitter::Submit(WriteUnit unit, CommitOptions options, Done done) {
  SubmittedUnit u(unit);
  if (u.local()) return local_->Submit(std::move(unit), options, std::move(done));
  if (u.empty()) {
    // A sync of what was written before: that is on disk, on a majority, since it was acknowledged.
    u.Finish();
    return done(Ok());
  }
  if (!writable()) {
    u.GiveUp();
    return done(NotPrimary());
  }
  // Here, not on the one thread that applies, and then so in the log of every member.
  u.SortForCommit();
  std::string bytes;
  bytes.reserve(unit.SizeBytes() + 256);
  const EncodedUnit encoded = EncodeLogUnit(unit, bytes);
  if (bytes.size() + kLogEntryHeader > kMaxProposalBytes) {
    u.GiveUp();
    return done(Error{ErrorCode::kBSONObjectTooLarge,
                      "the changes of one operation take " + std::to_string(bytes.size()) +
                          " bytes in the log; it takes " + std::to_string(kMaxProposalBytes) +
                          " at most"});
  }
  Operation* op = u.operation();
  Enqueue(std::move(bytes), encoded, std::move(unit), op, std::move(done));
}

void ReplicatedCommitter::SubmitNoop(BsonView o, Done done) {
  if (!writable()) return done(NotPrimary());
  std::string bytes;
  const EncodedUnit encoded = EncodeNoopUnit(o, bytes);
  Enqueue(std::move(bytes), encoded, std::nullopt, nullptr, std::move(done));
}

uint64_t ReplicatedCommitter::TimestampBehind(int64_t millis) {
  {
    std::lock_guard l(mutex_);
    if (last_wall_ >= millis) return last_ts();
  }
  if ((wall_ ? wall_() : storage_.clock().Now().millis) >= millis)
    SubmitNoop(BuildBson([](BsonBuilder& b) { b.Append("msg", "reads have hidden what expired"); }),
               [](Result<void>) {});
  return last_ts();
}

void ReplicatedCommitter::Enqueue(std::string bytes, EncodedUnit encoded,
                                  std::optional<WriteUnit> unit, Operation* op, Done done) {
  const int64_t wall = wall_ ? wall_() : storage_.clock().Now().millis;
  std::unique_lock l(mutex_);
  // Timestamps follow the clock and never go back, whatever the clock does.
  uint64_t first = last_ts_.load(std::memory_order_relaxed);
  if (const uint32_t ticks = encoded.ticks; ticks > 0) {
    uint64_t seen = first;
    do {
      first =
          std::max(seen + 1, static_cast<uint64_t>(std::max<int64_t>(wall, 0) / 1000) << 32 | 1);
    } while (!last_ts_.compare_exchange_weak(seen, first + ticks - 1, std::memory_order_relaxed));
    if (op != nullptr) op->commit_ts = first + ticks - 1;
  }
  SetUnitTime(bytes.data(), first, wall);
  last_wall_ = std::max(last_wall_, wall);
  if (waiting_.empty() || waiting_.back()->data.size() + bytes.size() > kEntryBytes) {
    auto group = std::make_shared<Group>();
    BeginLogEntry(origin_, ++sequence_, group->data);
    waiting_.push_back(std::move(group));
  }
  Group& group = *waiting_.back();
  group.data.append(bytes);
  RequireLogEntryVersion(group.data, encoded.version);
  if (unit) group.units.push_back(std::move(*unit));
  group.done.push_back(std::move(done));
  ++totals_.units;
  totals_.bytes += static_cast<int64_t>(bytes.size());
  Send(l);
}

void ReplicatedCommitter::Send(std::unique_lock<std::mutex>& l) {
  if (sending_) return;  // whoever sends sees what came meanwhile
  sending_ = true;
  while (!waiting_.empty() && on_their_way_ < kEntriesOnTheirWay) {
    std::shared_ptr<Group> group = std::move(waiting_.front());
    waiting_.pop_front();
    ++on_their_way_;
    ++totals_.entries;
    Consensus* consensus = consensus_;
    l.unlock();
    if (consensus == nullptr) {
      Finished(*group, Error{ErrorCode::kInterruptedAtShutdown, "the storage is shutting down"});
    } else {
      Proposal p;
      p.data = std::move(group->data);
      p.context = group;
      p.done = [this, group](Result<LogPosition> r) { Finished(*group, r); };
      consensus->Propose(std::move(p));
    }
    l.lock();
  }
  sending_ = false;
}

void ReplicatedCommitter::Finished(Group& group, const Result<LogPosition>& result) {
  if (!result)
    for (WriteUnit& u : group.units) SubmittedUnit(u).GiveUp();
  std::vector<Done> done = std::move(group.done);
  group.units.clear();
  for (Done& d : done) {
    if (result)
      d(Ok());
    else
      d(result.error());
  }
  std::unique_lock l(mutex_);
  --on_their_way_;
  Send(l);
}

}  // namespace mayfly
