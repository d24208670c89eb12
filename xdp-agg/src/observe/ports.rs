//! The kernel's counters of network interfaces.

use std::fs;
use std::io;

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Its name.
    pub(super) name: String,
    /// Bytes that came in.
    pub(super) rx_bytes: u64,
    /// Packets that came in.
    pub(super) rx_packets: u64,
    /// Of what came in, lost for want of room.
    pub(super) rx_dropped: u64,
    /// Bytes that went out.
    pub(super) tx_bytes: u64,
    /// Packets that went out.
    pub(super) tx_packets: u64,
    /// Of what was to go out, lost.
    pub(super) tx_dropped: u64,
}

/// All interfaces of this thread's network namespace. (`/sys` shows those of the namespace in which
/// it was mounted.)
///
/// # Errors
/// The system's.
pub(super) fn traffic() -> io::Result<Vec<Traffic>> {
    Ok(read(&fs::read_to_string("/proc/thread-self/net/dev")?))
}

/// Reads `/proc/net/dev`: two lines of head, then `name: ` and 16 numbers.
fn read(text: &str) -> Vec<Traffic> {
    text.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Traffic> {
    let (name, numbers) = line.rsplit_once(':')?;
    let numbers: Option<Vec<u64>> =
        numbers.split_whitespace().map(|number| number.parse().ok()).collect();
    let numbers = numbers.filter(|numbers| numbers.len() >= 12)?;
    Some(Traffic {
        name: name.trim().into(),
        rx_bytes: numbers[0],
        rx_packets: numbers[1],
        rx_dropped: numbers[3],
        tx_bytes: numbers[8],
        tx_packets: numbers[9],
        tx_dropped: numbers[11],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    \
                    packets errs drop fifo colls carrier compressed\n    lo: 1 2 3 4 5 6 7 8 9 10 \
                    11 12 13 14 15 16\neth0.5@x:17 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\nodd: 1\n";
        let lo = Traffic {
            name: "lo".into(),
            rx_bytes: 1,
            rx_packets: 2,
            rx_dropped: 4,
            tx_bytes: 9,
            tx_packets: 10,
            tx_dropped: 12,
        };
        let eth = Traffic { name: "eth0.5@x".into(), rx_bytes: 17, ..lo.clone() };
        assert_eq!(read(text), [lo, eth]);
    }

    #[test]
    fn loopback_is_among_the_interfaces() {
        let all = traffic().expect("procfs is mounted");
        assert!(all.iter().any(|one| one.name == "lo"), "{all:?}");
    }
}
