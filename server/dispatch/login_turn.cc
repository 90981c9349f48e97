#include "server/dispatch/login_turn.h"

#include "protocol/micros.h"
#include "server/dispatch/server_context.h"

namespace mayfly {

Awaitable<Result<std::optional<LoginBackoff::Attempt>>> LoginTurn(CommandContext& ctx,
                                                                  std::string_view address,
                                                                  const UserName& user) {
  auto micros = [&] { return ctx.server.clock().MonotonicMicros(); };
  const int64_t since = micros() / 1000;
  for (;;) {
    int64_t wait = 0;
    std::optional<LoginBackoff::Attempt> attempt =
        ctx.server.access().backoff().Begin(address, user, since, micros() / 1000, &wait);
    if (attempt || wait == 0) co_return std::move(attempt);
    MAYFLY_CO_TRY(co_await ctx.SleepUntil(micros() + MicrosOf(wait)));
  }
}

}  // namespace mayfly
