//! An authority of this installation's own, and what it signs.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// How long certificates are valid.
const VALID: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How far the clock of a worker may be behind.
const BEHIND: Duration = Duration::from_secs(24 * 3600);
/// The authority's name. It is always the same, so that its key is all that has to be kept.
const NAME: &str = "xdp-agg authority";

/// An authority that signs what it is asked to.
pub(super) struct Authority {
    params: CertificateParams,
    key: KeyPair,
}

/// A certificate and its key, in PEM.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Authority {
    /// The one with this key in PEM, or a new one.
    pub(super) fn load_or_make(key: Option<&str>) -> Result<Self> {
        let key = match key {
            Some(pem) => KeyPair::from_pem(pem).context("ca.key does not hold a private key")?,
            None => KeyPair::generate().context("making a key")?,
        };
        let mut params = params(&[], NAME)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(Self { params, key })
    }

    pub(super) fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Its certificate, in PEM.
    pub(super) fn pem(&self) -> Result<String> {
        let signed = self.params.self_signed(&self.key).context("signing the authority")?;
        Ok(signed.pem())
    }

    /// A certificate for host names and IP addresses. It serves both sides: a daemon shows its own
    /// to the daemons below it in a tree.
    pub(super) fn issue(&self, names: &[String], subject: &str) -> Result<Identity> {
        let mut params = params(names, subject)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().context("making a key")?;
        let issuer = Issuer::from_params(&self.params, &self.key);
        let signed = params.signed_by(&key, &issuer).context("signing a certificate")?;
        Ok(Identity { certificate: signed.pem(), key: key.serialize_pem() })
    }
}

fn params(names: &[String], subject: &str) -> Result<CertificateParams> {
    let mut names = names.to_vec();
    names.sort();
    names.dedup();
    let mut params =
        CertificateParams::new(names).context("a certificate cannot hold a name of this host")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    let now = SystemTime::now();
    (params.not_before, params.not_after) = ((now - BEHIND).into(), (now + VALID).into());
    Ok(params)
}
