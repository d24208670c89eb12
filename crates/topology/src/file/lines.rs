//! Values of a file, and the lines that they are in.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::ops::Range;

use toml::Spanned;
use xdp_agg_common::control::{CONTROL_PORT, IPV4_ONLY, ipv6};

use crate::units::{EXPECTED, Rate};

use super::{Fault, FileError};

/// Finds lines.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a>(pub(super) &'a str);

impl Lines<'_> {
    pub(super) fn line(self, span: &Range<usize>) -> usize {
        let before = self.0.as_bytes().iter().take(span.start);
        before.filter(|byte| **byte == b'\n').count() + 1
    }

    pub(super) fn error(self, span: &Range<usize>, fault: Fault) -> FileError {
        FileError { line: self.line(span), fault }
    }

    /// The value as a type that is written as text.
    pub(super) fn read<T: std::str::FromStr>(
        self,
        value: &Spanned<String>,
        key: &'static str,
        expected: &'static str,
    ) -> Result<T, FileError> {
        value.get_ref().parse().map_err(|_| self.unexpected(value, key, expected))
    }

    pub(super) fn rate(
        self,
        value: &Spanned<String>,
        key: &'static str,
    ) -> Result<Rate, FileError> {
        let expected = EXPECTED;
        self.read(value, key, expected)
    }

    /// A name that an interface can have: the kernel's `dev_valid_name`.
    pub(super) fn interface(self, value: &Spanned<String>) -> Result<String, FileError> {
        let name = value.get_ref();
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':');
        if (1..=15).contains(&name.len()) && name != "." && name != ".." && !name.contains(odd) {
            return Ok(name.clone());
        }
        let expected = "an interface's name: 1 to 15 bytes without blanks, slashes and colons";
        Err(self.unexpected(value, "interface", expected))
    }

    /// A host's address.
    pub(super) fn address(self, value: &Spanned<String>) -> Result<Ipv4Addr, FileError> {
        let key = "address";
        self.not_ipv6(value, key)?;
        let address = self.read(value, key, "an IPv4 address, such as \"10.0.0.1\"")?;
        self.unicast(address, value, key)?;
        Ok(address)
    }

    /// A daemon's address with or without a port.
    pub(super) fn control(self, value: &Spanned<String>) -> Result<SocketAddrV4, FileError> {
        let key = "aggregator";
        self.not_ipv6(value, key)?;
        let control = match value.get_ref().parse() {
            Ok(address) => SocketAddrV4::new(address, CONTROL_PORT),
            Err(_) => {
                let expected = "an IPv4 address and a port, such as \"10.0.0.254:9870\"";
                self.read(value, key, expected)?
            }
        };
        self.unicast(*control.ip(), value, key)?;
        if control.port() == 0 {
            let expected = "a port from 1 to 65535; without one it is 9870";
            return Err(self.unexpected(value, key, expected));
        }
        Ok(control)
    }

    fn not_ipv6(self, value: &Spanned<String>, key: &'static str) -> Result<(), FileError> {
        match ipv6(value.get_ref()) {
            Some(_) => Err(self.unexpected(value, key, IPV4_ONLY)),
            None => Ok(()),
        }
    }

    /// An address that one host can have. Several on one machine may share the loopback network.
    fn unicast(
        self,
        address: Ipv4Addr,
        value: &Spanned<String>,
        key: &'static str,
    ) -> Result<(), FileError> {
        if address.octets()[0] == 0 || address.is_multicast() || address.is_broadcast() {
            let expected = "the address of one host: neither 0.0.0.0 nor multicast or broadcast";
            return Err(self.unexpected(value, key, expected));
        }
        Ok(())
    }

    /// A value that its key cannot have.
    pub(super) fn unexpected(
        self,
        value: &Spanned<String>,
        key: &'static str,
        expected: &'static str,
    ) -> FileError {
        let fault = Fault::Value { key, value: value.get_ref().clone(), expected };
        self.error(&value.span(), fault)
    }
}
