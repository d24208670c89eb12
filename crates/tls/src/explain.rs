//! What TLS means by its errors, in sentences that say what to do.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Which side reads the explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The daemon; its peer is a worker or a tool.
    Daemon,
    /// A worker or a tool; its peer is the daemon.
    Client,
}

/// An error of a connection over TLS, in words. Other errors keep theirs.
#[must_use]
pub fn explain(error: &io::Error, side: Side) -> String {
    match rustls_error(error) {
        Some(error) => sentence(error, side),
        None if error.kind() == io::ErrorKind::UnexpectedEof => match side {
            Side::Daemon => "it ended the connection in the middle of TLS".into(),
            Side::Client => "the daemon ended the connection in the middle of TLS: it may be \
                             restarting or have too many connections from here; its log says more"
                .into(),
        },
        None => error.to_string(),
    }
}

/// The error of TLS within one of input and output.
pub(crate) fn rustls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

fn sentence(error: &Error, side: Side) -> String {
    match (error, side) {
        (Error::InvalidMessage(InvalidMessage::InvalidContentType), Side::Client) => {
            "the daemon there does not speak TLS: start it with --tls-cert and --tls-key, or \
             connect without tls-ca"
                .into()
        }
        (Error::InvalidMessage(_), Side::Daemon) => format!("it does not speak TLS ({error})"),
        (Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired), _) => {
            "the other side does not offer TLS 1.3, which alone is used here".into()
        }
        (Error::NoCertificatesPresented, Side::Daemon) => {
            "it showed no certificate, and this daemon asks for one (tls-client-ca): set \
             XDP_AGG_TLS_CERT and XDP_AGG_TLS_KEY there"
                .into()
        }
        (Error::InvalidCertificate(error), side) => certificate(error, side),
        (Error::AlertReceived(alert), side) => refused(*alert, side),
        (other, _) => other.to_string(),
    }
}

/// We do not accept the peer's certificate.
fn certificate(error: &CertificateError, side: Side) -> String {
    let (whose, authority, cure) = match side {
        Side::Daemon => ("its", "tls-client-ca", "give it a new one"),
        Side::Client => ("the daemon's", "tls-ca", "renew it there"),
    };
    let what = match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("was not signed by the authority in {authority}: is it the right one?")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("has expired (or a clock is wrong): {cure}")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet: is a clock wrong?".into()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "is for another name ({error}): connect by a name that is in it, or give that \
                 name (tls-name)"
            )
        }
        other => format!("cannot be accepted ({other})"),
    };
    format!("{whose} certificate {what}")
}

/// The peer does not accept ours, or something else about us.
fn refused(alert: AlertDescription, side: Side) -> String {
    use AlertDescription as Alert;
    match (alert, side) {
        (Alert::CertificateRequired, Side::Client) => {
            "the daemon asks for a certificate: set tls-cert and tls-key (XDP_AGG_TLS_CERT, \
             XDP_AGG_TLS_KEY) to one that its tls-client-ca has signed"
                .into()
        }
        (
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRevoked
            | Alert::DecryptError
            | Alert::UnsupportedCertificate,
            side,
        ) => match side {
            Side::Client => format!(
                "the daemon does not accept our certificate ({alert:?}): tls-cert must be valid \
                 now, and signed by the daemon's tls-client-ca"
            ),
            Side::Daemon => format!(
                "it does not accept our certificate ({alert:?}): its tls-ca must be the authority \
                 of our tls-cert, which must be valid now and name this host"
            ),
        },
        (Alert::ProtocolVersion | Alert::HandshakeFailure, _) => format!(
            "the other side does not agree to TLS 1.3 ({alert:?}): use the same release on all \
             hosts"
        ),
        (other, _) => format!("the other side ended TLS with {other:?}"),
    }
}
