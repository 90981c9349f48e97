// Sealed buckets from anywhere: columns, of whatever bytes and meta value, are an error or points
// that are valid BSON, which come back as they are when they are sealed again. An input that is a
// list of points (extended JSON, one a line) must come back byte for byte.
#include <cstdint>
#include <string>
#include <vector>

#include "fuzz_util.h"
#include "timeseries/bucket_codec.h"
#include "timeseries/bucket_control.h"

namespace {

using namespace mayfly;

const SeriesFields kFields{"t", "m"};
/// Small, so that a refusal costs little time.
constexpr size_t kLimit = 8 << 20;

/// The points of a bucket, one after the other; false when it is damaged.
bool Read(std::string_view points, BsonValue meta, std::string& out, std::vector<size_t>& ends) {
  auto reader = BucketReader::Open(points, meta, kLimit);
  if (!reader.has_value()) return false;
  auto field = reader.value().Field("t");
  (void)field;
  return reader.value().Append(0, reader.value().count(), nullptr, out, ends).has_value();
}

void CheckRoundTrip(const std::string& bytes, const std::vector<size_t>& ends) {
  std::vector<BsonView> points;
  size_t at = 0;
  for (const size_t end : ends) {
    Require(ValidateBson(std::string_view(bytes).substr(at, end - at), false).has_value(),
            "what is unpacked is valid BSON");
    points.emplace_back(bytes.data() + at);
    at = end;
  }
  Require(at == bytes.size(), "nothing stands behind the last point");
  const BsonValue meta = points.empty() ? BsonValue() : points[0]["m"];
  auto sealed = SealPoints(points, kFields, meta);
  Require(sealed.has_value(), "what was unpacked can be sealed");
  // What is sealed is not refused, unless it needs more room than there is for hostile bytes.
  std::string again;
  std::vector<size_t> again_ends;
  if (!Read(sealed.value(), meta, again, again_ends)) {
    Require(bytes.size() > kLimit / 64, "what was sealed can be read");
    return;
  }
  Require(again == bytes && again_ends == ends, "points come back byte for byte");
}

/// Points as text, one a line.
void FromText(std::string_view text) {
  std::string bytes;
  std::vector<size_t> ends;
  while (!text.empty()) {
    const size_t line = std::min(text.find('\n'), text.size());
    auto point = ParseJson(text.substr(0, line));
    text.remove_prefix(std::min(line + 1, text.size()));
    if (!point.has_value()) return;
    bytes.append(point.value().bytes());
    ends.push_back(bytes.size());
  }
  CheckRoundTrip(bytes, ends);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string input(reinterpret_cast<const char*>(data), size);
  if (input.starts_with('{')) {
    FromText(input);
    return 0;
  }
  // The size of a document, the document, whose first value is the meta value, and the points.
  if (size < 2) return 0;
  const size_t split = std::min<size_t>(LoadLe<uint16_t>(input.data()), size - 2);
  // Copies, so that a read beyond the end is found.
  const std::string document = input.substr(2, split), points = input.substr(2 + split);
  BsonValue meta;
  if (ValidateBson(document, false).has_value() && !BsonView(document).empty())
    meta = BsonView(document).First().value;
  std::string out;
  std::vector<size_t> ends;
  if (Read(points, meta, out, ends)) CheckRoundTrip(out, ends);
  return 0;
}
