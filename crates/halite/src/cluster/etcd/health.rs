//! Health of etcd, for its operator.

use serde_json::json;

use super::EtcdAddress;
use super::gateway::Gateway;
use crate::error::EtcdError;

/// Status of one endpoint of etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdHealth {
    /// Version of etcd, such as `3.4.23`.
    pub version: String,
    /// Size of the database, in bytes.
    pub db_bytes: u64,
    /// Bytes of the database in use; a defragmentation frees the rest.
    pub db_bytes_in_use: u64,
    /// True if the endpoint knows a leader. Without a leader, etcd accepts no writes.
    pub has_leader: bool,
    /// Active alarms, such as `NOSPACE`.
    pub alarms: Vec<String>,
    /// Time of day by the endpoint's clock, in the format of HTTP's `Date` header; empty if unknown.
    pub date: String,
}

impl EtcdAddress {
    /// Asks each endpoint for its status. Returns each endpoint's address with its status or error.
    pub fn examine(&self) -> Vec<(String, Result<EtcdHealth, EtcdError>)> {
        let endpoints = self.endpoints().iter();
        endpoints.map(|endpoint| (endpoint.clone(), self.only(endpoint).health())).collect()
    }

    /// Checks that the node can read names, with the certificates and the user of the address.
    pub fn check(&self) -> Result<(), EtcdError> {
        self.members().map(|_| ())
    }

    fn health(&self) -> Result<EtcdHealth, EtcdError> {
        let gateway = Gateway::new(self);
        let (status, date) = gateway.send_dated("maintenance/status", &json!({}))?;
        // The user may lack the right to read alarms.
        let alarms = gateway.send_dated("maintenance/alarm", &json!({ "action": "GET" }));
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
