//! What netlink and ethtool say about interfaces.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp};
use rtnetlink::packet_route::nsid::{NsidAttribute, NsidMessage};
use rtnetlink::{Error, Handle, new_connection};

use super::{Facts, Peer, Stack};
use crate::link::{Links, in_namespace, vlan};

/// Where `ip netns` keeps namespaces by name.
const NAMESPACES: &str = "/run/netns";

/// The facts of each interface, in order; None where there is no such interface.
pub(super) async fn gather(names: &[String]) -> io::Result<Vec<Option<Facts>>> {
    let links = Links::open()?;
    let (connection, handle, _) = new_connection()?;
    // The task ends with its last handle.
    tokio::spawn(connection);
    let messages: Vec<LinkMessage> =
        handle.link().get().execute().try_collect().await.map_err(|error| match error {
            Error::NetlinkError(error) => error.to_io(),
            error => io::Error::other(error.to_string()),
        })?;
    let here: Vec<(u32, Link)> =
        messages.iter().map(|message| (message.header.index, Link::from(message))).collect();
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        let mut facts = one(&handle, &links, name).await?;
        if let Some(facts) = &mut facts {
            facts.stack = stack(name, &here);
        }
        all.push(facts);
    }
    Ok(all)
}

async fn one(handle: &Handle, links: &Links, name: &str) -> io::Result<Option<Facts>> {
    let Some(message) = ask(handle, Which::Name(name)).await? else {
        return Ok(None);
    };
    let link = Link::from(&message);
    let driver = links.driver(name).ok();
    let peer = match (driver.as_deref(), link.peer) {
        (Some("veth"), Some(index)) => Some(peer(handle, links, index, link.namespace).await),
        (Some("veth"), None) => Some(Peer { elsewhere: true, ..Peer::default() }),
        _ => None,
    };
    Ok(Some(Facts {
        name: name.to_owned(),
        up: link.up,
        mtu: link.mtu.unwrap_or(0),
        offloads: links.offloads(name),
        driver,
        stack: Stack::default(),
        program: link.program,
        rx_queues: link.rx_queues,
        peer,
    }))
}

/// What stands above and below an interface, among all of this namespace.
fn stack(name: &str, all: &[(u32, Link)]) -> Stack {
    let Some((index, link)) = all.iter().find(|(_, link)| link.name.as_deref() == Some(name))
    else {
        return Stack::default();
    };
    let names = |wanted: &dyn Fn(&Link) -> bool| {
        let found = all.iter().filter(|(_, link)| wanted(link));
        found.filter_map(|(_, link)| link.name.clone()).collect::<Vec<_>>()
    };
    let parent = link.peer.and_then(|below| all.iter().find(|(index, _)| *index == below));
    let parent = parent.and_then(|(_, link)| link.name.clone());
    Stack {
        vlan: link.vlan.map(|id| (id, parent.unwrap_or_else(|| "the interface below".into()))),
        ports: names(&|link| link.above == Some(*index)),
        vlans: names(&|link| link.vlan.is_some() && link.peer == Some(*index)),
    }
}

/// The other end of a veth, as far as it can be seen.
async fn peer(handle: &Handle, links: &Links, index: u32, namespace: Option<i32>) -> Peer {
    let which = Which::Index { index, namespace };
    // In another namespace this takes a privilege there; without it nothing is known.
    let Ok(Some(message)) = ask(handle, which).await else {
        return Peer { elsewhere: namespace.is_some(), ..Peer::default() };
    };
    let link = Link::from(&message);
    let mut peer = Peer {
        elsewhere: namespace.is_some(),
        namespace: None,
        mtu: link.mtu,
        gro: None,
        program: Some(link.program.is_some()),
        tx_queues: link.tx_queues,
        name: link.name.clone(),
    };
    let name = link.name.unwrap_or_default();
    match namespace {
        None => peer.gro = links.offloads(&name).gro,
        Some(id) => {
            if let Some((at, file)) = find_namespace(handle, id).await {
                let gro = || Links::open().ok().and_then(|links| links.offloads(&name).gro);
                peer.gro = in_namespace(&file, gro).ok().flatten();
                peer.namespace = Some(at);
            }
        }
    }
    peer
}

/// The named namespace that has this number here.
async fn find_namespace(handle: &Handle, id: i32) -> Option<(String, File)> {
    for entry in std::fs::read_dir(NAMESPACES).ok()?.flatten() {
        let Ok(file) = File::open(entry.path()) else {
            continue;
        };
        if number_of(handle, &file).await == Some(id) {
            return Some((entry.file_name().to_string_lossy().into_owned(), file));
        }
    }
    None
}

/// The number of another namespace as this one counts them.
async fn number_of(handle: &Handle, namespace: &File) -> Option<i32> {
    let mut message = NsidMessage::default();
    message.attributes.push(NsidAttribute::Fd(namespace.as_raw_fd().unsigned_abs()));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetNsId(message));
    request.header.flags = NLM_F_REQUEST;
    let mut replies = handle.clone().request(request).ok()?;
    match replies.next().await?.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNsId(reply)) => {
            reply.attributes.iter().find_map(|attribute| match attribute {
                NsidAttribute::Id(id) => Some(*id),
                _ => None,
            })
        }
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Which<'a> {
    Name(&'a str),
    Index { index: u32, namespace: Option<i32> },
}

async fn ask(handle: &Handle, which: Which<'_>) -> io::Result<Option<LinkMessage>> {
    let mut request = handle.link().get();
    match which {
        Which::Name(name) => request = request.match_name(name.to_owned()),
        Which::Index { index, namespace } => {
            request = request.match_index(index);
            if let Some(namespace) = namespace {
                request.message_mut().attributes.push(LinkAttribute::IfNetnsId(namespace));
            }
        }
    }
    match request.execute().try_next().await {
        Ok(message) => Ok(message),
        Err(Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => Ok(None),
        Err(Error::NetlinkError(error)) => Err(error.to_io()),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// The attributes that matter here.
#[derive(Default)]
struct Link {
    name: Option<String>,
    up: bool,
    mtu: Option<u32>,
    /// The other end, or the interface below.
    peer: Option<u32>,
    /// The bridge or bond that it is a port of.
    above: Option<u32>,
    vlan: Option<u16>,
    namespace: Option<i32>,
    program: Option<u32>,
    rx_queues: Option<u32>,
    tx_queues: Option<u32>,
}

impl From<&LinkMessage> for Link {
    fn from(message: &LinkMessage) -> Self {
        let up = message.header.flags.contains(LinkFlags::Up);
        let mut link = Self { up, ..Self::default() };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = Some(name.clone()),
                LinkAttribute::Mtu(mtu) => link.mtu = Some(*mtu),
                LinkAttribute::Link(index) => link.peer = Some(*index),
                LinkAttribute::Controller(index) => link.above = Some(*index),
                LinkAttribute::LinkInfo(infos) => link.vlan = vlan::number(infos),
                LinkAttribute::LinkNetNsId(id) => link.namespace = Some(*id),
                LinkAttribute::NumRxQueues(count) => link.rx_queues = Some(*count),
                LinkAttribute::NumTxQueues(count) => link.tx_queues = Some(*count),
                LinkAttribute::Xdp(xdp) => {
                    link.program = xdp.iter().find_map(|xdp| match xdp {
                        LinkXdp::ProgId(id)
                        | LinkXdp::DrvProgId(id)
                        | LinkXdp::SkbProgId(id)
                        | LinkXdp::HwProgId(id) => Some(*id),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_and_ports_are_found() {
        let named = |name: &str| Link { name: Some(name.into()), ..Link::default() };
        let all = [
            (2, Link { above: Some(3), ..named("eth0") }),
            (3, named("br0")),
            (4, Link { peer: Some(2), vlan: Some(100), ..named("eth0.100") }),
            (5, Link { peer: Some(2), ..named("macvlan0") }),
        ];
        let eth0 = stack("eth0", &all);
        assert_eq!((eth0.vlan, eth0.vlans), (None, vec!["eth0.100".to_owned()]));
        assert_eq!(stack("br0", &all).ports, ["eth0"]);
        assert_eq!(stack("eth0.100", &all).vlan, Some((100, "eth0".into())));
        assert_eq!(stack("none", &all), Stack::default());
    }
}
