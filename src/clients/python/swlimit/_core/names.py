"""Names of keys."""


def has_tag(name: bytes) -> bool:
    """Whether a part in braces decides the slot that a cluster keeps this key in."""
    return name.partition(b"{")[2].find(b"}") > 0


def tagged(name: bytes) -> bytes:
    """The name with a hash tag, so that what is appended changes no slot."""
    return name if has_tag(name) else b"{" + name + b"}"
