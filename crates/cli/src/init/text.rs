//! The file of settings, each line explained.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use xdp_agg_common::wire::DATA_PORT;

/// What a daemon is to be told.
#[derive(Debug)]
pub(super) struct Answers {
    /// With what is to be said about each.
    pub(super) interfaces: Vec<(String, Vec<String>)>,
    /// None: any address.
    pub(super) control: Option<SocketAddr>,
    pub(super) control_port: u16,
    pub(super) data_port: u16,
    pub(super) token: Option<PathBuf>,
    /// Certificate, key and authority.
    pub(super) tls: Option<(PathBuf, PathBuf, PathBuf)>,
    pub(super) client_certificates: bool,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) pin: Option<PathBuf>,
}

impl Answers {
    /// The file. `instance` is the daemon's name, if it is not the only one.
    pub(super) fn text(&self, instance: Option<&str>) -> String {
        let unit = instance.map_or_else(|| "xdp-agg".into(), |name| format!("xdp-agg@{name}"));
        let mut file = File::default();
        file.say(&format!(
            "Settings of the aggregator, as `xdp-agg init` wrote them. Keys are named like the \
             flags of `xdp-agg serve`; `xdp-agg serve --help` explains them all. After a change of \
             token, certificates, job-slots, job-slots-max or job-packet-rate: `systemctl reload \
             {unit}`. After any other change: `systemctl restart {unit}`."
        ));
        let names: Vec<_> = self.interfaces.iter().map(|(name, _)| name.clone()).collect();
        let look = names.iter().map(|name| format!(" --interface {name}")).collect::<String>();
        file.say(&format!(
            "The interfaces that workers are behind: the program that sums is attached to them. \
             `xdp-agg doctor{look}` tells whether they are fit for it."
        ));
        for (name, remarks) in &self.interfaces {
            for remark in remarks {
                file.say_on(&format!("At the time of writing, {name}: {remark}"));
            }
        }
        file.set("interface", toml::Value::from(names));
        file.say(match self.control {
            Some(_) => {
                "Where workers and tools connect (TCP): one address of this host, so that other \
                 networks do not reach it. 0.0.0.0 listens on all addresses."
            }
            None => "Where workers and tools connect (TCP): all addresses of this host.",
        });
        let any = SocketAddr::from(([0, 0, 0, 0], self.control_port));
        file.set("control", self.control.unwrap_or(any).to_string().into());
        if let Some(control) = self.control {
            file.say("The address that workers send data to. Packets to other addresses pass by.");
            file.set("data-addr", control.ip().to_string().into());
        }
        file.say("The UDP port that workers send data to.");
        let port = i64::from(self.data_port);
        if self.data_port == DATA_PORT {
            file.unset("data-port", port.into());
        } else {
            file.set("data-port", port.into());
        }
        self.security(&mut file);
        self.pinning(&mut file);
        file.say(
            "Limits of one job: slots (the window of a worker is half of them), and packets a \
             second that it may send; more is dropped and counted. 0: no limit.",
        );
        file.unset("job-slots-max", 1024.into());
        file.unset("job-packet-rate", 0.into());
        file.say(
            "Where metrics, probes and a page with all jobs are served, read-only and without a \
             login; \"off\": nowhere.",
        );
        file.unset("http", "127.0.0.1:9871".into());
        file.say("What is logged: error, warn, info, debug.");
        file.set("log", "info".into());
        file.text
    }

    fn security(&self, file: &mut File) {
        file.say(match self.token {
            Some(_) => {
                "The token that workers and tools have to know, in the first line of this file. \
                 Tokens in further lines are accepted, too: that is how it is replaced. Without \
                 it, every host that reaches the control port may join, list and end jobs."
            }
            None => {
                "The file of a token that workers and tools have to know. WITHOUT IT, EVERY HOST \
                 THAT REACHES THE CONTROL PORT MAY JOIN, LIST AND END JOBS."
            }
        });
        file.path_or_unset("token-file", self.token.as_deref(), "/etc/xdp-agg/token");
        file.say(
            "Certificate and key of this daemon: control connections are encrypted then. The data \
             path never is: keep it in a network of its own.",
        );
        let (cert, key, ca) = match &self.tls {
            Some((cert, key, ca)) => (Some(&**cert), Some(&**key), Some(&**ca)),
            None => (None, None, None),
        };
        file.path_or_unset("tls-cert", cert, "/etc/xdp-agg/server.pem");
        file.path_or_unset("tls-key", key, "/etc/xdp-agg/server.key");
        file.say(
            "The authority that must have signed the certificates of workers and tools. Without \
             it, they need none.",
        );
        let clients = ca.filter(|_| self.client_certificates);
        file.path_or_unset("tls-client-ca", clients, "/etc/xdp-agg/ca.pem");
        file.say(
            "The authority of daemons below this one in a tree; `xdp-agg reload` knows this \
             daemon's certificate by it, too.",
        );
        file.path_or_unset("tls-branch-ca", ca, "/etc/xdp-agg/ca.pem");
    }

    fn pinning(&self, file: &mut File) {
        file.say(
            "The data path is pinned here, in a BPF file system: running jobs go on while the \
             daemon is restarted or replaced, also after a crash.",
        );
        file.path_or_unset("pin", self.pin.as_deref(), "/sys/fs/bpf/xdp-agg");
        file.say("Directory of the file by which the next daemon knows the running jobs.");
        file.path_or_unset("state-dir", self.state_dir.as_deref(), "/run/xdp-agg");
        file.say(
            "With a pinned data path: leave jobs to the next daemon also when the service is \
             stopped or restarted in order.",
        );
        if self.pin.is_some() {
            file.set("keep-on-exit", true.into());
        } else {
            file.unset("keep-on-exit", true.into());
        }
    }
}

/// Lines of at most this length.
const WIDTH: usize = 96;

#[derive(Default)]
struct File {
    text: String,
}

impl File {
    /// A comment that begins a paragraph.
    fn say(&mut self, words: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.say_on(words);
    }

    fn say_on(&mut self, words: &str) {
        let mut line = String::from("#");
        for word in words.split_whitespace() {
            if line.len() + word.len() >= WIDTH {
                self.line(&line);
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    fn set(&mut self, key: &str, value: toml::Value) {
        self.line(&format!("{key} = {value}"));
    }

    /// A setting that is left to its default, as an example.
    fn unset(&mut self, key: &str, value: toml::Value) {
        self.line(&format!("#{key} = {value}"));
    }

    fn path_or_unset(&mut self, key: &str, path: Option<&Path>, example: &str) {
        match path {
            Some(path) => self.set(key, path.display().to_string().into()),
            None => self.unset(key, example.into()),
        }
    }

    fn line(&mut self, line: &str) {
        // To a string nothing can fail.
        let _ = writeln!(self.text, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xdp_agg::config::Partial;

    fn read(text: &str) -> Partial {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("there is room");
        Partial::from_file(file.path()).expect("it is a file of settings")
    }

    fn answers() -> Answers {
        let remarks = vec!["it is \"slow\"\nvery".to_owned()];
        let path = |name: &str| PathBuf::from(format!("/etc/it's \"here\"/{name}"));
        Answers {
            interfaces: vec![("eth0".into(), remarks), ("eth1".into(), Vec::new())],
            control: Some(SocketAddr::from(([10, 0, 0, 1], 9880))),
            control_port: 9880,
            data_port: 48_865,
            token: Some(path("token")),
            tls: Some((path("cert"), path("key"), path("ca"))),
            client_certificates: true,
            state_dir: Some("/run/xdp-agg-b".into()),
            pin: Some("/run/xdp-agg-b/bpf".into()),
        }
    }

    #[test]
    fn a_daemon_reads_what_was_answered() {
        let answers = answers();
        let found = read(&answers.text(Some("b")));
        assert_eq!(found.interface, Some(vec!["eth0".into(), "eth1".into()]));
        assert_eq!((found.control, found.data_port), (answers.control, Some(48_865)));
        assert_eq!((&found.token_file, &found.pin), (&answers.token, &answers.pin));
        let tls = answers.tls.clone().expect("it has some");
        assert_eq!((found.tls_cert, found.tls_key), (Some(tls.0), Some(tls.1)));
        assert_eq!((found.tls_client_ca, found.tls_branch_ca), (Some(tls.2.clone()), Some(tls.2)));
        assert!(found.keep_on_exit);
        let none = Answers { token: None, tls: None, pin: None, control: None, ..answers };
        let found = read(&none.text(None));
        assert_eq!(found.control.map(|addr| addr.to_string()), Some("0.0.0.0:9880".into()));
        let all = (found.token_file, found.tls_cert, found.tls_client_ca, found.pin);
        assert_eq!(all, (None, None, None, None));
    }

    /// Whoever takes the `#` away has settings, too.
    #[test]
    fn each_setting_is_explained_and_each_example_is_one() {
        let text = answers().text(None);
        let mut explained = false;
        for line in text.lines() {
            assert!(line.len() <= 100, "{line}");
            match line.strip_prefix('#') {
                Some(rest) if rest.starts_with(' ') => explained = true,
                Some(example) => {
                    read(example);
                    assert!(explained, "{line}");
                }
                None if line.is_empty() => explained = false,
                None => assert!(explained, "{line}"),
            }
        }
        assert!(answers().text(Some("b")).contains("systemctl reload xdp-agg@b"));
    }
}
