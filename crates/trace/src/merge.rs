//! Files of several ranks as one, on one clock.

use std::collections::HashMap;

use serde_json::Value;

use crate::clock::Clock;
use crate::read::{File, Recording};

/// One text of all files' events. `clocks`: of all recordings, in the order of `all`.
///
/// Ranks are processes, in their order. Times begin with the earliest event.
#[must_use]
pub fn merged(files: &[File], all: &[&Recording], clocks: &[Clock]) -> String {
    // The new number of a file's source, and its clock.
    let mut places: HashMap<(&str, u64), (u64, Clock)> = HashMap::new();
    for (number, (recording, clock)) in (1..).zip(all.iter().zip(clocks)) {
        let key = (&*recording.file, u64::from(recording.source.source));
        places.insert(key, (number, *clock));
    }
    let (mut heads, mut events) = (Vec::new(), Vec::new());
    for file in files {
        let Some(name) = file.recordings.first().map(|recording| &*recording.file) else {
            continue;
        };
        for event in &file.events {
            let of = event.get("pid").and_then(Value::as_u64).unwrap_or_default();
            let Some((number, clock)) = places.get(&(name, of)) else { continue };
            let mut event = event.clone();
            event["pid"] = (*number).into();
            match event.get("ts").and_then(Value::as_f64) {
                Some(at) => {
                    let at = clock.common((at * 1e3).round() as u64);
                    for (key, value) in
                        event.get_mut("args").and_then(Value::as_object_mut).into_iter().flatten()
                    {
                        if let (true, Some(at)) = (key.ends_with("_ns"), value.as_u64()) {
                            *value = clock.common(at).into();
                        }
                    }
                    events.push((at, event));
                }
                None => {
                    if event.get("name").and_then(Value::as_str) == Some("xdp_agg") {
                        renumber(&mut event["args"], *number, clock, all);
                    }
                    heads.push(event);
                }
            }
        }
    }
    // What begins a call stands before what is in it, also at the same moment.
    events.sort_by_key(|(at, _)| *at);
    let mut text = String::from("[\n");
    let timed = events.into_iter().map(|(at, mut event)| {
        event["ts"] = (at as f64 / 1e3).into();
        event
    });
    for (index, event) in heads.into_iter().chain(timed).enumerate() {
        text += if index == 0 { "" } else { ",\n" };
        text += &event.to_string();
    }
    text + "\n]\n"
}

/// The description of a source, as one of the merged file.
fn renumber(args: &mut Value, number: u64, clock: &Clock, all: &[&Recording]) {
    args["source"] = number.into();
    if let Some(reference) = all.first() {
        args["clock"] = reference.source.clock.clone().into();
    }
    if let Some(at) = args.get("monotonic_ns").and_then(Value::as_u64) {
        args["monotonic_ns"] = clock.common(at).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::clocks;
    use crate::read::{file, of_one_run};
    use crate::testing::{MS, World};

    #[test]
    fn merged_files_are_one_on_one_clock() {
        let mut world = World::new(3);
        world.ahead(1, 77_000 * MS as i64);
        world.ahead(2, -12_345 * MS as i64);
        for call in 0..20 {
            world.call(&[call * 1000, 3000, 9000], 20_000);
        }
        let files = world.files();
        let all = of_one_run(&files).expect("one run");
        let text = merged(&files, &all, &clocks(&all));
        let again = file("merged", &text).expect("ours");
        assert_eq!(again.recordings.len(), 3);
        let reference = &again.recordings[0];
        for (rank, recording) in again.recordings.iter().enumerate() {
            assert_eq!(usize::from(recording.source.rank), rank);
            assert_eq!(recording.source.clock, reference.source.clock);
            assert_eq!(recording.calls.len(), 20);
            for (call, first) in recording.calls.iter().zip(&reference.calls) {
                let [one, other] = [call, first].map(|call| call.ended.expect("it has ended"));
                assert!(one.abs_diff(other) < MS / 10, "{one} {other}");
                let [one, other] = [call, first].map(|call| call.first_sent.expect("sent"));
                assert!(one.abs_diff(other) < MS / 10, "{one} {other}");
            }
        }
        // Times go forward, and no event is lost.
        let times: Vec<f64> = again.events.iter().filter_map(|e| e["ts"].as_f64()).collect();
        assert!(times.is_sorted());
        let count: usize = files.iter().map(|file| file.events.len()).sum();
        assert_eq!(again.events.len(), count);
    }
}
