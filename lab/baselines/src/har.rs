//! H-AR: the hierarchical ring all-reduce that the Rina paper compares with.

use xdp_agg_client::Op;
use xdp_agg_mesh::{Error, Mesh};

use crate::collective::{About, BoxError, Collective};

/// All-reduce by rings inside the hosts (or racks) and across them, over TCP.
///
/// The groups are the mesh's: `LOCAL_WORLD_SIZE` ranks each, numbered group by group. With groups
/// of one it is the plain ring.
#[derive(Debug)]
pub struct Har {
    mesh: Mesh,
}

impl Har {
    /// Meets the others by the environment: see [`xdp_agg_mesh::Builder::from_env`].
    ///
    /// # Errors
    /// Settings that are missing or wrong; ranks that do not come.
    pub fn from_env() -> Result<Self, Error> {
        Ok(Self { mesh: Mesh::from_env()? })
    }

    /// Over these connections.
    pub const fn new(mesh: Mesh) -> Self {
        Self { mesh }
    }
}

impl Collective for Har {
    fn about(&self) -> About {
        (self.mesh.rank(), self.mesh.world_size(), "h-ar")
    }

    fn all_reduce_f32(&mut self, data: &mut [f32], op: Op) -> Result<(), BoxError> {
        Ok(self.mesh.hierarchical_all_reduce(data, op)?)
    }

    fn all_reduce_i32(&mut self, data: &mut [i32], op: Op) -> Result<(), BoxError> {
        Ok(self.mesh.hierarchical_all_reduce(data, op)?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn groups_average_to_the_same_bits() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut listener = Some(listener);
        let threads: Vec<_> = (0..4_u16)
            .map(|rank| {
                let builder = Mesh::builder().rank(rank).world_size(4).group_size(2);
                let builder = match listener.take() {
                    Some(listener) => builder.listener(listener),
                    None => builder.rendezvous(address),
                };
                thread::spawn(move || {
                    let mut har = Har::new(builder.open().expect("all come"));
                    assert_eq!((har.rank(), har.world_size(), har.system()), (rank, 4, "h-ar"));
                    let mut floats: Vec<f32> =
                        (0..1001).map(|i| f32::from(rank) + i as f32).collect();
                    har.all_reduce_f32(&mut floats, Op::Average).expect("all are well");
                    let mut least = [i32::from(rank), -i32::from(rank)];
                    har.all_reduce_i32(&mut least, Op::Min).expect("all are well");
                    assert_eq!(least, [0, -3]);
                    floats
                })
            })
            .collect();
        for thread in threads {
            let floats = thread.join().expect("no panic");
            assert!(floats.iter().enumerate().all(|(i, x)| *x == i as f32 + 1.5));
        }
    }
}
