//! All interleavings of remembering and forgetting.

use std::time::Duration;

use loom::sync::Arc;
use tokio::time::Instant;

/// The same source as outside, upon what the model sees.
#[allow(clippy::duplicate_mod)]
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

use memory::{Epoch, Memory};
use sync::{AtomicU64, Ordering};

/// A server with one key, whose changes are told behind the change.
struct World {
    /// Whether the server would deny: 1 until something is given back.
    denies: AtomicU64,
    memory: Memory<()>,
    epoch: Epoch,
}

/// Somebody asks, and remembers the answer if it is a denial; somebody else gives back and is heard of as `told` says.
/// When both are done, no denial may be remembered that the server would not give.
fn nothing_stale(told: fn(&World)) {
    loom::model(move || {
        let now = Instant::now();
        let until = now + Duration::from_secs(60);
        let world = Arc::new(World { denies: AtomicU64::new(1), memory: Memory::new(), epoch: Epoch::new() });
        let asking = Arc::clone(&world);
        let asks = loom::thread::spawn(move || {
            if let Some(ticket) = asking.memory.begin(&asking.epoch) {
                let denied = asking.denies.load(Ordering::SeqCst) == 1;
                asking.memory.end(ticket, &asking.epoch, denied.then_some((until, ())), |_, _| true);
            }
        });
        let giving = Arc::clone(&world);
        let gives = loom::thread::spawn(move || {
            giving.denies.store(0, Ordering::SeqCst);
            told(&giving);
        });
        asks.join().unwrap();
        gives.join().unwrap();
        assert_eq!(world.memory.find(&world.epoch, now, |()| Some(())), None);
    });
}

#[test]
fn a_change_that_is_heard_of_while_the_server_is_asked() {
    nothing_stale(|world| world.memory.forget());
}

#[test]
fn everything_forgotten_while_the_server_is_asked() {
    nothing_stale(|world| world.epoch.forget());
}

#[test]
fn one_asks_at_a_time() {
    loom::model(|| {
        let world = Arc::new((Memory::<()>::new(), Epoch::new()));
        let begun: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || world.0.begin(&world.1).is_some())
            })
            .collect();
        let begun: Vec<bool> = begun.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(begun.iter().filter(|begun| **begun).count(), 1);
        assert!(!world.0.is_idle(Instant::now()));
    });
}

#[test]
fn one_asks_again_what_a_change_made_uncertain() {
    loom::model(|| {
        let now = Instant::now();
        let world = Arc::new((Memory::<()>::new(), Epoch::new()));
        let Some(ticket) = world.0.begin(&world.1) else { panic!("nobody else asks") };
        world.0.end(ticket, &world.1, Some((now + Duration::from_secs(60), ())), |_, _| true);
        world.0.forget();
        let again: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || world.0.begin_again(&world.1).is_some())
            })
            .collect();
        let again: Vec<bool> = again.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(again.iter().filter(|again| **again).count(), 1);
    });
}
