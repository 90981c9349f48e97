#include "link/change_reader.h"

#include <utility>

#include "link/definitions.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

/// Of a document before and after a change, and of what an event has besides.
constexpr size_t kMostEventBytes = 48 << 20;
/// The largest expireAfterSeconds.
constexpr int64_t kMostSeconds = INT32_MAX;

BsonDocument EventStage(bool mayfly, BsonView token, uint64_t time) {
  return BuildBson([&](BsonBuilder& b) {
    BsonBuilder s = b.OpenDocument("$changeStream");
    s.Append("fullDocument", "updateLookup").Append("allChangesForCluster", true);
    s.Append("showExpandedEvents", true);
    if (mayfly) s.Append("showExpiryEvents", true).Append("showExpireAt", true);
    if (!token.empty())
      s.Append("resumeAfter", token);
    else
      s.AppendTimestamp("startAtOperationTime", time);
  });
}

/// Whether `{_id: id}` means equality.
bool IsPlain(BsonValue id) {
  if (id.IsDocument()) return id.Document().empty() || !id.Document().First().name.starts_with('$');
  return !id.missing() && !id.IsArray() && !id.Is(BsonType::kRegex) && !id.Is(BsonType::kUndefined);
}

}  // namespace

BsonValue IdOfFilter(BsonView filter) {
  const BsonValue id = filter["_id"];
  return IsPlain(id) || !id.IsDocument() ? id : id.Document()["$eq"];
}

BsonDocument DocumentFilter(BsonValue id, std::string_view version_field, BsonValue version,
                            bool or_equal) {
  return BuildBson([&](BsonBuilder& b) {
    // With the plain value alone, it is a look-up without a plan.
    if (IsPlain(id))
      b.Append("_id", id);
    else
      b.OpenDocument("_id").Append("$eq", id);
    if (version_field.empty() || version.missing()) return;
    b.OpenDocument(version_field).Append(or_equal ? "$lte" : "$lt", version);
  });
}

std::optional<LinkOperation> EventTranslator::Put(std::string_view ns, BsonView document,
                                                  BsonValue expire_at,
                                                  LinkOperation::Why why) const {
  const BsonValue version =
      options_.version_field.empty() ? BsonValue() : document[options_.version_field];
  if ((!options_.version_field.empty() && !version.IsDate()) || document["_id"].missing()) {
    refused_.push_back(
        {std::string(ns), BuildBson([&](BsonBuilder& b) { b.Append("id", document["_id"]); }),
         document["_id"].missing() ? "it has no _id"
                                   : "it has no date in the field " + options_.version_field});
    return std::nullopt;
  }
  LinkOperation op;
  op.why = why;
  op.ns = ns;
  op.filter = DocumentFilter(document["_id"], options_.version_field, version, false);
  op.document = BsonDocument(document);
  if (version.IsDate()) op.version = BuildBson([&](BsonBuilder& b) { b.Append("v", version); });
  if (expire_at.IsDate() && !options_.filter_bypass_expiry)
    op.deadline = BuildBson([&](BsonBuilder& b) { b.Append("at", expire_at); });
  else if (says_none)
    op.deadline = BuildBson([&](BsonBuilder& b) { b.AppendNull("at"); });
  return op;
}

ClusterResult<std::optional<std::pair<std::string, Instant>>> EventTranslator::RuleOf(
    std::string_view ns, std::string_view index, int64_t deadline) {
  std::optional<std::pair<std::string, Instant>> out;
  if (rules_.ns != ns) {
    const size_t dot = ns.find('.');
    auto listed = source_.Command(ns.substr(0, dot), BuildBson([&](BsonBuilder& b) {
                                    b.Append("listIndexes", ns.substr(dot + 1));
                                    b.OpenDocument("cursor").Append("batchSize", 1000);
                                  }));
    if (!listed && listed.error().transient) return std::move(listed).error();
    rules_ = {};
    if (listed) {
      MAYFLY_TRY(const CursorBatch indexes, BatchOf(listed.value()));
      rules_.indexes = BsonDocument(indexes.documents);
    }
    rules_.ns = ns;
  }
  for (const BsonElement& e : rules_.indexes.view()) {
    const BsonView there = e.value.Document(), key = DocumentOf(there["key"]);
    if (TextOf(there["name"]) != index) continue;
    const int64_t seconds = IntOf(there, "expireAfterSeconds");
    if (!there["expireAfterSeconds"].IsNumber() || seconds < 0 || seconds > kMostSeconds ||
        key.empty())
      break;
    out.emplace(key.First().name, Instant{deadline - seconds * 1000});
    break;
  }
  return out;
}

ClusterResult<void> EventTranslator::AppendExpiry(std::string_view ns, BsonView event,
                                                  Change* out) {
  if (options_.filter_expiration) return Ok();
  const BsonValue id = DocumentOf(event["documentKey"])["_id"], at = event["expireAt"];
  if (id.missing()) return Malformed("an expiry without the key of its document");
  const std::string_view reason = TextOf(event["reason"]);
  LinkOperation op;
  op.kind = LinkOperation::Kind::kDelete;
  op.why = LinkOperation::Why::kExpired;
  op.ns = ns;
  op.filter = DocumentFilter(id, options_.version_field, event["expiredAt"], true);
  // Only the document with this deadline: one written since then has another one, or none.
  if (reason == "document" && at.IsDate() && !options_.filter_bypass_expiry) {
    op.filter = BuildBson([&](BsonBuilder& b) {
      b.AppendAll(BsonDocument(op.filter).view());
      BsonBuilder expr = b.OpenDocument("$expr");
      BsonArrayBuilder eq = expr.OpenArray("$eq");
      eq.OpenDocument().Append("$meta", "expireAt");
      eq.Append(at);
    });
  } else if (reason == "ttlIndex") {
    std::optional<std::pair<std::string, Instant>> rule;
    // Not by the index as it is now: its lifetime may be another one, or the index gone.
    if (event["field"].IsString() && event["date"].IsDate()) {
      rule.emplace(event["field"].String(), event["date"].Date());
    } else if (at.IsDate()) {
      MAYFLY_TRY(rule, RuleOf(ns, TextOf(event["rule"]), MillisOf(at)));
    }
    if (!rule) {
      refused_.push_back(
          {std::string(ns), BuildBson([&](BsonBuilder& b) { b.Append("id", id); }),
           "it expired at the source by the TTL index " + std::string(TextOf(event["rule"])) +
               ", and neither the event nor the source says by which date: the target's document "
               "may have been written since, so it stays. Remove it if it should be gone"});
      return Ok();
    }
    op.filter = BuildBson([&](BsonBuilder& b) {
      b.AppendAll(BsonDocument(op.filter).view());
      b.Append(rule->first, rule->second);
    });
  }
  out->operations.push_back(std::move(op));
  return Ok();
}

void EventTranslator::AppendDrop(std::string_view type, std::string_view db,
                                 std::string_view collection, BsonView event, Change* out) {
  const bool from = selection_.Has(db, collection);
  if (type == "drop") {
    if (not_carried.erase(std::string(db) + "." + std::string(collection)) > 0) return;
    if (from && !options_.filter_deletion)
      out->commands.emplace_back(db,
                                 BuildBson([&](BsonBuilder& b) { b.Append("drop", collection); }));
    return;
  }
  if (type == "dropDatabase") {
    // The drops of its collections came before it.
    if (selection_.HasWholeDatabase(db) && !options_.filter_deletion)
      out->commands.emplace_back(db,
                                 BuildBson([&](BsonBuilder& b) { b.Append("dropDatabase", 1); }));
    return;
  }
  const BsonView to = DocumentOf(event["to"]);
  // check_names: the selection looks at them, and the target at all that it is sent
  const std::string to_db(TextOf(to["db"])), to_name(TextOf(to["coll"]));
  const bool into = selection_.Has(to_db, to_name);
  if (not_carried.erase(std::string(db) + "." + std::string(collection)) > 0) {
    not_carried.insert(to_db + "." + to_name);
    return;
  }
  const BsonValue when = event["clusterTime"];
  if (from && into && when.Is(BsonType::kTimestamp) && when.Timestamp() <= copied_until) {
    if (!options_.filter_deletion) {
      out->commands.emplace_back(db,
                                 BuildBson([&](BsonBuilder& b) { b.Append("drop", collection); }));
      // With links in both directions its documents may be on their way to the source.
      if (options_.version_field.empty())
        out->commands.emplace_back(to_db,
                                   BuildBson([&](BsonBuilder& b) { b.Append("drop", to_name); }));
    }
    out->copy.push_back(to_db + "." + to_name);
  } else if (from && into) {
    out->commands.emplace_back("admin", BuildBson([&](BsonBuilder& b) {
                                 b.Append("renameCollection",
                                          std::string(db) + "." + std::string(collection));
                                 b.Append("to", to_db + "." + to_name).Append("dropTarget", true);
                               }));
  } else if (into) {
    // Such as a temporary one that takes the place of another one ($out): nothing of that stays.
    const BsonValue replaced = DocumentOf(event["operationDescription"])["dropTarget"];
    if (replaced.Truthy() && !options_.filter_deletion)
      out->commands.emplace_back(to_db,
                                 BuildBson([&](BsonBuilder& b) { b.Append("drop", to_name); }));
    out->copy.push_back(to_db + "." + to_name);
  } else if (from && !options_.filter_deletion) {
    out->commands.emplace_back(db,
                               BuildBson([&](BsonBuilder& b) { b.Append("drop", collection); }));
  }
}

void EventTranslator::AppendDefinition(std::string_view type, std::string_view db,
                                       std::string_view collection, BsonView event, Change* out) {
  const BsonValue given = event["operationDescription"];
  if (!options_.definitions || !selection_.Has(db, collection) || !given.IsDocument()) return;
  const BsonView what = given.Document();
  const std::string ns = std::string(db) + "." + std::string(collection);
  if (type == "create" && IsTimeSeries(what)) not_carried.insert(ns);
  if (not_carried.contains(ns)) return;
  BsonDocument command;
  if (type == "create") {
    command = CreateCommand(collection, what);
  } else if (type == "createIndexes") {
    command = BuildBson([&](BsonBuilder& b) {
      b.Append("createIndexes", collection).Append("indexes", what["indexes"]);
    });
  } else if (type == "dropIndexes") {
    if (!what["indexes"].IsArray()) return;
    for (const BsonElement& e : what["indexes"].Document()) {
      if (!e.value.IsDocument()) continue;
      out->commands.emplace_back(
          db, BuildBson([&](BsonBuilder& b) {
            b.Append("dropIndexes", collection).Append("index", e.value.Document()["name"]);
          }));
    }
    return;
  } else {
    // A source that is a Mayfly describes the collection as it is then, another one the change.
    const BsonView before = DocumentOf(DocumentOf(event["stateBeforeChange"])["collectionOptions"]);
    std::optional<BsonDocument> change =
        what["index"].IsDocument() ? ModifyIndexCommand(collection, what["index"].Document())
                                   : ModifyCommand(collection, before, what, false);
    if (!change) return;
    command = std::move(*change);
  }
  out->commands.emplace_back(db, std::move(command));
}

ClusterResult<void> EventTranslator::Append(BsonView event, Change* out) {
  const BsonView names = DocumentOf(event["ns"]);
  const std::string_view type = TextOf(event["operationType"]);
  if (type.empty()) return Malformed("an event without operationType");
  // check_names: the selection looks at them, and the target at all that it is sent
  const std::string_view db = TextOf(names["db"]), collection = TextOf(names["coll"]);
  const std::string ns = std::string(db) + "." + std::string(collection);
  const bool document = type == "insert" || type == "replace" || type == "update" ||
                        type == "delete" || type == "expire";
  if (echoes != nullptr && db == kLinkDatabase && collection == "links") {
    echoes->See(event);
    return Ok();
  }
  if (!document) {
    rules_.ns.clear();
    if (echoes != nullptr && echoes->Defined(event)) return Ok();
    if (type == "drop" || type == "dropDatabase" || type == "rename")
      AppendDrop(type, db, collection, event, out);
    else if (type == "create" || type == "createIndexes" || type == "dropIndexes" ||
             type == "modify")
      AppendDefinition(type, db, collection, event, out);
    return Ok();
  }
  if (db.empty() || collection.empty())
    return Malformed("a change of a document without its collection");
  if (!selection_.Has(db, collection)) return Ok();
  // What has come from there is there, and may be outdated by now.
  const bool echo = echoes != nullptr && echoes->Wrote(event);
  if (echo && (type == "delete" || without_echoes)) return Ok();
  if (type == "expire") return AppendExpiry(ns, event, out);
  if (type == "delete") {
    if (options_.filter_deletion) return Ok();
    const BsonValue id = DocumentOf(event["documentKey"])["_id"];
    if (id.missing()) return Malformed("a delete without the key of its document");
    LinkOperation op;
    op.kind = LinkOperation::Kind::kDelete;
    op.why = LinkOperation::Why::kDeleted;
    op.ns = ns;
    op.filter = DocumentFilter(id, options_.version_field, event["wallTime"], true);
    out->operations.push_back(std::move(op));
    return Ok();
  }
  const BsonValue doc = event["fullDocument"];
  if (doc.IsNullish()) return Ok();  // It is gone by now: its delete follows.
  if (!doc.IsDocument()) return Malformed("a change with what is no document");
  if (auto op = Put(ns, doc.Document(), event["expireAt"], LinkOperation::Why::kWritten)) {
    op->echo = echo;
    out->operations.push_back(std::move(*op));
  }
  return Ok();
}

ClusterResult<void> ChangeReader::Open(BsonView token, uint64_t time) {
  Close();
  const BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("aggregate", 1);
    {
      BsonArrayBuilder stages = b.OpenArray("pipeline");
      stages.Append(EventStage(mayfly_, token, time));
      if (!options_.filter.view().empty()) {
        // It was checked when it was read.
        if (auto match = EventMatch(options_.filter))
          stages.OpenDocument().Append("$match", match.value());
      }
      stages.OpenDocument().OpenDocument("$changeStreamSplitLargeEvent");
    }
    b.OpenDocument("cursor");
    b.OpenDocument("readConcern").Append("level", "majority");
  });
  MAYFLY_TRY(BsonDocument reply, source_.Command("admin", command));
  cursor_ = IntOf(DocumentOf(reply.view()["cursor"]), "id");
  MAYFLY_TRY(first_, Take(reply, &first_token_));
  return Ok();
}

ClusterResult<std::vector<BsonDocument>> ChangeReader::Take(BsonView reply, BsonDocument* token) {
  std::vector<BsonDocument> out;
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  for (const BsonElement& e : batch.documents) {
    const BsonView event = e.value.Document();
    const BsonValue split = event["splitEvent"];
    if (split.missing() && fragments_.empty()) {
      out.emplace_back(event);
      continue;
    }
    // A large event comes in fragments, each with some of its fields. Until the last one is there
    // the position is before the first; the token of the last one is the event's.
    const BsonView part = DocumentOf(split);
    const int64_t number = IntOf(part, "fragment"), of = IntOf(part, "of");
    if (fragments_.empty()) fragments_.assign(4, '\0'), fragments_read_ = 0;
    if (number != ++fragments_read_ || of < number)
      return Malformed("a fragment of an event that is not the next one");
    if (fragments_.size() + event.size() > kMostEventBytes)
      return Malformed("an event that is too large");
    for (const BsonElement& f : event)
      if ((f.name != "_id" || number == of) && f.name != "splitEvent")
        fragments_.append(f.name.data() - 1, f.name.size() + 2 + f.value.size());
    if (number < of) continue;
    fragments_.push_back('\0');
    StoreLe<int32_t>(fragments_.data(), static_cast<int32_t>(fragments_.size()));
    out.emplace_back(std::exchange(fragments_, {}));
  }
  const BsonView at = DocumentOf(DocumentOf(reply["cursor"])["postBatchResumeToken"]);
  if (!at.empty() && fragments_.empty()) *token = BsonDocument(at);
  return out;
}

ClusterResult<std::vector<BsonDocument>> ChangeReader::Next(BsonDocument* token) {
  if (!first_.empty() || !first_token_.view().empty()) {
    *token = std::exchange(first_token_, {});
    return std::exchange(first_, {});
  }
  if (cursor_ == 0)
    return ClusterError{{ErrorCode::kCursorNotFound, "the change stream has ended"}, true};
  const BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("getMore", cursor_).Append("collection", "$cmd.aggregate");
    b.Append("batchSize", int64_t{5000}).Append("maxTimeMS", int64_t{1000});
  });
  auto reply = source_.Command("admin", command);
  if (!reply) {
    cursor_ = 0;
    return std::move(reply).error();
  }
  cursor_ = IntOf(DocumentOf(reply.value().view()["cursor"]), "id");
  return Take(reply.value(), token);
}

void ChangeReader::Close() {
  fragments_.clear();
  first_.clear();
  first_token_ = {};
  if (cursor_ == 0) return;
  // Its errors do not matter: a cursor that is not used ends by itself.
  (void)source_.Command("admin", BuildBson([&](BsonBuilder& b) {
                          b.Append("killCursors", "$cmd.aggregate");
                          BsonArrayBuilder list = b.OpenArray("cursors");
                          list.Append(cursor_);
                        }));
  cursor_ = 0;
}

}  // namespace mayfly
