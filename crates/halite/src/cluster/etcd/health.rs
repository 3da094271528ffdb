//! How an etcd is, for who looks after it.

use serde_json::json;

use super::EtcdAddress;
use super::gateway::Gateway;
use crate::error::EtcdError;

/// What one endpoint says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdHealth {
    /// As `3.4.23`.
    pub version: String,
    /// Bytes of its database, and those of them that hold something.
    pub db_bytes: u64,
    /// The rest of them a defragmentation gives back.
    pub db_bytes_in_use: u64,
    /// Whether it knows a leader: nothing is written without one.
    pub has_leader: bool,
    /// What it complains of, as `NOSPACE`.
    pub alarms: Vec<String>,
    /// The time of day by its clock, as HTTP has it; empty if it does not say.
    pub date: String,
}

impl EtcdAddress {
    /// How each of its endpoints is.
    pub fn examine(&self) -> Vec<(String, Result<EtcdHealth, EtcdError>)> {
        let endpoints = self.endpoints().iter();
        endpoints.map(|endpoint| (endpoint.clone(), self.only(endpoint).health())).collect()
    }

    /// Whether names can be looked at there, with the certificates and as the user that the address names.
    pub fn check(&self) -> Result<(), EtcdError> {
        self.members().map(|_| ())
    }

    fn health(&self) -> Result<EtcdHealth, EtcdError> {
        let gateway = Gateway::new(self);
        let (status, date) = gateway.ask_dated("maintenance/status", &json!({}))?;
        // Users may not be allowed to ask for them.
        let alarms = gateway.ask_dated("maintenance/alarm", &json!({ "action": "GET" }));
        let alarms = alarms.map(|(answer, _)| answer).unwrap_or_default();
        let alarms = alarms["alarms"].as_array().cloned().unwrap_or_default();
        let number = |name: &str| status[name].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(EtcdHealth {
            version: status["version"].as_str().unwrap_or_default().to_owned(),
            db_bytes: number("dbSize"),
            db_bytes_in_use: number("dbSizeInUse"),
            has_leader: number("leader") != 0,
            alarms: alarms.iter().filter_map(|alarm| Some(alarm["alarm"].as_str()?.to_owned())).collect(),
            date,
        })
    }
}
