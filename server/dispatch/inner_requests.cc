#include "server/dispatch/inner_requests.h"

#include <utility>

#include "protocol/system_names.h"
#include "query/expression/parse_work.h"
#include "server/dispatch/arg_reader.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

namespace {

Error MalformedEntry(std::string why) {
  return {ErrorCode::kFailedToParse, "applyOps: " + std::move(why)};
}

/// Whether a TTL index can have these seconds (ParseExpireAfterSeconds says why not).
bool AreTtlSeconds(BsonValue v) {
  return v.IsNumber() && v.NumberAsDouble() >= 0 && v.NumberAsDouble() < 2147483648.0;
}

/// An index of an oplog, or of older versions. Seconds that no TTL index can have (NaN, of which
/// versions before 5.0 made some) make an inactive one, not none or one that removes everything
/// (docs/expiry.md R22, R23).
void AppendRepairedIndex(BsonView spec, std::string_view without, BsonBuilder out) {
  for (const BsonElement& f : spec) {
    if (f.name == without) continue;
    if (f.name == "expireAfterSeconds" && !AreTtlSeconds(f.value))
      out.Append(f.name, INT32_MAX);
    else
      out.Append(f);
  }
}

/// A collMod as its entry says it: with the command's fields. In one of an earlier version they are
/// all options of the collection, as it was made: what a capped one may have is named otherwise
/// there, and what is fixed is the same.
BsonDocument AsCollMod(BsonView o) {
  std::string_view name = o.First().value.IsString() ? o.First().value.String() : "";
  // An index of a time series is one of its buckets.
  if (name.starts_with(kBucketsPrefix)) name.remove_prefix(kBucketsPrefix.size());
  return BuildBson([&](BsonBuilder& b) {
    b.Append("collMod", name);
    bool first = true;
    for (const BsonElement& f : o) {
      if (std::exchange(first, false) || f.name == "capped" || f.name == "clusteredIndex") continue;
      if (f.name == "size" || f.name == "max") {
        b.Append(f.name == "size" ? "cappedSize" : "cappedMax", f.value);
      } else if (f.name == "expiry" && f.value.IsDocument()) {
        BsonBuilder expiry = b.OpenDocument("expiry");
        for (const BsonElement& x : f.value.Document())
          if (x.name != "maxTTL") expiry.Append(x);
      } else {
        b.Append(f);
      }
    }
  });
}

/// An index build as its entry says it: {createIndexes: collection, v: 2, key: …, name: …} for one
/// index, or a list.
Result<BsonDocument> AsCreateIndexes(BsonView o) {
  const BsonElement first = o.First();
  if (!first.value.IsString()) return MalformedEntry("a command on indexes names no collection");
  const BsonValue list = o["indexes"];
  return BuildBson([&](BsonBuilder& b) {
    b.Append("createIndexes", first.value);
    {
      BsonArrayBuilder indexes = b.OpenArray("indexes");
      if (!list.IsArray()) {
        AppendRepairedIndex(o, "createIndexes", indexes.OpenDocument());
      } else {
        for (const BsonElement& i : list.Document()) {
          if (i.value.IsDocument())
            AppendRepairedIndex(i.value.Document(), "", indexes.OpenDocument());
          else
            indexes.Append(i.value);
        }
      }
    }
    b.Append("ignoreUnknownIndexOptions", true);
  });
}

/// What belongs to a client's request has no meaning in an oplog, whose command nobody waits for.
Result<void> CheckNoneOfRequest(const CommandRequest& r) {
  if (r.generic.raw_data)
    return Error{ErrorCode::kInvalidOptions,
                 "applyOps: an entry's command has no rawData: it names system.buckets.X itself"};
  for (const CommandField& f : r.fields)
    if (f.generic && f.name != "$db" && f.name != "comment" && f.name != "rawData")
      return Error{ErrorCode::kInvalidOptions,
                   "applyOps: '" + std::string(f.name) +
                       "' is an argument of applyOps itself, and not of an entry's command"};
  return Ok();
}

/// The command that does what an oplog's command says. `*made`: its bytes, if they are others than
/// `o`. Empty: there is nothing to do.
Result<BsonView> AsCommand(BsonView o, BsonDocument* made) {
  const std::string_view name = o.First().name;
  if (name == "startIndexBuild" || name == "abortIndexBuild") return BsonView();
  if (name == "commitIndexBuild" || name == "createIndexes") {
    MAYFLY_TRY(*made, AsCreateIndexes(o));
    return made->view();
  }
  if (name == "create") {
    // Only meaningful on the server that wrote it: here the collection is never temporary.
    *made = BuildBson([&](BsonBuilder& b) {
      for (const BsonElement& f : o)
        if (f.name != "temp") b.Append(f);
    });
    return made->view();
  }
  if (name == "collMod") {
    *made = AsCollMod(o);
    return made->view();
  }
  for (std::string_view known :
       {"drop", "dropDatabase", "dropIndexes", "deleteIndexes", "renameCollection"})
    if (name == known) return o;
  return Error{ErrorCode::kCommandNotFound,
               "applyOps: the command '" + ShownName(name) + "' cannot be applied"};
}

}  // namespace

const InnerRequests& InnerRequests::Of(const CommandRequest& req) {
  if (req.inner == nullptr) {
    auto made = std::make_shared<InnerRequests>();
    Result<void> read = Ok();
    const BsonValue first = req.fields.empty() ? BsonValue() : req.fields[0].value;
    if (req.name == "explain")
      read = made->ReadExplained(req);
    else if (req.name == "applyOps" && first.IsArray())
      read = made->ReadEntries(first.Document(), made->entries);
    if (!read) {
      *made = InnerRequests();
      made->error = std::move(read).error();
    }
    req.inner = std::move(made);
  }
  return *req.inner;
}

Result<void> InnerRequests::Made(size_t bytes) {
  bytes_ += bytes;
  MAYFLY_TRY(ParseWork::Step());
  return hold_.Set(bytes_);
}

Result<void> InnerRequests::ReadExplained(const CommandRequest& req) {
  const BsonValue first = req.fields.empty() ? BsonValue() : req.fields[0].value;
  if (!first.IsDocument() || first.Document().empty()) return Ok();
  auto inner = std::make_unique<InnerRequest>();
  MAYFLY_TRY(ParseCommandFields(first.Document(), &inner->request, req.db));
  explained = std::move(inner);
  return Ok();
}

Result<void> InnerRequests::ReadEntries(BsonView list, std::vector<OplogEntry>& out) {
  for (const BsonElement& e : list) {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch, "BSON field 'applyOps.applyOps." +
                                                 std::string(e.name) + "' is the wrong type '" +
                                                 std::string(BsonTypeName(e.value.type())) +
                                                 "', expected type 'object'"};
    // The vector doubles.
    MAYFLY_TRY(Made(2 * sizeof(OplogEntry)));
    MAYFLY_TRY(OplogEntry entry, ReadEntry(e.value.Document()));
    out.push_back(std::move(entry));
  }
  return Ok();
}

Result<OplogEntry> InnerRequests::ReadEntry(BsonView doc) {
  ArgReader in("applyOps.applyOps", doc);
  OplogEntry e;
  const std::string_view op = in.String("op"), ns = in.StringOr("ns");
  const auto o = in.OptDocument("o");
  e.o2 = in.DocumentOr("o2");
  const BsonValue ui = in.Any("ui");
  MAYFLY_TRY(in.FinishLoose());
  constexpr std::string_view kOps = "iudcn";
  const size_t at = op.size() == 1 ? kOps.find(op[0]) : std::string_view::npos;
  if (at == std::string_view::npos)
    return MalformedEntry("an entry's op is i, u, d, c or n, but not '" + ShownName(op) + "'");
  e.kind = static_cast<OplogEntry::Kind>(at);
  if (e.kind == OplogEntry::Kind::kNoop) return e;
  if (!o) return MalformedEntry("an entry with op '" + std::string(op) + "' needs a document 'o'");
  e.o = *o;
  const NamespaceParts parts = SplitNamespace(ns);
  if (!parts.whole())
    return Error{
        ErrorCode::kInvalidNamespace,
        "applyOps: an entry's ns must be database.collection, but it is '" + ShownName(ns) + "'"};
  e.db = parts.db;
  e.collection = parts.collection;
  MAYFLY_TRY(ValidateDatabaseName(e.db));
  if (e.kind == OplogEntry::Kind::kCommand) {
    if (e.collection != "$cmd")
      return Error{
          ErrorCode::kInvalidNamespace,
          "applyOps: the ns of a command is database.$cmd, but it is '" + ShownName(ns) + "'"};
    if (e.o.empty()) return MalformedEntry("a command's 'o' is empty");
  } else if (e.kind == OplogEntry::Kind::kUpdate ? e.o2["_id"].missing() && e.o["_id"].missing()
                                                 : e.o["_id"].missing()) {
    return Error{ErrorCode::kNoSuchKey, "applyOps: an entry with op '" + std::string(op) +
                                            "' must name its document by _id"};
  }
  e.uuid = UuidOf(ui);
  if (!e.uuid && !ui.missing())
    return Error{ErrorCode::kTypeMismatch, "BSON field 'applyOps.applyOps.ui' must be a UUID"};
  if (e.kind == OplogEntry::Kind::kCommand) {
    MAYFLY_TRY(ReadCommand(e));
  }
  return e;
}

Result<void> InnerRequests::ReadCommand(OplogEntry& entry) {
  auto inner = std::make_unique<InnerRequest>();
  // Also what the command is made of has each field once, and no other database.
  Result<void> whole = ParseCommandFields(entry.o, &inner->request, entry.db);
  const BsonElement first = entry.o.First();
  if (first.name == "applyOps") {
    MAYFLY_TRY(std::move(whole));
    MAYFLY_TRY(CheckNoneOfRequest(inner->request));
    if (!first.value.IsArray()) return MalformedEntry("'applyOps' of an entry is no array");
    inner.reset();
    return ReadEntries(first.value.Document(), entry.nested);
  }
  const auto read = [&]() -> Result<void> {
    MAYFLY_TRY(std::move(whole));
    MAYFLY_TRY(CheckNoneOfRequest(inner->request));
    MAYFLY_TRY(const BsonView body, AsCommand(entry.o, &inner->made));
    if (body.empty()) {
      inner.reset();
      return Ok();
    }
    inner->request.of_entry = true;
    return ParseCommandFields(body, &inner->request, entry.db);
  };
  // Of an entry alone: those before it are applied.
  if (Result<void> done = read(); !done) {
    inner.reset();
    entry.refused = std::make_unique<Error>(std::move(done).error());
    return Made(sizeof(Error) + entry.refused->message.size());
  }
  if (!inner) return Ok();
  entry.command = std::move(inner);
  const CommandFields& fields = entry.command->request.fields;
  return Made(sizeof(InnerRequest) + entry.command->made.bytes().size() +
              (fields.size() > 24 ? fields.capacity() * sizeof(CommandField) : 0));
}

}  // namespace mayfly
