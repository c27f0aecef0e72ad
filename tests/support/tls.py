"""A server with TLS, and the authority that vouches for it."""

from pathlib import Path
from typing import NamedTuple

import trustme

from .server import Server, free_port


class Encrypted(NamedTuple):
    """A server, the port where it speaks TLS, and files: the authority's certificate, and a client's with its key."""

    server: Server
    port: int
    authority: Path
    certificate: Path
    key: Path


def encrypted(start, folder, asks_clients=False):
    """Start a server whose certificate is for this machine, and which may ask clients for one of the authority."""
    authority = trustme.CA()
    files = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key", "client-cert", "client-key")}
    authority.cert_pem.write_to_path(files["ca"])
    for certificate, prefix in ((authority.issue_cert("127.0.0.1", "localhost"), ""),
                                (authority.issue_cert("client.test"), "client-")):
        certificate.cert_chain_pems[0].write_to_path(files[f"{prefix}cert"])
        certificate.private_key_pem.write_to_path(files[f"{prefix}key"])
    port = free_port()
    server = start(options={"tls-port": port, "tls-cert-file": files["cert"], "tls-key-file": files["key"],
                            "tls-ca-cert-file": files["ca"], "tls-auth-clients": "yes" if asks_clients else "no"})
    return Encrypted(server, port, files["ca"], files["client-cert"], files["client-key"])
