#include "link/echoes.h"

#include <algorithm>

#include "link/cluster.h"
#include "protocol/bson_builder.h"

namespace mayfly {
namespace {

/// Links in the other direction: what a source says is limited.
constexpr size_t kMostLinks = 1000, kMostLinkBytes = 1 << 20;

bool Equal(BsonValue a, BsonValue b) {
  return !a.missing() && a.type() == b.type() && a.bytes() == b.bytes();
}

std::string NamespaceOf(BsonView names) {
  const std::string_view collection = TextOf(names["coll"]);
  std::string out(TextOf(names["db"]));
  if (!collection.empty()) out.append(".").append(collection);
  return out;
}

/// The events of a command, the first of each row.
constexpr std::string_view kEvents[][3] = {{"create", "create", ""},
                                           {"createIndexes", "createIndexes", "create"},
                                           {"dropIndexes", "dropIndexes", ""},
                                           {"collMod", "modify", ""},
                                           {"drop", "drop", ""},
                                           {"dropDatabase", "drop", "dropDatabase"},
                                           {"renameCollection", "rename", "drop"}};

/// Whether a definition may have this event. Something else that happens to the collection
/// meanwhile, while an index is built for instance, is somebody else's.
bool IsOf(BsonView definition, BsonView event) {
  const std::string_view command = TextOf(definition["command"]);
  const std::string_view type = TextOf(event["operationType"]);
  const auto row =
      std::ranges::find_if(kEvents, [&](const auto& events) { return events[0] == command; });
  // A link of an earlier version does not say what it does.
  if (row == std::end(kEvents)) return true;
  if (type != (*row)[1] && type != (*row)[2]) return false;
  const BsonValue names = definition["indexes"];
  const BsonValue made = DocumentOf(event["operationDescription"])["indexes"];
  if (type != "createIndexes" || !names.IsArray() || !made.IsArray()) return true;
  return std::ranges::all_of(made.Document(), [&](const BsonElement& e) {
    const BsonValue name = DocumentOf(e.value)["name"];
    return std::ranges::any_of(names.Document(),
                               [&](const BsonElement& n) { return Equal(n.value, name); });
  });
}

}  // namespace

void Echoes::See(BsonView event) {
  const BsonValue hosts = DocumentOf(DocumentOf(event["fullDocument"])["source"])["hosts"];
  if (!hosts.IsArray()) return;
  const bool back = std::ranges::any_of(hosts.Document(), [&](const BsonElement& h) {
    return h.value.IsString() && std::ranges::find(hosts_, h.value.String()) != hosts_.end();
  });
  if (!back) return;
  // A link does one thing after the other: whatever it says next, its definition is changed.
  const std::string link(TextOf(DocumentOf(event["documentKey"])["_id"]));
  definitions_.erase(link);
  if (event["lsid"].IsDocument() && event["txnNumber"].IsNumber()) {
    transaction_ = BuildBson([&](BsonBuilder& b) {
      b.Append("lsid", event["lsid"]).Append("txnNumber", event["txnNumber"]);
    });
    return;
  }
  const BsonView set = DocumentOf(DocumentOf(event["updateDescription"])["updatedFields"]);
  if (!set["definition"].IsDocument()) return;
  size_t bytes = link.size() + set["definition"].Document().size();
  for (const auto& [name, definition] : definitions_)
    bytes += name.size() + definition.view().size();
  if (definitions_.size() < kMostLinks && bytes <= kMostLinkBytes)
    definitions_[link] = BsonDocument(set["definition"].Document());
}

bool Echoes::Wrote(BsonView event) const {
  return Equal(event["txnNumber"], transaction_.view()["txnNumber"]) &&
         Equal(event["lsid"], transaction_.view()["lsid"]);
}

bool Echoes::Defined(BsonView event) const {
  const std::string ns = NamespaceOf(DocumentOf(event["ns"]));
  return std::ranges::any_of(definitions_, [&](const auto& d) {
    const std::string_view of = TextOf(d.second.view()["ns"]), to = TextOf(d.second.view()["to"]);
    // With a database come the drops of its collections.
    const bool whole = of.find('.') == of.npos && ns.starts_with(std::string(of) + ".");
    return (ns == of || ns == to || whole) && IsOf(d.second, event);
  });
}

BsonDocument Echoes::State() const {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("transaction", transaction_);
    BsonArrayBuilder list = b.OpenArray("definitions");
    for (const auto& [link, definition] : definitions_)
      list.OpenDocument().Append("link", link).Append("definition", definition);
  });
}

void Echoes::Load(BsonView state) {
  transaction_ = BsonDocument(DocumentOf(state["transaction"]));
  definitions_.clear();
  if (!state["definitions"].IsArray()) return;
  for (const BsonElement& e : state["definitions"].Document()) {
    const BsonView d = DocumentOf(e.value);
    definitions_[std::string(TextOf(d["link"]))] = BsonDocument(DocumentOf(d["definition"]));
  }
}

}  // namespace mayfly
