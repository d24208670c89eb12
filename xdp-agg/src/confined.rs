//! What the daemon gives up once its engine is open: it parses what strangers send.

mod files;

use std::fmt;
use std::io;
use std::path::PathBuf;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

/// What a running XDP engine needs: to write maps and pins, and to attach the program once more,
/// switch offloads on again and remove the pair of veths.
const XDP: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::NET_ADMIN);
/// Numbers that a capability can have.
const NUMBERS: u32 = u64::BITS;

/// Something was not permitted, as in some containers. The daemon can go on without it.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Refusal {
    what: &'static str,
    source: io::Error,
}

/// What is left.
#[derive(Debug)]
pub struct Confined {
    kept: CapabilitySet,
    /// Whether the kernel keeps it from writing files of others, and from executing programs.
    pub files: bool,
    /// What the system did not permit.
    pub refused: Vec<Refusal>,
}

/// Confines this process. The calling thread, and those that it starts from now on, keep of their
/// capabilities those of the engine alone. No program that they execute gets any, and nobody gets a
/// core file with token and cookies in it. With `writable` they execute no program, and write no
/// file but below these directories.
#[must_use]
pub fn confine(xdp: bool, writable: Option<&[PathBuf]>) -> Confined {
    let wanted = if xdp { XDP } else { CapabilitySet::empty() };
    let (kept, mut refused) = confine_thread(wanted);
    // Only after `no_new_privs` everybody may do this.
    let files = writable.map_or(Ok(false), files::write_only_below).unwrap_or_else(|error| {
        refused.push(Refusal { what: "keeping it from files", source: io::Error::other(error) });
        false
    });
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    refused.extend(refusal("keeping core files and debuggers away", hidden));
    Confined { kept, files, refused }
}

/// Confines a thread that needs no capability. What is not permitted is told for the process.
pub(crate) fn confine_helper() {
    let _ = confine_thread(CapabilitySet::empty());
}

fn confine_thread(wanted: CapabilitySet) -> (CapabilitySet, Vec<Refusal>) {
    let mut refused = Vec::new();
    let now = match capabilities(None) {
        Ok(now) => now,
        Err(error) => {
            refused.extend(refusal("asking for its capabilities", Err(error)));
            CapabilitySets {
                effective: CapabilitySet::empty(),
                permitted: CapabilitySet::empty(),
                inheritable: CapabilitySet::empty(),
            }
        }
    };
    // Others may not change this set. For them it means nothing, as no program gets more anyway.
    if now.effective.contains(CapabilitySet::SETPCAP) {
        refused.extend(refusal("emptying the bounding set", empty_bounding_set()));
    }
    refused.extend(refusal("emptying the ambient set", clear_ambient_capability_set()));
    let kept = now.permitted & wanted;
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    refused.extend(refusal("giving capabilities up", set_capabilities(None, sets)));
    refused.extend(refusal("no_new_privs", set_no_new_privs(true)));
    (kept, refused)
}

fn empty_bounding_set() -> rustix::io::Result<()> {
    for number in 0..NUMBERS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(one) {
            Ok(true) => remove_capability_from_bounding_set(one)?,
            Ok(false) => {}
            // This kernel has no more of them.
            Err(_) => break,
        }
    }
    Ok(())
}

fn refusal(what: &'static str, done: rustix::io::Result<()>) -> Option<Refusal> {
    done.err().map(|error| Refusal { what, source: error.into() })
}

impl fmt::Display for Confined {
    /// The capabilities that are left.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kept.is_empty() {
            return f.write_str("none");
        }
        for (at, (name, _)) in self.kept.iter_names().enumerate() {
            write!(f, "{}CAP_{name}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a thread of its own: the other tests keep what they have.
    #[test]
    fn a_confined_thread_has_nothing_and_gets_nothing() {
        let confined = std::thread::spawn(|| {
            let (kept, refused) = confine_thread(CapabilitySet::empty());
            assert!(kept.is_empty() && refused.is_empty(), "{refused:?}");
            let left = capabilities(None).expect("every thread may ask");
            assert!(left.permitted.is_empty() && left.effective.is_empty(), "{left:?}");
            let more = CapabilitySets { permitted: XDP, ..left };
            assert!(set_capabilities(None, more).is_err(), "what was given up stays so");
            assert!(rustix::thread::no_new_privs().expect("every thread may ask"));
        });
        confined.join().expect("it is confined");
    }

    #[test]
    fn what_is_kept_is_named() {
        let text = |kept| Confined { kept, files: true, refused: Vec::new() }.to_string();
        assert_eq!(text(XDP), "CAP_NET_ADMIN, CAP_BPF");
        assert_eq!(text(CapabilitySet::empty()), "none");
    }
}
