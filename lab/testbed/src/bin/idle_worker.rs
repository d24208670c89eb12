//! A worker for tests that kill one: joins with the settings of the environment, says `joined`, and
//! does nothing for a minute.

use std::time::Duration;

use xdp_agg_client::{Communicator, Error};

fn main() -> Result<(), Error> {
    let communicator = Communicator::from_env()?;
    println!("joined rank={}", communicator.rank());
    std::thread::sleep(Duration::from_secs(60));
    Ok(())
}
