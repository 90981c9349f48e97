#pragma once
#include <optional>
#include <string_view>

#include "security/login_backoff.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// Waits until a password of `user` from `address` (as of ClientOf) may be looked at, on the io
/// thread of `ctx`. None: too many others are tried, and this one has failed without a look.
/// Errors: those of SleepUntil.
Awaitable<Result<std::optional<LoginBackoff::Attempt>>> LoginTurn(CommandContext& ctx,
                                                                  std::string_view address,
                                                                  const UserName& user);

}  // namespace mayfly
