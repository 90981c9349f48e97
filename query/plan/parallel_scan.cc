#include "query/plan/parallel_scan.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "query/expression/value_account.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// Of parts that are read and not returned yet: helpers wait for the operation then.
constexpr size_t kMostAhead = size_t{16} << 20;
constexpr size_t kMostParts = 64;
constexpr size_t kPartBytes = size_t{2} << 20;  ///< of records, after which a part ends
/// Documents between two looks whether others need the processor.
constexpr int64_t kLookDocuments = 256;
constexpr int64_t kHelpMicros = 50'000;                ///< after which a helper ends its part
constexpr auto kWait = std::chrono::milliseconds(10);  ///< between two checks for interrupts

/// The eight bytes of a key behind `from`, as a number whose order is theirs.
uint64_t NumberIn(std::string_view key, size_t from) {
  uint64_t n = 0;
  for (size_t i = from; i < from + 8; ++i)
    n = n << 8 | (i < key.size() ? static_cast<unsigned char>(key[i]) : 0);
  return n;
}

std::string KeyOf(std::string_view prefix, uint64_t n) {
  std::string key(prefix);
  for (int shift = 56; shift >= 0; shift -= 8) key.push_back(static_cast<char>(n >> shift));
  return key;
}

}  // namespace

struct ParallelScan::Shared {
  using Parts = std::list<Part>;

  Shared(ScanHelpers& threads, Source&& from, std::string&& last_key)
      : helpers(threads),
        source(std::move(from)),
        storage(source.context->storage),
        coll(source.context->coll),
        view(source.context->view),
        visible(source.context->visible),
        eval(source.context->eval),
        fill_cache(source.context->fill_cache),
        keys_only(source.context->counts_only),
        clock(source.context->op->clock()),
        now(source.context->op->now),
        operation(source.context->op->id),
        deadline_micros(source.context->op->deadline_micros),
        cluster_time(source.context->op->cluster_time),
        user(source.context->op->user()),
        user_roles(source.context->op->user_roles()),
        account(AccountOfOperation(operation)),
        last(std::move(last_key)),
        rest(source.lower) {}

  /// What is read ahead, and what parts that run may come to.
  size_t Ahead() const {
    return buffered + kPartBytes * static_cast<size_t>(
                                       std::ranges::count(parts, PartState::kRuns, &Part::state));
  }
  static bool IsForHelpers(const Part& p) { return p.state == PartState::kNew && !p.large; }
  /// A part that nobody reads yet, which the caller then does; end: there is none, or enough is
  /// read ahead.
  Parts::iterator Claim() {
    if (Ahead() >= kMostAhead) return parts.end();
    auto it = std::ranges::find_if(parts, IsForHelpers);
    if (it == parts.end() && rest_left && parts.size() < kMostParts) it = Divide();
    if (it != parts.end()) it->state = PartState::kRuns;
    return it;
  }
  bool HasNew() const {
    return Ahead() < kMostAhead &&
           ((rest_left && parts.size() < kMostParts) || std::ranges::any_of(parts, IsForHelpers));
  }
  /// Takes a part off the rest. REQUIRES: rest_left.
  /// Without memory for it, everything is as before.
  Parts::iterator Divide() {
    std::string border = Border(rest);
    Parts made(1);
    made.front().upper = border.empty() ? source.upper : border;
    made.front().lower = std::move(rest);
    rest_left = !border.empty();
    rest = std::move(border);
    parts.splice(parts.end(), made);
    return std::prev(parts.end());
  }
  std::string Border(const std::string& lower);
  /// Likewise.
  void Finish(Parts::iterator part) {
    Parts behind;
    if (!part->rest.empty() && !part->error) {
      behind.emplace_back();
      behind.front().lower = part->rest;
      behind.front().large = part->rest_large;
      behind.front().upper = std::move(part->upper);
      part->upper = std::move(part->rest);
      part->rest.clear();
    }
    part->state = PartState::kRead;
    buffered += part->size();
    parts.splice(std::next(part), behind);
    changed.notify_all();
  }

  // Constant, and used by those alone for whom the end waits.
  ScanHelpers& helpers;
  Source source;
  Storage* storage;
  CollectionInfoPtr coll;
  ReadView view;
  Visibility visible;
  EvalContext eval;
  const bool fill_cache, keys_only;
  const Clock& clock;
  const Instant now;  ///< this and the next are the operation's
  const uint64_t operation;
  const int64_t deadline_micros;
  const uint64_t cluster_time;
  const std::shared_ptr<const UserAccess> user;
  const Value* const user_roles;  ///< part of it
  const std::shared_ptr<ValueAccount> account;
  const std::string last;  ///< the last key of the range

  std::atomic<bool> over{false};
  /// Several threads together need more memory than one would: helpers leave, and none is asked.
  std::atomic<bool> alone{false};
  std::mutex mutex;  ///< of what follows, but for parts that run
  std::condition_variable changed;
  Parts parts;       ///< in the order of their keys
  std::string rest;  ///< where what has not been divided yet begins
  bool rest_left = true;
  uint64_t step = 0;                ///< of Border, the last time
  size_t buffered = 0;              ///< bytes of parts that are read
  int64_t invited = 0;              ///< helpers that have not ended
  std::vector<Operation*> running;  ///< those of helpers
};

/// Where a part that begins at `lower` ends, so that it has about Source::part_bytes; empty: with
/// the range. Keys are taken for numbers, which need not be close to any key that exists.
std::string ParallelScan::Shared::Border(const std::string& lower) {
  if (lower >= last) return {};
  const size_t same = static_cast<size_t>(std::ranges::mismatch(lower, last).in1 - lower.begin());
  const std::string_view prefix = std::string_view(lower).substr(0, same);
  const uint64_t from = NumberIn(lower, same), to = NumberIn(last, same),
                 wanted = source.part_bytes;
  if (to - from < 2) return {};
  const auto bytes = [&](uint64_t n) {
    return storage->kv().ApproximateBytes(Keyspace::kRecords, lower, KeyOf(prefix, from + n));
  };
  uint64_t low = 0, high = to - from;  // too little; too much, or the range's end
  if (step == 0 || step >= high) step = std::max<uint64_t>(high / 64, 1);
  for (int tries = 0; tries < 24 && low + 1 < high; ++tries) {
    const uint64_t found = bytes(step);
    if (found > 2 * wanted) {
      high = step;
    } else if (found < wanted / 2) {
      low = step;
    } else {
      return KeyOf(prefix, from + step);
    }
    step = high < to - from ? low + (high - low) / 2
                            : std::min(low > (high >> 1) ? low + (high - low) / 2 : 2 * low, high);
    step = std::max<uint64_t>(step, 1);
  }
  // Nothing fits well: too much rather than nothing. Whoever reads the part ends early.
  if (high == to - from) return {};
  step = high;
  return KeyOf(prefix, from + high);
}

std::unique_ptr<ParallelScan> ParallelScan::Begin(ScanHelpers& helpers, Source source) {
  PlanContext& c = *source.context;
  KvStore& kv = c.storage->kv();
  if (source.part_bytes == 0 || helpers.Wanted() ||
      kv.ApproximateBytes(Keyspace::kRecords, source.lower, source.upper) / 2 < source.part_bytes)
    return nullptr;
  KvIterOptions options;
  options.lower = source.lower;
  options.upper = source.upper;
  options.fill_cache = c.fill_cache;
  options.max_skipped = 1000;
  const std::unique_ptr<KvIterator> it = c.view.NewIterator(kv, Keyspace::kRecords, options);
  it->SeekToLast();
  if (!it->Valid()) return nullptr;
  std::unique_ptr<ParallelScan> scan(
      new ParallelScan(helpers, std::move(source), std::string(it->key())));
  if (!scan->hold_.Set(kMostAhead)) return nullptr;
  return scan;
}

ParallelScan::ParallelScan(ScanHelpers& helpers, Source source, std::string last)
    : shared_(std::make_shared<Shared>(helpers, std::move(source), std::move(last))),
      op_(*shared_->source.context->op),
      position_(shared_->source.lower) {}

ParallelScan::~ParallelScan() {
  Shared& s = *shared_;
  std::unique_lock l(s.mutex);
  s.over = true;
  for (Operation* op : s.running) op->kill_code = static_cast<int32_t>(ErrorCode::kInterrupted);
  s.changed.wait(l, [&] { return s.running.empty(); });
  // Helpers that come later find nothing that could keep a collection or a snapshot.
  s.parts.clear();
  s.coll.reset();
  s.view = ReadView();
  s.eval = EvalContext();
}

/// Reads a part, or as much as belongs to one. Errors are kept in it.
/// `alone`: no other thread reads. Else a lack of memory may be the others': the part ends early.
void ParallelScan::Read(Shared& s, Part& part, Operation& op, bool helps, bool alone) {
  const ResidualFilter& filter = *s.source.filter;
  const Visibility visible = s.visible.ForThread(op);
  DocumentMetadata scanned;
  EvalContext eval = s.eval;
  eval.op = &op;
  eval.metadata = &scanned;
  // The operation must not wait long at the end for a helper that has a low priority.
  const int64_t until = s.clock.MonotonicMicros() + kHelpMicros;
  const auto fails = [&part](const auto& result) {
    if (result) return false;
    part.error = result.error();
    return true;
  };
  const auto fails_at = [&](std::string_view key, const auto& result) {
    if (result || alone || result.error().code != ErrorCode::kExceededMemoryLimit)
      return fails(result);
    s.alone = true;
    --part.examined;
    part.rest.assign(key);
    return true;
  };
  const std::unique_ptr<RecordCursor> cursor = s.storage->ScanRecords(
      s.coll,
      {.view = s.view, .lower = part.lower, .upper = part.upper, .fill_cache = s.fill_cache});
  while (!helps || !s.over.load(std::memory_order_relaxed)) {
    if (fails(op.CheckInterrupt())) return;
    const Result<bool> more = cursor->Next();
    if (fails(more) || !more.value()) return;
    const std::string_view key = cursor->record_key();
    if (part.examined >= 2 * s.source.part_documents || part.bytes.size() >= kPartBytes ||
        (helps && (s.alone.load(std::memory_order_relaxed) ||
                   (part.examined % 16 == 15 && s.clock.MonotonicMicros() >= until) ||
                   (part.examined % kLookDocuments == kLookDocuments - 1 && s.helpers.Wanted())))) {
      part.rest.assign(key);
      return;
    }
    ++part.examined;
    const BsonView doc = cursor->doc();
    scanned.expire_at = cursor->expire_at();
    if (!visible.Shows(doc, scanned.expire_at)) {
      if (fails_at(key, visible.Stopped())) return;
      continue;
    }
    if (!filter.empty()) {
      const Result<bool> matches = filter.Matches(doc, eval);
      if (fails_at(key, matches)) return;
      if (!matches.value()) continue;
    }
    const std::string_view bytes = s.keys_only ? std::string_view() : doc.bytes();
    if (bytes.size() > kPartBytes) {
      // Only the operation's own thread has one of these, and no other documents with it.
      if (helps || !part.records.empty()) {
        --part.examined;
        part.rest.assign(key);
        part.rest_large = true;
        return;
      }
      part.bytes.reserve(key.size() + bytes.size());
    }
    // bounded: by kPartBytes and one document
    part.bytes.append(key).append(bytes);
    part.records.push_back({static_cast<uint32_t>(key.size()), static_cast<uint32_t>(bytes.size()),
                            part.examined, scanned.expire_at});
  }
}

/// On a helper's thread.
void ParallelScan::Help(const std::shared_ptr<Shared>& shared) {
  Shared& s = *shared;
  std::unique_lock l(s.mutex);
  if (s.over) return;
  Operation op(s.clock, s.operation);
  op.now = s.now;
  op.deadline_micros = s.deadline_micros;
  op.cluster_time = s.cluster_time;
  op.SetUser(s.user, s.user_roles);
  s.running.push_back(&op);  // there is room: see TakePart
  AccountScope account(op.id, s.account);
  // Without memory the helper leaves: the operation's own thread will see.
  Shared::Parts::iterator part = s.parts.end();
  try {
    while (!s.over && !s.alone && !s.helpers.Wanted() && s.invited <= s.helpers.most()) {
      part = s.Claim();
      if (part == s.parts.end()) break;
      l.unlock();
      Read(s, *part, op, true, false);
      l.lock();
      s.Finish(part);
      part->helped = true;
      part = s.parts.end();
    }
  } catch (...) {
    if (!l.owns_lock()) l.lock();
    if (part != s.parts.end()) {
      part->bytes.clear();
      part->records.clear();
      part->rest.clear();
      part->rest_large = false;
      part->examined = 0;
      part->state = PartState::kNew;
    }
  }
  std::erase(s.running, &op);
  --s.invited;
  s.changed.notify_all();
}

/// Makes the next part the current one; false at the end of the range.
Result<bool> ParallelScan::TakePart() {
  Shared& s = *shared_;
  std::unique_lock l(s.mutex);
  for (;;) {
    while (s.alone && !s.running.empty()) {
      s.changed.wait_for(l, kWait);
      l.unlock();
      MAYFLY_TRY(op_.CheckInterruptNow());
      l.lock();
    }
    s.running.reserve(static_cast<size_t>(s.invited) + 1);
    while (!s.alone && s.HasNew() && s.invited < s.helpers.most() && !s.helpers.Wanted()) {
      if (!s.helpers.TryRun([shared = shared_] { Help(shared); })) break;
      ++s.invited;
      s.running.reserve(static_cast<size_t>(s.invited) + 1);
    }
    if (s.parts.empty()) {
      if (!s.rest_left) return false;
      s.Divide();
    }
    const Shared::Parts::iterator front = s.parts.begin();
    if (front->state == PartState::kRead) break;
    const bool is_new = front->state == PartState::kNew;
    if (is_new) front->state = PartState::kRuns;
    const Shared::Parts::iterator mine = is_new ? front : s.Claim();
    if (mine != s.parts.end()) {
      const bool alone = s.alone;
      l.unlock();
      Read(s, *mine, op_, false, alone);
      if (mine->error) {
        MAYFLY_TRY(op_.CheckInterruptNow());
      }
      l.lock();
      s.Finish(mine);
      continue;
    }
    s.changed.wait_for(l, kWait);
    l.unlock();
    MAYFLY_TRY(op_.CheckInterruptNow());
    l.lock();
  }
  s.buffered -= s.parts.front().size();
  current_ = std::move(s.parts.front());
  s.parts.pop_front();
  return true;
}

Result<bool> ParallelScan::Next(Found* out) {
  while (next_ == current_.records.size()) {
    examined_ += current_.examined - counted_;
    counted_ = current_.examined;
    if (current_.error) return *current_.error;
    MAYFLY_TRY(bool more, TakePart());
    if (!more) return false;
    next_ = at_ = 0;
    counted_ = 0;
    if (current_.helped) ++parts_of_helpers_;
    // If there is no more, it is a document larger than what is held already: one thread alone
    // would have it in memory, too.
    (void)hold_.Set(std::max(kMostAhead, current_.size()));
  }
  const Record& r = current_.records[next_++];
  const std::string_view bytes = current_.bytes;
  out->key = bytes.substr(at_, r.key_size);
  out->doc = bytes.substr(at_ + r.key_size, r.doc_size);
  out->expire_at = r.expire_at;
  at_ += out->key.size() + out->doc.size();
  examined_ += r.examined - counted_;
  counted_ = r.examined;
  return true;
}

int64_t ParallelScan::TakeExamined() { return std::exchange(examined_, 0); }

std::string ParallelScan::Position() const {
  if (next_ == 0) return current_.lower.empty() ? position_ : current_.lower;
  const Record& r = current_.records[next_ - 1];
  std::string key = current_.bytes.substr(at_ - r.doc_size - r.key_size, r.key_size);
  return key += '\0';  // no key is a prefix of another
}

}  // namespace mayfly
