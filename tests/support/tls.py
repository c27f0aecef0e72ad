"""A server with TLS, and the authority that vouches for it."""

from pathlib import Path
from typing import NamedTuple

import trustme

from .server import Server, free_port


class Encrypted(NamedTuple):
    """A server, the port where it speaks TLS, and a file with the authority's certificate."""

    server: Server
    port: int
    authority: Path


def encrypted(start, folder):
    """Start a server whose certificate is for this machine, and which asks clients for none."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    files = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(files["ca"])
    certificate.cert_chain_pems[0].write_to_path(files["cert"])
    certificate.private_key_pem.write_to_path(files["key"])
    port = free_port()
    server = start(options={"tls-port": port, "tls-cert-file": files["cert"], "tls-key-file": files["key"],
                            "tls-ca-cert-file": files["ca"], "tls-auth-clients": "no"})
    return Encrypted(server, port, files["ca"])
