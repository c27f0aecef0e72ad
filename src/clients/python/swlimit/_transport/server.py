"""One server, with everything that is connected to it."""

from collections.abc import Callable

from .._protocol.commands import Command
from .._protocol.script_fallback import Module, TakenOver
from .endpoint import Endpoint
from .hold_renewer import Client, HoldRenewer
from .interface import Connections, Interface, Worker
from .invalidation import Subscribers, Tracker
from .server_health import ServerHealth


class Server(ServerHealth):
    """`connections` sends requests, `tracker` receives invalidations, `renewer` renews holds."""

    def __init__(self, endpoint: Endpoint, module: Module, taken_over: TakenOver, interface: Interface,
                 subscribers: Subscribers, client: Callable[[], Client | None]) -> None:
        super().__init__(endpoint, module, taken_over)
        self.connections: Connections = interface.connections(self)
        self.tracker = Tracker(interface, self, subscribers)
        self.renewer = HoldRenewer(interface, self, client)

    @property
    def workers(self) -> list[Worker]:
        """The threads or tasks that run for it."""
        return [one for one in (self.connections.worker, self.tracker.worker, self.renewer.worker) if one is not None]

    def repeat(self, command: Command) -> None:
        self.renewer.repeat(command)

    def close(self) -> None:
        self.dialect.reset()
        self.connections.close()
        self.tracker.close()

    def end(self) -> None:
        """Close all connections, also those that owe replies."""
        self.close()
        self.connections.end()
