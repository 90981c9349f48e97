"""Matching of the unified test format: does an actual value satisfy an expected one?

Documents at the root may have more fields than expected, nested ones may not; numbers compare by value; `$$…` documents
are special operators. See "Evaluating Matches" in the public specification of the unified test format.
"""

import binascii, datetime, decimal, re

import bson
from bson import Binary, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.code import Code

UNSET = object()  # a field that is not there


class Mismatch(AssertionError):
    pass


BSON_TYPES = {
    "double": float,
    "string": str,
    "object": dict,
    "array": list,
    "binData": (Binary, bytes),
    "objectId": ObjectId,
    "bool": bool,
    "date": datetime.datetime,
    "null": type(None),
    "regex": (Regex, re.Pattern),
    "javascript": Code,
    "int": int,
    "long": int,
    "timestamp": Timestamp,
    "decimal": Decimal128,
    "minKey": MinKey,
    "maxKey": MaxKey,
    "number": (int, float, Decimal128),
}


def is_number(v):
    return isinstance(v, (int, float, Int64, Decimal128)) and not isinstance(v, bool)


def is_type(v, name):
    want = BSON_TYPES[name]
    if isinstance(v, bool) and name != "bool":
        return False
    if name == "int":
        return isinstance(v, int) and not isinstance(v, Int64) and -(2**31) <= v < 2**31
    if name == "long":
        return isinstance(v, int)  # the driver gives a plain int for both
    if name == "object":
        return hasattr(v, "items")
    return isinstance(v, want)


class Matcher:
    """`entities`: what $$matchesEntity and $$sessionLsid look up; needs .get(id) and .lsid(id)."""

    def __init__(self, entities):
        self.entities = entities

    def match(self, want, got, path="", root=True):
        if isinstance(want, dict) and len(want) == 1 and next(iter(want)).startswith("$$"):
            return self.special(want, got, path, root)
        if got is UNSET:
            raise Mismatch(f"{path}: missing, expected {want!r}")
        if isinstance(want, dict):
            return self.document(want, got, path, root)
        if isinstance(want, list):
            if not isinstance(got, (list, tuple)):
                raise Mismatch(f"{path}: expected an array, got {got!r}")
            if len(want) != len(got):
                raise Mismatch(f"{path}: expected {len(want)} elements, got {len(got)}: {got!r}")
            for i, (w, g) in enumerate(zip(want, got)):
                # Documents of a result list are roots.
                self.match(w, g, f"{path}[{i}]", root and path == "")
            return
        if is_number(want) and is_number(got):
            if not self.number(want) == self.number(got):
                raise Mismatch(f"{path}: expected {want!r}, got {got!r}")
            return
        if isinstance(want, (bytes, Binary)) and isinstance(got, (bytes, Binary)):
            if bytes(want) != bytes(got):
                raise Mismatch(f"{path}: expected {want!r}, got {got!r}")
            return
        if type(want) is bool or type(got) is bool:
            if want is not got:
                raise Mismatch(f"{path}: expected {want!r}, got {got!r}")
            return
        if want != got:
            raise Mismatch(f"{path}: expected {want!r}, got {got!r}")

    @staticmethod
    def number(v):
        return v.to_decimal() if isinstance(v, Decimal128) else decimal.Decimal(v)

    def document(self, want, got, path, root):
        if isinstance(got, DBRef):
            got = got.as_doc()
        if not hasattr(got, "items"):
            raise Mismatch(f"{path}: expected a document, got {got!r}")
        for k, w in want.items():
            self.match(w, got.get(k, UNSET) if k in got else UNSET, f"{path}.{k}", False)
        if not root:
            extra = [k for k in got if k not in want]
            if extra:
                raise Mismatch(f"{path}: unexpected fields {extra}")

    def special(self, want, got, path, root):
        op, arg = next(iter(want.items()))
        if op == "$$exists":
            if (got is not UNSET) != arg:
                raise Mismatch(
                    f"{path}: should {'' if arg else 'not '}exist, is {'missing' if got is UNSET else repr(got)}"
                )
        elif op == "$$unsetOrMatches":
            if got is not UNSET and got is not None:
                self.match(arg, got, path, root)
        elif op == "$$type":
            names = [arg] if isinstance(arg, str) else arg
            if got is UNSET or not any(is_type(got, n) for n in names):
                raise Mismatch(f"{path}: expected type {arg}, got {'nothing' if got is UNSET else repr(got)}")
        elif op == "$$matchesEntity":
            self.match(self.entities.get(arg), got, path, root)
        elif op == "$$matchesHexBytes":
            if got is UNSET or bytes(got) != binascii.unhexlify(arg):
                raise Mismatch(f"{path}: expected bytes {arg}, got {got!r}")
        elif op == "$$sessionLsid":
            self.match(self.entities.lsid(arg), got, path, False)
        elif op == "$$lte":
            if got is UNSET or not got <= arg:
                raise Mismatch(f"{path}: expected at most {arg}, got {got!r}")
        elif op == "$$matchAsRoot":
            self.match(arg, got, path, True)
        elif op == "$$matchAsDocument":
            self.match(arg, bson.json_util.loads(got), path, root)
        else:
            raise Mismatch(f"{path}: the runner does not know {op}")
