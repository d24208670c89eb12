//! The subject that a certificate names, for logs.

/// Most characters of the answer.
const LEN_MAX: usize = 200;
/// Attributes that are shown, by their object identifiers: `2.5.4.x`.
const SHOWN: [([u8; 3], &str); 3] =
    [([0x55, 4, 3], "CN"), ([0x55, 4, 10], "O"), ([0x55, 4, 11], "OU")];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// The version, which certificates of version 1 do not have.
const VERSION: u8 = 0xa0;

/// The subject of a certificate, such as `CN=worker-3, O=Example`. The certificate must have been
/// verified: this only reads it.
#[must_use]
pub fn subject(certificate: &[u8]) -> String {
    let names = name_of(certificate).map(attributes).unwrap_or_default();
    if names.is_empty() {
        return "(a certificate without a subject)".into();
    }
    // What a log shows must not be able to look like another line of it.
    let text = names.join(", ");
    text.chars().filter(|c| !c.is_control()).take(LEN_MAX).collect()
}

/// One element of DER: its tag, its content, and what follows it.
fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = input.split_first_chunk::<2>()?;
    // Up to 127 it is the length, above that it says how many bytes the length has.
    let (len, rest) = match first.checked_sub(0x80) {
        None => (usize::from(first), rest),
        Some(count @ 1..=3) => {
            let (bytes, rest) = rest.split_at_checked(usize::from(count))?;
            (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        Some(_) => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// Content of the first element, if it has this tag.
fn expect(input: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    element(input).filter(|(tag, ..)| *tag == wanted).map(|(_, content, rest)| (content, rest))
}

/// The subject's name within a certificate: version, serial number, algorithm, issuer, validity,
/// and then it.
fn name_of(certificate: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = expect(certificate, SEQUENCE)?;
    let (mut rest, _) = expect(certificate, SEQUENCE)?;
    if let Some((_, behind)) = expect(rest, VERSION) {
        rest = behind;
    }
    for _ in ["serial number", "algorithm", "issuer", "validity"] {
        rest = element(rest)?.2;
    }
    Some(expect(rest, SEQUENCE)?.0)
}

fn attributes(mut name: &[u8]) -> Vec<String> {
    let mut shown = Vec::new();
    while let Some((mut set, rest)) = expect(name, SET) {
        while let Some((pair, behind)) = expect(set, SEQUENCE) {
            shown.extend(attribute(pair));
            set = behind;
        }
        name = rest;
    }
    shown
}

fn attribute(pair: &[u8]) -> Option<String> {
    let (identifier, rest) = expect(pair, OBJECT_IDENTIFIER)?;
    let (_, label) = SHOWN.iter().find(|(known, _)| known == identifier)?;
    let (_, value, _) = element(rest)?;
    Some(format!("{label}={}", String::from_utf8_lossy(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.example".into()]).expect("a host name");
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, name) in names {
            params.distinguished_name.push(kind.clone(), *name);
        }
        let key = KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_subject_is_read() {
        let all = [
            (DnType::CommonName, "worker-3"),
            (DnType::CountryName, "NZ"),
            (DnType::OrganizationName, "Ärger\nInc"),
        ];
        assert_eq!(subject(&certificate(&all)), "CN=worker-3, O=ÄrgerInc");
        let long = "x".repeat(5000);
        let long = subject(&certificate(&[(DnType::CommonName, &long)]));
        assert_eq!(long.len(), LEN_MAX);
        assert_eq!(subject(&certificate(&[])), "(a certificate without a subject)");
    }

    #[test]
    fn damaged_bytes_are_no_subject_and_no_panic() {
        let whole = certificate(&[(DnType::CommonName, "worker-3")]);
        for cut in 0..whole.len() {
            assert!(!subject(&whole[..cut]).is_empty());
            let mut damaged = whole.clone();
            damaged[cut] ^= 0xff;
            assert!(!subject(&damaged).is_empty());
        }
    }
}
