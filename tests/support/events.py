"""Key events."""

from contextlib import contextmanager

from .waiting import eventually


@contextmanager
def events(server, classes="KEd"):
    """The key events of a block, as (channel, message), complete when the block ends."""
    server.cli("CONFIG", "SET", "notify-keyspace-events", classes)
    heard = []
    with server.client() as client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.psubscribe("__key*__:*")
        subscription.subscribe("end")
        eventually(lambda: server.cli("PUBSUB", "NUMPAT"), "1")
        eventually(lambda: server.cli("PUBSUB", "NUMSUB", "end"), "end\n1")
        yield heard
        server.cli("PUBLISH", "end", "")
        while (message := subscription.get_message(timeout=10)) is None or message["channel"] != b"end":
            if message:
                channel = message["channel"].decode().removeprefix("__").replace("@0__", "")
                heard.append((channel, message["data"].decode()))
    server.cli("CONFIG", "SET", "notify-keyspace-events", "")
