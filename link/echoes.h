#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_view.h"

namespace mayfly {

/// Tells what the link in the other direction wrote at this link's source, so that it is not sent
/// back. That link begins each of its transactions with a change of its own document, and changes
/// it before and after each change of a definition; the source's stream has all of that in its
/// order. Threads: one.
class Echoes {
 public:
  /// `hosts`: of the target, as a link back names its source.
  explicit Echoes(std::vector<std::string> hosts) : hosts_(std::move(hosts)) {}

  /// To be called with each event of kLinkDatabase.links, in order, with `fullDocument`.
  void See(BsonView event);
  /// Whether the link back made this change of a document.
  bool Wrote(BsonView event) const;
  /// Whether it made this change of a collection or database.
  bool Defined(BsonView event) const;

  /// What is known at a position of the stream; for Load when it is resumed there.
  BsonDocument State() const;
  void Load(BsonView state);

 private:
  const std::vector<std::string> hosts_;
  BsonDocument transaction_;  ///< {lsid, txnNumber} of its latest one; empty: none
  /// Which collections each link changes now, by the link's name: {ns, to}.
  std::map<std::string, BsonDocument, std::less<>> definitions_;
};

}  // namespace mayfly
