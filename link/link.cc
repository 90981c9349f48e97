#include "link/link.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"

namespace mayfly {
namespace {

constexpr int64_t kLeaseMillis = 10'000, kLeaseAgainMillis = 1'000;
/// How long a link waits after a transient error: twice as long each time.
constexpr int64_t kFirstWaitMillis = 100, kLongestWaitMillis = 10'000;

/// How many events are written together if as many wait.
constexpr size_t kMostEvents = 5000;

constexpr Instant kNever{int64_t{1} << 50};
constexpr const char* kNoTombstones =
    "the target shows no tombstones (it is no Mayfly, metadataPurgeIntervalSecs is 0, or the user "
    "lacks the roles expiryAdmin and clusterMonitor): a document that is deleted there while it is "
    "changed at the source comes back, and may be on one side only";

constexpr int64_t kSkewWarnMillis = 1'000, kClocksAgainMillis = 60'000;

int64_t SteadyMillis() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t WallMillis() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string MakeRunner() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return std::string(host) + ":" + std::to_string(getpid()) + ":" +
         std::to_string(std::random_device{}());
}

ClusterError Fatal(ErrorCode code, std::string message) {
  return {{code, std::move(message)}, false};
}

/// The one document of a link, as it stands in the target.
ClusterResult<BsonDocument> ReadLink(Cluster& cluster, std::string_view name) {
  MAYFLY_TRY(BsonDocument reply, cluster.Command(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                                                   b.Append("find", "links").Append("limit", 1);
                                                   b.Append("singleBatch", true);
                                                   b.OpenDocument("filter").Append("_id", name);
                                                 })));
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  if (batch.documents.empty()) return BsonDocument();
  return BsonDocument(batch.documents.First().value.Document());
}

/// What it means that the target's clock is so much ahead of the source's; empty: too little to
/// matter.
std::string ClockWarning(int64_t apart) {
  if (std::abs(apart) <= kSkewWarnMillis) return {};
  return "the target's clock is " + std::to_string(std::abs(apart)) + " ms " +
         (apart > 0 ? "ahead of" : "behind") + " the source's: deadlines come that much " +
         (apart > 0 ? "earlier" : "later") + " there; keep both in step (NTP)";
}

void AppendCounters(const LinkCounters& c, BsonBuilder& b) {
  b.Append("copied", c.copied).Append("written", c.written).Append("deleted", c.deleted);
  b.Append("expired", c.expired).Append("refused", c.refused).Append("notNewer", c.not_newer);
  b.Append("copiesBegun", c.copies_begun);
}

}  // namespace

Link::Link(LinkOptions options, LinkStatus& status)
    : options_(std::move(options)), status_(status), runner_(MakeRunner()) {}
Link::~Link() = default;

void Link::Wait(int64_t millis) const {
  const int64_t until = SteadyMillis() + millis;
  while (!stopped_ && SteadyMillis() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

void Link::Show(std::string_view state, std::string_view error) {
  status_.Set(BuildBson([&](BsonBuilder& b) {
    b.Append("link", options_.name).Append("state", state);
    if (!error.empty()) b.Append("error", error);
    b.AppendAll(State().view());
    const ReadAhead::Waiting read = reader_ ? reader_->waiting() : ReadAhead::Waiting();
    b.OpenDocument("readAhead").Append("events", read.events).Append("bytes", read.bytes);
    BsonArrayBuilder warnings = b.OpenArray("warnings");
    for (const std::string& w : WarningsOf(options_)) warnings.Append(w);
    if (const std::string w = ClockWarning(ClocksApart()); !w.empty()) warnings.Append(w);
    if (echoes_ && translator_->without_echoes) warnings.Append(kNoTombstones);
    if (translator_ && !translator_->not_carried.empty())
      warnings.Append("time series are not carried: see notCarried");
  }));
}

/// What of the source is carried, in a form that can be compared.
static BsonDocument Selected(const LinkOptions& o) {
  const auto list = [](std::vector<std::string> names, std::string_view name, BsonBuilder& b) {
    std::ranges::sort(names);
    BsonArrayBuilder out = b.OpenArray(name);
    for (const std::string& n : names) out.Append(n);
  };
  return BuildBson([&](BsonBuilder& b) {
    list(o.include, "include", b);
    list(o.exclude, "exclude", b);
    b.Append("filter", o.filter.view().empty() ? std::string() : ToRelaxedJson(o.filter));
  });
}

BsonDocument Link::State() const {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("version", 1).Append("phase", phase_ == Phase::kCopy ? "copy" : "follow");
    b.Append("copiedOnce", copied_once_).AppendTimestamp("copyTime", copy_time_);
    b.Append("copyId", copy_id_).Append("token", token_);
    {
      BsonBuilder c = b.OpenDocument("counters");
      AppendCounters(counters_, c);
    }
    b.Append("lagMillis", status_.progress.Look().lag_millis);
    b.Append("updatedAt", Instant{WallMillis()});
    {
      BsonBuilder skew = b.OpenDocument("clockSkewMillis");
      skew.Append("source", source_facts_.clock_skew_millis);
      skew.Append("target", target_facts_.clock_skew_millis).Append("apart", ClocksApart());
    }
    if (translator_) {
      b.AppendTimestamp("copiedUntil", translator_->copied_until);
      BsonArrayBuilder list = b.OpenArray("notCarried");
      for (const std::string& ns : translator_->not_carried) list.Append(ns);
    }
    if (echoes_) b.Append("echoes", echoes_at_);
    BsonBuilder s = b.OpenDocument("source");
    s.Append("set", source_facts_.set);
    BsonArrayBuilder hosts = s.OpenArray("hosts");
    for (const std::string& h : source_facts_.hosts) hosts.Append(h);
    hosts.Done();
    s.Done();
    b.Append("versionField", options_.version_field);
    b.Append("selection", Selected(options_));
  });
}

ClusterResult<void> Link::Write(const std::vector<LinkOperation>& operations) {
  // Of the counters those of before the operations, which may have been written before.
  const BsonDocument state = State();
  const BsonView known = saved_;
  const BsonDocument changed = BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : state.view()) {
      const BsonValue there = known[e.name];
      if (there.missing() || there.type() != e.value.type() || there.bytes() != e.value.bytes())
        b.Append(e);
    }
  });
  saved_ = {};  // whatever comes of it, until it is known
  auto done = operations.empty() ? writer_->SaveState(changed)
                                 : writer_->Apply(operations, changed, &counters_);
  if (!done) return done;
  saved_ = state;
  status_.progress.Advanced();
  return done;
}

ClusterResult<void> Link::Lease(bool first) {
  if (first) {
    MAYFLY_TRY(
        target_->Write(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                         b.Append("update", "links");
                         BsonArrayBuilder updates = b.OpenArray("updates");
                         BsonBuilder u = updates.OpenDocument();
                         u.OpenDocument("q").Append("_id", options_.name);
                         u.OpenDocument("u").OpenDocument("$setOnInsert").AppendNull("runner");
                         u.Append("upsert", true);
                       })));
  }
  const BsonDocument update = BuildBson([&](BsonBuilder& b) {
    b.Append("findAndModify", "links").Append("new", true);
    {
      BsonBuilder q = b.OpenDocument("query");
      q.Append("_id", options_.name);
      BsonArrayBuilder any = q.OpenArray("$or");
      any.OpenDocument().Append("runner.id", runner_);
      if (first) {
        any.OpenDocument().AppendNull("runner");
        // By the target's clock, like the lease itself.
        BsonBuilder over = any.OpenDocument();
        BsonBuilder expr = over.OpenDocument("$expr");
        BsonArrayBuilder lt = expr.OpenArray("$lt");
        lt.Append("$runner.until").Append("$$NOW");
      }
    }
    BsonArrayBuilder stages = b.OpenArray("update");
    BsonBuilder stage = stages.OpenDocument();
    BsonBuilder set = stage.OpenDocument("$set");
    BsonBuilder r = set.OpenDocument("runner");
    r.OpenDocument("id").Append("$literal", runner_);
    BsonBuilder until = r.OpenDocument("until");
    BsonArrayBuilder sum = until.OpenArray("$add");
    sum.Append("$$NOW").Append(kLeaseMillis);
  });
  auto done = target_->Write(kLinkDatabase, update);
  if (!done) return std::move(done).error();
  const BsonValue mine = done.value().view()["value"];
  if (!mine.IsDocument() && !mine.IsNullish())
    return Malformed("the link's own document is no document");
  if (!mine.IsDocument())
    return ClusterError{{ErrorCode::kLockBusy,
                         "another process runs the link '" + options_.name +
                             "': this one stands by, and takes over ten seconds after the last "
                             "sign of life of the other"},
                        true};
  const BsonValue paused = mine.Document()["paused"];
  paused_ = paused.Is(BsonType::kBool) && paused.Bool();
  leased_ = SteadyMillis();
  status_.progress.Advanced();
  return Ok();
}

ClusterResult<void> Link::LoadState() {
  MAYFLY_TRY(BsonDocument doc, ReadLink(*target_, options_.name));
  const BsonView d = doc;
  if (!d["phase"].IsString()) {
    counters_ = {};  // also of an attempt that could not be saved
    return BeginCopy(false);
  }
  if (IntOf(d, "version") != 1)
    return Fatal(ErrorCode::kUnsupportedFormat,
                 "the link '" + options_.name + "' was made by a newer mayfly-link");
  MAYFLY_TRY(CheckSource(DocumentOf(d["source"])));
  // An earlier version did not keep it.
  const BsonValue selection = d["selection"];
  const bool other =
      selection.IsDocument() && selection.Document().bytes() != Selected(options_).bytes();
  if (other && !options_.new_selection)
    return Fatal(ErrorCode::kIllegalOperation,
                 "the link '" + options_.name +
                     "' has had another --include, --exclude or --filter until now: what was left "
                     "out then would never be copied. With --newSelection it copies again, as "
                     "after a lost history: what is selected and not at the source is removed");
  phase_ = d["phase"].String() == "copy" ? Phase::kCopy : Phase::kFollow;
  copied_once_ = d["copiedOnce"].Truthy();
  if (d["copyTime"].Is(BsonType::kTimestamp)) copy_time_ = d["copyTime"].Timestamp();
  token_ = BsonDocument(DocumentOf(d["token"]));
  if (d["copiedUntil"].Is(BsonType::kTimestamp))
    translator_->copied_until = d["copiedUntil"].Timestamp();
  if (d["notCarried"].IsArray())
    for (const BsonElement& e : d["notCarried"].Document())
      if (e.value.IsString()) translator_->not_carried.emplace(e.value.String());
  echoes_at_ = BsonDocument(DocumentOf(d["echoes"]));
  copied_.clear();
  copy_id_ = TextOf(d["copyId"]);
  if (phase_ == Phase::kCopy) {
    // An earlier version told its copies not apart.
    if (copy_id_.empty()) return BeginCopy(copied_once_);
    MAYFLY_TRY(const std::vector<std::string> copied, writer_->Copied(copy_id_));
    copied_.insert(copied.begin(), copied.end());
  }
  if (!d["counters"].IsDocument()) return Ok();
  const BsonView c = d["counters"].Document();
  counters_ = {IntOf(c, "copied"),     IntOf(c, "written"), IntOf(c, "deleted"),
               IntOf(c, "expired"),    IntOf(c, "refused"), IntOf(c, "notNewer"),
               IntOf(c, "copiesBegun")};
  return other ? BeginCopy(copied_once_) : ClusterResult<void>(Ok());
}

ClusterResult<void> Link::CheckSource(BsonView before) const {
  const std::string_view set = TextOf(before["set"]);
  if (!before["hosts"].IsArray() || before["hosts"].Document().empty() || options_.source_moved)
    return Ok();
  std::string hosts;
  bool known = false;
  for (const BsonElement& h : before["hosts"].Document()) {
    const std::string host(TextOf(h.value));
    known |= std::ranges::find(source_facts_.hosts, host) != source_facts_.hosts.end();
    hosts += (hosts.empty() ? "" : ",") + host;
  }
  if (known && set == source_facts_.set) return Ok();
  return Fatal(ErrorCode::kIllegalOperation,
               "the link '" + options_.name + "' has another source (set " + std::string(set) +
                   " of " + hosts +
                   "): with this one it would remove what that one has brought. Give each link its "
                   "own --name. If it is the same set at other addresses, add --sourceMoved");
}

ClusterResult<void> Link::CheckOtherDirection() {
  MAYFLY_TRY(BsonDocument reply,
             source_->Command(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                                b.Append("find", "links").Append("limit", 1000);
                                b.Append("singleBatch", true).Append("batchSize", 1000);
                              })));
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  for (const BsonElement& e : batch.documents) {
    const BsonView other = e.value.Document();
    const BsonValue hosts = DocumentOf(other["source"])["hosts"];
    if (!hosts.IsArray()) continue;
    const bool ours = std::ranges::any_of(hosts.Document(), [&](const BsonElement& h) {
      return h.value.IsString() &&
             std::ranges::find(target_facts_.hosts, h.value.String()) != target_facts_.hosts.end();
    });
    if (!ours) continue;
    if (!options_.version_field.empty() && TextOf(other["versionField"]) == options_.version_field)
      continue;
    return Fatal(ErrorCode::kIllegalOperation,
                 "a link in the other direction exists at the source ('" +
                     std::string(TextOf(other["_id"])) +
                     "'): each change would come back. Give both links the same --versionField, "
                     "or remove the other one's document from " +
                     std::string(kLinkDatabase) + ".links");
  }
  return Ok();
}

ClusterResult<void> Link::Begin() {
  MAYFLY_TRY(source_facts_, source_->Ask());
  MAYFLY_TRY(target_facts_, target_->Ask());
  if (source_facts_.set.empty())
    return Fatal(ErrorCode::kNotAReplicaSet,
                 "the source is no replica set: start it with --replSet and run replSetInitiate "
                 "(one member is enough)");
  if (std::ranges::any_of(source_facts_.hosts, [&](const std::string& h) {
        return std::ranges::find(target_facts_.hosts, h) != target_facts_.hosts.end();
      }))
    return Fatal(ErrorCode::kIllegalOperation, "source and target are the same cluster");
  if (!target_facts_.mayfly && source_facts_.mayfly && !options_.filter_bypass_expiry)
    return Fatal(ErrorCode::kIllegalOperation,
                 "the target does not keep deadlines of documents: with --filterBypassExpiry they "
                 "are sent without");
  MAYFLY_TRY(CheckOtherDirection());
  clocks_seen_ = SteadyMillis();
  if (const std::string w = ClockWarning(ClocksApart()); !w.empty())
    std::fprintf(stderr, "mayfly-link: warning: %s\n", w.c_str());
  writer_ = std::make_unique<TargetWriter>(*target_, options_.name, runner_);
  translator_ = std::make_unique<EventTranslator>(options_, selection_, *source_);
  translator_->says_none = source_facts_.mayfly && target_facts_.mayfly;
  MAYFLY_TRY(FindTombstones());
  // A client is of one thread.
  auto stream = Cluster::Open(options_.source, "mayfly-link " + options_.name);
  if (!stream) return ClusterError{stream.error(), false};
  status_.progress.SetSkew(source_facts_.clock_skew_millis);
  reader_ = std::make_unique<ReadAhead>(options_, std::move(stream).value(), source_facts_.mayfly,
                                        status_.progress);
  conflicts_ = std::make_unique<ConflictSolver>(options_, selection_, *source_, *target_, *writer_,
                                                *translator_, source_facts_.mayfly);
  MAYFLY_TRY(Lease(true));
  MAYFLY_TRY(LoadState());
  // Also those that an earlier process did not reach.
  conflicts_seen_ = -1;
  saved_ = {};  // another process may have saved since
  return Save();
}

void Link::WatchClocks() {
  if (SteadyMillis() - clocks_seen_ < kClocksAgainMillis) return;
  clocks_seen_ = SteadyMillis();
  const bool warned = !ClockWarning(ClocksApart()).empty();
  // The next operation that needs a silent server notices it.
  if (auto facts = source_->Ask())
    source_facts_.clock_skew_millis = facts.value().clock_skew_millis;
  status_.progress.SetSkew(source_facts_.clock_skew_millis);
  if (auto facts = target_->Ask())
    target_facts_.clock_skew_millis = facts.value().clock_skew_millis;
  const std::string w = ClockWarning(ClocksApart());
  if (!warned && !w.empty()) std::fprintf(stderr, "mayfly-link: warning: %s\n", w.c_str());
}

ClusterResult<void> Link::NameRefused() {
  for (const EventTranslator::Unusable& u : translator_->TakeRefused()) {
    MAYFLY_TRY(writer_->CheckLease());
    MAYFLY_TRY(
        writer_->Refused(u.ns, u.id.view()["id"], {ErrorCode::kBadValue, u.why}, &counters_));
  }
  return Ok();
}

ClusterResult<void> Link::FindTombstones() {
  TargetWriter::Manner& m = writer_->manner;
  m.version_field = options_.version_field;
  m.mayfly = target_facts_.mayfly;
  if (m.version_field.empty()) return Ok();
  echoes_ = std::make_unique<Echoes>(target_facts_.hosts);
  translator_->echoes = echoes_.get();
  if (m.mayfly) {
    constexpr std::string_view kKept = "metadataPurgeIntervalSecs";
    auto kept = target_->Command(
        "admin", BuildBson([&](BsonBuilder& b) { b.Append("getParameter", 1).Append(kKept, 1); }));
    auto shown = target_->Command("admin", BuildBson([&](BsonBuilder& b) {
                                    b.Append("aggregate", 1);
                                    BsonArrayBuilder stages = b.OpenArray("pipeline");
                                    BsonBuilder stage = stages.OpenDocument();
                                    stage.OpenDocument("$tombstones").Append("since", kNever);
                                    stage.Done();
                                    stages.Done();
                                    b.OpenDocument("cursor");
                                  }));
    for (const auto* asked : {&kept, &shown})
      if (!*asked && asked->error().transient) return asked->error();
    m.tombstones = kept && shown && IntOf(kept.value(), kKept) > 0;
  }
  translator_->without_echoes = !m.tombstones;
  if (!m.tombstones) std::fprintf(stderr, "mayfly-link: warning: %s\n", kNoTombstones);
  return Ok();
}

ClusterResult<void> Link::SolveConflicts() {
  if (conflicts_seen_ == counters_.refused) return Ok();
  MAYFLY_TRY(conflicts_->Run());
  conflicts_seen_ = counters_.refused;
  return Ok();
}

ClusterResult<void> Link::Turn(size_t documents) {
  WatchClocks();
  if (SteadyMillis() - leased_ >= kLeaseAgainMillis) {
    MAYFLY_TRY(Lease(false));
  }
  while (paused_ && !stopped_) {
    Show("paused");
    Wait(500);
    MAYFLY_TRY(Lease(false));
    // What waits grows older, and the target shows that.
    MAYFLY_TRY(Save());
  }
  if (options_.max_documents_per_second == 0) return Ok();
  if (SteadyMillis() - window_start_ >= 1000) window_start_ = SteadyMillis(), window_documents_ = 0;
  window_documents_ += static_cast<int64_t>(documents);
  const int64_t until =
      window_start_ + window_documents_ * 1000 / options_.max_documents_per_second;
  // However long it takes: a batch may have more documents than the limit gives to some seconds.
  while (!stopped_ && SteadyMillis() < until) {
    Wait(std::min<int64_t>(until - SteadyMillis(), kLeaseAgainMillis));
    if (SteadyMillis() - leased_ >= kLeaseAgainMillis) {
      MAYFLY_TRY(Lease(false));
    }
  }
  return Ok();
}

ClusterResult<void> Link::ApplyChange(EventTranslator::Change& change) {
  if (!change.operations.empty()) {
    MAYFLY_TRY(Write(change.operations));
  }
  for (const auto& [db, command] : change.commands) {
    MAYFLY_TRY(writer_->Run(db, command, &counters_, /*replaces=*/true));
  }
  for (const std::string& ns : change.copy) {
    MAYFLY_TRY(CopyWhole(ns));
  }
  change = {};
  return Ok();
}

ClusterResult<void> Link::ApplyDefinition(EventTranslator::Change& change,
                                          const BsonDocument& before, const BsonDocument& behind) {
  const BsonDocument was = token_, echoes_were = echoes_at_;
  if (!before.view().empty()) GoTo(before);
  const auto documents = [&]() -> ClusterResult<void> {
    if (change.operations.empty()) return Save();
    MAYFLY_TRY(Write(change.operations));
    change.operations.clear();
    return Ok();
  };
  if (auto done = documents(); !done) {
    token_ = was;
    echoes_at_ = echoes_were;
    return done;
  }
  MAYFLY_TRY(ApplyChange(change));
  if (behind.view().empty()) return Ok();
  GoTo(behind);
  return Save();
}

void Link::GoTo(BsonDocument token) {
  token_ = std::move(token);
  if (echoes_) echoes_at_ = echoes_->State();
}

ClusterResult<void> Link::Follow() {
  reader_->Open(token_, copy_time_);
  if (echoes_) echoes_->Load(echoes_at_);
  while (!stopped_) {
    MAYFLY_TRY(ReadAhead::Batch batch, reader_->Next(kMostEvents));
    const std::vector<BsonDocument>& events = batch.events;
    EventTranslator::Change change;
    int64_t wall = 0;
    BsonDocument behind;
    for (const BsonDocument& event : events) {
      MAYFLY_TRY(translator_->Append(event, &change));
      BsonDocument before = std::move(behind);
      behind = BsonDocument(DocumentOf(event.view()["_id"]));
      // A definition stands between the documents before it and those behind it.
      if (!change.commands.empty() || !change.copy.empty()) {
        MAYFLY_TRY(ApplyDefinition(change, before, behind));
      }
      if (event.view()["wallTime"].IsDate()) wall = MillisOf(event.view()["wallTime"]);
    }
    MAYFLY_TRY(NameRefused());
    // The position goes to the target with the data. Where that fails, it is read again from
    // before.
    BsonDocument before = token_, echoes_before = echoes_at_;
    if (!batch.token.view().empty()) GoTo(std::move(batch.token));
    const size_t n = change.operations.size();
    if (!change.operations.empty()) {
      if (auto done = ApplyChange(change); !done) {
        token_ = std::move(before);
        echoes_at_ = std::move(echoes_before);
        return done;
      }
    } else if (!events.empty() || SteadyMillis() - leased_ >= kLeaseAgainMillis) {
      MAYFLY_TRY(Save());
    }
    MAYFLY_TRY(SolveConflicts());
    reader_->Written(wall == 0 ? 0 : status_.progress.SourceNow() - wall);
    MAYFLY_TRY(Turn(n));
    Show("following");
  }
  return Ok();
}

Result<void> Link::Run() {
  const std::string application = "mayfly-link " + options_.name;
  MAYFLY_TRY(selection_, Selection::Make(options_.include, options_.exclude));
  MAYFLY_TRY(source_, Cluster::Open(options_.source, application));
  MAYFLY_TRY(target_, Cluster::Open(options_.target, application));
  bool begun = false;
  int64_t wait = kFirstWaitMillis;
  Show("starting");
  while (!stopped_) {
    const LinkCounters before = counters_;
    ClusterResult<void> done = Ok();
    if (!begun) {
      done = Begin();
      begun = done.has_value();
    }
    if (done && phase_ == Phase::kFollow) status_.progress.Copies(std::nullopt);
    if (done && phase_ == Phase::kCopy) {
      // The seconds of the cluster time where following begins.
      status_.progress.Copies(static_cast<int64_t>(copy_time_ >> 32) * 1000);
      done = CopyAll();
      if (done && !stopped_) done = EndCopy();
    }
    if (done && !stopped_) done = Follow();
    if (done) continue;
    const ClusterError failed = done.error();
    // Another process continued from this one's position: this one's knowledge is old.
    if (failed.error.code == ErrorCode::kLockBusy) {
      begun = false;
      status_.progress.StandBy();
    }
    if (failed.error.code == ErrorCode::kChangeStreamHistoryLost) {
      Show("copying again", failed.error.message);
      if (BeginCopy(true)) continue;
    } else if (!failed.transient) {
      Show("failed", failed.error.message);
      return failed.error;
    }
    Show("waiting", failed.error.message);
    if (told_ != failed.error.message) {
      told_ = failed.error.message;
      std::fprintf(stderr, "mayfly-link: waiting: %s\n", told_.c_str());
    }
    if (counters_.written != before.written || counters_.copied != before.copied)
      wait = kFirstWaitMillis;
    Wait(wait);
    wait = std::min(wait * 2, kLongestWaitMillis);
  }
  if (reader_) reader_->Close();
  // The next one need not wait until the lease is over.
  if (begun)
    (void)target_->Write(
        kLinkDatabase, BuildBson([&](BsonBuilder& b) {
          b.Append("update", "links");
          BsonArrayBuilder updates = b.OpenArray("updates");
          BsonBuilder u = updates.OpenDocument();
          u.OpenDocument("q").Append("_id", options_.name).Append("runner.id", runner_);
          BsonBuilder change = u.OpenDocument("u");
          change.OpenDocument("$unset").Append("runner", "");
        }));
  Show("stopped");
  return Ok();
}

Result<std::string> RunLinkAction(const LinkOptions& options) {
  MAYFLY_TRY(std::unique_ptr<Cluster> target, Cluster::Open(options.target, "mayfly-link"));
  if (options.action != LinkOptions::Action::kStatus) {
    const bool pause = options.action == LinkOptions::Action::kPause;
    auto done = target->Write(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                                b.Append("update", "links");
                                BsonArrayBuilder updates = b.OpenArray("updates");
                                BsonBuilder u = updates.OpenDocument();
                                u.OpenDocument("q").Append("_id", options.name);
                                BsonBuilder change = u.OpenDocument("u");
                                change.OpenDocument("$set").Append("paused", pause);
                              }));
    if (!done) return done.error().error;
    if (IntOf(done.value(), "n") == 0)
      return Error{ErrorCode::kNoMatchingDocument,
                   "the target knows no link '" + options.name + "'"};
  }
  auto found = ReadLink(*target, options.name);
  if (!found) return found.error().error;
  if (found.value().view().empty())
    return Error{ErrorCode::kNoMatchingDocument, "the target knows no link '" + options.name + "'"};
  return ToRelaxedJson(found.value());
}

}  // namespace mayfly
