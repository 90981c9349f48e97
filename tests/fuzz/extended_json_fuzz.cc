// Extended JSON text: what is read is valid BSON and is written so that it reads back.
#include <cstdint>
#include <string>

#include "fuzz_util.h"
#include "protocol/bson_validate.h"
#include "protocol/extended_json.h"

using namespace mayfly;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto doc = ParseJson({reinterpret_cast<const char*>(data), size});
  if (!doc) return 0;
  Require(ValidateBson(doc.value().bytes()).has_value(), "what was read is valid BSON");
  auto again = ParseJson(ToCanonicalJson(doc.value().view()));
  Require(again && again.value().bytes() == doc.value().bytes(),
          "canonical JSON reads back to the same bytes");
  Require(ParseJson(ToRelaxedJson(doc.value().view())).has_value(), "relaxed JSON reads back");
  return 0;
}
