//! Links that stand still.

use std::os::fd::AsFd;

use super::{Direction, End, Link, Topology};
use crate::error::Error;
use crate::sys;

/// To nobody: a bridge passes on nothing that is sent to this address (IEEE 802.1D), and no host
/// listens to it; a type for experiments.
const KICK: [u8; 60] = {
    let mut frame = [0; 60];
    let header = [0x01, 0x80, 0xc2, 0, 0, 0x0f, 0x02, 0x88, 0, 0, 9, 0, 0x88, 0xb5];
    let mut i = 0;
    while i < header.len() {
        frame[i] = header[i];
        i += 1;
    }
    frame
};

impl Topology {
    /// Has a link stand still in both directions, or lets it go on. What is sent meanwhile waits
    /// where the link is shaped, as much as fits the queue, and comes in order when the link goes
    /// on; a packet or two may slip through when it stops.
    ///
    /// It holds for all that the rate holds for: what XDP sends as well, for that passes a shaper
    /// behind the interface, in the middle of the link (`xdp_on_hosts` for that of workers' hosts).
    ///
    /// # Errors
    /// No such link, one without a rate, or netlink's.
    pub fn hold(&self, link: usize, held: bool) -> Result<(), Error> {
        let link = self.link(link)?;
        for direction in Direction::BOTH {
            link.hold(link.shaper(direction), held)?;
        }
        Ok(())
    }
}

impl Link {
    fn hold(&self, shaper: &End, held: bool) -> Result<(), Error> {
        let Some(shape) = &self.shape else {
            let text = "only a link with a rate can be held: its shaper does it";
            return Err(Error::Config(text.into()));
        };
        let mut netlink = shaper.namespace.netlink();
        if held {
            return netlink.hold(shaper.index, shape);
        }
        netlink.set_shape(shaper.index, shape)?;
        // The kernel looks at a queue again when the next packet comes, or when the first one was
        // due by the old rate: in days.
        let kick = || {
            let socket = sys::frame_socket(shaper.index, false)?;
            sys::send_many(socket.as_fd(), &[KICK.to_vec()])
        };
        let what = format!("sending a frame on interface {}", shaper.name);
        shaper.namespace.run(kick)?.map(drop).map_err(Error::os(what))
    }
}
