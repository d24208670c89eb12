//! Many datagrams a system call: `recvmmsg` with UDP GRO, `sendmmsg` with UDP GSO.
//!
//! GRO hands over a worker's burst as one buffer, GSO takes all results for one worker as one
//! message; the kernel (or the NIC) cuts and joins. Both together are several times cheaper than a
//! packet at a time.
#![expect(unsafe_code, reason = "recvmmsg, sendmmsg and their control messages are C interfaces")]

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::ptr;

use socket2::Socket;
use tracing::{debug, warn};
use xdp_agg_common::wire::HEADER_LEN;

/// Messages of one system call.
const BATCH: usize = 64;
/// Room for one received message: the most that GRO joins.
const BUFFER_LEN: usize = 1 << 16;
/// Most packets of one GSO message (kernels before 6.9 refuse more).
const SEGMENTS_MAX: usize = 64;
/// Most bytes of one GSO message: below the 65 507 that an IPv4 packet leaves.
const GSO_BYTES_MAX: usize = 65_000;
/// Room for the control messages: `in_pktinfo` and a segment size, each aligned.
const CONTROL_LEN: usize = 64;

const _: () = {
    // SAFETY: CMSG_SPACE only computes.
    let needed = unsafe {
        libc::CMSG_SPACE(size_of::<libc::in_pktinfo>() as u32)
            + libc::CMSG_SPACE(size_of::<libc::c_int>() as u32)
    };
    assert!(needed as usize <= CONTROL_LEN);
};

/// Control messages, aligned as the kernel's macros want them.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

const NO_CONTROL: Control = Control([0; CONTROL_LEN]);

/// Sets the socket options that the standard wrappers lack; returns the receive buffer in bytes.
///
/// # Errors
/// The system's.
pub(super) fn configure(socket: &Socket, receive_buffer: usize) -> io::Result<usize> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    whole_packets(socket)?;
    let wanted = libc::c_int::try_from(receive_buffer).unwrap_or(libc::c_int::MAX);
    if set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted).is_err() {
        // Without the privilege, as much as `net.core.rmem_max` allows.
        socket.set_recv_buffer_size(receive_buffer)?;
    }
    // The kernel reports twice the room for data.
    Ok(socket.recv_buffer_size()? / 2)
}

/// Packets are never fragmented on their way, and claims about the path's MTU (ICMP) are not
/// believed: full-size probes have been answered over the path.
///
/// # Errors
/// The system's.
pub(super) fn whole_packets(socket: &Socket) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
}

/// Sends one packet from this address of the host.
///
/// # Errors
/// The system's.
pub(super) fn send_one(
    socket: &Socket,
    from: Ipv4Addr,
    to: SocketAddrV4,
    bytes: &[u8],
) -> io::Result<()> {
    let mut iovec =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let (mut name, mut control) = (name_of(to), NO_CONTROL);
    // SAFETY: a message header of zeros is valid.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut iovec;
    header.msg_iovlen = 1;
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_LEN as _;
    // SAFETY: the header's control buffer is zeroed, aligned and CONTROL_LEN bytes long.
    header.msg_controllen = unsafe { write_control(&header, from, None) } as _;
    // SAFETY: the header points to memory of this function and its caller, which is only read.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set(socket: &Socket, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an integer of the length that is given.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The buffers of received messages.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    names: Vec<libc::sockaddr_in>,
    controls: Vec<Control>,
    lens: Vec<(usize, usize)>,
}

/// One received message: one or more packets of one sender.
pub(super) struct Message<'a> {
    pub(super) from: SocketAddrV4,
    /// All its packets, end to end.
    pub(super) bytes: &'a mut [u8],
    /// Length of each, but for the last, which may be shorter. Never 0.
    pub(super) segment: usize,
    /// Where `bytes` lies in the inbox.
    pub(super) offset: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BATCH * BUFFER_LEN],
            names: vec![empty_name(); BATCH],
            controls: vec![NO_CONTROL; BATCH],
            lens: Vec::with_capacity(BATCH),
        }
    }

    /// Waits for one message at least, until the socket's timeout; returns how many there are.
    ///
    /// # Errors
    /// The system's; a timeout is `WouldBlock`.
    pub(super) fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        self.lens.clear();
        let mut iovecs: [libc::iovec; BATCH] =
            [libc::iovec { iov_base: ptr::null_mut(), iov_len: BUFFER_LEN }; BATCH];
        // SAFETY: a message header of zeros is valid: null pointers and lengths of zero.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        let buffers = self.bytes.chunks_exact_mut(BUFFER_LEN);
        for (i, buffer) in buffers.enumerate() {
            iovecs[i].iov_base = buffer.as_mut_ptr().cast();
            let header = &mut headers[i].msg_hdr;
            header.msg_iov = &raw mut iovecs[i];
            header.msg_iovlen = 1;
            header.msg_name = (&raw mut self.names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_control = (&raw mut self.controls[i]).cast();
            header.msg_controllen = CONTROL_LEN as _;
        }
        // SAFETY: every header points to buffers, names and controls of the lengths that it gives,
        // which live until the call returns.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as _,
                libc::MSG_WAITFORONE as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        for header in &headers[..count] {
            let len = header.msg_len as usize;
            // SAFETY: the kernel filled this header and its control buffer.
            let segment = unsafe { segment_len(&header.msg_hdr) }.unwrap_or(len);
            self.lens.push((len, segment.max(1)));
        }
        Ok(count)
    }

    /// A message of the last [`Self::receive`].
    pub(super) fn message(&mut self, index: usize) -> Message<'_> {
        let (len, segment) = self.lens[index];
        let name = &self.names[index];
        let offset = index * BUFFER_LEN;
        Message {
            from: SocketAddrV4::new(
                Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr)),
                u16::from_be(name.sin_port),
            ),
            bytes: &mut self.bytes[offset..offset + len],
            segment,
            offset,
        }
    }
}

/// Packet length that GRO reports.
///
/// # Safety
/// `header` must be one that `recvmsg` filled, with its control buffer alive.
unsafe fn segment_len(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the header's control buffer is valid, as the caller promises; the macros stay in it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = at.as_ref() {
            if control.cmsg_level == libc::SOL_UDP && control.cmsg_type == libc::UDP_GRO {
                let value = libc::CMSG_DATA(at).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(value).ok();
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
        None
    }
}

/// One packet to send: a header of its own in front of a payload in the inbox.
#[derive(Clone, Copy)]
pub(super) struct Outgoing {
    pub(super) to: SocketAddrV4,
    /// Address that it leaves from.
    pub(super) from: Ipv4Addr,
    pub(super) header: [u8; HEADER_LEN],
    /// Where the payload lies in the inbox.
    pub(super) offset: u32,
    /// Length of the payload in bytes.
    pub(super) len: u32,
}

/// Sends packets; keeps its tables between calls. It holds pointers only during a call.
#[derive(Default)]
pub(super) struct Outbox {
    gso: bool,
    /// GSO was given up for a refusal that may have had another reason. The next message, a single
    /// packet, decides: if it is refused too, the reason was not GSO.
    doubt: bool,
    failures: u64,
    order: Vec<u32>,
    groups: Vec<std::ops::Range<usize>>,
    iovecs: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_in>,
    controls: Vec<Control>,
    headers: Vec<libc::mmsghdr>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { gso: true, ..Self::default() }
    }

    /// Sends all of `packets`, in their order for each receiver. What the system refuses is
    /// dropped, as on a wire, and told in the log (1st, 2nd, 4th, … time).
    pub(super) fn send(&mut self, socket: &Socket, packets: &[Outgoing], inbox: &Inbox) {
        self.order.clear();
        self.order.extend(0..packets.len() as u32);
        self.order.sort_unstable_by_key(|&i| {
            let packet = &packets[i as usize];
            (u32::from(*packet.to.ip()), packet.to.port(), u32::from(packet.from), i)
        });
        let mut done = 0;
        while done < packets.len() {
            self.group(packets, done);
            self.lay_out(packets, inbox);
            done = self.submit(socket, packets);
        }
    }

    /// Groups the packets from `start` on in messages: one receiver, one length.
    fn group(&mut self, packets: &[Outgoing], start: usize) {
        self.groups.clear();
        let mut at = start;
        while at < packets.len() && self.groups.len() < BATCH {
            let first = &packets[self.order[at] as usize];
            let size = HEADER_LEN + first.len as usize;
            let most = if self.gso { SEGMENTS_MAX.min(GSO_BYTES_MAX / size).max(1) } else { 1 };
            let same = self.order[at..].iter().take(most).take_while(|&&i| {
                let packet = &packets[i as usize];
                packet.to == first.to && packet.from == first.from && packet.len == first.len
            });
            let end = at + same.count();
            self.groups.push(at..end);
            at = end;
        }
    }

    /// Builds the message headers of the groups.
    fn lay_out(&mut self, packets: &[Outgoing], inbox: &Inbox) {
        let Self { order, groups, iovecs, names, controls, headers, .. } = self;
        iovecs.clear();
        names.clear();
        controls.clear();
        headers.clear();
        for group in groups.iter() {
            for &i in &order[group.clone()] {
                let packet = &packets[i as usize];
                let payload = &inbox.bytes[packet.offset as usize..][..packet.len as usize];
                for part in [&packet.header[..], payload] {
                    let iov_base = part.as_ptr().cast_mut().cast();
                    iovecs.push(libc::iovec { iov_base, iov_len: part.len() });
                }
            }
            let first = &packets[order[group.start] as usize];
            names.push(name_of(first.to));
            controls.push(NO_CONTROL);
        }
        // The tables are complete and do not move any more: now they can be pointed to.
        let mut iovec = 0;
        for (i, group) in groups.iter().enumerate() {
            let first = &packets[order[group.start] as usize];
            // SAFETY: a message header of zeros is valid.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut message.msg_hdr;
            header.msg_iov = &raw mut iovecs[iovec];
            header.msg_iovlen = (2 * group.len()) as _;
            header.msg_name = (&raw mut names[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            header.msg_control = (&raw mut controls[i]).cast();
            header.msg_controllen = CONTROL_LEN as _;
            let segment = (group.len() > 1).then_some(HEADER_LEN as u16 + first.len as u16);
            // SAFETY: the header's control buffer is zeroed, aligned and CONTROL_LEN bytes long.
            header.msg_controllen = unsafe { write_control(header, first.from, segment) } as _;
            headers.push(message);
            iovec += 2 * group.len();
        }
    }

    /// Sends the groups; returns the index of the first packet that is still to be sent.
    fn submit(&mut self, socket: &Socket, packets: &[Outgoing]) -> usize {
        let mut sent = 0;
        while sent < self.headers.len() {
            let rest = &mut self.headers[sent..];
            // SAFETY: the headers point to tables of `self`, to `packets` and to the inbox, all of
            // them borrowed by the caller and not changed since they were laid out; the kernel only
            // reads what they point to.
            let count = unsafe {
                libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as _, 0)
            };
            if let Ok(count) = usize::try_from(count) {
                sent += count;
                self.doubt = false;
                continue;
            }
            let error = io::Error::last_os_error();
            let group = self.groups[sent].clone();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::EMSGSIZE)
                    if self.gso && group.len() > 1 =>
                {
                    debug!("this path does not take UDP GSO ({error}): one packet at a time");
                    self.gso = false;
                    self.doubt = true;
                    return group.start;
                }
                _ => {
                    // A single packet was refused, too: the reason was not GSO.
                    self.gso |= std::mem::take(&mut self.doubt);
                    self.failures += group.len() as u64;
                    if self.failures.is_power_of_two() {
                        let to = packets[self.order[group.start] as usize].to;
                        warn!(failures = self.failures, %to, "cannot send a result: {error}");
                    }
                    sent += 1;
                }
            }
        }
        self.groups.last().map_or(packets.len(), |group| group.end)
    }
}

/// Writes source address and segment length; returns the length of the control messages.
///
/// # Safety
/// `header` must have a zeroed, aligned control buffer of [`CONTROL_LEN`] bytes.
unsafe fn write_control(header: &libc::msghdr, from: Ipv4Addr, segment: Option<u16>) -> usize {
    let info = libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: libc::in_addr { s_addr: u32::from(from).to_be() },
        ipi_addr: libc::in_addr { s_addr: 0 },
    };
    // SAFETY: CONTROL_LEN holds both messages (asserted above), so the macros' pointers are valid.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        (*first).cmsg_level = libc::IPPROTO_IP;
        (*first).cmsg_type = libc::IP_PKTINFO;
        (*first).cmsg_len = libc::CMSG_LEN(size_of::<libc::in_pktinfo>() as u32) as _;
        libc::CMSG_DATA(first).cast::<libc::in_pktinfo>().write_unaligned(info);
        let mut len = libc::CMSG_SPACE(size_of::<libc::in_pktinfo>() as u32);
        if let Some(segment) = segment {
            let second = libc::CMSG_NXTHDR(header, first);
            (*second).cmsg_level = libc::SOL_UDP;
            (*second).cmsg_type = libc::UDP_SEGMENT;
            (*second).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(second).cast::<u16>().write_unaligned(segment);
            len += libc::CMSG_SPACE(size_of::<u16>() as u32);
        }
        len as usize
    }
}

fn name_of(to: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

fn empty_name() -> libc::sockaddr_in {
    name_of(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0))
}
