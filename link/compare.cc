#include <algorithm>
#include <map>

#include "link/target_writer.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

/// How far the clocks of clients may be ahead of the servers'.
constexpr int64_t kSkewMillis = 3'600'000;
/// So far back a transaction looks for itself: more than the clocks of a set's members differ.
constexpr int64_t kRecentMillis = 300'000;
/// A date that can be subtracted from.
constexpr int64_t kFar = int64_t{1} << 58;

/// Documents of a collection by the bytes of {id: value}, and which operations are about each.
using ById = std::map<std::string, std::vector<size_t>, std::less<>>;

std::string KeyOf(BsonValue id) {
  return std::string(BuildBson([&](BsonBuilder& b) { b.Append("id", id); }).bytes());
}

Instant VersionOf(const LinkOperation& op) { return op.version.view()["v"].Date(); }

bool IsCompared(const LinkOperation& op) {
  return op.kind == LinkOperation::Kind::kPut && op.version.view()["v"].IsDate();
}

/// Tombstones before it say nothing of the operation. Milliseconds since 1970.
int64_t SinceWhen(const LinkOperation& op) {
  return std::clamp(VersionOf(op).millis, -kFar, kFar) - (op.echo ? kSkewMillis : 0);
}

/// The values of the `_id`s, as an array of `name`.
void AppendIds(const ById& ids, std::string_view name, BsonBuilder& out) {
  BsonArrayBuilder list = out.OpenArray(name);
  for (const auto& [key, places] : ids) list.Append(BsonView(key.data())["id"]);
}

/// All documents that a find or aggregate gives.
template <class Each>
ClusterResult<void> ForEachDocument(Cluster& target, std::string_view ns, BsonDocument command,
                                    Each&& each) {
  const std::string_view db = ns.substr(0, ns.find('.')), name = ns.substr(ns.find('.') + 1);
  for (;;) {
    MAYFLY_TRY(BsonDocument reply, target.Command(db, command));
    MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
    for (const BsonElement& e : batch.documents) each(e.value.Document());
    if (batch.cursor == 0) return Ok();
    command = BuildBson(
        [&](BsonBuilder& b) { b.Append("getMore", batch.cursor).Append("collection", name); });
  }
}

/// For each document the time of its last delete (`d`) and of its last expiry (`e`).
BsonDocument TombstonesCommand(std::string_view ns, const ById& ids, Instant since) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("aggregate", ns.substr(ns.find('.') + 1));
    BsonArrayBuilder stages = b.OpenArray("pipeline");
    {
      BsonBuilder stage = stages.OpenDocument();
      stage.OpenDocument("$tombstones").Append("since", since);
    }
    {
      BsonBuilder stage = stages.OpenDocument();
      BsonBuilder match = stage.OpenDocument("$match");
      BsonBuilder id = match.OpenDocument("id");
      AppendIds(ids, "$in", id);
    }
    {
      BsonBuilder stage = stages.OpenDocument();
      BsonBuilder group = stage.OpenDocument("$group");
      group.Append("_id", "$id");
      const auto last = [&](std::string_view name, std::string_view reason) {
        BsonBuilder of = group.OpenDocument(name);
        BsonBuilder max = of.OpenDocument("$max");
        BsonArrayBuilder cond = max.OpenArray("$cond");
        {
          BsonBuilder is = cond.OpenDocument();
          BsonArrayBuilder eq = is.OpenArray("$eq");
          eq.Append("$reason").Append(reason);
        }
        cond.Append("$at").AppendNull();
      };
      last("d", "deleted");
      last("e", "expired");
    }
    stages.Done();
    b.OpenDocument("cursor").Append("batchSize", 1000);
  });
}

/// Whether what was removed is that version, or a later one. An expiry says nothing of a document
/// that lives longer than the one that expired.
bool IsRemoved(const LinkOperation& op, BsonView tombstone) {
  const Instant version = VersionOf(op);
  if (tombstone["d"].IsDate() && version <= tombstone["d"].Date()) return true;
  if (!tombstone["e"].IsDate() || version > tombstone["e"].Date()) return false;
  return !op.expire_at().IsDate() || op.expire_at().Date() <= tombstone["e"].Date();
}

}  // namespace

ClusterResult<void> TargetWriter::FindRemovals(const std::vector<LinkOperation>& operations,
                                               const Places& missing, int64_t floor,
                                               Removals* out) {
  std::map<std::string_view, ById> by_ns;
  for (size_t i : missing)
    by_ns[operations[i].ns][KeyOf(IdOfFilter(operations[i].filter))].push_back(i);
  for (const auto& [ns, ids] : by_ns) {
    int64_t since = INT64_MAX;
    for (const auto& [key, places] : ids)
      for (size_t i : places) since = std::min(since, SinceWhen(operations[i]));
    since = std::max(since, floor);
    MAYFLY_TRY(ForEachDocument(target_, ns, TombstonesCommand(ns, ids, Instant{since}),
                               [&](BsonView tombstone) {
                                 const auto found = ids.find(KeyOf(tombstone["_id"]));
                                 if (found == ids.end()) return;
                                 for (size_t i : found->second)
                                   if (IsRemoved(operations[i], tombstone))
                                     out->removed.insert(i);
                                   else if (tombstone["d"].IsDate())
                                     out->earlier.insert(i);
                               }));
  }
  return Ok();
}

ClusterResult<void> TargetWriter::LookBack(const std::vector<LinkOperation>& operations,
                                           size_t from, size_t n) {
  if (from >= back_.from && from < back_.to) return Ok();
  back_ = {};
  if (!manner.tombstones) return Ok();
  MAYFLY_TRY(const BsonDocument hello,
             target_.Command("admin", BuildBson([](BsonBuilder& b) { b.Append("hello", 1); })));
  if (!hello.view()["localTime"].IsDate()) return Ok();
  const int64_t recent = hello.view()["localTime"].Date().millis - kRecentMillis;
  Places old, newer;
  for (size_t i = from; i < from + n; ++i)
    if (IsCompared(operations[i]) && SinceWhen(operations[i]) < recent) old.insert(i);
  back_.from = from;
  back_.to = from + n;
  if (old.empty()) return Ok();
  MAYFLY_TRY(FindThere(operations, &old, &newer));
  MAYFLY_TRY(FindRemovals(operations, old, INT64_MIN, &back_.found));
  back_.recent = recent;
  return Ok();
}

ClusterResult<void> TargetWriter::FindThere(const std::vector<LinkOperation>& operations,
                                            Places* missing, Places* as_new) {
  std::map<std::string_view, ById> by_ns;
  for (size_t i : *missing)
    by_ns[operations[i].ns][KeyOf(IdOfFilter(operations[i].filter))].push_back(i);
  for (const auto& [ns, ids] : by_ns) {
    const BsonDocument command = BuildBson([&](BsonBuilder& b) {
      b.Append("find", ns.substr(ns.find('.') + 1)).Append("batchSize", int64_t{5000});
      {
        BsonBuilder f = b.OpenDocument("filter");
        BsonBuilder id = f.OpenDocument("_id");
        AppendIds(ids, "$in", id);
      }
      b.OpenDocument("projection").Append("_id", 1).Append(manner.version_field, 1);
    });
    MAYFLY_TRY(ForEachDocument(target_, ns, command, [&](BsonView there) {
      const auto found = ids.find(KeyOf(there["_id"]));
      if (found == ids.end()) return;
      const BsonValue version = there[manner.version_field];
      for (size_t i : found->second) {
        missing->erase(i);
        // What has no date there is left alone, like what is as new.
        if (!version.IsDate() || VersionOf(operations[i]) <= version.Date()) as_new->insert(i);
      }
    }));
  }
  return Ok();
}

ClusterResult<TargetWriter::Places> TargetWriter::NotWanted(
    const std::vector<LinkOperation>& operations, size_t from, size_t n) {
  Places missing, out;
  for (size_t i = from; i < from + n; ++i)
    if (IsCompared(operations[i])) missing.insert(i);
  MAYFLY_TRY(FindThere(operations, &missing, &out));
  // Events bring documents as they are by now, so several of a batch may bring the same.
  std::map<std::pair<std::string_view, std::string>, Instant> brought;
  for (size_t i = from; i < from + n; ++i) {
    const LinkOperation& op = operations[i];
    const std::pair key(std::string_view(op.ns), KeyOf(IdOfFilter(op.filter)));
    const auto before = brought.find(key);
    if (op.kind != LinkOperation::Kind::kPut) {
      if (before != brought.end()) brought.erase(before);
    } else if (!out.contains(i) && op.version.view()["v"].IsDate()) {
      if (before == brought.end())
        brought.emplace(key, VersionOf(op));
      else if (VersionOf(op) <= before->second)
        out.insert(i);
      else
        before->second = VersionOf(op);
    }
  }
  if (!manner.tombstones || missing.empty()) return out;
  const bool looked = from >= back_.from && from < back_.to;
  Removals found = looked ? back_.found : Removals();
  MAYFLY_TRY(FindRemovals(operations, missing, looked ? back_.recent : INT64_MIN, &found));
  for (size_t i : missing) {
    // What has come from the target and is gone there without a delete went with its collection. If
    // an older delete took it (by clocks that differ), that delete has lost on the other side, too.
    const bool gone = operations[i].echo && !found.earlier.contains(i);
    if (gone || found.removed.contains(i)) out.insert(i);
  }
  return out;
}

ClusterResult<bool> TargetWriter::IsWanted(const LinkOperation& op) {
  if (manner.version_field.empty()) return true;
  back_ = {};
  MAYFLY_TRY(const Places out, NotWanted({op}, 0, 1));
  return out.empty();
}

}  // namespace mayfly
