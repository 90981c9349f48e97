#include <map>
#include <set>

#include "server/base/md5.h"
#include "server/dispatch/arg_reader.h"
#include "server/dispatch/data_services.h"
#include "server/privileges/privileges.h"
#include "storage/catalog/catalog_format.h"
#include "storage/keys/key_format.h"
#include "storage/storage.h"

namespace mayfly {
namespace {

/// Every row of the keyspace that begins with the prefix, without the prefix (ids say nothing about
/// the content).
Result<void> AddRange(KvStore& kv, Operation& op, const ReadView& view, Keyspace ks,
                      const std::string& begin, const std::string& end, Md5& md5) {
  KvIterOptions o;
  o.lower = begin;
  o.upper = end;
  o.fill_cache = false;
  auto it = view.NewIterator(kv, ks, std::move(o));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    MAYFLY_TRY(op.CheckInterrupt());
    md5.AddWithLength(it->key().substr(begin.size()));
    md5.AddWithLength(it->value());
  }
  return it->status();
}

Result<std::string> HashCollection(Storage& storage, Operation& op, const ReadView& view,
                                   const CollectionInfo& coll) {
  KvStore& kv = storage.kv();
  Md5 md5;
  md5.AddWithLength(coll.options.bytes());
  MAYFLY_TRY(
      AddRange(kv, op, view, Keyspace::kRecords, IdPrefix(coll.id), IdPrefixEnd(coll.id), md5));
  MAYFLY_TRY(AddRange(kv, op, view, Keyspace::kExpiry, DeadlinePrefix(coll.id),
                      DeadlinePrefixEnd(coll.id), md5));
  std::map<std::string, IndexInfoPtr> indexes;
  for (const IndexInfoPtr& i : coll.indexes) indexes[i->name] = i;
  for (const auto& [name, i] : indexes) {
    md5.AddWithLength(name);
    md5.AddWithLength(i->key.bytes());
    md5.AddWithLength(std::to_string(i->expire_after_seconds.value_or(-1)));
    MAYFLY_TRY(AddRange(kv, op, view, i->keyspace, IdPrefix(i->id), IdPrefixEnd(i->id), md5));
  }
  return md5.Hex();
}

Result<void> DbHash(CommandContext& ctx, const CommandRequest& req, BsonBuilder& reply) {
  ArgReader in(req);
  const auto only = in.OptArray("collections");
  in.LooseBoolOr("skipTempCollections", false);  // unused: there are none
  MAYFLY_TRY(in.Finish());
  std::set<std::string_view> wanted;
  if (only) {
    for (const BsonElement& e : *only) {
      if (!e.value.IsString())
        return Error{ErrorCode::kBadValue, "collections entries have to be strings, not " +
                                               std::string(BsonTypeName(e.value.type()))};
      wanted.insert(e.value.String());
    }
  }
  const int64_t begin = ctx.data.clock().MonotonicMicros();
  Storage& storage = ctx.data.storage();
  // Both of one moment: of an index that was built in between, the store would show a part.
  ReadView view;
  std::vector<CollectionInfoPtr> list;
  for (uint64_t version = 0; version != storage.catalog().Version();) {
    version = storage.catalog().Version();
    view = ReadView(storage.kv().Snapshot());
    list = storage.catalog().List(req.db);
  }
  std::erase_if(list, [&](const CollectionInfoPtr& coll) {
    return !coll->traits().stored || (coll->unreplicated && req.db != "local") ||
           (only && !wanted.contains(coll->name));
  });
  reply.Append("host", ctx.data.host_and_port());
  Md5 all;
  {
    BsonBuilder hashes = reply.OpenDocument("collections");
    for (const CollectionInfoPtr& coll : list) {
      MAYFLY_TRY(std::string hash, HashCollection(storage, ctx.op, view, *coll));
      hashes.Append(coll->name, hash);
      all.AddWithLength(coll->name);
      all.AddWithLength(hash);
    }
  }
  {
    BsonArrayBuilder capped = reply.OpenArray("capped");
    for (const CollectionInfoPtr& coll : list)
      if (coll->capped()) capped.Append(coll->name);
  }
  {
    BsonBuilder uuids = reply.OpenDocument("uuids");
    for (const CollectionInfoPtr& coll : list)
      uuids.AppendBinary(coll->name, 4,
                         {reinterpret_cast<const char*>(coll->uuid.data()), coll->uuid.size()});
  }
  reply.Append("md5", all.Hex());
  reply.Append("timeMillis",
               static_cast<int32_t>((ctx.data.clock().MonotonicMicros() - begin) / 1000));
  return Ok();
}

}  // namespace

void RegisterDbHash(CommandRegistry& registry) {
  registry.Add({.name = "dbHash",
                .aliases = {"dbhash"},
                .flags = kReadOnly | kSecondaryOk | kSecondaryOptIn | kWorker,
                .help = "Hashes of the database's collections with their indexes and deadlines: "
                        "equal on members that agree.",
                .run = &DbHash,
                .privileges = &privileges::OnDatabase<Action::dbHash>});
}

}  // namespace mayfly
