//! Probes to a job's parent, from sockets.

use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Protocol, Socket, Type};
use xdp_agg_common::frame::{IP_LEN, UDP_LEN};
use xdp_agg_common::maps::{JobConf, Uplink};
use xdp_agg_protocol::sum::uplink::{address, probe};

use super::mmsg::{send_one, whole_packets};
use super::{EngineConfig, EngineError};

/// Sends a probe from a socket that is bound to the data port.
///
/// # Errors
/// No route, or a packet that is longer than the path takes.
pub(super) fn send_probe(socket: &Socket, conf: &JobConf, up: &Uplink) -> Result<(), EngineError> {
    let packet = probe(conf, up);
    send_one(socket, conf.addr.into(), address(up), &packet).map_err(|error| {
        let what = format!(
            "a probe of {} bytes to the parent aggregator {}",
            packet.len() + IP_LEN + UDP_LEN,
            address(up)
        );
        EngineError::Other { what, source: error.into() }
    })
}

/// Sends probes where the data path is in the kernel and has no socket. The answers do not come
/// back to this one: the program on the interface takes them.
#[derive(Debug)]
pub(super) struct Prober {
    addr: SocketAddrV4,
    socket: Option<Socket>,
}

impl Prober {
    /// For the data path of this configuration. The socket is opened when it is needed.
    pub(super) fn new(config: &EngineConfig) -> Self {
        let addr = config.data_addr.unwrap_or(Ipv4Addr::UNSPECIFIED);
        Self { addr: SocketAddrV4::new(addr, config.data_port), socket: None }
    }

    /// Sends a probe.
    ///
    /// # Errors
    /// The data port is another socket's here, or see [`send_probe`].
    pub(super) fn probe(&mut self, conf: &JobConf, up: &Uplink) -> Result<(), EngineError> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => open(self.addr)?,
        };
        let sent = send_probe(&socket, conf, up);
        self.socket = Some(socket);
        sent
    }
}

fn open(addr: SocketAddrV4) -> Result<Socket, EngineError> {
    let bound = || {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        whole_packets(&socket)?;
        // Nobody reads from it.
        socket.set_recv_buffer_size(0)?;
        socket.bind(&addr.into())?;
        Ok(socket)
    };
    bound().map_err(|error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => EngineError::PortInUse(addr),
        _ => EngineError::Other { what: format!("UDP socket on {addr}"), source: error.into() },
    })
}
