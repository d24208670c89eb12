//! PEM files to certificates and keys.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Largest file that is read: a bundle of a few hundred authorities. (`/dev/zero` has no end.)
const FILE_MAX: u64 = 4 << 20;

/// What is wrong with the settings of TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error(
        "{setting}: cannot read {path} ({source}); {expected} in PEM is expected there: check the \
         path, and that this user may read it",
        path = path.display()
    )]
    Read {
        /// The setting that names it.
        setting: &'static str,
        /// Its path.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what it should.
    #[error(
        "{setting}: {path} {problem}; {expected} in PEM is expected there",
        path = path.display()
    )]
    Content {
        /// The setting that names it.
        setting: &'static str,
        /// Its path.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The key is not the certificate's.
    #[error(
        "tls-key: the key in {key} does not fit the certificate in {certificate}: the first \
         certificate of that file must be the one that was made for this key",
        key = key.display(), certificate = certificate.display()
    )]
    KeyMismatch {
        /// File of the key.
        key: PathBuf,
        /// File of the certificate.
        certificate: PathBuf,
    },
    /// One setting needs another.
    #[error("{given} is set and {missing} is not: {why}")]
    Half {
        /// What is set.
        given: &'static str,
        /// What is not.
        missing: &'static str,
        /// What the missing one is for.
        why: &'static str,
    },
    /// The name to check the daemon's certificate against is not the name of a host or its address.
    #[error(
        "tls-name: {name:?} is neither a host name nor an IP address; give the name that is in \
         the daemon's certificate"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// rustls cannot use it.
    #[error("TLS cannot be used with these certificates: {0}")]
    Unusable(#[from] rustls::Error),
}

/// A file that a setting names.
pub(crate) struct Source<'a> {
    pub(crate) setting: &'static str,
    pub(crate) path: &'a Path,
    pub(crate) expected: &'static str,
}

impl Source<'_> {
    /// The certificates in the file, at least one.
    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let text = self.read()?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let all = all.map_err(|error| self.content(pem_problem(&error)))?;
        if all.is_empty() {
            return Err(self.content("holds no certificate".into()));
        }
        Ok(all)
    }

    /// The authorities in the file, at least one.
    pub(crate) fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| {
                self.content(format!("holds a certificate that cannot be understood ({error})"))
            })?;
        }
        Ok(roots)
    }

    /// The first key in the file. A warning is logged where others could read it too.
    pub(crate) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let text = self.read()?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                self.content("holds no private key (or only an encrypted one)".into())
            }
            error => self.content(pem_problem(&error)),
        })?;
        if let Some(warning) = crate::exposure(self.path) {
            tracing::warn!("{}: {warning}", self.setting);
        }
        Ok(key)
    }

    fn read(&self) -> Result<Vec<u8>, TlsError> {
        let read = || {
            let file = fs::File::open(self.path)?;
            let mut text = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, FILE_MAX), &mut text)?;
            Ok(text)
        };
        read().map_err(|source| TlsError::Read {
            setting: self.setting,
            path: self.path.into(),
            expected: self.expected,
            source,
        })
    }

    fn content(&self, problem: String) -> TlsError {
        let Self { setting, path, expected } = *self;
        TlsError::Content { setting, path: path.into(), expected, problem }
    }
}

fn pem_problem(error: &pem::Error) -> String {
    format!("is damaged ({error})")
}
