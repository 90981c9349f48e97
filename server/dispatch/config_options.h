#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"
#include "server/dispatch/config.h"

namespace mayfly {

/// The options of the command line and of the configuration file, one row each.
struct OptionRow {
  using Values = std::vector<std::string>;
  enum class Kind : uint8_t { kSwitch, kInt, kDouble, kString, kList };

  std::string_view flags;  ///< "--port", "-f,--config"; empty: only in the file
  std::string_view key;    ///< "net.port"; empty: only a flag
  Kind kind = Kind::kString;
  std::string_view help;
  /// Sets what the option is for. The values are as given, at least one unless
  /// `restricts`. Errors: BadValue 2.
  std::function<Result<void>(ServerConfig&, const Values&)> apply;
  /// Not empty: MongoDB has the option and this server does not; giving it is an error that says
  /// this.
  std::string_view why_not = {};
  /// With why_not: the value that asks for nothing ("disabled", "false") and is accepted.
  std::string_view harmless = {};
  /// Limits what others may do: without a value in a file it is an error, and not the default.
  bool restricts = false;
  /// A password: it is shown nowhere, and asked for at the terminal when the option has no value.
  bool secret = false;
};

/// Short names, for the files with the rows.
namespace option_table {

using Kind = OptionRow::Kind;
using Values = OptionRow::Values;
using Options = std::vector<OptionRow>;
using C = ServerConfig;

/// An option of MongoDB that this server does not have, and why.
inline void Refuse(Options& o, std::string_view flags, std::string_view key, Kind kind,
                   std::string_view why, std::string_view harmless = {}) {
  o.push_back({flags, key, kind, "not available", {}, why, harmless});
}

}  // namespace option_table

/// All of them, in the order of --help.
std::vector<OptionRow> MakeOptions();

/// The options net.tls.*.
void AddTlsOptions(std::vector<OptionRow>& options);

/// A whole number from `low` to `high`. `option` is what the message calls it. Errors: BadValue 2.
Result<int64_t> ParseIntOption(std::string_view option, const std::string& text, int64_t low,
                               int64_t high);

}  // namespace mayfly
