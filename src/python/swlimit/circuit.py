"""Whether to ask a server that has failed."""

import threading


class Circuit:
    """Opens after so many failures in a row. While it is open, one request at a time asks, as a probe."""

    def __init__(self, failures: int = 3, probe_every: float = 1.0) -> None:
        self._failures = failures
        self._probe_every = probe_every
        self._failed = 0
        self._next_probe = 0.0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._failed >= self._failures

    def lets_ask(self, now: float) -> bool:
        """Whether to ask the server now; while the circuit is open, whoever is told so is the probe."""
        if not self.is_open:
            return True
        with self._lock:
            if now < self._next_probe:
                return False
            self._next_probe = now + self._probe_every
            return True

    def succeeded(self) -> bool:
        """The server has answered; whether that closes the circuit."""
        if not self._failed:
            return False
        with self._lock:
            was_open, self._failed = self.is_open, 0
            return was_open

    def failed(self, now: float) -> bool:
        """The server has not answered; whether that opens the circuit."""
        with self._lock:
            was_open, self._failed = self.is_open, self._failed + 1
            self._next_probe = now + self._probe_every
            return self.is_open and not was_open
