#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "link/definitions.h"
#include "link/link.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

BsonDocument ListIndexesCommand(std::string_view collection) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("listIndexes", collection);
    b.OpenDocument("cursor").Append("batchSize", 1000);
  });
}

/// Whether there is another index of that name.
bool HasOtherIndex(BsonView indexes, BsonView index) {
  return std::ranges::any_of(indexes, [&](const BsonElement& e) {
    return TextOf(e.value.Document()["name"]) == TextOf(index["name"]) &&
           e.value.Document().bytes() != index.bytes();
  });
}

/// What keeps a source from naming collections for ever.
constexpr size_t kMostCopied = 1'000'000;

/// Tells a copy from all others, also from those of before the link's document was removed.
std::string MakeCopyId() {
  std::random_device random;
  std::string out;
  for (int i = 0; i < 4; ++i) out += fmt::format("{:08x}", random());
  return out;
}

}  // namespace

ClusterResult<void> Link::BeginCopy(bool again) {
  MAYFLY_TRY(source_facts_, source_->Ask());
  if (source_facts_.cluster_time == 0)
    return ClusterError{{ErrorCode::kNotAReplicaSet, "the source does not tell its cluster time"},
                        false};
  phase_ = Phase::kCopy;
  copied_once_ = again;
  copy_time_ = source_facts_.cluster_time;
  token_ = {};
  copy_id_ = MakeCopyId();
  copied_.clear();
  ++counters_.copies_begun;
  return Save();
}

ClusterResult<void> Link::AdaptOptions(std::string_view db, BsonView collection) {
  // check_names: the selection has looked at it
  const std::string_view name = TextOf(collection["name"]);
  const BsonView options = DocumentOf(collection["options"]);
  MAYFLY_TRY(const BsonDocument reply, target_->Command(db, BuildBson([&](BsonBuilder& b) {
                                                          b.Append("listCollections", 1);
                                                          b.OpenDocument("filter").Append("name",
                                                                                          name);
                                                          b.OpenDocument("cursor");
                                                        })));
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  if (batch.documents.empty()) return Ok();
  const BsonView there = batch.documents.First().value.Document();
  if (TextOf(there["name"]) != name) return Malformed("another collection than was asked for");
  const BsonView has = DocumentOf(there["options"]);
  if (SameKind(has, options)) {
    const std::optional<BsonDocument> change = ModifyCommand(name, has, options, true);
    return change ? writer_->Run(db, *change, &counters_) : Ok();
  }
  // What is fixed when it is created. With a version field its documents may be newer ones.
  if (options_.version_field.empty() && !options_.filter_deletion)
    return writer_->Run(db, BuildBson([&](BsonBuilder& b) { b.Append("drop", name); }), &counters_);
  return writer_->Refused(
      db, collection["name"],
      {ErrorCode::kNamespaceExists,
       "the source has made the collection anew as one of another kind (a view, "
       "capped, clustered, with a collation)"},
      &counters_);
}

ClusterResult<void> Link::CopyDefinitions(std::string_view db, BsonView collection) {
  // check_names: the selection has looked at it
  const std::string_view name = TextOf(collection["name"]);
  const BsonView options = DocumentOf(collection["options"]);
  if (copied_once_) {
    MAYFLY_TRY(AdaptOptions(db, collection));
  }
  MAYFLY_TRY(writer_->Run(db, CreateCommand(name, options), &counters_));
  if (TextOf(collection["type"]) == "view") return Ok();
  auto listed = source_->Command(db, ListIndexesCommand(name));
  if (!listed) {
    // Dropped or renamed since it was listed: the event of that comes.
    if (listed.error().error.code == ErrorCode::kNamespaceNotFound) return Ok();
    return std::move(listed).error();
  }
  MAYFLY_TRY(const CursorBatch there, BatchOf(listed.value()));
  BsonDocument here;
  if (copied_once_) {
    // Of a target without the collection there are none.
    auto indexes = target_->Command(db, ListIndexesCommand(name));
    if (!indexes && indexes.error().transient) return std::move(indexes).error();
    if (indexes) {
      MAYFLY_TRY(const CursorBatch batch, BatchOf(indexes.value()));
      here = BsonDocument(batch.documents);
    }
  }
  // A TTL or unique index that the source has no more would go on removing or refusing data.
  if (options_.version_field.empty() && !options_.filter_deletion) {
    for (const BsonElement& e : here.view()) {
      const BsonView index = e.value.Document();
      const BsonValue gone = index["name"];
      const bool kept = std::ranges::any_of(there.documents, [&](const BsonElement& t) {
        return TextOf(t.value.Document()["name"]) == TextOf(gone);
      });
      if (kept || TextOf(gone) == "_id_" || !index["clustered"].missing()) continue;
      MAYFLY_TRY(writer_->Run(db, BuildBson([&](BsonBuilder& b) {
                                b.Append("dropIndexes", name).Append("index", gone);
                              }),
                              &counters_));
    }
  }
  // One by one: an index that the target does not take must not keep the others away.
  for (const BsonElement& e : there.documents) {
    const BsonView index = e.value.Document();
    if (TextOf(index["name"]) == "_id_") continue;
    if (!index["clustered"].missing()) continue;
    // Changed while the history was lost, such as a lifetime: it is made anew.
    if (HasOtherIndex(here, index)) {
      MAYFLY_TRY(writer_->Run(db, BuildBson([&](BsonBuilder& b) {
                                b.Append("dropIndexes", name).Append("index", index["name"]);
                              }),
                              &counters_));
    }
    const BsonDocument command = BuildBson([&](BsonBuilder& b) {
      b.Append("createIndexes", name);
      BsonArrayBuilder list = b.OpenArray("indexes");
      list.Append(index);
    });
    MAYFLY_TRY(writer_->Run(db, command, &counters_));
  }
  return Ok();
}

ClusterResult<void> Link::CopyWhole(std::string_view ns) {
  const size_t dot = ns.find('.');
  const std::string_view db = ns.substr(0, dot), name = ns.substr(dot + 1);
  MAYFLY_TRY(BsonDocument reply, source_->Command(db, BuildBson([&](BsonBuilder& b) {
                                                    b.Append("listCollections", 1);
                                                    b.OpenDocument("filter").Append("name", name);
                                                    b.OpenDocument("cursor");
                                                  })));
  MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
  if (batch.documents.empty()) return Ok();
  const BsonView collection = batch.documents.First().value.Document();
  if (TextOf(collection["name"]) != name) return Malformed("another collection than was asked for");
  if (options_.definitions) {
    MAYFLY_TRY(CopyDefinitions(db, collection));
  }
  return CopyCollection(db, name);
}

ClusterResult<void> Link::CopyCollection(std::string_view db, std::string_view name) {
  const std::string ns = std::string(db) + "." + std::string(name);
  const bool deadlines = source_facts_.mayfly;
  BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("find", name).Append("filter", options_.filter).Append("batchSize", int64_t{2000});
    b.Append("noCursorTimeout", true);
    if (deadlines) {
      BsonBuilder p = b.OpenDocument("projection");
      p.Append("_id", 0).Append("d", "$$ROOT");
      p.OpenDocument("e").Append("$meta", "expireAt");
    }
  });
  while (!stopped_) {
    MAYFLY_TRY(BsonDocument reply, source_->Command(db, command));
    MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
    std::vector<LinkOperation> operations;
    for (const BsonElement& e : batch.documents) {
      const BsonView row = e.value.Document();
      if (deadlines && !row["d"].IsDocument()) return Malformed("a document is missing");
      const BsonView document = deadlines ? row["d"].Document() : row;
      if (auto op = translator_->Put(ns, document, deadlines ? row["e"] : BsonValue(),
                                     LinkOperation::Why::kCopied))
        operations.push_back(std::move(*op));
    }
    MAYFLY_TRY(NameRefused());
    MAYFLY_TRY(Write(operations));
    MAYFLY_TRY(Turn(operations.size()));
    Show("copying");
    if (batch.cursor == 0) return Ok();
    command = BuildBson([&](BsonBuilder& b) {
      b.Append("getMore", batch.cursor)
          .Append("collection", name)
          .Append("batchSize", int64_t{5000});
    });
  }
  return Ok();
}

ClusterResult<void> Link::RemoveWhatIsGone(std::string_view db, std::string_view name) {
  BsonDocument command = BuildBson([&](BsonBuilder& b) {
    b.Append("find", name).Append("filter", options_.filter).Append("batchSize", int64_t{1000});
    b.OpenDocument("projection").Append("_id", 1);
    b.Append("noCursorTimeout", true);
  });
  const std::string ns = std::string(db) + "." + std::string(name);
  while (!stopped_) {
    MAYFLY_TRY(BsonDocument here, target_->Command(db, command));
    MAYFLY_TRY(const CursorBatch batch, BatchOf(here));
    for (const BsonElement& e : batch.documents)
      if (e.value.Document()["_id"].missing()) return Malformed("a document without an _id");
    if (!batch.documents.empty()) {
      MAYFLY_TRY(BsonDocument there,
                 source_->Command(db, BuildBson([&](BsonBuilder& b) {
                                    b.Append("find", name).Append("batchSize", int64_t{1000});
                                    b.Append("singleBatch", true);
                                    b.OpenDocument("projection").Append("_id", 1);
                                    BsonBuilder f = b.OpenDocument("filter");
                                    BsonBuilder id = f.OpenDocument("_id");
                                    BsonArrayBuilder in = id.OpenArray("$in");
                                    for (const BsonElement& e : batch.documents)
                                      in.Append(e.value.Document()["_id"]);
                                  })));
      MAYFLY_TRY(const CursorBatch found, BatchOf(there));
      std::vector<std::string> kept;
      for (const BsonElement& e : found.documents) kept.emplace_back(e.value.Document().bytes());
      std::ranges::sort(kept);
      std::vector<LinkOperation> gone;
      for (const BsonElement& e : batch.documents) {
        if (std::ranges::binary_search(kept, std::string(e.value.Document().bytes()))) continue;
        LinkOperation op;
        op.kind = LinkOperation::Kind::kDelete;
        op.why = LinkOperation::Why::kDeleted;
        op.ns = ns;
        op.filter = DocumentFilter(e.value.Document()["_id"], {}, {}, false);
        gone.push_back(std::move(op));
      }
      MAYFLY_TRY(Write(gone));
    }
    MAYFLY_TRY(Turn(0));
    if (batch.cursor == 0) return Ok();
    command = BuildBson([&](BsonBuilder& b) {
      b.Append("getMore", batch.cursor)
          .Append("collection", name)
          .Append("batchSize", int64_t{1000});
    });
  }
  return Ok();
}

ClusterResult<void> Link::CopyAll() {
  MAYFLY_TRY(BsonDocument databases,
             source_->Command("admin", BuildBson([](BsonBuilder& b) {
                                b.Append("listDatabases", 1).Append("nameOnly", true);
                              })));
  const BsonValue list = databases.view()["databases"];
  if (!list.IsArray()) return Malformed("there is no list of databases");
  std::set<std::string, std::less<>> there;
  for (const BsonElement& d : list.Document()) {
    // check_names: the selection looks at it
    const std::string db(TextOf(DocumentOf(d.value)["name"]));
    if (db.empty()) return Malformed("a database without a name");
    if (!selection_.HasDatabase(db)) continue;
    std::vector<BsonDocument> collections;
    BsonDocument command = BuildBson([&](BsonBuilder& b) {
      b.Append("listCollections", 1);
      b.OpenDocument("cursor").Append("batchSize", 1000);
    });
    for (bool more = true; more;) {
      MAYFLY_TRY(BsonDocument reply, source_->Command(db, command));
      MAYFLY_TRY(const CursorBatch batch, BatchOf(reply));
      for (const BsonElement& e : batch.documents) {
        if (TextOf(e.value.Document()["name"]).empty())
          return Malformed("a collection without a name");
        collections.emplace_back(e.value.Document());
      }
      if (collections.size() > kMostCopied) return Malformed("more collections than there can be");
      more = batch.cursor != 0;
      command = BuildBson([&](BsonBuilder& b) {
        b.Append("getMore", batch.cursor).Append("collection", "$cmd.listCollections");
      });
    }
    std::erase_if(collections, [&](const BsonDocument& c) {
      const BsonView what = c.view();
      if (!IsTimeSeries(DocumentOf(what["options"]))) return false;
      const std::string_view name = TextOf(what["name"]);
      if (selection_.Has(db, name)) {
        const std::string ns = db + "." + std::string(name);
        std::fprintf(stderr, "mayfly-link: warning: %s is a time series and is not carried\n",
                     ns.c_str());
        translator_->not_carried.insert(ns);
      }
      return true;
    });
    // Views last: what they are on is there by then.
    const auto is_view = [](const BsonDocument& c) { return TextOf(c.view()["type"]) == "view"; };
    std::ranges::stable_partition(collections, [&](const BsonDocument& c) { return !is_view(c); });
    for (const BsonDocument& c : collections) {
      const std::string name(TextOf(c.view()["name"]));
      const std::string ns = db + "." + name;
      there.insert(ns);
      if (stopped_ || !selection_.Has(db, name) || copied_.contains(ns)) continue;
      if (options_.definitions) {
        MAYFLY_TRY(CopyDefinitions(db, c));
      }
      if (is_view(c)) continue;
      MAYFLY_TRY(CopyCollection(db, name));
      // With links in both directions a document of the target may be on its way to the source.
      // Nor can the source tell what was deleted from what has expired.
      if (copied_once_ && options_.version_field.empty() && !options_.filter_deletion &&
          !options_.filter_expiration) {
        MAYFLY_TRY(RemoveWhatIsGone(db, name));
      }
      if (stopped_) return Ok();
      copied_.insert(ns);
      MAYFLY_TRY(writer_->NoteCopied(ns, copy_id_));
    }
  }
  // As with documents above: whoever sends no deletes, or has a link back, keeps them.
  if (stopped_ || !copied_once_ || !options_.version_field.empty() || options_.filter_deletion)
    return Ok();
  return DropWhatIsGone(there);
}

ClusterResult<void> Link::DropWhatIsGone(const std::set<std::string, std::less<>>& there) {
  MAYFLY_TRY(const std::vector<std::string> carried, writer_->Carried());
  for (const std::string& ns : carried) {
    const size_t dot = ns.find('.');
    const std::string db = ns.substr(0, dot), name = ns.substr(dot + 1);
    if (there.contains(ns) || !selection_.Has(db, name)) continue;
    MAYFLY_TRY(
        writer_->Run(db, BuildBson([&](BsonBuilder& b) { b.Append("drop", name); }), &counters_));
  }
  return Ok();
}

ClusterResult<void> Link::EndCopy() {
  // Any time behind the last look-up of the copy.
  MAYFLY_TRY(const Cluster::Facts facts, source_->Ask());
  translator_->copied_until = facts.cluster_time;
  phase_ = Phase::kFollow;
  status_.progress.Copies(std::nullopt);
  copied_once_ = true;
  token_ = {};
  copied_.clear();
  return Save();
}

}  // namespace mayfly
