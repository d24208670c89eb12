//! Which instructions the kernels use: portable ones, AVX2 or AVX-512, chosen once.
//!
//! Each kernel is written once, in plain Rust. This module has it compiled for each of the
//! instruction sets and calls the one that the CPU has; every path gives the same bits. (No path
//! contracts a multiplication and an addition into one operation: that would round once less.) The
//! one conversion that plain Rust has no good word for is in `path`.
//!
//! `XDP_AGG_SIMD=portable|avx2|avx512` asks for one of them.

use std::sync::OnceLock;

use crate::types::UnknownName;

mod path;

pub(crate) use path::{Path, Peaks, will_read, will_write};

/// The environment variable that asks for a level.
pub const VARIABLE: &str = "XDP_AGG_SIMD";

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[derive(strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownName, parse_err_fn = no_level)]
pub enum Level {
    /// What every CPU of the target has.
    Portable,
    /// AVX2: vectors of 256 bits.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: vectors of 512 bits.
    Avx512,
}

impl Level {
    /// All of them, from the least.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The name in the environment and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    fn is_supported(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }
}

fn no_level(name: &str) -> UnknownName {
    UnknownName::new("level of SIMD", name, "portable, avx2 or avx512")
}

/// Why a level cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimdError {
    /// The CPU has not got these instructions.
    #[error("this CPU cannot run {asked}: its best is {best}; choose that, or unset {VARIABLE}")]
    Unsupported {
        /// What was asked for.
        asked: Level,
        /// The best that there is.
        best: Level,
    },
    /// The environment variable holds something else.
    #[error("{VARIABLE}: {0}")]
    Unknown(#[from] UnknownName),
}

/// A level that this CPU is known to have: a value for any other level cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simd(Level);

impl Simd {
    /// The portable path.
    pub const PORTABLE: Self = Self(Level::Portable);

    /// Exactly this level.
    ///
    /// # Errors
    /// The CPU does not have it.
    pub fn new(level: Level) -> Result<Self, SimdError> {
        if level.is_supported() {
            Ok(Self(level))
        } else {
            Err(SimdError::Unsupported { asked: level, best: Self::best().0 })
        }
    }

    /// The best that the CPU has.
    #[must_use]
    pub fn best() -> Self {
        let best = Level::ALL.into_iter().rev().find(|level| level.is_supported());
        Self(best.unwrap_or(Level::Portable))
    }

    /// What the environment asks for, or the best.
    ///
    /// # Errors
    /// [`VARIABLE`] names no level, or one that the CPU does not have.
    pub fn from_environment() -> Result<Self, SimdError> {
        match std::env::var(VARIABLE) {
            Ok(name) if !name.is_empty() => Self::new(name.parse()?),
            _ => Ok(Self::best()),
        }
    }

    /// What this process uses unless told otherwise: [`Self::from_environment`], read once. Where
    /// that is an error, the best; programs that want to tell their users ask beforehand.
    #[must_use]
    pub fn of_process() -> Self {
        static CHOSEN: OnceLock<Simd> = OnceLock::new();
        *CHOSEN.get_or_init(|| Self::from_environment().unwrap_or_else(|_| Self::best()))
    }

    /// All that this CPU has, from the least.
    pub fn supported() -> impl Iterator<Item = Self> {
        Level::ALL.into_iter().filter_map(|level| Self::new(level).ok())
    }

    /// The level.
    #[must_use]
    pub const fn level(self) -> Level {
        self.0
    }

    /// Runs plain Rust as compiled for this level: the closure has to be `#[inline(always)]`.
    #[inline(always)]
    pub(crate) fn plain<R>(self, work: impl FnOnce() -> R) -> R {
        self.run(Plain(work))
    }

    /// Runs a kernel as compiled for this level.
    #[inline(always)]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Simd` of this level exists only where the CPU was found to have AVX2.
            Level::Avx2 => unsafe { avx2(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Simd` of this level exists only where the CPU was found to have all four.
            Level::Avx512 => unsafe { avx512(kernel) },
            _ => kernel.run::<path::Portable>(),
        }
    }
}

/// Plain Rust as a kernel.
struct Plain<F>(F);

impl<R, F: FnOnce() -> R> Kernel for Plain<F> {
    type Output = R;

    #[inline(always)]
    fn run<P: Path>(self) -> R {
        (self.0)()
    }
}

/// A computation to compile for each level: `run` has to be `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run<P: Path>(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<path::Avx2>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<path::Avx512>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_a_path() {
        assert_eq!(Simd::supported().next(), Some(Simd::PORTABLE));
        assert_eq!(Simd::supported().last(), Some(Simd::best()));
        assert_eq!(Simd::new(Simd::best().level()), Ok(Simd::best()));
        for level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let unknown = "sse9".parse::<Level>().unwrap_err();
        assert!(unknown.to_string().contains("portable, avx2 or avx512"), "{unknown}");
    }

    #[test]
    fn what_the_cpu_lacks_is_refused() {
        for level in Level::ALL {
            assert_eq!(Simd::new(level).is_ok(), level.is_supported());
        }
        let refused = SimdError::Unsupported { asked: Level::Avx512, best: Level::Avx2 };
        assert!(refused.to_string().contains("its best is avx2"), "{refused}");
    }
}
