//! Calls that cannot end well.

use std::sync::Arc;

use xdp_agg_quantize::{ElementType, Encoded, Format, Op, Scaling};

use super::by_hand::Alone;
use crate::worker::{Blocks, CallerError, DataBlock, Error};

/// Elements of a call.
const LEN: usize = 16;

/// A process of the host has left.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("local rank {0} left")]
struct Left(usize);

impl CallerError for Left {}

/// A call that cannot end well after some looks at it.
#[derive(Debug)]
struct Breaking {
    format: Format,
    well: u32,
    left: usize,
}

impl Breaking {
    fn after(well: u32, left: usize) -> Box<Self> {
        let format = Format::new(ElementType::I32, Op::Sum, Scaling::Block, None, 3);
        Box::new(Self { format: format.expect("it makes sense"), well, left })
    }
}

impl Blocks for Breaking {
    fn format(&self) -> &Format {
        &self.format
    }
    fn vector_len(&self) -> usize {
        LEN
    }
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
    fn cut(&mut self, _: u16) -> Result<u64, Error> {
        Ok(1)
    }
    fn elements(&self, _: DataBlock) -> usize {
        LEN
    }
    fn scanned(&self) -> DataBlock {
        DataBlock(0)
    }
    fn staged(&self) -> DataBlock {
        DataBlock(0)
    }
    fn key(&self, _: DataBlock) -> u16 {
        0
    }
    fn encode(&self, _: DataBlock, _: u16, _: &mut [u8]) -> Encoded {
        Encoded::default()
    }
    fn decode(&mut self, _: DataBlock, _: u16, _: Option<&[u8]>, _: u32) {}
    fn work(&mut self) -> Result<bool, Error> {
        match self.well.checked_sub(1) {
            Some(well) => {
                self.well = well;
                Ok(false)
            }
            None => Err(Error::Caller(Arc::new(Left(self.left)))),
        }
    }
    fn finished(&self) -> bool {
        false
    }
}

/// A process of the host that gave a call up, and left, broke its later calls too. The first says
/// why, also if it broke between the looks at it and at the others.
#[test]
fn the_first_call_that_broke_says_why() {
    for well in [0, 1] {
        let mut alone = Alone::running();
        for (well, left) in [(well, 1), (0, 2), (0, 3)] {
            alone.machine.start(Breaking::after(well, left)).expect("it runs");
        }
        assert!(!alone.machine.work());
        let reason = alone.machine.failure();
        assert_eq!(reason.map(ToString::to_string).as_deref(), Some("local rank 1 left"));
    }
}
