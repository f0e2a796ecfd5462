"""Authorities and certificates for tests: right ones, old ones, those of strangers."""

from __future__ import annotations

import datetime
import ipaddress
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

_DAY = datetime.timedelta(days=1)
_PLACES = x509.SubjectAlternativeName(
    [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
)


class Authority:
    """Signs certificates, as files in a folder; `file` has its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        self._certificate = self._signed(name, self._key, days=10, is_authority=True)
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, days: int = 10) -> Path:
        """Return a file with a certificate for this machine and its key; over, if days < 0."""
        key = ec.generate_private_key(ec.SECP256R1())
        found = self._folder / f"{self._name}-{name}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        made = self._signed(name, key, days=days, is_authority=False)
        found.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
        return found

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, *, days: int, is_authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.fromtimestamp(time.time_ns() / 1e9, datetime.UTC)
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)])
        constraints = x509.BasicConstraints(ca=is_authority, path_length=None)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 100 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(constraints, critical=True)
            .add_extension(_PLACES, critical=False)
            .sign(self._key, hashes.SHA256())
        )
