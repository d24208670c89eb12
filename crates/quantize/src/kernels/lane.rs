//! Lanes of 16, 32 and 64 bits as bytes at any address, little-endian.

use super::tiles::zip_map;

/// An unsigned lane.
pub(crate) trait Lane: Copy + Ord + 'static {
    /// Its bytes.
    type Bytes: Copy;
    const ZERO: Self;
    const MAX: Self;
    fn to_bytes(self) -> Self::Bytes;
    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn split(bytes: &[u8]) -> &[Self::Bytes];
    fn split_mut(bytes: &mut [u8]) -> &mut [Self::Bytes];
}

macro_rules! lane {
    ($($lane:ty: $bytes:literal;)*) => {$(
        impl Lane for $lane {
            type Bytes = [u8; $bytes];
            const ZERO: Self = 0;
            const MAX: Self = <$lane>::MAX;
            #[inline(always)]
            fn to_bytes(self) -> [u8; $bytes] {
                self.to_le_bytes()
            }
            #[inline(always)]
            fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn split(bytes: &[u8]) -> &[[u8; $bytes]] {
                bytes.as_chunks().0
            }
            #[inline(always)]
            fn split_mut(bytes: &mut [u8]) -> &mut [[u8; $bytes]] {
                bytes.as_chunks_mut().0
            }
        }
    )*};
}

lane! {
    u16: 2;
    u32: 4;
    u64: 8;
}

/// Makes an element of each lane, as many as `to` holds.
#[inline(always)]
pub(crate) fn decode_lanes<T: Copy, L: Lane>(from: &[u8], to: &mut [T], element: impl Fn(L) -> T) {
    let lanes = &L::split(from)[..to.len()];
    let Some(pad) = lanes.first() else {
        return;
    };
    let make = |lane| element(L::from_bytes(lane));
    zip_map(&[lanes], to, *pad, |lane| lane, |lane, _| lane, make);
}
