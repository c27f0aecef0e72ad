//! One measurement, as its arguments say in JSON, with the result in JSON: what `bench/client.py` asks for.

mod near;
mod outage;
mod overshoot;
mod requests;

use serde_json::Value;
use swlimit_client::{Error, Mode};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, options] = arguments.as_slice() else { panic!("what to measure, and how") };
    let options: Value = serde_json::from_str(options).expect("options in JSON");
    let result = match what.as_str() {
        "near" => near::measure(of(options)),
        "requests" => requests::measure(of(options)),
        "outage" => outage::measure(of(options)),
        "overshoot" => overshoot::measure(of(options)),
        _ => panic!("nothing called {what} is measured"),
    };
    println!("{}", result.expect("a server with swlimit"));
}

fn of<T: serde::de::DeserializeOwned>(options: Value) -> T {
    serde_json::from_value(options).expect("options of this measurement")
}

type Result<T> = std::result::Result<T, Error>;

/// A mode by its name.
fn mode(name: &str) -> Mode {
    match name {
        "direct" => Mode::Direct,
        "cached" => Mode::Cached,
        "leased" => Mode::Leased,
        "eventual" => Mode::Eventual,
        "local" => Mode::Local,
        _ => panic!("no mode is called {name}"),
    }
}
