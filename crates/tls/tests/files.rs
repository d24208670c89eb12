//! What is said where files are not what they should be.

use std::fs;
use std::path::Path;

use xdp_agg_tls::testing::{Authority, Valid};
use xdp_agg_tls::{ClientFiles, ServerFiles, TlsError};

/// Asserts that the error says all of `words`.
fn says<T: std::fmt::Debug>(result: Result<T, TlsError>, words: &[&str]) {
    let text = result.expect_err("it is wrong").to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in {text:?}");
    }
}

#[test]
fn right_files_are_loaded_and_none_is_no_tls() {
    let authority = Authority::new("test");
    let ca = &authority.ca;
    let one = authority.issue("10.0.0.1", Valid::Now);
    let server = one.server().load().expect("all is right").expect("files are named");
    assert!(!server.asks_for_certificates());
    let asking = ServerFiles { client_ca: Some(ca.clone()), ..one.server() };
    let server = asking.load().expect("all is right").expect("files are named");
    assert!(server.asks_for_certificates());
    let client = one.client(ca).load("10.0.0.1").expect("all is right").expect("a CA is named");
    assert!(format!("{client:?}").contains("10.0.0.1"));
    assert!(ServerFiles::default().load().expect("nothing is right").is_none());
    assert!(ClientFiles::default().load("10.0.0.1").expect("nothing is right").is_none());
}

#[test]
fn a_file_that_is_wrong_is_named_with_its_setting() {
    let authority = Authority::new("test");
    let (one, two) = (authority.issue("one", Valid::Now), authority.issue("two", Valid::Now));
    let directory = authority.directory();
    let nowhere = directory.join("nowhere.pem");
    let text = directory.join("text.pem");
    fs::write(&text, "not PEM at all\n").expect("it can be written");
    let damaged = directory.join("damaged.pem");
    let whole = fs::read_to_string(&one.certificate).expect("it is there");
    fs::write(&damaged, whole.replace("END", "BIN")).expect("it can be written");
    let garbled = directory.join("garbled.pem");
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(&garbled, nonsense).expect("it can be written");
    let load = |certificate: &Path, key: &Path, ca: Option<&Path>| {
        let [certificate, key] = [certificate, key].map(|path| Some(path.into()));
        ServerFiles { certificate, key, client_ca: ca.map(Into::into) }.load()
    };
    let (certificate, key) = (&one.certificate, &one.key);
    says(load(&nowhere, key, None), &["tls-cert", "nowhere.pem", "certificate", "check the path"]);
    says(load(&text, key, None), &["tls-cert", "text.pem", "no certificate"]);
    says(load(key, key, None), &["tls-cert", "one.key", "no certificate"]);
    says(load(&damaged, key, None), &["tls-cert", "damaged.pem", "damaged"]);
    says(load(&garbled, key, None), &["tls-cert", "garbled.pem", "cannot be understood"]);
    says(load(certificate, certificate, None), &["tls-key", "one.pem", "no private key"]);
    says(load(certificate, &two.key, None), &["two.key", "does not fit", "one.pem"]);
    says(load(certificate, key, Some(&nowhere)), &["tls-client-ca", "nowhere.pem", "authority"]);
    says(load(certificate, key, Some(&garbled)), &["tls-client-ca", "garbled.pem"]);
    says(one.client(&nowhere).load("one"), &["tls-ca", "nowhere.pem"]);
    says(one.client(&authority.ca).load("not a name!"), &["tls-name", "not a name!"]);
    let endless = ClientFiles { ca: Some("/dev/zero".into()), ..ClientFiles::default() };
    says(endless.load("one"), &["tls-ca", "/dev/zero", "no certificate"]);
}

#[test]
fn half_a_pair_is_told() {
    let some = || Some("x".into());
    let server = ServerFiles { certificate: some(), ..ServerFiles::default() };
    says(server.load(), &["tls-cert is set", "tls-key is not"]);
    let server = ServerFiles { key: some(), ..ServerFiles::default() };
    says(server.load(), &["tls-key is set", "tls-cert is not"]);
    let server = ServerFiles { client_ca: some(), ..ServerFiles::default() };
    says(server.load(), &["tls-client-ca is set", "tls-cert is not"]);
    let client = ClientFiles { certificate: some(), key: some(), ..ClientFiles::default() };
    says(client.load("one"), &["tls-cert is set", "tls-ca is not"]);
    let client = ClientFiles { name: Some("x".into()), ..ClientFiles::default() };
    says(client.load("one"), &["tls-name is set", "tls-ca is not"]);
}
