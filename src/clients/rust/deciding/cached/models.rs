//! All interleavings of remembering and forgetting a denial.

use std::time::Duration;

use loom::sync::Arc;
use tokio::time::Instant;

/// The same source with the model's primitives.
#[allow(clippy::duplicate_mod, dead_code)]
#[path = "memory.rs"]
mod memory;

mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};

    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    impl<T> std::fmt::Debug for Mutex<T> {
        fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            to.write_str("Mutex")
        }
    }
}

use memory::{Epoch, Generation, Memory};
use sync::{AtomicU64, Ordering};

/// A server with one key, which announces each change after it.
struct World {
    /// Whether the server would deny: 1 until something is given back.
    denies: AtomicU64,
    memory: Memory<()>,
    generation: Generation,
    epoch: Epoch,
}

impl World {
    fn new() -> Self {
        let (memory, generation, epoch) = (Memory::new(), Generation::new(), Epoch::new());
        Self { denies: AtomicU64::new(1), memory, generation, epoch }
    }
}

/// One thread asks, and remembers a denial; another gives back, which is announced as `tell` says. When both are done, no
/// denial may be remembered that the server would not give.
fn nothing_stale(tell: fn(&World)) {
    loom::model(move || {
        let now = Instant::now();
        let until = now + Duration::from_secs(60);
        let world = Arc::new(World::new());
        let asking = Arc::clone(&world);
        let asks = loom::thread::spawn(move || {
            let ticket = asking.generation.ticket(&asking.epoch);
            if asking.denies.load(Ordering::SeqCst) == 1 {
                let remember = || asking.memory.remember(ticket, until, (), |_, _| true);
                asking.generation.unless_changed(ticket, &asking.epoch, remember);
            }
        });
        let giving = Arc::clone(&world);
        let gives = loom::thread::spawn(move || {
            giving.denies.store(0, Ordering::SeqCst);
            tell(&giving);
        });
        asks.join().unwrap();
        gives.join().unwrap();
        assert_eq!(world.memory.find(&world.epoch, now, |()| Some(())), None);
    });
}

#[test]
fn a_change_that_is_heard_of_while_the_server_is_asked() {
    nothing_stale(|world| world.generation.changed(|| world.memory.forget()));
}

#[test]
fn everything_forgotten_while_the_server_is_asked() {
    nothing_stale(|world| world.epoch.forget());
}

#[test]
fn one_reads_at_a_time() {
    loom::model(|| {
        let memory = Arc::new(Memory::<()>::new());
        let reading: Vec<_> = (0..2)
            .map(|_| {
                let memory = Arc::clone(&memory);
                loom::thread::spawn(move || memory.begin_reading())
            })
            .collect();
        let reading: Vec<bool> = reading.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(reading.iter().filter(|reading| **reading).count(), 1);
        assert!(!memory.is_idle(Instant::now()));
        memory.end_reading();
        assert!(memory.is_idle(Instant::now()) && memory.begin_reading());
    });
}
