#include "server/dispatch/cursor_limits.h"

#include <algorithm>

#include "protocol/fair_share.h"
#include "server/base/client_of.h"

namespace mayfly {

namespace {

Error TooMany(const std::string& what) {
  return {ErrorCode::kExceededMemoryLimit,
          what + ": close some with killCursors, or read them to their ends"};
}

}  // namespace

int64_t CursorLimits::MostCursors() {
  constexpr int64_t kShare = 32 * 1024, kLeast = 4000;
  return std::clamp(large_memory::Limit() / kShare, kLeast, kMaxCursors);
}

Result<void> CursorLimits::Check(const Use& client, std::string_view whose) const {
  if (client.cursors > 1 &&
      !FitsFairShare(client.cursors, all_.cursors, MostCursors(), MostOfClient(), false))
    return TooMany("cannot open a cursor: " + std::to_string(client.cursors - 1) + " cursors of " +
                   std::string(whose) + " are open already");
  if (all_.cursors > MostCursors())
    return TooMany("cannot open a cursor: " + std::to_string(all_.cursors - 1) +
                   " cursors are open already");
  if (all_.bytes > MostBytes())
    return TooMany("cannot open a cursor: with it all open cursors would take " +
                   std::to_string(all_.bytes >> 20) + " MB, more than the " +
                   std::to_string(MostBytes() >> 20) + " MB they may");
  // A client's only cursor may be a large one.
  if (!FitsFairShare(client.bytes, all_.bytes, MostBytes(), MostBytesOfClient(),
                     client.cursors == 1))
    return TooMany("cannot open a cursor: with it the cursors of " + std::string(whose) +
                   " would take " + std::to_string(client.bytes >> 20) + " MB, more than the " +
                   std::to_string(MostBytesOfClient() >> 20) +
                   " MB they may, or more than would be left for all others");
  return Ok();
}

void CursorLimits::Change(Share& share, Use& client, int64_t bytes, int64_t held) {
  client.bytes += bytes - share.bytes_;
  all_.bytes += bytes - share.bytes_;
  held_elsewhere_ += held - share.held_;
  share.bytes_ = bytes;
  share.held_ = held;
  // Not refused here: the cursor exists already, and the limits above are lower than that one.
  (void)hold_.Set(static_cast<size_t>(std::max<int64_t>(0, all_.bytes - held_elsewhere_)));
}

Result<std::unique_ptr<CursorLimits::Share>> CursorLimits::Take(std::string_view user,
                                                                std::string_view address,
                                                                size_t bytes, size_t held) {
  const bool of_server = user.empty() && address.empty();
  const std::string_view whose = user.empty() ? "this client's address" : "this user";
  auto share = std::make_unique<Share>(shared_from_this(), OwnerOf(user, address));
  // One that is refused gives back what it took as every other does: when it ends, below the lock.
  Result<void> room = Ok();
  {
    std::lock_guard l(mutex_);
    Use& client = clients_[share->client_];
    ++client.cursors;
    ++all_.cursors;
    Change(*share, client, static_cast<int64_t>(bytes), static_cast<int64_t>(held));
    if (!of_server) room = Check(client, whose);
  }
  if (!room) return std::move(room).error();
  return share;
}

CursorLimits::Share::~Share() {
  std::lock_guard l(of_->mutex_);
  const auto client = of_->clients_.find(client_);
  if (client == of_->clients_.end()) return;  // it was never counted
  of_->Change(*this, client->second, 0, 0);
  --of_->all_.cursors;
  if (--client->second.cursors == 0) of_->clients_.erase(client);
}

void CursorLimits::Share::Set(size_t bytes, size_t held) {
  if (static_cast<int64_t>(bytes) == bytes_ && static_cast<int64_t>(held) == held_) [[likely]]
    return;
  std::lock_guard l(of_->mutex_);
  of_->Change(*this, of_->clients_.find(client_)->second, static_cast<int64_t>(bytes),
              static_cast<int64_t>(held));
}

}  // namespace mayfly
