#include "server/dispatch/cluster_parameters.h"

#include <string>
#include <vector>

#include "replication/replica_set.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/dump_deadlines.h"
#include "server/dispatch/parameters.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

struct ClusterParameter {
  std::string_view name;
  bool set_only;  ///< has no meaning without a replica set
  /// Checks what is to be set and makes what is stored and shown.
  Result<BsonDocument> (*parse)(BsonView given);
  BsonDocument (*initial)();
};

Result<BsonDocument> ParseChangeStreamOptions(BsonView given) {
  ArgReader in("changeStreamOptions", given);
  const auto images = in.OptDocument("preAndPostImages");
  MAYFLY_TRY(in.Finish());
  if (!images) return BuildBson([](BsonBuilder&) {});
  ArgReader inner("changeStreamOptions.preAndPostImages", *images);
  const BsonValue expire = inner.Any("expireAfterSeconds");
  MAYFLY_TRY(inner.Finish());
  if (expire.missing() || (expire.IsString() && expire.String() == "off"))
    return BuildBson([](BsonBuilder& b) {
      b.OpenDocument("preAndPostImages").Append("expireAfterSeconds", "off");
    });
  if (expire.IsString())
    return Error{
        ErrorCode::kBadValue,
        "Change stream options 'preAndPostImages.expireAfterSeconds' is 'off' or a positive "
        "number of seconds, found: '" +
            std::string(expire.String()) + "'"};
  if (!expire.IsNumber())
    return inner.WrongType("expireAfterSeconds", expire.type(), "[string, long]");
  const int64_t seconds = expire.NumberAsInt64();
  constexpr int64_t kMost = int64_t{1}
                            << 40;  // beyond any date, and far from overflow in milliseconds
  if (seconds < 1 || seconds > kMost)
    return Error{ErrorCode::kBadValue,
                 "Expected a positive integer for 'preAndPostImages.expireAfterSeconds' parameter"};
  return BuildBson([&](BsonBuilder& b) {
    b.OpenDocument("preAndPostImages").Append("expireAfterSeconds", seconds);
  });
}

Result<BsonDocument> ParseDefaultMaxTime(BsonView given) {
  ArgReader in("defaultMaxTimeMS", given);
  const BsonValue reads = in.Any("readOperations");
  MAYFLY_TRY(in.Finish());
  if (reads.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field 'defaultMaxTimeMS.readOperations' is missing but a required field"};
  if (!reads.IsNumber())
    return in.WrongType("readOperations", reads.type(), "[long, int, decimal, double]");
  const int64_t ms = reads.NumberAsInt64();
  if (ms < 0 || ms > INT32_MAX)
    return Error{
        ErrorCode::kBadValue,
        "BSON field 'readOperations' value must be >= 0 and <= 2147483647, actual value '" +
            std::to_string(ms) + "'"};
  return BuildBson([&](BsonBuilder& b) { b.Append("readOperations", ms); });
}

Result<BsonDocument> ParseDumpDeadlines(BsonView given) {
  MAYFLY_TRY(const DumpDeadlines parsed, DumpDeadlines::Parse(given));
  return parsed.Describe();
}

constexpr ClusterParameter kParameters[] = {
    {"changeStreamOptions", true, &ParseChangeStreamOptions,
     [] {
       return BuildBson([](BsonBuilder& b) {
         b.OpenDocument("preAndPostImages").Append("expireAfterSeconds", "off");
       });
     }},
    {"defaultMaxTimeMS", false, &ParseDefaultMaxTime,
     [] { return BuildBson([](BsonBuilder& b) { b.Append("readOperations", int64_t{0}); }); }},
    {"dumpDeadlines", false, &ParseDumpDeadlines,
     [] {
       const BsonDocument off = BuildBson([](BsonBuilder& b) { b.Append("field", ""); });
       return DumpDeadlines::Parse(off).value().Describe();
     }},
};

Result<const ClusterParameter*> Find(const ReplicaSet* set, std::string_view name) {
  for (const ClusterParameter& p : kParameters) {
    if (p.name != name) continue;
    if (p.set_only && set == nullptr)
      return Error{ErrorCode::kIllegalOperation,
                   "The '" + std::string(name) + "' parameter is unsupported in standalone."};
    return &p;
  }
  return Error{ErrorCode::kNoSuchKey, "Unknown server parameter: " + std::string(name)};
}

std::string SettingName(std::string_view name) {
  return std::string(ClusterParameters::kSettingPrefix).append(name);
}

std::optional<BsonDocument> Stored(Storage& storage, std::string_view name) {
  auto row = storage.catalog().GetSetting(SettingName(name));
  if (!row || !row.value()) return std::nullopt;
  return BsonDocument(*row.value());
}

}  // namespace

void ClusterParameters::Load(Storage& storage) {
  int64_t expiry = -1;
  if (auto stored = Stored(storage, "changeStreamOptions")) {
    const BsonValue images = stored->view()["preAndPostImages"];
    const BsonValue seconds =
        images.IsDocument() ? images.Document()["expireAfterSeconds"] : BsonValue();
    if (seconds.IsNumber()) expiry = seconds.NumberAsInt64();
  }
  image_expiry_ = expiry;
  if (auto stored = Stored(storage, "defaultMaxTimeMS"))
    settings_.max_time_ms_default = stored->view()["readOperations"].NumberAsInt64();
  std::shared_ptr<const DumpDeadlines> deadlines;
  if (auto stored = Stored(storage, "dumpDeadlines")) {
    const BsonDocument given = BuildBson([&](BsonBuilder& b) {
      for (const BsonElement& e : stored->view())
        if (e.name != "clusterParameterTime") b.Append(e);
    });
    if (auto parsed = DumpDeadlines::Parse(given))
      deadlines = std::make_shared<const DumpDeadlines>(std::move(parsed).value());
  }
  std::lock_guard l(mutex_);
  dump_deadlines_ = std::move(deadlines);
  has_dump_deadlines_ = dump_deadlines_ != nullptr && !dump_deadlines_->field.empty();
}

std::shared_ptr<const DumpDeadlines> ClusterParameters::dump_deadlines() const {
  std::lock_guard l(mutex_);
  return dump_deadlines_;
}

Result<void> ClusterParameters::Set(Storage& storage, ReplicaSet* set, Operation& op,
                                    std::string_view name, BsonValue value) {
  MAYFLY_TRY(const ClusterParameter* p, Find(set, name));
  if (!value.IsDocument())
    return Error{ErrorCode::kTypeMismatch, "Cluster parameter '" + std::string(name) +
                                               "' must be an object, but is of type " +
                                               std::string(BsonTypeName(value.type()))};
  MAYFLY_TRY(BsonDocument parsed, p->parse(value.Document()));
  const uint64_t time =
      set != nullptr ? set->cluster_time() : static_cast<uint64_t>(op.now.millis / 1000) << 32;
  const BsonDocument row = BuildBson(
      [&](BsonBuilder& b) { b.AppendTimestamp("clusterParameterTime", time).AppendAll(parsed); });
  MAYFLY_TRY(storage.catalog().PutSetting(op, SettingName(name), row.bytes()));
  Load(storage);
  return Ok();
}

Result<void> ClusterParameters::Append(Storage& storage, const ReplicaSet* set,
                                       std::string_view name, BsonArrayBuilder& out) {
  MAYFLY_TRY(const ClusterParameter* p, Find(set, name));
  BsonBuilder b = out.OpenDocument();
  b.Append("_id", name);
  const std::optional<BsonDocument> stored = Stored(storage, name);
  b.AppendAll(stored ? stored->view() : p->initial().view());
  return Ok();
}

std::vector<std::string_view> ClusterParameters::Names(const ReplicaSet* set) {
  std::vector<std::string_view> names;
  for (const ClusterParameter& p : kParameters)
    if (!p.set_only || set != nullptr) names.push_back(p.name);
  return names;
}

}  // namespace mayfly
