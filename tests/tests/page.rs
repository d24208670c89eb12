//! The page of the daemon's HTTP server, in a browser: it says who is waited for, and since when;
//! it never shows as live what is not.

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use support::browser::Browser;
use support::tool::tool;
use support::{LIMIT, Lab, need_root, network, watched};
use xdp_agg_common::maps::Reject;

/// In what time the page names a rank that is waited for, or does not any more.
const PROMISED: Duration = Duration::from_secs(2);
/// In what time it says that the daemon does not answer.
const SILENCE: Duration = Duration::from_secs(5);

const HTTP: &str = "127.0.0.1:9871";
const URL: &str = "http://127.0.0.1:9871/";
/// A stranger's: as markup it would ask for a picture, and say so in the console.
const JOB: &str = "<img src=x onerror=alert(1)>";

const DESKTOP: (u32, u32) = (1280, 1000);
const PHONE: (u32, u32) = (360, 780);

/// What a page must not have on a screen of this width: what it is of each element that does.
const OVERFLOWS: &str = "
    const width = document.documentElement.clientWidth;
    const wide = [...document.querySelectorAll('body *')].filter((element) =>
        element.getClientRects().length && element.getBoundingClientRect().right > width + 0.5);
    const said = wide.map((element) => `${element.tagName} #${element.id} ${element.className}`);
    if (document.documentElement.scrollWidth > width) said.push('the page itself');
    return said;";

/// Texts whose colour is too near to what is behind them (WCAG 2.2, 1.4.3, level AA).
const FAINT: &str = "
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b]
        .map((c) => c / 255)
        .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = parts(getComputedStyle(at).backgroundColor);
            if (colour.length < 4 || colour[3] > 0) return colour;
        }
        return [255, 255, 255];
    };
    const faint = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text; (text = walk.nextNode());) {
        const element = text.parentElement;
        if (!text.data.trim() || !element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const [a, b] = [light(parts(style.color)), light(behind(element))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        const large = parseFloat(style.fontSize) >= 24;
        if (ratio < (large ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)}: ${text.data}`);
    }
    return faint;";

/// Hosts that the page has asked for anything.
const ASKED: &str = "
    const all = performance.getEntries().filter(({ name }) => name.includes('://'));
    return [...new Set(all.map(({ name }) => new URL(name).origin))];";

/// Milliseconds that the page takes to show 48 jobs of 64 ranks, all opened, when each rank has
/// moved; and what it writes to the document when nothing has.
const CROWD: &str = "
    const done = arguments[0];
    (async () => {
        const { update } = await import('/view.js');
        const { Model } = await import('/model.js');
        const answer = await (await fetch('/api/v1/jobs')).json();
        const [like] = answer.jobs;
        const crowd = (at) => ({
            ...answer,
            daemon: { ...answer.daemon, time_unix_ms: answer.daemon.time_unix_ms + at * 1000 },
            jobs: Array.from({ length: 48 }, (_, id) => ({
                ...like, id, name: `job ${id}`,
                ranks: Array.from({ length: 64 }, (_, rank) => ({
                    ...like.ranks[0], rank, blocks_contributed: at * 100 + rank,
                })),
            })),
        });
        const model = new Model();
        update(model.take(crowd(0)));
        document.querySelectorAll('details').forEach((job) => { job.open = true; });
        // From here on nothing is awaited, or the page's own answers would come between.
        update(model.take(crowd(1)));
        const took = [2, 3, 4, 5, 6].map((at) => {
            const begun = performance.now();
            update(model.take(crowd(at)));
            return performance.now() - begun;
        });
        const shown = model.take(crowd(7));
        update(shown);
        const observer = new MutationObserver(() => {});
        const whole = { subtree: true, childList: true, characterData: true, attributes: true };
        observer.observe(document.getElementById('jobs'), whole);
        update(shown);
        const writes = observer.takeRecords().length;
        observer.disconnect();
        took.sort((a, b) => a - b);
        done({ took: took[2], writes, rows: document.querySelectorAll('#jobs tbody tr').length });
    })().catch((error) => done({ error: String(error) }));";

/// What the page shows of two answers that are a second apart, and of which all is known.
const FIGURES: &str = "
    const done = arguments[0];
    (async () => {
        const { update } = await import('/view.js');
        const { Model } = await import('/model.js');
        const answer = await (await fetch('/api/v1/jobs')).json();
        const [like] = answer.jobs;
        const none = Object.fromEntries(Object.keys(answer.verdicts).map((name) => [name, 0]));
        const at = (second) => ({
            ...answer,
            daemon: {
                ...answer.daemon, time_unix_ms: answer.daemon.time_unix_ms + second * 1000,
                slots_free: 77, warnings: ['it is tired'], not_ready: ['no way up'],
            },
            ports: [{
                name: 'odd0', up: false, rx_packets: 300 * second, rx_bytes: 1e6 * second,
                tx_packets: 200 * second, tx_bytes: 5e5 * second, rx_dropped: 3, tx_dropped: 4,
            }],
            verdicts: { ...none, contributions: 9, cookie: 30 * second, quota: 12 },
            jobs: [{
                ...like, slots: 100, slots_in_use: 25, rejected: 42,
                blocks_completed: 500 * second, contributions: 950 * second, resends: 50 * second,
            }],
        });
        const model = new Model();
        update(model.take(at(0)));
        document.querySelectorAll('details').forEach((job) => { job.open = true; });
        update(model.take(at(1)));
        const text = (selector) => document.querySelector(selector)?.innerText ?? '';
        const said = (selector) => text(selector).replace(/\\s+/g, ' ').trim();
        const tiles = ['in', 'out', 'blocks', 'slots', 'resent', 'refused'].map((name) =>
            [name, `${said(`#tile-${name} .value`)}; ${said(`#tile-${name} .more`)}`]);
        done({
            ...Object.fromEntries(tiles),
            warnings: said('#warning-list'),
            port: said('#port-rows tr'),
            refusals: [...document.querySelectorAll('#refusal-rows tr')].map((row) =>
                row.innerText.replace(/\\s+/g, ' ').trim()).join('; '),
        });
    })().catch((error) => done({ error: String(error) }));";

fn strings(value: &Value) -> Vec<&str> {
    let all = value.as_array().expect("a list").iter();
    all.map(|text| text.as_str().expect("a text")).collect()
}

/// Nothing is cut off, and everything can be read, on both screens and in both schemes.
fn check_readable(browser: &Browser) {
    for screen in [DESKTOP, PHONE] {
        for scheme in ["light", "dark"] {
            browser.screen(screen, scheme);
            let overflow = browser.run(OVERFLOWS);
            assert!(strings(&overflow).is_empty(), "{screen:?}: {overflow}");
            let faint = browser.run(FAINT);
            assert!(strings(&faint).is_empty(), "{scheme}: {faint}");
        }
    }
    browser.screen(DESKTOP, "light");
}

/// Rates and counts are those of the daemon's answers, each in its place.
fn check_figures(browser: &Browser) {
    let figures = browser.run_async(FIGURES);
    let expected = [
        ("in", "8.00Mbit/s"),
        ("out", "4.00Mbit/s"),
        ("blocks", "500/s"),
        ("slots", "25; of 100 given; 77 free"),
        ("resent", "5.0 %; of results"),
        ("refused", "30/s; 42 in all"),
        ("warnings", "Not ready: no way up it is tired"),
        ("port", "odd0 ✕ down, 7 dropped 8.00 Mbit/s 300 packets/s 4.00 Mbit/s 200 packets/s"),
        ("refusals", "cookie not the job’s cookie 30 /s 30; quota more packets than"),
    ];
    for (what, words) in expected {
        let shown = figures[what].as_str().unwrap_or_else(|| panic!("{what}: {figures}"));
        assert!(shown.starts_with(words), "{what}: {words:?} is expected, of {figures:#}");
    }
}

#[test]
fn the_page_names_who_is_waited_for() {
    need_root!();
    let Some(driver) = tool("chromedriver", "chromium-driver") else { return };
    let mut lab = Lab::start_with(network(3, "ports"), "xdp", &["--http", HTTP]);
    let browser = Browser::start(lab.topology.aggregator(), &driver);
    browser.screen(DESKTOP, "light");
    browser.open(URL);

    let start = Instant::now();
    browser.wait("#headline", start, LIMIT, |text| text == "No job yet.");
    browser.wait("#live-text", start, LIMIT, |text| text == "live");
    assert!(browser.text("#how").contains("XDP_AGG_ADDR="), "how a job is begun");
    check_readable(&browser);

    // Names are texts.
    let mut workers = lab.steady_job(JOB, 3, &[], &watched::work());
    let in_step = |text: &str| text == "All 3 ranks are in step.";
    browser.wait("#headline", Instant::now(), LIMIT, in_step);
    assert_eq!(browser.text(".job h3"), format!("Job {JOB}"));
    assert_eq!(browser.run("return document.images.length"), 0);

    // A rank is stopped, and called by its name.
    workers[2].process.signal(libc::SIGSTOP).expect("it runs");
    let stopped = Instant::now();
    let address = lab.topology.worker_addr(2);
    let named = format!("Job {JOB} waits for rank 2 ({address}) for ");
    let took = browser.wait("#headline", stopped, PROMISED, |text| text.contains(&named));
    eprintln!("a stopped rank was named after {took:?}");
    assert_eq!(browser.text("#announced"), named.trim_end_matches(" for "));
    let waits = |text: &str| text.ends_with("waits for rank 2");
    browser.wait(".job .state", stopped, PROMISED, waits);
    browser.wait("#headline", stopped, 2 * PROMISED, |text| text.contains(" for 3."));

    // Ranks of a job are a table, which a key opens.
    browser.type_into(".job summary", "\u{e007}");
    browser.wait(".rank-late", stopped, LIMIT, |text| text.contains("▲ late"));
    assert!(browser.text(".rank-late").contains(&address.to_string()));
    let took = |text: &str| text.contains("a block takes ") && text.contains("one in 100 ");
    browser.wait(".facts", stopped, LIMIT, took);
    // The others repeat what they have sent; the stopped rank does not.
    let again = "return [...document.querySelectorAll('td.again')].map((cell) => cell.innerText)";
    let counts = browser.run(again);
    let counts = strings(&counts);
    assert!(counts.len() == 3 && counts[0] != "0" && counts[0] != "–", "{counts:?}");
    check_readable(&browser);

    workers[2].process.signal(libc::SIGCONT).expect("it is there");
    let took = browser.wait("#headline", Instant::now(), PROMISED, in_step);
    eprintln!("a rank that went on was forgotten after {took:?}");
    let late = |text: &str| text.contains("rank late") && text.contains("rank caught up");
    browser.wait("#event-list", Instant::now(), PROMISED, late);
    let moves = |text: &str| text.contains("bit/s") && !text.starts_with("0");
    browser.wait("#tile-in .value", Instant::now(), PROMISED, moves);

    check_figures(&browser);
    let crowd = browser.run_async(CROWD);
    eprintln!("48 jobs of 64 ranks: {crowd}");
    assert_eq!(crowd["rows"], 48 * 64, "{crowd}");
    assert_eq!(crowd["writes"], 0, "what has not changed is not written: {crowd}");
    // On a machine that has other work to do: it asks twice a second.
    assert!(crowd["took"].as_f64().expect("a time") < 1000.0, "{crowd}");
    drop(workers);

    // Nothing but this daemon was asked, and the browser had nothing to complain about.
    let asked = browser.run(ASKED);
    assert_eq!(strings(&asked), [URL.trim_end_matches('/')]);
    let complaints = browser.console();
    assert!(complaints.is_empty(), "{complaints:?}");
    let policy = "const done = arguments[0];
        fetch('/').then((answer) => done(answer.headers.get('content-security-policy')));";
    let policy = browser.run_async(policy);
    let policy = policy.as_str().expect("a policy");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");

    // A daemon that hangs, and none: what was true is not shown as if it were.
    let said = |text: &str| text.starts_with("The daemon does not answer. Last answer ");
    let daemon = lab.daemon.as_mut().expect("it runs");
    daemon.signal(libc::SIGSTOP).expect("it is there");
    let took = browser.wait("#headline", Instant::now(), SILENCE, said);
    eprintln!("a daemon that hangs was told of after {took:?}");
    daemon.signal(libc::SIGCONT).expect("it is there");
    browser.wait("#live-text", Instant::now(), SILENCE, |text| text == "live");
    lab.daemon.take().expect("it runs").kill().expect("it ends");
    let killed = Instant::now();
    let took = browser.wait("#headline", killed, SILENCE, said);
    eprintln!("a dead daemon was told of after {took:?}");
    assert_eq!(browser.text("#tile-in .value"), "–");
    browser.wait("#live-text", killed, SILENCE, |text| text == "last answer 3 s ago");
    check_readable(&browser);
    lab.start_daemon();
    browser.wait("#live-text", Instant::now(), SILENCE, |text| text == "live");
    browser.wait("#headline", Instant::now(), SILENCE, |text| text == "No job yet.");
}

/// Pictures for the documentation, into the directory that `XDP_AGG_SCREENSHOTS` names.
#[test]
#[ignore = "it makes pictures, and takes a minute"]
fn pictures() {
    need_root!();
    let directory = std::env::var_os("XDP_AGG_SCREENSHOTS").expect("a directory for pictures");
    let driver = tool("chromedriver", "chromium-driver").expect("a browser");
    let lab = Lab::start_with(network(4, "ports"), "xdp", &["--http", HTTP]);
    let browser = Browser::start(lab.topology.aggregator(), &driver);
    browser.screen(DESKTOP, "light");
    browser.open(URL);
    let mut workers = lab.steady_job("resnet50", 4, &[], &watched::work());
    let _others = lab.steady_job("llama-8b/pretrain", 3, &[], &watched::work());
    // Rates of a minute.
    std::thread::sleep(Duration::from_secs(65));
    workers[2].process.signal(libc::SIGSTOP).expect("it runs");
    let stopped = Instant::now();
    browser.wait("#headline", stopped, LIMIT, |text| text.contains(" for 3."));
    // Small enough for a repository: less than 150 KiB.
    let desktop = (1100, 860);
    for (name, screen, scheme) in [("page", desktop, "light"), ("page-phone", PHONE, "dark")] {
        browser.screen(screen, scheme);
        // Until it has drawn with the other colours.
        std::thread::sleep(Duration::from_secs(1));
        let file = Path::new(&directory).join(name).with_extension("png");
        std::fs::write(&file, browser.screenshot()).expect("the directory can be written to");
    }
}

/// Each reason to refuse a packet has its words on the page.
#[test]
fn refusals_have_words() {
    let words = include_str!("../../xdp-agg/assets/words.js");
    let (_, words) = words.split_once("export const REFUSALS = {").expect("the table");
    let (words, _) = words.split_once("};").expect("its end");
    for reason in Reject::ALL {
        let line = format!("\n  {}: ", reason.name());
        assert!(words.contains(&line), "{} has no words in words.js", reason.name());
    }
}
