#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bson_builder.h"
#include "protocol/error.h"

namespace mayfly {

/// An address of IPv4 or IPv6, 16 bytes in network order; one of IPv4 is ::ffff:a.b.c.d, so that a
/// server that listens on both sees one and the same client.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};
  bool operator==(const IpAddress&) const = default;
};

/// "10.1.2.3", "::1"; a zone ("fe80::1%eth0") is cut off. None for anything else.
std::optional<IpAddress> ParseIpAddress(std::string_view text);

/// Addresses whose first `bits` are the same: "10.0.0.0/8", or one address.
struct AddressRange {
  IpAddress base;
  int bits = 128;  ///< of the 128: 96 more than the text says for IPv4
  std::string text;
  /// Looks at the first `bits` only. An IPv4 client is found by its mapped address.
  bool Contains(const IpAddress& a) const;
  bool operator==(const AddressRange&) const = default;
};
/// Errors: BadValue 2.
Result<AddressRange> ParseAddressRange(std::string_view text);

/// From where a client came, and to which address of the server. None: not by TCP, or unknown.
struct LoginOrigin {
  std::optional<IpAddress> client, server;
};

/// One document of `authenticationRestrictions`: both parts have to hold; an empty part holds.
struct AuthenticationRestriction {
  std::vector<AddressRange> client_source, server_address;
  /// Whether both parts hold. For an address that is unknown only an empty part does.
  bool Allows(const LoginOrigin& origin) const;
  bool operator==(const AuthenticationRestriction&) const = default;
};

/// The restrictions of one user or role: one of them has to hold, or there is none.
using AuthenticationRestrictions = std::vector<AuthenticationRestriction>;
bool Allows(const AuthenticationRestrictions& restrictions, const LoginOrigin& origin);

/// An array of {clientSource: [ … ], serverAddress: [ … ]}; each may be one text, too. At most
/// kMaxRestrictionAddresses. Errors: BadValue 2, TypeMismatch 14, UnsupportedFormat 12 for others.
Result<AuthenticationRestrictions> ParseRestrictions(BsonValue value);
inline constexpr size_t kMaxRestrictionAddresses = 1000;
void AppendRestrictions(BsonBuilder& out, std::string_view name,
                        const AuthenticationRestrictions& restrictions);

}  // namespace mayfly
