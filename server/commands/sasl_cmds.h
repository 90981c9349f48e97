#pragma once
#include <string_view>

#include "protocol/bson_builder.h"
#include "server/dispatch/command.h"

namespace mayfly {

/// `speculativeAuthenticate` of hello: {saslStart: 1, mechanism, payload, db, options}. Appends
/// `speculativeAuthenticate: {conversationId, done, payload}` when the login has begun, and nothing
/// otherwise: the driver then begins it with saslStart, which says why it cannot. REQUIRES: a
/// connection.
Awaitable<void> SpeculativeLogin(CommandContext& ctx, BsonView command, BsonBuilder& reply);

/// `saslSupportedMechs` of hello: the mechanisms that the user ("db.name") can log in with. Of a
/// user who does not exist, or has no password: all that are offered, as a new user would have
/// them, so that the answer does not tell who exists. Appends an array.
Awaitable<Result<void>> AppendMechanisms(CommandContext& ctx, std::string_view user,
                                         BsonBuilder& reply);

}  // namespace mayfly
