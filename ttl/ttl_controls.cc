#include "ttl/ttl_controls.h"

#include <algorithm>

#include "protocol/bson_builder.h"
#include "query/update/expire.h"
#include "storage/catalog/index_keys.h"

namespace mayfly {
namespace {

constexpr int kVersion = 1, kVersionRestored = 2;

std::string_view UuidBytes(const Uuid& u) {
  return {reinterpret_cast<const char*>(u.data()), u.size()};
}

std::string RuleKey(const Uuid& uuid, std::string_view rule) {
  std::string k(UuidBytes(uuid));
  k.append(rule);
  return k;
}

std::string ScopeKey(const TtlScope& s) {
  std::string k(1, static_cast<char>('0' + static_cast<int>(s.level)));
  switch (s.level) {
    case TtlScope::Level::kServer:
      break;
    case TtlScope::Level::kDatabase:
      k += s.db;
      break;
    case TtlScope::Level::kCollection:
      k += UuidBytes(s.uuid);
      break;
    case TtlScope::Level::kRule:
      k += RuleKey(s.uuid, s.rule);
      break;
  }
  return k;
}

bool Ended(const std::optional<Instant>& until, Instant now) {
  return until && until->millis <= now.millis;
}

bool Within(const TtlScope& inner, const TtlScope& outer) {
  if (inner.level < outer.level) return false;
  switch (outer.level) {
    case TtlScope::Level::kServer:
      return true;
    case TtlScope::Level::kDatabase:
      return inner.db == outer.db;
    case TtlScope::Level::kCollection:
      return inner.uuid == outer.uuid;
    case TtlScope::Level::kRule:
      return inner.uuid == outer.uuid && inner.rule == outer.rule;
  }
  return false;
}

Error Damaged() {
  return {ErrorCode::kUnsupportedFormat,
          "the catalog's row of TTL pauses and holds cannot be read: it was written by another "
          "version, or is damaged"};
}

bool ReadUuid(BsonView v, Uuid* out) {
  BsonValue u = v["uuid"];
  if (!u.Is(BsonType::kBinary) || u.BinaryData().size() != out->size()) return false;
  std::copy(u.BinaryData().begin(), u.BinaryData().end(), reinterpret_cast<char*>(out->data()));
  return true;
}

std::string Text(BsonView v, std::string_view name) {
  BsonValue s = v[name];
  return s.IsString() ? std::string(s.String()) : std::string();
}

std::optional<Instant> Date(BsonView v, std::string_view name) {
  BsonValue d = v[name];
  return d.IsDate() ? std::optional(d.Date()) : std::nullopt;
}

}  // namespace

std::string_view TtlStandingName(TtlStanding s) {
  return s == TtlStanding::kActive ? "active" : s == TtlStanding::kPaused ? "paused" : "held";
}

TtlControls::TtlControls(Storage& storage) : storage_(storage), state_(std::make_shared<State>()) {}

TtlControls::StatePtr TtlControls::Get() const {
  std::lock_guard l(mutex_);
  return state_;
}

BsonDocument TtlControls::Serialize(const State& s) const {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("v", s.restored ? kVersionRestored : kVersion);
    if (s.restored) {
      auto d = b.OpenDocument("restored");
      d.Append("backup", s.restored->backup).Append("backupTime", s.restored->backup_time);
      d.Append("dataTime", s.restored->data_time).Append("since", s.restored->since);
    }
    {
      auto list = b.OpenArray("pauses");
      for (const auto& [key, p] : s.pauses) {
        auto d = list.OpenDocument();
        d.Append("level", static_cast<int32_t>(p.scope.level)).Append("db", p.scope.db);
        d.AppendBinary("uuid", 4, UuidBytes(p.scope.uuid)).Append("rule", p.scope.rule);
        d.Append("since", p.since);
        if (p.until) d.Append("until", *p.until);
      }
    }
    {
      auto list = b.OpenArray("holds");
      for (const TtlHold& h : s.holds) {
        auto d = list.OpenDocument();
        d.AppendObjectId("id", h.id).Append("db", h.db);
        d.AppendBinary("uuid", 4, UuidBytes(h.uuid)).Append("filter", h.filter);
        d.Append("since", h.since);
        if (h.until) d.Append("until", *h.until);
        d.Append("reason", h.reason);
      }
    }
    auto list = b.OpenArray("guards");
    for (const auto& [key, g] : s.guards) {
      auto d = list.OpenDocument();
      d.Append("db", g.db).AppendBinary("uuid", 4, UuidBytes(g.uuid)).Append("rule", g.rule);
      d.Append("since", g.since).Append("wouldExpire", g.would_expire);
      d.Append("fraction", g.fraction);
    }
  });
}

Result<TtlControls::State> TtlControls::Parse(BsonView row) const {
  const int64_t version = row["v"].NumberAsInt64();
  if (version != kVersion && version != kVersionRestored) return Damaged();
  State s;
  if (version == kVersionRestored) {
    const BsonValue restored = row["restored"];
    if (!restored.IsDocument()) return Damaged();
    const BsonView d = restored.Document();
    const Instant made = Date(d, "backupTime").value_or(Instant{0});
    // Absent: the row is of a version that had only one time, that of the data.
    s.restored = TtlRestoreHold{Text(d, "backup"), made, Date(d, "since").value_or(Instant{0}),
                                Date(d, "dataTime").value_or(made)};
  }
  auto each = [&](std::string_view list, const std::function<bool(BsonView)>& read) -> bool {
    BsonValue v = row[list];
    if (!v.IsArray()) return false;
    for (const BsonElement& e : v.Document())
      if (!e.value.IsDocument() || !read(e.value.Document())) return false;
    return true;
  };
  const bool pauses = each("pauses", [&](BsonView d) {
    TtlPause p;
    const int64_t level = d["level"].NumberAsInt64();
    if (level < 0 || level > 3 || !ReadUuid(d, &p.scope.uuid)) return false;
    p.scope.level = static_cast<TtlScope::Level>(level);
    p.scope.db = Text(d, "db");
    p.scope.rule = Text(d, "rule");
    p.since = Date(d, "since").value_or(Instant{0});
    p.until = Date(d, "until");
    s.pauses[ScopeKey(p.scope)] = p;
    return true;
  });
  std::optional<Error> bad_filter;
  const bool holds = each("holds", [&](BsonView d) {
    TtlHold h;
    BsonValue id = d["id"];
    if (!id.Is(BsonType::kObjectId) || !d["filter"].IsDocument() || !ReadUuid(d, &h.uuid))
      return false;
    h.id = id.ObjectId();
    h.db = Text(d, "db");
    h.filter = BsonDocument(d["filter"].Document());
    h.since = Date(d, "since").value_or(Instant{0});
    h.until = Date(d, "until");
    h.reason = Text(d, "reason");
    auto compiled = storage_.options().compile_filter(h.filter, false);
    if (!compiled) {
      bad_filter = compiled.error();
      return false;
    }
    h.matches = std::move(compiled).value();
    s.holds.push_back(std::move(h));
    return true;
  });
  if (bad_filter) return *bad_filter;
  const bool guards = each("guards", [&](BsonView d) {
    TtlGuardHold g;
    if (!ReadUuid(d, &g.uuid)) return false;
    g.db = Text(d, "db");
    g.rule = Text(d, "rule");
    g.since = Date(d, "since").value_or(Instant{0});
    g.would_expire = d["wouldExpire"].NumberAsInt64();
    g.fraction = d["fraction"].NumberAsDouble();
    s.guards[RuleKey(g.uuid, g.rule)] = g;
    return true;
  });
  if (!pauses || !holds || !guards) return Damaged();
  return s;
}

Result<void> TtlControls::Load(Operation& op) {
  (void)op;
  std::lock_guard changing(change_mutex_);
  MAYFLY_TRY(std::optional<std::string> row, storage_.catalog().GetSetting(kTtlControlsSetting));
  auto next = std::make_shared<State>();
  if (row) {
    MAYFLY_TRY(*next, Parse(BsonView(*row)));
  }
  Catalog& catalog = storage_.catalog();
  auto gone = [&](const Uuid& uuid, std::string_view rule) {
    CollectionInfoPtr coll = catalog.FindByUuid(uuid);
    if (!coll) return true;
    if (rule.empty() || rule.front() == '$') return false;
    return !coll->FindIndex(rule);
  };
  std::erase_if(next->pauses, [&](auto& p) {
    return p.second.scope.level >= TtlScope::Level::kCollection &&
           gone(p.second.scope.uuid, p.second.scope.rule);
  });
  std::erase_if(next->holds, [&](auto& h) { return gone(h.uuid, {}); });
  std::erase_if(next->guards, [&](auto& g) { return gone(g.second.uuid, g.second.rule); });
  Publish(std::move(next));
  return Ok();
}

void TtlControls::Publish(std::shared_ptr<State> next) {
  std::array<uint64_t, kHeldBits / 64> held{};
  for (const TtlHold& h : next->holds)
    held[HeldBit(h.uuid) / 64] |= uint64_t{1} << (HeldBit(h.uuid) % 64);
  {
    std::lock_guard l(mutex_);
    for (size_t i = 0; i < held.size(); ++i) held_[i].store(held[i], std::memory_order_release);
    any_rules_ = next->KeepsRules() || !evaluating_.empty();
    any_holds_ = !next->holds.empty();
    state_ = std::move(next);
  }
  if (on_change) on_change();
}

Result<void> TtlControls::Change(Operation& op, const std::function<bool(State&)>& change) {
  std::lock_guard changing(change_mutex_);
  auto next = std::make_shared<State>(*Get());
  if (!change(*next)) return Ok();
  // Each change also removes pauses and holds that have ended, and everything about collections
  // that no longer exist.
  std::erase_if(next->pauses, [&](auto& p) { return Ended(p.second.until, op.now); });
  std::erase_if(next->holds, [&](auto& h) { return Ended(h.until, op.now); });
  Catalog& catalog = storage_.catalog();
  std::erase_if(next->pauses, [&](auto& p) {
    return p.second.scope.level >= TtlScope::Level::kCollection &&
           !catalog.FindByUuid(p.second.scope.uuid);
  });
  std::erase_if(next->holds, [&](auto& h) { return !catalog.FindByUuid(h.uuid); });
  std::erase_if(next->guards, [&](auto& g) { return !catalog.FindByUuid(g.second.uuid); });
  return Write(op, std::move(next));
}

/// REQUIRES: change_mutex_.
Result<void> TtlControls::Write(Operation& op, std::shared_ptr<State> next) {
  BsonDocument row = Serialize(*next);
  if (row.view().size() > kMaxBsonUserSize)
    return Error{ErrorCode::kExceededMemoryLimit,
                 "too many TTL pauses and holds: release some first"};
  MAYFLY_TRY(storage_.catalog().PutSetting(op, kTtlControlsSetting, row.view().bytes()));
  Publish(std::move(next));
  return Ok();
}

std::string RuleIdentity(const TtlRule& rule) {
  return rule.index ? rule.index->name : "$" + std::string(rule.RuleName());
}

std::string_view RuleNameOf(std::string_view identity) {
  return identity.starts_with('$') ? identity.substr(1) : identity;
}

TtlStanding TtlControls::StateOf(const TtlRule& rule, Instant now) const {
  if (!any_rules_.load(std::memory_order_acquire)) return TtlStanding::kActive;
  if (RestoreHold()) return TtlStanding::kHeld;
  return StateOf(*rule.coll, RuleIdentity(rule), now);
}

bool TtlControls::RuleActive(const CollectionInfo& coll, const IndexInfo* index) const {
  if (!any_rules_.load(std::memory_order_acquire)) return true;
  return StateOf(coll, index ? std::string_view(index->name) : "$clustered",
                 storage_.clock().Now()) == TtlStanding::kActive;
}

Result<std::optional<Instant>> TtlControls::ArchiveDeadline(const CollectionInfo& into,
                                                            BsonView doc, Instant now) const {
  if (HasNoExpiry(into)) return std::optional<Instant>();
  MAYFLY_TRY(::mayfly::Deadline d, ResolveDeadline(ExpirySetting(), into, now, doc, nullptr));
  return d.at;
}

TtlStanding TtlControls::StateOf(const CollectionInfo& coll, std::string_view identity,
                                 Instant now) const {
  StatePtr s;
  const std::string key = RuleKey(coll.uuid, identity);
  {
    std::lock_guard l(mutex_);
    if (evaluating_.contains(key)) return TtlStanding::kHeld;
    s = state_;
  }
  if (s->guards.contains(key)) return TtlStanding::kHeld;
  return PausedUntil(*s, coll, identity, now).millis > now.millis ? TtlStanding::kPaused
                                                                  : TtlStanding::kActive;
}

Instant TtlControls::PausedUntil(const State& s, const CollectionInfo& coll,
                                 std::string_view identity, Instant now) {
  if (s.pauses.empty()) return now;
  TtlScope scope{TtlScope::Level::kServer, coll.db, coll.uuid, std::string(identity)};
  Instant until = now;
  for (auto level : {TtlScope::Level::kServer, TtlScope::Level::kDatabase,
                     TtlScope::Level::kCollection, TtlScope::Level::kRule}) {
    scope.level = level;
    auto it = s.pauses.find(ScopeKey(scope));
    if (it == s.pauses.end()) continue;
    until = std::max(until, it->second.until.value_or(Instant{INT64_MAX}));
  }
  return until;
}

Instant TtlControls::MayReapFrom(const TtlRule& rule, Instant now) const {
  if (!any_rules_.load(std::memory_order_acquire)) return now;
  StatePtr s;
  const std::string identity = RuleIdentity(rule), key = RuleKey(rule.coll->uuid, identity);
  {
    std::lock_guard l(mutex_);
    if (evaluating_.contains(key)) return {INT64_MAX};
    s = state_;
  }
  if (s->restored || s->guards.contains(key)) return {INT64_MAX};
  return PausedUntil(*s, *rule.coll, identity, now);
}

bool TtlControls::PausedAbove(const TtlScope& scope, Instant now) const {
  StatePtr s = Get();
  for (const auto& [key, p] : s->pauses)
    if (p.scope.level < scope.level && Within(scope, p.scope) && !Ended(p.until, now)) return true;
  return false;
}

std::optional<Instant> TtlControls::HeldUntil(const CollectionInfo& coll, BsonView doc,
                                              Instant now) const {
  if (!MayBeHeld(coll)) return {};
  StatePtr s = Get();
  std::optional<Instant> until;
  for (const TtlHold& h : s->holds) {
    if (h.uuid != coll.uuid || Ended(h.until, now) || !h.matches->Matches(doc)) continue;
    const Instant end = h.until.value_or(Instant{INT64_MAX});
    if (!until || end.millis > until->millis) until = end;
  }
  // A filter that was stopped says no: what may be held stays.
  Operation* const op = FilteringFor::Asked();
  if (!until && op != nullptr && !op->CheckInterruptNow()) return Instant{INT64_MAX};
  return until;
}

bool TtlControls::HasHolds(const CollectionInfo& coll) const {
  if (!MayBeHeld(coll)) return false;
  StatePtr s = Get();
  return std::any_of(s->holds.begin(), s->holds.end(),
                     [&](const TtlHold& h) { return h.uuid == coll.uuid; });
}

Instant TtlControls::HoldEnds(const CollectionInfo& coll, Instant now) const {
  Instant end{INT64_MAX};
  if (!MayBeHeld(coll)) return end;
  StatePtr s = Get();
  for (const TtlHold& h : s->holds)
    if (h.uuid == coll.uuid && h.until && !Ended(h.until, now)) end = std::min(end, *h.until);
  return end;
}

std::vector<TtlPause> TtlControls::Pauses(Instant now) const {
  std::vector<TtlPause> out;
  StatePtr s = Get();
  for (const auto& [key, p] : s->pauses)
    if (!Ended(p.until, now)) out.push_back(p);
  return out;
}

std::vector<TtlHold> TtlControls::Holds(Instant now) const {
  std::vector<TtlHold> out;
  StatePtr s = Get();
  for (const TtlHold& h : s->holds)
    if (!Ended(h.until, now)) out.push_back(h);
  return out;
}

std::vector<TtlGuardHold> TtlControls::GuardHolds() const {
  std::vector<TtlGuardHold> out;
  StatePtr s = Get();
  for (const auto& [key, g] : s->guards) out.push_back(g);
  return out;
}

std::optional<TtlGuardHold> TtlControls::GuardHoldOf(const TtlRule& rule) const {
  StatePtr s = Get();
  auto it = s->guards.find(RuleKey(rule.coll->uuid, RuleIdentity(rule)));
  return it == s->guards.end() ? std::nullopt : std::optional(it->second);
}

std::optional<TtlRestoreHold> TtlControls::RestoreHold() const { return Get()->restored; }

bool RemovalHeld(const ExpiryPolicy& policy) {
  const auto* controls = dynamic_cast<const TtlControls*>(&policy);
  return controls != nullptr && controls->RestoreHold().has_value();
}

Result<void> TtlControls::HoldRestored(Operation& op, TtlRestoreHold hold) {
  return Change(op, [&](State& s) {
    s.restored = hold;
    return true;
  });
}

Result<std::optional<TtlRestoreHold>> TtlControls::ReleaseRestored(Operation& op) {
  std::optional<TtlRestoreHold> was;
  MAYFLY_TRY(Change(op, [&](State& s) {
    was = std::exchange(s.restored, std::nullopt);
    return was.has_value();
  }));
  return was;
}

Result<void> TtlControls::Pause(Operation& op, TtlPause pause) {
  bool room = true;
  MAYFLY_TRY(Change(op, [&](State& s) {
    s.pauses[ScopeKey(pause.scope)] = pause;
    size_t bytes = 0;
    for (const auto& [key, p] : s.pauses)
      if (!Ended(p.until, op.now)) bytes += kEntry + p.scope.db.size() + p.scope.rule.size();
    return room = bytes <= kMaxPauseBytes;
  }));
  if (room) return Ok();
  return Error{ErrorCode::kExceededMemoryLimit,
               "there are too many TTL pauses: resume some, or pause a whole database"};
}

Result<int> TtlControls::Resume(Operation& op, const TtlScope& scope) {
  int n = 0;
  MAYFLY_TRY(Change(op, [&](State& s) {
    n = static_cast<int>(
        std::erase_if(s.pauses, [&](auto& p) { return Within(p.second.scope, scope); }));
    return n > 0;
  }));
  return n;
}

Result<void> TtlControls::Hold(Operation& op, TtlHold hold) {
  bool room = true;
  MAYFLY_TRY(Change(op, [&](State& s) {
    s.holds.push_back(hold);
    size_t bytes = 0;
    for (const TtlHold& h : s.holds)
      if (!Ended(h.until, op.now) && storage_.catalog().FindByUuid(h.uuid))
        bytes += kEntry + h.filter.view().size() + h.reason.size();
    return room = bytes <= kMaxHoldBytes;
  }));
  if (room) return Ok();
  return Error{ErrorCode::kExceededMemoryLimit,
               "the filters and reasons of all holds of the server would take more than " +
                   std::to_string(kMaxHoldBytes) + " bytes: release some, or use shorter filters"};
}

Result<bool> TtlControls::ReleaseHold(Operation& op, const Uuid& uuid, std::string_view id,
                                      TtlHold* was) {
  bool found = false;
  MAYFLY_TRY(Change(op, [&](State& s) {
    auto it = std::find_if(s.holds.begin(), s.holds.end(),
                           [&](const TtlHold& h) { return h.uuid == uuid && h.id == id; });
    found = it != s.holds.end();
    if (!found) return false;
    *was = *it;
    s.holds.erase(it);
    return true;
  }));
  return found;
}

Result<void> TtlControls::HoldByGuard(Operation& op, TtlGuardHold hold) {
  return Change(op, [&](State& s) {
    s.guards[RuleKey(hold.uuid, hold.rule)] = hold;
    return true;
  });
}

Result<std::vector<TtlGuardHold>> TtlControls::ReleaseGuard(Operation& op, const Uuid& uuid,
                                                            std::string_view rule) {
  std::vector<TtlGuardHold> released;
  MAYFLY_TRY(Change(op, [&](State& s) {
    for (const auto& [key, g] : s.guards)
      if (g.uuid == uuid && (rule.empty() || g.rule == rule)) released.push_back(g);
    for (const TtlGuardHold& g : released) s.guards.erase(RuleKey(g.uuid, g.rule));
    return !released.empty();
  }));
  return released;
}

Result<void> TtlControls::Forget(Operation& op, const Uuid& uuid,
                                 const std::vector<std::string>& rules) {
  auto named = [&](std::string_view rule) {
    return std::find(rules.begin(), rules.end(), rule) != rules.end();
  };
  return Change(op, [&](State& s) {
    size_t n = std::erase_if(s.pauses, [&](auto& p) {
      return p.second.scope.level == TtlScope::Level::kRule && p.second.scope.uuid == uuid &&
             named(p.second.scope.rule);
    });
    n += std::erase_if(s.guards,
                       [&](auto& g) { return g.second.uuid == uuid && named(g.second.rule); });
    return n > 0;
  });
}

Result<void> TtlControls::ForgetCollection(Operation& op, const Uuid& uuid) {
  return Change(op, [&](State& s) {
    size_t n = std::erase_if(s.pauses, [&](auto& p) {
      return p.second.scope.level >= TtlScope::Level::kCollection && p.second.scope.uuid == uuid;
    });
    n += std::erase_if(s.guards, [&](auto& g) { return g.second.uuid == uuid; });
    n += std::erase_if(s.holds, [&](auto& h) { return h.uuid == uuid; });
    return n > 0;
  });
}

Result<void> TtlControls::CarryOver(Operation& op, const Uuid& from, const Uuid& to,
                                    std::string_view db,
                                    const std::function<Result<void>()>& replace) {
  std::lock_guard changing(change_mutex_);
  const StatePtr was = Get();
  auto both = std::make_shared<State>(*was), after = std::make_shared<State>(*was);
  bool any = false;
  for (const auto& [key, p] : was->pauses) {
    if (p.scope.level < TtlScope::Level::kCollection || p.scope.uuid != from) continue;
    any = true;
    TtlPause copy = p;
    copy.scope.uuid = to;
    copy.scope.db = db;
    after->pauses.erase(key);
    after->pauses[ScopeKey(copy.scope)] = both->pauses[ScopeKey(copy.scope)] = copy;
  }
  for (TtlHold& h : after->holds) {
    if (h.uuid != from) continue;
    any = true;
    h.uuid = to;
    h.db = db;
    both->holds.push_back(h);
  }
  for (const auto& [key, g] : was->guards) {
    if (g.uuid != from) continue;
    any = true;
    TtlGuardHold copy = g;
    copy.uuid = to;
    copy.db = db;
    after->guards.erase(key);
    after->guards[RuleKey(to, g.rule)] = both->guards[RuleKey(to, g.rule)] = copy;
  }
  if (!any) return replace();
  MAYFLY_TRY(Write(op, std::move(both)));
  Result<void> replaced = replace();
  // If this write fails, the next change removes what the row still says about the collection that
  // is gone.
  Result<void> cleaned = Write(op, replaced ? std::move(after) : std::make_shared<State>(*was));
  return replaced ? cleaned : replaced;
}

TtlControls::Evaluation::Evaluation(TtlControls& controls, const Uuid& uuid,
                                    std::vector<std::string> rules)
    : controls_(controls) {
  std::lock_guard l(controls_.mutex_);
  for (const std::string& rule : rules) {
    keys_.push_back(RuleKey(uuid, rule));
    controls_.evaluating_.insert(keys_.back());
  }
  if (!keys_.empty()) controls_.any_rules_ = true;
}

TtlControls::Evaluation::~Evaluation() {
  if (keys_.empty()) return;
  {
    std::lock_guard l(controls_.mutex_);
    for (const std::string& key : keys_)
      controls_.evaluating_.erase(controls_.evaluating_.find(key));
    controls_.any_rules_ = controls_.state_->KeepsRules() || !controls_.evaluating_.empty();
  }
  if (controls_.on_change) controls_.on_change();
}

}  // namespace mayfly
