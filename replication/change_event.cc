#include "replication/change_event.h"

#include <algorithm>
#include <cctype>

#include "protocol/bson_builder.h"
#include "protocol/database_name.h"
#include "replication/oplog.h"
#include "storage/catalog/namespace.h"
#include "storage/read/visibility.h"

namespace mayfly {
namespace {

using Spec = ChangeStreamSpec;

/// A part of a path: a field's name, or a position in an array.
struct PathPart {
  std::string name;
  int index = -1;
};

bool IsNumeric(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Walks a diff and records its effects, path by path.
class DiffWalk {
 public:
  explicit DiffWalk(bool expanded) : expanded_(expanded) {}

  void Document(BsonView diff) {
    for (const BsonElement& e : diff) {
      if (e.name == "d") {
        for (const BsonElement& f : e.value.Document()) {
          path_.push_back({std::string(f.name)});
          removed_.Append(Path());
          path_.pop_back();
        }
      } else if (e.name == "u" || e.name == "i") {
        for (const BsonElement& f : e.value.Document()) {
          path_.push_back({std::string(f.name)});
          updated_.Append(Path(), f.value);
          path_.pop_back();
        }
      } else if (e.name.starts_with('s')) {
        path_.push_back({std::string(e.name.substr(1))});
        Nested(e.value.Document());
        path_.pop_back();
      }
    }
  }

  void Finish(BsonBuilder& out) {
    updated_.Done();
    removed_.Done();
    truncated_.Done();
    paths_.Done();
    out.Append("updatedFields", BsonView(updated_bytes_));
    out.AppendArray("removedFields", BsonView(removed_bytes_));
    out.AppendArray("truncatedArrays", BsonView(truncated_bytes_));
    if (expanded_) out.Append("disambiguatedPaths", BsonView(paths_bytes_));
  }

 private:
  void Nested(BsonView diff) {
    if (!diff["a"].Is(BsonType::kBool)) return Document(diff);
    for (const BsonElement& e : diff) {
      if (e.name == "l") {
        BsonBuilder t = truncated_.OpenDocument();
        t.Append("field", Path()).Append("newSize", e.value);
      } else if (e.name != "a") {
        path_.push_back(
            {std::string(e.name.substr(1)), std::atoi(std::string(e.name.substr(1)).c_str())});
        if (e.name[0] == 'u')
          updated_.Append(Path(), e.value);
        else
          Nested(e.value.Document());
        path_.pop_back();
      }
    }
  }

  /// The path in dots; notes its parts where the dots alone do not tell.
  std::string Path() {
    std::string dotted;
    bool ambiguous = false;
    for (size_t i = 0; i < path_.size(); ++i) {
      if (i > 0) dotted += '.';
      dotted += path_[i].name;
      ambiguous = ambiguous || path_[i].name.find('.') != std::string::npos ||
                  (i > 0 && IsNumeric(path_[i].name));
    }
    if (expanded_ && ambiguous) {
      BsonArrayBuilder parts = paths_.OpenArray(dotted);
      for (const PathPart& p : path_) {
        if (p.index >= 0)
          parts.Append(p.index);
        else
          parts.Append(p.name);
      }
    }
    return dotted;
  }

  const bool expanded_;
  std::vector<PathPart> path_;
  std::string updated_bytes_, removed_bytes_, truncated_bytes_, paths_bytes_;
  BsonBuilder updated_{updated_bytes_};
  BsonArrayBuilder removed_{removed_bytes_}, truncated_{truncated_bytes_};
  BsonBuilder paths_{paths_bytes_};
};

void AppendNamespace(std::string_view name, std::string_view ns, BsonBuilder& out) {
  const NamespaceParts parts = SplitNamespace(ns);
  BsonBuilder n = out.OpenDocument(name);
  n.Append("db", parts.db);
  if (!parts.collection.empty()) n.Append("coll", parts.collection);
}

/// _id, operationType, clusterTime, collectionUUID, wallTime, and its transaction.
void AppendHead(StreamPosition at, std::string_view type, std::string_view uuid, bool expanded,
                const LogUnit& u, BsonBuilder& out) {
  out.OpenDocument("_id").Append("_data", at.ToToken());
  out.Append("operationType", type).AppendTimestamp("clusterTime", at.ts);
  if (expanded && !uuid.empty()) out.AppendBinary("collectionUUID", 4, uuid);
  out.Append("wallTime", Instant{u.wall});
  if (u.transaction) out.Append("lsid", BsonView(u.lsid)).Append("txnNumber", u.txn_number);
}

/// The name of an event's rule, as pauses, forecasts and explanations name it.
std::string_view RuleName(const LogRecord& r) {
  if (r.reason == DeleteReason::kExpiredDocument) return "document";
  if (r.reason == DeleteReason::kExpiredClustered) return "clustered";
  return r.rule;
}

Error NoImage(std::string_view which, std::string_view events, StreamPosition at) {
  Error e{ErrorCode::kNoMatchingDocument,
          "Change stream was configured to require a " + std::string(which) + " for all " +
              std::string(events) + " events, but the " + std::string(which) +
              " was not found for event: " + at.ToToken()};
  e.details = BuildBson([](BsonBuilder& b) {
                b.OpenArray("errorLabels").Append("NonResumableChangeStreamError");
              }).bytes();
  return e;
}

/// The document as it is now, or null. `expire_at`: its own deadline, unless there is none of it.
Result<void> AppendLookup(Storage& storage, Operation& op, const LogCollection& logged,
                          BsonValue id, std::optional<Instant>* expire_at, BsonBuilder& out) {
  expire_at->reset();
  // Privileges are about names. A collection that has another name by now may be one that the
  // stream's user may not read.
  auto named = [&]() -> CollectionInfoPtr {
    CollectionInfoPtr coll = storage.catalog().FindById(logged.id);
    return coll && coll->ns == logged.ns ? coll : nullptr;
  };
  const CollectionInfoPtr coll = named();
  Storage::Record found;
  if (coll) {
    MAYFLY_TRY(bool there, storage.FindById(*coll, id, &found));
    // Asked again, because a rename and a write may have come before the read.
    if (there && named() && Visibility(storage, *coll, op.now).Shows(found.doc, found.expire_at)) {
      out.Append("fullDocument", found.doc);
      *expire_at = found.expire_at;
      return Ok();
    }
  }
  out.AppendNull("fullDocument");
  return Ok();
}

Result<void> AppendBefore(const Spec& spec, const ImageLife& images, const LogUnit& u,
                          const LogRecord& r, StreamPosition at, BsonBuilder& out) {
  if (spec.before_change == Spec::BeforeChange::kOff) return Ok();
  if (!r.before.empty() && images.Kept(u.wall)) {
    out.Append("fullDocumentBeforeChange", BsonView(r.before));
    return Ok();
  }
  if (spec.before_change == Spec::BeforeChange::kRequired)
    return NoImage("pre-image", "update, delete and replace", at);
  out.AppendNull("fullDocumentBeforeChange");
  return Ok();
}

Result<void> AppendDocumentEvent(const Spec& spec, Storage& storage, Operation& op,
                                 const ImageLife& images, const LogUnit& u, const LogRecord& r,
                                 StreamPosition at, BsonBuilder& out) {
  const LogCollection& c = u.collections[r.collection];
  if (r.kind == LogRecord::kInsert) {
    std::optional<Instant> expire_at;
    const BsonView doc = LoggedDocument(u, r, &expire_at);
    AppendHead(at, "insert", c.uuid, spec.expanded, u, out);
    out.Append("fullDocument", doc);
    if (spec.deadlines && expire_at) out.Append("expireAt", *expire_at);
    AppendNamespace("ns", c.ns, out);
    out.OpenDocument("documentKey").Append("_id", doc["_id"]);
    return Ok();
  }
  if (r.kind == LogRecord::kDelete) {
    const bool expired = spec.expiry && IsExpiry(r);
    AppendHead(at, expired ? "expire" : "delete", c.uuid, spec.expanded, u, out);
    AppendNamespace("ns", c.ns, out);
    out.Append("documentKey", BsonView(r.detail));
    if (expired) {
      out.Append("expireAt", Instant{r.deadline}).Append("expiredAt", Instant{u.wall});
      out.Append("rule", RuleName(r)).Append("reason", ExpiryReasonName(r.reason));
      if (!r.field.empty()) out.Append("field", r.field).Append("date", Instant{r.date});
    }
    return AppendBefore(spec, images, u, r, at, out);
  }
  std::optional<Instant> expire_at;
  const BsonView doc = LoggedDocument(u, r, &expire_at);
  const bool replaced = r.detail.empty();
  AppendHead(at, replaced ? "replace" : "update", c.uuid, spec.expanded, u, out);
  if (replaced) {
    out.Append("fullDocument", doc);
  } else if (spec.full_document == Spec::FullDocument::kWhenAvailable ||
             spec.full_document == Spec::FullDocument::kRequired) {
    // The log has the document as the update left it. It is shown in the cases in which MongoDB
    // could build it from the earlier document and the change.
    if (!r.before.empty() && images.Kept(u.wall))
      out.Append("fullDocument", doc);
    else if (spec.full_document == Spec::FullDocument::kRequired)
      return NoImage("post-image", "update", at);
    else
      out.AppendNull("fullDocument");
  } else if (spec.full_document == Spec::FullDocument::kUpdateLookup) {
    MAYFLY_TRY(AppendLookup(storage, op, c, doc["_id"], &expire_at, out));
  }
  if (spec.deadlines && expire_at) out.Append("expireAt", *expire_at);
  AppendNamespace("ns", c.ns, out);
  out.OpenDocument("documentKey").Append("_id", doc["_id"]);
  if (!replaced) {
    BsonBuilder d = out.OpenDocument("updateDescription");
    AppendUpdateDescription(BsonView(r.detail), spec.expanded, d);
  }
  return AppendBefore(spec, images, u, r, at, out);
}

/// The fields of `o` behind the first one.
void AppendRest(BsonView o, BsonBuilder& out) {
  bool first = true;
  for (const BsonElement& e : o) {
    if (!first) out.Append(e);
    first = false;
  }
}

/// An entry `c` of the oplog.
class CommandEvent {
 public:
  CommandEvent(const Spec& spec, const ChangeStreamFilter& filter, const LogUnit& u,
               const LogRecord& r, StreamPosition at, std::vector<ChangeEvent>* out)
      : spec_(spec), filter_(filter), u_(u), r_(r), o_(r.detail), at_(at), out_(out) {}

  void Append() {
    const BsonElement first = o_.First();
    const std::string_view name = first.name;
    if (name == "dropDatabase") return DropDatabase();
    if (!first.value.IsString()) return;
    if (name == "renameCollection") return Rename(first.value.String());
    ns_ = JoinNamespace(r_.db, first.value.String());  // check_names: of an entry that was applied
    if (!filter_.Watches(ns_)) return;
    // Views are not collections. Only streams with showExpandedEvents report them.
    if (r_.uuid.empty() && !spec_.expanded) return;
    if (name == "drop") {
      Event("drop", [](BsonBuilder&) {});
      if (spec_.scope == Spec::Scope::kCollection) Invalidate();
    } else if (!spec_.expanded) {
      return;
    } else if (name == "create") {
      Event("create", [&](BsonBuilder& b) {
        BsonBuilder d = b.OpenDocument("operationDescription");
        AppendRest(o_, d);
      });
    } else if (name == "createIndexes") {
      Event("createIndexes", [&](BsonBuilder& b) {
        BsonBuilder d = b.OpenDocument("operationDescription");
        BsonArrayBuilder list = d.OpenArray("indexes");
        BsonBuilder spec = list.OpenDocument();
        AppendRest(o_, spec);
      });
    } else if (name == "commitIndexBuild") {
      Event("createIndexes", [&](BsonBuilder& b) {
        BsonBuilder d = b.OpenDocument("operationDescription");
        d.Append("indexes", o_["indexes"]);
      });
    } else if (name == "dropIndexes") {
      Event("dropIndexes", [&](BsonBuilder& b) {
        BsonBuilder d = b.OpenDocument("operationDescription");
        BsonArrayBuilder list = d.OpenArray("indexes");
        list.Append(BsonView(r_.o2));
      });
    } else if (name == "collMod") {
      Event("modify", [&](BsonBuilder& b) {
        {
          BsonBuilder d = b.OpenDocument("operationDescription");
          AppendRest(o_, d);
        }
        BsonBuilder s = b.OpenDocument("stateBeforeChange");
        if (r_.o2.empty()) return;
        const BsonView before(r_.o2);
        s.Append("collectionOptions", before["collectionOptions_old"]);
        s.Append("indexOptions", before["indexOptions_old"]);
      });
    }
  }

 private:
  template <class F>
  void Event(std::string_view type, F&& more) {
    out_->push_back({at_, BuildBson([&](BsonBuilder& b) {
                       AppendHead(at_, type, r_.uuid, spec_.expanded, u_, b);
                       AppendNamespace("ns", ns_, b);
                       more(b);
                     })});
  }
  void Invalidate() {
    StreamPosition at = at_;
    at.kind = StreamPosition::kInvalidate;
    out_->push_back(
        {at, BuildBson([&](BsonBuilder& b) { AppendHead(at, "invalidate", {}, false, u_, b); })});
  }
  void DropDatabase() {
    if (!filter_.WatchesDatabase(r_.db)) return;
    ns_ = r_.db;
    if (spec_.scope != Spec::Scope::kCollection) Event("dropDatabase", [](BsonBuilder&) {});
    if (spec_.scope != Spec::Scope::kCluster) Invalidate();
  }
  void Rename(std::string_view from) {
    const BsonValue to = o_["to"];
    if (!to.IsString() || !(filter_.Watches(from) || filter_.Watches(to.String()))) return;
    if (r_.uuid.empty() && !spec_.expanded) return;  // a time series
    ns_ = from;
    Event("rename", [&](BsonBuilder& b) {
      AppendNamespace("to", to.String(), b);
      if (!spec_.expanded) return;
      BsonBuilder d = b.OpenDocument("operationDescription");
      AppendNamespace("to", to.String(), d);
      d.Append("dropTarget", o_["dropTarget"]);
    });
    if (spec_.scope == Spec::Scope::kCollection) Invalidate();
  }

  const Spec& spec_;
  const ChangeStreamFilter& filter_;
  const LogUnit& u_;
  const LogRecord& r_;
  const BsonView o_;
  const StreamPosition at_;
  std::vector<ChangeEvent>* const out_;
  std::string ns_;
};

}  // namespace

void AppendUpdateDescription(BsonView diff, bool expanded, BsonBuilder& out) {
  DiffWalk walk(expanded);
  walk.Document(diff);
  walk.Finish(out);
}

ChangeStreamFilter::ChangeStreamFilter(const Spec& spec)
    : scope_(spec.scope),
      ns_(spec.scope == Spec::Scope::kCollection ? JoinNamespace(spec.db, spec.collection)
                                                 : spec.db + ".") {}

bool ChangeStreamFilter::Watches(std::string_view ns) const {
  if (scope_ == Spec::Scope::kCollection) return ns == ns_;
  const NamespaceParts parts = SplitNamespace(ns);
  if (parts.collection.empty() || parts.collection.starts_with("system.")) return false;
  return scope_ == Spec::Scope::kDatabase ? ns.starts_with(ns_) : !IsInternalDatabase(parts.db);
}

bool ChangeStreamFilter::WatchesDatabase(std::string_view db) const {
  if (scope_ == Spec::Scope::kCluster) return !IsInternalDatabase(db);
  return ns_.size() > db.size() && ns_.starts_with(db) && ns_[db.size()] == '.';
}

Result<void> AppendChangeEvents(const Spec& spec, const ChangeStreamFilter& filter,
                                Storage& storage, Operation& op, const ImageLife& images,
                                const LogUnit& unit, const LogRecord& record, StreamPosition at,
                                std::vector<ChangeEvent>* out) {
  if (record.kind == LogRecord::kNoop) return Ok();
  if (record.kind == LogRecord::kCommand) {
    CommandEvent(spec, filter, unit, record, at, out).Append();
    return Ok();
  }
  if (!filter.Watches(unit.collections[record.collection].ns)) return Ok();
  std::string bytes;
  {
    BsonBuilder b(bytes);
    MAYFLY_TRY(AppendDocumentEvent(spec, storage, op, images, unit, record, at, b));
  }
  out->push_back({at, BsonDocument(std::move(bytes))});
  return Ok();
}

}  // namespace mayfly
