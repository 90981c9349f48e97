#include "server/privileges/pipeline_privileges.h"

#include "query/expression/parse_work.h"
#include "server/privileges/text.h"

namespace mayfly::privileges {

namespace {

class PipelineCheck {
 public:
  PipelineCheck(const PrivilegeSet& privileges, std::string_view db, const PipelineUse& use)
      : privileges_(privileges), db_(db), use_(use) {
    read_.Add(Action::find);
    if (use.include_expired) read_.Add(Action::readExpired);
  }

  /// Checks a pipeline that has its own source.
  bool Pipeline(std::string_view collection, BsonView stages) {
    const BsonValue first = stages.First().value;
    const std::string_view source =
        first.IsDocument() ? first.Document().First().name : std::string_view();
    if (collection.empty() ? !use_.logged_in : !MakesDocuments(source) && !Reads(collection))
      return false;
    return Stages(collection, stages);
  }

 private:
  /// Whether a first stage does not read the collection's documents, but needs an action of its own
  /// on the collection.
  static bool MakesDocuments(std::string_view stage) {
    constexpr std::string_view kSources[] = {
        "$changeStream", "$collStats",      "$indexStats", "$listSearchIndexes",
        "$listSessions", "$planCacheStats", "$tombstones", "$ttlForecast"};
    for (std::string_view s : kSources)
      if (s == stage) return true;
    return false;
  }

  bool On(std::string_view collection, ActionSet actions) const {
    return privileges_.Allows(db_, collection, actions);
  }
  bool Reads(std::string_view collection) const { return On(collection, read_); }

  bool Stages(std::string_view collection, BsonView stages) {
    for (const BsonElement& stage : stages) {
      if (!ParseWork::Step()) return false;
      if (!stage.value.IsDocument()) continue;
      // The parser accepts only one field, but this check does not rely on that.
      for (const BsonElement& e : stage.value.Document())
        if (!ParseWork::Step() || !Stage(collection, e)) return false;
    }
    return true;
  }

  bool Stage(std::string_view collection, const BsonElement& e) {
    const std::string_view name = e.name;
    if (name == "$lookup" || name == "$graphLookup" || name == "$unionWith") return Foreign(e);
    if (name == "$facet") return Facet(collection, e.value);
    if (name == "$out") return Target(e.value, {Action::insert, Action::remove});
    if (name == "$merge") return Merge(e.value);
    if (name == "$collStats") return On(collection, {Action::collStats});
    if (name == "$indexStats") return On(collection, {Action::indexStats});
    if (name == "$planCacheStats") return On(collection, {Action::planCacheRead});
    if (name == "$listSearchIndexes") return On(collection, {Action::listSearchIndexes});
    if (name == "$ttlForecast") return On(collection, {Action::viewExpiry});
    if (name == "$tombstones") return Tombstones(collection);
    if (name == "$changeStream") return ChangeStream(collection, e.value);
    if (name == "$listSessions" || name == "$listLocalSessions") return Sessions(e.value);
    if (name == "$currentOp")
      return use_.logged_in &&
             (!Asks(e.value, "allUsers") || privileges_.AllowsOnCluster({Action::inprog}));
    return true;
  }

  /// Whether a field of this name is true. If the field is repeated, one true value is enough.
  static bool Asks(BsonValue spec, std::string_view field) {
    if (!spec.IsDocument()) return false;
    for (const BsonElement& e : spec.Document())
      if (e.name == field && e.value.Truthy()) return true;
    return false;
  }

  /// Stages that read other collections, and pipelines on these.
  bool Foreign(const BsonElement& stage) {
    if (stage.value.IsString()) return Reads(stage.value.String());
    if (!stage.value.IsDocument()) return true;
    std::string_view from;
    for (const BsonElement& e : stage.value.Document()) {
      if (e.name != (stage.name == "$unionWith" ? "coll" : "from") || !e.value.IsString()) continue;
      from = Text(e.value);
      if (!ParseWork::Step() || !Reads(from)) return false;
    }
    for (const BsonElement& e : stage.value.Document())
      if (e.name == "pipeline" && e.value.IsArray() && !Pipeline(from, e.value.Document()))
        return false;
    return true;
  }

  bool Facet(std::string_view collection, BsonValue spec) {
    if (!spec.IsDocument()) return true;
    for (const BsonElement& e : spec.Document())
      if (e.value.IsArray() && !Stages(collection, e.value.Document())) return false;
    return true;
  }

  /// "coll" or {db, coll}. A field that is there twice is refused (40413) before the stage is read.
  bool Target(BsonValue spec, ActionSet actions) {
    std::string_view db = db_, collection;
    if (spec.IsString()) collection = Text(spec);
    if (spec.IsDocument())
      for (const BsonElement& e : spec.Document()) {
        if (!e.value.IsString()) continue;
        if (e.name == "db") db = Text(e.value);
        if (e.name == "coll") collection = Text(e.value);
      }
    if (use_.bypass_validation) actions.Add(Action::bypassDocumentValidation);
    return privileges_.Allows(db, collection, actions);
  }

  static bool IsOneOf(BsonValue v, std::string_view a, std::string_view b) {
    return v.IsString() && (v.String() == a || v.String() == b);
  }

  bool Merge(BsonValue spec) {
    if (!spec.IsDocument()) return Target(spec, {Action::insert, Action::update});
    bool updates = true, inserts = true;
    BsonValue into;
    for (const BsonElement& e : spec.Document()) {
      if (e.name == "into") into = e.value;
      if (e.name == "whenMatched") updates = !IsOneOf(e.value, "keepExisting", "fail");
      if (e.name == "whenNotMatched") inserts = !IsOneOf(e.value, "discard", "fail");
    }
    ActionSet actions;
    if (updates) actions.Add(Action::update);
    // Neither: the stage will refuse to run, because it would do nothing.
    if (inserts || !updates) actions.Add(Action::insert);
    return Target(into, actions);
  }

  /// One's own sessions need no action (manual: "$listSessions").
  bool Sessions(BsonValue spec) const {
    if (privileges_.AllowsOnCluster({Action::listSessions})) return true;
    if (!use_.logged_in || Asks(spec, "allUsers")) return false;
    if (!spec.IsDocument()) return true;
    for (const BsonElement& e : spec.Document()) {
      if (e.name != "users" || !e.value.IsArray()) continue;
      for (const BsonElement& one : e.value.Document()) {
        if (!ParseWork::Step()) return false;
        const Result<UserName> name = ParseUserName(one.value, "admin");
        if (!name || use_.user == nullptr || name.value() != *use_.user) return false;
      }
    }
    return true;
  }

  bool Tombstones(std::string_view collection) const {
    constexpr ActionSet kRead{Action::readExpired};
    // With an empty collection on `admin`, the stage covers all databases.
    if (collection.empty() && db_ == "admin")
      return privileges_.Allows(Resource::Database(""), kRead);
    return On(collection, kRead);
  }

  bool ChangeStream(std::string_view collection, BsonValue spec) const {
    constexpr ActionSet kWatch{Action::changeStream, Action::find};
    if (Asks(spec, "allChangesForCluster"))
      return privileges_.Allows(Resource::Database(""), kWatch);
    return On(collection, kWatch);
  }

  const PrivilegeSet& privileges_;
  const std::string_view db_;
  const PipelineUse& use_;
  ActionSet read_;
};

}  // namespace

bool AllowsPipeline(const PrivilegeSet& privileges, std::string_view db,
                    std::string_view collection, BsonView pipeline, const PipelineUse& use) {
  return PipelineCheck(privileges, db, use).Pipeline(collection, pipeline);
}

bool AllowsViewOf(const PrivilegeSet& privileges, std::string_view db, std::string_view name,
                  std::string_view on, BsonView pipeline) {
  if (!privileges.Allows(db, name, {Action::find})) return true;
  return AllowsPipeline(privileges, db, on, pipeline, {});
}

}  // namespace mayfly::privileges
