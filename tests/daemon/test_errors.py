"""Errors are in words: what the page's table says, and why certificates are not accepted."""

import re

import pytest
import trustme

from docs.pages import page_named
from support.server import free_port

TABLE = page_named("when-it-goes-wrong.md").read_text().split("| for example | what is said |\n")[1].split("\n\n")[0]
ROWS = re.findall(r"^\| `([^`]+)` \| (?:``(.+)``|`([^`]+)`) \|$", TABLE, re.MULTILINE)


@pytest.mark.parametrize("example, quoted, said", ROWS)
def test_what_is_said(start_daemon, example, quoted, said):
    assert len(ROWS) == len(TABLE.splitlines()) - 1
    daemon = start_daemon("domain: d")
    daemon.write_limits(f"domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{{example}}}\n")
    status, printed = daemon.run("--check")
    assert status == 1
    assert re.fullmatch(r"swlimitd: \S+limits.yaml:4:\d+: (.*)\n", printed)[1] == (said or quoted.strip())


def test_why_a_server_is_not_taken(start_daemon, server):
    daemon = start_daemon("domain: d")
    for url, why in (
            ("redis://127.0.0.1:99999", "Redis URL did not parse"),
            ("redis://127.0.0.1/a", "Invalid database number"),
            (f"redis://127.0.0.1:{daemon.http_port}", "the server is unavailable: the reply is not Redis's protocol"),
            (f"redis-sentinel://127.0.0.1:{server.port}/a",
             "the server is unavailable: ERR unknown command 'SENTINEL', .*")):
        daemon.write_settings(server=url)
        status, printed = daemon.run("--check", "--server")
        assert status == 1 and re.fullmatch(f"swlimitd: [^ ]+: {why}\n", printed), printed


def test_why_a_certificate_is_not_accepted(start, start_daemon, tmp_path):
    authority, other = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    for trusted, certificate, key, why in (
            (authority, authority.cert_pem, authority.private_key_pem, "it is an authority's, where a server's is"),
            (other, issued.cert_chain_pems[0], issued.private_key_pem, "no authority that is trusted has signed it")):
        trusted.cert_pem.write_to_path(tmp_path / "ca.pem")
        certificate.write_to_path(tmp_path / "cert.pem")
        key.write_to_path(tmp_path / "key.pem")
        port = free_port()
        start(options={"tls-port": port, "tls-cert-file": tmp_path / "cert.pem", "tls-key-file": tmp_path / "key.pem",
                       "tls-ca-cert-file": tmp_path / "ca.pem", "tls-auth-clients": "no"})
        daemon = start_daemon("domain: d")
        daemon.write_settings(server=f"rediss://127.0.0.1:{port}", server_tls={"authority": f"{tmp_path}/ca.pem"})
        status, printed = daemon.run("--check", "--server")
        assert (status, f"invalid peer certificate: {why}" in printed) == (1, True), printed
