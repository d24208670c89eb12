//! Features of an interface (offloads) by the names that the kernel and `ethtool -k` use.

use std::io;

use tracing::{info, warn};

use super::Links;

const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const NAME_LEN: usize = 32;

/// Features of interfaces that were on and went off. Dropping it switches them on again.
#[derive(Debug, Default)]
pub struct SwitchedOff {
    all: Vec<(String, Vec<&'static str>)>,
    /// They stay off when this is dropped.
    pub keep: bool,
}

impl SwitchedOff {
    /// Notes that these features of the interface went off, if any did.
    pub fn note(&mut self, interface: &str, names: Vec<&'static str>) {
        if !names.is_empty() {
            let what = names.join(", ");
            info!(interface, "attaching switched {what} off; the end switches it on again");
            self.all.push((interface.into(), names));
        }
    }

    /// Those of one interface.
    #[must_use]
    pub fn of(&self, interface: &str) -> &[&'static str] {
        let found = self.all.iter().find(|(name, _)| name == interface);
        found.map_or(&[], |(_, names)| names)
    }
}

impl Drop for SwitchedOff {
    fn drop(&mut self) {
        let all = std::mem::take(&mut self.all);
        for (interface, names) in all.into_iter().filter(|_| !self.keep) {
            let what = names.join(", ");
            let changes: Vec<_> = names.iter().map(|name| (*name, true)).collect();
            match Links::open().and_then(|links| links.set_features(&interface, &changes)) {
                Ok(()) => info!(interface, "switched {what} on again"),
                Err(error) => warn!(interface, "{what} stays off: {error}"),
            }
        }
    }
}

impl Links {
    /// Which of these features are on. One that the interface does not know is off.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, otherwise the system's.
    pub fn features_on(
        &self,
        interface: &str,
        names: &[&'static str],
    ) -> io::Result<Vec<&'static str>> {
        let known = self.feature_names(interface)?;
        let words = known.len().div_ceil(32);
        // cmd, size, then per word: available, requested, active, never changed.
        let mut data = vec![0; 2 + 4 * words];
        (data[0], data[1]) = (ETHTOOL_GFEATURES, words as u32);
        self.words(interface, &mut data)?;
        let is_on = |name: &&&str| {
            let bit = known.iter().position(|known| known == **name);
            bit.is_some_and(|bit| data[4 + 4 * (bit / 32)] >> (bit % 32) & 1 == 1)
        };
        Ok(names.iter().filter(is_on).copied().collect())
    }

    /// Switches features on or off. One that the interface does not know is left alone.
    ///
    /// # Errors
    /// `NotFound` if there is no such interface, otherwise the system's.
    pub fn set_features(&self, interface: &str, changes: &[(&str, bool)]) -> io::Result<()> {
        let known = self.feature_names(interface)?;
        let words = known.len().div_ceil(32);
        // cmd, size, then per word: which bits are meant, what they shall be.
        let mut data = vec![0; 2 + 2 * words];
        (data[0], data[1]) = (ETHTOOL_SFEATURES, words as u32);
        for (name, on) in changes {
            if let Some(bit) = known.iter().position(|known| known == name) {
                data[2 + 2 * (bit / 32)] |= 1 << (bit % 32);
                data[3 + 2 * (bit / 32)] |= u32::from(*on) << (bit % 32);
            }
        }
        self.words(interface, &mut data)
    }

    /// Names of all features; the index is the number of the bit.
    fn feature_names(&self, interface: &str) -> io::Result<Vec<String>> {
        // cmd, reserved, mask (64 bits), then one length for the one set that is asked for.
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        self.words(interface, &mut info)?;
        let mut data = vec![0; 3 + info[4] as usize * NAME_LEN / 4];
        data[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, info[4]]);
        self.words(interface, &mut data)?;
        let bytes: Vec<u8> = data[3..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let name = |raw: &[u8]| {
            let text = raw.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        Ok(bytes.chunks_exact(NAME_LEN).map(name).collect())
    }

    /// A command whose structure is a list of words, which has room for the answer.
    fn words(&self, interface: &str, data: &mut [u32]) -> io::Result<()> {
        // SAFETY: the lists above have the lengths that their commands read and write.
        unsafe { self.ethtool(interface, data) }
    }
}
