#include "security/action.h"

#include <algorithm>

namespace mayfly {

namespace {
constexpr std::string_view kNames[] = {
#define X(name) #name,
    MAYFLY_ACTIONS(X)
#undef X
};
static_assert(std::ranges::is_sorted(kNames), "FindAction and the order of shown actions need it");
}  // namespace

std::string_view ActionName(Action action) { return kNames[static_cast<size_t>(action)]; }

std::optional<Action> FindAction(std::string_view name) {
  const auto at = std::ranges::lower_bound(kNames, name);
  if (at == std::end(kNames) || *at != name) return std::nullopt;
  return static_cast<Action>(at - std::begin(kNames));
}

}  // namespace mayfly
