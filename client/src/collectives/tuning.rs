//! Which way a collective goes, by its size and the number of ranks: a table.

mod read;

use std::fmt;
use std::fs::File;
use std::str::FromStr;

use serde::Serialize;
use xdp_agg_mesh::{Algorithm, model};
use xdp_agg_topology::file::{MAX_BYTES, bounded};

use crate::error::Error;

/// A collective that has a choice of ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Kind {
    /// The root's data to all.
    Broadcast,
    /// All data to one, reduced.
    Reduce,
    /// Each rank a part of the reduced data.
    ReduceScatter,
    /// Each rank's part to all.
    AllGather,
    /// All data to all, reduced.
    AllReduce,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Broadcast, Self::Reduce, Self::ReduceScatter, Self::AllGather, Self::AllReduce];

    /// The name in tables and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A way that a collective can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(into = "String")]
pub enum Way {
    /// Through the aggregator: one round trip.
    Aggregator,
    /// From worker to worker over TCP, by one of the paper's algorithms; a reduce goes the
    /// broadcast's way backwards.
    Mesh(Algorithm),
    /// Between hosts as [`Self::Mesh`], from the root to one worker of each other host. Inside a
    /// host over the memory that its processes share. Where each worker is a host of its own, it
    /// is [`Self::Mesh`].
    Hierarchical(Algorithm),
    /// Round a ring of the workers over TCP: reduce-scatter, all-gather, or both.
    Ring,
}

/// What the names of hierarchical ways begin with.
const HIERARCHICAL: &str = "hierarchical-";

impl Way {
    /// The name in tables and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aggregator => "aggregator",
            Self::Mesh(algorithm) => algorithm.name(),
            Self::Hierarchical(algorithm) => match algorithm {
                Algorithm::Direct => "hierarchical-direct",
                Algorithm::Chain => "hierarchical-chain",
                Algorithm::Binomial => "hierarchical-binomial",
                Algorithm::Knomial { .. } => "hierarchical-knomial",
                Algorithm::ScatterAllGather => "hierarchical-scatter-all-gather",
                Algorithm::PipelinedChain { .. } => "hierarchical-pipelined-chain",
                Algorithm::TopologyChain { .. } => "hierarchical-topology-chain",
            },
            Self::Ring => "ring",
        }
    }

    /// The algorithm, where it is one of the paper's.
    #[must_use]
    pub const fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Mesh(algorithm) | Self::Hierarchical(algorithm) => Some(algorithm),
            Self::Aggregator | Self::Ring => None,
        }
    }

    /// What is wrong with it for a collective, if anything.
    pub(crate) fn problem(self, kind: Kind) -> Option<String> {
        let rings = matches!(kind, Kind::ReduceScatter | Kind::AllGather | Kind::AllReduce);
        let choose = match (self, kind) {
            (Self::Mesh(_) | Self::Hierarchical(_), _) if rings => "aggregator or ring",
            (Self::Hierarchical(_), Kind::Reduce) => {
                "aggregator, or a tree without hierarchical- before it"
            }
            (Self::Ring, _) if !rings => "aggregator or one of the broadcast algorithms",
            (Self::Mesh(Algorithm::ScatterAllGather), Kind::Reduce) => "aggregator or a tree",
            _ => return None,
        };
        Some(format!("{kind} does not go by {}: choose {choose}", self.name()))
    }

    /// The same with these parameters, where it has any.
    #[must_use]
    fn with(self, chunk: Option<u32>, k: Option<u32>) -> Self {
        let Some(mut algorithm) = self.algorithm() else { return self };
        if let Some(chunk) = chunk {
            algorithm = algorithm.with_chunk(chunk);
        }
        if let Some(k) = k {
            algorithm = algorithm.with_k(k);
        }
        if matches!(self, Self::Mesh(_)) {
            Self::Mesh(algorithm)
        } else {
            Self::Hierarchical(algorithm)
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "aggregator" => Ok(Self::Aggregator),
            "ring" => Ok(Self::Ring),
            other => {
                let found = match other.strip_prefix(HIERARCHICAL) {
                    Some(algorithm) => algorithm.parse().map(Self::Hierarchical),
                    None => other.parse().map(Self::Mesh),
                };
                found.map_err(|_| {
                    format!(
                        "{name:?} is no way for a collective: choose aggregator, ring, direct, \
                         chain, binomial, knomial, scatter-all-gather, pipelined-chain or \
                         topology-chain, or one of the last seven with {HIERARCHICAL} before it"
                    )
                })
            }
        }
    }
}

impl From<Way> for String {
    fn from(way: Way) -> Self {
        way.name().into()
    }
}

/// How one call travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// Before a call among the workers, all agree on it over the aggregator: calls that differ are
    /// an error at every rank at once. It costs a round trip of a packet. Without it, a rank that
    /// is done early hears of a difference in its next call.
    pub checked: bool,
}

impl Choice {
    /// This way, checked.
    #[must_use]
    pub const fn new(way: Way) -> Self {
        Self { way, checked: true }
    }

    /// The same without the check.
    #[must_use]
    pub const fn unchecked(self) -> Self {
        Self { checked: false, ..self }
    }
}

/// One line of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Rule {
    /// The most ranks that it is for; None: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u16>,
    /// The most bytes that it is for; None: any number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// The way.
    pub algorithm: Way,
    /// Bytes of a chunk, where it cuts any. None: what model (5) makes best, where the table has a
    /// [`Network`], and 128 KiB where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
    /// The `k` of a k-nomial tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k: Option<u32>,
    /// See [`Choice::checked`].
    #[serde(skip_serializing_if = "is_yes")]
    pub checked: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references over")]
const fn is_yes(checked: &bool) -> bool {
    *checked
}

impl Rule {
    /// This way for at most `ranks` ranks and `up_to` bytes.
    #[must_use]
    pub fn new(ranks: Option<u16>, up_to: Option<u64>, algorithm: Way) -> Self {
        let by = algorithm.algorithm();
        let (chunk, k) = (by.and_then(Algorithm::chunk), by.and_then(Algorithm::k));
        Self { ranks, up_to, algorithm, chunk, k, checked: true }
    }

    /// The same, with chunks of the size that model (5) makes best for each call.
    #[must_use]
    pub fn by_model(self) -> Self {
        let algorithm = self.algorithm.name().parse().unwrap_or(self.algorithm);
        Self { algorithm, chunk: None, ..self }
    }

    /// Whether the two choose the same for a call that both are for.
    #[must_use]
    pub fn chooses_like(&self, other: &Self) -> bool {
        (self.choice(), self.chunk, self.k) == (other.choice(), other.chunk, other.k)
    }

    /// What it chooses where no model says more.
    #[must_use]
    pub fn choice(&self) -> Choice {
        Choice { way: self.algorithm.with(self.chunk, self.k), checked: self.checked }
    }
}

/// What pipelined chains cost: `t_s` and `B` of model (5), as `xdp-agg tune` has fitted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Network {
    /// `t_s` in nanoseconds.
    pub startup_ns: u64,
    /// `B` in bytes a second.
    pub bytes_per_s: u64,
}

impl Network {
    /// A fitted network, to the nanosecond and the byte.
    #[must_use]
    pub const fn of(network: model::Network) -> Self {
        let model::Network { startup_s, bytes_per_s } = network;
        Self { startup_ns: (startup_s * 1e9) as u64, bytes_per_s: bytes_per_s as u64 }
    }

    /// The chunk that model (5) makes best, where it tells any.
    fn chunk(self, ranks: u16, bytes: u64) -> Option<u32> {
        let startup_s = self.startup_ns as f64 / 1e9;
        let network = model::Network { startup_s, bytes_per_s: self.bytes_per_s as f64 };
        model::best_chunk(ranks.into(), bytes as f64, network)
    }
}

/// Which way a collective goes, by its size and the number of ranks.
///
/// Of a collective's rules, those with the smallest sufficient `ranks` count; of these, the one
/// with the smallest sufficient `up-to` applies. If no value is sufficient, the largest is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tuning {
    /// Rules for broadcast.
    pub broadcast: Vec<Rule>,
    /// Rules for reduce.
    pub reduce: Vec<Rule>,
    /// Rules for reduce-scatter.
    pub reduce_scatter: Vec<Rule>,
    /// Rules for all-gather.
    pub all_gather: Vec<Rule>,
    /// Rules for all-reduce. None: the job's strategy decides, which is to go through the
    /// aggregators, unless it is `auto` and has reasons for other ways.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub all_reduce: Vec<Rule>,
    /// True, as usual: without rules for all-reduce, each size learns which way is fastest: through
    /// the aggregators, or one of those among the workers that give the same bits. Not so where a
    /// strategy was named, or where `auto` has reasons of its own.
    #[serde(skip)]
    pub learns: bool,
    /// What chunks are chosen by where a rule names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

impl Default for Tuning {
    /// Broadcasts follow the paper's Table 2: k-nomial trees up to 8 KiB, binomial trees up to 256
    /// KiB, scatter and all-gather up to 4 MiB, a pipelined chain above. The others go through the
    /// aggregator, whose one round trip costs the vector once each way. Parts of vectors above 1
    /// MiB go round a ring, which carries no more than it must.
    fn default() -> Self {
        let mesh = |up_to, algorithm| Rule::new(None, up_to, Way::Mesh(algorithm));
        let parts = || {
            vec![Rule::new(None, Some(1 << 20), Way::Aggregator), Rule::new(None, None, Way::Ring)]
        };
        Self {
            broadcast: vec![
                mesh(Some(8 << 10), Algorithm::Knomial { k: 4 }),
                mesh(Some(256 << 10), Algorithm::Binomial),
                mesh(Some(4 << 20), Algorithm::ScatterAllGather),
                mesh(None, Algorithm::PipelinedChain { chunk: 256 << 10 }),
            ],
            reduce: vec![Rule::new(None, None, Way::Aggregator)],
            reduce_scatter: parts(),
            all_gather: parts(),
            all_reduce: Vec::new(),
            learns: true,
            network: None,
        }
    }
}

impl Tuning {
    /// Everything through the aggregator: where workers cannot reach each other.
    #[must_use]
    pub fn aggregator() -> Self {
        let all = || vec![Rule::new(None, None, Way::Aggregator)];
        Self {
            broadcast: all(),
            reduce: all(),
            reduce_scatter: all(),
            all_gather: all(),
            all_reduce: all(),
            learns: true,
            network: None,
        }
    }

    /// All-reduces learn their ways with it.
    pub(crate) const fn may_learn(&self) -> bool {
        self.learns && self.all_reduce.is_empty()
    }

    /// Reads a table; collectives that it does not have keep their usual rules.
    ///
    /// # Errors
    /// What is wrong and what is expected, with the line, which is shown below.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_BYTES {
            return Err(format!("more than {MAX_BYTES} bytes, where a table has some hundreds"));
        }
        read::table(text)
    }

    /// Reads the file of this name; `aggregator` is [`Self::aggregator`], `auto` the usual table,
    /// with which all-reduces learn, as without any name. `usual` is the same without learning.
    pub(crate) fn named(name: &'static str, value: &str) -> Result<Self, Error> {
        if value == "aggregator" {
            return Ok(Self::aggregator());
        }
        if let "auto" | "usual" = value {
            return Ok(Self { learns: value == "auto", ..Self::default() });
        }
        let wrong =
            |problem: String| Error::Config { name, problem: format!("{value}: {problem}") };
        let text = File::open(value).and_then(bounded).map_err(|error| {
            wrong(format!("{error}; expected a file of `xdp-agg tune`, auto, usual or aggregator"))
        })?;
        Self::parse(&text).map_err(wrong)
    }

    /// The same as a text that [`Self::parse`] reads.
    ///
    /// # Errors
    /// None that are known of.
    pub fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| error.to_string())
    }

    /// The rules of a collective.
    #[must_use]
    pub fn rules(&self, kind: Kind) -> &[Rule] {
        match kind {
            Kind::Broadcast => &self.broadcast,
            Kind::Reduce => &self.reduce,
            Kind::ReduceScatter => &self.reduce_scatter,
            Kind::AllGather => &self.all_gather,
            Kind::AllReduce => &self.all_reduce,
        }
    }

    /// The rules of a collective, to be changed.
    #[must_use]
    pub fn rules_mut(&mut self, kind: Kind) -> &mut Vec<Rule> {
        match kind {
            Kind::Broadcast => &mut self.broadcast,
            Kind::Reduce => &mut self.reduce,
            Kind::ReduceScatter => &mut self.reduce_scatter,
            Kind::AllGather => &mut self.all_gather,
            Kind::AllReduce => &mut self.all_reduce,
        }
    }

    /// How a call of `bytes` bytes among `ranks` ranks travels.
    #[must_use]
    pub fn choose(&self, kind: Kind, ranks: u16, bytes: u64) -> Choice {
        let rules = self.rules(kind);
        let limit = |rule: &Rule| rule.ranks.unwrap_or(u16::MAX);
        let enough = rules.iter().map(limit).filter(|limit| *limit >= ranks).min();
        let group = enough.or_else(|| rules.iter().map(limit).max());
        let room = |rule: &&Rule| rule.up_to.unwrap_or(u64::MAX);
        let of_group = || rules.iter().filter(|rule| Some(limit(rule)) == group);
        let chosen = of_group().filter(|rule| room(rule) >= bytes).min_by_key(room);
        let rule = chosen.or_else(|| of_group().max_by_key(room));
        let Some(rule) = rule else { return Choice::new(Way::Aggregator) };
        let by_model = self.network.filter(|_| rule.chunk.is_none());
        let chunk = by_model.and_then(|network| network.chunk(ranks, bytes));
        let choice = rule.choice();
        Choice { way: choice.way.with(chunk, None), ..choice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's Table 2.
    #[test]
    fn the_default_is_the_papers_table() {
        let table = Tuning::default();
        let name = |bytes| table.choose(Kind::Broadcast, 8, bytes).way.name();
        let expected = [
            (0, "knomial"),
            (8 << 10, "knomial"),
            ((8 << 10) + 1, "binomial"),
            (256 << 10, "binomial"),
            ((256 << 10) + 1, "scatter-all-gather"),
            (4 << 20, "scatter-all-gather"),
            ((4 << 20) + 1, "pipelined-chain"),
            (1 << 40, "pipelined-chain"),
        ];
        for (bytes, expected) in expected {
            assert_eq!(name(bytes), expected, "{bytes}");
        }
        assert_eq!(table.choose(Kind::Reduce, 8, 1 << 30).way, Way::Aggregator);
        assert_eq!(table.choose(Kind::AllGather, 8, 1 << 30).way, Way::Ring);
    }

    #[test]
    fn a_table_survives_its_text() {
        for table in [Tuning::default(), Tuning::aggregator()] {
            let text = table.to_toml().expect("it has one");
            assert_eq!(Tuning::parse(&text), Ok(table), "{text}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let ways = Algorithm::ALL.map(|by| [Way::Mesh(by), Way::Hierarchical(by)]);
        for way in ways.into_iter().flatten().chain([Way::Aggregator, Way::Ring]) {
            assert_eq!(way.to_string().parse(), Ok(way));
            assert_eq!(way.with(Some(4096), Some(3)).name(), way.name());
        }
        for wrong in ["tree", "hierarchical-", "hierarchical-ring", "hierarchical-aggregator"] {
            let error = wrong.parse::<Way>().expect_err("no way");
            assert!(error.contains(wrong) && error.contains("hierarchical- before it"), "{error}");
        }
        let rule = "[[broadcast]]\nalgorithm = \"hierarchical-pipelined-chain\"\nchunk = 4096\n";
        let table = Tuning::parse(rule).expect("it is one");
        let chain = Way::Hierarchical(Algorithm::PipelinedChain { chunk: 4096 });
        assert_eq!(table.choose(Kind::Broadcast, 8, 1 << 20), Choice::new(chain));
        assert_eq!(Tuning::parse(&table.to_toml().expect("a text")), Ok(table));
        for kind in ["reduce", "reduce-scatter", "all-gather", "all-reduce"] {
            let rule = format!("[[{kind}]]\nalgorithm = \"hierarchical-binomial\"\n");
            let error = Tuning::parse(&rule).expect_err("no broadcast");
            assert!(error.contains("does not go by hierarchical-binomial"), "{error}");
        }
    }

    #[test]
    fn the_smallest_rule_that_is_enough_counts() {
        let table = Tuning::parse(
            "[[broadcast]]\nranks = 8\nup-to = 4096\nalgorithm = \"aggregator\"\n\
             [[broadcast]]\nranks = 8\nalgorithm = \"pipelined-chain\"\nchunk = 4000\n\
             [[broadcast]]\nranks = 4\nalgorithm = \"knomial\"\nk = 3\nchecked = false\n",
        )
        .expect("it is one");
        let choose = |ranks, bytes| table.choose(Kind::Broadcast, ranks, bytes);
        assert_eq!(choose(8, 4096), Choice::new(Way::Aggregator));
        let chain = Way::Mesh(Algorithm::PipelinedChain { chunk: 4000 });
        assert_eq!(choose(5, 4097), Choice::new(chain));
        assert_eq!(choose(60, 4097), Choice::new(chain));
        let tree = Way::Mesh(Algorithm::Knomial { k: 3 });
        assert_eq!(choose(2, 9), Choice::new(tree).unchecked());
        // What is not in it stays as usual.
        assert_eq!(table.reduce, Tuning::default().reduce);
    }

    /// Chains without a chunk take the one that the model makes best for each size.
    #[test]
    fn the_model_chooses_chunks() {
        let rules = "[[broadcast]]\nalgorithm = \"pipelined-chain\"\n\
                     [[reduce]]\nalgorithm = \"pipelined-chain\"\nchunk = 4096\n";
        let network = "[network]\nstartup-ns = 10000\nbytes-per-s = 1000000000\n";
        let table = Tuning::parse(&format!("{rules}{network}")).expect("it is one");
        let chunk = |table: &Tuning, kind, ranks, bytes| match table.choose(kind, ranks, bytes).way
        {
            Way::Mesh(algorithm) => algorithm.chunk(),
            _ => None,
        };
        assert_eq!(chunk(&table, Kind::Broadcast, 8, 1_000_000), Some(40 << 10));
        assert_eq!(chunk(&table, Kind::Broadcast, 8, 4_000_000), Some(80 << 10));
        assert_eq!(chunk(&table, Kind::Broadcast, 2, 1_000_000), Some(128 << 10));
        assert_eq!(chunk(&table, Kind::Reduce, 8, 1_000_000), Some(4096));
        let without = Tuning::parse(rules).expect("it is one");
        assert_eq!(chunk(&without, Kind::Broadcast, 8, 1_000_000), Some(128 << 10));
        assert_eq!(Tuning::parse(&table.to_toml().expect("a text")), Ok(table));
        let wrong = Tuning::parse("[network]\nstartup-ns = 10\nbytes-per-s = 0\n");
        assert!(wrong.expect_err("no network").starts_with("line 3: bytes-per-s = 0: expected"));
    }

    #[test]
    fn a_table_that_is_not_there_is_named() {
        let error = Tuning::named("XDP_AGG_TUNING", "/nonexistent/table").expect_err("no file");
        let said = error.to_string();
        assert!(said.contains("/nonexistent/table") && said.contains("or aggregator"), "{said}");
        let error = Tuning::named("XDP_AGG_TUNING", "/dev/zero").expect_err("it has no end");
        assert!(error.to_string().contains("/dev/zero: more than 1048576 bytes"), "{error}");
    }
}
