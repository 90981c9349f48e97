#include "protocol/bson_builder.h"
#include "protocol/bson_validate.h"
#include "storage/catalog/catalog_format.h"
#include "storage/catalog/namespace.h"
#include "storage/keys/key_format.h"

namespace mayfly {
namespace {

std::string KeyWithId(std::string_view prefix, uint32_t id) {
  std::string k(prefix);
  AppendBe32(k, id);
  return k;
}

Error Corrupt(std::string_view key, const char* what) {
  std::string printable;
  for (char c : key) printable += c >= 0x20 && c < 0x7F ? c : '?';
  return {ErrorCode::kInternalError, "corrupt catalog row '" + printable + "': " + what};
}

CollectionKind KindOfRow(BsonView row) {
  const BsonValue v = row["capped"];
  const bool capped = v.Is(BsonType::kBool) && v.Bool();
  if (row["series"].IsDocument())
    return row.Has("viewOn") ? CollectionKind::kTimeSeries : CollectionKind::kBuckets;
  if (row.Has("viewOn")) return CollectionKind::kView;
  if (row.Has("clusteredIndexName"))
    return capped ? CollectionKind::kCappedClustered : CollectionKind::kClustered;
  return capped ? CollectionKind::kCapped : CollectionKind::kOrdinary;
}

/// Stands for a validator that an earlier version took and this one does not.
class RefusesAll : public RecordFilter {
 public:
  bool Matches(BsonView) const override { return false; }
};

std::string Text(BsonView row, std::string_view field) {
  BsonValue v = row[field];
  return v.IsString() ? std::string(v.String()) : std::string();
}

bool True(BsonView row, std::string_view field) {
  BsonValue v = row[field];
  return v.Is(BsonType::kBool) && v.Bool();
}

BsonDocument SubDocument(BsonView row, std::string_view field) {
  BsonValue v = row[field];
  return v.IsDocument() || v.IsArray() ? BsonDocument(v.Document()) : BsonDocument();
}

void AppendSeries(const SeriesOptions& s, BsonBuilder b) {
  b.Append("timeField", s.time_field).Append("metaField", s.meta_field);
  b.Append("granularity", s.granularity).Append("maxSpan", s.max_span_seconds);
  b.Append("rounding", s.rounding_seconds).Append("suspended", s.suspended);
}

/// Null: damaged.
std::shared_ptr<const SeriesOptions> DecodeSeries(BsonView b) {
  auto s = std::make_shared<SeriesOptions>();
  s->time_field = Text(b, "timeField");
  s->meta_field = Text(b, "metaField");
  s->granularity = Text(b, "granularity");
  for (auto [field, to] :
       {std::pair("maxSpan", &s->max_span_seconds), std::pair("rounding", &s->rounding_seconds)}) {
    if (!b[field].Is(BsonType::kInt32) || b[field].Int32() <= 0) return nullptr;
    *to = b[field].Int32();
  }
  s->suspended = True(b, "suspended");
  if (s->time_field.empty()) return nullptr;
  return s;
}

void AppendIndex(const IndexInfo& i, BsonBuilder b) {
  b.Append("id", static_cast<int32_t>(i.id)).Append("name", i.name).Append("key", i.key);
  b.Append("keyspace", static_cast<int32_t>(i.keyspace));
  b.Append("building", i.state == IndexState::kBuilding);
  if (i.unique) b.Append("unique", true);
  if (i.sparse) b.Append("sparse", true);
  if (i.hidden) b.Append("hidden", true);
  if (i.prepare_unique) b.Append("prepareUnique", true);
  if (i.replaces) b.Append("replaces", static_cast<int32_t>(i.replaces));
  if (i.expire_after_seconds) b.Append("expireAfterSeconds", *i.expire_after_seconds);
  if (i.has_partial_filter) b.Append("partialFilter", i.partial_filter);
  if (!i.extra.view().empty()) b.Append("extra", i.extra);
  if (i.expire_reads != ExpireReads::kDefault)
    b.Append("expireReads", static_cast<int32_t>(i.expire_reads));
}

Result<std::shared_ptr<IndexInfo>> DecodeIndex(std::string_view row_key, BsonView b,
                                               const FilterCompiler& compile, Instant now) {
  auto i = std::make_shared<IndexInfo>();
  if (!b["id"].Is(BsonType::kInt32) || !b["name"].IsString() || !b["key"].IsDocument() ||
      !b["keyspace"].Is(BsonType::kInt32))
    return Corrupt(row_key, "an index lacks id, name, key or keyspace");
  i->id = static_cast<uint32_t>(b["id"].Int32());
  i->name = Text(b, "name");
  i->key = SubDocument(b, "key");
  MAYFLY_TRY(i->fields, ParseIndexKey(i->key));
  i->kind = &KindOfKey(i->fields);
  int32_t keyspace = b["keyspace"].Int32();
  if (keyspace != static_cast<int32_t>(Keyspace::kIndexes) &&
      keyspace != static_cast<int32_t>(Keyspace::kExpiry))
    return Corrupt(row_key, "an index lies in no index keyspace");
  i->keyspace = static_cast<Keyspace>(keyspace);
  i->state = True(b, "building") ? IndexState::kBuilding : IndexState::kReady;
  i->unique = True(b, "unique");
  i->sparse = True(b, "sparse");
  i->hidden = True(b, "hidden");
  i->prepare_unique = True(b, "prepareUnique");
  if (BsonValue v = b["replaces"]; v.Is(BsonType::kInt32))
    i->replaces = static_cast<uint32_t>(v.Int32());
  if (BsonValue v = b["expireAfterSeconds"]; !v.missing()) {
    // An impossible stored value must not remove everything (docs/expiry.md R22, R23).
    const bool valid = v.Is(BsonType::kInt32) && v.Int32() >= 0;
    i->expire_after_seconds = valid ? v.Int32() : INT32_MAX;
    i->expiry_repaired = !valid;
  }
  if (b["partialFilter"].IsDocument()) {
    i->partial_filter = SubDocument(b, "partialFilter");
    i->has_partial_filter = true;
    if (!compile) return Corrupt(row_key, "a partial index, but no filter compiler is set");
    MAYFLY_TRY(i->filter, compile(i->partial_filter, true));
  }
  i->extra = SubDocument(b, "extra");
  if (BsonValue v = b["expireReads"]; v.Is(BsonType::kInt32)) {
    if (v.Int32() != 1 && v.Int32() != 2) return Corrupt(row_key, "expireReads of another kind");
    i->expire_reads = static_cast<ExpireReads>(v.Int32());
  }
  i->accesses_since = now.millis;
  return i;
}

}  // namespace

std::string PrefixEnd(std::string_view prefix) {
  std::string s(prefix);
  s.back() = static_cast<char>(static_cast<uint8_t>(s.back()) + 1);
  return s;
}

std::string DatabaseExpiryKey(std::string_view db) {
  return std::string(kSettingPrefix).append(kDatabaseExpiryPrefix).append(db);
}

std::string CollectionRowKey(uint32_t id) { return KeyWithId(kCollectionPrefix, id); }

BsonDocument EncodeCollectionRow(const CollectionInfo& c) {
  return BuildBson([&](BsonBuilder& b) {
    b.AppendBinary("uuid", 4, {reinterpret_cast<const char*>(c.uuid.data()), c.uuid.size()});
    b.Append("db", c.db).Append("name", c.name).Append("options", c.options);
    if (c.capped())
      b.Append("capped", true)
          .Append("cappedBytes", c.capped_bytes)
          .Append("cappedDocuments", c.capped_documents);
    if (c.temporary) b.Append("temporary", true);
    if (c.clustered()) b.Append("clusteredIndexName", c.clustered_index_name);
    if (c.expire_after_seconds) b.Append("expireAfterSeconds", *c.expire_after_seconds);
    if (const ExpiryOptions& e = c.expiry_options; e.set()) {
      auto x = b.OpenDocument("expiry");
      x.Append("field", e.field).Append("maxTTL", e.max_ttl).Append("preserve", e.preserve);
      x.Append("recoverSeconds", e.recover_seconds);
    }
    if (c.is_view()) b.Append("viewOn", c.view_on).AppendArray("pipeline", c.view_pipeline);
    if (!c.validator.view().empty()) {
      b.Append("validator", c.validator).Append("validate", c.validator_filter != nullptr);
      b.Append("warnOnly", c.validation_warn_only).Append("moderate", c.validation_moderate);
    }
    if (c.series) AppendSeries(*c.series, b.OpenDocument("series"));
    auto indexes = b.OpenArray("indexes");
    for (auto& i : c.indexes) AppendIndex(*i, indexes.OpenDocument());
  });
}

bool KeepsPreImages(BsonView options) {
  const BsonValue images = options["changeStreamPreAndPostImages"];
  return images.IsDocument() && images.Document()["enabled"].Truthy();
}

Result<std::shared_ptr<CollectionInfo>> DecodeCollectionRow(std::string_view key,
                                                            std::string_view value,
                                                            const FilterCompiler& compile,
                                                            Instant now) {
  if (key.size() != kCollectionPrefix.size() + 4) return Corrupt(key, "key has another length");
  if (!ValidateBson(value, false)) return Corrupt(key, "not BSON");
  BsonView row(value);
  auto c = std::make_shared<CollectionInfo>();
  c->id = LoadBe32(key.data() + kCollectionPrefix.size());
  BsonValue uuid = row["uuid"];
  if (!uuid.Is(BsonType::kBinary) || uuid.BinaryData().size() != 16) return Corrupt(key, "no uuid");
  std::memcpy(c->uuid.data(), uuid.BinaryData().data(), 16);
  c->db = Text(row, "db");
  c->name = Text(row, "name");
  if (c->db.empty() || c->name.empty()) return Corrupt(key, "no name");
  c->ns = JoinNamespace(c->db, c->name);
  c->unreplicated = IsUnreplicated(c->db, c->name);
  c->options = SubDocument(row, "options");
  c->pre_images = KeepsPreImages(c->options);
  c->temporary = True(row, "temporary");
  c->kind = KindOfRow(row);
  if (c->capped()) {
    c->capped_bytes = row["cappedBytes"].NumberAsInt64();
    c->capped_documents = row["cappedDocuments"].NumberAsInt64();
  }
  c->clustered_index_name = Text(row, "clusteredIndexName");
  if (BsonValue v = row["expireAfterSeconds"]; v.Is(BsonType::kInt64))
    c->expire_after_seconds = v.Int64();
  if (row["expiry"].IsDocument()) {
    BsonView e = row["expiry"].Document();
    c->expiry_options.field = Text(e, "field");
    c->expiry_options.max_ttl = e["maxTTL"].NumberAsInt64();
    c->expiry_options.preserve = True(e, "preserve");
    c->expiry_options.recover_seconds = e["recoverSeconds"].NumberAsInt64();
  }
  if (row["series"].IsDocument()) {
    c->series = DecodeSeries(row["series"].Document());
    if (!c->series) return Corrupt(key, "a time series without its options");
  }
  c->view_on = Text(row, "viewOn");
  c->view_pipeline = SubDocument(row, "pipeline");
  c->validator = SubDocument(row, "validator");
  c->validation_warn_only = True(row, "warnOnly");
  c->validation_moderate = True(row, "moderate");
  if (!c->validator.view().empty() && True(row, "validate")) {
    if (!compile) return Corrupt(key, "a validator, but no filter compiler is set");
    auto filter = compile(c->validator, false);
    // The other collections stay readable, and collMod can give this one another validator.
    c->validator_filter = filter ? filter.value() : std::make_shared<const RefusesAll>();
  }
  if (!row["indexes"].IsArray()) return Corrupt(key, "no indexes");
  for (const BsonElement& e : row["indexes"].Document()) {
    if (!e.value.IsDocument()) return Corrupt(key, "an index is not a document");
    MAYFLY_TRY(auto index, DecodeIndex(key, e.value.Document(), compile, now));
    index->measured = MeasuredFields(*c, index->fields);
    c->indexes.push_back(std::move(index));
  }
  return c;
}

std::string GarbageRowKey(GarbageKind kind, uint32_t id) {
  std::string k(kGarbagePrefix);
  k.push_back(static_cast<char>(kind));
  AppendBe32(k, id);
  return k;
}

BsonDocument EncodeGarbageRow(const GarbageRow& row) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("ns", row.ns).Append("keyspace", static_cast<int32_t>(row.keyspace));
  });
}

Result<GarbageRow> DecodeGarbageRow(std::string_view key, std::string_view value) {
  if (key.size() != kGarbagePrefix.size() + 5) return Corrupt(key, "key has another length");
  if (!ValidateBson(value, false)) return Corrupt(key, "not BSON");
  GarbageRow r;
  r.kind = static_cast<GarbageKind>(key[kGarbagePrefix.size()]);
  r.id = LoadBe32(key.data() + kGarbagePrefix.size() + 1);
  BsonView row(value);
  int64_t keyspace = row["keyspace"].NumberAsInt64();
  bool known = r.kind == GarbageKind::kCollection
                   ? keyspace == static_cast<int64_t>(Keyspace::kRecords)
                   : r.kind == GarbageKind::kIndex &&
                         (keyspace == static_cast<int64_t>(Keyspace::kIndexes) ||
                          keyspace == static_cast<int64_t>(Keyspace::kExpiry));
  if (!known || r.id == 0) return Corrupt(key, "unknown kind, keyspace or id");
  r.keyspace = static_cast<Keyspace>(keyspace);
  r.ns = Text(row, "ns");
  return r;
}

std::string BuildRowKey(uint32_t first_index) { return KeyWithId(kBuildPrefix, first_index); }

BsonDocument EncodeBuildRow(const BuildRow& row) {
  return BuildBson([&](BsonBuilder& b) {
    {
      auto ids = b.OpenArray("indexes");
      for (uint32_t id : row.indexes) ids.Append(static_cast<int32_t>(id));
    }
    b.AppendBinary("position", 0, row.position);
  });
}

Result<BuildRow> DecodeBuildRow(std::string_view value) {
  if (!ValidateBson(value, false)) return Corrupt(kBuildPrefix, "not BSON");
  BsonView row(value);
  if (!row["indexes"].IsArray() || !row["position"].Is(BsonType::kBinary))
    return Corrupt(kBuildPrefix, "no indexes or position");
  BuildRow r;
  for (const BsonElement& e : row["indexes"].Document())
    r.indexes.push_back(static_cast<uint32_t>(e.value.NumberAsInt64()));
  r.position = std::string(row["position"].BinaryData());
  return r;
}

}  // namespace mayfly
