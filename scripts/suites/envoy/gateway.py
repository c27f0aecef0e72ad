"""Send swlimitd the resources that Envoy Gateway's own tests hold, and ask what their routes make Envoy ask."""

import yaml

from suites.envoy.replay import checkout, status_told
from support.control_plane import RateLimitConfig, resource
from support.daemon import descriptor

REPOSITORY, COMMIT = "https://github.com/envoyproxy/gateway", "d32f28294245e454d20f81d323d626a90e660c1e"
RESOURCES = "internal/xds/translator/testdata/out/ratelimit-config"


def replay(compare, daemon, control_plane):
    """Compare for each file: is it accepted, and which limit do the descriptors of its routes find?"""
    folder = checkout(REPOSITORY, COMMIT, RESOURCES) / RESOURCES
    for path in sorted(folder.glob("*.yaml")):
        if path.name.endswith(".routes.yaml"):
            continue
        configs = list(yaml.safe_load_all(path.read_text()))
        answer = control_plane.publish(*(resource(sendable(config)) for config in configs))
        compare("resources of Envoy Gateway: accepted", path.name, "", answer.error_detail.message)
        for domain, entries in asked(path.with_suffix(".routes.yaml")):
            words = " ".join(f"{key}={value}" for key, value in entries)
            # A look: files share keys, and see what others count.
            looked = daemon.ask(descriptor(words, hits=0), domain=domain)
            compare("resources of Envoy Gateway: what its routes ask", f"{path.name}: {domain}: {words}",
                    expected(configs, domain, entries), status_told(looked.statuses[0]))


def sendable(config):
    """What of a file goes over the protocol: for other keys of envoyproxy/ratelimit's files it has no fields."""
    def fields(message, values):
        known = {field.name: field.message_type for field in message.fields}
        for name, value in values.items():
            if name in known and value is not None:
                below = known[name]
                many = isinstance(value, list)
                yield name, ([dict(fields(below, one)) for one in value] if many
                             else dict(fields(below, value)) if below else value)

    return dict(fields(RateLimitConfig.DESCRIPTOR, config))


def asked(path):
    """Domains, and the entries of the descriptors that routes send to them."""
    for route in yaml.safe_load_all(path.read_text()):
        for domain, limits in route["rateLimitsByDomain"].items():
            for limit in limits:
                actions = [next(iter(action["ActionSpecifier"].values())) for action in limit["actions"]]
                yield domain, [(action["descriptor_key"], value_of(action)) for action in actions]


def value_of(action):
    """What Envoy sends for an action: what the action says, a header's value, or the client's address."""
    value = action.get("descriptor_value", "x")
    return "192.0.2.1" if value.startswith("%") else value


def expected(configs, domain, entries):
    """What a look at the limit that these resources have for a descriptor says, as the tables write it."""
    level = [below for config in configs if config["domain"] == domain for below in config["descriptors"]]
    for key, value in entries:
        exact, any_value = ([one for one in level if (one["key"], one["value"]) == pair]
                            for pair in ((key, value), (key, "")))
        found = next(iter(exact or any_value), None)
        if found is None:
            return "OK"
        level = found["descriptors"]
    limit = found["rate_limit"]
    if limit is None:
        return "OK"
    return f"OK {limit['requests_per_unit']}/{limit['requests_per_unit']} {limit['unit']}"
