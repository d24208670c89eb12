//! Lanes of 16, 32 and 64 bits as bytes at any address, little-endian.

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
