//! Names of daemons. What a name stands for may not be known when a worker starts, and may change:
//! it is looked up at every attempt to connect.

use std::thread;
use std::time::Instant;

use super::Builder;
use crate::driver::reach::{Pause, connect};
use crate::error::Error;

impl Builder {
    /// Waits until the daemons that have names answer, and learns where they are.
    ///
    /// # Errors
    /// One did not answer until then.
    pub(crate) fn look_up(&mut self, until: Instant) -> Result<(), Error> {
        let mut pause = Pause::new(self.warn_after);
        for target in &mut self.aggregators {
            let Some(name) = &target.name else { continue };
            target.address = loop {
                let reached =
                    connect(Some(name), target.address).and_then(|stream| stream.peer_addr());
                let problem = match reached {
                    Ok(address) => break address,
                    Err(problem) => problem,
                };
                if Instant::now() >= until {
                    let problem = format!(
                        "no aggregator has answered for {:?}, as XDP_AGG_JOIN_DEADLINE says: \
                         {problem}; expected host or host:port of the daemon's control service, \
                         such as 10.0.0.1:9870",
                        self.join_deadline
                    );
                    return Err(Error::Config { name: "XDP_AGG_ADDR", problem });
                }
                if let Some(waited) = pause.is_long() {
                    tracing::warn!("no aggregator after {waited} s: {problem}; trying on");
                }
                thread::sleep(pause.next().min(until.saturating_duration_since(Instant::now())));
            };
        }
        Ok(())
    }
}
