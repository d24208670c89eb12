//! Links that stand still.

use std::os::fd::AsFd;

use super::{Direction, End, Topology};
use crate::error::Error;
use crate::qdisc::Shape;
use crate::sys;

/// A frame for no host: a bridge passes on nothing that is sent to this address (IEEE 802.1D), and
/// no host listens to it; a type for experiments.
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

/// Room for nothing.
const LESS_THAN_A_PACKET: u32 = 1;

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
        self.stop(link, held, |shape| shape.queue)
    }

    /// Has a link lose all that is sent in either direction, or lets it go on: as when a cable is
    /// bad, or a host that stands still has no room for what comes. Neither end notices. What
    /// waits when it is cut goes on waiting; a packet or two may slip through then.
    ///
    /// # Errors
    /// As [`Topology::hold`]'s.
    pub fn cut(&self, link: usize, cut: bool) -> Result<(), Error> {
        self.stop(link, cut, |_| LESS_THAN_A_PACKET)
    }

    fn stop(&self, link: usize, stopped: bool, queue: fn(&Shape) -> u32) -> Result<(), Error> {
        let link = self.link(link)?;
        let Some(shape) = &link.shape else {
            let text = "only a link with a rate can be stopped: its shaper does it";
            return Err(Error::Config(text.into()));
        };
        for direction in Direction::BOTH {
            let shaper = link.shaper(direction);
            if stopped {
                shaper.namespace.netlink().hold(shaper.index, queue(shape))?;
            } else {
                shaper.go_on(shape)?;
            }
        }
        Ok(())
    }
}

impl End {
    /// Gives a shaper its rate back.
    fn go_on(&self, shape: &Shape) -> Result<(), Error> {
        self.namespace.netlink().set_shape(self.index, shape)?;
        // The kernel looks at a queue again when the next packet comes, or when the first one was
        // due by the old rate: in days.
        let kick = || {
            let socket = sys::frame_socket(self.index, false)?;
            sys::send_many(socket.as_fd(), &[KICK.to_vec()])
        };
        let what = format!("sending a frame on interface {}", self.name);
        self.namespace.run(kick)?.map(drop).map_err(Error::os(what))
    }
}
