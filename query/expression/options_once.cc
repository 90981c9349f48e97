#include "query/expression/options_once.h"

#include <algorithm>
#include <boost/container/static_vector.hpp>

#include "protocol/field_once.h"
#include "protocol/seeded_hash.h"
#include "query/expression/parse_work.h"

namespace mayfly {
namespace {

constexpr size_t kOptionBytes = 64;        ///< of an option's name in a set
constexpr size_t kOptionBytesAStep = 256;  ///< hashed in the time of a step

}  // namespace

Result<std::optional<std::string_view>> RepeatedName(BsonView fields) {
  // Not sorted: that would be one long step where somebody sends a million of them.
  ClientViewSet names;
  // Few are compared with one another, without a table.
  boost::container::static_vector<std::string_view, 16> few;
  for (const BsonElement& e : fields) {
    MAYFLY_TRY(ParseWork::Step(1 + e.name.size() / kOptionBytesAStep));
    bool fresh = std::ranges::find(few, e.name) == few.end();
    if (few.size() < few.capacity()) {
      few.push_back(e.name);
    } else {
      ParseWork::Made(kOptionBytes);
      fresh = names.insert(e.name).second && fresh;
    }
    if (!fresh) return std::optional(e.name);
  }
  return std::optional<std::string_view>();
}

Result<void> CheckOptionsOnce(std::string_view where, BsonValue options) {
  if (!options.IsDocument()) return Ok();
  MAYFLY_TRY(const std::optional<std::string_view> twice, RepeatedName(options.Document()));
  if (!twice) return Ok();
  return DuplicateField(where, *twice);
}

}  // namespace mayfly
