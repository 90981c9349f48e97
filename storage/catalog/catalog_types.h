#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "protocol/system_names.h"
#include "storage/catalog/collection_kind.h"
#include "storage/catalog/index_kind.h"
#include "storage/expiry/expiry_state.h"
#include "storage/expiry/record_date.h"
#include "storage/kv/kv.h"

namespace mayfly {

class BsonBuilder;
using Uuid = std::array<uint8_t, 16>;
/// Version 4 (RFC 4122), of the system's random numbers.
Uuid RandomUuid();
/// The UUID in a binary value of subtype 4 with 16 bytes; empty for all others.
std::optional<Uuid> UuidOf(BsonValue value);

/// An atomic that copies by value, so that what holds it can be copied.
template <class T>
struct CopyableAtomic : std::atomic<T> {
  using std::atomic<T>::atomic;
  using std::atomic<T>::operator=;
  CopyableAtomic(const CopyableAtomic& o) : std::atomic<T>(o.load(std::memory_order_relaxed)) {}
  CopyableAtomic& operator=(const CopyableAtomic& o) {
    this->store(o.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return *this;
  }
};

/// A yes or no that is worked out when first asked for and forgotten by copies.
struct CachedFlag : std::atomic<int8_t> {
  CachedFlag() : std::atomic<int8_t>(-1) {}
  CachedFlag(const CachedFlag&) : std::atomic<int8_t>(-1) {}
  CachedFlag& operator=(const CachedFlag&) {
    store(-1, std::memory_order_relaxed);
    return *this;
  }
};

/// A mark that copies do not take over.
struct OwnMark : std::atomic<bool> {
  OwnMark() : std::atomic<bool>(false) {}
  OwnMark(const OwnMark&) : std::atomic<bool>(false) {}
  OwnMark& operator=(const OwnMark&) { return *this; }
};

/// A compiled filter over one document: partial indexes and validators. Made by the FilterCompiler
/// that the layer above gives to Storage at open (storage itself does not know what a filter
/// means). Immutable; any thread.
class RecordFilter {
 public:
  virtual ~RecordFilter() = default;
  /// False also when the evaluation was interrupted (out of time, killed): callers must check the
  /// operation before they act on a false.
  virtual bool Matches(BsonView doc) const = 0;
};

/// Compiles a partial index filter or a validator. `for_index`: refuse operators that partial
/// indexes cannot have (CannotCreateIndex 67).
using FilterCompiler =
    std::function<Result<std::shared_ptr<const RecordFilter>>(BsonView filter, bool for_index)>;

/// Whether an index can answer queries. Writers maintain it in both states.
enum class IndexState : uint8_t { kBuilding = 0, kReady = 1 };

/// Whether a TTL index hides what is past its deadline before it is removed (docs/expiry.md, "Exact
/// reads of TTL indexes").
enum class ExpireReads : uint8_t { kDefault = 0, kLazy = 1, kExact = 2 };

/// One field of an index's key pattern.
struct IndexField {
  std::string path;  ///< dotted
  bool descending = false;
  std::string special;  ///< the kind's name where the key says one: "hashed"; empty for 1 and -1
};

/// One index as the catalog has it. Immutable except for the atomics; shared by whoever uses it.
struct IndexInfo {
  uint32_t id = 0;  ///< prefix of its keys; never reused
  std::string name;
  BsonDocument key;  ///< as given: {a: 1, "b.c": -1}
  std::vector<IndexField> fields;
  const IndexKind* kind = &OrdinaryIndex();  ///< KindOfKey(fields); a row of a table
  uint64_t measured = 0;                     ///< MeasuredFields
  bool unique = false, sparse = false, hidden = false;
  std::optional<int32_t> expire_after_seconds;  ///< a TTL index when set
  bool expiry_repaired = false;                 ///< what was stored for it could not be used
  BsonDocument partial_filter;                  ///< empty document: none (see has_partial_filter)
  bool has_partial_filter = false;
  std::shared_ptr<const RecordFilter> filter;  ///< compiled partial_filter
  BsonDocument extra;  ///< other options kept as given (collation, expiry options …)
  Keyspace keyspace =
      Keyspace::kIndexes;  ///< TTL indexes are created in kExpiry and stay where they are
  IndexState state = IndexState::kReady;
  bool prepare_unique = false;
  /// While it is being built to take the place of another index of the same name (made unique by
  /// collMod): that one's id.
  uint32_t replaces = 0;
  /// Bit i: field i has met an array on its path. Only ever set; persisted with the write that set
  /// it.
  mutable CopyableAtomic<uint64_t> multikey{0};
  /// $indexStats: uses since start-up, and since when (ms).
  mutable CopyableAtomic<int64_t> accesses{0};
  int64_t accesses_since = 0;
  ExpireReads expire_reads = ExpireReads::kDefault;  ///< default: as ttlReadFilter says
  /// How far a TTL index has been reaped. One object for all versions of the definition.
  std::shared_ptr<ExpiryState> expiry = std::make_shared<ExpiryState>();

  bool is_id() const { return name == "_id_"; }
  /// As listIndexes shows it: 1 where that was asked for (it is among `extra`), with no other
  /// meaning.
  int32_t version() const { return extra.view().Has("v") ? 1 : 2; }
  /// The options of `extra` but for the version, which stands first in a specification.
  void AppendExtra(BsonBuilder& out) const;
  bool is_multikey() const { return multikey.load(std::memory_order_relaxed) != 0; }
  /// An index on measurements of a time series that has met arrays there, and whose entries do not
  /// say what the buckets hold. Only indexes that an earlier version made meet any.
  bool HasMeasuredArrays() const {
    return (multikey.load(std::memory_order_relaxed) & measured) != 0;
  }
};
using IndexInfoPtr = std::shared_ptr<const IndexInfo>;

/// Counters of one collection, kept exact across crashes by the committer.
struct CollectionCounters {
  std::atomic<int64_t> documents{0};
  std::atomic<int64_t> bytes{0};           ///< sum of BSON sizes
  std::atomic<int64_t> first_sequence{1};  ///< capped: no record has a smaller one; in memory only
  std::atomic<int64_t> last_sequence{0};   ///< capped: the newest insertion number
  /// When a read on an io thread last met a document that it should not have read there (Instant);
  /// 0: never. In memory only.
  std::atomic<int64_t> met_large{0};
};

/// The collection option `expiry` (docs/expiry.md, "Per-document expiry"): how its documents get
/// deadlines of their own.
struct ExpiryOptions {
  std::string field;            ///< documents say their own expiration here; empty: they do not
  int64_t max_ttl = 0;          ///< seconds: default and cap; 0: the database's
  bool preserve = false;        ///< onUpdate: "preserve"
  int64_t recover_seconds = 0;  ///< past its deadline a document is hidden, and kept so long
  bool set() const { return !field.empty() || max_ttl != 0 || preserve || recover_seconds != 0; }
};
/// The options of a time-series collection and its buckets. Immutable, except the span and
/// `suspended`, which only the buckets' definition has.
struct SeriesOptions {
  std::string time_field;
  std::string meta_field;   ///< empty: the points have none
  std::string granularity;  ///< empty: the span was given in seconds
  /// How much time a bucket may cover, and to which multiple its lower bound is rounded down.
  int32_t max_span_seconds = 3600, rounding_seconds = 60;
  /// There is, or was, a point whose date suspends all expiry (docs/expiry.md S1).
  bool suspended = false;
  bool operator==(const SeriesOptions&) const = default;
};
/// What the buckets of the time series `name` are called.
std::string BucketsName(std::string_view name);
/// Ids of local collections begin here, so that ids of replicated ones are the same on every
/// member.
inline constexpr uint32_t kFirstLocalId = 0x8000'0000;
/// Whether the collection of this name is each member's own.
inline bool IsUnreplicated(std::string_view db, std::string_view collection) {
  return db == "local" || collection == kProfileCollection;
}

/// One collection (or view) as the catalog has it. Immutable: a change makes a new one, so an
/// operation that holds the pointer sees one definition throughout.
struct CollectionInfo {
  uint32_t id = 0;  ///< prefix of its record keys; never reused
  Uuid uuid{};
  std::string db, name;
  std::string ns;        ///< "db.name"
  BsonDocument options;  ///< as listCollections shows them
  CollectionKind kind = CollectionKind::kOrdinary;
  int64_t capped_bytes = 0, capped_documents = 0;  ///< 0 documents: no limit
  std::string clustered_index_name;
  std::optional<int64_t> expire_after_seconds;  ///< of a clustered collection
  std::shared_ptr<ExpiryState> expiry = std::make_shared<ExpiryState>();  ///< likewise
  ExpiryOptions expiry_options;
  std::shared_ptr<ExpiryState> document_expiry =
      std::make_shared<ExpiryState>();  ///< of the documents' own deadlines
  /// The database's default and cap in seconds (setDatabaseExpiry); 0: none. One for all its
  /// collections. Null only in tests that make a definition by hand.
  std::shared_ptr<std::atomic<int64_t>> database_max_ttl;
  /// Each member of a replica set has its own: `local` and profiles. Ids of these begin at
  /// kFirstLocalId.
  bool unreplicated = false;
  /// The server fills it to replace another collection ($out, convertToCapped). Until then its
  /// documents do not expire, and if the process ends before, it is dropped. A rename ends this
  /// state.
  bool temporary = false;
  /// The oplog, the rows of sessions and of views: where the documents come from. Null otherwise.
  std::shared_ptr<class RecordSource> source;
  std::string source_key;  ///< of type timestamp: the documents are in its order; empty: none
  std::shared_ptr<const SeriesOptions> series;  ///< kTimeSeries and kBuckets; null otherwise
  std::string view_on;                          ///< same database
  BsonDocument view_pipeline;                   ///< array bytes
  BsonDocument validator;                       ///< empty: none
  std::shared_ptr<const RecordFilter> validator_filter;
  /// validationAction: "warn". "errorAndLog" refuses as "error" does; only the options name it.
  bool validation_warn_only = false;
  bool validation_moderate =
      false;  ///< validationLevel: "moderate"; "off" leaves validator_filter null
  /// `changeStreamPreAndPostImages`: the log carries what a document was before it was changed or
  /// removed.
  bool pre_images = false;
  /// The `_id_` index is implicit (the record key is its key) and not in here, except on capped
  /// collections.
  std::vector<IndexInfoPtr> indexes;
  std::shared_ptr<CollectionCounters> counters;

  /// The catalog has replaced or dropped this version. Set before anything that it names leaves the
  /// store.
  mutable OwnMark superseded;
  const CollectionTraits& traits() const { return TraitsOf(kind); }
  /// A view or a time series: reads run its pipeline.
  bool is_view() const { return Is<&CollectionTraits::pipeline>(); }
  bool is_series() const { return kind == CollectionKind::kTimeSeries; }
  bool is_buckets() const { return kind == CollectionKind::kBuckets; }
  /// From the date that a rule of expiry counts from to the end of the removed range: a bucket
  /// expires with its last possible point.
  int64_t RuleSpanSeconds() const { return is_buckets() ? series->max_span_seconds : 0; }
  /// What its own rule of expiry counts from.
  RecordDates record_dates() const {
    return is_buckets() ? RecordDates::kBuckets : RecordDates::kId;
  }
  /// Whether nothing expires here, whatever the rules say: RuleSpanSeconds would be no bound.
  bool ExpirySuspended() const { return is_buckets() && series->suspended; }
  bool capped() const { return Is<&CollectionTraits::capped>(); }
  bool clustered() const { return Is<&CollectionTraits::clustered>(); }
  /// The indexes that it shows; one of them may be none of its own.
  int ShownIndexes() const {
    return static_cast<int>(indexes.size()) + (traits().implicit_id_index ? 1 : 0);
  }

  mutable CachedFlag has_ttl_rules;
  /// Whether a TTL index or the clustered collection's own rule expires documents. Hot.
  bool HasTtlRules() const {
    int8_t known = has_ttl_rules.load(std::memory_order_relaxed);
    if (known < 0) [[unlikely]] {
      known = clustered() && expire_after_seconds;
      for (auto& i : indexes) known |= i->expire_after_seconds.has_value();
      has_ttl_rules.store(known, std::memory_order_relaxed);
    }
    return known != 0;
  }

  /// By name; null if none.
  IndexInfoPtr FindIndex(std::string_view index_name) const {
    for (auto& i : indexes)
      if (i->name == index_name) return i;
    return nullptr;
  }

 private:
  template <bool CollectionTraits::*kMember>
  bool Is() const {
    constexpr uint8_t kKinds = KindsWith(kMember);
    return (kKinds >> static_cast<uint8_t>(kind) & 1) != 0;
  }
};
using CollectionInfoPtr = std::shared_ptr<const CollectionInfo>;

/// Ok, or the error that MongoDB answers where a collection of this kind cannot be used so:
/// CommandNotSupportedOnView 166, InvalidNamespace 73 and IllegalOperation 20 for the log. Hot.
inline Result<void> CheckUse(const CollectionInfo& coll, CollectionUse use) {
  if (coll.kind == CollectionKind::kOrdinary && !coll.unreplicated) [[likely]]
    return Ok();
  return RefuseUse(coll, use);
}

/// The options of a time series as `create` takes them and listCollections shows them:
/// `timeseries`, `expireAfterSeconds` if points expire, and `onExpire`. REQUIRES: buckets.
void AppendSeriesOptions(const CollectionInfo& buckets, BsonBuilder& out);

/// The error for bytes that cannot be a record.
Error DamagedRecord(const CollectionInfo& coll);
/// Likewise an entry of an index.
Error DamagedEntry(const CollectionInfo& coll, const IndexInfo& index);

/// Whether a collection's options say `changeStreamPreAndPostImages: {enabled: true}`:
/// CollectionInfo::pre_images.
bool KeepsPreImages(BsonView options);

/// Bit i: field i of an index of this collection is the least or greatest value of a measurement
/// (`control.min.v`, `control.max.v`; the time is none). 0 unless these are buckets.
uint64_t MeasuredFields(const CollectionInfo& coll, std::span<const IndexField> fields);
/// The measurement of such a field: `v`.
std::string_view MeasuredField(const IndexField& field);

}  // namespace mayfly
