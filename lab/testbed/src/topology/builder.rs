//! What a network shall be like.

use std::time::Duration;

use super::{MAX_MTU, MAX_RACKS, MAX_WORKERS, MIN_MTU, Mode, Topology};
use crate::delay::MAX_DELAY;
use crate::error::Error;
use crate::qdisc::Shape;
use crate::wire::Faults;

impl Topology {
    /// Starts to describe a network of two workers, MTU 1500, without a rate.
    pub fn builder() -> Builder {
        Builder {
            workers: 2,
            mode: Mode::Ports,
            rate: None,
            shape: None,
            mtu: 1500,
            wire: true,
            offloads: true,
            delay: Duration::ZERO,
            faults: Faults::NONE,
            racks: 0,
            uplink: None,
            pods: 0,
            pod_uplink: None,
            xdp_on_hosts: false,
        }
    }
}

/// A structure, and a setter for each field, documented as the field is.
macro_rules! with_setters {
    (
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$doc])* pub(super) $field: $type,)*
        }

        impl $name {
            $($(#[$doc])*
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            })*
        }
    };
}

with_setters! {
/// What a network shall be like; [`Topology::builder`] starts one.
#[derive(Clone, Debug)]
pub struct Builder {
    /// How many workers there are, 1 to [`MAX_WORKERS`]. Default: 2.
    workers: usize,
    /// Where the aggregator sits. Default: [`Mode::Ports`].
    mode: Mode,
    /// The rate of every link, each direction by itself, in bits a second. Default: none.
    rate: Option<u64>,
    /// The same with a burst and a queue of choice instead of [`Shape::new`]'s.
    shape: Option<Shape>,
    /// The MTU of every interface. Default: 1500. An XDP program without fragments takes at most
    /// [`crate::MAX_XDP_MTU`].
    mtu: u32,
    /// Whether links cross the kernel program that makes faults and sends what XDP emits through
    /// the shapers. It needs root of the machine. Without it a link is one veth pair, and a rate
    /// holds only for what the stack sends. Default: true.
    wire: bool,
    /// Whether super-packets and trains cross the links whole and without checksums, as they do
    /// between namespaces, or as single packets, as on a cable. From a cable, hosts merge what they
    /// receive. Default: true.
    offloads: bool,
    /// How long every link takes for a packet, each direction by itself, besides what its rate
    /// takes; at most [`MAX_DELAY`]. Two hosts on one switch are two links apart, in different
    /// racks four. It costs processor time, and packets can be late ([`Topology::delays`]).
    /// Default: none.
    delay: Duration,
    /// Faults of every link, in both directions. Default: none.
    faults: Faults,
    /// Divides the workers over this number of racks, one after the other. Each has a switch of its
    /// own (a ToR, whose host may run an aggregator), and one switch in the middle connects all.
    /// Default: 0, one switch for all.
    racks: usize,
    /// The rate of every rack's link to the middle, each direction by itself, in bits a second.
    /// Default: that of all other links.
    uplink: Option<u64>,
    /// How many pods there are: as many racks are in each, at a switch of the pod's own, which
    /// leads to the middle and may run an aggregator, too. Default: 0, racks lead to the middle.
    pods: usize,
    /// The rate of every pod's link to the middle. Default: as for racks.
    pod_uplink: Option<u64>,
    /// Whether workers' hosts run aggregators, too: what their XDP programs send passes shapers
    /// then. Default: false.
    xdp_on_hosts: bool,
}
}

impl Builder {
    /// Builds the network: interfaces are up, neighbours known, rates and faults in force.
    ///
    /// # Errors
    /// No privilege, or a network that cannot be.
    pub fn build(self) -> Result<Topology, Error> {
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            let workers = self.workers;
            let text = format!("a network has 1 to {MAX_WORKERS} workers, not {workers}");
            return Err(Error::Config(text));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            let mtu = self.mtu;
            let text = format!("an MTU is {MIN_MTU} to {MAX_MTU} bytes, not {mtu}");
            return Err(Error::Config(text));
        }
        let even = self.racks == 0 || self.workers.is_multiple_of(self.racks);
        if !even || self.racks > MAX_RACKS || (self.racks > 0 && self.mode != Mode::Ports) {
            let Self { workers, racks, .. } = self;
            let text = format!(
                "{workers} workers in {racks} racks: at most {MAX_RACKS} racks of as many workers \
                 each are possible, and their aggregators are the switches ({:?})",
                Mode::Ports
            );
            return Err(Error::Config(text));
        }
        if self.pods > self.racks || self.pods > 0 && !self.racks.is_multiple_of(self.pods) {
            let Self { racks, pods, .. } = self;
            let text = format!(
                "{racks} racks in {pods} pods: a pod has one rack or more, and each as many"
            );
            return Err(Error::Config(text));
        }
        if self.delay > MAX_DELAY || (!self.wire && !self.delay.is_zero()) {
            let delay = self.delay;
            let text = format!(
                "a delay of {delay:?}: a link takes at most {MAX_DELAY:?}, and needs a network \
                 built with `wire(true)` for it"
            );
            return Err(Error::Config(text));
        }
        if !self.wire && !self.faults.is_none() {
            return Err(Error::Config("faults need a network built with `wire(true)`".into()));
        }
        Topology::build(&self)
    }
}
