//! What ranks of a mesh read from each other: first words, and the headers of messages. Only the
//! crate that has the mesh's sockets knows them.

use xdp_agg_mesh::inspect::{self, HEADER_LEN};

use xdp_agg_fuzz::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "mesh",
    about: "headers of the mesh's messages, and a caller's first words",
    run,
    text: false,
    tokens: "xam\u{1}\n\
             {\"version\":2,\"rank\":0,\"world_size\":2,\"occasion\":\"\",\"proof\":0}",
    features: &["a header", "no header", "first words"],
};

fn run(input: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    for bytes in input.chunks(HEADER_LEN) {
        let mut header = [0; HEADER_LEN];
        header[..bytes.len()].copy_from_slice(bytes);
        match inspect::rewrite_header(&header) {
            Some(written) => {
                outcome.note(0);
                outcome.accepted = true;
                assert_eq!(inspect::rewrite_header(&written), Some(written));
            }
            None => outcome.note(1),
        }
    }
    if inspect::are_first_words(input) {
        outcome.note(2);
        outcome.accepted = true;
    }
    outcome
}
