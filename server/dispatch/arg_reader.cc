#include "server/dispatch/arg_reader.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "protocol/cut_text.h"
#include "protocol/field_once.h"
#include "protocol/utf8.h"
#include "storage/catalog/namespace.h"

namespace mayfly {

namespace {

constexpr std::string_view kNumberTypes = "[long, int, decimal, double]";
constexpr std::string_view kLooseBoolTypes = "[bool, long, int, decimal, double]";

std::string Quoted(std::string_view where, std::string_view name) {
  std::string s = "BSON field '";
  if (!where.empty()) s.append(where).append(1, '.');
  s.append(name).append(1, '\'');
  return s;
}

Error TooManyFields(std::string_view where) {
  return {ErrorCode::kBadValue, "'" + std::string(where) + "' has more than the " +
                                    std::to_string(kMaxCommandFields) + " fields it may have"};
}

/// Finds a name that is there twice while the fields of a document are collected. One that has one
/// of them could otherwise mean another than one who reads the same document again. Names longer
/// than any that is read (kShownName) may be there twice: comparing a thousand of them takes long.
class NamesOnce {
 public:
  /// Before the field is added to `fields`. False: it is there already.
  bool Add(std::string_view name, const CommandFields& fields) {
    const uint64_t bit = NameBit(name);
    if (name.size() > kShownName) [[unlikely]] {
      names_ |= bit;
      return true;
    }
    if ((names_ & bit) != 0) [[unlikely]] {
      // With so many nearly all of them share a bit: they are compared at the end, in order.
      if (fields.size() >= kFew)
        many_ = true;
      else
        for (const CommandField& f : fields)
          if (f.name == name) return false;
    }
    names_ |= bit;
    return true;
  }
  /// After the last one: a name that is there twice; nothing if there is none.
  std::optional<std::string_view> Twice(const CommandFields& fields) const {
    if (!many_) return std::nullopt;
    std::vector<std::string_view> sorted;
    sorted.reserve(fields.size());
    for (const CommandField& f : fields)
      if (f.name.size() <= kShownName) sorted.push_back(f.name);
    std::ranges::sort(sorted);
    const auto twice = std::ranges::adjacent_find(sorted);
    return twice == sorted.end() ? std::nullopt : std::optional(*twice);
  }
  uint64_t names() const { return names_; }

 private:
  static constexpr size_t kFew = 64;
  uint64_t names_ = 0;
  bool many_ = false;
};

}  // namespace

std::string ShownName(std::string_view name) { return ShownText(name, kShownName); }

bool IsGenericField(std::string_view name) {
  if (name.empty()) return false;
  switch (name[0]) {
    case '$':
      return name == "$db" || name == "$clusterTime" || name == "$readPreference" ||
             name == "$audit" || name == "$client" || name == "$configServerState" ||
             name == "$configTime" || name == "$topologyTime" || name == "$oplogQueryData" ||
             name == "$queryOptions" || name == "$replData";
    case 'a':
      return name == "apiVersion" || name == "apiStrict" || name == "apiDeprecationErrors" ||
             name == "autocommit";
    case 'c':
      return name == "comment" || name == "clientOperationKey";
    case 'h':
      return name == "help";
    case 'l':
      return name == "lsid";
    case 'm':
      return name == "maxTimeMS" || name == "maxTimeMSOpOnly" || name == "mayBypassWriteBlocking";
    case 'r':
      return name == "readConcern" || name == "rawData";
    case 's':
      return name == "startTransaction" || name == "stmtId" || name == "serialization_context";
    case 't':
      return name == "txnNumber";
    case 'u':
      return name == "usesDefaultMaxTimeMS";
    case 'w':
      return name == "writeConcern";
    default:
      return false;
  }
}

namespace {

Error GenericWrongType(const CommandRequest& r, const CommandField& f, std::string_view expected) {
  std::string m = Quoted(ShownName(r.name), f.name);
  m.append(" is the wrong type '").append(BsonTypeName(f.value.type()));
  m.append(expected[0] == '[' ? "', expected types '" : "', expected type '")
      .append(expected)
      .append(1, '\'');
  return {ErrorCode::kTypeMismatch, std::move(m)};
}

/// A mode that nobody knows asks for something else than what it would get; so do tags and the like
/// without one, which would have no effect.
Result<void> CheckReadPreference(BsonView doc) {
  constexpr std::string_view kFields[] = {"mode", "tags", "maxStalenessSeconds", "hedge"};
  unsigned seen = 0;
  for (const BsonElement& e : doc) {
    MAYFLY_TRY(FieldOnce("$readPreference", kFields, e.name, &seen));
    if (e.name == "hedge" && e.value.IsDocument()) {
      MAYFLY_TRY(ArgReader("$readPreference.hedge", e.value.Document()).FinishLoose());
    } else if (e.name == "tags" && e.value.IsArray()) {
      for (const BsonElement& set : e.value.Document()) {
        if (!set.value.IsDocument()) continue;
        MAYFLY_TRY(ArgReader("$readPreference.tags", set.value.Document()).FinishLoose());
      }
    }
  }
  const BsonValue mode = doc["mode"];
  if (mode.missing())
    return Error{ErrorCode::kMissingField,
                 "BSON field '$readPreference.mode' is missing but a required field"};
  if (!mode.IsString())
    return Error{ErrorCode::kTypeMismatch, "\"mode\" had the wrong type. Expected string, found " +
                                               std::string(BsonTypeName(mode.type()))};
  for (const std::string_view known :
       {"primary", "secondary", "primaryPreferred", "secondaryPreferred", "nearest"})
    if (mode.String() == known) return Ok();
  return Error{ErrorCode::kFailedToParse,
               "Could not parse $readPreference mode '" + ShownName(mode.String()) +
                   "'. Only the modes 'primary', 'primaryPreferred', 'secondary', "
                   "'secondaryPreferred', and 'nearest' are supported."};
}

/// What it says is checked by members of a set (replication_gate::CheckClusterTime).
Result<void> CheckClusterTimeFields(BsonView doc) {
  constexpr std::string_view kFields[] = {"clusterTime", "signature"};
  constexpr std::string_view kSignature[] = {"hash", "keyId"};
  unsigned seen = 0;
  for (const BsonElement& e : doc) {
    MAYFLY_TRY(FieldOnce("$clusterTime", kFields, e.name, &seen));
    if (e.name != "signature" || !e.value.IsDocument()) continue;
    unsigned seen_of_signature = 0;
    for (const BsonElement& s : e.value.Document()) {
      MAYFLY_TRY(FieldOnce("$clusterTime.signature", kSignature, s.name, &seen_of_signature));
    }
  }
  return Ok();
}

Result<void> ReadGeneric(const CommandField& f, CommandRequest* r) {
  GenericArguments& g = r->generic;
  const BsonValue v = f.value;
  auto document = [&](BsonValue* out) -> Result<void> {
    if (!v.IsDocument()) return GenericWrongType(*r, f, "object");
    // They are read before the command is known to be allowed to take long.
    if (v.size() > kMaxGenericBytes)
      return Error{ErrorCode::kBadValue, Quoted(ShownName(r->name), f.name) + " has " +
                                             std::to_string(v.size()) + " bytes, and may have " +
                                             std::to_string(kMaxGenericBytes)};
    *out = v;
    return Ok();
  };
  auto boolean = [&](bool* out) -> Result<void> {
    if (!v.Is(BsonType::kBool)) return GenericWrongType(*r, f, "bool");
    *out = v.Bool();
    return Ok();
  };
  switch (f.name[0]) {
    case '$':
      if (f.name == "$db") {
        if (!v.IsString()) return GenericWrongType(*r, f, "string");
        // A command within another (explain, applyOps) is about the database that the other says.
        if (!r->db.empty() && r->db != v.String())
          return Error{ErrorCode::kInvalidNamespace, "Mismatched $db in '" + ShownName(r->name) +
                                                         "'. Expected " + ShownName(r->db) +
                                                         " but got " + ShownName(v.String())};
        // check_names: Dispatcher::Check looks
        r->db = v.String().substr(0, kMostOfDatabaseName);
      } else if (f.name == "$clusterTime") {
        MAYFLY_TRY(document(&g.cluster_time));
        return CheckClusterTimeFields(v.Document());
      } else if (f.name == "$readPreference") {
        MAYFLY_TRY(document(&g.read_preference));
        return CheckReadPreference(v.Document());
      }
      return Ok();
    case 'a':
      if (f.name == "apiVersion") {
        if (!v.IsString()) return GenericWrongType(*r, f, "string");
        g.api_version = v.String();
        return Ok();
      }
      if (f.name == "apiStrict") return boolean(&g.api_strict);
      if (f.name == "apiDeprecationErrors") return boolean(&g.api_deprecation_errors);
      g.autocommit_given = true;
      return boolean(&g.autocommit);
    case 'c':
      if (f.name == "comment") g.comment = v;
      return Ok();
    case 'h':
      g.help = v.Truthy();
      return Ok();
    case 'l':
      return document(&g.lsid);
    case 'm': {
      if (f.name != "maxTimeMS") return Ok();
      if (v.IsNullish()) return Ok();
      if (!v.IsNumber()) return GenericWrongType(*r, f, kNumberTypes);
      int64_t n = 0;
      if (!v.ExactInt64(&n))
        return Error{ErrorCode::kFailedToParse, "maxTimeMS has non-integral value"};
      if (n < 0 || n > INT32_MAX)
        return Error{ErrorCode::kBadValue,
                     std::to_string(n) + " value for maxTimeMS is out of range [0, 2147483647]"};
      g.max_time_ms = n;
      g.max_time_given = true;
      return Ok();
    }
    case 'r':
      if (f.name == "readConcern") return document(&g.read_concern);
      return boolean(&g.raw_data);
    case 's':
      if (f.name == "startTransaction") return boolean(&g.start_transaction);
      return Ok();
    case 't': {
      int64_t n = 0;
      if (!v.IsNumber() || !v.ExactInt64(&n)) return GenericWrongType(*r, f, "long");
      g.txn_number = n;
      return Ok();
    }
    case 'w':
      return document(&g.write_concern);
    default:
      return Ok();
  }
}

}  // namespace

Result<void> ParseCommandFields(BsonView body, CommandRequest* request, std::string_view db) {
  request->body = body;
  request->db = db;
  request->fields.clear();
  request->generic = GenericArguments();
  request->inner.reset();
  request->buckets_name.reset();
  NamesOnce once;
  const auto name = [&] {
    request->name = request->fields.empty() ? std::string_view() : request->fields[0].name;
    return request->name;
  };
  for (const BsonElement& e : body) {
    if (request->fields.size() == kMaxCommandFields) [[unlikely]]
      return TooManyFields(ShownName(name()));
    if (!once.Add(e.name, request->fields)) [[unlikely]]
      return DuplicateField(name(), e.name);
    // The first field names the command, even one called "comment".
    const bool generic = !request->fields.empty() && IsGenericField(e.name);
    request->fields.push_back({e.name, e.value, generic, false});
  }
  name();
  request->names = once.names();
  if (const auto twice = once.Twice(request->fields)) [[unlikely]]
    return DuplicateField(request->name, *twice);
  for (const CommandField& f : request->fields) {
    if (!f.generic) continue;
    MAYFLY_TRY(ReadGeneric(f, request));
  }
  return Ok();
}

Result<void> DocumentList::Add(BsonView document) {
  if (own_.size() == own_.capacity()) {
    const size_t before = own_.capacity(), after = std::max<size_t>(1, 2 * before);
    MAYFLY_TRY(hold_.Set((before + after) * sizeof(BsonView)));
    own_.reserve(after);  // the old list is there until the new one is
    MAYFLY_TRY(hold_.Set(after * sizeof(BsonView)));
  }
  own_.push_back(document);
  return Ok();
}

Result<DocumentList> CommandRequest::Documents(std::string_view field) const {
  if (const DocumentSequence* s = Sequence(field)) return DocumentList(*s);
  for (const CommandField& f : fields) {
    if (f.name != field) continue;
    f.used = true;
    if (!f.value.IsArray()) return GenericWrongType(*this, f, "array");
    DocumentList out;
    for (const BsonElement& e : f.value.Document()) {
      if (!e.value.IsDocument()) {
        std::string m = Quoted(name, field);
        m.append(1, '.')
            .append(e.name)
            .append(" is the wrong type '")
            .append(BsonTypeName(e.value.type()));
        m.append("', expected type 'object'");
        return Error{ErrorCode::kTypeMismatch, std::move(m)};
      }
      MAYFLY_TRY(out.Add(e.value.Document()));
    }
    return out;
  }
  return Error{ErrorCode::kMissingField, Quoted(name, field) + " is missing but a required field"};
}

ArgReader::ArgReader(const CommandRequest& req)
    : request_(&req), fields_(&req.fields), names_(req.names), where_(req.name) {
  if (!fields_->empty()) fields_->front().used = true;
}

ArgReader::ArgReader(std::string_view where, BsonView doc) : fields_(&own_), where_(where) {
  NamesOnce once;
  for (const BsonElement& e : doc) {
    if (own_.size() == kMaxCommandFields) [[unlikely]] {
      error_ = TooManyFields(where_);
      return;
    }
    if (!once.Add(e.name, own_)) [[unlikely]] {
      error_ = DuplicateField(where_, e.name);
      return;
    }
    own_.push_back({e.name, e.value, false, false});
  }
  names_ = once.names();
  if (const auto twice = once.Twice(own_)) [[unlikely]]
    error_ = DuplicateField(where_, *twice);
}

BsonValue ArgReader::Take(std::string_view name) {
  if (!MayHave(name)) return {};
  for (const CommandField& f : *fields_) {
    if (f.name == name) {
      f.used = true;
      return f.value;
    }
  }
  return {};
}

BsonValue ArgReader::TakePresent(std::string_view name) {
  BsonValue v = Take(name);
  return v.IsNullish() ? BsonValue() : v;
}

bool ArgReader::Has(std::string_view name) const {
  if (MayHave(name))
    for (const CommandField& f : *fields_)
      if (f.name == name) return true;
  return request_ != nullptr && request_->Sequence(name) != nullptr;
}

BsonValue ArgReader::Require(std::string_view name) {
  BsonValue v = Take(name);
  if (v.missing())
    Fail({ErrorCode::kMissingField, Quoted(where_, name) + " is missing but a required field"});
  return v;
}

Error ArgReader::WrongType(std::string_view name, BsonType got, std::string_view expected) const {
  std::string m = Quoted(where_, name);
  m.append(" is the wrong type '").append(BsonTypeName(got));
  m.append(expected.starts_with('[') ? "', expected types '" : "', expected type '");
  m.append(expected).append(1, '\'');
  return {ErrorCode::kTypeMismatch, std::move(m)};
}

bool ArgReader::Expect(std::string_view name, BsonValue v, BsonType type) {
  if (v.missing()) return false;
  if (v.type() == type) return true;
  Fail(WrongType(name, v.type(), BsonTypeName(type)));
  return false;
}

std::string_view ArgReader::Collection() {
  if (fields_->empty()) {
    Fail({ErrorCode::kInvalidNamespace, "collection name is missing"});
    return {};
  }
  const BsonValue v = fields_->front().value;
  if (!v.IsString()) {
    Fail({ErrorCode::kInvalidNamespace,
          "collection name has invalid type " + std::string(BsonTypeName(v.type()))});
    return {};
  }
  const std::string_view name = v.String();
  if (!IsCollectionName(name)) {
    std::string ns = request_ ? std::string(request_->db) + "." : std::string();
    Fail({ErrorCode::kInvalidNamespace,
          "Invalid namespace specified '" + ns + ShownText(name, kMaxNamespace) + "'"});
    return {};
  }
  return name;
}

std::string_view ArgReader::String(std::string_view name) {
  BsonValue v = Require(name);
  return Expect(name, v, BsonType::kString) ? v.String() : std::string_view();
}

std::optional<std::string_view> ArgReader::FindString(std::string_view name) {
  BsonValue v = TakePresent(name);
  if (!Expect(name, v, BsonType::kString)) return {};
  return v.String();
}

BsonView ArgReader::Document(std::string_view name) {
  BsonValue v = Require(name);
  return Expect(name, v, BsonType::kDocument) ? v.Document() : BsonView();
}

std::optional<BsonView> ArgReader::FindDocument(std::string_view name) {
  BsonValue v = TakePresent(name);
  if (!Expect(name, v, BsonType::kDocument)) return {};
  return v.Document();
}

BsonView ArgReader::Array(std::string_view name) {
  BsonValue v = Require(name);
  return Expect(name, v, BsonType::kArray) ? v.Document() : BsonView();
}

std::optional<BsonView> ArgReader::FindArray(std::string_view name) {
  BsonValue v = TakePresent(name);
  if (!Expect(name, v, BsonType::kArray)) return {};
  return v.Document();
}

DocumentList ArgReader::Documents(std::string_view name) {
  if (request_ == nullptr) {
    DocumentList out;
    for (const BsonElement& e : Array(name)) {
      if (!e.value.IsDocument()) {
        Fail(WrongType(std::string(name) + "." + std::string(e.name), e.value.type(), "object"));
        return {};
      }
      if (Result<void> added = out.Add(e.value.Document()); !added) {
        Fail(std::move(added).error());
        return {};
      }
    }
    return out;
  }
  auto r = request_->Documents(name);
  if (!r) {
    Fail(std::move(r).error());
    return {};
  }
  return std::move(r).value();
}

int64_t ArgReader::Int64(std::string_view name) {
  BsonValue v = Require(name);
  if (v.missing()) return 0;
  if (!v.IsNumber()) {
    Fail(WrongType(name, v.type(), kNumberTypes));
    return 0;
  }
  return v.NumberAsInt64();
}

std::optional<int64_t> ArgReader::FindInt64(std::string_view name) {
  BsonValue v = TakePresent(name);
  if (v.missing()) return {};
  if (!v.IsNumber()) {
    Fail(WrongType(name, v.type(), kNumberTypes));
    return {};
  }
  return v.NumberAsInt64();
}

int64_t ArgReader::FindNonNegative(std::string_view name, int64_t fallback) {
  auto v = OptInt64(name);
  if (!v) return fallback;
  if (*v < 0) {
    Fail({LocationCode(51024), "BSON field '" + std::string(name) +
                                   "' value must be >= 0, actual value '" + std::to_string(*v) +
                                   "'"});
    return fallback;
  }
  return *v;
}

std::optional<int64_t> ArgReader::OptInRange(std::string_view name, int64_t low, int64_t high) {
  auto v = OptInt64(name);
  if (!v) return {};
  if (*v < low || *v > high) {
    const bool below = *v < low;
    Fail({ErrorCode::kBadValue, "BSON field '" + std::string(name) + "' value must be " +
                                    (below ? ">= " : "<= ") + std::to_string(below ? low : high) +
                                    ", actual value '" + std::to_string(*v) + "'"});
    return {};
  }
  return v;
}

std::optional<double> ArgReader::OptDouble(std::string_view name) {
  BsonValue v = TakePresent(name);
  if (v.missing()) return {};
  if (!v.IsNumber()) {
    Fail(WrongType(name, v.type(), kNumberTypes));
    return {};
  }
  return v.NumberAsDouble();
}

std::optional<bool> ArgReader::FindBool(std::string_view name) {
  BsonValue v = TakePresent(name);
  if (!Expect(name, v, BsonType::kBool)) return {};
  return v.Bool();
}

bool ArgReader::FindLooseBool(std::string_view name, bool fallback) {
  BsonValue v = TakePresent(name);
  if (v.missing()) return fallback;
  if (!v.Is(BsonType::kBool) && !v.IsNumber()) {
    Fail(WrongType(name, v.type(), kLooseBoolTypes));
    return fallback;
  }
  return v.Truthy();
}

void ArgReader::NotSupported(std::string_view name) {
  if (TakePresent(name).missing()) return;
  Fail({ErrorCode::kNotImplemented, Quoted(where_, name) + " is not supported by this server"});
}

void ArgReader::CheckCollation() {
  const std::optional<BsonView> collation = OptDocument("collation");
  if (!collation || collation->empty()) return;
  if (auto once = ArgReader(where_ + ".collation", *collation).FinishLoose(); !once)
    return Fail(std::move(once).error());
  const BsonValue locale = (*collation)["locale"];
  if (locale.missing())
    return Fail({ErrorCode::kMissingField,
                 Quoted(where_ + ".collation", "locale") + " is missing but a required field"});
  if (!locale.IsString())
    return Fail({ErrorCode::kTypeMismatch,
                 Quoted(where_ + ".collation", "locale") + " is the wrong type '" +
                     std::string(BsonTypeName(locale.type())) + "', expected type 'string'"});
  if (locale.String() != "simple")
    Fail({ErrorCode::kNotImplemented,
          Quoted(where_, "collation") +
              " is not supported by this server but for {locale: 'simple'}"});
}

Result<void> ArgReader::FinishLoose() {
  if (error_) return *error_;
  return Ok();
}

std::vector<std::string> ArgReader::Unread() const {
  std::vector<std::string> names;
  for (const CommandField& f : *fields_)
    if (!f.used && !f.generic) names.emplace_back(f.name);
  return names;
}

Result<void> ArgReader::Finish() {
  if (error_) return *error_;
  for (const CommandField& f : *fields_) {
    if (f.used || f.generic) continue;
    return Error{ErrorCode::kUnknownField,
                 Quoted(where_, ShownName(f.name)) + " is an unknown field."};
  }
  return Ok();
}

Result<void> NoArguments(const CommandRequest& req) {
  for (size_t i = 1; i < req.fields.size(); ++i)
    if (!req.fields[i].generic) [[unlikely]] {
      ArgReader in(req);
      return in.Finish();
    }
  return Ok();
}

std::string_view NearestName(std::string_view word,
                             const std::vector<std::string_view>& candidates) {
  std::string_view best;
  // None of our names is as long, and the distance takes the product of both lengths in
  // steps.
  if (word.size() > kShownName) return best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  std::vector<size_t> row;
  for (std::string_view c : candidates) {
    row.resize(c.size() + 1);
    for (size_t j = 0; j <= c.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= c.size(); ++j) {
        const size_t up = row[j];
        const bool same = std::tolower(word[i - 1]) == std::tolower(c[j - 1]);
        row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (same ? 0 : 1)});
        diagonal = up;
      }
    }
    if (row[c.size()] < best_distance) {
      best_distance = row[c.size()];
      best = c;
    }
  }
  return best;
}

}  // namespace mayfly
