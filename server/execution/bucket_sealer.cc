#include "server/execution/bucket_sealer.h"

#include <algorithm>
#include <utility>

#include "query/plan/executor.h"
#include "server/execution/point_groups.h"
#include "storage/expiry/expiry_state.h"
#include "storage/keys/key_format.h"
#include "storage/kv/thread_scheduling.h"
#include "storage/read/visibility.h"
#include "storage/write/write_unit.h"
#include "timeseries/bucket_control.h"

namespace mayfly {
namespace {

/// Sizes of buckets, in points: below 16, 128, 512, and those that are large enough. So many of one
/// size are merged.
constexpr uint32_t kSizes[] = {16, 128, 512};
constexpr size_t kMany[] = {16, 8, 4};
constexpr size_t kLarge = std::size(kSizes);
constexpr size_t kLargeBucketBytes = kMaxBytesOfBucket / 2;
/// Without points for a while, a bucket is merged with smaller ones unless it is so much larger.
constexpr size_t kMuchLarger = 4;
/// What one unit takes on.
constexpr size_t kMostMerged = 64, kMostBytesMerged = 1 << 20;
constexpr size_t kMergesOfStep = 8;
/// Buckets that one step of the search looks at.
constexpr int64_t kSearchStep = 200;
constexpr int64_t kMostSiblings = 64, kMostExamined = 1000;
constexpr int64_t kCommitMicros = 10'000'000;
/// What could not be merged rests so long, whatever timeSeriesSealIdleSecs says.
constexpr int64_t kRestMicros = 100'000;
/// So long rests a search that found something damaged.
constexpr int64_t kSearchRestMicros = 60'000'000;
/// Bytes in memory for each group that is allowed.
constexpr size_t kBytesOfGroup = 1024;

size_t SizeOf(const BucketRef& ref) {
  if (ref.bytes >= kLargeBucketBytes) return kLarge;
  size_t size = 0;
  while (size < kLarge && ref.points >= kSizes[size]) ++size;
  return size;
}

bool IsDone(const BucketRef& ref) { return !ref.rows && SizeOf(ref) == kLarge; }

/// The first of `places`, as many as one unit takes.
std::vector<size_t> AsOneUnit(std::span<const BucketRef> refs, std::vector<size_t> places) {
  std::sort(places.begin(), places.end(),
            [&](size_t a, size_t b) { return refs[a].points < refs[b].points; });
  size_t n = 0, bytes = 0;
  while (n < places.size() && n < kMostMerged && (n < 2 || bytes < kMostBytesMerged))
    bytes += refs[places[n++]].bytes;
  places.resize(n);
  return places;
}

/// The begin of the window in which a floor is.
Instant WindowOf(Instant floor, int32_t span_seconds) {
  const int64_t span = int64_t{span_seconds} * 1000, over = floor.millis % span;
  int64_t begin = floor.millis - over;
  if (over < 0 && __builtin_sub_overflow(begin, span, &begin)) begin = INT64_MIN;
  return {begin};
}

std::string KeyOf(uint32_t collection, std::string_view meta, Instant begin) {
  std::string key(reinterpret_cast<const char*>(&collection), sizeof collection);
  key.append(reinterpret_cast<const char*>(&begin.millis), sizeof begin.millis);
  key.append(meta);
  return key;
}

/// The meta value of a group's key; a view of it.
BsonValue MetaOf(std::string_view key) {
  key.remove_prefix(sizeof(uint32_t) + sizeof(int64_t));
  const auto type = static_cast<BsonType>(key[0]);
  if (type == BsonType::kMissing) return {};
  return {type, key.data() + 1, static_cast<uint32_t>(key.size() - 1)};
}

std::array<char, 12> IdOf(BsonView bucket) {
  std::array<char, 12> id{};
  const BsonValue v = bucket["_id"];
  if (v.Is(BsonType::kObjectId)) std::copy_n(v.ObjectId().data(), id.size(), id.data());
  return id;
}

/// The sealer's record of a stored bucket.
Result<BucketRef> RefOf(BsonView bucket, const SeriesFields& fields) {
  MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(bucket, fields));
  return BucketRef{IdOf(bucket), static_cast<uint32_t>(facts.count),
                   static_cast<uint32_t>(bucket.size()), facts.rows};
}

/// The node is shutting down or no longer primary: another one continues.
bool IsNoMoreWritable(const Error& e) {
  return e.code == ErrorCode::kNotWritablePrimary || e.code == ErrorCode::kPrimarySteppedDown ||
         e.code == ErrorCode::kInterruptedAtShutdown ||
         e.code == ErrorCode::kInterruptedDueToReplStateChange;
}

/// It may be over soon.
bool Passes(const Error& e) {
  return e.code == ErrorCode::kWriteConflict || e.code == ErrorCode::kExceededMemoryLimit ||
         IsNoMoreWritable(e);
}

std::string_view IdText(const BucketRef& ref) { return {ref.id.data(), ref.id.size()}; }

}  // namespace

std::vector<size_t> BucketsToMerge(std::span<const BucketRef> refs, bool last) {
  size_t many[kLarge + 1] = {}, points = 0, bytes = 0;
  std::optional<size_t> rows;  // to be sealed alone
  for (size_t i = 0; i < refs.size(); ++i) {
    const size_t size = SizeOf(refs[i]);
    ++many[size];
    if (refs[i].rows && (size == kLarge || last)) rows = i;
    if (size == kLarge) continue;
    points += refs[i].points;
    bytes += refs[i].bytes;
  }
  const auto up_to = [&](size_t size) {
    std::vector<size_t> out;
    for (size_t i = 0; i < refs.size(); ++i)
      if (SizeOf(refs[i]) <= size) out.push_back(i);
    return AsOneUnit(refs, std::move(out));
  };
  const size_t small = refs.size() - many[kLarge];
  if (small > 1 && (points >= kMaxPointsOfBucket || bytes >= kMaxBytesOfBucket))
    return up_to(kLarge - 1);
  for (size_t size = 0; size < kLarge; ++size)
    if (many[size] >= kMany[size]) return up_to(size);
  if (last && small > 1) {
    std::vector<size_t> some = up_to(kLarge - 1);
    // Up to the last that is not much larger than those before it, though one of them may be.
    size_t most = 0, sum = 0;
    for (size_t n = 0; n < some.size(); ++n) {
      if (n > 0 && refs[some[n]].points <= kMuchLarger * sum) most = n + 1;
      sum += refs[some[n]].points;
    }
    some.resize(most);
    if (most > 1) return some;
  }
  if (rows) return {*rows};
  return {};
}

size_t BucketSealer::Group::Bytes() const {
  return sizeof(Group) + key.capacity() + refs.size() * sizeof(BucketRef) + 64;
}

BucketSealer::BucketSealer(Storage& storage, SystemClock& clock, const ServerParameters& settings,
                           Environment env)
    : storage_(storage), clock_(clock), settings_(settings), env_(std::move(env)) {}

BucketSealer::~BucketSealer() { Stop(); }

void BucketSealer::Start() {
  Restart();
  thread_ = std::thread([this] { Run(); });
}

void BucketSealer::Stop() {
  {
    std::lock_guard l(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BucketSealer::Restart() {
  std::vector<uint32_t> all;
  for (const CollectionInfoPtr& coll : storage_.catalog().ListAll())
    if (coll->is_buckets()) all.push_back(coll->id);
  std::lock_guard l(mutex_);
  ++generation_;
  by_key_.clear();
  waiting_.clear();
  resting_.clear();
  ready_.clear();
  bytes_ = 0;
  search_ = {};
  search_.collections = std::move(all);
}

bool BucketSealer::MayRun() const {
  return settings_.series_sealing.load(std::memory_order_relaxed) && env_.may_run();
}

void BucketSealer::Run() {
  UseBackgroundScheduling();
  bool worked = false;
  for (;;) {
    {
      std::unique_lock l(mutex_);
      // After a step, a short rest: clients need the processors and the disk too.
      wake_.wait_for(l, std::chrono::milliseconds(worked ? 2 : 1000),
                     [&] { return stopping_ || (!worked && !ready_.empty()); });
      if (stopping_) return;
    }
    worked = Step();
    if (worked) continue;
    std::unique_lock l(mutex_);
    // Work that is ready but not allowed now is tried again later.
    wake_.wait_for(l, std::chrono::milliseconds(50), [&] { return stopping_; });
    if (stopping_) return;
  }
}

void BucketSealer::Settle(Operation& op) {
  while (op.CheckInterruptNow() && Step()) {
  }
}

bool BucketSealer::Step() {
  std::lock_guard one(step_mutex_);
  try {
    return StepOnce();
  } catch (...) {
    // There is no memory: all is as before, and rests first.
    std::lock_guard l(mutex_);
    const int64_t rested = clock_.MonotonicMicros() + kRestMicros;
    search_.not_before = rested;
    for (Groups* groups : {&waiting_, &resting_})
      for (Group& group : *groups)
        if (std::exchange(group.busy, false)) group.not_before = rested;
    return false;
  }
}

bool BucketSealer::StepOnce() {
  if (!MayRun()) return false;
  bool last = false;
  std::optional<Group> group;
  uint64_t generation;
  {
    std::lock_guard l(mutex_);
    if (stopping_) return false;
    generation = generation_;
    if (Group* found = Take(&last)) group = *found;
  }
  if (!group) return SearchStep();
  Work(std::move(*group), last, generation);
  return true;
}

BucketSealer::Group* BucketSealer::Take(bool* last) {
  while (!ready_.empty()) {
    const auto it = by_key_.find(ready_.front());
    ready_.pop_front();
    if (it == by_key_.end() || !it->second->queued) continue;
    it->second->queued = false;
    it->second->busy = true;
    *last = false;
    return &*it->second;
  }
  // Those that rest until their span is over have nothing left to do then.
  const int64_t now = clock_.Now().millis;
  while (!resting_.empty() && resting_.front().end.millis <= now) Erase(resting_.begin());
  if (waiting_.empty()) return nullptr;
  Group& first = waiting_.front();
  const int64_t idle = settings_.series_idle_secs.load(std::memory_order_relaxed) * 1000;
  // A clock that was set back must not hold anything up.
  if (first.last_millis + idle > now && first.last_millis <= now + idle) return nullptr;
  if (first.not_before > clock_.MonotonicMicros()) return nullptr;
  first.busy = true;
  *last = true;
  return &first;
}

void BucketSealer::Work(Group group, bool last, uint64_t generation) {
  std::set<std::string> known;
  for (const BucketRef& ref : group.refs) known.emplace(IdText(ref));
  const CollectionInfoPtr coll = storage_.catalog().FindById(group.collection);
  Outcome outcome = Outcome::kDone;
  if (coll == nullptr || !coll->is_buckets()) {
    outcome = Outcome::kForget;
  } else {
    std::unique_lock l(gate_mutex_);
    if (kept_out_of_.contains(group.collection))
      outcome = Outcome::kLater;
    else
      merging_ = group.collection;
  }
  if (outcome == Outcome::kDone) {
    try {
      outcome = MergeAll(coll, group, last, &known);
    } catch (...) {
      outcome = Outcome::kLater;  // whoever waits for the merge must not wait for ever
    }
    std::lock_guard l(gate_mutex_);
    merging_ = 0;
    gate_.notify_all();
  }
  std::lock_guard l(mutex_);
  if (generation != generation_) return;
  const auto it = by_key_.find(group.key);
  if (it == by_key_.end()) return;
  Group& now = *it->second;
  // The rest, and buckets that arrived meanwhile and that the merge has not met.
  std::vector<BucketRef> refs;
  for (const BucketRef& ref : group.refs)
    if (!IsDone(ref)) refs.push_back(ref);
  bool more = false;
  for (const BucketRef& ref : now.refs)
    if (!known.contains(std::string(IdText(ref)))) refs.push_back(ref), more = true;
  bytes_ -= now.Bytes();
  now.refs = std::move(refs);
  now.busy = false;
  now.strange = group.strange;
  bytes_ += now.Bytes();
  if (outcome == Outcome::kForget) {
    Erase(it->second);
  } else if (outcome == Outcome::kLater) {
    now.last_millis = clock_.Now().millis;
    now.not_before = clock_.MonotonicMicros() + kRestMicros;
    waiting_.splice(waiting_.end(), now.resting ? resting_ : waiting_, it->second);
    now.resting = false;
  } else if (outcome == Outcome::kMore) {
    // As the last one it is the first that waits, still.
    if (!last && !now.queued) {
      ready_.push_back(now.key);
      now.queued = true;
    }
  } else if (last && !more && !now.queued) {
    if (now.refs.empty() || now.end.millis <= clock_.Now().millis) {
      Erase(it->second);
    } else {
      now.resting = true;
      resting_.splice(resting_.end(), waiting_, it->second);
    }
  }
}

BucketSealer::Outcome BucketSealer::MergeAll(const CollectionInfoPtr& coll, Group& group, bool last,
                                             std::set<std::string>* known) {
  const auto failed = [&](const Error& e) {
    if (Passes(e)) return Outcome::kLater;
    // It was dropped.
    if (storage_.catalog().FindById(coll->id) == nullptr) return Outcome::kForget;
    if (e.code == ErrorCode::kQueryPlanKilled)
      return Outcome::kLater;  // it changed, or was renamed
    env_.warn("Buckets of a time series cannot be merged", BuildBson([&](BsonBuilder& b) {
                b.Append("namespace", coll->ns).Append("error", e.message);
              }));
    return Outcome::kForget;
  };
  bool rest = false;  // there are more siblings than are looked at together
  if (last && group.strange) {
    Result<std::vector<BucketRef>> found = Siblings(coll, group);
    if (!found) return failed(found.error());
    for (const BucketRef& ref : found.value()) {
      const auto same = [&](const BucketRef& r) { return r.id == ref.id; };
      if (std::none_of(group.refs.begin(), group.refs.end(), same)) group.refs.push_back(ref);
      known->emplace(IdText(ref));
    }
    rest = found.value().size() >= kMostSiblings;
    group.strange = rest;
  }
  size_t fewer = 0;
  for (size_t n = 0; n < kMergesOfStep; ++n) {
    const std::vector<size_t> places = BucketsToMerge(group.refs, last);
    if (places.empty()) {
      if (rest && fewer > 0) return Outcome::kMore;
      if (rest) group.strange = false;  // the same ones would be found again
      return Outcome::kDone;
    }
    std::vector<BucketRef> some;
    for (const size_t i : places) some.push_back(group.refs[i]);
    Result<std::vector<BucketRef>> made = Merge(coll, group, some);
    if (!made) return failed(made.error());
    if (!made.value().empty() && made.value().size() < some.size())
      fewer += some.size() - made.value().size();
    std::erase_if(group.refs, [&](const BucketRef& ref) {
      return std::any_of(some.begin(), some.end(),
                         [&](const BucketRef& gone) { return gone.id == ref.id; });
    });
    group.refs.insert(group.refs.end(), made.value().begin(), made.value().end());
    std::lock_guard l(mutex_);
    Stats& s = StatsOf(group.collection);
    ++(last ? s.by_idle : s.by_count);
  }
  return Outcome::kMore;
}

namespace {

/// Points of several buckets, in order of time.
struct Points {
  std::string bytes;
  large_memory::Hold hold;  ///< of bytes
  std::vector<size_t> ends;
  std::vector<TimedPoint> sorted;

  void Sort(const std::string& time_field) {
    sorted.reserve(ends.size());
    for (size_t i = 0; i < ends.size(); ++i) {
      const BsonView point(bytes.data() + (i == 0 ? 0 : ends[i - 1]));
      const BsonValue t = point[time_field];
      sorted.push_back({t.IsDate() ? t.Date().millis : INT64_MIN, point});
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.millis < b.millis; });
  }
};

}  // namespace

Result<std::vector<BucketRef>> BucketSealer::Merge(const CollectionInfoPtr& coll,
                                                   const Group& group,
                                                   std::span<const BucketRef> refs) {
  Operation op(clock_);
  // One that is named twice must not be read twice.
  std::set<std::string> keys;
  for (const BucketRef& ref : refs) {
    std::string key;
    AppendRecordKeyOfId(coll->id, BsonValue(BsonType::kObjectId, ref.id.data(), 12), key);
    keys.insert(std::move(key));
  }
  const std::vector<std::string_view> views(keys.begin(), keys.end());
  WriteUnit unit(storage_, op);
  unit.set_no_wait(true);
  unit.set_merges_buckets();
  std::vector<WriteUnit::Locked> locked;
  int busy = 0;
  MAYFLY_TRY(unit.LockAndReadMany(*coll, views, &locked, &busy));
  if (busy > 0) return Error{ErrorCode::kWriteConflict, "a bucket is being written"};
  const SeriesFields fields = FieldsOf(*coll->series);
  const Visibility visible(storage_, *coll, op);
  const BsonValue meta = MetaOf(group.key);
  Points points;
  bool rows = false;
  std::erase_if(locked, [&](const WriteUnit::Locked& l) {
    const BsonValue floor = l.doc.FindPath("control.min." + fields.time);
    return !floor.IsDate() || floor.Date() < group.begin || floor.Date() >= group.end ||
           !l.doc["meta"].BinaryEquals(meta);
  });
  for (const WriteUnit::Locked& l : locked) {
    // Due buckets are the reaper's.
    MAYFLY_TRY(const auto expired, visible.Expired(l.doc, l.expire_at));
    if (expired) return std::vector<BucketRef>();
    MAYFLY_TRY(const BucketFacts facts, FactsOfBucketDocument(l.doc, fields));
    rows = rows || facts.rows;
    MAYFLY_TRY(PointsOfBucketDocument(l.doc, fields, points.bytes, points.ends, points.hold));
  }
  if (locked.empty()) return std::vector<BucketRef>();
  points.Sort(fields.time);
  const SeriesOptions& series = *coll->series;
  const std::vector<BucketCut> cuts =
      CutIntoBuckets(points.sorted, {series.max_span_seconds, series.rounding_seconds});
  // As many as before would be no gain.
  if (!rows && cuts.size() >= locked.size()) return std::vector<BucketRef>();
  std::vector<std::string> documents;
  std::vector<BucketRef> made;
  size_t at = 0;
  for (const BucketCut& cut : cuts) {
    std::vector<BsonView> some;
    for (; at < cut.end; ++at) some.push_back(points.sorted[at].point);
    const std::string id = NewBucketId(cut.floor);
    std::string& document = documents.emplace_back();
    BsonBuilder b(document);
    MAYFLY_TRY(AppendBucketDocument(b, some, fields, id, meta, cut.floor, BucketForm::kColumns,
                                    [&op] { return op.CheckInterrupt(); }));
    b.Done();
    if (document.size() > static_cast<size_t>(kMaxBsonUserSize)) return std::vector<BucketRef>();
    BucketRef ref;
    std::copy_n(id.data(), ref.id.size(), ref.id.data());
    ref.points = static_cast<uint32_t>(some.size());
    ref.bytes = static_cast<uint32_t>(cut.bytes);
    ref.rows = false;
    made.push_back(ref);
  }
  for (const WriteUnit::Locked& l : locked) {
    MAYFLY_TRY(unit.Delete(*coll, l, DeleteReason::kMerged));
  }
  for (const std::string& document : documents) {
    MAYFLY_TRY(unit.Insert(*coll, BsonView(document)));
  }
  op.commit_deadline_micros = clock_.MonotonicMicros() + kCommitMicros;
  MAYFLY_TRY(storage_.committer().Commit(std::move(unit)));
  // It is unknown whether it was written: its buckets are searched for later.
  if (op.commit_timed_out) made.clear();
  std::lock_guard l(mutex_);
  Stats& s = StatsOf(coll->id);
  s.merged += static_cast<int64_t>(locked.size());
  s.sealed += static_cast<int64_t>(made.size());
  return made;
}

Result<std::vector<BucketRef>> BucketSealer::Siblings(const CollectionInfoPtr& coll,
                                                      const Group& group) {
  const SeriesFields fields = FieldsOf(*coll->series);
  const BsonValue meta = MetaOf(group.key);
  const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
    BsonBuilder of_meta = b.OpenDocument("meta");
    if (meta.missing())
      of_meta.Append("$exists", false);
    else
      of_meta.Append("$eq", meta);
    of_meta.Done();
    b.OpenDocument("control.min." + fields.time)
        .Append("$gte", group.begin)
        .Append("$lt", group.end);
  });
  Operation op(clock_);
  QuerySpec spec;
  spec.coll = coll;
  spec.ns = coll->ns;
  spec.filter = filter;
  spec.fill_cache = false;
  std::vector<BucketRef> out;
  MAYFLY_TRY(std::unique_ptr<PlanExecutor> found, MakeFindExecutor(storage_, op, std::move(spec)));
  // Not without an index that finds them.
  if (found->PlanSummary().find("COLLSCAN") != std::string::npos) return out;
  while (out.size() < kMostSiblings && op.docs_examined < kMostExamined) {
    MAYFLY_TRY(const PlanExecutor::State state, found->Next());
    if (state != PlanExecutor::State::kAdvanced) break;
    Result<BucketRef> ref = RefOf(found->input_doc(), fields);
    if (ref && !IsDone(ref.value())) out.push_back(ref.value());
  }
  return out;
}

bool BucketSealer::Suffices(uint32_t collection, uint64_t generation, const BucketRef& ref,
                            Instant window, std::string key) {
  // Each takes a few hundred bytes.
  constexpr size_t kMostSeen = 100'000;
  Seen& s = seen_;
  if (s.generation != generation || s.collection != collection || s.window != window ||
      s.refs >= kMostSeen)
    s = {generation, collection, window, 0, {}};
  std::vector<BucketRef>& refs = s.by_key[std::move(key)];
  if (refs.size() >= kMostMerged) return false;  // known already
  refs.push_back(ref);
  ++s.refs;
  return !BucketsToMerge(refs, true).empty();
}

bool BucketSealer::SearchStep() {
  uint32_t id = 0;
  std::string after;
  uint64_t generation;
  {
    std::lock_guard l(mutex_);
    generation = generation_;
    // First what is known.
    if (by_key_.size() - resting_.size() > static_cast<size_t>(settings_.series_open_groups) / 2)
      return false;
    if (search_.collections.empty() || search_.not_before > clock_.MonotonicMicros()) return false;
    id = search_.collections.back();
    after = search_.after;
  }
  const CollectionInfoPtr coll = storage_.catalog().FindById(id);
  bool more = false;
  std::optional<Error> error;
  if (coll != nullptr && coll->is_buckets()) {
    const BsonDocument filter = BuildBson([&](BsonBuilder& b) {
      if (!after.empty()) b.OpenDocument("_id").AppendObjectId("$gt", after);
    });
    const BsonDocument sort = BuildBson([](BsonBuilder& b) { b.Append("_id", 1); });
    Operation op(clock_);
    QuerySpec spec;
    spec.coll = coll;
    spec.ns = coll->ns;
    spec.filter = filter;
    spec.sort = sort;
    spec.limit = kSearchStep;
    spec.fill_cache = false;
    Result<std::unique_ptr<PlanExecutor>> found = MakeFindExecutor(storage_, op, std::move(spec));
    const SeriesFields fields = FieldsOf(*coll->series);
    if (!found) error = found.error();
    for (int64_t n = 0; !error && n < kSearchStep; ++n) {
      Result<PlanExecutor::State> state = found.value()->Next();
      if (!state) error = state.error();
      if (error || state.value() != PlanExecutor::State::kAdvanced) break;
      const BsonView bucket = found.value()->input_doc();
      const std::array<char, 12> bucket_id = IdOf(bucket);
      after.assign(bucket_id.data(), bucket_id.size());
      more = n + 1 == kSearchStep;
      const Result<BucketRef> ref = RefOf(bucket, fields);
      const BsonValue floor = bucket.FindPath("control.min." + fields.time);
      if (!ref || IsDone(ref.value()) || !floor.IsDate()) continue;
      const BsonValue meta = bucket["meta"];
      std::string text(1, static_cast<char>(meta.type()));
      if (!meta.missing()) text.append(meta.data(), meta.size());
      const Instant window = WindowOf(floor.Date(), coll->series->max_span_seconds);
      if (!Suffices(id, generation, ref.value(), window, KeyOf(id, text, window))) continue;
      std::lock_guard l(mutex_);
      if (generation != generation_) return false;
      // It waits already, or is the first that is taken up.
      Find(id, coll->series->max_span_seconds, text, floor.Date(), true);
    }
  }
  if (error && storage_.catalog().FindById(id) != nullptr) {
    SearchLater(id, after, generation, coll->ns, *error);
    return false;
  }
  std::lock_guard l(mutex_);
  if (generation != generation_) return false;
  search_.after = more ? after : std::string();
  if (!more) search_.collections.pop_back();
  return true;
}

void BucketSealer::SearchLater(uint32_t id, const std::string& after, uint64_t generation,
                               std::string_view ns, const Error& error) {
  const bool passes = Passes(error) || error.code == ErrorCode::kQueryPlanKilled;
  if (!passes)
    env_.warn("Buckets of a time series cannot be searched", BuildBson([&](BsonBuilder& b) {
                b.Append("namespace", ns).Append("error", error.message);
              }));
  std::lock_guard l(mutex_);
  if (generation != generation_) return;
  std::vector<uint32_t>& all = search_.collections;
  search_.not_before = clock_.MonotonicMicros() + (passes ? kRestMicros : kSearchRestMicros);
  search_.after = passes ? after : std::string();
  // From the beginning then, after all others.
  if (!passes && all.back() == id) std::rotate(all.begin(), all.end() - 1, all.end());
}

BucketSealer::Group& BucketSealer::Find(uint32_t collection, int32_t span_seconds,
                                        std::string_view meta, Instant floor, bool found) {
  const Instant begin = WindowOf(floor, span_seconds);
  std::string key = KeyOf(collection, meta, begin);
  if (const auto it = by_key_.find(key); it != by_key_.end()) {
    Group& group = *it->second;
    if (found) {
      group.strange = true;
      if (!group.resting) return group;
      group.resting = false;
      group.last_millis = INT64_MIN / 2;
      waiting_.splice(waiting_.begin(), resting_, it->second);
      return group;
    }
    waiting_.splice(waiting_.end(), group.resting ? resting_ : waiting_, it->second);
    group.resting = false;
    return group;
  }
  Groups made(1);  // it takes its place when nothing more can fail
  const Groups::iterator at = made.begin();
  at->collection = collection;
  at->begin = begin;
  at->end = Instant{SaturatingDeadline(begin.millis, span_seconds)};
  at->key = std::move(key);
  at->strange = true;
  at->last_millis = found ? INT64_MIN / 2 : 0;
  by_key_.emplace(at->key, at);
  bytes_ += at->Bytes();
  waiting_.splice(found ? waiting_.begin() : waiting_.end(), made);
  return *at;
}

void BucketSealer::Erase(Groups::iterator group) {
  bytes_ -= group->Bytes();
  by_key_.erase(group->key);
  (group->resting ? resting_ : waiting_).erase(group);
}

void BucketSealer::SearchFor(uint32_t collection) {
  std::vector<uint32_t>& all = search_.collections;
  // Also while it is being searched: behind the place that was reached there may be others by now.
  const auto end = search_.after.empty() || all.empty() ? all.end() : all.end() - 1;
  if (std::find(all.begin(), end, collection) == end) all.insert(all.begin(), collection);
}

void BucketSealer::MakeRoom() {
  const auto most = static_cast<size_t>(settings_.series_open_groups.load());
  while (by_key_.size() > most || bytes_ > most * kBytesOfGroup) {
    if (!resting_.empty()) {
      Erase(resting_.begin());
      continue;
    }
    auto oldest = waiting_.begin();
    if (oldest != waiting_.end() && oldest->busy) ++oldest;
    if (oldest == waiting_.end()) return;
    ++StatsOf(oldest->collection).by_memory;
    SearchFor(oldest->collection);  // once there is room again
    Erase(oldest);
  }
}

void BucketSealer::NoteInserted(uint32_t collection, int32_t span_seconds,
                                std::vector<Inserted> buckets) {
  const int64_t now = clock_.Now().millis;
  bool wake = false;
  {
    std::lock_guard l(mutex_);
    if (!settings_.series_sealing.load(std::memory_order_relaxed)) return SearchFor(collection);
    Stats& s = StatsOf(collection);
    ++s.commits;
    for (Inserted& i : buckets) {
      ++s.inserts;
      s.points += i.ref.points;
      Group& group = Find(collection, span_seconds, i.meta, i.floor, false);
      group.refs.push_back(i.ref);
      bytes_ += sizeof(BucketRef);
      group.last_millis = now;
      // If many wait for their merge, not every new one causes another look.
      const size_t n = group.refs.size();
      if (group.queued || (n > kMostMerged && n % kMostMerged != 0)) continue;
      if (BucketsToMerge(group.refs, false).empty()) continue;
      group.queued = true;
      ready_.push_back(group.key);
      wake = true;
    }
    MakeRoom();
  }
  if (wake) wake_.notify_one();
}

BucketSealer::KeptOut::~KeptOut() {
  if (sealer_ == nullptr) return;
  std::lock_guard l(sealer_->gate_mutex_);
  if (--sealer_->kept_out_of_[collection_] == 0) sealer_->kept_out_of_.erase(collection_);
}

Result<BucketSealer::KeptOut> BucketSealer::KeepOut(uint32_t collection, Operation& op) {
  std::unique_lock l(gate_mutex_);
  ++kept_out_of_[collection];
  KeptOut out;
  out.sealer_ = this;
  out.collection_ = collection;
  while (merging_ == collection) {
    gate_.wait_for(l, std::chrono::milliseconds(20));
    if (Result<void> r = op.CheckInterruptNow(); !r) {
      l.unlock();
      return r.error();
    }
  }
  l.unlock();
  return out;
}

void BucketSealer::AppendStats(uint32_t collection, BsonBuilder& out) const {
  std::lock_guard l(mutex_);
  const auto it = stats_.find(collection);
  const Stats s = it == stats_.end() ? Stats() : it->second;
  // As MongoDB names them; what cannot come here is 0.
  out.Append("numBucketInserts", s.inserts)
      .Append("numBucketUpdates", int64_t{0})
      .Append("numBucketsOpenedDueToMetadata", s.inserts)
      .Append("numBucketsMerged", s.merged)
      .Append("numBucketsSealed", s.sealed)
      .Append("numBucketsClosedDueToCount", s.by_count)
      .Append("numBucketsClosedDueToSize", int64_t{0})
      .Append("numBucketsClosedDueToTimeForward", s.by_idle)
      .Append("numBucketsClosedDueToTimeBackward", int64_t{0})
      .Append("numBucketsClosedDueToMemoryThreshold", s.by_memory)
      .Append("numCommits", s.commits)
      .Append("numWaits", int64_t{0})
      .Append("numMeasurementsCommitted", s.points)
      .Append("avgNumMeasurementsPerCommit", s.commits == 0 ? 0 : s.points / s.commits);
}

BucketSealer::Stats& BucketSealer::StatsOf(uint32_t collection) {
  const auto it = stats_.find(collection);
  if (it != stats_.end()) return it->second;
  if (stats_.size() >= stats_most_) {
    std::erase_if(stats_,
                  [&](const auto& s) { return storage_.catalog().FindById(s.first) == nullptr; });
    stats_most_ = std::max(kStatsAtOnce, 2 * stats_.size());
  }
  return stats_[collection];
}

size_t BucketSealer::counted() const {
  std::lock_guard l(mutex_);
  return stats_.size();
}

size_t BucketSealer::groups() const {
  std::lock_guard l(mutex_);
  return by_key_.size();
}

}  // namespace mayfly
