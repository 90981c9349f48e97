#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <ctime>

#include "protocol/cut_text.h"
#include "protocol/extended_json.h"
#include "protocol/secret_names.h"
#include "protocol/utf8.h"
#include "server/base/log.h"
#include "server/base/log_redaction.h"

namespace mayfly {

namespace {

constexpr size_t kMaxAttributeBytes = 10 * 1024;  // mongod's maxLogSizeKB

struct ComponentName {
  std::string_view log, config;
};
constexpr ComponentName kComponents[] = {
    {"-", "default"},         {"ACCESS", "accessControl"}, {"COMMAND", "command"},
    {"CONTROL", "control"},   {"ELECTION", "election"},    {"FTDC", "ftdc"},
    {"GEO", "geo"},           {"INDEX", "index"},          {"INITSYNC", "initialSync"},
    {"JOURNAL", "journal"},   {"NETWORK", "network"},      {"QUERY", "query"},
    {"RECOVERY", "recovery"}, {"REPL", "replication"},     {"REPL_HB", "heartbeats"},
    {"SHARDING", "sharding"}, {"STORAGE", "storage"},      {"TXN", "transaction"},
    {"WRITE", "write"},       {"WTCHKPT", "checkpoint"},
};
static_assert(std::size(kComponents) == static_cast<size_t>(LogComponent::kCount));

std::string_view SeverityText(LogSeverity s) {
  static constexpr std::string_view kText[] = {"F", "E", "W", "I", "D1", "D2", "D3", "D4", "D5"};
  return kText[static_cast<size_t>(s)];
}

/// Attributes that hold what clients have sent, or may quote it.
constexpr std::string_view kClientData[] = {
    "_id",    "command", "data",   "document",           "errInfo", "errMsg",
    "errmsg", "error",   "filter", "originatingCommand", "query",   "update"};

/// Lines whose "error" is the system's, or our own: why a login, a handshake or a file has failed.
constexpr int kOwnErrors[] = {20575,   22988,   5286306, 5286307, 9000116,
                              9000117, 9000121, 9000131, 9000301};

/// An attribute that is the text of an error and may not be shown.
bool IsSecretError(const BsonElement& e) {
  return (e.name == "error" || e.name == "errMsg" || e.name == "errmsg") && e.value.IsString() &&
         QuotesSecret(e.value.String());
}

void AppendRedacted(BsonView doc, BsonBuilder& out) {
  for (const BsonElement& e : doc) {
    if (e.value.IsDocument()) {
      BsonBuilder inner = out.OpenDocument(e.name);
      AppendRedacted(e.value.Document(), inner);
    } else if (e.value.IsArray()) {
      BsonArrayBuilder list = out.OpenArray(e.name);
      for (const BsonElement& x : e.value.Document()) {
        if (x.value.IsDocument()) {
          BsonBuilder inner = list.OpenDocument();
          AppendRedacted(x.value.Document(), inner);
        } else {
          list.Append(kRedactedData);
        }
      }
    } else {
      out.Append(e.name, kRedactedData);
    }
  }
}

}  // namespace

LogSeverity LogSeverityOf(char letter) {
  switch (letter) {
    case 'F':
      return LogSeverity::kFatal;
    case 'E':
      return LogSeverity::kError;
    case 'W':
      return LogSeverity::kWarning;
    case 'D':
      return LogSeverity::kDebug1;
    default:
      return LogSeverity::kInfo;
  }
}

std::string_view LogComponentName(LogComponent c) {
  return kComponents[static_cast<size_t>(c)].log;
}
std::string_view LogComponentConfigName(LogComponent c) {
  return kComponents[static_cast<size_t>(c)].config;
}

LogComponent LogComponentByName(std::string_view name) {
  for (size_t i = 1; i < std::size(kComponents); ++i)
    if (kComponents[i].log == name || kComponents[i].config == name)
      return static_cast<LogComponent>(i);
  return LogComponent::kDefault;
}

BsonDocument RedactedValues(BsonView doc) {
  return BuildBson([&](BsonBuilder& b) { AppendRedacted(doc, b); });
}

bool TellsOfCredentials(int id, BsonView attr) {
  constexpr int kSlowTransaction = 51802, kSlowQuery = 51803;
  if (id == kSlowTransaction || id == kSlowQuery) return false;
  const std::string_view bytes(attr.data(), attr.size());
  return bytes.find(kUsersNamespace) != std::string_view::npos ||
         bytes.find(kRestoredUsersNamespace) != std::string_view::npos;
}

bool QuotesSecretInError(BsonView attr) {
  for (const BsonElement& e : attr)
    if (IsSecretError(e)) return true;
  return false;
}

BsonDocument WithoutSecretErrors(BsonView attr) {
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : attr) {
      if (IsSecretError(e))
        b.Append(e.name, kRedacted);
      else
        b.Append(e);
    }
  });
}

BsonDocument RedactAttributes(int id, BsonView attr) {
  if (std::find(std::begin(kOwnErrors), std::end(kOwnErrors), id) != std::end(kOwnErrors))
    return BsonDocument(attr);
  return BuildBson([&](BsonBuilder& b) {
    for (const BsonElement& e : attr) {
      if (std::find(std::begin(kClientData), std::end(kClientData), e.name) ==
          std::end(kClientData)) {
        b.Append(e);
      } else if (e.value.IsDocument()) {
        BsonBuilder inner = b.OpenDocument(e.name);
        AppendRedacted(e.value.Document(), inner);
      } else if (e.value.IsArray()) {
        b.OpenArray(e.name).Append(kRedactedData);
      } else {
        b.Append(e.name, kRedactedData);
      }
    }
  });
}

std::string CurrentExceptionText() {
  try {
    try {
      throw;
    } catch (const std::exception& e) {
      return e.what();
    } catch (...) {
      return "an exception of an unknown type";
    }
  } catch (...) {
    return "out of memory";  // a text that needs none: catch blocks call this
  }
}

std::string FormatTimestamp(Instant t, TimestampFormat format) {
  int64_t seconds = t.millis / 1000, millis = t.millis % 1000;
  if (millis < 0) {
    millis += 1000;
    --seconds;
  }
  std::time_t tt = seconds;
  std::tm tm{};
  if (format == TimestampFormat::kIso8601Utc)
    gmtime_r(&tt, &tm);
  else
    localtime_r(&tt, &tm);
  std::string s = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}", tm.tm_year + 1900,
                              tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, millis);
  if (format == TimestampFormat::kIso8601Utc) return s + "Z";
  const long minutes = tm.tm_gmtoff / 60;
  return s + fmt::format("{}{:02}:{:02}", minutes < 0 ? '-' : '+', std::abs(minutes) / 60,
                         std::abs(minutes) % 60);
}

std::string FormatLogJson(Instant t, TimestampFormat format, LogSeverity s, LogComponent c, int id,
                          std::string_view ctx, std::string_view msg, BsonView attr) {
  std::string line = "{\"t\":{\"$date\":\"" + FormatTimestamp(t, format) + "\"},\"s\":";
  // Padding keeps the columns of consecutive lines apart, as MongoDB's log has it.
  auto padded = [&](std::string_view v, size_t width) {
    AppendJsonString(line, v);
    line.push_back(',');
    if (v.size() < width) line.append(width - v.size(), ' ');
  };
  padded(SeverityText(s), 2);
  line += "\"c\":";
  padded(LogComponentName(c), 8);
  line += fmt::format("\"id\":{},", id);
  const std::string id_text = std::to_string(id);
  if (id_text.size() < 7) line.append(7 - id_text.size(), ' ');
  line += "\"ctx\":";
  AppendJsonString(line, ctx);
  line += ",\"msg\":";
  AppendJsonString(line, msg);
  if (!attr.empty()) {
    std::string truncated;
    line += ",\"attr\":{";
    bool first = true;
    for (const BsonElement& e : attr) {
      if (!first) line.push_back(',');
      first = false;
      AppendJsonString(line, e.name);
      line.push_back(':');
      if (e.value.size() > kMaxAttributeBytes) {
        const std::string json =
            e.value.IsString() ? std::string(e.value.String()) : ToRelaxedJson(e.value);
        AppendJsonString(line, CutUtf8(json, kMaxAttributeBytes));
        if (!truncated.empty()) truncated.push_back(',');
        AppendJsonString(truncated, e.name);
        truncated += fmt::format(":{{\"type\":\"{}\",\"size\":{}}}", BsonTypeName(e.value.type()),
                                 e.value.size());
      } else {
        line += ToRelaxedJson(e.value);
      }
    }
    line.push_back('}');
    if (!truncated.empty()) line += ",\"truncated\":{" + truncated + "}";
  }
  line.push_back('}');
  return line;
}

std::string FormatLogText(Instant t, TimestampFormat format, LogSeverity s, LogComponent c, int id,
                          std::string_view ctx, std::string_view msg, BsonView attr) {
  (void)id;
  std::string line = fmt::format("{} {:<2} {:<8} [{}] {}", FormatTimestamp(t, format),
                                 SeverityText(s), LogComponentName(c), ctx, msg);
  for (const BsonElement& e : attr) {
    line.append(1, ' ').append(e.name).append(1, '=');
    const std::string json = ToRelaxedJson(e.value);
    // Without quotes if no character needs them.
    if (e.value.IsString() && json.size() == e.value.String().size() + 2 &&
        json.find(' ') == std::string::npos)
      line.append(e.value.String());
    else
      line.append(CutUtf8(json, kMaxAttributeBytes));
  }
  return line;
}

}  // namespace mayfly
