#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "protocol/bson_view.h"
#include "protocol/error.h"
#include "storage/catalog/catalog_types.h"

// clang-format off
/// Rows of Keyspace::kCatalog that describe collections and what is left to do for them. The same grammar is in
/// docs/on-disk-format.md.
///
///   "collection/" collection:be32   val := BSON, see EncodeCollectionRow
///   "next_id"                       val := le32: the lowest collection or index id not yet given out
///   "next_local_id"                 val := le32: likewise for collections that are not replicated
///   "garbage/" kind:u8 id:be32      val := BSON {ns, keyspace}: keys that start with this id are to be removed; written in the
///                                   batch that made them unreachable. kind := 1 records of a collection | 2 entries of an index
///   "build/" index:be32             val := BSON {indexes: [id …], position: binary}: the build of these indexes (the first of
///                                   them names the row) has covered the records up to this record key
///   "setting/" name                 val := any bytes. Names that begin with local/ are not replicated
///   "setting/databaseExpiry/" db    val := le64: maxTTL of the database in seconds
///   "setting/ttl/controls"          ttl/ttl_controls.h
///   "setting/ttl.clock"             ttl/clock_guard.cc; not replicated
///   "setting/rwConcernDefaults"     server/dispatch/replication_gate.h
///   "setting/clusterParameter/" …   server/dispatch/cluster_parameters.h
///   "setting/local/oplogBytes"      val := be64: replSetResizeOplog's size
///   "setting/local/openedAsStandalone"   val := "1" if a member's directory was opened without --replSet since, else "0"
///   "replication/applied"           val := ts:le64 wall:le64 term:le64: the newest record of the log that was applied
///   "txn/" …                        storage/write/session_row.h
///
/// collection row := {uuid: binary(4), db, name, options: {…},
///                    capped: bool, cappedBytes: int64, cappedDocuments: int64,       if capped
///                    clusteredIndexName: string,                                     if clustered
///                    expireAfterSeconds: int64,                                      if set
///                    expiry: {field: string, maxTTL: int64, preserve: bool,
///                             recoverSeconds: int64},                                if it has one
///                    viewOn: string, pipeline: [ … ],                                if a view
///                    validator: {…}, validate: bool, warnOnly: bool, moderate: bool, if there is one
///                    indexes: [index …]}
/// index          := {id: int32, name, key: {…}, keyspace: int32, building: bool,
///                    unique, sparse, hidden, prepareUnique: true,                    if so
///                    replaces: int32,                                                if it is to take that index's place
///                    expireAfterSeconds: int32, partialFilter: {…}, extra: {…},
///                    expireReads: int32 (1 lazy, 2 exact)}                           if there is one
// clang-format on
namespace mayfly {

inline constexpr std::string_view kCollectionPrefix = "collection/";
inline constexpr std::string_view kNextIdKey = "next_id";
inline constexpr std::string_view kNextLocalIdKey = "next_local_id";
inline constexpr std::string_view kGarbagePrefix = "garbage/";
inline constexpr std::string_view kBuildPrefix = "build/";
inline constexpr std::string_view kSettingPrefix = "setting/";
inline constexpr std::string_view kDatabaseExpiryPrefix = "databaseExpiry/";
/// The setting with a database's maxTTL: le64 seconds.
std::string DatabaseExpiryKey(std::string_view db);

/// The first string behind all that start with `prefix` (whose last byte is not 0xFF).
std::string PrefixEnd(std::string_view prefix);

/// The row of one collection or view, with its indexes; counters and multikey marks have rows of
/// their own.
std::string CollectionRowKey(uint32_t id);
BsonDocument EncodeCollectionRow(const CollectionInfo& coll);
/// Everything but counters and multikey marks. Compiles filters with `compile` (may be null when
/// there are none); a validator that it refuses, because an earlier version took it, lets no
/// document through. Errors: InternalError 1 when the row cannot be read, or what the filter
/// compiler says of an index.
Result<std::shared_ptr<CollectionInfo>> DecodeCollectionRow(std::string_view key,
                                                            std::string_view value,
                                                            const FilterCompiler& compile,
                                                            Instant now);

/// What a "garbage/" row still has to remove: records of a collection, entries of an index.
enum class GarbageKind : uint8_t { kCollection = 1, kIndex = 2 };
/// A "garbage/" row.
struct GarbageRow {
  GarbageKind kind = GarbageKind::kCollection;
  uint32_t id = 0;
  Keyspace keyspace = Keyspace::kRecords;
  std::string ns;  ///< for the log
};
/// Errors of DecodeGarbageRow: InternalError 1 for an unknown kind, another keyspace than the kind
/// has, or an id of 0: removing by such a row could take what is still in use.
std::string GarbageRowKey(GarbageKind kind, uint32_t id);
BsonDocument EncodeGarbageRow(const GarbageRow& row);
Result<GarbageRow> DecodeGarbageRow(std::string_view key, std::string_view value);

/// A "build/" row.
struct BuildRow {
  std::vector<uint32_t> indexes;
  std::string position;  ///< full record key of the last record covered
};
/// `first_index`: the first of BuildRow::indexes, whose id names the row. Errors of DecodeBuildRow:
/// InternalError 1 when the row cannot be read.
std::string BuildRowKey(uint32_t first_index);
BsonDocument EncodeBuildRow(const BuildRow& row);
Result<BuildRow> DecodeBuildRow(std::string_view value);

}  // namespace mayfly
