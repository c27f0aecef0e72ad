"""gRPC and HTTP over TLS, and what clients are shown when certificates change."""

import signal
import socket
import ssl

import grpc
import pytest
import trustme

from support.daemon import request, rls_pb2_grpc
from support.waiting import eventually

LIMITS = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 100}}]}"
FILES = ("certificate", "key", "client_authority")


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


class Mount:
    """A folder of PEM files as Kubernetes mounts them: links through one that is put elsewhere when they change."""

    def __init__(self, folder):
        self.folder, self.versions = folder, 0
        folder.mkdir()

    def put(self, issued, authority, **texts):
        """Publish a certificate's files, or other texts in their place. Returns the certificate."""
        self.versions += 1
        version = self.folder / f"..{self.versions}"
        version.mkdir()
        texts = {"certificate": issued.cert_chain_pems[0].bytes(), "key": issued.private_key_pem.bytes(),
                 "client_authority": authority.cert_pem.bytes()} | texts
        for name, text in texts.items():
            (version / f"{name}.pem").write_bytes(text)
        (self.folder / "..next").symlink_to(version.name)
        (self.folder / "..next").rename(self.folder / "..data")
        for name in FILES if self.versions == 1 else ():
            (self.folder / f"{name}.pem").symlink_to(f"..data/{name}.pem")
        return issued

    def named(self, *names):
        return {name: str(self.folder / f"{name}.pem") for name in names}


@pytest.fixture
def mount(tmp_path, authority):
    mount = Mount(tmp_path / "mount")
    mount.first = mount.put(authority.issue_cert("localhost"), authority)
    return mount


@pytest.fixture
def start_with_tls(start_daemon, mount):
    def start(*names, **more):
        daemon = start_daemon(LIMITS)
        daemon.stop()
        tls = mount.named("certificate", "key", *names) | more
        daemon.write_settings(**{name: daemon.settings[name] | {"tls": tls} for name in ("grpc", "http")})
        daemon.spawn()
        eventually(lambda: shown(daemon.port) and shown(daemon.http_port), log=lambda: daemon.log)
        return daemon

    return start


def shown(port):
    """The certificate that a client is shown, or none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 10)) as connection:
            return connection.getpeercert(binary_form=True)
    except OSError:
        return None


def der(certificate):
    return ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())


def channel_to(daemon, credentials):
    named = [("grpc.ssl_target_name_override", "localhost")]
    return grpc.secure_channel(f"127.0.0.1:{daemon.port}", credentials, named)


def codes(daemon, credentials):
    return daemon.codes("k=x", channel=channel_to(daemon, credentials))


def test_tls(start_with_tls, authority):
    daemon = start_with_tls()
    assert codes(daemon, grpc.ssl_channel_credentials(authority.cert_pem.bytes())) == ("OK", "OK")
    with pytest.raises(grpc.RpcError):
        daemon.ask("k=x")  # in the clear
    eventually(lambda: 'were rejected, counted since the last such line why="tls"' in daemon.log)


def test_the_end_waits_for_no_handshake(start_with_tls):
    daemon = start_with_tls()
    with socket.create_connection(("127.0.0.1", daemon.port)):
        daemon.stop()
    assert "stopping" in daemon.log and "took too long" not in daemon.log


def credentials(authority, client):
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())


def assert_refused(daemon, credentials):
    with pytest.raises(grpc.RpcError) as error:
        codes(daemon, credentials)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


def test_clients_need_a_certificate_of_one_name(start_with_tls, authority):
    daemon = start_with_tls("client_authority", client_name="envoy.test")
    assert codes(daemon, credentials(authority, authority.issue_cert("envoy.test", "other.test"))) == ("OK", "OK")
    assert_refused(daemon, credentials(authority, authority.issue_cert("other.test")))
    assert_refused(daemon, credentials(trustme.CA(), trustme.CA().issue_cert("envoy.test")))


def test_clients_that_need_a_certificate(start_with_tls, mount, authority):
    daemon = start_with_tls("client_authority")
    other = trustme.CA()
    known, foreign = (credentials(authority, issuer.issue_cert("client")) for issuer in (authority, other))
    assert codes(daemon, known) == ("OK", "OK")
    for refused in (grpc.ssl_channel_credentials(authority.cert_pem.bytes()), foreign):
        assert_refused(daemon, refused)
    # The other authority takes the place of the first.
    mount.put(mount.first, other)
    eventually(lambda: "configuration reloaded" in daemon.log)
    assert codes(daemon, foreign) == ("OK", "OK")
    assert_refused(daemon, known)


@pytest.mark.parametrize("hangs_up", [False, True], ids=["change", "SIGHUP"])
def test_certificates_are_read_again(start_with_tls, mount, authority, hangs_up):
    daemon = start_with_tls()
    assert shown(daemon.port) == shown(daemon.http_port) == der(mount.first)
    with channel_to(daemon, grpc.ssl_channel_credentials(authority.cert_pem.bytes())) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        stub.ShouldRateLimit(request("k=x"), timeout=10)
        second = mount.put(authority.issue_cert("localhost"), authority)
        if hangs_up:
            daemon.send_signal(signal.SIGHUP)
        eventually(lambda: [shown(port) == der(second) for port in (daemon.port, daemon.http_port)], [True, True])
        stub.ShouldRateLimit(request("k=x"), timeout=10)  # who is connected stays so
    assert "after a restart only" not in daemon.log


@pytest.mark.parametrize("broken, why", [
    ({"key": b""}, "key.pem: "),
    ({"key": trustme.CA().issue_cert("localhost").private_key_pem.bytes()}, "key.pem: keys may not be consistent"),
    ({"certificate": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, ".pem: "),
    ({"certificate": b"none"}, "certificate.pem: the file has no certificate"),
    ({"client_authority": b"\xff"}, "client_authority.pem: "),
    ({"client_authority": b""}, "client_authority.pem: the file has no certificate"),
], ids=["no key", "another key", "no certificate", "no PEM", "no text", "nothing"])
def test_broken_files_are_refused_whole(start_with_tls, mount, authority, broken, why):
    daemon = start_with_tls("client_authority")
    known = credentials(authority, authority.issue_cert("client"))

    def limit():
        return daemon.ask("k=x", channel=channel_to(daemon, known)).statuses[0].current_limit.requests_per_unit

    mount.put(authority.issue_cert("localhost"), authority, **broken)
    eventually(lambda: "the old one stays" in daemon.log)
    assert why in daemon.log
    daemon.write_limits(LIMITS.replace("100", "7"))
    daemon.send_signal(signal.SIGHUP)  # after which the same error is logged again
    eventually(lambda: daemon.log.count("the old one stays") > 1)
    assert shown(daemon.port) == shown(daemon.http_port) == der(mount.first)
    assert limit() == 100
    third = mount.put(authority.issue_cert("localhost"), authority)
    eventually(lambda: shown(daemon.port), der(third))
    assert limit() == 7
    (mount.folder / "..data").unlink()
    eventually(lambda: "No such file" in daemon.log)
    assert limit() == 7


def test_tls_goes_on_until_a_restart(start_with_tls, mount, authority):
    """Whatever the file says: nobody is suddenly spoken to in the clear."""
    daemon = start_with_tls()
    daemon.write_settings(**{name: {"address": daemon.settings[name]["address"]} for name in ("grpc", "http")})
    eventually(lambda: "after a restart only" in daemon.log)
    assert shown(daemon.port) == shown(daemon.http_port) == der(mount.first)
    daemon.write_settings(grpc=daemon.settings["grpc"] | {"tls": mount.named("certificate", "key")})
    second = mount.put(authority.issue_cert("localhost"), authority)
    eventually(lambda: shown(daemon.port), der(second))
    assert shown(daemon.http_port) == der(mount.first)
