"""A certificate authority for tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.patience import patience

_AUTHORITY = """
[req]
distinguished_name = name
x509_extensions = ca
prompt = no
[name]
CN = {name}
[ca]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_LEAF = """
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature, keyEncipherment
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = {names}
"""


class Certificate(NamedTuple):
    """Files in PEM form."""

    certificate: Path
    key: Path


def missing_tool() -> str | None:
    """Return the name of the tool that is missing, or None."""
    return None if shutil.which("openssl") else "the openssl command is not there to make certificates with"


def make_authority(folder: Path, name: str = "authority") -> Certificate:
    """Make an authority."""
    files = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    config = folder / f"{name}.cnf"
    config.write_text(_AUTHORITY.format(name=name))
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-config", config, "-keyout", files.key, "-out", files.certificate),
    )
    return files


def make_certificate(
    folder: Path, authority: Certificate, name: str, alternatives: str, *, is_rsa: bool = False
) -> Certificate:
    """Make a certificate for hosts such as ``"DNS:localhost, IP:127.0.0.1"``; brokers read only RSA keys."""
    files = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(_LEAF.format(names=alternatives))
    kind = ("rsa:2048",) if is_rsa else ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    _openssl(
        *("req", "-newkey", *kind, "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", files.key, "-out", request),
    )
    _openssl(
        *("x509", "-req", "-in", request, "-CA", authority.certificate, "-CAkey", authority.key, "-CAcreateserial"),
        *("-days", "2", "-extfile", extensions, "-out", files.certificate),
    )
    return files


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=patience(10), check=False
    )
    assert done.returncode == 0, done.stderr
