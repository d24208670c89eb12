//! The door for tests, the fuzzer (`verify/kernel`) and the benchmark (`lab/scenarios`) of the
//! kernel program: an engine that is attached to nothing, test runs of its program, and its tables.
//! No public interface: it changes with the kernel program.

use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use aya::programs::{ProgramFd, TestRun as _, TestRunOptions};
use xdp_agg_common::frame::PAYLOAD_OFFSET;
use xdp_agg_common::lanes::{Chunk, MAX_PAYLOAD};
use xdp_agg_common::maps::{JobConf, Member, Uplink};
use xdp_agg_common::slot::SlotState;

use super::interface::{Interface, links};
use super::local::Local;
use super::object::other;
use super::phases::Tables as _;
use super::{EngineConfig, EngineError, XdpEngine};
use crate::engine::{EngineKind, LocalAddr, XdpMode};

pub use super::sys::RawSlot;

/// What the program did with a frame in a test run: see [`XdpEngine::test_run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// What the program returned (`enum xdp_action`).
    pub action: u32,
    /// Mean duration of one run.
    pub duration: Duration,
}

impl XdpEngine {
    /// Loads the program and attaches it to nothing: for test runs ([`Self::test_run`]), in which
    /// every packet seems to come in on the loopback interface. `local` is an interface and an
    /// address for workers of this host: those that [`crate::engine::JobSetup::local`] names.
    ///
    /// # Errors
    /// No privilege or an old kernel.
    pub fn detached(
        data_port: u16,
        slots: u32,
        local: Option<(u32, Ipv4Addr)>,
    ) -> Result<Self, EngineError> {
        Self::detached_in(None, data_port, slots, local)
    }

    /// The same, with a data path in this VLAN, at this address.
    ///
    /// # Errors
    /// As there.
    pub fn detached_in(
        vlan: Option<(u16, Ipv4Addr)>,
        data_port: u16,
        slots: u32,
        local: Option<(u32, Ipv4Addr)>,
    ) -> Result<Self, EngineError> {
        let config = EngineConfig {
            kind: EngineKind::Xdp,
            xdp_mode: XdpMode::Auto,
            interfaces: Vec::new(),
            data_addr: vlan.map(|(_, addr)| addr),
            local_addr: LocalAddr::Auto,
            data_port,
            slots,
            mtu: None,
            pin: None,
            fresh: false,
            vlan: vlan.map(|(id, _)| id),
        };
        let loopback = Interface::find("lo", &links()?)?;
        let mut engine =
            Self::load(&config, (&[], config.vlan.unwrap_or(0)), None, Local::Detached(local))?;
        engine.object.register_port(loopback.ifindex, 0, false)?;
        engine.ports = vec![loopback.ifindex];
        Ok(engine)
    }

    /// Runs the program `repeat` times on one frame, as if the loopback interface had received it.
    /// The frame is changed as the program changed it. What the program returns is told, but
    /// nothing is sent.
    ///
    /// # Errors
    /// The kernel's: a frame shorter than an Ethernet header, or longer than a page leaves room.
    pub fn test_run(&self, frame: &mut Vec<u8>, repeat: u32) -> Result<TestRun, EngineError> {
        let program = self.object.ingress()?;
        let mut out = vec![0; frame.len().max(PAYLOAD_OFFSET + MAX_PAYLOAD)];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..TestRunOptions::default()
        };
        let result = program.test_run(options).map_err(|error| other("a test run", error))?;
        out.truncate(result.data_size_out as usize);
        *frame = out;
        Ok(TestRun { action: result.return_value, duration: result.duration })
    }

    /// The program, as the target of another program's tail call.
    ///
    /// # Errors
    /// The system's.
    pub fn program(&self) -> Result<ProgramFd, EngineError> {
        let fd = self.object.ingress()?.fd().map_err(|error| other("the program", error))?;
        fd.try_clone().map_err(|error| other("the program", error))
    }

    /// State and lanes of the slot that `block` of a job falls into.
    ///
    /// # Errors
    /// No such job here, or the engine's.
    pub fn slot(&self, job_id: u16, block: u64) -> Result<(SlotState, Vec<Chunk>), EngineError> {
        let RawSlot { head, lanes } = self.object.slot(self.job(job_id)?.slot_of(block))?;
        Ok((head.state, lanes.to_vec()))
    }

    /// A slot of the whole table.
    ///
    /// # Errors
    /// The engine's.
    pub fn raw_slot(&self, index: u32) -> Result<RawSlot, EngineError> {
        self.object.slot(index)
    }

    /// Replaces a slot behind the program's back.
    ///
    /// # Errors
    /// The engine's.
    pub fn set_raw_slot(&mut self, index: u32, slot: RawSlot) -> Result<(), EngineError> {
        self.object.slots.set(index, slot, 0).map_err(|error| other("a slot", error))
    }

    /// Takes the program away from a served interface, as an administrator may.
    ///
    /// # Errors
    /// The system's.
    pub fn detach(&self, number: usize) -> Result<(), EngineError> {
        let link = self.links[number].as_fd();
        super::sys::detach(link).map_err(|error| other("detaching", error))
    }

    /// A job's entry.
    ///
    /// # Errors
    /// The engine's.
    pub fn conf(&self, job_id: u16) -> Result<JobConf, EngineError> {
        self.object.conf(job_id)
    }

    /// A member's entry.
    ///
    /// # Errors
    /// The engine's.
    pub fn member(&self, job_id: u16, rank: u16) -> Result<Member, EngineError> {
        self.object.member(job_id, rank)
    }

    /// The parent of a job.
    ///
    /// # Errors
    /// The engine's.
    pub fn uplink(&self, job_id: u16) -> Result<Uplink, EngineError> {
        self.object.uplink(job_id)
    }
}
