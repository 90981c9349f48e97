"""Certificates for tests, by an authority of their own."""

import os, subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/certificates"


def certificate(authority, kind, name, *more, **environment):
    """The PEM file of a new certificate: what scripts/certificates makes in the folder `authority`, beside its ca.pem;
    `environment`: what the script takes from there."""
    made = subprocess.run(
        [SCRIPT, authority, kind, name, *more],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()
