//! The circuit to the server: open while it is away, so that nobody waits for it in vain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use failsafe::backoff::{self, Constant};
use failsafe::failure_policy::{self, ConsecutiveFailures};
use failsafe::{Instrument, StateMachine};

/// So many failures in a row open it.
const FAILURES: u32 = 3;
/// How long it stays open before the next probe: how late it is noticed, at most, that the server is back.
const OPEN: Duration = Duration::from_millis(200);

/// The state of the circuit.
pub(crate) struct Circuit {
    machine: StateMachine<ConsecutiveFailures<Constant>, Lamp>,
    lamp: Lamp,
    /// Somebody probes whether the server is back: one at a time.
    is_probed: AtomicBool,
}

/// Whether it is closed, to be seen without a lock.
#[derive(Clone)]
struct Lamp(Arc<AtomicBool>);

/// The right to ask the server; to be told how that went.
#[must_use = "how it went is to be said"]
pub(crate) struct Permit<'a> {
    circuit: &'a Circuit,
    is_probe: bool,
}

impl Circuit {
    /// Closed.
    pub fn new() -> Self {
        let lamp = Lamp(Arc::new(AtomicBool::new(true)));
        let policy = failure_policy::consecutive_failures(FAILURES, backoff::constant(OPEN));
        Self { machine: StateMachine::new(policy, lamp.clone()), lamp, is_probed: AtomicBool::new(false) }
    }

    /// Whether the server may be asked now.
    pub fn permit(&self) -> Option<Permit<'_>> {
        if self.is_closed() {
            return Some(Permit { circuit: self, is_probe: false });
        }
        if self.is_probed.swap(true, Ordering::AcqRel) {
            return None;
        }
        // Given up again at once where it is too early.
        let probe = Permit { circuit: self, is_probe: true };
        self.machine.is_call_permitted().then_some(probe)
    }

    /// Whether the server is believed to be there.
    pub fn is_closed(&self) -> bool {
        self.lamp.0.load(Ordering::Acquire)
    }
}

impl Permit<'_> {
    /// The server answered.
    pub fn succeeded(self) {
        self.circuit.machine.on_success();
    }

    /// It did not, or cannot decide now; whether that opened the circuit.
    pub fn failed(self) -> bool {
        let was_closed = self.circuit.is_closed();
        self.circuit.machine.on_error();
        was_closed && !self.circuit.is_closed()
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.circuit.is_probed.store(false, Ordering::Release);
        }
    }
}

impl Instrument for Lamp {
    fn on_call_rejected(&self) {}

    fn on_half_open(&self) {}

    fn on_open(&self) {
        self.0.store(false, Ordering::Release);
        tracing::warn!("the rate limit server is away: deciding without it");
    }

    fn on_closed(&self) {
        // Said when the circuit is made, too.
        if !self.0.swap(true, Ordering::AcqRel) {
            tracing::info!("the rate limit server is back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Circuit {
        let circuit = Circuit::new();
        for failure in 1..=FAILURES {
            assert_eq!(circuit.permit().unwrap().failed(), failure == FAILURES);
        }
        circuit
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let circuit = Circuit::new();
        for _ in 0..10 {
            for _ in 1..FAILURES {
                circuit.permit().unwrap().failed();
            }
            circuit.permit().unwrap().succeeded();
        }
        assert!(circuit.is_closed());
        assert!(open().permit().is_none());
    }

    #[test]
    fn one_probe_at_a_time_until_the_server_is_back() {
        let circuit = open();
        std::thread::sleep(2 * OPEN);
        let probe = circuit.permit().unwrap();
        assert!(circuit.permit().is_none());
        probe.failed();
        assert!(circuit.permit().is_none(), "it is open again");
        std::thread::sleep(2 * OPEN);
        drop(circuit.permit().unwrap()); // given up without an answer
        circuit.permit().unwrap().succeeded();
        assert!(circuit.permit().is_some() && circuit.permit().is_some());
    }
}
