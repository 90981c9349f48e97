#include "link/definitions.h"

#include <algorithm>
#include <array>

#include "link/cluster.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

/// Whether two fields are the same; numbers by their value.
bool SameField(BsonValue a, BsonValue b) {
  if (a.missing() || b.missing()) return a.missing() && b.missing();
  if (a.IsNumber() && b.IsNumber()) return a.NumberAsDouble() == b.NumberAsDouble();
  return a.type() == b.type() && a.bytes() == b.bytes();
}

/// The fields of a definition without the limits of expiry.
void AppendWithoutLimits(BsonView options, BsonBuilder& out) {
  for (const BsonElement& e : options) {
    // What is temporary at the source ($out, convertToCapped) gets its own name, or is dropped.
    if (e.name == "idIndex" || e.name == "uuid" || e.name == "temp") continue;
    if (e.name != "expiry" || !e.value.IsDocument()) {
      out.Append(e);
      continue;
    }
    const BsonDocument rest = BuildBson([&](BsonBuilder& b) {
      for (const BsonElement& x : e.value.Document())
        if (x.name != "maxTTL") b.Append(x);
    });
    if (!rest.view().empty()) out.Append("expiry", rest);
  }
}

/// The options of an earlier and a later definition, and what makes the one into the other.
class Difference {
 public:
  Difference(BsonView before, BsonView after, bool whole, BsonBuilder& out)
      : before_(before), after_(after), whole_(whole), out_(out) {}

  /// An option that collMod takes as `as`; `otherwise` appends what a definition without it means.
  template <class Otherwise>
  void Add(std::string_view name, std::string_view as, Otherwise&& otherwise) {
    const BsonValue was = before_[name], is = after_[name];
    if (SameField(was, is)) return;
    if (!is.missing())
      out_.Append(as, is);
    else if (whole_)
      otherwise(as, out_);
  }
  /// The same of a text that is `otherwise` where there is none.
  void AddText(std::string_view name, std::string_view otherwise) {
    const auto text = [&](BsonValue v) { return v.IsString() ? v.String() : otherwise; };
    const BsonValue is = after_[name];
    if (is.missing() && !whole_) return;
    if (text(before_[name]) != text(is)) out_.Append(name, text(is));
  }
  void AddExpiry() {
    const BsonView was = DocumentOf(before_["expiry"]), is = DocumentOf(after_["expiry"]);
    if (after_["expiry"].missing() && !whole_) return;
    const BsonDocument change = BuildBson([&](BsonBuilder& b) {
      for (const BsonElement& e : is)
        if (e.name != "maxTTL" && !SameField(was[e.name], e.value)) b.Append(e);
      const auto gone = [&](std::string_view n) {
        return whole_ && is[n].missing() && !was[n].missing();
      };
      if (gone("field")) b.AppendNull("field");
      if (gone("onUpdate")) b.Append("onUpdate", "reset");
      if (gone("recoverSeconds")) b.Append("recoverSeconds", 0);
    });
    if (!change.view().empty()) out_.Append("expiry", change);
  }

 private:
  const BsonView before_, after_;
  const bool whole_;
  BsonBuilder& out_;
};

}  // namespace

bool IsTimeSeries(BsonView options) {
  return !options["timeseries"].missing() ||
         TextOf(options["viewOn"]).starts_with("system.buckets.");
}

BsonDocument CreateCommand(std::string_view collection, BsonView options) {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("create", collection);
    AppendWithoutLimits(options, b);
  });
}

bool SameKind(BsonView a, BsonView b) {
  const auto both = [&](std::string_view name) { return a[name].missing() == b[name].missing(); };
  return both("viewOn") && both("clusteredIndex") && a["capped"].Truthy() == b["capped"].Truthy() &&
         SameField(a["collation"], b["collation"]);
}

std::optional<BsonDocument> ModifyCommand(std::string_view collection, BsonView before,
                                          BsonView after, bool whole) {
  BsonDocument out = BuildBson([&](BsonBuilder& b) {
    b.Append("collMod", collection);
    if (!after["viewOn"].missing()) {
      if (SameField(before["viewOn"], after["viewOn"]) &&
          SameField(before["pipeline"], after["pipeline"]))
        return;
      b.Append("viewOn", after["viewOn"]);
      if (!after["pipeline"].missing()) b.Append("pipeline", after["pipeline"]);
      return;
    }
    const auto none = [](std::string_view name, BsonBuilder& o) { o.OpenDocument(name); };
    Difference d(before, after, whole, b);
    if (!(before["validator"].missing() && after["validator"].IsDocument() &&
          after["validator"].Document().empty()))
      d.Add("validator", "validator", none);
    d.AddText("validationLevel", "strict");
    d.AddText("validationAction", "error");
    if (after["capped"].Truthy()) {
      d.Add("size", "cappedSize", [](auto, auto&) {});
      d.Add("max", "cappedMax", [](auto name, BsonBuilder& o) { o.Append(name, 0); });
    }
    // As the client of a server gave them that has no more than that in its log.
    d.Add("cappedSize", "cappedSize", [](auto, auto&) {});
    d.Add("cappedMax", "cappedMax", [](auto, auto&) {});
    if (!after["clusteredIndex"].missing() || !after["expireAfterSeconds"].missing())
      d.Add("expireAfterSeconds", "expireAfterSeconds",
            [](auto name, BsonBuilder& o) { o.Append(name, "off"); });
    d.AddText("expireReads", "lazy");
    d.AddExpiry();
    d.Add("onExpire", "onExpire",
          [](auto name, BsonBuilder& o) { o.OpenDocument(name).Append("action", "delete"); });
    d.Add("changeStreamPreAndPostImages", "changeStreamPreAndPostImages",
          [](auto name, BsonBuilder& o) { o.OpenDocument(name).Append("enabled", false); });
  });
  if (out.view().Count() == 1) return std::nullopt;
  return out;
}

std::optional<BsonDocument> ModifyIndexCommand(std::string_view collection, BsonView index) {
  constexpr std::array<std::string_view, 8> kKnown{
      "name", "keyPattern", "expireAfterSeconds", "expireReads",
      "reap", "hidden",     "prepareUnique",      "unique"};
  size_t changes = 0;
  BsonDocument out = BuildBson([&](BsonBuilder& b) {
    b.Append("collMod", collection);
    BsonBuilder i = b.OpenDocument("index");
    for (const BsonElement& e : index) {
      if (std::ranges::find(kKnown, e.name) == kKnown.end()) continue;
      i.Append(e);
      if (e.name != "name" && e.name != "keyPattern") ++changes;
    }
  });
  if (changes == 0) return std::nullopt;
  return out;
}

}  // namespace mayfly
