//! A browser without a screen, driven over WebDriver (<https://www.w3.org/TR/webdriver2/>): the few
//! commands that tests of a page need, over a connection each.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use xdp_agg_testbed::{Namespace, Process};

use super::LIMIT;

/// How often a condition of the page is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Where the driver listens, in a namespace of the test.
const PORT: u16 = 9515;

/// A browser in a namespace. Dropping it ends it.
pub struct Browser {
    host: Namespace,
    session: String,
    _driver: Process,
}

/// A message of the browser's console.
#[derive(Debug)]
pub struct Message {
    /// `SEVERE`, `WARNING` …
    pub level: String,
    pub text: String,
}

impl Browser {
    /// Starts Chromium in this namespace.
    pub fn start(host: &Namespace, driver: &Path) -> Self {
        let mut command = host.command(driver);
        // In a namespace without IPv6 it does not tell which free port it took.
        command.arg(format!("--port={PORT}"));
        let driver = Process::spawn("chromedriver", command).expect("it starts");
        let ready = |line: &str| line.contains("started successfully");
        driver.wait_line("its readiness", LIMIT, ready).expect("it gets ready");
        let mut browser = Self { host: host.clone(), session: String::new(), _driver: driver };
        // Root's own sandbox is the namespace, and the only page is ours.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": arguments},
        }}});
        let session = browser.call("POST", "/session", &wanted);
        session["sessionId"].as_str().expect("a session").clone_into(&mut browser.session);
        browser
    }

    /// Opens an address, and waits until it is loaded.
    pub fn open(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    /// What a function body returns in the page.
    pub fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// The same of one that calls its last argument with what it returns.
    pub fn run_async(&self, script: &str) -> Value {
        self.command("execute/async", &json!({ "script": script, "args": [] }))
    }

    /// The text that is shown of an element; none of one that is not there.
    pub fn text(&self, selector: &str) -> String {
        let selector = Value::from(selector);
        let found = self.run(&format!("return document.querySelector({selector})?.innerText"));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until an element's text holds; how long that took since `since`.
    pub fn wait(
        &self,
        selector: &str,
        since: Instant,
        limit: Duration,
        holds: impl Fn(&str) -> bool,
    ) -> Duration {
        loop {
            let text = self.text(selector);
            let took = since.elapsed();
            if holds(&text) {
                assert!(took <= limit, "{selector} took {took:?}, not {limit:?}: {text:?}");
                return took;
            }
            assert!(took < limit + LIMIT, "{selector} is still {text:?} after {took:?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Types these keys with an element focused.
    pub fn type_into(&self, selector: &str, keys: &str) {
        let wanted = json!({ "using": "css selector", "value": selector });
        let found = self.command("element", &wanted);
        let (_, id) = found.as_object().and_then(|ids| ids.iter().next()).expect("an element");
        let id = id.as_str().expect("an identifier");
        self.command(&format!("element/{id}/value"), &json!({ "text": keys }));
    }

    /// Makes the page believe in a screen of this size and a preference for this scheme.
    pub fn screen(&self, (width, height): (u32, u32), scheme: &str) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// A picture of what is on the screen.
    pub fn screenshot(&self) -> Vec<u8> {
        let taken = self.devtools("Page.captureScreenshot", &json!({ "format": "png" }));
        STANDARD.decode(taken["data"].as_str().expect("a picture")).expect("base64")
    }

    /// What the console got since the last call.
    pub fn console(&self) -> Vec<Message> {
        let all = self.command("se/log", &json!({ "type": "browser" }));
        let field = |entry: &Value, name: &str| entry[name].as_str().unwrap_or("").to_owned();
        let message =
            |entry| Message { level: field(entry, "level"), text: field(entry, "message") };
        all.as_array().expect("a log").iter().map(message).collect()
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.command("goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/session/{}/{path}", self.session), body)
    }

    /// One command: its value, or a panic with the driver's error.
    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, mut answer) = self.try_call(method, path, body).expect("the driver answers");
        assert!(status == 200, "{method} {path}: {status} {answer}");
        answer["value"].take()
    }

    fn try_call(&self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, Value)> {
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, PORT));
        let mut stream = self.host.run(connect).expect("entering the namespace")?;
        stream.set_read_timeout(Some(LIMIT))?;
        let body = body.to_string();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        // It says that it closes the connection, and leaves that to us: so its length counts.
        let mut answer = BufReader::new(stream);
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            answer.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or(0);
            } else if let Some(rest) = line.strip_prefix("content-length:") {
                length = rest.trim().parse().expect("a length");
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body)?;
        Ok((status, serde_json::from_slice(&body)?))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser leads a group of its own, so it would outlive its driver. A failure here
        // would hide the one that is being told.
        let _ended = self.try_call("DELETE", &format!("/session/{}", self.session), &Value::Null);
    }
}
