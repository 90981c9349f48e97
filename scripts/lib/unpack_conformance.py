#!/usr/bin/env python3
"""unpack_conformance.py PYMONGO.tar.gz FOLDER: the drivers' test files out of PyMongo's source distribution, in folders
named as the specifications name them."""

import sys, tarfile
from pathlib import Path

archive, out = sys.argv[1], Path(sys.argv[2])
found = 0
with tarfile.open(archive) as tar:
    for member in tar:
        parts = Path(member.name).parts  # pymongo-VERSION/test/SUITE/…
        if (
            not member.isfile()
            or len(parts) < 4
            or parts[1] != "test"
            or not member.name.endswith(".json")
            or ".." in parts
        ):
            continue
        target = out / parts[2].replace("_", "-") / Path(*parts[3:])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(tar.extractfile(member).read())
        found += 1
if found < 500:
    sys.exit(f"{archive} has only {found} test files")
