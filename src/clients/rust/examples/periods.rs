//! Tells periods of the calendar. Each line of the input names a period, a time zone, an anchor or `-`, and instants in
//! Unix seconds; each line of the output has the start and the end of the period of each.

use std::error::Error;
use std::io::{stdin, BufRead};
use std::time::{Duration, UNIX_EPOCH};

use swlimit_client::Calendar;

fn main() -> Result<(), Box<dyn Error>> {
    for line in stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let mut word = || words.next().ok_or("a line is too short");
        let calendar = Calendar::new(word()?.parse()?).time_zone(word()?)?;
        let calendar = match word()? {
            "-" => calendar,
            anchor => calendar.anchor(anchor)?,
        };
        let mut told = Vec::new();
        for instant in words {
            let (start, end) = calendar.period_at(UNIX_EPOCH + Duration::from_secs(instant.parse()?))?;
            for edge in [start, end] {
                told.push(edge.duration_since(UNIX_EPOCH)?.as_secs().to_string());
            }
        }
        println!("{}", told.join(" "));
    }
    Ok(())
}
