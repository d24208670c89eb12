//! A veth pair whose two ends are both in this network namespace, and a route through it to an
//! address that no host has. What is sent there comes in on the far end.

use std::io;
use std::net::Ipv4Addr;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage, LinkXdp,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{Error, Handle, new_connection};

use super::Links;

/// One end of a pair, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its name.
    pub name: String,
    /// Its number.
    pub ifindex: u32,
    /// The text that was written on it.
    pub alias: Option<String>,
    /// An XDP program is attached.
    pub program: bool,
    mac: Vec<u8>,
}

/// A pair that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Name of the end that the host sends by and receives on.
    pub near: &'a str,
    /// Name of the end that the way leads to.
    pub far: &'a str,
    /// What is written on the near end.
    pub alias: &'a str,
    /// MTU of both ends.
    pub mtu: u32,
    /// Queues in each direction, of both ends.
    pub queues: u32,
}

/// The interface of this name. None: no interface has it.
///
/// # Errors
/// The system's.
pub fn find(name: &str) -> io::Result<Option<End>> {
    ask(async |handle| match end(&handle, name).await {
        Err(Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => Ok(None),
        found => found.map(Some),
    })
}

/// Removes an interface, and a veth's other end with it. A missing one is not an error.
///
/// # Errors
/// The system's.
pub fn remove(name: &str) -> io::Result<()> {
    match find(name)? {
        Some(end) => ask(async |handle| handle.link().del(end.ifindex).execute().await),
        None => Ok(()),
    }
}

/// Makes a pair, up, whose near end takes in what XDP redirects into the far one; returns the far
/// end. A pair that could not be made as a whole is removed.
///
/// # Errors
/// The system's: no privilege, no veth driver, a name that is taken.
pub fn make(wanted: &Wanted<'_>) -> io::Result<End> {
    ask(async |handle| handle.link().add(message(wanted)).execute().await)?;
    let made = ask(async |handle| {
        let (near, far) = (end(&handle, wanted.near).await?, end(&handle, wanted.far).await?);
        let mut mark = link(near.ifindex);
        mark.attributes.push(LinkAttribute::IfAlias(wanted.alias.into()));
        handle.link().change(mark).execute().await?;
        for end in [&near, &far] {
            let mut quiet = link(end.ifindex);
            let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
            let mode = AfSpecUnspec::Inet6(vec![mode]);
            quiet.attributes.push(LinkAttribute::AfSpecUnspec(vec![mode]));
            // A kernel without IPv6 refuses, and has nothing to be quiet about.
            let _ = handle.link().change(quiet).execute().await;
            let mut up = link(end.ifindex);
            (up.header.flags, up.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
            handle.link().change(up).execute().await?;
        }
        Ok(far)
    });
    let made = made.and_then(|far| Links::open()?.set_gro(wanted.near, true).map(|()| far));
    if made.is_err() {
        // The error that is told is the first one.
        let _ = remove(wanted.near);
    }
    made
}

/// Leads what is sent to `addr` by the near end of a pair to its far end. False: something else
/// has this address here.
///
/// # Errors
/// The system's.
pub fn lead(near: &str, far: &End, addr: Ipv4Addr) -> io::Result<bool> {
    ask(async |handle| {
        let near = end(&handle, near).await?.ifindex;
        match handle.route().add(way(near, addr)).execute().await {
            Err(Error::NetlinkError(error)) if error.raw_code() == -libc::EEXIST => {
                return Ok(false);
            }
            done => done?,
        }
        let neighbour = handle.neighbours().add(near, addr.into());
        neighbour.link_layer_address(&far.mac).replace().execute().await?;
        Ok(true)
    })
}

fn link(ifindex: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = ifindex;
    message
}

fn message(wanted: &Wanted<'_>) -> LinkMessage {
    let end = |name: &str| {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.into()),
            LinkAttribute::Mtu(wanted.mtu),
            LinkAttribute::NumTxQueues(wanted.queues),
            LinkAttribute::NumRxQueues(wanted.queues),
        ];
        message
    };
    let mut message = end(wanted.near);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end(wanted.far)))),
    ]));
    message
}

/// A route to one address, in the table that is asked before all rules: a rule by source address
/// must not lead elsewhere.
fn way(near: u32, addr: Ipv4Addr) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header = RouteHeader {
        address_family: AddressFamily::Inet,
        destination_prefix_length: 32,
        table: libc::RT_TABLE_LOCAL,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Link,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    route.attributes =
        vec![RouteAttribute::Destination(RouteAddress::Inet(addr)), RouteAttribute::Oif(near)];
    route
}

async fn end(handle: &Handle, name: &str) -> Result<End, Error> {
    let found = handle.link().get().match_name(name.to_owned()).execute().try_next().await?;
    let message = found.ok_or(Error::RequestFailed)?;
    let mut end = End {
        name: name.into(),
        ifindex: message.header.index,
        alias: None,
        program: false,
        mac: Vec::new(),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfAlias(alias) => end.alias = Some(alias),
            LinkAttribute::Address(mac) => end.mac = mac,
            LinkAttribute::Xdp(xdp) => {
                end.program = xdp.iter().any(|xdp| matches!(xdp, LinkXdp::ProgId(id) if *id != 0));
            }
            _ => {}
        }
    }
    Ok(end)
}

/// Asks the kernel on a thread of its own, in the caller's namespace: the caller may be a task, and
/// a task must not wait.
pub(super) fn ask<T: Send>(
    question: impl AsyncFnOnce(Handle) -> Result<T, Error> + Send,
) -> io::Result<T> {
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async {
            let (connection, handle, _) = new_connection()?;
            // The task ends with its last handle.
            tokio::spawn(connection);
            question(handle).await.map_err(|error| match error {
                Error::NetlinkError(error) => error.to_io(),
                error => io::Error::other(error.to_string()),
            })
        })
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the question panicked")))
    })
}
