#pragma once
#include <string_view>

namespace mayfly {

/// The collection of each database that its profiler writes: every member has its own, and clients
/// read it only.
inline constexpr std::string_view kProfileCollection = "system.profile";
/// Where MongoDB keeps the definitions of a database's views. Here it shows rows of the catalog
/// (storage/schema/view_rows.h): nobody writes or makes this collection.
inline constexpr std::string_view kViewsCollection = "system.views";
/// The prefix of a time series' name in the name of its bucket collection.
inline constexpr std::string_view kBucketsPrefix = "system.buckets.";

}  // namespace mayfly
