#pragma once
// How this program calls Intel's decimal library, and its type beside ours. Before the library's
// headers.
#define DECIMAL_CALL_BY_REFERENCE 0
#define DECIMAL_GLOBAL_ROUNDING 0
#define DECIMAL_GLOBAL_EXCEPTION_FLAGS 0
extern "C" {
#include <bid_conf.h>
#include <bid_functions.h>
}

#include "protocol/decimal128.h"

namespace mayfly::decimal128 {

/// Between Mayfly's type and the library's: the same bits, low word first in both.
inline BID_UINT128 In(Decimal128Bits v) {
  BID_UINT128 r;
  r.w[0] = v.low;
  r.w[1] = v.high;
  return r;
}
inline Decimal128Bits Out(BID_UINT128 v) { return {v.w[0], v.w[1]}; }

}  // namespace mayfly::decimal128
