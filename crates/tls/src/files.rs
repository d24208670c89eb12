//! Which files a side of TLS is made of, and the configurations made of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};

use crate::load::{Source, TlsError};

const CERTIFICATE: &str = "a certificate (and those between it and its authority)";
const KEY: &str = "a private key";
const AUTHORITY: &str = "the certificate of an authority";

/// The daemon's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, and those between it and its authority.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
    /// The authority that must have signed the certificates of clients. None: no
    /// certificate is asked for.
    pub client_ca: Option<PathBuf>,
}

/// A worker's or a tool's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// The authority that must have signed the daemon's certificate. None: no TLS.
    pub ca: Option<PathBuf>,
    /// A certificate of its own, for a daemon that asks for one.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate.
    pub key: Option<PathBuf>,
    /// The name in the daemon's certificate. None: the host that is connected to.
    pub name: Option<String>,
}

/// The daemon's side of TLS.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    certificates: Vec<CertificateDer<'static>>,
    client_ca: Vec<CertificateDer<'static>>,
}

/// The connecting side of TLS.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl ServerFiles {
    /// TLS made of these files; None where no file is named.
    ///
    /// # Errors
    /// A file that is missing or holds something else, or settings that need another one.
    pub fn load(&self) -> Result<Option<ServerTls>, TlsError> {
        let Self { certificate, key, client_ca } = self;
        match both(certificate.as_deref(), key.as_deref())? {
            Some((certificate, key)) => {
                ServerTls::from_files(certificate, key, client_ca.as_deref()).map(Some)
            }
            None if client_ca.is_some() => Err(TlsError::Half {
                given: "tls-client-ca",
                missing: "tls-cert",
                why: "certificates of clients can be asked for over TLS only, for which the \
                      daemon needs tls-cert and tls-key of its own",
            }),
            None => Ok(None),
        }
    }
}

impl ClientFiles {
    /// TLS made of these files; None where no file is named. `host` is what is connected to.
    ///
    /// # Errors
    /// A file that is missing or holds something else, or settings that need another one.
    pub fn load(&self, host: &str) -> Result<Option<ClientTls>, TlsError> {
        let Self { ca, certificate, key, name } = self;
        let identity = both(certificate.as_deref(), key.as_deref())?;
        let given = match (identity, name) {
            (Some(_), _) => "tls-cert",
            (None, Some(_)) => "tls-name",
            (None, None) => "",
        };
        match ca {
            Some(ca) => {
                let name = name.as_deref().unwrap_or(host);
                ClientTls::from_files(ca, identity, name).map(Some)
            }
            None if given.is_empty() => Ok(None),
            None => Err(TlsError::Half {
                given,
                missing: "tls-ca",
                why: "it names the authority that the daemon's certificate is checked against, \
                      without which there is no TLS",
            }),
        }
    }
}

/// A certificate and its key, or neither.
fn both<'a>(
    certificate: Option<&'a Path>,
    key: Option<&'a Path>,
) -> Result<Option<(&'a Path, &'a Path)>, TlsError> {
    let half = |given, missing| {
        Err(TlsError::Half { given, missing, why: "a certificate and its key go together" })
    };
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => half("tls-cert", "tls-key"),
        (None, Some(_)) => half("tls-key", "tls-cert"),
    }
}

fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let certificates =
        Source { setting: "tls-cert", path: certificate, expected: CERTIFICATE }.certificates()?;
    let key = Source { setting: "tls-key", path: key, expected: KEY }.key()?;
    Ok((certificates, key))
}

/// The error for a pair that rustls refuses.
fn refused(certificate: &Path, key: &Path) -> impl FnOnce(Error) -> TlsError {
    move |error| match error {
        Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch { key: key.into(), certificate: certificate.into() }
        }
        Error::InvalidCertificate(error) => TlsError::Content {
            setting: "tls-cert",
            path: certificate.into(),
            expected: CERTIFICATE,
            problem: format!("holds a certificate that cannot be understood ({error:?})"),
        },
        Error::General(problem) => TlsError::Content {
            setting: "tls-key",
            path: key.into(),
            expected: KEY,
            problem: format!("holds a key that cannot be used ({problem})"),
        },
        other => TlsError::Unusable(other),
    }
}

impl ServerTls {
    /// TLS with this certificate; with `client_ca`, clients must show a certificate that it
    /// signed.
    ///
    /// # Errors
    /// A file that is missing or holds something else; a key that is not the certificate's.
    pub fn from_files(
        certificate: &Path,
        key: &Path,
        client_ca: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?;
        let mut authorities = Vec::new();
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let source = Source { setting: "tls-client-ca", path, expected: AUTHORITY };
                let roots = Arc::new(source.authorities()?);
                authorities = source.certificates()?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| Error::General(error.to_string()))?,
                )
            }
        };
        let (certificates, secret) = identity(certificate, key)?;
        let mut config = builder
            .with_single_cert(certificates.clone(), secret)
            .map_err(refused(certificate, key))?;
        // Connections live long: to resume one later is not worth a secret that outlives it.
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), certificates, client_ca: authorities })
    }

    /// For the side that accepts connections.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// Whether clients must show a certificate.
    #[must_use]
    pub const fn asks_for_certificates(&self) -> bool {
        !self.client_ca.is_empty()
    }

    /// Its certificate, and those between it and its authority, in DER.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// The authorities that must have signed the certificates of clients, in DER. None: no
    /// certificate is asked for.
    #[must_use]
    pub fn client_ca(&self) -> &[CertificateDer<'static>] {
        &self.client_ca
    }
}

impl ClientTls {
    /// TLS with a daemon whose certificate `ca` signed for `name`, a host name or an IP address;
    /// `certificate_and_key` are shown to a daemon that asks.
    ///
    /// # Errors
    /// A file that is missing or holds something else; a key that is not the certificate's.
    pub fn from_files(
        ca: &Path,
        certificate_and_key: Option<(&Path, &Path)>,
        name: &str,
    ) -> Result<Self, TlsError> {
        let roots = Source { setting: "tls-ca", path: ca, expected: AUTHORITY }.authorities()?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots);
        let mut config = match certificate_and_key {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (certificates, secret) = identity(certificate, key)?;
                builder
                    .with_client_auth_cert(certificates, secret)
                    .map_err(refused(certificate, key))?
            }
        };
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| TlsError::Name { name: name.into() })?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// For rustls and what is built on it: its settings, and the name to be verified.
    #[must_use]
    pub fn connector(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (Arc::clone(&self.config), self.name.clone())
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asks = self.asks_for_certificates();
        f.debug_struct("ServerTls").field("asks_for_certificates", &asks).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("name", &self.name.to_str()).finish_non_exhaustive()
    }
}
