#include "replication/repl_config.h"

#include <charconv>
#include <set>

#include "protocol/field_once.h"
#include "protocol/utf8.h"
#include "replication/repl_config_size.h"

namespace mayfly {
namespace {

constexpr size_t kMaxMembers = 50;
constexpr int kMaxVoters = 7;
constexpr size_t kMaxSetName = 256, kMaxHost = 512;  // bytes
constexpr size_t kMaxTags = 64, kMaxTagBytes = 256;  // of a member; each name and each value
constexpr size_t kMaxModes = 64, kMaxModeTags = 64;  // of a mode
constexpr size_t kMaxConfigBytes = 256 * 1024;       // as BSON
constexpr double kMaxPriority = 1000;
constexpr int64_t kMaxVersion = INT32_MAX;
// With a shorter timeout, a busy machine would seem to have lost its primary.
constexpr int64_t kMinElectionMillis = 200;
/// MongoDB's defaults of settings that have no meaning here: nothing else is accepted.
constexpr int64_t kCatchUpTimeoutMillis = -1, kCatchUpTakeoverDelayMillis = 30'000;

Error Invalid(std::string message) {
  return {ErrorCode::kInvalidReplicaSetConfig, std::move(message)};
}
Error Incompatible(std::string message) {
  return {ErrorCode::kNewReplicaSetConfigurationIncompatible, std::move(message)};
}
Error WrongType(std::string_view field, BsonValue v, std::string_view expected) {
  return {ErrorCode::kInvalidReplicaSetConfig,
          "BSON field '" + std::string(field) + "' is the wrong type '" +
              std::string(BsonTypeName(v.type())) + "', expected type '" + std::string(expected) +
              "'"};
}
Error Unknown(std::string_view where, std::string_view field) {
  return Invalid("BSON field '" + std::string(where) + "." + std::string(field) +
                 "' is an unknown field.");
}

Result<int64_t> Whole(std::string_view field, BsonValue v, int64_t low, int64_t high) {
  int64_t n = 0;
  if (!v.IsNumber()) return WrongType(field, v, "long");
  if (!v.ExactInt64(&n) || n < low || n > high)
    return Invalid(std::string(field) + " field value of " + std::to_string(v.NumberAsInt64()) +
                   " is out of range: it must be a whole number from " + std::to_string(low) +
                   " to " + std::to_string(high));
  return n;
}

Result<bool> Flag(std::string_view field, BsonValue v) {
  if (!v.Is(BsonType::kBool) && !v.IsNumber()) return WrongType(field, v, "bool");
  return v.Truthy();
}

bool IsLocalhost(std::string_view host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1" || host.starts_with("127.");
}

Result<MemberConfig> ParseMember(BsonView doc) {
  MemberConfig m;
  bool has_id = false, build_indexes = true;
  constexpr std::string_view kFields[] = {
      "_id",          "host",       "priority",           "votes", "hidden",  "arbiterOnly",
      "buildIndexes", "slaveDelay", "secondaryDelaySecs", "tags",  "horizons"};
  unsigned seen = 0;
  for (const BsonElement& e : doc) {
    MAYFLY_TRY(FieldOnce("members", kFields, e.name, &seen));
    const BsonValue v = e.value;
    if (e.name == "_id") {
      MAYFLY_TRY(int64_t id, Whole("members._id", v, 0, INT32_MAX));
      m.id = static_cast<int32_t>(id);
      has_id = true;
    } else if (e.name == "host") {
      if (!v.IsString()) return WrongType("members.host", v, "string");
      std::string host;
      int port = 0;
      if (v.String().find('\0') != std::string_view::npos || !IsUtf8(v.String()) ||
          !SplitHostAndPort(v.String(), &host, &port))
        return Invalid("members.host: '" + std::string(v.String()) + "' is not host:port");
      m.host = (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
               std::to_string(port);
    } else if (e.name == "priority") {
      if (!v.IsNumber()) return WrongType("members.priority", v, "double");
      m.priority = v.NumberAsDouble();
      if (!(m.priority >= 0 && m.priority <= kMaxPriority))
        return Invalid("priority field value of " + std::to_string(m.priority) +
                       " is out of range: it must be from 0 to 1000");
    } else if (e.name == "votes") {
      MAYFLY_TRY(int64_t n, Whole("votes", v, 0, 1));
      m.votes = static_cast<int32_t>(n);
    } else if (e.name == "hidden") {
      MAYFLY_TRY(m.hidden, Flag("members.hidden", v));
    } else if (e.name == "arbiterOnly") {
      MAYFLY_TRY(bool arbiter, Flag("members.arbiterOnly", v));
      if (arbiter)
        return Invalid(
            "arbiterOnly: members without data are not part of this server, because what is "
            "acknowledged must be on a majority: add a "
            "member with priority 0 instead");
    } else if (e.name == "buildIndexes") {
      MAYFLY_TRY(build_indexes, Flag("members.buildIndexes", v));
    } else if (e.name == "secondaryDelaySecs" || e.name == "slaveDelay") {
      MAYFLY_TRY(m.secondary_delay_secs, Whole("secondaryDelaySecs", v, 0, 3600ll * 24 * 366));
    } else if (e.name == "tags") {
      if (!v.IsDocument()) return WrongType("members.tags", v, "object");
      for (const BsonElement& t : v.Document()) {
        if (!t.value.IsString())
          return WrongType("members.tags." + std::string(t.name), t.value, "string");
        if (!m.tags.emplace(t.name, t.value.String()).second)
          return DuplicateField("members.tags", t.name);
      }
    } else if (e.name == "horizons") {
      if (!v.IsDocument()) return WrongType("members.horizons", v, "object");
      if (!v.Document().empty())
        return Invalid("horizons: split horizons are not part of this server");
    } else if (e.name == "newlyAdded") {
      // Only MongoDB itself writes this field.
      return Unknown("members", e.name);
    } else {
      return Unknown("members", e.name);
    }
  }
  if (!has_id) return Invalid("BSON field 'members._id' is missing but a required field");
  if (m.host.empty()) return Invalid("BSON field 'members.host' is missing but a required field");
  if (!build_indexes) return Invalid("buildIndexes: every member of this server has all indexes");
  if (m.votes == 0 && m.priority > 0) {
    return Invalid("priority must be 0 when non-voting (votes:0)");
  }
  if (m.hidden && m.priority > 0) return Invalid("priority must be 0 when hidden=true");
  if (m.secondary_delay_secs > 0 && m.priority > 0)
    return Invalid("priority must be 0 when secondaryDelaySecs is used");
  return m;
}

Result<void> ParseSettings(BsonView doc, ReplConfig* c) {
  constexpr std::string_view kFields[] = {
      "chainingAllowed",       "heartbeatIntervalMillis", "heartbeatTimeoutSecs",
      "electionTimeoutMillis", "catchUpTimeoutMillis",    "catchUpTakeoverDelayMillis",
      "getLastErrorModes",     "getLastErrorDefaults",    "replicaSetId"};
  unsigned seen = 0;
  for (const BsonElement& e : doc) {
    MAYFLY_TRY(FieldOnce("settings", kFields, e.name, &seen));
    const BsonValue v = e.value;
    if (e.name == "chainingAllowed") {
      MAYFLY_TRY(c->chaining_allowed, Flag("settings.chainingAllowed", v));
    } else if (e.name == "heartbeatIntervalMillis") {
      MAYFLY_TRY(c->heartbeat_interval_ms, Whole("heartbeatIntervalMillis", v, 1, 3600'000));
    } else if (e.name == "heartbeatTimeoutSecs") {
      MAYFLY_TRY(c->heartbeat_timeout_secs, Whole("heartbeatTimeoutSecs", v, 1, 3600));
    } else if (e.name == "electionTimeoutMillis") {
      MAYFLY_TRY(c->election_timeout_ms,
                 Whole("electionTimeoutMillis", v, kMinElectionMillis, 3600'000));
    } else if (e.name == "catchUpTimeoutMillis") {
      MAYFLY_TRY(int64_t n, Whole("catchUpTimeoutMillis", v, -1, INT32_MAX));
      if (n != kCatchUpTimeoutMillis)
        return Invalid(
            "catchUpTimeoutMillis: a new primary has everything that was acknowledged and never "
            "waits to catch up: leave it out, or give "
            "its default, -1");
    } else if (e.name == "catchUpTakeoverDelayMillis") {
      MAYFLY_TRY(int64_t n, Whole("catchUpTakeoverDelayMillis", v, -1, INT32_MAX));
      if (n != kCatchUpTakeoverDelayMillis)
        return Invalid(
            "catchUpTakeoverDelayMillis: no member is ever ahead of the primary, so none takes "
            "over for that reason: leave it out, or give "
            "its default, 30000");
    } else if (e.name == "getLastErrorModes") {
      if (!v.IsDocument()) return WrongType("settings.getLastErrorModes", v, "object");
      for (const BsonElement& mode : v.Document()) {
        if (!mode.value.IsDocument())
          return WrongType("settings.getLastErrorModes." + std::string(mode.name), mode.value,
                           "object");
        if (mode.name == "majority" || mode.name.starts_with('$'))
          return Invalid("getLastErrorModes: the name '" + std::string(mode.name) +
                         "' is reserved");
        const auto [at, added] = c->modes.try_emplace(std::string(mode.name));
        if (!added) return DuplicateField("settings.getLastErrorModes", mode.name);
        for (const BsonElement& t : mode.value.Document()) {
          MAYFLY_TRY(int64_t n, Whole("getLastErrorModes." + std::string(t.name), t.value, 1, 50));
          if (!at->second.emplace(t.name, n).second)
            return DuplicateField("settings.getLastErrorModes." + std::string(mode.name), t.name);
        }
      }
    } else if (e.name == "getLastErrorDefaults") {
      if (!v.IsDocument()) return WrongType("settings.getLastErrorDefaults", v, "object");
      const BsonView d = v.Document();
      constexpr std::string_view kDefaults[] = {"w", "j", "fsync", "wtimeout"};
      unsigned given = 0;
      for (const BsonElement& x : d) {
        MAYFLY_TRY(FieldOnce("settings.getLastErrorDefaults", kDefaults, x.name, &given));
      }
      if ((d.Has("w") && d["w"].NumberAsInt64() != 1) || d["wtimeout"].NumberAsInt64() != 0)
        return Invalid(
            "getLastErrorDefaults: set the default write concern with setDefaultRWConcern instead");
    } else if (e.name == "replicaSetId") {
      if (!v.Is(BsonType::kObjectId)) return WrongType("settings.replicaSetId", v, "objectId");
      c->set_id = std::string(v.ObjectId());
    } else {
      return Unknown("settings", e.name);
    }
  }
  return Ok();
}

Result<void> Validate(const ReplConfig& c) {
  const size_t n = c.members.size();
  if (n < 1 || n > kMaxMembers)
    return Invalid("Replica set configuration contains " + std::to_string(n) +
                   " members, but must have at least 1 and no more than  50");
  int voters = 0, electable = 0;
  size_t local = 0;
  std::set<int32_t> ids;
  std::set<std::string> hosts;
  for (const MemberConfig& m : c.members) {
    if (!ids.insert(m.id).second)
      return Invalid("Found two member configurations with same _id field, _id: " +
                     std::to_string(m.id));
    if (!hosts.insert(m.host).second)
      return Invalid("Found two member configurations with same host field, host: " + m.host);
    std::string host;
    int port;
    SplitHostAndPort(m.host, &host, &port);
    local += IsLocalhost(host);
    voters += m.voter();
    electable += m.electable();
  }
  if (local != 0 && local != n)
    return Invalid(
        "Either all host names in a replica set configuration must be localhost references, or "
        "none must be; found " +
        std::to_string(local) + " out of " + std::to_string(n));
  if (voters < 1 || voters > kMaxVoters)
    return Invalid("Replica set configuration contains " + std::to_string(voters) +
                   " voting members, but must be at least 1 and no more than 7");
  if (electable == 0)
    return Invalid(
        "Replica set configuration must contain at least one non-arbiter member with priority > 0");
  if (c.heartbeat_interval_ms >= c.heartbeat_timeout_secs * 1000)
    return Invalid(
        "heartbeatIntervalMillis of " + std::to_string(c.heartbeat_interval_ms) +
        " must be less than heartbeatTimeoutSecs of " + std::to_string(c.heartbeat_timeout_secs) +
        " seconds: members would take each other for unreachable between two heartbeats");
  for (const auto& [name, tags] : c.modes) {
    for (const auto& [tag, wanted] : tags) {
      std::set<std::string> values;
      for (const MemberConfig& m : c.members)
        if (auto it = m.tags.find(tag); it != m.tags.end()) values.insert(it->second);
      if (static_cast<int64_t>(values.size()) < wanted)
        return Invalid("getLastErrorModes." + name + ": no members have " + std::to_string(wanted) +
                       " different values of the tag '" + tag + "'");
    }
  }
  return Ok();
}

}  // namespace

bool SplitHostAndPort(std::string_view text, std::string* host, int* port) {
  *port = 27017;
  std::string_view rest;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    *host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
  } else {
    const size_t colon = text.find(':');
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
      *host = text;  // a bare IPv6 address
    } else {
      *host = text.substr(0, colon);
      if (colon != std::string_view::npos) rest = text.substr(colon);
    }
  }
  if (host->empty() || host->find('/') != std::string::npos || host->find(' ') != std::string::npos)
    return false;
  if (rest.empty()) return true;
  if (rest.size() < 2 || rest[0] != ':') return false;
  auto [p, ec] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), *port);
  return ec == std::errc() && p == rest.data() + rest.size() && *port > 0 && *port < 65536;
}

const MemberConfig* ReplConfig::FindHost(std::string_view host) const {
  for (const MemberConfig& m : members)
    if (m.host == host) return &m;
  return nullptr;
}

int ReplConfig::VotingMembers() const {
  int n = 0;
  for (const MemberConfig& m : members) n += m.voter();
  return n;
}

BsonDocument ReplConfig::ToBson() const {
  return BuildBson([&](BsonBuilder& b) {
    b.Append("_id", name).Append("version", static_cast<int32_t>(version)).Append("term", term);
    {
      auto list = b.OpenArray("members");
      for (const MemberConfig& m : members) {
        auto d = list.OpenDocument();
        d.Append("_id", m.id).Append("host", m.host).Append("arbiterOnly", false);
        d.Append("buildIndexes", true).Append("hidden", m.hidden);
        if (m.priority == static_cast<double>(static_cast<int32_t>(m.priority)))
          d.Append("priority", static_cast<int32_t>(m.priority));
        else
          d.Append("priority", m.priority);
        {
          auto tags = d.OpenDocument("tags");
          for (const auto& [tag, value] : m.tags) tags.Append(tag, value);
        }
        d.Append("secondaryDelaySecs", m.secondary_delay_secs).Append("votes", m.votes);
      }
    }
    b.Append("protocolVersion", int64_t{1});
    b.Append("writeConcernMajorityJournalDefault", majority_journal);
    auto s = b.OpenDocument("settings");
    s.Append("chainingAllowed", chaining_allowed);
    s.Append("heartbeatIntervalMillis", static_cast<int32_t>(heartbeat_interval_ms));
    s.Append("heartbeatTimeoutSecs", static_cast<int32_t>(heartbeat_timeout_secs));
    s.Append("electionTimeoutMillis", static_cast<int32_t>(election_timeout_ms));
    s.Append("catchUpTimeoutMillis", static_cast<int32_t>(kCatchUpTimeoutMillis));
    s.Append("catchUpTakeoverDelayMillis", static_cast<int32_t>(kCatchUpTakeoverDelayMillis));
    {
      auto all = s.OpenDocument("getLastErrorModes");
      for (const auto& [mode, tags] : modes) {
        auto d = all.OpenDocument(mode);
        for (const auto& [tag, n] : tags) d.Append(tag, static_cast<int32_t>(n));
      }
    }
    {
      auto d = s.OpenDocument("getLastErrorDefaults");
      d.Append("w", 1).Append("wtimeout", 0);
    }
    if (!set_id.empty()) s.AppendObjectId("replicaSetId", set_id);
  });
}

Result<ReplConfig> ParseReplConfig(BsonView doc) {
  ReplConfig c;
  bool has_members = false;
  constexpr std::string_view kFields[] = {"_id",
                                          "version",
                                          "term",
                                          "members",
                                          "settings",
                                          "protocolVersion",
                                          "writeConcernMajorityJournalDefault",
                                          "configsvr"};
  unsigned seen = 0;
  for (const BsonElement& e : doc) {
    MAYFLY_TRY(FieldOnce("ReplSetConfig", kFields, e.name, &seen));
    const BsonValue v = e.value;
    if (e.name == "_id") {
      if (!v.IsString()) return WrongType("_id", v, "string");
      c.name = std::string(v.String());
    } else if (e.name == "version") {
      MAYFLY_TRY(c.version, Whole("version", v, 1, kMaxVersion));
    } else if (e.name == "term") {
      if (!v.IsNumber()) return WrongType("term", v, "long");
      c.term = v.NumberAsInt64();
    } else if (e.name == "members") {
      if (!v.IsArray()) return WrongType("members", v, "array");
      has_members = true;
      for (const BsonElement& m : v.Document()) {
        if (!m.value.IsDocument())
          return WrongType("members." + std::string(m.name), m.value, "object");
        MAYFLY_TRY(MemberConfig member, ParseMember(m.value.Document()));
        c.members.push_back(std::move(member));
      }
    } else if (e.name == "settings") {
      if (!v.IsDocument()) return WrongType("settings", v, "object");
      MAYFLY_TRY(ParseSettings(v.Document(), &c));
    } else if (e.name == "protocolVersion") {
      MAYFLY_TRY(Whole("protocolVersion", v, 1, 1));
    } else if (e.name == "writeConcernMajorityJournalDefault") {
      MAYFLY_TRY(bool on, Flag(e.name, v));
      if (!on)
        return Invalid(
            "writeConcernMajorityJournalDefault: a majority always has the write on disk here; it "
            "cannot be false");
    } else if (e.name == "configsvr") {
      MAYFLY_TRY(bool on, Flag(e.name, v));
      if (on) return Invalid("configsvr: this server is not a member of a sharded cluster");
    } else {
      return Unknown("ReplSetConfig", e.name);
    }
  }
  if (c.name.empty()) return Invalid("BSON field 'ReplSetConfig._id' is missing or empty");
  if (!has_members)
    return Invalid("BSON field 'ReplSetConfig.members' is missing but a required field");
  MAYFLY_TRY(Validate(c));
  return c;
}

Result<void> CheckConfigSize(const ReplConfig& config) {
  auto most = [](const std::string& what, size_t n, size_t limit,
                 std::string_view unit) -> Result<void> {
    if (n <= limit) return Ok();
    return Invalid(what + " has " + std::to_string(n) + " " + std::string(unit) +
                   ", more than the " + std::to_string(limit) +
                   " it may have: every member and every driver is told of it");
  };
  auto text = [&](const std::string& what, std::string_view t) {
    return most(what + " '" + std::string(t.substr(0, 64)) + (t.size() > 64 ? "…'" : "'"), t.size(),
                kMaxTagBytes, "bytes");
  };
  MAYFLY_TRY(most("the name of the set", config.name.size(), kMaxSetName, "bytes"));
  for (const MemberConfig& m : config.members) {
    const std::string member = "the member with _id " + std::to_string(m.id);
    MAYFLY_TRY(most("the host of " + member, m.host.size(), kMaxHost, "bytes"));
    MAYFLY_TRY(most(member, m.tags.size(), kMaxTags, "tags"));
    for (const auto& [tag, value] : m.tags) {
      MAYFLY_TRY(text("the tag", tag));
      MAYFLY_TRY(text("the value of a tag", value));
    }
  }
  MAYFLY_TRY(most("settings.getLastErrorModes", config.modes.size(), kMaxModes, "modes"));
  for (const auto& [mode, tags] : config.modes) {
    MAYFLY_TRY(text("the mode", mode));
    MAYFLY_TRY(most("a mode of settings.getLastErrorModes", tags.size(), kMaxModeTags, "tags"));
    for (const auto& [tag, n] : tags) {
      MAYFLY_TRY(text("the tag", tag));
    }
  }
  return most("the configuration", config.ToBson().view().size(), kMaxConfigBytes, "bytes");
}

Result<void> CheckReconfig(const ReplConfig& now, const ReplConfig& next, bool force) {
  if (next.name != now.name)
    return Incompatible("New and old configurations differ in replica set name; old was " +
                        now.name + ", and new is " + next.name);
  if (!next.set_id.empty() && next.set_id != now.set_id)
    return Incompatible("New and old configurations differ in replica set ID");
  if (next.version <= now.version)
    return Incompatible("New replica set configuration version must be greater than old, but " +
                        std::to_string(next.version) + " is not greater than " +
                        std::to_string(now.version) + " for replica set " + next.name);
  for (const MemberConfig& m : next.members) {
    for (const MemberConfig& old : now.members) {
      if (m.host == old.host && m.id != old.id)
        return Incompatible("New and old configurations both have members with host of " + m.host +
                            " but in the new configuration the _id field is " +
                            std::to_string(m.id) + " and in the old configuration it is " +
                            std::to_string(old.id) + " for replica set " + next.name);
    }
  }
  if (force) return Ok();
  auto voters = [](const ReplConfig& c) {
    std::set<int32_t> ids;
    for (const MemberConfig& m : c.members)
      if (m.voter()) ids.insert(m.id);
    return ids;
  };
  const std::set<int32_t> a = voters(now), b = voters(next);
  int changes = 0;
  for (int32_t id : a) changes += !b.contains(id);
  for (int32_t id : b) changes += !a.contains(id);
  if (changes > 1)
    return Incompatible(
        "Non force replica set reconfig can only add or remove at most 1 voting member.");
  return Ok();
}

}  // namespace mayfly
