//! In what order a connection may be told things.

use super::*;

/// What a worker knows by what it was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum State {
    #[default]
    Stranger,
    /// Has said `Join`.
    Joining,
    /// Has said `Join` with `Resume`.
    Resuming,
    Admitted,
    Running,
    Paused,
    RunTo,
    /// `Progress` is to be said, or was said.
    Frozen,
}

/// A connection's history, as far as it matters.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) state: State,
    pub(super) admitted: Option<Admitted>,
    pub(super) join: Option<Join>,
    /// `Progress` since the last `Admitted`.
    pub(super) said: bool,
}

impl Told {
    pub(super) fn says(&mut self, request: &Request) {
        match request {
            Request::Join(join) if self.state == State::Stranger => {
                let resumes = join.resume.is_some();
                self.state = if resumes { State::Resuming } else { State::Joining };
                self.said = resumes;
                self.join = Some(join.clone());
            }
            Request::Progress(_) if matches!(self.state, State::RunTo | State::Frozen) => {
                self.said = true;
                self.state = State::Frozen;
            }
            Request::Leave | Request::Abort { .. } => self.state = State::Stranger,
            _ => {}
        }
    }

    /// Panics where the order makes no sense.
    pub(super) fn hears(&mut self, reply: &Reply, engine: &BTreeMap<u16, JobSetup>) {
        let before = self.state.clone();
        let from = |states: &[State]| assert!(states.contains(&before), "{reply:?} in {self:?}");
        self.state = match reply {
            Reply::Admitted(admitted) => {
                from(&[State::Joining, State::Resuming, State::Frozen]);
                assert!(before == State::Joining || self.said, "{reply:?} without its progress");
                let setup = &engine[&admitted.job_id];
                assert_eq!(admitted.members, setup.conf.members, "bitmaps differ");
                assert_eq!(admitted.epoch, setup.conf.epoch);
                assert_eq!(admitted.cookie, setup.conf.cookie);
                let join = self.join.as_ref().expect("it has joined");
                assert_eq!(admitted.members >> join.rank & 1, 1, "a member of another epoch");
                let last = self.admitted.as_ref().map(|last| last.epoch);
                assert_ne!(last, Some(admitted.epoch), "an epoch twice");
                self.said = false;
                self.admitted = Some(admitted.clone());
                State::Admitted
            }
            Reply::Go { .. } => {
                from(&[State::Admitted]);
                let mine = self.admitted.as_ref().expect("it was admitted");
                assert_eq!(mine.cookie, engine[&mine.job_id].conf.cookie, "another epoch runs");
                State::Running
            }
            Reply::Reform { .. } => {
                from(&[
                    State::Admitted,
                    State::Running,
                    State::Paused,
                    State::RunTo,
                    State::Frozen,
                ]);
                State::Frozen
            }
            Reply::Resumed => {
                from(&[State::Resuming]);
                self.said = false;
                State::Running
            }
            Reply::Pause { .. } => {
                from(&[State::Running]);
                State::Paused
            }
            Reply::RunTo { .. } => {
                from(&[State::Running, State::Paused]);
                State::RunTo
            }
            Reply::Aborted(_) => {
                assert_ne!(before, State::Stranger, "{reply:?}");
                State::Stranger
            }
            // A refused wish leaves the state as it was before, and so does an answer.
            Reply::Error { code: ErrorCode::NoJob | ErrorCode::Engine, .. } => before,
            Reply::Error { .. } if matches!(before, State::Joining | State::Resuming) => {
                State::Stranger
            }
            _ => before,
        };
        if self.state == State::Stranger {
            (self.join, self.admitted) = (None, None);
        }
    }
}
