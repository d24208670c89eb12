//! Whose turn it is: a queue of events for each address, and what of the jobs' wishes the engine
//! does together.
//!
//! What an event asks of the engine may take long: it waits for running programs. So each address
//! has one such event a round, however many it has sent, and all of a round wait together. What one
//! address sends makes the others wait for the rest of a round, and no longer.

use std::collections::{BTreeMap, VecDeque};

use xdp_agg_protocol::daemon::{Answer, Effect, Formation, Prepare};

use super::limits::Source;
use crate::engine::{Change, Changed, EngineError};

/// Events of one address that are dealt with in a round, as long as none asks the engine: all of a
/// large job whose workers start on one host.
pub(super) const AT_A_TURN: usize = 64;

/// Events that wait. A connection has one at a time in it, and its end.
#[derive(Debug)]
pub(super) struct Turns<T> {
    all: BTreeMap<Option<Source>, VecDeque<T>>,
}

impl<T> Turns<T> {
    pub(super) const fn new() -> Self {
        Self { all: BTreeMap::new() }
    }

    /// Puts an event behind those of its address. None: of connections that are gone.
    pub(super) fn push(&mut self, source: Option<Source>, event: T) {
        self.all.entry(source).or_default().push_back(event);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The addresses that have a turn in this round.
    pub(super) fn sources(&self) -> Vec<Option<Source>> {
        self.all.keys().copied().collect()
    }

    /// The next event of an address.
    pub(super) fn next_of(&mut self, source: Option<Source>) -> Option<T> {
        let queue = self.all.get_mut(&source)?;
        let event = queue.pop_front();
        if queue.is_empty() {
            self.all.remove(&source);
        }
        event
    }
}

/// Whether an effect takes the engine some time.
pub(super) const fn is_work(effect: &Effect) -> bool {
    is_change(effect) || matches!(effect, Effect::Counters(_) | Effect::Heard { .. })
}

/// Whether an effect asks for something that a change of the data path could change.
pub(super) const fn is_question(effect: &Effect) -> bool {
    matches!(effect, Effect::Missing { .. } | Effect::Counters(_) | Effect::Heard { .. })
}

/// An effect, and the address whose event it comes from.
pub(super) type Wish = (Option<Source>, Effect);

/// Changes of the data path, which the engine makes together.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) changes: Vec<Change>,
    /// The address that asked for each, and what it answers to; a stop is not answered.
    from: Vec<(Option<Source>, Option<Formation>)>,
}

/// What is to become of one job.
#[derive(Default)]
struct Wanted {
    stop: bool,
    then: Option<(Option<Source>, Formation, Change)>,
}

impl Work {
    /// Takes the changes out of `effects`. Of several of one job the last one counts, after a stop
    /// if there was one: the jobs have gone on from the others, and ignore answers to them.
    pub(super) fn of(effects: &mut Vec<Wish>) -> Self {
        let mut jobs: BTreeMap<u16, Wanted> = BTreeMap::new();
        for (by, effect) in effects.extract_if(.., |(_, effect)| is_change(effect)) {
            let (formation, change) = match effect {
                Effect::Prepare(Prepare { formation, setup }) => {
                    (formation, Change::Prepare(Box::new(setup)))
                }
                Effect::Start(formation, wanted) => {
                    (formation, Change::Start { job_id: formation.job_id, wanted })
                }
                Effect::Stop { job_id } => {
                    jobs.insert(job_id, Wanted { stop: true, then: None });
                    continue;
                }
                _ => continue,
            };
            jobs.entry(formation.job_id).or_default().then = Some((by, formation, change));
        }
        let mut work = Self::default();
        // The slots of a job that is stopped may be another one's already.
        for (job_id, _) in jobs.iter().filter(|(_, wanted)| wanted.stop) {
            work.changes.push(Change::Stop { job_id: *job_id });
            work.from.push((None, None));
        }
        for (by, formation, change) in jobs.into_values().filter_map(|wanted| wanted.then) {
            work.changes.push(change);
            work.from.push((by, Some(formation)));
        }
        work
    }

    /// What the jobs are to be told, and by whose wish; and why jobs could not be stopped.
    pub(super) fn answers(
        self,
        done: Vec<Result<Changed, EngineError>>,
    ) -> (Vec<(Option<Source>, Answer)>, Vec<EngineError>) {
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        for (((by, formation), change), done) in self.from.into_iter().zip(self.changes).zip(done) {
            let Some(formation) = formation else {
                failed.extend(done.err());
                continue;
            };
            let answer = match done.map_err(|error| error.to_string()) {
                Ok(Changed::Prepared(local)) => Answer::Prepared(formation, Ok(local)),
                Ok(Changed::Started(started)) => Answer::Started(formation, Ok(started)),
                // It was no stop.
                Ok(Changed::Stopped) => continue,
                Err(why) if matches!(change, Change::Start { .. }) => {
                    Answer::Started(formation, Err(why))
                }
                Err(why) => Answer::Prepared(formation, Err(why)),
            };
            answers.push((by, answer));
        }
        (answers, failed)
    }
}

const fn is_change(effect: &Effect) -> bool {
    matches!(effect, Effect::Prepare(_) | Effect::Start(..) | Effect::Stop { .. })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use xdp_agg_common::maps::JobConf;
    use xdp_agg_protocol::engine::JobSetup;

    use super::*;

    fn source(last: u8) -> Option<Source> {
        Some(Source::new(Ipv4Addr::new(10, 0, 0, last).into()))
    }

    #[test]
    fn each_address_has_its_turn_whatever_the_others_have_sent() {
        let mut turns = Turns::new();
        for event in 0..1000 {
            turns.push(source(1), event);
        }
        turns.push(source(2), 2000);
        turns.push(None, 3000);
        let mut round = || {
            let sources = turns.sources();
            sources.into_iter().filter_map(|of| turns.next_of(of)).collect::<Vec<_>>()
        };
        assert_eq!(round(), [3000, 0, 2000]);
        assert_eq!(round(), [1]);
        assert!((2..1000).all(|event| turns.next_of(source(1)) == Some(event)));
        assert!(turns.is_empty() && turns.next_of(source(1)).is_none());
    }

    fn formation(job_id: u16, epoch: u16) -> Formation {
        Formation { job_id, epoch }
    }

    fn prepare(job_id: u16, epoch: u16) -> Wish {
        let conf = JobConf { epoch, ..JobConf::default() };
        let setup = JobSetup {
            job_id,
            conf,
            members: BTreeMap::new(),
            uplink: None,
            forwarders: 0,
            local: 0,
        };
        let formation = formation(job_id, epoch);
        (source(job_id as u8), Effect::Prepare(Prepare { formation, setup }))
    }

    fn stop(job_id: u16) -> Wish {
        (source(job_id as u8), Effect::Stop { job_id })
    }

    /// Jobs and epochs of what is left; a stop has no epoch.
    fn left(effects: &mut Vec<Wish>) -> Vec<(u16, Option<u16>)> {
        let told = |change: &Change| match change {
            Change::Stop { job_id } => (*job_id, None),
            Change::Prepare(setup) => (setup.job_id, Some(setup.conf.epoch)),
            Change::Start { job_id, .. } => (*job_id, Some(0)),
        };
        Work::of(effects).changes.iter().map(told).collect()
    }

    #[test]
    fn what_a_job_has_left_behind_is_not_done() {
        let start = |job_id, epoch| (None, Effect::Start(formation(job_id, epoch), None));
        let reply = (None, Effect::Close(xdp_agg_protocol::daemon::ConnId(1)));
        let mut effects = vec![start(1, 4), reply.clone(), stop(1), prepare(1, 5), stop(1)];
        effects.extend([prepare(1, 6), prepare(1, 7)]);
        assert_eq!(left(&mut effects), [(1, None), (1, Some(7))]);
        assert_eq!(effects, [reply]);
        assert_eq!(left(&mut vec![prepare(1, 5), stop(1)]), [(1, None)]);
        assert_eq!(left(&mut vec![start(1, 4)]), [(1, Some(0))]);
    }

    #[test]
    fn jobs_stop_before_others_get_their_slots() {
        let mut effects = vec![prepare(1, 5), stop(2), prepare(3, 6), stop(4), prepare(4, 7)];
        let order = [(2, None), (4, None), (1, Some(5)), (3, Some(6)), (4, Some(7))];
        assert_eq!(left(&mut effects), order);
    }

    #[test]
    fn each_answer_goes_to_its_formation() {
        let mut effects = vec![stop(2), prepare(1, 5), prepare(3, 6)];
        effects.push((source(9), Effect::Start(formation(9, 8), None)));
        let error = || EngineError::NoInterfaces;
        let done = vec![Err(error()), Ok(Changed::Prepared(None)), Err(error()), Err(error())];
        let (answers, failed) = Work::of(&mut effects).answers(done);
        assert_eq!(failed.len(), 1);
        let told = answers.iter().map(|(by, answer)| match answer {
            Answer::Prepared(formation, done) => (*by, 'p', formation.epoch, done.is_ok()),
            Answer::Started(formation, done) => (*by, 's', formation.epoch, done.is_ok()),
            other => panic!("{other:?}"),
        });
        let expected =
            [(source(1), 'p', 5, true), (source(3), 'p', 6, false), (source(9), 's', 8, false)];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}
