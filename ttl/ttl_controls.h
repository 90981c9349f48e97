#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "storage/expiry/expiry_policy.h"
#include "storage/storage.h"
#include "ttl/ttl_rule.h"

namespace mayfly {

/// The setting of the catalog that keeps all of this: replicated.
inline constexpr std::string_view kTtlControlsSetting = "ttl/controls";

/// The scope of a pause or of its end: all rules of the server, of a database, of a collection, or
/// one rule.
struct TtlScope {
  enum class Level : uint8_t { kServer = 0, kDatabase = 1, kCollection = 2, kRule = 3 };
  Level level = Level::kServer;
  std::string db;    ///< from kDatabase on
  Uuid uuid{};       ///< from kCollection on: a renamed collection keeps what it has
  std::string rule;  ///< kRule: RuleIdentity
};

/// Names a rule within its collection: an index's name, "$clustered" or "$document".
std::string RuleIdentity(const TtlRule& rule);
/// TtlRule::RuleName of the rule so named.
std::string_view RuleNameOf(std::string_view identity);

/// One ttlPause; without `until` it lasts until ttlResume.
struct TtlPause {
  TtlScope scope;
  Instant since{0};
  std::optional<Instant> until;
};

/// Documents of one collection that neither expire nor hide.
struct TtlHold {
  std::string id;  ///< 12 bytes of an ObjectId
  std::string db;
  Uuid uuid{};
  BsonDocument filter;
  std::shared_ptr<const RecordFilter> matches;
  Instant since{0};
  std::optional<Instant> until;
  std::string reason;
};

/// A rule that the guard keeps from acting until ttlRelease.
struct TtlGuardHold {
  Uuid uuid{};
  std::string db, rule;
  Instant since{0};
  int64_t would_expire = 0;
  double fraction = 0;
};

/// The data came from a backup: nothing that is past its deadline is removed until an operator
/// allows it. Reads do not change: documents past their own deadlines stay absent.
struct TtlRestoreHold {
  std::string backup;      ///< its id
  Instant backup_time{0};  ///< when it was made
  Instant since{0};        ///< when it was restored
  /// The time of its data: later than backup_time if an archived log was replayed.
  Instant data_time{0};
};
/// Whether the policy is TtlControls with such a hold: asked by writers and by `compact`, once they
/// have found something past its deadline.
bool RemovalHeld(const ExpiryPolicy& policy);

/// "active", "paused" or "held" of a rule that could work.
enum class TtlStanding : uint8_t { kActive, kPaused, kHeld };
std::string_view TtlStandingName(TtlStanding s);

/// Pauses, holds and the guard's decisions: what keeps rules from acting (docs/expiry-control.md).
/// Kept in one catalog row (setting "ttl/controls"), written before a change takes effect, so that
/// it survives a crash at any moment whole. A control with an end stops to count when the clock
/// reaches it, and leaves the row with the next change. A rule that is paused or held does not hide
/// documents either; per-document deadlines stay exact while only their removal is paused.
///
///   row   := BSON {v: 1 | 2, pauses: [pause …], holds: [hold …], guards: [guard …]}
///            2: with restored: {backup, backupTime, dataTime, since: date}: TtlRestoreHold, which
///            a version that reads only 1 would not keep
///   pause := {level: 0…3, db, uuid: binary(4), rule, since: date, until: date if there is one}
///   hold  := {id: objectId, db, uuid, filter: {…}, since, until, reason}
///   guard := {db, uuid, rule, since, wouldExpire: int64, fraction: double}
///
/// Threads: any. Questions (StateOf, HeldUntil …) neither block nor allocate when nothing is set;
/// changes block for one commit.
class TtlControls final : public ExpiryPolicy {
 public:
  /// The most bytes of the row that all holds, and all pauses, may take, with kEntry for each. The
  /// rest is for the guard's decisions, and for collections that take another's place.
  static constexpr size_t kMaxHoldBytes = 8 << 20;
  static constexpr size_t kMaxPauseBytes = 2 << 20;
  static constexpr size_t kEntry = 160;
  explicit TtlControls(Storage& storage);
  /// Reads the row, without controls of collections and indexes that are gone. At start-up, and
  /// when another node has written it. Errors: UnsupportedFormat 12, the store's.
  Result<void> Load(Operation& op);
  /// Runs after each change (not when something ends: the reaper knows when that is); any thread,
  /// must not block. Set before the first client.
  std::function<void()> on_change;

  // --- questions
  TtlStanding StateOf(const TtlRule& rule, Instant now) const;
  /// The time from which the reaper may work on the rule. At or before `now`: yes; INT64_MAX: not
  /// before something changes.
  Instant MayReapFrom(const TtlRule& rule, Instant now) const;
  /// Nothing: not held. INT64_MAX: held until it is released, or the operation of FilteringFor is
  /// to stop before it is known.
  std::optional<Instant> HeldUntil(const CollectionInfo& coll, BsonView doc, Instant now) const;
  bool Held(const CollectionInfo& coll, BsonView doc, Instant now) const override {
    return MayBeHeld(coll) && HeldUntil(coll, doc, now).has_value();
  }
  bool HasHolds() const override { return any_holds_.load(std::memory_order_acquire); }
  bool RuleActive(const CollectionInfo& coll, const IndexInfo* index) const override;
  Result<std::optional<Instant>> ArchiveDeadline(const CollectionInfo& into, BsonView doc,
                                                 Instant now) const override;
  /// Whether a hold is set on this collection, by its UUID. One whose time is over counts until it
  /// is taken out.
  bool HasHolds(const CollectionInfo& coll) const override;
  /// When the first hold of the collection ends by itself; INT64_MAX: none does.
  Instant HoldEnds(const CollectionInfo& coll, Instant now) const;
  /// What is set and has not ended.
  std::vector<TtlPause> Pauses(Instant now) const;
  std::vector<TtlHold> Holds(Instant now) const;
  std::vector<TtlGuardHold> GuardHolds() const;
  std::optional<TtlGuardHold> GuardHoldOf(const TtlRule& rule) const;
  /// None: the data was not restored, or its hold was released.
  std::optional<TtlRestoreHold> RestoreHold() const;

  // --- changes; all or nothing
  /// Errors: ExceededMemoryLimit 146 beyond kMaxPauseBytes.
  Result<void> Pause(Operation& op, TtlPause pause);
  /// Ends the pauses of this scope and of scopes inside it; returns their number.
  Result<int> Resume(Operation& op, const TtlScope& scope);
  /// Whether a wider pause covers the scope.
  bool PausedAbove(const TtlScope& scope, Instant now) const;
  /// Errors: ExceededMemoryLimit 146 beyond kMaxHoldBytes.
  Result<void> Hold(Operation& op, TtlHold hold);
  /// False when there is no such hold on the collection.
  Result<bool> ReleaseHold(Operation& op, const Uuid& uuid, std::string_view id, TtlHold* was);
  Result<void> HoldByGuard(Operation& op, TtlGuardHold hold);
  /// Releases one rule, or all of the collection when `rule` is empty; returns the released holds.
  Result<std::vector<TtlGuardHold>> ReleaseGuard(Operation& op, const Uuid& uuid,
                                                 std::string_view rule);
  Result<void> HoldRestored(Operation& op, TtlRestoreHold hold);
  /// What was released; none if nothing was held.
  Result<std::optional<TtlRestoreHold>> ReleaseRestored(Operation& op);
  /// The rule is gone: its controls go too.
  Result<void> Forget(Operation& op, const Uuid& uuid, const std::vector<std::string>& rules);
  Result<void> ForgetCollection(Operation& op, const Uuid& uuid);
  /// `replace` puts the collection `to` of `db` in place of `from`, which is then gone. The
  /// controls of `from` are set on `to` first, so that no rule acts in between; if `replace` fails,
  /// they stay as they were.
  Result<void> CarryOver(Operation& op, const Uuid& from, const Uuid& to, std::string_view db,
                         const std::function<Result<void>()>& replace);

  /// Keeps a rule from acting while the guard evaluates it; in memory only.
  class Evaluation {
   public:
    Evaluation(TtlControls& controls, const Uuid& uuid, std::vector<std::string> rules);
    ~Evaluation();
    Evaluation(const Evaluation&) = delete;

   private:
    TtlControls& controls_;
    std::vector<std::string> keys_;
  };

 private:
  struct State {
    std::map<std::string, TtlPause> pauses;  ///< by ScopeKey
    std::vector<TtlHold> holds;
    std::map<std::string, TtlGuardHold> guards;  ///< by RuleKey
    std::optional<TtlRestoreHold> restored;
    bool KeepsRules() const { return !pauses.empty() || !guards.empty() || restored.has_value(); }
  };
  using StatePtr = std::shared_ptr<const State>;

  StatePtr Get() const;
  /// False: no hold is on the collection. Takes no lock: collections whose UUIDs fall upon one bit
  /// share it, so that true is only a reason to look.
  bool MayBeHeld(const CollectionInfo& coll) const {
    return any_holds_.load(std::memory_order_acquire) &&
           (held_[HeldBit(coll.uuid) / 64].load(std::memory_order_acquire) >>
                (HeldBit(coll.uuid) % 64) &
            1) != 0;
  }
  static constexpr size_t kHeldBits = 4096;
  static size_t HeldBit(const Uuid& uuid) {
    return (static_cast<size_t>(uuid[0]) << 8 | uuid[1]) % kHeldBits;
  }
  /// Not after `now`: it is not.
  static Instant PausedUntil(const State& s, const CollectionInfo& coll, std::string_view identity,
                             Instant now);
  TtlStanding StateOf(const CollectionInfo& coll, std::string_view identity, Instant now) const;
  /// Writes and publishes what `change` makes of a copy; false from it: nothing changed.
  Result<void> Change(Operation& op, const std::function<bool(State&)>& change);
  Result<void> Write(Operation& op, std::shared_ptr<State> next);
  void Publish(std::shared_ptr<State> next);
  BsonDocument Serialize(const State& s) const;
  Result<State> Parse(BsonView row) const;
  Storage& storage_;
  std::mutex change_mutex_;
  mutable std::mutex mutex_;  ///< of state_ and evaluating_, for a few instructions
  StatePtr state_;
  std::multiset<std::string> evaluating_;
  std::atomic<bool> any_rules_{false}, any_holds_{false};
  /// A bit for each collection with a hold, set before any_holds_ is. A word is stored whole: a
  /// collection that stays held is never seen without its bit.
  std::array<std::atomic<uint64_t>, kHeldBits / 64> held_{};
};

}  // namespace mayfly
