//! etcd's v3 interface as JSON over HTTP, as the gateway of etcd 3.4 and newer has it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use halite_tier::directory::{Compare, Pair, Step, StoreFailure, Stored, Transaction};
use serde_json::{Value, json};

use super::EtcdAddress;

/// How long a connection, and a whole request, may take.  An etcd that takes longer is as good as none.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(3);
/// Most bytes of an answer: a page of names is some 300 KiB.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Most members that are asked for.
const MEMBERS_MAX: usize = 1000;

/// A way to etcd, for one thread at a time.
pub(super) struct Gateway {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// Which one answered last.
    at: AtomicUsize,
    user: Option<(String, String)>,
    token: Mutex<Option<String>>,
}

/// Why there is no answer.
enum Failure {
    /// It did not arrive.
    NotSent(String),
    /// etcd says that it is not done.
    Refused(String),
    /// Who we are has to be said anew.
    Stranger(String),
    Unknown(String),
}

impl Failure {
    fn reason(self) -> String {
        match self {
            Failure::NotSent(text)
            | Failure::Refused(text)
            | Failure::Stranger(text)
            | Failure::Unknown(text) => text,
        }
    }
}

impl Gateway {
    pub(super) fn new(address: &EtcdAddress) -> Gateway {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        Gateway {
            agent: config.into(),
            endpoints: address.endpoints.clone(),
            at: AtomicUsize::new(0),
            user: address.user.clone(),
            token: Mutex::new(None),
        }
    }

    /// Carries a transaction out, or says whether that may yet happen.
    pub(super) fn carry_out(&self, transaction: &Transaction) -> Result<Stored, StoreFailure> {
        let answer = self.ask("kv/txn", &encode(transaction)).map_err(|failure| StoreFailure {
            may_be_done: matches!(failure, Failure::Unknown(_)),
            reason: failure.reason(),
        })?;
        let malformed =
            || StoreFailure { may_be_done: true, reason: "what it says is not understood".to_owned() };
        decode(transaction, &answer).ok_or_else(malformed)
    }

    /// The keys that begin so.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<Pair>, String> {
        let step = Step::List { prefix: prefix.to_owned(), after: None, limit: MEMBERS_MAX };
        let transaction = Transaction { then: vec![step], ..Transaction::default() };
        let stored = self.carry_out(&transaction).map_err(|failure| failure.reason)?;
        Ok(stored.read.into_iter().next().unwrap_or_default())
    }

    /// Keeps a key for that time from now on; under a new lease, if the one that it had is over.
    pub(super) fn keep(
        &self,
        lease: Option<String>,
        key: &str,
        value: &str,
        ttl: Duration,
    ) -> Option<String> {
        if let Some(id) = &lease {
            let kept = self.ask("lease/keepalive", &json!({ "ID": id })).ok()?;
            if kept["result"]["TTL"].as_str().is_some_and(|left| left != "0") {
                return lease;
            }
        }
        let granted = self.ask("lease/grant", &json!({ "TTL": ttl.as_secs().to_string() })).ok()?;
        let id = granted["ID"].as_str()?.to_owned();
        let put = json!({ "key": text(key), "value": text(value), "lease": id });
        self.ask("kv/put", &put).ok().map(|_| id)
    }

    /// The member is gone.
    pub(super) fn revoke(&self, lease: Option<String>) {
        // Where that fails, the lease ends by itself.
        lease.into_iter().for_each(|id| drop(self.ask("lease/revoke", &json!({ "ID": id }))));
    }

    /// Asks the endpoint that answered last, and others where nothing arrives.
    fn ask(&self, what: &str, body: &Value) -> Result<Value, Failure> {
        let mut failure = Failure::NotSent("no endpoint".to_owned());
        for _ in 0..=self.endpoints.len() {
            match self.ask_one(what, body) {
                Err(Failure::NotSent(reason)) => {
                    self.at.fetch_add(1, Ordering::Relaxed);
                    failure = Failure::NotSent(reason);
                }
                Err(Failure::Stranger(reason)) => {
                    failure = Failure::Stranger(reason);
                    *self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
                }
                answered => return answered,
            }
        }
        Err(failure)
    }

    fn ask_one(&self, what: &str, body: &Value) -> Result<Value, Failure> {
        let token = match &self.user {
            None => None,
            Some(user) => Some(self.token(user)?),
        };
        self.post(what, body, token.as_deref())
    }

    fn token(&self, (name, password): &(String, String)) -> Result<String, Failure> {
        let mut token = self.token.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(token) = &*token {
            return Ok(token.clone());
        }
        let answer = self.post("auth/authenticate", &json!({ "name": name, "password": password }), None);
        let answer = answer.map_err(|failure| match failure {
            Failure::NotSent(reason) => Failure::NotSent(reason),
            other => Failure::Refused(other.reason()),
        })?;
        let given =
            answer["token"].as_str().ok_or_else(|| Failure::Refused("it gives no token".to_owned()))?;
        Ok(token.insert(given.to_owned()).clone())
    }

    fn post(&self, what: &str, body: &Value, token: Option<&str>) -> Result<Value, Failure> {
        let endpoint = &self.endpoints[self.at.load(Ordering::Relaxed) % self.endpoints.len()];
        let mut request = self.agent.post(format!("http://{endpoint}/v3/{what}"));
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let sent = request.header("Content-Type", "application/json").send(body.to_string());
        let mut response = sent.map_err(|error| failure_of(endpoint, &error))?;
        let status = response.status();
        let unread = |error: ureq::Error| Failure::Unknown(format!("{endpoint}: {error}"));
        let text =
            response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unread)?;
        let answer: Value = serde_json::from_str(&text)
            .map_err(|_| Failure::Unknown(format!("{endpoint} answers {status}, and not as etcd does")))?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(refusal(endpoint, &answer)),
        }
    }
}

fn failure_of(endpoint: &str, error: &ureq::Error) -> Failure {
    let text = format!("{endpoint}: {error}");
    let is_unsent = match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(timeout) => matches!(timeout, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    };
    if is_unsent { Failure::NotSent(text) } else { Failure::Unknown(text) }
}

/// What etcd says of itself; of what is not known here, nobody knows whether it is done.
fn refusal(endpoint: &str, answer: &Value) -> Failure {
    let said = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or("an error without words");
    let text = format!("{endpoint}: {said}");
    match said {
        _ if said.contains("invalid auth token") => Failure::Stranger(text),
        _ if ["space exceeded", "permission denied", "user name is empty", "authentication"]
            .iter()
            .any(|known| said.contains(known)) =>
        {
            Failure::Refused(text)
        }
        _ => Failure::Unknown(text),
    }
}

fn text(text: &str) -> String {
    STANDARD.encode(text)
}

fn plain(encoded: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(encoded.as_str().unwrap_or_default()).ok()?).ok()
}

fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|digits| digits.parse().ok()).or_else(|| value.as_u64())
}

fn encode(transaction: &Transaction) -> Value {
    let compares: Vec<Value> = transaction.compares.iter().map(compare).collect();
    let steps = |steps: &[Step]| steps.iter().map(step).collect::<Vec<Value>>();
    json!({
        "compare": compares,
        "success": steps(&transaction.then),
        "failure": steps(&transaction.otherwise),
    })
}

fn compare(compare: &Compare) -> Value {
    match compare {
        Compare::Absent(key) => {
            json!({ "key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0" })
        }
        Compare::Present(key) => {
            json!({ "key": text(key), "target": "CREATE", "result": "GREATER", "create_revision": "0" })
        }
        Compare::WrittenAt(key, at) => {
            json!({ "key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string() })
        }
        Compare::Holds(key, value) => {
            json!({ "key": text(key), "target": "VALUE", "result": "EQUAL", "value": text(value) })
        }
    }
}

fn step(step: &Step) -> Value {
    match step {
        Step::Put(key, value) => json!({ "request_put": { "key": text(key), "value": text(value) } }),
        Step::Delete(key) => json!({ "request_delete_range": { "key": text(key) } }),
        Step::Get(key) => json!({ "request_range": { "key": text(key) } }),
        Step::List { prefix, after, limit } => {
            let from = after.as_ref().map_or_else(|| prefix.clone(), |after| format!("{after}\0"));
            // Behind all that begin so: prefixes end with a slash, before which comes no other.
            let end = format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix));
            let end = if prefix.ends_with('/') { end } else { format!("{prefix}\u{10ffff}") };
            json!({ "request_range": { "key": text(&from), "range_end": text(&end), "limit": limit.to_string() } })
        }
    }
}

/// Untrusted: of what is not as it should be, nothing is taken.
fn decode(transaction: &Transaction, answer: &Value) -> Option<Stored> {
    let is_so = answer["succeeded"].as_bool().unwrap_or(false);
    let branch = if is_so { &transaction.then } else { &transaction.otherwise };
    let none = Vec::new();
    let responses = answer["responses"].as_array().unwrap_or(&none);
    if responses.len() != branch.len() {
        return None;
    }
    let read: Option<Vec<Vec<Pair>>> = responses.iter().map(pairs).collect();
    let header = &answer["header"];
    Some(Stored {
        is_so,
        read: read?,
        revision: number(&header["revision"])?,
        cluster: number(&header["cluster_id"])?,
    })
}

fn pairs(response: &Value) -> Option<Vec<Pair>> {
    let none = Vec::new();
    let found = response["response_range"]["kvs"].as_array().unwrap_or(&none);
    let pair = |pair: &Value| {
        Some(Pair {
            key: plain(&pair["key"])?,
            value: plain(&pair["value"])?,
            written_at: number(&pair["mod_revision"])?,
        })
    };
    found.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_etcd_is_understood_and_another_is_refused() {
        let get = Transaction { then: vec![Step::Get("k".to_owned())], ..Transaction::default() };
        let answer = json!({
            "header": { "cluster_id": "14841639068965178418", "revision": "5", "raft_term": "2" },
            "succeeded": true,
            "responses": [{ "response_range": { "kvs": [
                { "key": text("k"), "value": text("v"), "mod_revision": "4", "create_revision": "4" },
            ], "count": "1" } }],
        });
        let stored = decode(&get, &answer).unwrap();
        let pair = Pair { key: "k".to_owned(), value: "v".to_owned(), written_at: 4 };
        assert_eq!((stored.is_so, stored.read, stored.revision), (true, vec![vec![pair]], 5));
        for wrong in [json!({}), json!([]), json!({ "header": answer["header"], "succeeded": true })] {
            assert_eq!(decode(&get, &wrong), None, "{wrong}");
        }
    }
}
