//! Interfaces that stand for a VLAN of another interface.

use std::io;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo};
use rtnetlink::{Error, Handle};

use super::pair::ask;

/// The VLAN that an interface stands for, and the name of the one that carries it. None: the
/// interface stands for none.
///
/// # Errors
/// The system's; `NotFound`: the carrying interface is not in this namespace.
pub fn of(name: &str) -> io::Result<Option<(u16, String)>> {
    let found = ask(async |handle| {
        let found = handle.link().get().match_name(name.to_owned()).execute().try_next().await?;
        let attributes = found.map(|link| link.attributes).unwrap_or_default();
        let Some(id) = attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => number(infos),
            _ => None,
        }) else {
            return Ok(None);
        };
        Ok(Some((id, carrier(&handle, &attributes).await?)))
    });
    match found {
        Ok(None) => Ok(None),
        Ok(Some((id, Some(carrier)))) => Ok(Some((id, carrier))),
        Ok(Some((id, None))) => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("the interface that carries VLAN {id} is not in this network namespace"),
        )),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of a VLAN.
pub(crate) fn number(infos: &[LinkInfo]) -> Option<u16> {
    infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vlan(of)) => of.iter().find_map(|of| match of {
            InfoVlan::Id(id) => Some(*id),
            _ => None,
        }),
        _ => None,
    })
}

async fn carrier(handle: &Handle, of: &[LinkAttribute]) -> Result<Option<String>, Error> {
    let elsewhere = of.iter().any(|at| matches!(at, LinkAttribute::LinkNetNsId(_)));
    let Some(below) = of.iter().find_map(|attribute| match attribute {
        LinkAttribute::Link(index) if !elsewhere => Some(*index),
        _ => None,
    }) else {
        return Ok(None);
    };
    let found = handle.link().get().match_index(below).execute().try_next().await?;
    let attributes = found.map(|link| link.attributes).unwrap_or_default();
    Ok(attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vlan_has_a_number_and_others_have_none() {
        let infos = [LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(7)]))];
        assert_eq!(number(&infos), Some(7));
        assert_eq!(number(&[]), None);
        assert_eq!(of("lo").expect("netlink answers"), None);
        assert_eq!(of("no-such-if0").expect("netlink answers"), None);
    }
}
