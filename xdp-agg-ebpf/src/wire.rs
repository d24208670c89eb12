//! The test network's program: the cable between a worker and the switch.
//!
//! Every link of a test network crosses a namespace of its own, in by one interface and out by
//! another. [`wire`] sits on the way in of both, and sends what comes to the other one. That one's
//! queueing discipline applies, so a rate holds for packets that XDP emitted, too. [`wire`] counts
//! packets, and loses, repeats or delays them as the harness asks. [`count`], [`reflect`] and
//! [`mirror`] stand in for the aggregator where the harness tests itself, or what the network
//! costs alone is measured. [`damage`] is a memory that forgets bits.
//!
//! A packet is held back as bytes in a map, and sent on in the buffer of a later packet, after a
//! clone of that one. A kernel program can send no packet without one at hand. Only UDP is held,
//! with its checksum taken off. What the stack still owes of a checksum (offload) is noted in the
//! buffer that the bytes leave, and not in the one that they return in.
#![no_std]
#![no_main]

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, bpf_spin_lock, xdp_action},
    btf_maps::{Array, PerCpuArray},
    helpers::generated::{
        bpf_get_prandom_u32, bpf_ktime_get_ns, bpf_redirect, bpf_skb_change_tail,
        bpf_skb_load_bytes, bpf_skb_store_bytes, bpf_skb_vlan_pop, bpf_skb_vlan_push,
        bpf_spin_lock as lock, bpf_spin_unlock as unlock,
    },
    macros::{btf_map, classifier, xdp},
    programs::{TcContext, XdpContext},
};

#[path = "../../lab/testbed/src/layout.rs"]
mod layout;

use layout::{Counters, HOLD_DEPTH, MAX_HELD, MAX_INTERFACES, Path, Seen};

const ETH_LEN: u32 = 14;
const UDP_LEN: u32 = 8;
const PROTOCOL_UDP: u32 = 17;
const ETHERTYPE_VLAN: u16 = 0x8100;
const MASK: u32 = HOLD_DEPTH - 1;
const MILLION: u64 = 1_000_000;
const DROP: i32 = TC_ACT_SHOT;

const _: () = assert!(HOLD_DEPTH.is_power_of_two());

/// A place for a held packet is free, being filled, waiting, or being emptied.
const FREE: u32 = 0;
const FILLING: u32 = 1;
const WAITING: u32 = 2;
const EMPTYING: u32 = 3;

/// The queue of held packets of one direction: places are taken and left in turn.
#[repr(C)]
pub struct Line {
    lock: bpf_spin_lock,
    /// Packets that went by.
    passed: u32,
    /// First place in use and first one not in use, counted without end.
    head: u32,
    tail: u32,
    state: [u32; HOLD_DEPTH as usize],
    due_packets: [u32; HOLD_DEPTH as usize],
    due_ns: [u64; HOLD_DEPTH as usize],
}

/// A held packet. Length 0: it could not be read.
#[repr(C)]
pub struct Held {
    len: u32,
    bytes: [u8; MAX_HELD],
}

#[btf_map]
static PATHS: Array<Path, { MAX_INTERFACES as usize }> = Array::new();
#[btf_map]
static COUNTERS: PerCpuArray<Counters, { MAX_INTERFACES as usize }> = PerCpuArray::new();
/// The harness says how many lines there are (and so how many held packets) when it loads this.
#[btf_map]
static LINES: Array<Line, 2> = Array::new();
#[btf_map]
static HELD: Array<Held, { 2 * HOLD_DEPTH as usize }> = Array::new();
#[btf_map]
static SEEN: PerCpuArray<Seen, { MAX_INTERFACES as usize }> = PerCpuArray::new();

/// Carries packets from one end of a link to the other, with the faults that were asked for.
#[classifier]
pub fn wire(ctx: TcContext) -> i32 {
    // SAFETY: the kernel gives every run a valid context.
    let (ifindex, segments) = unsafe { ((*ctx.skb.skb).ifindex, (*ctx.skb.skb).gso_segs) };
    let Some(path) = PATHS.get(ifindex) else { return DROP };
    let Some(counters) = COUNTERS.get_ptr_mut(ifindex) else { return DROP };
    // SAFETY: this CPU's own counters, and a run on a CPU is not interrupted by another one there.
    let counters = unsafe { &mut *counters };
    let train = segments > 1;
    counters.bytes += u64::from(ctx.len());
    if train {
        // Every segment but the first, whose headers are counted, carries its own on the wire.
        counters.packets += u64::from(segments);
        counters.bytes += u64::from(segments - 1) * u64::from(headers_len(&ctx));
    } else {
        counters.packets += 1;
    }
    if path.vlan != 0 {
        retag(&ctx, path);
    }
    if path.faulty == 0 {
        return redirect(path.target);
    }
    disturbed(&ctx, path, counters, train)
}

/// What a switch does where its port is of one VLAN.
#[inline(always)]
fn retag(ctx: &TcContext, path: &Path) {
    let skb = ctx.skb.skb;
    // SAFETY: the kernel gives every run a valid context.
    if unsafe { (*skb).vlan_present } != 0 {
        // SAFETY: as above; no view of the packet is alive.
        unsafe { bpf_skb_vlan_pop(skb) };
        return;
    }
    let ip = ipv4(ctx);
    if ip.protocol == PROTOCOL_UDP && ip.target == path.vlan_port {
        // SAFETY: as above.
        unsafe { bpf_skb_vlan_push(skb, ETHERTYPE_VLAN.to_be(), path.vlan as u16) };
    }
}

#[inline(always)]
fn redirect(target: u32) -> i32 {
    // SAFETY: no memory is handed over.
    unsafe { bpf_redirect(target, 0) as i32 }
}

/// True with the given chance.
#[inline(always)]
fn chance(ppm: u32) -> bool {
    // SAFETY: the helper takes nothing.
    ppm != 0 && (u64::from(unsafe { bpf_get_prandom_u32() }) * MILLION) >> 32 < u64::from(ppm)
}

/// What of an IPv4 packet the faults want to know. All 0 for any other packet: an `Option` here
/// compiles to loads of what was never stored, which the verifier refuses.
#[derive(Clone, Copy)]
struct Ip {
    header_len: u32,
    protocol: u32,
    /// Of the transport header, where the IPv4 header has no options; otherwise 0 and 0.
    source: u32,
    target: u32,
}

const NOT_IP: Ip = Ip { header_len: 0, protocol: 0, source: 0, target: 0 };

/// Reads the headers, if the packet is IPv4 and not too short for ports.
#[inline(always)]
fn ipv4(ctx: &TcContext) -> Ip {
    const LEN: usize = 38;
    if ctx.data() + LEN > ctx.data_end() && ctx.pull_data(LEN as u32).is_err() {
        return NOT_IP;
    }
    let (start, end) = (ctx.data(), ctx.data_end());
    if start + LEN > end {
        return NOT_IP;
    }
    // SAFETY: the check above covers these bytes, and nothing writes them meanwhile.
    let frame = unsafe { &*(start as *const [u8; LEN]) };
    if frame[12] != 0x08 || frame[13] != 0 || frame[14] >> 4 != 4 {
        return NOT_IP;
    }
    let mut ip = NOT_IP;
    ip.header_len = u32::from(frame[14] & 0x0f) * 4;
    ip.protocol = u32::from(frame[23]);
    let fragment = u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff != 0;
    if ip.header_len == 20 && !fragment {
        ip.source = u32::from(u16::from_be_bytes([frame[34], frame[35]]));
        ip.target = u32::from(u16::from_be_bytes([frame[36], frame[37]]));
    }
    ip
}

/// Length of the headers that each segment of a train gets.
#[inline(always)]
fn headers_len(ctx: &TcContext) -> u32 {
    let ip = ipv4(ctx);
    if ip.header_len == 0 {
        return 0;
    }
    let network = ETH_LEN + ip.header_len;
    if ip.protocol == PROTOCOL_UDP {
        return network + UDP_LEN;
    }
    let data_offset: u8 = ctx.load((network + 12) as usize).unwrap_or(0x50);
    network + u32::from(data_offset >> 4) * 4
}

#[inline(always)]
fn disturbed(ctx: &TcContext, path: &Path, counters: &mut Counters, train: bool) -> i32 {
    let ip = ipv4(ctx);
    let udp = ip.protocol == PROTOCOL_UDP && ip.source != 0;
    if path.udp_port != 0 && !(udp && (ip.source == path.udp_port || ip.target == path.udp_port)) {
        return redirect(path.target);
    }
    if train {
        counters.whole += 1;
        return redirect(path.target);
    }
    counters.seen += 1;
    if chance(path.loss_ppm) {
        counters.lost += 1;
        return DROP;
    }
    if chance(path.duplicate_ppm) && ctx.clone_redirect(path.target, 0).is_ok() {
        counters.duplicated += 1;
    }
    if udp && path.hold_ppm != 0 { delayed(ctx, path, counters) } else { redirect(path.target) }
}

/// Holds the packet back, or sends it on, and behind it one that was held until now.
#[inline(always)]
fn delayed(ctx: &TcContext, path: &Path, counters: &mut Counters) -> i32 {
    let Some(line) = LINES.get_ptr_mut(path.line) else { return redirect(path.target) };
    if chance(path.hold_ppm) {
        if hold(ctx, path, line) {
            counters.held += 1;
            return DROP;
        }
        counters.crowded += 1;
    }
    let Some(place) = next_due(line) else { return redirect(path.target) };
    if emit_behind(ctx, path, place) {
        counters.released += 1;
    }
    leave(line, place);
    redirect(path.target)
}

/// Copies the packet into a free place. False: no place is free.
#[inline(always)]
fn hold(ctx: &TcContext, path: &Path, line: *mut Line) -> bool {
    let len = ctx.len();
    if len < ETH_LEN + 20 + UDP_LEN || len > MAX_HELD as u32 {
        return false;
    }
    // SAFETY: no memory is handed over.
    let due_ns = unsafe { bpf_ktime_get_ns() } + path.hold_ns;
    // SAFETY: `line` is a value of the map and the lock in it is this map's lock; what it guards is
    // touched under it alone, here and in the two functions below.
    let place = unsafe {
        lock(&raw mut (*line).lock);
        let place = (*line).tail & MASK;
        let free = (*line).state[place as usize] == FREE;
        if free {
            (*line).tail += 1;
            (*line).state[place as usize] = FILLING;
            (*line).due_packets[place as usize] = (*line).passed + path.hold_packets;
            (*line).due_ns[place as usize] = due_ns;
        }
        unlock(&raw mut (*line).lock);
        if free { place } else { HOLD_DEPTH }
    };
    if place >= HOLD_DEPTH {
        return false;
    }
    if let Some(held) = HELD.get_ptr_mut(path.line * HOLD_DEPTH + place) {
        // SAFETY: the place is this run's alone while it is being filled, and `len` is not more
        // than the bytes that are there.
        unsafe {
            let bytes = (&raw mut (*held).bytes).cast();
            let failed = bpf_skb_load_bytes(ctx.skb.skb.cast(), 0, bytes, len) != 0;
            (*held).len = if failed { 0 } else { len };
            // No checksum: it may not have been worked out yet.
            (*held).bytes[40] = 0;
            (*held).bytes[41] = 0;
        }
    }
    // SAFETY: as above.
    unsafe {
        lock(&raw mut (*line).lock);
        (*line).state[(place & MASK) as usize] = WAITING;
        unlock(&raw mut (*line).lock);
    }
    true
}

/// Counts a packet that goes by, and takes the first held one, if that has waited long enough.
#[inline(always)]
fn next_due(line: *mut Line) -> Option<u32> {
    // SAFETY: no memory is handed over.
    let now = unsafe { bpf_ktime_get_ns() };
    // SAFETY: see `hold`.
    unsafe {
        lock(&raw mut (*line).lock);
        (*line).passed += 1;
        let place = (*line).head & MASK;
        let due = (*line).state[place as usize] == WAITING
            && (*line).passed.wrapping_sub((*line).due_packets[place as usize]) as i32 >= 0
            && now >= (*line).due_ns[place as usize];
        if due {
            (*line).head += 1;
            (*line).state[place as usize] = EMPTYING;
        }
        unlock(&raw mut (*line).lock);
        due.then_some(place)
    }
}

/// Sends a clone of the packet, then makes the packet the held one.
#[inline(always)]
fn emit_behind(ctx: &TcContext, path: &Path, place: u32) -> bool {
    let Some(held) = HELD.get_ptr_mut(path.line * HOLD_DEPTH + place) else { return false };
    // SAFETY: the place is this run's alone while it is being emptied.
    let len = unsafe { (*held).len };
    if len == 0 || len > MAX_HELD as u32 || ctx.clone_redirect(path.target, 0).is_err() {
        return false;
    }
    // SAFETY: as above, and `len` is not more than the bytes that are there.
    unsafe {
        bpf_skb_change_tail(ctx.skb.skb, len, 0) == 0
            && bpf_skb_store_bytes(ctx.skb.skb, 0, (&raw const (*held).bytes).cast(), len, 0) == 0
    }
}

#[inline(always)]
fn leave(line: *mut Line, place: u32) {
    // SAFETY: see `hold`.
    unsafe {
        lock(&raw mut (*line).lock);
        (*line).state[(place & MASK) as usize] = FREE;
        unlock(&raw mut (*line).lock);
    }
}

#[inline(always)]
fn note(ctx: &XdpContext) {
    // SAFETY: the kernel gives every run a valid context.
    let ifindex = unsafe { (*ctx.ctx).ingress_ifindex };
    if let Some(seen) = SEEN.get_ptr_mut(ifindex) {
        // SAFETY: this CPU's own entry.
        unsafe {
            (*seen).packets += 1;
            (*seen).bytes += (ctx.data_end() - ctx.data()) as u64;
        }
    }
}

/// Counts packets and passes them on: what an XDP program on this interface gets to see.
#[xdp]
pub fn count(ctx: XdpContext) -> u32 {
    note(&ctx);
    xdp_action::XDP_PASS
}

/// Counts UDP packets and sends them back where they came from. It redirects them to the interface
/// that they came in on, past every queueing discipline there, as the aggregator does. Passes
/// everything else.
#[xdp]
pub fn reflect(ctx: XdpContext) -> u32 {
    turn_back(&ctx, |_| 0)
}

/// As [`reflect`], of UDP packets whose payload is zeros. They leave with a checksum, which their
/// headers give, and a kernel merges those that have one.
#[xdp]
pub fn mirror(ctx: XdpContext) -> u32 {
    turn_back(&ctx, checksum_of_zeros)
}

/// Swaps the ends of a UDP packet, and sends it back with this checksum.
#[inline(always)]
fn turn_back(ctx: &XdpContext, checksum: impl Fn(&[u8; 42]) -> u16) -> u32 {
    let (start, end) = (ctx.data(), ctx.data_end());
    if start + 42 > end {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: the check above covers these bytes.
    let frame = unsafe { &mut *(start as *mut [u8; 42]) };
    if frame[12] != 0x08
        || frame[13] != 0
        || frame[14] != 0x45
        || u32::from(frame[23]) != PROTOCOL_UDP
    {
        return xdp_action::XDP_PASS;
    }
    note(ctx);
    swap::<6>(frame, 0, 6);
    swap::<4>(frame, 26, 30);
    swap::<2>(frame, 34, 36);
    let checksum = checksum(frame).to_be_bytes();
    (frame[40], frame[41]) = (checksum[0], checksum[1]);
    // SAFETY: the context is valid, and no memory is handed over.
    unsafe { bpf_redirect((*ctx.ctx).ingress_ifindex, 0) as u32 }
}

/// RFC 768, over addresses, ports and lengths.
#[inline(always)]
fn checksum_of_zeros(frame: &[u8; 42]) -> u16 {
    let word = |at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let mut sum = PROTOCOL_UDP + word(38);
    let mut at = 26;
    while at < 40 {
        sum += word(at);
        at += 2;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    match !(sum as u16) {
        // A checksum of 0 would say that there is none.
        0 => 0xffff,
        checksum => checksum,
    }
}

/// Flips a bit of some UDP packets, behind all headers, counts those, and passes everything on.
#[xdp]
pub fn damage(ctx: XdpContext) -> u32 {
    const LEN: usize = 72;
    let (start, end) = (ctx.data(), ctx.data_end());
    if start + LEN > end || !chance(layout::DAMAGED_PPM) {
        return xdp_action::XDP_PASS;
    }
    // SAFETY: the check above covers these bytes.
    let frame = unsafe { &mut *(start as *mut [u8; LEN]) };
    if frame[12] == 0x08 && frame[13] == 0 && u32::from(frame[23]) == PROTOCOL_UDP {
        frame[LEN - 1] ^= 0x10;
        note(&ctx);
    }
    xdp_action::XDP_PASS
}

#[inline(always)]
fn swap<const N: usize>(frame: &mut [u8; 42], one: usize, other: usize) {
    let mut i = 0;
    while i < N {
        (frame[one + i], frame[other + i]) = (frame[other + i], frame[one + i]);
        i += 1;
    }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
