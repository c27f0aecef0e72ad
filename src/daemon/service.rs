//! What all protocols share: the configuration of this moment, and who decides by it.

use arc_swap::ArcSwap;

use crate::settings::Configuration;

/// The daemon's state.
pub struct Service {
    configuration: ArcSwap<Configuration>,
}

impl Service {
    pub fn new(configuration: Configuration) -> Self {
        Self { configuration: ArcSwap::from_pointee(configuration) }
    }

    /// The configuration that is in force. What began with it goes on with it.
    pub fn configuration(&self) -> arc_swap::Guard<std::sync::Arc<Configuration>> {
        self.configuration.load()
    }
}
