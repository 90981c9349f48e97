#include "storage/catalog/index_conflict.h"

#include "protocol/bson_builder.h"
#include "protocol/extended_json.h"
#include "storage/catalog/expire_reads.h"

namespace mayfly {
namespace {

bool SameKey(BsonView a, BsonView b) {
  auto x = a.begin(), y = b.begin();
  for (; x != std::default_sentinel && y != std::default_sentinel; ++x, ++y) {
    if (x->name != y->name) return false;
    if (x->value.IsNumber() && y->value.IsNumber()) {
      if (x->value.NumberAsDouble() != y->value.NumberAsDouble()) return false;
    } else if (!x->value.BinaryEquals(y->value)) {
      return false;
    }
  }
  return x == std::default_sentinel && y == std::default_sentinel;
}

bool SameIndex(const IndexInfo& a, const IndexInfo& b) {
  return SameKey(a.key, b.key) && a.unique == b.unique && a.sparse == b.sparse &&
         a.has_partial_filter == b.has_partial_filter &&
         (!a.has_partial_filter || a.partial_filter.bytes() == b.partial_filter.bytes()) &&
         a.extra.view()["collation"].BinaryEquals(b.extra.view()["collation"]);
}

/// The further options without `background` and the version, which make no difference between
/// indexes.
std::string ExtraOptions(const IndexInfo& i, bool with_reap) {
  return BuildBson([&](BsonBuilder& b) {
           for (const BsonElement& e : i.extra.view())
             if (e.name != "background" && e.name != "v" && (with_reap || e.name != "reap"))
               b.Append(e);
         })
      .bytes();
}

/// Mayfly's own options stay as they are if not given: an app that creates its indexes at each
/// start does not know later changes by collMod. So does `hidden`, which makes no difference
/// between indexes.
bool SameOptions(const IndexInfo& is, const IndexInfo& wanted) {
  const bool with_reap = wanted.extra.view().Has("reap");
  return is.expire_after_seconds == wanted.expire_after_seconds &&
         (wanted.expire_reads == ExpireReads::kDefault || is.expire_reads == wanted.expire_reads) &&
         is.prepare_unique == wanted.prepare_unique &&
         ExtraOptions(is, with_reap) == ExtraOptions(wanted, with_reap);
}

std::string Describe(const IndexInfo& i) {
  BsonDocument d = BuildBson([&](BsonBuilder& b) {
    b.Append("v", i.version()).Append("key", i.key).Append("name", i.name);
    if (i.unique) b.Append("unique", true);
    if (i.sparse) b.Append("sparse", true);
    if (i.hidden) b.Append("hidden", true);
    if (i.expire_after_seconds) b.Append("expireAfterSeconds", *i.expire_after_seconds);
    if (i.expire_reads != ExpireReads::kDefault)
      b.Append(kExpireReadsOption, ExpireReadsName(i.expire_reads));
    if (i.has_partial_filter) b.Append("partialFilterExpression", i.partial_filter);
    i.AppendExtra(b);
  });
  return ToRelaxedJson(d.view());
}

/// What to do when it is the seconds that differ (docs/expiry.md, "What is refused"); empty
/// otherwise.
std::string HowToChange(const CollectionInfo& coll, const IndexInfo& is, const IndexInfo& wanted) {
  if (is.expire_after_seconds == wanted.expire_after_seconds) return {};
  if (!wanted.expire_after_seconds)
    return ". It is a TTL index: drop it first to have it without expireAfterSeconds";
  if (coll.is_buckets()) return ". Drop it first to have it with other seconds";
  const BsonDocument change = BuildBson([&](BsonBuilder& b) {
    b.Append("collMod", coll.name);
    b.OpenDocument("index")
        .Append("name", is.name)
        .Append("expireAfterSeconds", *wanted.expire_after_seconds);
  });
  return ". Change expireAfterSeconds with " + ToRelaxedJson(change.view());
}

}  // namespace

void IndexInfo::AppendExtra(BsonBuilder& out) const {
  for (const BsonElement& e : extra.view())
    if (e.name != "v") out.Append(e);
}

bool SameIndexKey(BsonView a, BsonView b) { return SameKey(a, b); }

bool IsIdIndexKey(BsonView key) {
  if (key.Count() != 1) return false;
  BsonElement e = key.First();
  return e.name == "_id" && e.value.IsNumber() && e.value.NumberAsDouble() == 1;
}

Result<IndexInfoPtr> MatchExistingIndex(const CollectionInfo& coll, const IndexInfo& spec) {
  for (const IndexInfoPtr& i : coll.indexes) {
    if (i->name == spec.name) {
      if (!SameIndex(*i, spec))
        return Error{ErrorCode::kIndexKeySpecsConflict,
                     "An existing index has the same name as the requested index. When index names "
                     "are not specified, "
                     "they are auto generated and can cause conflicts. Please refer to our "
                     "documentation. Requested "
                     "index: " +
                         Describe(spec) + ", existing index: " + Describe(*i)};
      if (!SameOptions(*i, spec))
        return Error{ErrorCode::kIndexOptionsConflict,
                     "An equivalent index already exists with the same name but different options. "
                     "Requested index: " +
                         Describe(spec) + ", existing index: " + Describe(*i) +
                         HowToChange(coll, *i, spec)};
      return i;
    }
  }
  for (const IndexInfoPtr& i : coll.indexes) {
    if (!SameIndex(*i, spec)) continue;
    if (!SameOptions(*i, spec))
      return Error{ErrorCode::kIndexOptionsConflict,
                   "An equivalent index already exists with a different name and options. "
                   "Requested index: " +
                       Describe(spec) + ", existing index: " + Describe(*i) +
                       HowToChange(coll, *i, spec)};
    return Error{ErrorCode::kIndexOptionsConflict,
                 "Index already exists with a different name: " + i->name};
  }
  return IndexInfoPtr();
}

}  // namespace mayfly
