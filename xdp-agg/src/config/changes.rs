//! Which settings differ from those that a running daemon has.

use super::Partial;
use crate::server::ServerConfig;

/// Names of the fields that differ, as they are named in a file. A field that is missing in the
/// list is an error of the compiler.
macro_rules! differing {
    ($before:expr, $now:expr; $($field:ident)*) => {{
        let Partial { $($field: _),* } = $before;
        let differs = [$(($before.$field != $now.$field).then_some(stringify!($field))),*];
        differs.into_iter().flatten().map(|name| name.replace('_', "-")).collect::<Vec<_>>()
    }};
}

/// What a running daemon takes over.
const TAKEN_OVER: [&str; 8] = [
    "tls-cert",
    "tls-key",
    "tls-client-ca",
    "tls-branch-ca",
    "token-file",
    "job-slots",
    "job-slots-max",
    "job-packet-rate",
];

impl Partial {
    /// Names of the settings that differ in `now` and that only a restart takes over.
    #[must_use]
    pub fn needs_restart(&self, now: &Self) -> Vec<String> {
        let mut names = differing!(self, now;
            interface engine xdp_mode control data_addr local_addr data_port slots job_slots mtu
            vlan join_timeout join_timeout_max probe_timeout tls_cert tls_key tls_client_ca
            tls_branch_ca resume_timeout dead_after straggler_timeout silent_timeout token_file
            job_slots_max job_packet_rate pin fresh state_dir keep_on_exit log
        );
        names.retain(|name| !TAKEN_OVER.contains(&name.as_str()));
        names
    }
}

impl ServerConfig {
    /// Names of the settings that differ in `now` and that a running daemon takes over. Of files
    /// their contents count.
    #[must_use]
    pub fn changed(&self, now: &Self) -> Vec<String> {
        let (tls, now_tls) = (self.tls.as_ref(), now.tls.as_ref());
        let own = |tls: Option<&xdp_agg_tls::ServerTls>| tls.map(|tls| tls.certificates().to_vec());
        let clients =
            |tls: Option<&xdp_agg_tls::ServerTls>| tls.map(|tls| tls.client_ca().to_vec());
        let all = [
            ("token-file", self.tokens != now.tokens),
            ("tls-cert", own(tls) != own(now_tls)),
            ("tls-client-ca", clients(tls) != clients(now_tls)),
            ("tls-branch-ca", self.branch_tls != now.branch_tls),
            ("job-slots", self.job_slots != now.job_slots),
            ("job-slots-max", self.job_slots_max != now.job_slots_max),
            ("job-packet-rate", self.job_packet_rate != now.job_packet_rate),
        ];
        let changed = all.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(name, _)| name.to_owned()).collect()
    }
}
