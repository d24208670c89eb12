//! Which block of a call is what, in the protocol's words (`docs/numerics.md`).
//!
//! With block scaling each data block has a key, and keys go into blocks of their own. A block of
//! keys has as many as a full block has 16-bit lanes, and serves one *group* of data blocks. All
//! data come in their order. The first data have enough blocks of keys before them that 1024 data
//! blocks, and one group, lie between keys and what they are for. Each of the others stands right
//! behind as much data as keeps it at that distance: a whole number of groups.

use xdp_agg_common::lanes::CHUNK_LEN;

use super::Seal;

/// Data blocks between keys and what they are for, at least.
const DISTANCE: u64 = 1024;

/// What a block of a call holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Keys of a group.
    Keys(u64),
    /// A data block.
    Data(u64),
    /// The call's seal, and nothing else.
    Seal,
}

/// The order of a call's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) data: u64,
    /// Data blocks whose keys are in one block, if there are keys.
    group: Option<u64>,
    seal: Seal,
}

impl Layout {
    pub(crate) fn new(data: u64, keys: bool, chunks: u16) -> Self {
        let keys_of_a_block = u64::from(chunks) * CHUNK_LEN as u64 / size_of::<u16>() as u64;
        Self { data, group: keys.then_some(keys_of_a_block), seal: Seal::None }
    }

    /// The same, sealed.
    pub(crate) fn with(self, seal: Seal) -> Self {
        Self { seal, ..self }
    }

    /// Whether a block ends with the call's seal.
    pub(crate) fn is_sealed(&self, index: u64) -> bool {
        match self.seal {
            Seal::None => false,
            Seal::Behind(at) => at == index,
            Seal::Alone => self.part(index) == Content::Seal,
        }
    }

    /// Blocks of keys.
    pub(crate) fn groups(&self) -> u64 {
        self.group.map_or(0, |group| self.data.div_ceil(group))
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.data + self.groups() + u64::from(self.seal == Seal::Alone)
    }

    /// Where the keys of a group are, among the call's blocks.
    pub(crate) fn keys_at(&self, group: u64) -> u64 {
        let Some(len) = self.group else { return 0 };
        let leading = DISTANCE.div_ceil(len) + 1;
        // All keys of earlier groups, and the data that this one stands behind.
        group + (group + 1).saturating_sub(leading) * len
    }

    pub(crate) fn part(&self, index: u64) -> Content {
        if index == self.data + self.groups() {
            return Content::Seal;
        }
        let before = (0..self.groups()).take_while(|group| self.keys_at(*group) < index).count();
        let before = before as u64;
        let is_keys = before < self.groups() && self.keys_at(before) == index;
        if is_keys { Content::Keys(before) } else { Content::Data(index - before) }
    }

    /// Where a data block's key is, if it has one: the block of keys among the call's blocks, and
    /// the place in it.
    pub(crate) fn key_of(&self, data: u64) -> Option<(u64, usize)> {
        self.group.map(|len| (self.keys_at(data / len), (data % len) as usize))
    }

    /// Data blocks of a group: from, and to.
    pub(crate) fn group(&self, group: u64) -> (u64, u64) {
        let len = self.group.unwrap_or_default();
        (group * len, ((group + 1) * len).min(self.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_well_before_their_data() {
        for (data, chunks) in [(0, 1), (1, 1), (40, 1), (33, 2), (1056, 1), (1057, 1), (1300, 2)] {
            let layout = Layout::new(data, true, chunks);
            let parts: Vec<_> = (0..layout.blocks()).map(|index| layout.part(index)).collect();
            let of = |wanted: &dyn Fn(&Content) -> bool| parts.iter().filter(|p| wanted(p)).count();
            assert_eq!(of(&|part| matches!(part, Content::Data(_))) as u64, data);
            for (at, part) in parts.iter().enumerate() {
                if let Content::Data(block) = part {
                    let (keys, _) = layout.key_of(*block).expect("it has keys");
                    let between = parts[keys as usize..at].len() as u64;
                    let leads =
                        parts[..keys as usize].iter().all(|p| matches!(p, Content::Keys(_)));
                    assert!(matches!(parts[keys as usize], Content::Keys(_)));
                    assert!(leads || between > DISTANCE, "{data} {chunks} {at}");
                }
            }
        }
    }
}
