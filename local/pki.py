"""Keys and certificates of one local cluster: made at the first start, then kept."""

from __future__ import annotations

import datetime as dt
import ipaddress
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = dt.timedelta(days=3650)


@dataclass(frozen=True)
class Pki:
    """Files below one directory."""

    directory: Path

    @property
    def authority(self) -> Path:
        """Certificate that vouches for the API server and etcd."""
        return self.directory / "ca.crt"

    @property
    def certificate(self) -> Path:
        """Certificate of the API server and of etcd, good for server and client."""
        return self.directory / "server.crt"

    @property
    def key(self) -> Path:
        """Key of ``certificate``."""
        return self.directory / "server.key"

    @property
    def service_accounts(self) -> Path:
        """Key that signs the tokens of service accounts."""
        return self.directory / "service-accounts.key"

    @property
    def tokens(self) -> Path:
        """Token file of the API server; its first field is the administrator's token."""
        return self.directory / "tokens.csv"

    @property
    def administrator_token(self) -> str:
        """Bearer token of the administrator."""
        return self.tokens.read_text().partition(",")[0]

    def create(self) -> None:
        """Make what is missing. The token file comes last: with it everything is there."""
        if self.tokens.exists():
            return
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("kthena-pd-local-ca", authority_key, None, authority_key)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("kthena-pd-local", key, authority, authority_key)
        _write(self.authority, authority.public_bytes(serialization.Encoding.PEM))
        _write(self.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        _write(self.key, _pem(key))
        _write(self.service_accounts, _pem(ec.generate_private_key(ec.SECP256R1())))
        _write(self.tokens, f'{secrets.token_urlsafe(32)},administrator,administrator,"system:masters"\n'.encode())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """A CA's certificate if it has no ``issuer``, else one for servers and clients on this machine."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(_usage(authority=issuer is None), critical=True)
    )
    if issuer:
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
        inside = [x509.DNSName(f"kubernetes{suffix}") for suffix in ("", ".default", ".default.svc")]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([*here, *inside]), critical=False).add_extension(
            x509.ExtendedKeyUsage(both), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _write(file: Path, content: bytes) -> None:
    file.touch(mode=0o600)
    file.write_bytes(content)
