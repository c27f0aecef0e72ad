"""Limits of a control plane, over the aggregated discovery service."""

import socket

import grpc
import pytest
import trustme
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryResponse

from support.control_plane import TYPE_URL, ControlPlane, resource
from support.waiting import eventually

QUICK = {"retry_interval": "50ms", "max_retry_interval": "100ms"}


def config(number, name="d", **policy):
    """A listener with a route, and a rule for each value of a header, as Envoy Gateway writes it."""
    rate_limit = {"requests_per_unit": number, "unit": "DAY"} | policy
    rule = {"key": "rule-0-match-0", "value": "", "rate_limit": rate_limit}
    return {"name": name, "domain": name, "descriptors": [{"key": "route", "value": "route", "descriptors": [rule]}]}


def in_force(daemon):
    limits = daemon.get("/rlconfig")[1].splitlines()
    return [int(line.split(": ")[1].split()[0]) for line in limits]


@pytest.fixture
def control_plane():
    with ControlPlane() as control_plane:
        yield control_plane


@pytest.fixture
def start_discovering(start_daemon):
    def start(control_plane, **xds):
        keys = {"server": f"http://127.0.0.1:{control_plane.port}", "cache": "kept.pb"} | QUICK | xds
        return start_daemon("domain: files", xds=keys)

    return start


def test_limits_come_and_change(control_plane, start_discovering):
    control_plane.resources = [resource(config(3))]
    daemon = start_discovering(control_plane, node="some", node_metadata={"zone": "a"}, headers={"x-token": "t"})
    assert in_force(daemon) == [3]
    route = "route=route rule-0-match-0=x"
    assert [daemon.codes(route)[0] for _ in range(4)] == ["OK"] * 3 + ["OVER_LIMIT"]
    first, accepted = control_plane.requests[0], control_plane.answer()
    assert (first.type_url, first.version_info, first.node.id) == (TYPE_URL, "", "some")
    assert dict(first.node.metadata) == {"zone": "a"} and control_plane.metadata[0]["x-token"] == "t"
    assert (accepted.version_info, accepted.HasField("error_detail")) == ("v0", False)
    # Counts outlive a change.
    assert control_plane.publish(config(5), config(9, "e")).version_info == "v1"
    assert in_force(daemon) == [5, 9]
    assert daemon.codes(route)[0] == "OK"
    assert control_plane.publish().version_info == "v2"
    assert in_force(daemon) == []
    assert daemon.metrics("swlimitd_control_plane_connected") == {(): 1}


@pytest.mark.parametrize("wrong, reason", [
    (config(4, unit="UNKNOWN"), "unit, window, period or concurrency is missing"),
    (config(4, ""), "the domain is empty"),
    ({"name": "n", "domain": "d", "descriptors": [{"value": "v"}]}, "the descriptor has no key"),
])
def test_what_is_wrong_is_refused_with_a_reason(control_plane, start_discovering, wrong, reason):
    control_plane.resources = [resource(config(3))]
    daemon = start_discovering(control_plane)
    refused = control_plane.publish(config(9, "e"), wrong)
    assert (refused.version_info, refused.error_detail.code) == ("v0", 3)
    assert reason in refused.error_detail.message, refused
    assert in_force(daemon) == [3]
    assert control_plane.publish(config(4)).version_info == "v2"
    assert in_force(daemon) == [4]


def test_a_resource_that_is_none(control_plane, start_discovering):
    control_plane.resources = [resource(config(3))]
    daemon = start_discovering(control_plane)
    broken, foreign = resource(config(3)), resource(config(3))
    broken.value, foreign.type_url = b"\xff\xff", "type.googleapis.com/other"
    for wrong in (broken, foreign):
        assert control_plane.publish(wrong).error_detail.message
    assert in_force(daemon) == [3]


def test_a_control_plane_that_accepts_and_is_silent(start_daemon):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        xds = QUICK | {"server": server, "start_without": True, "response_timeout": "100ms"}
        daemon = start_daemon("domain: files", xds=xds)
        assert daemon.metrics("swlimitd_control_plane_connected") == {(): 0}
        eventually(lambda: "does not answer" in daemon.log, log=lambda: daemon.log)
        with silent.accept()[0], silent.accept()[0]:  # it goes on trying
            assert daemon.log.count("does not answer") == 1
        assert daemon.metrics("swlimitd_control_plane_connected") == {(): 0}


def test_a_control_plane_that_goes_and_comes_back(start_discovering):
    with ControlPlane() as first:
        first.resources = [resource(config(3))]
        daemon = start_discovering(first)
    eventually(lambda: daemon.metrics("swlimitd_control_plane_connected"), {(): 0})
    assert in_force(daemon) == [3]
    # It counts its versions from the beginning, and has other limits.
    with ControlPlane(first.port) as second:
        second.resources = [resource(config(7))]
        eventually(lambda: in_force(daemon), [7], log=lambda: daemon.log)
        assert second.requests[0].version_info == ""


def test_a_restart_without_a_control_plane(start_discovering):
    with ControlPlane() as control_plane:
        control_plane.resources = [resource(config(3))]
        daemon = start_discovering(control_plane)
        control_plane.publish(config(8))
        eventually(lambda: in_force(daemon), [8])
    daemon.stop()
    daemon.start()
    assert in_force(daemon) == [8]
    # Without what was kept it waits.
    daemon.stop()
    (daemon.folder / "kept.pb").unlink()
    daemon.spawn()
    eventually(lambda: "waiting for the first limits" in daemon.log)
    with ControlPlane(control_plane.port) as again:
        again.resources = [resource(config(2))]
        eventually(lambda: in_force(daemon), [2], log=lambda: daemon.log)


@pytest.mark.parametrize("kept", [b"", b"damaged", b"\x12\x05cut"], ids=["empty", "damaged", "cut"])
def test_a_restart_with_a_damaged_file(start_discovering, kept):
    with ControlPlane() as control_plane:
        control_plane.resources = [resource(config(3))]
        daemon = start_discovering(control_plane)
        daemon.stop()
        (daemon.folder / "kept.pb").write_bytes(kept)
        control_plane.resources = [resource(config(2))]
        daemon.start()
        eventually(lambda: in_force(daemon), [2])
    assert "the cached limits are invalid and not used" in daemon.log


def test_a_restart_with_limits_that_are_refused(control_plane, start_discovering):
    """As another version may have kept them."""
    control_plane.resources = [resource(config(3))]
    daemon = start_discovering(control_plane)
    daemon.stop()
    refused = resource(config(3) | {"domain": ""})
    (daemon.folder / "kept.pb").write_bytes(DiscoveryResponse(resources=[refused]).SerializeToString())
    daemon.start()
    assert in_force(daemon) == [3]
    assert "the cached limits are invalid and not used" in daemon.log


def test_it_starts_without_limits_if_it_may(control_plane, start_discovering):
    daemon = start_discovering(control_plane, start_without=True)
    assert daemon.codes("route=route rule-0-match-0=x", hits=9) == ("OK", "OK")
    control_plane.publish(config(3))
    eventually(lambda: in_force(daemon), [3])


def test_own_keys_in_an_overlay(control_plane, start_discovering):
    daemon = start_discovering(control_plane, start_without=True)
    (daemon.folder / "over.yaml").write_text("""
        {domain: d, descriptors: [{key: route, value: route, descriptors: [
            {key: rule-0-match-0, rate_limit: {window: 30s}}]}]}""")
    daemon.write_settings(overlays=["over.yaml"])
    control_plane.publish(config(3))
    eventually(lambda: "3 per 30s" in daemon.get("/rlconfig")[1], log=lambda: daemon.log)


def test_what_an_overlay_hinders_is_in_force_when_it_is_mended(control_plane, start_discovering):
    """The control plane sends it once only. Here it is sent before there were any limits, and again with others."""
    daemon = start_discovering(control_plane, start_without=True)
    overlay = daemon.folder / "over.yaml"

    def lay_over(key):
        overlay.write_text(f"{{domain: d, descriptors: [{{key: {key}, rate_limit: {{window: 30s}}}}]}}")

    def accepted(answer):
        later = control_plane.requests[control_plane.requests.index(answer) + 1:]
        return [(one.version_info, one.response_nonce) for one in later if not one.HasField("error_detail")]

    lay_over("new")
    daemon.write_settings(overlays=["over.yaml"])
    for number, key in enumerate(("first", "second"), 1):
        answer = control_plane.publish(config(number) | {"descriptors": [
            {"key": key, "rate_limit": {"requests_per_unit": number, "unit": "DAY"}}]})
        assert "over.yaml" in answer.error_detail.message
        lay_over(key)
        eventually(lambda: accepted(answer), [(f"v{number}", str(number))], log=lambda: daemon.log)
        assert daemon.get("/rlconfig")[1].startswith(f"d.{key}: {number} per 30s")
    daemon.stop()
    daemon.start()  # with what was kept
    assert in_force(daemon) == [2]


def test_tls(start_discovering, tmp_path):
    authority = trustme.CA()
    server, client = authority.issue_cert("control.test"), authority.issue_cert("client.test")
    paths = {name: tmp_path / f"{name}.pem" for name in ("authority", "certificate", "key")}
    authority.cert_pem.write_to_path(paths["authority"])
    client.cert_chain_pems[0].write_to_path(paths["certificate"])
    client.private_key_pem.write_to_path(paths["key"])
    credentials = grpc.ssl_server_credentials(
        [(server.private_key_pem.bytes(), server.cert_chain_pems[0].bytes())], authority.cert_pem.bytes(), True)
    with ControlPlane(credentials=credentials) as control_plane:
        control_plane.resources = [resource(config(3))]
        tls = {name: str(path) for name, path in paths.items()}
        url = f"https://127.0.0.1:{control_plane.port}"
        daemon = start_discovering(control_plane, server=url, tls=tls, tls_name="control.test")
        assert in_force(daemon) == [3]
        for wrong in ({"tls_name": "other.test"}, {"tls": tls | {"authority": str(paths["certificate"])}}):
            daemon.stop()
            (daemon.folder / "kept.pb").unlink(missing_ok=True)
            daemon.write_settings(xds=daemon.settings["xds"] | {"start_without": True} | wrong)
            (daemon.folder / "log").write_text("")
            daemon.start()
            eventually(lambda: "the control plane is unavailable" in daemon.log)
            assert in_force(daemon) == []
