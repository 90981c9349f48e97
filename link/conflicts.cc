#include "link/conflicts.h"

#include "link/selection.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

constexpr int64_t kMostRows = 100;
/// One that makes room for another may be in the way of a third.
constexpr int kMostRounds = 10;

std::string_view DbOf(std::string_view ns) { return ns.substr(0, ns.find('.')); }
/// Empty where there is no dot.
std::string_view NameOf(std::string_view ns) {
  const size_t dot = ns.find('.');
  return dot == ns.npos ? std::string_view() : ns.substr(dot + 1);
}

}  // namespace

ClusterResult<std::vector<ConflictSolver::Row>> ConflictSolver::Read() {
  MAYFLY_TRY(BsonDocument reply,
             target_.Command(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                               b.Append("find", "refused").Append("limit", kMostRows);
                               b.Append("batchSize", kMostRows).Append("singleBatch", true);
                               b.OpenDocument("filter")
                                   .Append("_id.link", options_.name)
                                   .Append("code", static_cast<int32_t>(ErrorCode::kDuplicateKey));
                               b.OpenDocument("sort").Append("at", -1);
                             })));
  std::vector<Row> rows;
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  for (const BsonElement& e : batch.documents) {
    const BsonView key = DocumentOf(e.value.Document()["_id"]);
    const std::string_view ns = TextOf(key["ns"]);
    // Of a collection that is sent: a definition that was refused is named, too, and others may
    // have written there.
    if (!selection_.Has(DbOf(ns), NameOf(ns)) || key["id"].missing()) continue;
    rows.push_back(
        {std::string(ns), BuildBson([&](BsonBuilder& b) { b.Append("id", key["id"]); })});
  }
  return rows;
}

ClusterResult<std::optional<LinkOperation>> ConflictSolver::Current(std::string_view ns,
                                                                    BsonValue id) {
  MAYFLY_TRY(BsonDocument reply, source_.Command(DbOf(ns), BuildBson([&](BsonBuilder& b) {
                                                   b.Append("find", NameOf(ns));
                                                   b.Append("limit", 1);
                                                   b.Append("singleBatch", true);
                                                   {
                                                     BsonBuilder f = b.OpenDocument("filter");
                                                     BsonArrayBuilder both = f.OpenArray("$and");
                                                     both.OpenDocument().OpenDocument("_id").Append(
                                                         "$eq", id);
                                                     both.Append(options_.filter);
                                                   }
                                                   if (!deadlines_) return;
                                                   BsonBuilder p = b.OpenDocument("projection");
                                                   p.Append("_id", 0).Append("d", "$$ROOT");
                                                   p.OpenDocument("e").Append("$meta", "expireAt");
                                                 })));
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  if (batch.documents.empty()) return std::optional<LinkOperation>();
  const BsonView row = batch.documents.First().value.Document();
  if (!deadlines_) return translator_.Put(ns, row, {}, LinkOperation::Why::kWritten);
  if (!row["d"].IsDocument()) return Malformed("a document is missing");
  return translator_.Put(ns, row["d"].Document(), row["e"], LinkOperation::Why::kWritten);
}

ClusterResult<BsonDocument> ConflictSolver::Put(const LinkOperation& op) {
  MAYFLY_TRY(writer_.CheckLease());
  MAYFLY_TRY(BsonDocument reply, target_.Write(DbOf(op.ns), BuildBson([&](BsonBuilder& b) {
                                                 b.Append("update", NameOf(op.ns));
                                                 BsonArrayBuilder list = b.OpenArray("updates");
                                                 BsonBuilder u = list.OpenDocument();
                                                 u.Append("q", op.filter);
                                                 AppendReplacement(op.document, "u", u);
                                                 u.Append("upsert", true);
                                                 u.Append("expireAt", op.expire_at());
                                                 u.Done();
                                                 list.Done();
                                                 writer_.AppendAsItIs(b);
                                               })));
  const BsonValue errors = reply.view()["writeErrors"];
  if (errors.missing()) return BsonDocument();
  const BsonValue first = errors.IsArray() ? errors.Document().First().value : BsonValue();
  if (!first.IsDocument() || !first.Document()["code"].IsNumber())
    return Malformed("writeErrors that has no error");
  return BsonDocument(first.Document());
}

ClusterResult<BsonDocument> ConflictSolver::Holder(std::string_view ns, BsonView key) {
  MAYFLY_TRY(BsonDocument reply, target_.Command(DbOf(ns), BuildBson([&](BsonBuilder& b) {
                                                   b.Append("find", NameOf(ns));
                                                   b.Append("limit", 1);
                                                   b.Append("singleBatch", true);
                                                   BsonBuilder f = b.OpenDocument("filter");
                                                   for (const BsonElement& e : key)
                                                     f.OpenDocument(e.name).Append("$eq", e.value);
                                                 })));
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  if (batch.documents.empty()) return BsonDocument();
  return BsonDocument(batch.documents.First().value.Document());
}

ClusterResult<void> ConflictSolver::Remember(std::string_view ns, BsonValue id) {
  return writer_.Name(ns, id, {ErrorCode::kDuplicateKey, "makes room for another document"});
}

ClusterResult<void> ConflictSolver::Forget(const Row& row) {
  MAYFLY_TRY(target_.Write(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                             b.Append("delete", "refused");
                             BsonArrayBuilder list = b.OpenArray("deletes");
                             BsonBuilder d = list.OpenDocument();
                             BsonBuilder q = d.OpenDocument("q");
                             BsonBuilder key = q.OpenDocument("_id");
                             key.Append("link", options_.name).Append("ns", row.ns);
                             key.AppendAll(row.id.view());
                             key.Done();
                             q.Done();
                             d.Append("limit", 1);
                           })));
  return Ok();
}

ClusterResult<bool> ConflictSolver::TryAgain(const Row& row) {
  MAYFLY_TRY(const std::optional<LinkOperation> op, Current(row.ns, row.id.view()["id"]));
  // Gone: its delete comes, or came.
  if (!op) {
    MAYFLY_TRY(Forget(row));
    return true;
  }
  MAYFLY_TRY(const bool wanted, writer_.IsWanted(*op));
  if (!wanted) {
    MAYFLY_TRY(Forget(row));
    return true;
  }
  MAYFLY_TRY(BsonDocument failed, Put(*op));
  const auto duplicate = [&] {
    return failed.view()["code"].IsNumber() &&
           failed.view()["code"].NumberAsInt64() == static_cast<int64_t>(ErrorCode::kDuplicateKey);
  };
  if (failed.view().empty()) {
    MAYFLY_TRY(Forget(row));
    return true;
  }
  const BsonValue key = failed.view()["keyValue"];
  // With links in both directions the target's may be the newer one.
  if (!duplicate() || !key.IsDocument() || !options_.version_field.empty()) return false;
  MAYFLY_TRY(BsonDocument holder, Holder(row.ns, key.Document()));
  if (holder.view()["_id"].missing()) return false;
  MAYFLY_TRY(const std::optional<LinkOperation> theirs, Current(row.ns, holder.view()["_id"]));
  // The target's own, or one whose delete is coming; or one that has the value at the source, too.
  if (!theirs || theirs->document.bytes() == holder.bytes()) return false;
  MAYFLY_TRY(Remember(row.ns, holder.view()["_id"]));
  MAYFLY_TRY(target_.Write(DbOf(row.ns), BuildBson([&](BsonBuilder& b) {
                             b.Append("delete", NameOf(row.ns));
                             BsonArrayBuilder list = b.OpenArray("deletes");
                             BsonBuilder d = list.OpenDocument();
                             d.OpenDocument("q").OpenDocument("_id").Append("$eq",
                                                                            holder.view()["_id"]);
                             d.Append("limit", 1);
                           })));
  MAYFLY_TRY(failed, Put(*op));
  if (failed.view().empty()) {
    MAYFLY_TRY(Forget(row));
  }
  return true;
}

ClusterResult<void> ConflictSolver::Run() {
  for (int round = 0; round < kMostRounds; ++round) {
    MAYFLY_TRY(const std::vector<Row> rows, Read());
    bool changed = false;
    for (const Row& row : rows) {
      MAYFLY_TRY(const bool done, TryAgain(row));
      changed |= done;
    }
    if (!changed) return Ok();
  }
  return Ok();
}

}  // namespace mayfly
