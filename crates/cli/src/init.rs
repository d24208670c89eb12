//! `xdp-agg init`: asks what a daemon needs to know, and writes its settings.

mod candidates;
mod certificates;
mod files;
mod text;

use std::io::{self, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result};
use dialoguer::{Confirm, Input, Select};
use rand::TryRngCore;
use rand::rngs::OsRng;
use xdp_agg::config::Partial;
use xdp_agg_common::control::CONTROL_PORT;
use xdp_agg_common::wire::DATA_PORT;

use crate::exit::WrongConfig;
use candidates::Candidate;
use certificates::Authority;
use files::{Files, Mode};
use text::Answers;

/// Where the service looks for its settings.
const DIRECTORY: &str = "/etc/xdp-agg";
/// The service's user.
const USER: &str = "xdp-agg";
/// Bytes of a token, before they are written as hexadecimal digits.
const TOKEN_LEN: usize = 32;

/// Write the settings of a daemon: interface, token, certificates, each line explained
///
/// Asks, and proposes an answer to each question: the interfaces of this host are looked at as
/// `xdp-agg doctor` does. With --yes it asks nothing and takes what it would propose, where no
/// option says otherwise. What is there already is not overwritten without --force; an authority
/// and a token that are there are then kept, so that workers that know them go on.
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit::EXIT_CODES)]
pub(crate) struct Args {
    /// Directory of the settings
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    dir: PathBuf,
    /// Name of one more daemon of this host: its file is NAME.toml, its ports are others
    #[arg(long, value_name = "NAME", value_parser = instance)]
    instance: Option<String>,
    /// Interface that workers are behind; repeat it for several [default: the best one]
    #[arg(short, long, value_name = "IF", value_delimiter = ',')]
    interface: Vec<String>,
    /// Network of the workers: the daemon listens on this host's address in it [default: that of
    /// the first interface]
    #[arg(long, value_name = "ADDR/LEN")]
    network: Option<Network>,
    /// Further names or addresses by which workers reach this host, for its certificate
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    name: Vec<String>,
    /// Let every host join that reaches the control port
    #[arg(long)]
    no_token: bool,
    /// Control connections are not encrypted
    #[arg(long)]
    no_tls: bool,
    /// Ask workers for certificates, too, and make one for all of them
    #[arg(long, conflicts_with = "no_tls")]
    client_certificates: bool,
    /// Directory in a BPF file system where the data path outlives the daemon; `off` for none
    /// [default: that of the service, in its directory of settings]
    #[arg(long, value_name = "DIR|off")]
    pin: Option<String>,
    /// User that the daemon runs as, and that the files belong to [default: xdp-agg, where root
    /// writes and there is such a user]
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// Ask nothing
    #[arg(short, long, visible_alias = "non-interactive")]
    yes: bool,
}

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    addr: Ipv4Addr,
    len: u32,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no IPv4 network; for example 10.1.0.0/24 is expected");
        let (addr, len) = text.split_once('/').ok_or_else(wrong)?;
        let (Ok(addr), Ok(len @ 1..=32)) = (addr.parse(), len.parse()) else {
            return Err(wrong());
        };
        Ok(Self { addr, len })
    }
}

impl Network {
    fn has(&self, addr: Ipv4Addr) -> bool {
        let outside = 32 - self.len;
        self.addr.to_bits() >> outside == addr.to_bits() >> outside
    }
}

fn instance(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 32 || !name.chars().all(fits) || name == "config" {
        let expected = "1 to 32 lower-case letters, digits and dashes are expected";
        return Err(format!("{expected}, and another name than `config`"));
    }
    Ok(name.to_owned())
}

/// Runs the sub-command.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let asks = !args.yes;
    if asks && !io::stdin().is_terminal() {
        let why = "standard input is no terminal, so nothing can be asked: give --yes, and \
                   --interface, --network, --no-token, --no-tls or --client-certificates where \
                   the proposals do not fit";
        return Err(WrongConfig(why.into()).into());
    }
    let mut files = Files::new(&args.dir, args.user.as_deref().or(Some(USER)), args.force)?;
    if args.user.is_some() && !files.has_owner() {
        let user = args.user.unwrap_or_default();
        return Err(WrongConfig(format!("--user {user}: no such user in /etc/passwd")).into());
    }
    let stem = args.instance.as_deref();
    let config = format!("{}.toml", stem.unwrap_or("config"));
    let named = |what: &str| stem.map_or_else(|| what.to_owned(), |stem| format!("{stem}-{what}"));
    let mut answers = answer(&args, asks)?;
    // What a daemon of another name has is not overwritten, and not shared either.
    let (token, cert, key) = (named("token"), named("server.pem"), named("server.key"));
    if answers.token.is_some() {
        let path = files.path(&token);
        files.secret(&token, Mode::Secret, true, || Ok(new_token()? + "\n"))?;
        answers.token = Some(path);
    }
    if answers.tls.is_some() {
        let known = files.kept("ca.key");
        let authority = Authority::load_or_make(known.as_deref())?;
        // Daemons of one host have one authority.
        if known.is_none() || files.kept("ca.pem").is_none() {
            files.secret("ca.key", Mode::Root, false, || Ok(authority.key_pem()))?;
            files.public("ca.pem", &authority.pem()?)?;
        }
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".into(), "::1".into()];
        names.extend(answers.control.iter().map(|control| control.ip().to_string()));
        names.extend(candidates::host_name());
        names.extend(args.name.iter().cloned());
        let identity = authority.issue(&names, "xdp-agg daemon")?;
        files.public(&cert, &identity.certificate)?;
        files.secret(&key, Mode::Secret, false, || Ok(identity.key.clone()))?;
        let clients = args.client_certificates || answers.client_certificates;
        if clients && files.kept("worker.pem").is_none() {
            let identity = authority.issue(&["worker".to_owned()], "xdp-agg worker")?;
            files.public("worker.pem", &identity.certificate)?;
            files.secret("worker.key", Mode::Root, false, || Ok(identity.key.clone()))?;
        }
        answers.client_certificates = clients;
        answers.tls = Some((files.path(&cert), files.path(&key), files.path("ca.pem")));
    }
    files.public(&config, &answers.text(stem))?;
    let written = files.write()?;
    // What was written is what a daemon reads.
    let path = files.path(&config);
    Partial::from_file(&path)
        .with_context(|| format!("reading {} again, as it was written", path.display()))?;
    report(&args, &answers, &written, &path)?;
    Ok(ExitCode::SUCCESS)
}

/// What the settings are to say.
fn answer(args: &Args, asks: bool) -> Result<Answers> {
    let found = candidates::all()?;
    let chosen = choose(args, asks, &found)?;
    let addr = address(args, asks, &chosen, &found)?;
    let ports = ports(args)?;
    let ask = |question: &str, proposal: bool| -> Result<bool> {
        if !asks {
            return Ok(proposal);
        }
        let asked = Confirm::new().with_prompt(question).default(proposal).interact();
        asked.context("asking")
    };
    let token = !args.no_token
        && ask(
            "Shall workers and tools have to know a token? (without: every host may join)",
            true,
        )?;
    let tls =
        !args.no_tls && ask("Encrypt control connections, with certificates made here?", true)?;
    let client_certificates =
        tls && (args.client_certificates || ask("Ask workers for certificates, too?", false)?);
    let directory = match &args.instance {
        Some(name) => format!("/run/xdp-agg-{name}"),
        None => "/run/xdp-agg".into(),
    };
    let is_service = args.dir == Path::new(DIRECTORY);
    let pin = match args.pin.as_deref() {
        Some("off") => None,
        Some(dir) => Some(PathBuf::from(dir)),
        None => is_service.then(|| Path::new(&directory).join("bpf")),
    };
    Ok(Answers {
        interfaces: chosen.into_iter().map(|one| (one.name, one.remarks)).collect(),
        control: addr.map(|addr| SocketAddr::new(IpAddr::V4(addr), ports.0)),
        control_port: ports.0,
        data_port: ports.1,
        token: token.then(PathBuf::new),
        tls: tls.then(Default::default),
        client_certificates,
        state_dir: pin.is_some().then(|| PathBuf::from(directory)),
        pin,
    })
}

/// The interfaces that workers are behind.
fn choose(args: &Args, asks: bool, found: &[Candidate]) -> Result<Vec<Candidate>> {
    let wrong = |why: String| anyhow::Error::from(WrongConfig(why));
    if !args.interface.is_empty() {
        let named = |name: &String| {
            let one = found.iter().find(|one| one.name == *name).cloned();
            one.ok_or_else(|| {
                let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
                wrong(format!(
                    "--interface {name}: no interface of this name that is no loopback here; \
                     there are: {}",
                    names.join(", ")
                ))
            })
        };
        return args.interface.iter().map(named).collect();
    }
    let fits = |one: &&Candidate| {
        args.network.is_none_or(|network| one.addrs.iter().any(|addr| network.has(*addr)))
    };
    let fitting: Vec<_> = found.iter().filter(fits).collect();
    let Some(best) = fitting.first() else {
        let network = args.network.map_or_else(String::new, |Network { addr, len }| {
            format!(" with an address in {addr}/{len}")
        });
        return Err(wrong(format!(
            "no interface{network} was found here; name one by --interface"
        )));
    };
    if !asks {
        return Ok(vec![(*best).clone()]);
    }
    let lines: Vec<_> = fitting.iter().map(|one| one.line()).collect();
    let asked = Select::new()
        .with_prompt("Which interface are the workers behind? (the best one comes first)")
        .items(&lines)
        .default(0)
        .interact()
        .context("asking")?;
    Ok(vec![fitting[asked].clone()])
}

/// The address that workers connect to. None: any.
fn address(
    args: &Args,
    asks: bool,
    chosen: &[Candidate],
    found: &[Candidate],
) -> Result<Option<Ipv4Addr>> {
    let of = |some: &[Candidate]| some.iter().flat_map(|one| one.addrs.clone()).collect::<Vec<_>>();
    if let Some(network) = args.network {
        // Where the interfaces are ports of a bridge, it has the address.
        return match of(found).into_iter().find(|addr| network.has(*addr)) {
            Some(addr) => Ok(Some(addr)),
            None => {
                let Network { addr, len } = network;
                let why = format!("--network {addr}/{len}: this host has no address in it");
                Err(WrongConfig(why).into())
            }
        };
    }
    let proposal = of(chosen).into_iter().next();
    if !asks {
        return Ok(proposal);
    }
    let asked: String = Input::new()
        .with_prompt("Which address of this host do workers connect to? (0.0.0.0: any)")
        .default(proposal.unwrap_or(Ipv4Addr::UNSPECIFIED).to_string())
        .validate_with(|text: &String| {
            text.parse::<Ipv4Addr>().map(drop).map_err(|_| "an IPv4 address is expected")
        })
        .interact_text()
        .context("asking")?;
    Ok(asked.parse().ok().filter(|addr: &Ipv4Addr| !addr.is_unspecified()))
}

/// Control and data port: the first pair that no other daemon of this directory has.
fn ports(args: &Args) -> Result<(u16, u16)> {
    let own = format!("{}.toml", args.instance.as_deref().unwrap_or("config"));
    let mut taken = Vec::new();
    for entry in std::fs::read_dir(&args.dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_other = path.extension().is_some_and(|end| end == "toml")
            && path.file_name().is_none_or(|name| *name != *own);
        if is_other && let Ok(settings) = Partial::from_file(&path) {
            let control = settings.control.map_or(CONTROL_PORT, |control| control.port());
            taken.push((control, settings.data_port.unwrap_or(DATA_PORT)));
        }
    }
    // The ports between the defaults of two daemons are left to what a daemon serves besides.
    let pairs = (0..100).map(|n| (CONTROL_PORT + 10 * n, DATA_PORT + n));
    let is_free = |(control, data): &(u16, u16)| {
        taken.iter().all(|(one, other)| one != control && other != data)
    };
    pairs.into_iter().find(is_free).context("no ports are left for one more daemon")
}

fn new_token() -> Result<String> {
    let mut bytes = [0; TOKEN_LEN];
    OsRng.try_fill_bytes(&mut bytes).context("asking the kernel for random bytes")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Says what was written and what comes next.
fn report(args: &Args, answers: &Answers, written: &[PathBuf], config: &Path) -> io::Result<()> {
    let mut out = io::stdout();
    for path in written {
        writeln!(out, "wrote {}", path.display())?;
    }
    for (name, remarks) in &answers.interfaces {
        for remark in remarks {
            writeln!(out, "note on {name}: {remark}")?;
        }
    }
    let unit = args.instance.as_ref().map_or("xdp-agg".into(), |name| format!("xdp-agg@{name}"));
    writeln!(out, "start it: systemctl enable --now {unit}")?;
    writeln!(out, "     or: xdp-agg serve --config {}", config.display())?;
    let addr = answers
        .control
        .map_or_else(|| format!("ADDRESS:{}", answers.control_port), |control| control.to_string());
    let mut settings = vec![format!("XDP_AGG_ADDR={addr}")];
    if let Some(token) = &answers.token {
        settings.push(format!("XDP_AGG_TOKEN_FILE=(a copy of {}, mode 0600)", token.display()));
    }
    if let Some((.., ca)) = &answers.tls {
        settings.push(format!("XDP_AGG_TLS_CA=(a copy of {})", ca.display()));
    }
    if answers.client_certificates {
        let dir = args.dir.display();
        settings.push(format!("XDP_AGG_TLS_CERT=(a copy of {dir}/worker.pem)"));
        settings.push(format!("XDP_AGG_TLS_KEY=(a copy of {dir}/worker.key, mode 0600)"));
    }
    writeln!(out, "workers need: {}", settings.join("\n              "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_addresses() {
        let network: Network = "10.1.2.0/23".parse().expect("a network");
        for (addr, inside) in [([10, 1, 3, 255], true), ([10, 1, 4, 0], false)] {
            assert_eq!(network.has(addr.into()), inside);
        }
        for wrong in ["10.1.2.0", "10.1.2.0/33", "10.1.2/24", "/8", "10.0.0.0/0"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn tokens_differ() {
        let [one, other] = [(); 2].map(|()| new_token().expect("random bytes"));
        assert!(one.len() == 2 * TOKEN_LEN && one != other);
    }
}
