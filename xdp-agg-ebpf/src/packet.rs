//! The frame in memory: one bounds check a view, and no pointer arithmetic anywhere else.

use core::marker::PhantomData;

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_csum_diff, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len},
    programs::XdpContext,
};
use xdp_agg_common::checksum::Sum;
use xdp_agg_common::frame::{ETH_LEN, Ipv4, PAYLOAD_OFFSET};
use xdp_agg_common::lanes::{CHUNK_LEN, Chunk, MAX_CHUNKS};
use xdp_agg_common::slot;
use xdp_agg_common::wire::HEADER_LEN;

/// A link-layer address, in two parts that move as a whole each.
#[derive(Clone, Copy, PartialEq)]
#[repr(C, packed)]
pub struct Mac(u32, u16);

impl From<[u8; 6]> for Mac {
    #[inline(always)]
    fn from([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self(u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]))
    }
}

impl From<Mac> for [u8; 6] {
    #[inline(always)]
    fn from(Mac(head, tail): Mac) -> Self {
        let ([a, b, c, d], [e, f]) = (head.to_ne_bytes(), tail.to_ne_bytes());
        [a, b, c, d, e, f]
    }
}

/// Ethernet, IPv4 and UDP headers. Bytes only, so that it may lie at any address.
#[repr(C)]
pub struct Network {
    pub mac_to: Mac,
    pub mac_from: Mac,
    pub ethertype: [u8; 2],
    pub ip: Ipv4,
    pub port_from: [u8; 2],
    pub port_to: [u8; 2],
    pub udp_len: [u8; 2],
    pub udp_sum: [u8; 2],
}

/// All headers of a packet of ours.
#[repr(C)]
pub struct Headers {
    pub network: Network,
    pub ours: [u8; HEADER_LEN],
}

const _: () = assert!(size_of::<Headers>() == PAYLOAD_OFFSET && align_of::<Headers>() == 1);

/// Chunks whose words the kernel sums in one call: before Linux 6.13 it takes 512 bytes at most.
const SUMMED: usize = 8;

/// A frame that the driver handed to the program, which alone reads and writes it.
pub struct Packet<'a> {
    ctx: &'a XdpContext,
}

impl<'a> Packet<'a> {
    #[inline(always)]
    pub fn new(ctx: &'a XdpContext) -> Self {
        Self { ctx }
    }

    /// Length of the frame in bytes, as far as it lies in its first buffer.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.ctx.data_end() - self.ctx.data()
    }

    /// Bytes behind our header; 0 where the frame is shorter.
    #[inline(always)]
    pub fn payload_len(&self) -> u16 {
        self.len().saturating_sub(PAYLOAD_OFFSET) as u16
    }

    #[inline(always)]
    pub fn network(&mut self) -> Option<&mut Network> {
        self.view(0)
    }

    #[inline(always)]
    pub fn headers(&mut self) -> Option<&mut Headers> {
        self.view(0)
    }

    /// The headers' 64 bytes, whatever they hold.
    #[inline(always)]
    pub fn front(&mut self) -> Option<&mut Chunk> {
        self.view(0)
    }

    /// What lies behind our header.
    #[inline(always)]
    pub fn payload(&mut self) -> Payload<'_> {
        Payload {
            start: self.ctx.data() + PAYLOAD_OFFSET,
            end: self.ctx.data_end(),
            packet: PhantomData,
        }
    }

    /// The sum of the payload's words, for a checksum. The verifier wants a length that it can see
    /// for each call, so the payload is taken in pieces, each half as long as the one before.
    #[inline(always)]
    pub fn payload_sum(&mut self) -> Sum {
        let (mut sum, mut offset) = (0, PAYLOAD_OFFSET);
        for _ in 0..MAX_CHUNKS / SUMMED {
            self.sum_chunks::<SUMMED>(&mut sum, &mut offset);
        }
        self.sum_chunks::<4>(&mut sum, &mut offset);
        self.sum_chunks::<2>(&mut sum, &mut offset);
        self.sum_chunks::<1>(&mut sum, &mut offset);
        Sum::from_native(sum)
    }

    /// Adds the words of `N` chunks at `offset` to a sum, and moves on, if they are there.
    #[inline(always)]
    fn sum_chunks<const N: usize>(&mut self, sum: &mut u32, offset: &mut usize) {
        let Some(chunks) = self.view::<[Chunk; N]>(*offset) else { return };
        let len = size_of::<[Chunk; N]>();
        // SAFETY: the helper reads `len` bytes, which the view covers; nothing is subtracted.
        let all = unsafe {
            bpf_csum_diff(core::ptr::null_mut(), 0, (&raw mut *chunks).cast(), len as u32, *sum)
        };
        (*sum, *offset) = (all as u32, *offset + len);
    }

    /// Whether a part of the frame lies in other buffers than the first.
    #[inline(always)]
    pub fn is_split(&self) -> bool {
        // SAFETY: a helper call on the program's own context.
        let whole = unsafe { bpf_xdp_get_buff_len(self.ctx.as_ptr().cast()) };
        whole != self.len() as u64
    }

    /// Cuts or grows the frame's end so that an IP packet of this length fills the frame.
    #[inline(always)]
    pub fn fit(&mut self, ip_len: u16) -> Result<(), ()> {
        let delta = (ETH_LEN + usize::from(ip_len)) as i32 - self.len() as i32;
        if delta == 0 {
            return Ok(());
        }
        // SAFETY: a helper call on the program's own context. Views end here: they borrow `self`.
        match unsafe { bpf_xdp_adjust_tail(self.ctx.as_ptr().cast(), delta) } {
            0 => Ok(()),
            _ => Err(()),
        }
    }

    /// A part of the frame, if it lies in the first buffer as a whole.
    #[inline(always)]
    pub fn view<T>(&mut self, offset: usize) -> Option<&mut T> {
        // SAFETY: between the start and the end of the frame, which is the program's alone, and
        // borrowed as long as the view lives.
        unsafe { view(self.ctx.data() + offset, self.ctx.data_end()) }
    }
}

/// The payload of a packet: its bounds, held in registers while lanes are added.
pub struct Payload<'a> {
    start: usize,
    end: usize,
    packet: PhantomData<&'a mut ()>,
}

impl slot::Payload for Payload<'_> {
    #[inline(always)]
    fn chunk(&mut self, index: usize) -> Option<&mut Chunk> {
        // SAFETY: as in `Packet::view`.
        unsafe { view(self.start + index * CHUNK_LEN, self.end) }
    }
}

/// A view at `start`, if it lies in front of `end` as a whole.
///
/// # Safety
/// `start` is not in front of the frame, `end` is not behind its end, and nothing else uses this
/// part of the frame while the view lives.
#[inline(always)]
unsafe fn view<'a, T>(start: usize, end: usize) -> Option<&'a mut T> {
    const { assert!(align_of::<T>() == 1) };
    if start + size_of::<T>() > end {
        return None;
    }
    // SAFETY: inside the frame (checked above, and by the verifier); any bytes at any address are
    // a `T`, for it has no alignment and consists of integers.
    Some(unsafe { &mut *(start as *mut T) })
}
