//! The worker library: gradients go in, sums come out.
//!
//! The entry point is [`Communicator`]. Each worker connects to the daemon of its job (`xdp-agg
//! serve`), and all make the same calls in the same order:
//!
//! ```
//! use std::thread;
//!
//! use xdp_agg_client::{Communicator, Error, Op};
//!
//! # use xdp_agg::config::Partial;
//! # use xdp_agg::engine::{self, EngineKind};
//! # use xdp_agg::server::{Listener, Server};
//! # let control = Some("127.0.0.1:0".parse()?);
//! # let engine = Some(EngineKind::Userspace);
//! # let settings = Partial { control, engine, data_port: Some(0), ..Partial::default() };
//! # let settings = settings.complete()?;
//! # let (tell, told) = std::sync::mpsc::channel();
//! # thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! #     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! #     runtime.block_on(async {
//! #         let listener = Listener::bind(settings.control)?;
//! #         let engine = engine::open(&settings.engine)?.engine;
//! #         let server = Server::new(listener, engine, &settings.server);
//! #         tell.send(server.control_addr())?;
//! #         server.run(std::future::pending()).await;
//! #         Ok(())
//! #     })
//! # });
//! # let daemon = told.recv()?;
//! let worker = move |rank: u16| -> Result<Vec<f32>, Error> {
//!     // Where a launcher (torchrun, mpirun, srun) has set the ranks, and `XDP_AGG_ADDR` names the
//!     // daemon: `let communicator = Communicator::from_env()?;`
//!     let communicator =
//!         Communicator::builder().aggregator(daemon).rank(rank).world_size(2).connect()?;
//!     let mut gradients = vec![f32::from(rank); 1000];
//!     communicator.all_reduce(&mut gradients, Op::Average)?;
//!     Ok(gradients)
//! };
//! let workers = [0, 1].map(|rank| thread::spawn(move || worker(rank)));
//! for worker in workers {
//!     assert_eq!(worker.join().expect("no panic")?, [0.5; 1000]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Builder`] has the settings: where the daemons are, how numbers travel, what happens when a
//!   worker or a daemon is lost. [`Handle`] is a call in flight.
//! * [`SharedBuffer`]: a vector in the memory that the processes of a host share, which calls do
//!   not copy; [`ResultView`]: a result that they read in place; [`ViewHandle`]: one in flight.
//! * [`collectives`]: broadcast, reduce and others, and how calls choose their way.
//! * [`lent`]: calls on memory of other languages, whose type is known at run time alone.
//!
//! `client/examples` has programs: `all_reduce`, `shrink` (a lost worker), `processes` (several a
//! host), `topology`. The protocol itself, without sockets and clocks, is
//! [`xdp_agg_protocol::worker`].
#![deny(unsafe_code)]

mod begin;
mod buffer;
pub mod collectives;
mod communicator;
mod copies;
mod digest;
mod driver;
pub mod error;
mod fallback;
mod flight;
mod grouped;
mod handle;
mod intranode;
mod joining;
pub mod lent;
pub mod log;
mod meeting;
mod name;
mod settings;
mod trace;
mod view;

pub use buffer::{ResultView, SharedBuffer};
pub use communicator::Communicator;
pub use error::{Error, JobError, host_ranks, in_world};
pub use handle::Handle;
pub use name::Name;
pub use settings::{Builder, Chosen, Place, Transport, addresses, deadline_from_env, variable};
pub use view::ViewHandle;
pub use xdp_agg_common::control::{AggregatorLoss, Policy, Token, WorkerLoss};
pub use xdp_agg_common::maps::ResultMode;
pub use xdp_agg_protocol::worker::flow::Congestion;
pub use xdp_agg_protocol::worker::{Counters, Limit, Path, Report, State};
pub use xdp_agg_quantize::{
    Element, ElementType, Format, FormatError, LaneWidth, Op, OutOfRange, Scaling, bf16, f16,
};
