use ratatui::Terminal;
use ratatui::backend::TestBackend;
use xdp_agg::observe::api::{Completion, Daemon, Event, Events, Job, Port, Rank, RankState, State};

use super::*;

/// Two jobs; rank 1 of `train` keeps the others waiting. `looks` seconds after the first look.
fn state(looks: u64) -> State {
    let rank = |rank: u16, next: u64, lag: f64| Rank {
        rank,
        address: Some(format!("10.0.0.{rank}:4000").parse().expect("an address")),
        state: if lag >= 0.5 { RankState::Late } else { RankState::Ok },
        blocks_contributed: Some(next),
        lag_blocks: Some(40 - next),
        lag_seconds: Some(lag),
        heartbeat_seconds: Some(0.2),
        repetitions: Some(70 + u64::from(rank)),
        ..Rank::default()
    };
    let job = |id: u16, name: &str, blocks: u64, late: f64| Job {
        id,
        name: name.into(),
        phase: "running".into(),
        epoch: 1,
        workers: 2,
        slots: 512,
        slots_in_use: if late > 0.0 { 7 } else { 0 },
        block_bytes: 1000,
        blocks_completed: blocks,
        duplicates: 10 * looks,
        completion: Completion {
            p50_seconds: Some(85e-6),
            p99_seconds: Some(3.25e-3),
            ..Completion::default()
        },
        ranks: vec![rank(0, 40, 0.0), rank(1, if late > 0.0 { 33 } else { 40 }, late)],
        ..Job::default()
    };
    let port = Port {
        name: "eth0".into(),
        up: true,
        rx_packets: 100 * looks,
        rx_bytes: 150_000 * looks,
        ..Port::default()
    };
    State {
        daemon: Daemon {
            version: "1.2.3".into(),
            engine: "xdp (native)".into(),
            uptime_seconds: 3723.0 + looks as f64,
            time_unix_ms: 1_000_000 + 1000 * looks,
            ready: true,
            warnings: vec!["eth1 has no carrier".into()],
            slots: 8192,
            slots_free: 7168,
            ..Daemon::default()
        },
        ports: vec![port],
        jobs: vec![job(0, "calm", 5000 * looks, 0.0), job(1, "train", 300 * looks, 5.25)],
        ..State::default()
    }
}

fn screen(model: &Model) -> String {
    let mut terminal = Terminal::new(TestBackend::new(110, 24)).expect("it is memory");
    terminal.draw(|frame| draw::draw(frame, model)).expect("it is memory");
    let buffer = terminal.backend().buffer();
    let width = usize::from(buffer.area.width);
    let cells: Vec<_> = buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect();
    cells.chunks(width).map(|line| line.concat().trim_end().to_owned() + "\n").collect()
}

fn line<'a>(text: &'a str, begin: &str) -> &'a str {
    let line = text.lines().find(|line| line.trim_start().starts_with(begin));
    line.unwrap_or_else(|| panic!("{begin:?} begins no line of\n{text}"))
}

#[test]
fn a_late_rank_is_named_with_its_lag_and_rates_are_since_the_last_look() {
    let mut model = Model::new(Sort::Lag);
    model.take(state(1));
    let first = screen(&model);
    assert!(line(&first, "train").contains(" - "), "no rates yet: {first}");
    model.take(state(3));
    let text = screen(&model);
    assert!(text.starts_with("xdp-agg 1.2.3, engine xdp (native), up 1:02:06, ready"), "{text}");
    assert!(text.contains("eth1 has no carrier"), "{text}");
    let train = line(&text, "train");
    for words in
        ["running", "2/2", "300.0", "300.0k", "85µs", "3.2ms", "7/512", "10.0", "rank 1: 5.2 s"]
    {
        assert!(train.contains(words), "{words}: {train}");
    }
    assert!(line(&text, "calm").contains("5.0k"), "{text}");
    let port: Vec<_> = line(&text, "eth0").split_whitespace().collect();
    assert_eq!(port, ["eth0", "up", "100.0", "150.0k", "0.0", "0.0"]);
}

#[test]
fn keys_sort_and_open_jobs() {
    let mut model = Model::new(Sort::Lag);
    model.take(state(1));
    model.take(state(2));
    let order = |model: &Model| {
        let text = screen(model);
        text.find("train").expect("it is there") < text.find("calm").expect("it is there")
    };
    let key = |model: &mut Model, code| press(model, KeyEvent::new(code, KeyModifiers::NONE));
    assert!(order(&model), "the latest first");
    assert!(!key(&mut model, KeyCode::Char('r')) && !order(&model));
    key(&mut model, KeyCode::Char('r'));
    key(&mut model, KeyCode::Char('s'));
    assert!(!order(&model), "calm has more blocks a second");
    for _ in 0..3 {
        key(&mut model, KeyCode::Char('s'));
    }
    assert!(model.sort == Sort::Name && !order(&model));
    key(&mut model, KeyCode::Down);
    key(&mut model, KeyCode::Down);
    key(&mut model, KeyCode::Enter);
    let text = screen(&model);
    assert!(text.contains("ranks of train, epoch 1, running") && !text.contains("calm"), "{text}");
    let late: Vec<_> = line(&text, "1 ").split_whitespace().collect();
    assert_eq!(
        late,
        ["1", "late", "10.0.0.1:4000", "33", "7", "5.2", "s", "0.2", "s", "ago", "71"]
    );
    assert!(text.find("late").expect("it is") < text.find(" ok ").expect("it is"), "{text}");
    key(&mut model, KeyCode::Esc);
    assert!(screen(&model).contains("calm"));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(key(&mut model, KeyCode::Char('q')) && press(&mut model, control_c));
}

#[test]
fn a_job_that_goes_closes_its_ranks_and_a_daemon_that_went_is_told() {
    let mut model = Model::new(Sort::Name);
    model.take(state(1));
    model.choose(1);
    model.enter();
    let events = |number| Events {
        first: 1,
        last: number,
        events: vec![Event {
            number,
            time_unix_ms: 0,
            kind: "job_ended".into(),
            job: Some("train".into()),
            job_id: Some(1),
            rank: None,
            text: "train has ended: all have left".into(),
        }],
    };
    model.hear(events(9));
    let mut gone = state(2);
    gone.jobs.truncate(1);
    model.take(gone);
    model.fail("no daemon serves HTTP here".into());
    let text = screen(&model);
    assert!(text.contains("calm") && text.contains("train has ended: all have left"), "{text}");
    assert!(text.contains("no daemon serves HTTP here"), "{text}");
    assert_eq!((model.chosen(), model.events_seen()), (0, 9));
    // It has started again.
    let mut anew = state(1);
    anew.daemon.uptime_seconds = 1.0;
    model.take(anew);
    assert_eq!(model.events_seen(), 0);
    assert!(line(&screen(&model), "calm").contains(" - "), "nothing to compare with");
}

#[test]
fn small_terminals_do_no_harm() {
    let mut model = Model::new(Sort::Lag);
    model.take(state(1));
    for (width, height) in [(1, 1), (20, 5), (300, 100)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it is memory");
        terminal.draw(|frame| draw::draw(frame, &model)).expect("it is memory");
    }
}

#[test]
fn plain_text_names_who_is_late() {
    let mut model = Model::new(Sort::Lag);
    model.take(state(1));
    let text = model.text();
    let train: Vec<_> = line(&text, "train").split_whitespace().collect();
    let expected = "train running 1 2/2 300 85µs 3.2ms 7/512 10 rank 1: 5.2 s";
    assert_eq!(train.join(" "), expected);
    assert!(text.contains("warning: eth1 has no carrier\n"), "{text}");
    let rank = text.lines().find(|line| line.contains(" late ")).expect("a row of its own");
    let cells: Vec<_> = rank.split_whitespace().collect();
    assert_eq!(cells[..6], ["train", "1", "late", "10.0.0.1:4000", "33", "7"]);
    assert_eq!(cells.last(), Some(&"71"));
}

#[test]
fn times_of_blocks_are_short() {
    let said =
        [2.5e-6, 85.4e-6, 999e-6, 1e-3, 3.25e-3, 0.25, 1.0, 75.0].map(Some).map(model::block_time);
    assert_eq!(said, ["2.5µs", "85µs", "999µs", "1.0ms", "3.2ms", "250ms", "1.0s", "75s"]);
    assert_eq!(model::block_time(None), "-");
}
