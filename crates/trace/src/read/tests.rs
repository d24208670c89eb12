use super::*;
use crate::model::Kind;
use crate::testing::{four, well};

#[test]
fn what_is_no_trace_is_refused_with_the_reason() {
    let world = four();
    let text = world.texts().swap_remove(0);
    let told = |text: &str| file("x.json", text).expect_err("refused").to_string();
    assert!(told("").contains("it is empty"));
    assert!(told(r#"{"a": 1}"#).contains("no JSON array"));
    assert!(told("[\n{\"name\": nonsense}").contains("event 1 is no JSON"));
    let foreign = r#"[{"name":"x","ph":"X","ts":1,"dur":2,"pid":1,"tid":1}]"#;
    assert!(matches!(file("x", foreign), Err(ReadError::Foreign { .. })));
    let newer = text.replace(r#""format":1"#, r#""format":9"#);
    assert!(told(&newer).contains("format 9; this release reads 1"));
}

#[test]
fn a_file_may_end_anywhere() {
    let mut world = four();
    well(&mut world, 2);
    let text = world.texts().swap_remove(0);
    let whole = file("x", &text).expect("ours");
    let first = text.find("\"xdp_agg\"").expect("who it is");
    let begin = first + text[first..].find('\n').expect("a line");
    let mut cut = 0;
    for end in begin..text.len() {
        let part = file("x", &text[..end]).expect("ours");
        assert!(part.events.len() <= whole.events.len());
        assert_eq!(part.recordings[0].source, whole.recordings[0].source);
        cut += part.notes.len();
    }
    assert!(cut > 100, "{cut}");
    let closed = file("x", &format!("{text}\n]\n")).expect("ours");
    assert_eq!(closed.recordings, whole.recordings);
}

#[test]
fn two_runs_are_told_apart() {
    let two = |change: fn(&mut crate::model::Source)| {
        let mut world = four();
        let mut files = world.files();
        change(world.source(1));
        files.extend(world.files().into_iter().skip(1).take(1));
        of_one_run(&files).map(|all| all.len()).map_err(|error| error.to_string())
    };
    let process = two(|source| source.process = 7).expect_err("two processes");
    assert!(process.contains("rank 1 of job train is in r1.json"), "{process}");
    let run = two(|source| source.run = Some("b".into())).expect_err("two runs");
    assert!(run.contains("different runs of job train"), "{run}");
    let size = two(|source| source.world_size = 8).expect_err("two worlds");
    assert!(size.contains("one has 4 workers, the other 8"), "{size}");
    // A trace and a flight recording of one process go together.
    assert_eq!(two(|source| source.kind = Kind::Flight), Ok(5));
}
