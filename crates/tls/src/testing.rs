//! Authorities and certificates for tests.
//!
//! Panics where anything fails: there is nobody to tell but the test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tempfile::TempDir;

use crate::{ClientFiles, ServerFiles};

/// An authority that signs what it is asked to. Its files are gone with it.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
    /// The file of its certificate.
    pub ca: PathBuf,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Valid {
    /// Now.
    Now,
    /// It has expired.
    Past,
    /// Not yet.
    Future,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// No key, certificate or directory can be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("it can sign itself");
        let directory = tempfile::tempdir().expect("a directory");
        let ca = write(directory.path(), "ca.pem", &issuer.pem());
        Self { issuer, directory, ca }
    }

    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What a client without a certificate needs.
    #[must_use]
    pub fn trusting(&self) -> ClientFiles {
        ClientFiles { ca: Some(self.ca.clone()), ..ClientFiles::default() }
    }

    /// Makes a certificate for a host name or an IP address, and its key.
    ///
    /// # Panics
    /// They cannot be made or written.
    #[must_use]
    pub fn issue(&self, name: &str, valid: Valid) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("it is a name");
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (date_time_ymd(2000, 1, 1), date_time_ymd(4000, 1, 1)),
            Valid::Past => (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1)),
            Valid::Future => (date_time_ymd(3999, 1, 1), date_time_ymd(4000, 1, 1)),
        };
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("it can be signed");
        let name = match valid {
            Valid::Now => name.to_owned(),
            other => format!("{name}-{other:?}"),
        };
        Identity {
            certificate: write(self.directory(), &format!("{name}.pem"), &certificate.pem()),
            key: write(self.directory(), &format!("{name}.key"), &key.serialize_pem()),
        }
    }
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("the directory can be written to");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
    path
}

impl Identity {
    /// As the daemon's.
    #[must_use]
    pub fn server(&self) -> ServerFiles {
        ServerFiles {
            certificate: Some(self.certificate.clone()),
            key: Some(self.key.clone()),
            client_ca: None,
        }
    }

    /// As that of a worker or a tool, which trusts `ca`.
    #[must_use]
    pub fn client(&self, ca: &Path) -> ClientFiles {
        ClientFiles {
            ca: Some(ca.into()),
            certificate: Some(self.certificate.clone()),
            key: Some(self.key.clone()),
            name: None,
        }
    }
}
