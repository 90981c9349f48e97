#include "replication/replicated_committer.h"

#include <algorithm>
#include <random>

#include "protocol/large_memory.h"
#include "storage/kv/write_room.h"

namespace mayfly {
namespace {

/// The most entries on their way at the same time; further ones wait. One is applied, one written,
/// and one gathers units until the engine takes it, so only full entries come to more.
constexpr int kEntriesOnTheirWay = 4;
constexpr size_t kEntryBytes = 1 << 20;   ///< an entry this large takes no more units
constexpr size_t kLargeUnit = 256 << 10;  ///< from here on units take turns
constexpr size_t kWholeUnit = 1 << 20;    ///< larger units go in chunks
constexpr size_t kChunkBytes = 512 << 10;
constexpr auto kLookAgain = std::chrono::milliseconds(2);
/// How long a unit waits for room in the store at most. Then it goes into the log anyway.
constexpr auto kMaxWaitForRoom = std::chrono::seconds(5);

/// Whether a unit of this many bytes fits into the log.
Result<void> CheckSize(size_t bytes, const EncodedUnit& encoded, bool in_chunks) {
  // Another code than for other units: drivers do not begin the transaction again.
  const ErrorCode code = encoded.version == kLogEntryEnd ? ErrorCode::kTransactionTooLarge
                                                         : ErrorCode::kBSONObjectTooLarge;
  if (!in_chunks && encoded.version == kLogEntryEnd)
    return Error{code,
                 "a transaction of more than 16 MB needs members that all read it, and one of them "
                 "runs an earlier version: upgrade it first"};
  const size_t most = in_chunks ? kMaxLogUnitBytes : kMaxProposalBytes - kLogEntryHeader;
  if (bytes <= most) return Ok();
  return Error{code, "the changes of one operation take " + std::to_string(bytes) +
                         " bytes in the log; it takes " + std::to_string(most) + " at most"};
}

}  // namespace

ReplicatedCommitter::ReplicatedCommitter(Storage& storage, int sync_interval_ms)
    : storage_(storage),
      local_(MakeLocalCommitter(storage, sync_interval_ms)),
      origin_(std::random_device{}() | uint64_t{std::random_device{}()} << 32),
      large_thread_(large_memory::WithThisBudget([this] { LargeLoop(); })) {}

ReplicatedCommitter::~ReplicatedCommitter() {
  {
    std::lock_guard l(mutex_);
    closed_ = true;
  }
  large_wake_.notify_all();
  large_thread_.join();
}

void ReplicatedCommitter::set_consensus(Consensus* consensus) {
  std::lock_guard l(mutex_);
  consensus_ = consensus;
  if (consensus != nullptr) return;
  writable_ = false;
  ++reign_;
  large_wake_.notify_all();
}

void ReplicatedCommitter::SetWritable(bool on, uint64_t term) {
  std::lock_guard l(mutex_);
  if (!on) term = term_;
  if (writable_.exchange(on) == on && term == term_) return;
  term_ = term;
  ++reign_;
  large_wake_.notify_all();
}

void ReplicatedCommitter::AdvanceTo(uint64_t ts) {
  uint64_t now = last_ts_.load(std::memory_order_relaxed);
  while (now < ts && !last_ts_.compare_exchange_weak(now, ts, std::memory_order_relaxed)) {
  }
}

std::span<WriteUnit> ReplicatedCommitter::UnitsOf(void* context) {
  return context == nullptr ? std::span<WriteUnit>() : static_cast<Group*>(context)->units;
}

ReadyUnit* ReplicatedCommitter::ReadyOf(void* context) {
  return context == nullptr ? nullptr : static_cast<Group*>(context)->ready.get();
}

ReplicatedCommitter::Totals ReplicatedCommitter::totals() const {
  std::lock_guard l(mutex_);
  return totals_;
}

void ReplicatedCommitter::Submit(WriteUnit unit, CommitOptions options, Done done) {
  SubmittedUnit u(unit);
  if (u.local()) return local_->Submit(std::move(unit), options, std::move(done));
  if (u.empty()) {
    // The sync of an earlier write: it was acknowledged, so a majority already has it on disk.
    u.Finish();
    return done(Ok());
  }
  if (!writable()) {
    u.GiveUp();
    return done(NotPrimary());
  }
  // Sorted here and not on the single thread that applies. The order is then the same in every
  // member's log.
  u.SortForCommit();
  std::string bytes;
  bytes.reserve(unit.SizeBytes() + 256);
  EncodedUnit encoded = EncodeLogUnit(unit, bytes, all_read_);
  // Times that move with its time in the log count from now so far.
  if (!encoded.moves.empty()) SetUnitTime(bytes.data(), 0, Wall());
  Operation* op = u.operation();
  const uint64_t reign = u.reign().value_or(Reign());
  const bool large = bytes.size() > kWholeUnit || encoded.version == kLogEntryEnd;
  const int version = large && all_read_ ? all_read_() : kLogEntryLatest;
  const bool in_chunks = large && version >= kLogEntryEnd;
  size_t unit_bytes = bytes.size();
  if (in_chunks && !encoded.moves.empty()) {
    if (version >= kLogEntryEndMoves)
      AppendLogMoves(encoded.moves, bytes);
    else
      encoded.moves.clear();  // they count from when the unit was made ready
  }
  large_memory::Hold hold;
  Result<void> room = CheckSize(bytes.size(), encoded, in_chunks);
  // A plain unit is about as large as the message that brought it, which is counted.
  // A transaction's is one more copy of it, and so is the batch that is made of it later: both are
  // counted while it can still be refused.
  if (room && encoded.version == kLogEntryEnd)
    room = hold.Set(bytes.size() + LargeBatchBytes(bytes.size()) + encoded.decoded +
                    encoded.moves.size() * sizeof(LogMove));
  if (!room) {
    u.GiveUp();
    return done(room.error());
  }
  if (bytes.size() <= kLargeUnit && !in_chunks)
    return Enqueue(std::move(bytes), std::move(encoded), std::move(unit), op, reign,
                   std::move(done));
  // A waiter may give up before the outcome is known. The operation then ends, so it must not be
  // used here.
  if (op != nullptr && op->commit_deadline_micros != 0) op = nullptr;
  std::unique_lock l(mutex_);
  if (!writable() || closed_ || reign != reign_) {
    l.unlock();
    SubmittedUnit(unit).GiveUp();
    return done(NotPrimary());
  }
  large_.push_back(std::make_shared<Large>(Large{std::move(bytes), unit_bytes, std::move(encoded),
                                                 std::move(unit), op, std::move(done), reign_,
                                                 in_chunks, std::move(hold)}));
  large_wake_.notify_one();
}

void ReplicatedCommitter::LargeLoop() {
  std::unique_lock l(mutex_);
  for (;;) {
    auto turn = [&] {
      return !large_.empty() && (!large_on_its_way_ || large_.front()->reign != reign_);
    };
    large_wake_.wait(l, [&] { return closed_ || HasGivenUp() || turn(); });
    if (!closed_ && HasGivenUp()) {
      SendGivenUp(l);
      continue;
    }
    if (large_.empty()) return;
    const LargePtr one = large_.front();
    if (closed_ || one->reign != reign_) {
      large_.pop_front();
      l.unlock();
      Refuse(*one, NotPrimary());
      l.lock();
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (one->until == std::chrono::steady_clock::time_point()) one->until = now + kMaxWaitForRoom;
    if (now < one->until) {
      l.unlock();
      const bool room = HasRoom(storage_.kv());
      l.lock();
      if (!room) {
        large_wake_.wait_for(l, kLookAgain, [&] { return closed_; });
        continue;
      }
      // Meanwhile this thread alone has taken any off the front.
      if (closed_ || one->reign != reign_) continue;
    }
    large_.pop_front();
    large_on_its_way_ = true;
    l.unlock();
    SendLarge(one);
    l.lock();
  }
}

void ReplicatedCommitter::SendLarge(const LargePtr& one) {
  if (one->in_chunks) {
    if (one->sent < one->bytes.size()) return SendChunk(one);
    return SendEnd(one);
  }
  Enqueue(std::move(one->bytes), std::move(one->encoded), std::move(one->unit), one->op, one->reign,
          [this, done = std::move(one->done)](Result<void> r) {
            LargeArrived();
            done(std::move(r));
          });
}

void ReplicatedCommitter::LargeArrived() {
  std::lock_guard lock(mutex_);
  large_on_its_way_ = false;
  large_wake_.notify_one();
}

void ReplicatedCommitter::Refuse(Large& one, Error why) {
  if (one.sequence != 0) {
    std::lock_guard l(mutex_);
    GiveUpLocked(one.sequence, one.term);
  }
  SubmittedUnit(one.unit).GiveUp();
  one.done(std::move(why));
}

void ReplicatedCommitter::GiveUpLocked(uint64_t sequence, uint64_t term) {
  given_up_.push_back({sequence, term != 0 ? term : term_});
  large_wake_.notify_one();
}

bool ReplicatedCommitter::HasGivenUp() const {
  return writable() && consensus_ != nullptr &&
         std::any_of(given_up_.begin(), given_up_.end(),
                     [&](const GivenUp& g) { return g.tried != reign_; });
}

void ReplicatedCommitter::SendGivenUp(std::unique_lock<std::mutex>& l) {
  // Units of an earlier term need none: the entries of this term say it.
  std::erase_if(given_up_, [&](const GivenUp& g) { return g.term != term_; });
  std::vector<GivenUp> now;
  std::vector<GivenUp> later;
  for (const GivenUp& g : given_up_) (g.tried != reign_ ? now : later).push_back(g);
  given_up_ = std::move(later);
  totals_.entries += static_cast<int64_t>(now.size());
  Consensus* consensus = consensus_;
  const uint64_t reign = reign_;
  l.unlock();
  for (const GivenUp& g : now) {
    Proposal p;
    EncodeLogChunk({origin_, g.sequence}, Wall(), kLogChunkGivenUp, {}, p.data);
    p.term = g.term;
    p.done = [this, g, reign](const Result<LogPosition>& r) {
      if (r) return;
      // Not at once: while this goes on it would be refused again.
      std::lock_guard lock(mutex_);
      if (closed_) return;
      given_up_.push_back({g.sequence, g.term, reign});
      large_wake_.notify_one();  // the next reign may have begun
    };
    consensus->Propose(std::move(p));
  }
  l.lock();
}

void ReplicatedCommitter::SendChunk(const LargePtr& one) {
  const size_t size = std::min(kChunkBytes, one->bytes.size() - one->sent);
  const bool last = one->sent + size == one->bytes.size();
  Proposal p;
  Consensus* consensus;
  {
    std::lock_guard l(mutex_);
    if (one->sequence == 0) one->sequence = ++sequence_;
    ++totals_.entries;
    totals_.bytes += static_cast<int64_t>(size);
    consensus = consensus_;
  }
  EncodeLogChunk({origin_, one->sequence}, Wall(), one->chunks.size(),
                 std::string_view(one->bytes).substr(one->sent, size), p.data);
  p.term = one->term;
  p.done = [this, one, size, last](Result<LogPosition> r) {
    bool goes_on = false;
    {
      std::lock_guard l(mutex_);
      large_on_its_way_ = false;
      goes_on = r && !closed_;
      if (goes_on) {
        one->term = r.value().term;
        one->chunks.push_back(r.value().index);
        one->sent += size;
        one->until = {};
        // Behind the others. Its end does not wait for their turns: it brings nothing new to sync.
        if (last)
          large_.push_front(one);
        else
          large_.push_back(one);
      }
      large_wake_.notify_one();
    }
    if (goes_on) return;
    // Without an end it never takes effect, whatever happens to its chunks.
    Refuse(*one,
           !r && r.error().code == ErrorCode::kInterruptedAtShutdown ? r.error() : NotPrimary());
  };
  if (consensus != nullptr) return consensus->Propose(std::move(p));
  p.done(Error{ErrorCode::kInterruptedAtShutdown, "the storage is shutting down"});
}

void ReplicatedCommitter::SendEnd(const LargePtr& one) {
  const Result<int64_t> fixed = SubmittedUnit(one->unit).FixTime([this] { return Wall(); });
  if (!fixed) {
    Refuse(*one, fixed.error());
    return LargeArrived();
  }
  const int64_t wall = fixed.value();
  const std::vector<LogMove>& moves = one->encoded.moves;
  std::string data;
  EncodeLogEnd({origin_, one->sequence}, one->encoded.ticks, {one->bytes.size(), one->chunks},
               !moves.empty(), data);
  one->bytes.resize(one->unit_bytes);
  MoveLogTimes(one->bytes.data(), moves, wall);
  auto group = std::make_shared<Group>();
  group->hold = std::move(one->hold);
  group->ready = std::make_unique<ReadyUnit>();
  group->ready->bytes = std::move(one->bytes);
  // Here, while others go on: they wait for this unit only while it is applied. If it cannot be
  // made ready, it is joined from the log, as on every other member.
  if (!group->ready->Make(storage_.kv())) {
    group->ready.reset();
    group->hold.Release();
  }
  group->reign = one->reign;
  group->term = one->term;
  group->alone = true;
  group->units.push_back(std::move(one->unit));
  group->done.push_back([this, done = std::move(one->done), sequence = one->sequence,
                         term = one->term](Result<void> r) {
    if (!r) {
      std::lock_guard lock(mutex_);
      GiveUpLocked(sequence, term);
    }
    LargeArrived();
    done(std::move(r));
  });
  std::unique_lock l(mutex_);
  const uint64_t first = TakeTime(one->encoded.ticks, wall, one->op);
  SetUnitTime(data.data() + kLogEntryHeader, first, wall);
  if (group->ready) group->ready->SetTime(first, wall);
  group->data = std::move(data);
  AddLocked(std::move(group));
  ++totals_.units;
  Send(l);
}

void ReplicatedCommitter::SubmitNoop(BsonView o, Done done) {
  if (!writable()) return done(NotPrimary());
  std::string bytes;
  const EncodedUnit encoded = EncodeNoopUnit(o, bytes);
  Enqueue(std::move(bytes), encoded, std::nullopt, nullptr, Reign(), std::move(done));
}

uint64_t ReplicatedCommitter::TimestampBehind(int64_t millis) {
  {
    std::lock_guard l(mutex_);
    if (last_wall_ >= millis) return last_ts();
  }
  if (Wall() >= millis)
    SubmitNoop(BuildBson([](BsonBuilder& b) { b.Append("msg", "reads have hidden what expired"); }),
               [](Result<void>) {});
  return last_ts();
}

void ReplicatedCommitter::Enqueue(std::string bytes, EncodedUnit encoded,
                                  std::optional<WriteUnit> unit, Operation* op, uint64_t reign,
                                  Done done) {
  int64_t wall = 0;
  if (unit) {
    const Result<int64_t> fixed = SubmittedUnit(*unit).FixTime([this] { return Wall(); });
    if (!fixed) {
      SubmittedUnit(*unit).GiveUp();
      return done(fixed.error());
    }
    wall = fixed.value();
  } else {
    wall = Wall();
  }
  MoveLogTimes(bytes.data(), encoded.moves, wall);
  std::unique_lock l(mutex_);
  if (reign != reign_) {
    l.unlock();
    if (unit) SubmittedUnit(*unit).GiveUp();
    return done(NotPrimary());
  }
  const uint64_t first = TakeTime(encoded.ticks, wall, op);
  SetUnitTime(bytes.data(), first, wall);
  if (!TakesLocked(reign, bytes.size())) {
    auto group = std::make_shared<Group>();
    group->reign = reign;
    // Proposed in a later term its times would be behind others of the log.
    group->term = term_;
    BeginLogEntry(origin_, ++sequence_, group->data);
    AddLocked(std::move(group));
  }
  Group& group = *newest_;
  group.data.append(bytes);
  RequireLogEntryVersion(group.data, encoded.version);
  if (unit) group.units.push_back(std::move(*unit));
  group.done.push_back(std::move(done));
  ++totals_.units;
  totals_.bytes += static_cast<int64_t>(bytes.size());
  Send(l);
}

uint64_t ReplicatedCommitter::TakeTime(uint32_t ticks, int64_t wall, Operation* op) {
  last_wall_ = std::max(last_wall_, wall);
  // Timestamps follow the clock but never go back, even if the clock does.
  uint64_t first = last_ts_.load(std::memory_order_relaxed);
  if (ticks == 0) return first;
  uint64_t seen = first;
  do {
    first = std::max(seen + 1, static_cast<uint64_t>(std::max<int64_t>(wall, 0) / 1000) << 32 | 1);
  } while (!last_ts_.compare_exchange_weak(seen, first + ticks - 1, std::memory_order_relaxed));
  if (op != nullptr) op->commit_ts = first + ticks - 1;
  return first;
}

void ReplicatedCommitter::AddLocked(std::shared_ptr<Group> group) {
  newest_ = group;
  waiting_.push_back(std::move(group));
}

bool ReplicatedCommitter::TakesLocked(uint64_t reign, size_t bytes) const {
  return newest_ != nullptr && !newest_->sealed && !newest_->alone && newest_->reign == reign &&
         newest_->data.size() + bytes <= kEntryBytes;
}

bool ReplicatedCommitter::Seal(Group& group, std::string* data) {
  std::lock_guard l(mutex_);
  group.sealed = true;
  if (newest_.get() == &group) newest_.reset();
  *data = std::move(group.data);
  return group.reign == reign_;
}

void ReplicatedCommitter::Send(std::unique_lock<std::mutex>& l) {
  if (sending_) return;  // the sender will find what was added in the meantime
  sending_ = true;
  while (!waiting_.empty() && on_their_way_ < kEntriesOnTheirWay) {
    std::shared_ptr<Group> group = std::move(waiting_.front());
    waiting_.pop_front();
    ++on_their_way_;
    ++totals_.entries;
    Consensus* consensus = consensus_;
    const bool over = group->reign != reign_;
    l.unlock();
    if (over) {
      Finished(*group, NotPrimary());
    } else if (consensus == nullptr) {
      Finished(*group, Error{ErrorCode::kInterruptedAtShutdown, "the storage is shutting down"});
    } else {
      Proposal p;
      p.term = group->term;
      p.context = group;
      p.seal = [this, group](std::string* data) { return Seal(*group, data); };
      p.done = [this, group](Result<LogPosition> r) { Finished(*group, r); };
      consensus->Propose(std::move(p));
    }
    l.lock();
  }
  sending_ = false;
}

void ReplicatedCommitter::Finished(Group& group, const Result<LogPosition>& result) {
  if (!result) {
    // It may have been refused while it still gathered units.
    std::lock_guard l(mutex_);
    group.sealed = true;
    if (newest_.get() == &group) newest_.reset();
  }
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
