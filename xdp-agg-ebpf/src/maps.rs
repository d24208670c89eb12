//! The maps that the program shares with the daemon (layouts: `xdp_agg_common::maps`), and the
//! constants that the loader sets before the verifier sees the program.

use aya_ebpf::{
    bindings::{BPF_F_BROADCAST, bpf_spin_lock, xdp_action},
    btf_maps::{Array, DevMap, PerCpuArray, PerCpuHashMap, ProgramArray, RingBuf},
    macros::btf_map,
};
use xdp_agg_common::lanes::{Chunk, MAX_CHUNKS};
use xdp_agg_common::maps::{
    COPY_ENTRIES, Event, Fan, JobConf, JobCounters, MAX_JOBS, MAX_PORTS, MEMBER_ENTRIES, Member,
    Pace, QUOTA_LEN, SLOT_LEN, Uplink,
};
use xdp_agg_common::slot::SlotState;
use xdp_agg_common::wire::MAX_WORKERS;

/// UDP port of the data path. Set by the loader.
#[unsafe(no_mangle)]
static DATA_PORT: u16 = 0;
/// IPv4 address of the data path, host byte order; 0: that of each job. Set by the loader.
#[unsafe(no_mangle)]
static DATA_ADDR: u32 = 0;
/// How an answer leaves by the port that the packet came in on: 0 with `XDP_TX`, 1 by a redirect
/// to that port. veth needs the latter: its `XDP_TX` loses the packet where the peer has no XDP
/// program of its own. Set by the loader.
#[unsafe(no_mangle)]
static REDIRECT_BACK: u8 = 0;
/// Number of the VLAN that the data path is in; 0: none. Set by the loader.
#[unsafe(no_mangle)]
static VLAN: u16 = 0;
/// The interface that workers of this host are behind; 0: there is no such one. Set by the loader.
#[unsafe(no_mangle)]
static LOCAL_IFINDEX: u32 = 0;
/// The IPv4 address that they send to, host byte order. Set by the loader.
#[unsafe(no_mangle)]
static LOCAL_ADDR: u32 = 0;

/// The loader's constants.
pub struct Settings;

impl Settings {
    #[inline(always)]
    pub fn data_port() -> u16 {
        // SAFETY: a static of this program; volatile, because the loader replaces its value.
        unsafe { core::ptr::read_volatile(&raw const DATA_PORT) }
    }

    #[inline(always)]
    pub fn data_addr() -> u32 {
        // SAFETY: as above.
        unsafe { core::ptr::read_volatile(&raw const DATA_ADDR) }
    }

    #[inline(always)]
    pub fn vlan() -> u16 {
        // SAFETY: as above.
        unsafe { core::ptr::read_volatile(&raw const VLAN) }
    }

    /// Whether packets have tags where they come in and leave by this interface.
    #[inline(always)]
    pub fn is_tagged(ifindex: u32) -> bool {
        Self::vlan() != 0 && !Self::is_local(ifindex)
    }

    #[inline(always)]
    pub fn redirect_back() -> bool {
        // SAFETY: as above.
        unsafe { core::ptr::read_volatile(&raw const REDIRECT_BACK) != 0 }
    }

    /// Whether this interface, by its own number or by that in an entry, is that of this host's
    /// workers.
    #[inline(always)]
    pub fn is_local(ifindex: u32) -> bool {
        // SAFETY: as above.
        ifindex != 0 && ifindex == unsafe { core::ptr::read_volatile(&raw const LOCAL_IFINDEX) }
    }

    /// Our address for the hosts behind an interface.
    #[inline(always)]
    pub fn addr_behind(ifindex: u32, conf: &JobConf) -> u32 {
        if Self::is_local(ifindex) { Self::local_addr() } else { conf.addr }
    }

    #[inline(always)]
    pub fn local_addr() -> u32 {
        // SAFETY: as above.
        unsafe { core::ptr::read_volatile(&raw const LOCAL_ADDR) }
    }
}

/// A slot: `maps::SlotHead`, then the lanes. The lock has the type that the verifier knows.
#[repr(C)]
pub struct Slot {
    pub lock: bpf_spin_lock,
    pad: u32,
    pub state: SlotState,
    pad2: u64,
    pub lanes: [Chunk; MAX_CHUNKS],
}

const _: () = assert!(size_of::<Slot>() == SLOT_LEN);

/// How far a job is with its quota: `maps::Quota`. The lock has the type that the verifier knows.
#[repr(C)]
pub struct Quota {
    pub lock: bpf_spin_lock,
    pad: u32,
    pub pace: Pace,
}

const _: () = assert!(size_of::<Quota>() == QUOTA_LEN);

/// Where a packet goes on that has lost its tag: `xdp_agg`.
#[btf_map]
pub static NEXT: ProgramArray<1> = ProgramArray::new();
/// All slots; a job's pool is a range of them. The loader sets the number.
#[btf_map]
pub static SLOTS: Array<Slot, 1> = Array::new();
#[btf_map]
pub static JOBS: Array<JobConf, MAX_JOBS> = Array::new();
#[btf_map]
pub static MEMBERS: Array<Member, MEMBER_ENTRIES> = Array::new();
/// The parent of each job that forwards.
#[btf_map]
pub static UPLINKS: Array<Uplink, MAX_JOBS> = Array::new();
#[btf_map]
pub static QUOTAS: Array<Quota, MAX_JOBS> = Array::new();
#[btf_map]
pub static COUNTERS: PerCpuArray<JobCounters, { MAX_JOBS + 1 }> = PerCpuArray::new();
#[btf_map]
pub static EVENTS: RingBuf<Event, 65536> = RingBuf::new();
/// Recipient of each copy of a result, plus one: see `maps::copy_index`.
#[btf_map]
pub static COPIES: Array<u16, COPY_ENTRIES> = Array::new();
/// By interface: where the broadcast that is leaving by it on this CPU has got to.
#[btf_map]
pub static FANS: PerCpuHashMap<u32, Fan, MAX_PORTS> = PerCpuHashMap::new();
/// The served interfaces by their number, for what goes to one host: answers, and sums that go up.
/// Entries have the same program as those of the broadcasts.
/// The kernel runs one program for all frames that leave by an interface in one go: that of the
/// first frame. So a frame of an entry without the program would take it away from the copies
/// behind it.
#[btf_map]
static BACK: DevMap<MAX_PORTS> = DevMap::new();

/// Sends the packet out of a served interface, most often the one that it came in on.
#[inline(always)]
pub fn redirect_back(ifindex: u32) -> u32 {
    let Some(fan) = FANS.get_ptr(ifindex) else { return xdp_action::XDP_ABORTED };
    // SAFETY: this CPU's own value, of an entry that stays as long as the program.
    let port = unsafe { (*fan).port };
    match BACK.redirect(port, 0) {
        Ok(action) | Err(action) => action,
    }
}

macro_rules! device_maps {
    ($($name:ident = $job:literal),+) => {
        $(
            #[btf_map]
            static $name: DevMap<MAX_WORKERS> = DevMap::new();
        )+

        /// Sends a copy of the packet for every entry of the job's device map.
        #[inline(always)]
        pub fn broadcast(job: u16) -> u32 {
            // The helper wants a map that the verifier can see, so there is a call a map.
            match job {
                $($job => redirect_to_all(&$name),)+
                _ => xdp_action::XDP_ABORTED,
            }
        }
    };
}

device_maps!(
    PORTS_0 = 0,
    PORTS_1 = 1,
    PORTS_2 = 2,
    PORTS_3 = 3,
    PORTS_4 = 4,
    PORTS_5 = 5,
    PORTS_6 = 6,
    PORTS_7 = 7,
    PORTS_8 = 8,
    PORTS_9 = 9,
    PORTS_10 = 10,
    PORTS_11 = 11,
    PORTS_12 = 12,
    PORTS_13 = 13,
    PORTS_14 = 14,
    PORTS_15 = 15,
    PORTS_16 = 16,
    PORTS_17 = 17,
    PORTS_18 = 18,
    PORTS_19 = 19,
    PORTS_20 = 20,
    PORTS_21 = 21,
    PORTS_22 = 22,
    PORTS_23 = 23,
    PORTS_24 = 24,
    PORTS_25 = 25,
    PORTS_26 = 26,
    PORTS_27 = 27,
    PORTS_28 = 28,
    PORTS_29 = 29,
    PORTS_30 = 30,
    PORTS_31 = 31,
    PORTS_32 = 32,
    PORTS_33 = 33,
    PORTS_34 = 34,
    PORTS_35 = 35,
    PORTS_36 = 36,
    PORTS_37 = 37,
    PORTS_38 = 38,
    PORTS_39 = 39,
    PORTS_40 = 40,
    PORTS_41 = 41,
    PORTS_42 = 42,
    PORTS_43 = 43,
    PORTS_44 = 44,
    PORTS_45 = 45,
    PORTS_46 = 46,
    PORTS_47 = 47
);

#[inline(always)]
fn redirect_to_all(map: &'static DevMap<MAX_WORKERS>) -> u32 {
    match map.redirect(0, BPF_F_BROADCAST.into()) {
        Ok(action) | Err(action) => action,
    }
}
