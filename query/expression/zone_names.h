#pragma once
#include <string_view>

namespace mayfly {

/// Whether the zone database has a zone of this name, spelled as there ("Europe/Berlin"). Only such
/// names may reach the library that reads zones: it keeps each name that it was asked for, also of
/// zones that do not exist, until the process ends. The names are read once, at the first call: a
/// zone that is installed later is known after a restart. Threads: any.
bool IsZoneName(std::string_view name);

}  // namespace mayfly
