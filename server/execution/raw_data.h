#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "server/dispatch/command.h"

namespace mayfly {

class Catalog;
class DataServices;

/// The collection of the buckets, if this one is a time series; else nothing.
std::optional<std::string> NameOfBuckets(Catalog& catalog, std::string_view db,
                                         std::string_view collection);

/// For a request with `rawData: true`: where its first field names a time series, the field names
/// the collection of its buckets from then on; the body stays as it was sent. So the command does
/// what it would do if it had been sent to that collection. For other collections rawData changes
/// nothing. To be called once what the user may do has been decided, which is about the collection
/// as it was sent. bulkWrite looks for itself at the namespaces that it names.
/// Errors: InvalidOptions 72 for a command that does not take it.
Result<void> ApplyRawData(DataServices& server, CommandRequest& request);

}  // namespace mayfly
