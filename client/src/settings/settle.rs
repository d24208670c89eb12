//! What is settled when a communicator connects: by which strategy it sums, and whether the network
//! that it was told of is there.

use xdp_agg_common::control::WorkerLoss;
use xdp_agg_topology::choose::Crossing;
use xdp_agg_topology::file::interfaces;

use super::chosen::{Chooser, Chosen};
use super::{Builder, Place};
use crate::collectives::{MOST_WORKERS, Rule, Way};
use crate::error::{Error, JobError};

impl Builder {
    /// Settles how all-reduces go, as far as the tuning table leaves it open, and says so in the
    /// log. Once aggregators are known.
    pub(crate) fn settle(&mut self, place: &Place) -> Chosen {
        let mut chosen = self.chosen.clone();
        if chosen.strategy.is_empty() {
            let (strategy, reason) = if self.has_named_aggregators {
                ("aggregators", "they were named")
            } else {
                ("colocated", "no aggregator was named, so every host's daemon sums a share")
            };
            (chosen.strategy, chosen.reason) = (strategy.into(), reason.into());
        }
        let sizes = match &self.chooser {
            _ if self.stays_in_host(place) => {
                "all sizes in the memory of the one host that has all processes".into()
            }
            Chooser::Caller => {
                self.tuning.all_reduce.clear();
                self.tuning.learns = false;
                String::new()
            }
            _ if self.policy.worker_loss != WorkerLoss::Fail => String::new(),
            _ if !self.tuning.all_reduce.is_empty() => {
                "all-reduces by size as the tuning table says".into()
            }
            Chooser::Auto(_) if place.local_size > 1 => {
                "all sizes: hosts of several processes have no ring to compare with".into()
            }
            Chooser::Auto(Ok(crossing)) => {
                let (rules, text) = rules(*crossing);
                self.tuning.all_reduce = rules;
                text
            }
            Chooser::Auto(Err(reason)) => format!("all sizes: {reason}"),
            Chooser::Nobody | Chooser::File => String::new(),
        };
        for said in [sizes, self.learning_in_words(place)] {
            if !said.is_empty() {
                chosen.reason = format!("{}; {said}", chosen.reason);
            }
        }
        chosen.all_reduce.clone_from(&self.tuning.all_reduce);
        tracing::info!(strategy = chosen.strategy, "chosen: {}", chosen.reason);
        chosen
    }

    /// Whether all-reduces learn their ways, or why not, where nothing else decides it.
    fn learning_in_words(&self, place: &Place) -> String {
        let why_not = "nothing is learned";
        if !self.tuning.may_learn() || place.world_size == 1 || self.stays_in_host(place) {
            String::new()
        } else if self.policy.worker_loss != WorkerLoss::Fail {
            format!("{why_not}: jobs that go on without lost workers use the aggregators alone")
        } else if place.world_size > MOST_WORKERS {
            format!("{why_not}: more than {MOST_WORKERS} workers use the aggregators alone")
        } else {
            "all-reduces learn their ways by size (XDP_AGG_TUNING=usual keeps them from it)".into()
        }
    }

    /// Names the owner of a daemon that cannot be reached.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match (error, &self.source) {
            (Error::Job(JobError::Unreachable { address, reason, .. }), Some(source)) => {
                Error::Job(JobError::Unreachable { address, reason, of: source.whose(address) })
            }
            (other, _) => other,
        }
    }

    /// The interface that the topology gives this host exists.
    pub(crate) fn check_own_host(&self, place: &Place) -> Result<(), Error> {
        let source = self.source.as_ref();
        // With another number of hosts it is unknown which one this is; that is refused later.
        let Some(source) = source.filter(|source| source.hosts() == usize::from(place.hosts))
        else {
            return Ok(());
        };
        // The thread's network namespace; /sys has that of the process that mounted it.
        let Ok(text) = std::fs::read_to_string("/proc/thread-self/net/dev") else {
            tracing::debug!("/proc has no list of interfaces: the topology's is not checked");
            return Ok(());
        };
        source
            .interface(place.host, &interfaces(&text))
            .map_err(|problem| Error::Config { name: "XDP_AGG_TOPOLOGY", problem })
    }
}

/// All-reduce's rules where a ring is faster for some sizes.
fn rules(crossing: Crossing) -> (Vec<Rule>, String) {
    let whole = |bytes: f64| bytes.clamp(0.0, 1e18) as u64;
    let all = |way| Rule::new(None, None, way);
    let up_to = |bytes, way| Rule::new(None, Some(bytes), way);
    let rules = match crossing {
        Crossing::Never => Vec::new(),
        Crossing::Always => vec![all(Way::Ring)],
        Crossing::UpTo(bytes) => vec![up_to(whole(bytes), Way::Ring), all(Way::Aggregator)],
        Crossing::From(bytes) => vec![up_to(whole(bytes), Way::Aggregator), all(Way::Ring)],
    };
    (rules, crossing.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::{Kind, Tuning};

    const ALONE: Place =
        Place { rank: 0, world_size: 4, local_rank: 0, local_size: 1, host: 0, hosts: 4 };

    fn auto(crossing: Crossing) -> Builder {
        Builder {
            chosen: Chosen { strategy: "rat".into(), reason: "why".into(), all_reduce: vec![] },
            chooser: Chooser::Auto(Ok(crossing)),
            ..Builder::default()
        }
    }

    fn way(builder: &Builder, bytes: u64) -> Way {
        builder.tuning.choose(Kind::AllReduce, 4, bytes).way
    }

    #[test]
    fn auto_takes_the_ring_for_the_sizes_where_it_is_faster() {
        let mut builder = auto(Crossing::From(1e6));
        let chosen = builder.settle(&ALONE);
        assert_eq!(chosen.strategy, "rat");
        assert_eq!(chosen.reason, "why; a ring of the workers above 1000000 bytes");
        assert_eq!(chosen.all_reduce.len(), 2);
        assert_eq!(
            (way(&builder, 1_000_000), way(&builder, 1_000_001)),
            (Way::Aggregator, Way::Ring)
        );
        let mut builder = auto(Crossing::UpTo(500.0));
        builder.settle(&ALONE);
        assert_eq!((way(&builder, 500), way(&builder, 501)), (Way::Ring, Way::Aggregator));
        let mut builder = auto(Crossing::Always);
        builder.settle(&Place { local_size: 2, world_size: 8, ..ALONE });
        assert_eq!(way(&builder, 1), Way::Aggregator, "in-host groups stay together");
    }

    /// The reason of the choice says that nothing leaves the host.
    #[test]
    fn a_job_on_one_host_says_so() {
        let place = Place { world_size: 4, local_size: 4, hosts: 1, ..ALONE };
        let mut builder = auto(Crossing::Always);
        assert_eq!(
            builder.settle(&place).reason,
            "why; all sizes in the memory of the one host that has all processes"
        );
        let mut builder = auto(Crossing::Always).host_collectives(false);
        assert!(!builder.settle(&place).reason.contains("memory"));
    }

    /// The reason says whether sizes learn, or why they do not.
    #[test]
    fn what_learns_says_so() {
        let said = |builder: Builder, place: &Place| {
            let mut builder = builder.learning(true);
            builder.settle(place).reason
        };
        assert!(said(Builder::default(), &ALONE).contains("learn their ways by size"));
        let groups = Place { world_size: 8, local_size: 2, ..ALONE };
        assert!(said(Builder::default(), &groups).contains("learn their ways by size"));
        let many = Place { world_size: MOST_WORKERS + 1, local_size: 3, ..ALONE };
        let shrink = Builder::default().on_worker_loss(WorkerLoss::Shrink);
        for (builder, place) in [(Builder::default(), &many), (shrink, &ALONE)] {
            assert!(said(builder, place).contains("nothing is learned"));
        }
        let mut fixed = Builder::default().learning(false);
        assert!(!fixed.settle(&ALONE).reason.contains("learn"));
        assert!(!said(auto(Crossing::Always), &ALONE).contains("learn"), "it has rules");
    }

    #[test]
    fn a_table_is_asked_before_auto_and_the_caller_before_both() {
        let table = "[[all-reduce]]\nup-to = 4096\nalgorithm = \"ring\"\n\
                     [[all-reduce]]\nalgorithm = \"aggregator\"\n";
        let tuning = Tuning::parse(table).expect("it is one");
        let mut builder = auto(Crossing::From(1e6)).tuning(tuning);
        assert!(builder.settle(&ALONE).reason.contains("as the tuning table says"));
        assert_eq!((way(&builder, 4096), way(&builder, 1 << 30)), (Way::Ring, Way::Aggregator));
        builder.chooser = Chooser::Caller;
        assert_eq!(builder.settle(&ALONE).reason, "why");
        assert_eq!(way(&builder, 1), Way::Aggregator);
    }
}
