#include "protocol/error_codes.h"

#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace mayfly {

namespace {

/// Names of codes that have no enumerator: only fail points, other members of a replica set or one
/// place bring them.
constexpr std::pair<int32_t, std::string_view> kMoreNames[] = {
    {63, "StaleShardVersion"},
    {80, "InvalidRoleModification"},
    {95, "NotSecondary"},
    {109, "ConfigurationInProgress"},
    {133, "FailedToSatisfyReadPreference"},
    {150, "StaleEpoch"},
    {217, "IncompleteTransactionHistory"},
    {234, "RetryChangeStream"},
    {260, "InvalidResumeToken"},
    {262, "ExceededTimeLimit"},
    {266, "FailPointSetFailed"},
    {9001, "SocketException"},
    {13388, "StaleConfig"},
    {31082, "SearchNotEnabled"},
};

}  // namespace

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
#define X(name, number, text) \
  case ErrorCode::name:       \
    return text;
    MAYFLY_ERROR_CODES(X)
#undef X
  }
  for (const auto& [number, text] : kMoreNames)
    if (number == static_cast<int32_t>(code)) return text;
  static std::mutex mutex;
  static auto* names =
      new std::unordered_map<int32_t, std::string>;  // grows by the few Location codes in use
  std::lock_guard lock(mutex);
  std::string& name = (*names)[static_cast<int32_t>(code)];
  if (name.empty()) name = "Location" + std::to_string(static_cast<int32_t>(code));
  return name;
}

}  // namespace mayfly
