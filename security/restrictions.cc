#include "security/restrictions.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "protocol/field_once.h"
#include "protocol/utf8.h"

namespace mayfly {

namespace {

constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsMapped(const IpAddress& a) { return std::memcmp(a.bytes.data(), kMapped, 12) == 0; }

bool AnyContains(const std::vector<AddressRange>& ranges, const std::optional<IpAddress>& a) {
  if (ranges.empty()) return true;
  return a && std::any_of(ranges.begin(), ranges.end(),
                          [&](const AddressRange& r) { return r.Contains(*a); });
}

/// Parses one text or an array of texts.
Result<void> ParseRanges(const BsonElement& e, size_t& left, std::vector<AddressRange>& out) {
  const auto add = [&](BsonValue v) -> Result<void> {
    if (!v.IsString())
      return Error{ErrorCode::kTypeMismatch, "'" + std::string(e.name) +
                                                 "' must be an array of strings: addresses or "
                                                 "ranges as 10.0.0.0/8"};
    if (left-- == 0)
      return Error{ErrorCode::kBadValue,
                   "authenticationRestrictions have at most 1,000 addresses: use ranges"};
    MAYFLY_TRY(auto range, ParseAddressRange(v.String()));
    out.push_back(std::move(range));
    return Ok();
  };
  if (!e.value.IsArray()) return add(e.value);
  for (const BsonElement& one : e.value.Document()) {
    MAYFLY_TRY(add(one.value));
  }
  if (out.empty())
    return Error{ErrorCode::kBadValue,
                 "'" + std::string(e.name) + "' needs at least one address: leave it out for any"};
  return Ok();
}

}  // namespace

std::optional<IpAddress> ParseIpAddress(std::string_view text) {
  text = text.substr(0, text.find('%'));
  if (text.size() > 45 || text.empty() || text.find('\0') != std::string_view::npos)
    return std::nullopt;
  const std::string s(text);
  IpAddress a;
  if (::inet_pton(AF_INET6, s.c_str(), a.bytes.data()) == 1) return a;
  std::memcpy(a.bytes.data(), kMapped, 12);
  if (::inet_pton(AF_INET, s.c_str(), a.bytes.data() + 12) == 1) return a;
  return std::nullopt;
}

bool AddressRange::Contains(const IpAddress& a) const {
  const size_t whole = static_cast<size_t>(bits) / 8;
  if (std::memcmp(a.bytes.data(), base.bytes.data(), whole) != 0) return false;
  const int rest = bits % 8;
  return rest == 0 || ((a.bytes[whole] ^ base.bytes[whole]) >> (8 - rest)) == 0;
}

Result<AddressRange> ParseAddressRange(std::string_view text) {
  const auto refuse = [&] {
    return Error{ErrorCode::kBadValue, "'" + PrintableUtf8(text.substr(0, 128)) +
                                           "' is no IP address and no range as 10.0.0.0/8"};
  };
  AddressRange range;
  range.text = text.substr(0, 128);
  const size_t slash = text.find('/');
  const auto base = ParseIpAddress(text.substr(0, slash));
  if (!base || text.find('%') != std::string_view::npos) return refuse();
  range.base = *base;
  const bool four = IsMapped(*base) && text.find('.') != std::string_view::npos &&
                    text.find(':') == std::string_view::npos;
  if (slash == std::string_view::npos) return range;
  const std::string_view digits = text.substr(slash + 1);
  int bits = -1;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  if (failed != std::errc() || end != digits.data() + digits.size() || digits.size() > 3 ||
      bits < 0 || bits > (four ? 32 : 128))
    return refuse();
  // All addresses of IPv4, and by mistake: the prefix was meant for these.
  if (!four && IsMapped(*base) && bits < 96)
    return Error{ErrorCode::kBadValue,
                 "'" + range.text +
                     "' has all addresses of IPv4: write it as 10.0.0.0/8, or with "
                     "96 more bits"};
  range.bits = four ? bits + 96 : bits;
  return range;
}

bool AuthenticationRestriction::Allows(const LoginOrigin& origin) const {
  return AnyContains(client_source, origin.client) && AnyContains(server_address, origin.server);
}

bool Allows(const AuthenticationRestrictions& restrictions, const LoginOrigin& origin) {
  return restrictions.empty() ||
         std::any_of(restrictions.begin(), restrictions.end(),
                     [&](const AuthenticationRestriction& r) { return r.Allows(origin); });
}

Result<AuthenticationRestrictions> ParseRestrictions(BsonValue value) {
  if (!value.IsArray())
    return Error{ErrorCode::kTypeMismatch, "'authenticationRestrictions' must be an array"};
  AuthenticationRestrictions all;
  size_t left = kMaxRestrictionAddresses;
  for (const BsonElement& e : value.Document()) {
    if (!e.value.IsDocument())
      return Error{ErrorCode::kTypeMismatch,
                   "each of 'authenticationRestrictions' must be a document"};
    AuthenticationRestriction one;
    constexpr std::string_view kFields[] = {"clientSource", "serverAddress"};
    unsigned seen = 0;
    for (const BsonElement& f : e.value.Document()) {
      MAYFLY_TRY(FieldOnce("authenticationRestrictions", kFields, f.name, &seen));
      if (f.name == "clientSource") {
        MAYFLY_TRY(ParseRanges(f, left, one.client_source));
      } else if (f.name == "serverAddress") {
        MAYFLY_TRY(ParseRanges(f, left, one.server_address));
      } else {
        return Error{ErrorCode::kUnsupportedFormat, "Unrecognized authentication restriction: " +
                                                        PrintableUtf8(f.name.substr(0, 128))};
      }
    }
    if (one.client_source.empty() && one.server_address.empty())
      return Error{ErrorCode::kBadValue,
                   "an authentication restriction needs 'clientSource' or 'serverAddress'"};
    all.push_back(std::move(one));
  }
  return all;
}

void AppendRestrictions(BsonBuilder& out, std::string_view name,
                        const AuthenticationRestrictions& restrictions) {
  BsonArrayBuilder list = out.OpenArray(name);
  for (const AuthenticationRestriction& r : restrictions) {
    BsonBuilder one = list.OpenDocument();
    const auto append = [&](std::string_view field, const std::vector<AddressRange>& ranges) {
      if (ranges.empty()) return;
      BsonArrayBuilder texts = one.OpenArray(field);
      for (const AddressRange& range : ranges) texts.Append(range.text);
    };
    append("clientSource", r.client_source);
    append("serverAddress", r.server_address);
  }
}

}  // namespace mayfly
