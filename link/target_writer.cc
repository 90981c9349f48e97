#include "link/target_writer.h"

#include <algorithm>
#include <map>
#include <optional>

#include "link/selection.h"
#include "protocol/bson_builder.h"
#include "protocol/secret_names.h"

namespace mayfly {
namespace {

/// A command may have as many operations and bytes; a larger document is alone in its command.
/// After a target has refused a transaction, so many batches go without.
constexpr int kAlone = 100;
constexpr size_t kMostOperations = 5000, kMostBatchBytes = 12 << 20;
/// And a delete of many as many bytes of `_id`s.
constexpr size_t kMostAlikeBytes = 1 << 20;
/// A list of a cluster's collections has an end.
constexpr size_t kMostListed = 10'000'000;

LinkFailure FailureOf(BsonView e, std::string_view index) {
  return {static_cast<size_t>(std::max<int64_t>(0, IntOf(e, index))),
          {static_cast<ErrorCode>(IntOf(e, "code")), std::string(TextOf(e["errmsg"]))}};
}

/// The first error of a reply's `writeErrors`.
ClusterResult<std::optional<LinkFailure>> FirstFailure(BsonView reply) {
  const BsonValue list = reply["writeErrors"];
  if (list.missing()) return std::optional<LinkFailure>();
  const BsonView first = list.IsArray() ? DocumentOf(list.Document().First().value) : BsonView();
  if (!first["code"].IsNumber()) return Malformed("writeErrors that has no error");
  return std::optional(FailureOf(first, "index"));
}

/// The same of a reply to bulkWrite.
ClusterResult<std::optional<LinkFailure>> FirstFailureOfBulk(BsonView reply) {
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  for (const BsonElement& e : batch.documents)
    if (e.value.Document()["code"].IsNumber())
      return std::optional(FailureOf(e.value.Document(), "idx"));
  if (IntOf(reply, "nErrors") != 0) return Malformed("nErrors without an error");
  return std::optional<LinkFailure>();
}

BsonDocument StateFilter(std::string_view name) {
  return BuildBson([&](BsonBuilder& b) { b.Append("_id", name); });
}

BsonDocument StateUpdate(BsonView state) {
  return BuildBson([&](BsonBuilder& b) { b.Append("$set", state); });
}

/// For an upsert that fails (11000) if the link's document names another process.
BsonDocument LeaseFilter(std::string_view name, std::string_view runner) {
  return BuildBson([&](BsonBuilder& b) { b.Append("_id", name).Append("runner.id", runner); });
}

BsonDocument LeaseUpdate() {
  return BuildBson([](BsonBuilder& b) {
    b.OpenDocument("$currentDate").Append("writtenAt", true);
    // A change in any case: the other link knows a transaction by it.
    b.OpenDocument("$inc").Append("writes", int64_t{1});
  });
}

ClusterError LeaseLost(std::string_view name) {
  return {
      {ErrorCode::kLockBusy, "another process runs the link '" + std::string(name) + "' by now"},
      true};
}

/// An error of a statement on the link's own documents.
ClusterError OfOwn(const Error& error) { return {error, MayPass(error.code)}; }

/// What a transaction may fail of, where its operations one by one do not.
bool PassesAlone(ErrorCode code) {
  return code == ErrorCode::kWriteConflict || code == ErrorCode::kExceededMemoryLimit ||
         code == ErrorCode::kMaxTimeMSExpired || code == ErrorCode::kQueryPlanKilled ||
         code == ErrorCode::kTransactionExceededLifetimeLimitSeconds;
}

bool HasOddName(BsonView document) {
  return document.bytes().find('$') != std::string_view::npos &&
         std::ranges::any_of(document,
                             [](const BsonElement& e) { return e.name.starts_with('$'); });
}

/// Whether the target probably lacks it: a document of a copy, whatever its version there. The
/// target stores many inserts at once, and each upsert separately.
bool IsNew(const LinkOperation& op) {
  return op.why == LinkOperation::Why::kCopied && op.kind == LinkOperation::Kind::kPut &&
         op.filter.view().Count() == 1 && !HasOddName(op.document);
}

/// The bytes of a filter behind its `_id`, which is its first field.
std::string_view BehindId(BsonView filter) {
  const BsonElement id = filter.First();
  const char* end = id.value.data() + id.value.size();
  return {end, static_cast<size_t>(filter.data() + filter.size() - end)};
}

/// Whether it is a delete by the value of the `_id`, whatever else must hold.
bool IsDeleteById(const LinkOperation& op) {
  if (op.kind != LinkOperation::Kind::kDelete) return false;
  const BsonValue id = op.filter.view()["_id"];
  return !id.IsDocument() || id.Document().empty() || !id.Document().First().name.starts_with('$');
}

/// How many deletes from `from` on differ in nothing but the value of the `_id`, such as those of a
/// mass expiry: the target takes them as one, with one look at what else must hold.
size_t AlikeDeletes(const std::vector<LinkOperation>& operations, size_t from, size_t most) {
  const LinkOperation& first = operations[from];
  size_t n = 0, bytes = 0;
  for (; from + n < operations.size() && n < most && bytes < kMostAlikeBytes; ++n) {
    const LinkOperation& op = operations[from + n];
    if (!IsDeleteById(op) || op.ns != first.ns || BehindId(op.filter) != BehindId(first.filter))
      break;
    bytes += op.filter.view().size();
  }
  return n;
}

/// The fields of one delete for `n` that are alike.
void AppendDeletes(const std::vector<LinkOperation>& operations, size_t from, size_t n,
                   BsonBuilder& o) {
  {
    BsonBuilder f = o.OpenDocument("filter");
    {
      BsonBuilder id = f.OpenDocument("_id");
      BsonArrayBuilder in = id.OpenArray("$in");
      for (size_t i = from; i < from + n; ++i) in.Append(operations[i].filter.view()["_id"]);
    }
    bool first = true;
    for (const BsonElement& e : operations[from].filter.view()) {
      if (!first) f.Append(e);
      first = false;
    }
  }
  o.Append("multi", true);
  // An index of what else must hold may have all of a mass expiry.
  o.OpenDocument("hint").Append("_id", 1);
}

std::string LinksNamespace() { return std::string(kLinkDatabase) + ".links"; }

}  // namespace

void AppendReplacement(BsonView document, std::string_view name, BsonBuilder& out) {
  if (!HasOddName(document)) {
    out.Append(name, document);
    return;
  }
  BsonArrayBuilder stages = out.OpenArray(name);
  BsonBuilder stage = stages.OpenDocument();
  stage.OpenDocument("$replaceWith").Append("$literal", document);
}

void TargetWriter::Count(const LinkOperation& op, LinkCounters* c) const {
  switch (op.why) {
    case LinkOperation::Why::kCopied:
      ++c->copied;
      break;
    case LinkOperation::Why::kWritten:
      ++c->written;
      break;
    case LinkOperation::Why::kDeleted:
      ++c->deleted;
      break;
    case LinkOperation::Why::kExpired:
      ++c->expired;
      break;
  }
}

ClusterResult<void> TargetWriter::Refused(std::string_view ns, BsonValue id, const Error& why,
                                          LinkCounters* counters) {
  ++counters->refused;
  return Name(ns, id, why);
}

ClusterResult<void> TargetWriter::Name(std::string_view ns, BsonValue id, const Error& why) {
  const BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("update", "refused");
    BsonArrayBuilder updates = b.OpenArray("updates");
    BsonBuilder u = updates.OpenDocument();
    {
      BsonBuilder q = u.OpenDocument("q");
      BsonBuilder key = q.OpenDocument("_id");
      key.Append("link", link_name_).Append("ns", ns).Append("id", id);
    }
    {
      BsonBuilder change = u.OpenDocument("u");
      change.OpenDocument("$set")
          .Append("code", static_cast<int32_t>(why.code))
          .Append("errmsg", WithoutSecret(why.message));
      change.OpenDocument("$currentDate").Append("at", true);
    }
    u.Append("upsert", true);
  });
  MAYFLY_TRY(target_.Write(kLinkDatabase, command));
  return Ok();
}

ClusterResult<size_t> TargetWriter::Settle(const std::vector<LinkOperation>& operations,
                                           size_t from, size_t n, const LinkFailure* failed,
                                           LinkCounters* counters) {
  const size_t done = failed != nullptr ? std::min(failed->index, n) : n;
  for (size_t i = 0; i < done; ++i) Count(operations[from + i], counters);
  if (failed == nullptr) return n;
  // Of the link's own document, or not of the document: it must not be left out for a full disk.
  const bool passes = MayPass(failed->error.code);
  if (failed->index >= n || passes) return ClusterError{failed->error, passes};
  const LinkOperation& op = operations[from + failed->index];
  // With a version field the filter leaves out what is as new: then the upsert meets the `_id`.
  if (failed->error.code == ErrorCode::kDuplicateKey && op.filter.view().Count() > 1 &&
      failed->error.message.find("_id_") != std::string::npos) {
    ++counters->not_newer;
  } else {
    MAYFLY_TRY(Refused(op.ns, IdOfFilter(op.filter), failed->error, counters));
  }
  return failed->index + 1;
}

TargetWriter::Bulk TargetWriter::MakeBulk(const std::vector<LinkOperation>& operations, size_t from,
                                          BsonView state, bool together, size_t most,
                                          const Places& left_out) const {
  std::map<std::string_view, int32_t> namespaces;
  std::vector<std::string_view> names;
  const auto number = [&](std::string_view ns) {
    const auto [it, added] = namespaces.try_emplace(ns, static_cast<int32_t>(names.size()));
    if (added) names.push_back(ns);
    return it->second;
  };
  const std::string links = LinksNamespace();
  Bulk out;
  out.command = BuildBson([&](BsonBuilder& b) {
    b.Append("bulkWrite", 1);
    {
      BsonArrayBuilder ops = b.OpenArray("ops");
      {
        BsonBuilder o = ops.OpenDocument();
        o.Append("update", number(links)).Append("filter", LeaseFilter(link_name_, runner_));
        o.Append("updateMods", LeaseUpdate()).Append("upsert", true);
      }
      while (from + out.n < operations.size() && out.n < most) {
        const LinkOperation& op = operations[from + out.n];
        if (left_out.contains(from + out.n)) {
          ++out.n;
          continue;
        }
        if (out.n > 0 && b.size() + op.Bytes() > kMostBatchBytes) break;
        if (together && outside_.contains(op.ns)) break;
        const size_t alike = together ? AlikeDeletes(operations, from + out.n, most - out.n) : 0;
        BsonBuilder o = ops.OpenDocument();
        out.n += std::max<size_t>(1, alike);
        if (alike <= 1) {
          AppendOperation(op, number(op.ns), o);
          continue;
        }
        o.Append("delete", number(op.ns));
        AppendDeletes(operations, from + out.n - alike, alike, o);
        if (LeavesNoTombstone()) o.Append("tombstone", false);
      }
      out.with_state = from + out.n == operations.size() && b.size() < kMostBatchBytes + (1 << 20);
      if (out.with_state) {
        BsonBuilder o = ops.OpenDocument();
        o.Append("update", number(links)).Append("filter", StateFilter(link_name_));
        o.Append("updateMods", StateUpdate(state));
      }
    }
    BsonArrayBuilder info = b.OpenArray("nsInfo");
    for (std::string_view ns : names) info.OpenDocument().Append("ns", ns);
    info.Done();
    b.Append("ordered", true).Append("errorsOnly", true);
    AppendAsItIs(b);
  });
  return out;
}

void TargetWriter::AppendAsItIs(BsonBuilder& out) const {
  out.Append("bypassDocumentValidation", true);
  if (manner.mayfly) out.Append("bypassEmptyTsReplacement", true);
}

void TargetWriter::AppendOperation(const LinkOperation& op, int32_t ns, BsonBuilder& out) const {
  if (op.kind == LinkOperation::Kind::kDelete) {
    out.Append("delete", ns).Append("filter", op.filter);
    if (LeavesNoTombstone()) out.Append("tombstone", false);
    return;
  }
  if (inserts_ && IsNew(op)) {
    out.Append("insert", ns).Append("document", op.document);
  } else {
    out.Append("update", ns).Append("filter", op.filter);
    AppendReplacement(op.document, "updateMods", out);
    out.Append("upsert", true);
  }
  out.Append("expireAt", op.expire_at());
}

ClusterResult<std::optional<size_t>> TargetWriter::ApplyTogether(
    const std::vector<LinkOperation>& operations, size_t from, size_t most, BsonView state,
    LinkCounters* counters, bool* saved) {
  Bulk bulk = MakeBulk(operations, from, state, true, most, {});
  if (bulk.n <= 1 && manner.version_field.empty()) return std::optional<size_t>();
  Places left_out;
  auto done = target_.WriteTogether([&]() -> ClusterResult<BsonDocument> {
    if (manner.version_field.empty()) return bulk.command;
    MAYFLY_TRY(left_out, NotWanted(operations, from, bulk.n));
    if (!left_out.empty()) bulk = MakeBulk(operations, from, state, true, bulk.n, left_out);
    return bulk.command;
  });
  if (done) {
    MAYFLY_TRY(const std::optional<LinkFailure> failed, FirstFailureOfBulk(done.value()));
    if (!failed) {
      *saved = bulk.with_state;
      for (size_t i = from; i < from + bulk.n; ++i)
        left_out.contains(i) ? void(++counters->not_newer) : Count(operations[i], counters);
      return std::optional(bulk.n);
    }
    // Of one that must be in a transaction: it is the second operation, behind the lease.
    if (manner.version_field.empty() || most > 1) return std::optional<size_t>();
    if (failed->error.code == ErrorCode::kOperationNotSupportedInTransaction) {
      outside_.insert(operations[from].ns);
      return std::optional<size_t>();
    }
    if (failed->index == 0)
      return failed->error.code == ErrorCode::kDuplicateKey ? LeaseLost(link_name_)
                                                            : OfOwn(failed->error);
    const LinkFailure of_one{failed->index - 1, failed->error};
    MAYFLY_TRY(const size_t n, Settle(operations, from, 1, &of_one, counters));
    return std::optional(n);
  }
  // What it is that the target does not take is found one by one.
  if (done.error().error.code == ErrorCode::kIllegalOperation) {
    together_ = false;
    alone_ = kAlone;
  }
  const bool alone = done.error().transient && PassesAlone(done.error().error.code);
  if (done.error().transient && (!alone || most == 1)) return std::move(done).error();
  if (most > 1 || !together_ || manner.version_field.empty()) return std::optional<size_t>();
  switch (done.error().error.code) {
    case ErrorCode::kOperationNotSupportedInTransaction:
      outside_.insert(operations[from].ns);
      return std::optional<size_t>();
    case ErrorCode::kCommandNotSupportedOnView:
    case ErrorCode::kInvalidNamespace: {
      // It is the collection that the target does not take, whatever the document.
      const LinkFailure of_one{0, done.error().error};
      MAYFLY_TRY(const size_t n, Settle(operations, from, 1, &of_one, counters));
      return std::optional(n);
    }
    default:
      return std::move(done).error();
  }
}

ClusterResult<size_t> TargetWriter::ApplyBulk(const std::vector<LinkOperation>& operations,
                                              size_t from, BsonView state, LinkCounters* counters,
                                              bool* saved) {
  // The deletes of two links must be in transactions, one by one if need be.
  const bool only = !manner.version_field.empty();
  if (only) {
    MAYFLY_TRY(LookBack(operations, from, std::min(kMostOperations, operations.size() - from)));
  }
  const auto outside = [&] { return outside_.contains(operations[from].ns); };
  // By fewer each time: one that the target does not take must not cost an attempt for each of the
  // others that wait.
  for (size_t most = kMostOperations; most > 0 && together_ && !outside(); most /= 8) {
    MAYFLY_TRY(const std::optional<size_t> done,
               ApplyTogether(operations, from, most, state, counters, saved));
    if (done) return *done;
    if (!only) break;
  }
  // What no transaction takes, because its collection is capped, is compared just before it.
  const bool one = only && outside();
  if (one) {
    MAYFLY_TRY(const Places left_out, NotWanted(operations, from, 1));
    if (!left_out.empty()) {
      ++counters->not_newer;
      return size_t{1};
    }
  }
  const auto [command, n, with_state] =
      MakeBulk(operations, from, state, false, one ? size_t{1} : kMostOperations, {});
  MAYFLY_TRY(BsonDocument reply, target_.Write("admin", command));
  MAYFLY_TRY(std::optional<LinkFailure> failed, FirstFailureOfBulk(reply));
  if (failed && failed->index-- == 0)
    return failed->error.code == ErrorCode::kDuplicateKey ? LeaseLost(link_name_)
                                                          : OfOwn(failed->error);
  if (failed && failed->error.code == ErrorCode::kDuplicateKey && inserts_ && failed->index < n &&
      IsNew(operations[from + failed->index])) {
    // It exists: this one replaces it, and so do the following ones.
    inserts_ = false;
    for (size_t i = 0; i < failed->index; ++i) Count(operations[from + i], counters);
    return failed->index;
  }
  *saved = with_state && !failed;
  return Settle(operations, from, n, failed ? &*failed : nullptr, counters);
}

ClusterResult<size_t> TargetWriter::ApplyRun(const std::vector<LinkOperation>& operations,
                                             size_t from, LinkCounters* counters) {
  // A target without bulkWrite: those that follow each other in one collection, of one kind.
  const LinkOperation& first = operations[from];
  const bool put = first.kind == LinkOperation::Kind::kPut;
  const size_t dot = first.ns.find('.');
  size_t n = 0;
  const BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append(put ? "update" : "delete", std::string_view(first.ns).substr(dot + 1));
    BsonArrayBuilder list = b.OpenArray(put ? "updates" : "deletes");
    for (; from + n < operations.size() && n < 1000; ++n) {
      const LinkOperation& op = operations[from + n];
      if (op.kind != first.kind || op.ns != first.ns) break;
      if (n > 0 && b.size() + op.Bytes() > kMostBatchBytes) break;
      BsonBuilder o = list.OpenDocument();
      o.Append("q", op.filter);
      if (!put) {
        o.Append("limit", 1);
        continue;
      }
      AppendReplacement(op.document, "u", o);
      o.Append("upsert", true).Append("expireAt", op.expire_at());
    }
    list.Done();
    if (put) AppendAsItIs(b);
  });
  MAYFLY_TRY(CheckLease());
  MAYFLY_TRY(BsonDocument reply, target_.Write(std::string_view(first.ns).substr(0, dot), command));
  MAYFLY_TRY(const std::optional<LinkFailure> failed, FirstFailure(reply));
  return Settle(operations, from, n, failed ? &*failed : nullptr, counters);
}

ClusterResult<void> TargetWriter::Apply(const std::vector<LinkOperation>& operations,
                                        BsonView state, LinkCounters* counters) {
  inserts_ = true;
  back_ = {};
  // A member that knows no transactions may have left the target meanwhile.
  if (!together_ && --alone_ <= 0) together_ = true;
  for (const LinkOperation& op : operations)
    if (op.kind == LinkOperation::Kind::kPut && !carried_.contains(op.ns)) {
      MAYFLY_TRY(Carry(op.ns));
    }
  bool saved = false;
  for (size_t at = 0; at < operations.size();) {
    auto n = bulk_ ? ApplyBulk(operations, at, state, counters, &saved)
                   : ApplyRun(operations, at, counters);
    if (!n && bulk_ && n.error().error.code == ErrorCode::kCommandNotFound) {
      bulk_ = false;
      continue;
    }
    if (!n) return std::move(n).error();
    at += n.value();
  }
  // Not with the last ones where these are large, or one of them was refused.
  return saved ? ClusterResult<void>(Ok()) : SaveState(state);
}

ClusterResult<void> TargetWriter::DropNamesakes(std::string_view db, BsonView create_indexes) {
  const BsonValue list = create_indexes["indexes"];
  if (!list.IsArray()) return Ok();
  for (const BsonElement& e : list.Document()) {
    auto done = target_.Write(db, BuildBson([&](BsonBuilder& b) {
                                b.Append("dropIndexes", create_indexes["createIndexes"]);
                                b.Append("index", DocumentOf(e.value)["name"]);
                              }));
    if (!done && done.error().error.code != ErrorCode::kIndexNotFound)
      return std::move(done).error();
  }
  return Ok();
}

ClusterResult<void> TargetWriter::Run(std::string_view db, BsonView command, LinkCounters* counters,
                                      bool replaces) {
  if (manner.version_field.empty()) {
    MAYFLY_TRY(CheckLease());
    return RunNow(db, command, counters, replaces);
  }
  MAYFLY_TRY(MarkDefinition(db, command));
  MAYFLY_TRY(RunNow(db, command, counters, replaces));
  return UnmarkDefinition();
}

ClusterResult<void> TargetWriter::RunNow(std::string_view db, BsonView command,
                                         LinkCounters* counters, bool replaces) {
  const BsonElement what = command.First();
  if (what.value.IsString() && (what.name == "create" || what.name == "createIndexes")) {
    MAYFLY_TRY(Carry(std::string(db) + "." + std::string(what.value.String())));
  } else if (what.name == "renameCollection" && command["to"].IsString()) {
    MAYFLY_TRY(Carry(command["to"].String()));
  }
  auto done = target_.Write(db, command);
  if (!done && replaces && what.name == "createIndexes" &&
      done.error().error.code == ErrorCode::kIndexKeySpecsConflict) {
    MAYFLY_TRY(DropNamesakes(db, command));
    done = target_.Write(db, command);
  }
  const ErrorCode code = done ? ErrorCode::kOk : done.error().error.code;
  if (done || code == ErrorCode::kNamespaceNotFound) return ForgetCarried(db, command);
  if (code == ErrorCode::kNamespaceExists || code == ErrorCode::kIndexNotFound) return Ok();
  if (done.error().transient || code == ErrorCode::kUnauthorized) return std::move(done).error();
  const BsonElement first = command.First();
  return Refused(db, first.value, done.error().error, counters);
}

ClusterResult<int64_t> TargetWriter::WriteOwn(BsonView command) {
  MAYFLY_TRY(BsonDocument reply, target_.Write(kLinkDatabase, command));
  MAYFLY_TRY(const std::optional<LinkFailure> failed, FirstFailure(reply));
  if (failed) return OfOwn(failed->error);
  return IntOf(reply, "n");
}

ClusterResult<void> TargetWriter::NoteInCarried(std::string_view ns, std::string_view field,
                                                std::string_view value) {
  MAYFLY_TRY(WriteOwn(BuildBson([&](BsonBuilder& b) {
    b.Append("update", "carried");
    BsonArrayBuilder updates = b.OpenArray("updates");
    BsonBuilder u = updates.OpenDocument();
    BsonBuilder q = u.OpenDocument("q");
    q.OpenDocument("_id").Append("link", link_name_).Append("ns", ns);
    q.Done();
    u.OpenDocument("u").OpenDocument("$set").Append(field, value);
    u.Append("upsert", true);
  })));
  return Ok();
}

ClusterResult<void> TargetWriter::Carry(std::string_view ns) {
  if (carried_.contains(ns)) return Ok();
  MAYFLY_TRY(NoteInCarried(ns, "ns", ns));
  carried_.emplace(ns);
  return Ok();
}

ClusterResult<void> TargetWriter::NoteCopied(std::string_view ns, std::string_view copy) {
  return NoteInCarried(ns, "copied", copy);
}

ClusterResult<std::vector<std::string>> TargetWriter::Carried() {
  return ReadCarried("ns", BuildBson([](BsonBuilder& b) { b.Append("$exists", true); }));
}

ClusterResult<std::vector<std::string>> TargetWriter::Copied(std::string_view copy) {
  return ReadCarried("copied", BuildBson([&](BsonBuilder& b) { b.Append("$eq", copy); }));
}

ClusterResult<std::vector<std::string>> TargetWriter::ReadCarried(std::string_view field,
                                                                  BsonView wanted) {
  std::vector<std::string> out;
  BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("find", "carried").Append("batchSize", int64_t{1000});
    b.OpenDocument("filter").Append("_id.link", link_name_).Append(field, wanted);
  });
  for (;;) {
    MAYFLY_TRY(BsonDocument reply, target_.Command(kLinkDatabase, command));
    MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
    for (const BsonElement& e : batch.documents)
      out.emplace_back(TextOf(DocumentOf(e.value.Document()["_id"])["ns"]));
    if (out.size() > kMostListed) return Malformed("more collections than there can be");
    if (batch.cursor == 0) return out;
    command = BuildBson([&](BsonBuilder& b) {
      b.Append("getMore", batch.cursor).Append("collection", "carried");
      b.Append("batchSize", int64_t{1000});
    });
  }
}

ClusterResult<void> TargetWriter::ForgetCarried(std::string_view db, BsonView command) {
  const BsonElement what = command.First();
  std::string ns;
  if (what.name == "drop")
    ns = std::string(db) + "." + std::string(TextOf(what.value));
  else if (what.name == "renameCollection")
    ns = TextOf(what.value);  // check_names: of a command that the link has made
  else
    return Ok();  // the drops of a database's collections come before its own
  carried_.erase(ns);
  outside_.erase(ns);
  MAYFLY_TRY(WriteOwn(BuildBson([&](BsonBuilder& b) {
    b.Append("delete", "carried");
    BsonArrayBuilder list = b.OpenArray("deletes");
    BsonBuilder d = list.OpenDocument();
    BsonBuilder q = d.OpenDocument("q");
    q.OpenDocument("_id").Append("link", link_name_).Append("ns", ns);
    q.Done();
    d.Append("limit", 1);
  })));
  return Ok();
}

ClusterResult<void> TargetWriter::CheckLease() { return WriteLease(LeaseUpdate()); }

ClusterResult<void> TargetWriter::MarkDefinition(std::string_view db, BsonView command) {
  // The other link must see all of it as new, not what is different from an earlier one.
  if (marked_) {
    MAYFLY_TRY(UnmarkDefinition());
  }
  marked_ = true;
  const BsonValue name = command.First().value;
  return WriteLease(BuildBson([&](BsonBuilder& b) {
    b.AppendAll(LeaseUpdate().view());
    BsonBuilder set = b.OpenDocument("$set");
    BsonBuilder d = set.OpenDocument("definition");
    // A rename names both as namespaces; a drop of a database names none.
    if (command.First().name == "renameCollection")
      d.Append("ns", name).Append("to", command["to"]);
    else if (name.IsString())
      d.Append("ns", std::string(db) + "." + std::string(name.String()));
    else
      d.Append("ns", db);
    d.Append("command", command.First().name);
    if (command["indexes"].IsArray()) {
      BsonArrayBuilder names = d.OpenArray("indexes");
      for (const BsonElement& e : command["indexes"].Document())
        names.Append(TextOf(DocumentOf(e.value)["name"]));
    }
    d.Append("runner", runner_).Append("n", ++definitions_);
  }));
}

ClusterResult<void> TargetWriter::UnmarkDefinition() {
  MAYFLY_TRY(WriteLease(BuildBson([&](BsonBuilder& b) {
    b.AppendAll(LeaseUpdate().view());
    b.OpenDocument("$unset").Append("definition", "");
  })));
  marked_ = false;
  return Ok();
}

ClusterResult<void> TargetWriter::WriteLease(BsonView update) {
  MAYFLY_TRY(BsonDocument reply, target_.Write(kLinkDatabase, BuildBson([&](BsonBuilder& b) {
                                                 b.Append("update", "links");
                                                 BsonArrayBuilder updates = b.OpenArray("updates");
                                                 BsonBuilder u = updates.OpenDocument();
                                                 u.Append("q", LeaseFilter(link_name_, runner_));
                                                 u.Append("u", update).Append("upsert", true);
                                               })));
  MAYFLY_TRY(const std::optional<LinkFailure> failed, FirstFailure(reply));
  if (!failed) return Ok();
  if (failed->error.code == ErrorCode::kDuplicateKey) return LeaseLost(link_name_);
  return OfOwn(failed->error);
}

ClusterResult<void> TargetWriter::SaveState(BsonView state) {
  MAYFLY_TRY(const int64_t found, WriteOwn(BuildBson([&](BsonBuilder& b) {
               b.Append("update", "links");
               BsonArrayBuilder updates = b.OpenArray("updates");
               BsonBuilder u = updates.OpenDocument();
               u.Append("q", LeaseFilter(link_name_, runner_)).Append("u", StateUpdate(state));
             })));
  if (found == 0) return LeaseLost(link_name_);
  return Ok();
}

}  // namespace mayfly
