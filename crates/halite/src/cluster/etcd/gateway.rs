//! A client of etcd's v3 interface, as JSON over HTTP. The gateway of etcd 3.4 and newer offers this interface.

use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use halite_tier::directory::{Compare, Pair, Step, StoreFailure, Stored, Transaction};
use serde_json::{Value, json};

use super::EtcdAddress;
use super::address::{Password, User};
use super::endpoints::Endpoints;
use super::tls;
use crate::error::{EtcdError, EtcdFault};

/// Maximum time for connecting; `REQUEST_TIMEOUT` limits a whole request. A slower etcd counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of an answer, in bytes; a page of names takes about 300 KiB.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
const MALFORMED: &str = "its answer is malformed";
/// Maximum number of times that a request logs in again, because users or roles of etcd change meanwhile.
const LOGINS_MAX: usize = 5;
/// Maximum number of members in an answer.
const MEMBERS_MAX: usize = 1000;

/// A connection to etcd, for one thread at a time.
pub(super) struct Gateway {
    address: EtcdAddress,
    /// HTTP client, made on first use, and made again when the TLS files may have changed.
    agent: Mutex<Option<ureq::Agent>>,
    endpoints: Arc<Endpoints>,
    token: Mutex<Option<String>>,
    /// Value of the `Date` header in the last answer.
    date: Mutex<String>,
    is_closed: AtomicBool,
}

type Request = ureq::RequestBuilder<ureq::typestate::WithBody>;

/// A stream of answers to one request.
pub(super) struct Answers {
    reader: BufReader<ureq::BodyReader<'static>>,
    line: Vec<u8>,
}

/// A key in an answer. The contents are untrusted.
pub(super) struct Entry {
    pub(super) key: String,
    /// The value; `None` if it is not text, or the key was removed.
    pub(super) value: Option<String>,
    /// True if the key is removed when a lease ends.
    pub(super) is_leased: bool,
}

impl Entry {
    pub(super) fn of(pair: &Value) -> Option<Entry> {
        let is_leased = number(&pair["lease"]).is_some_and(|lease| lease != 0);
        Some(Entry { key: decode_text(&pair["key"])?, value: decode_text(&pair["value"]), is_leased })
    }
}

impl Answers {
    /// Waits for the next answer; `None` if no answer arrived in time.
    pub(super) fn next(&mut self) -> Result<Option<Value>, EtcdError> {
        let failed = |fault, reason: &str| EtcdError { fault, reason: reason.to_owned() };
        self.line.clear();
        match self.reader.by_ref().take(ANSWER_BYTES_MAX).read_until(b'\n', &mut self.line) {
            Ok(_) if self.line.ends_with(b"\n") => {}
            Ok(_) if self.line.len() as u64 == ANSWER_BYTES_MAX => {
                return Err(failed(EtcdFault::Foreign, "its answer exceeds the maximum length"));
            }
            Ok(_) => return Err(failed(EtcdFault::Unreachable, "it closed the connection")),
            Err(error) => {
                return match ureq::Error::from(error) {
                    ureq::Error::Timeout(_) => Ok(None),
                    error => Err(failed(EtcdFault::Unreachable, &error.to_string())),
                };
            }
        }
        let answer = serde_json::from_slice(&self.line);
        answer.map(Some).map_err(|_| failed(EtcdFault::Foreign, MALFORMED))
    }
}

/// Reason why a request got no answer.
struct Failure {
    progress: Progress,
    error: EtcdError,
}

/// Known progress of a request that got no answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The request did not arrive; the node may send it to another endpoint.
    NotSent,
    /// etcd reports that it did not execute the request.
    Refused,
    /// etcd did not execute the request, because the user must authenticate again.
    Unauthenticated,
    Unknown,
}

impl Failure {
    fn new(progress: Progress, fault: EtcdFault, reason: String) -> Failure {
        Failure { progress, error: EtcdError { fault, reason } }
    }

    /// Makes the failure of a request that was never sent.
    fn not_sent(error: EtcdError) -> Failure {
        Failure { progress: Progress::Refused, error }
    }
}

impl Gateway {
    pub(super) fn new(address: &EtcdAddress) -> Gateway {
        Gateway::sharing(address, Arc::new(Endpoints::new(address.endpoints().len())))
    }

    /// Makes a gateway that knows the failures that other gateways of the same address meet.
    pub(super) fn sharing(address: &EtcdAddress, endpoints: Arc<Endpoints>) -> Gateway {
        Gateway {
            address: address.clone(),
            agent: Mutex::new(None),
            endpoints,
            token: Mutex::new(None),
            date: Mutex::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    fn agent(&self) -> Result<ureq::Agent, Failure> {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = &*agent {
            return Ok(agent.clone());
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Failure::new(
                Progress::Refused,
                EtcdFault::Unreachable,
                "this node closed the connection to etcd".to_owned(),
            ));
        }
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None);
        let config = match self.address.tls() {
            Some(files) => config.tls_config(tls::config(files).map_err(Failure::not_sent)?),
            None => config,
        };
        Ok(agent.insert(config.build().into()).clone())
    }

    /// Executes a transaction. The error says whether etcd may still execute it.
    pub(super) fn execute(&self, transaction: &Transaction) -> Result<Stored, StoreFailure> {
        let answer = self.send_or_read(reads_only(transaction), &encode(transaction));
        decode(transaction, &answer.map_err(|failure| self.stored(failure))?).ok_or_else(malformed_result)
    }

    /// Executes several independent transactions in one request.
    pub(super) fn execute_all(&self, transactions: &[Transaction]) -> Vec<Result<Stored, StoreFailure>> {
        let each = || transactions.iter().map(|transaction| self.execute(transaction)).collect();
        if transactions.len() == 1 {
            return each();
        }
        let steps: Vec<Value> =
            transactions.iter().map(|transaction| json!({ "request_txn": encode(transaction) })).collect();
        match self.send_or_read(transactions.iter().all(reads_only), &json!({ "success": steps })) {
            Ok(answer) => decode_all(transactions, &answer),
            // One of the transactions may be the cause.
            Err(failure) if failure.progress == Progress::Refused => each(),
            Err(failure) => vec![Err(self.stored(failure)); transactions.len()],
        }
    }

    fn send_or_read(&self, reads_only: bool, body: &Value) -> Result<Value, Failure> {
        if reads_only { self.read("kv/txn", body) } else { self.send("kv/txn", body) }
    }

    fn stored(&self, failure: Failure) -> StoreFailure {
        StoreFailure {
            may_be_done: failure.progress == Progress::Unknown,
            is_full: failure.error.fault == EtcdFault::Full,
            has_others: failure.error.fault == EtcdFault::Unreachable && self.endpoints.has_good(),
            reason: failure.error.to_string(),
        }
    }

    /// Returns the keys with this prefix.
    pub(super) fn list(&self, prefix: &str) -> Result<Vec<Pair>, EtcdError> {
        let step = Step::List { prefix: prefix.to_owned(), after: None, limit: MEMBERS_MAX };
        let transaction = Transaction { then: vec![step], ..Transaction::default() };
        let answer = self.read("kv/txn", &encode(&transaction)).map_err(|failure| failure.error)?;
        let stored = decode(&transaction, &answer).ok_or_else(malformed)?;
        Ok(stored.read.into_iter().next().unwrap_or_default())
    }

    /// Returns all keys with these prefixes, and etcd's revision at the time of the answer.
    pub(super) fn entries(&self, prefixes: &[String]) -> Result<(Vec<Entry>, u64), EtcdError> {
        let range = |prefix: &String| {
            let (from, to) = range_of(prefix);
            json!({ "request_range": { "key": from, "range_end": to, "limit": MEMBERS_MAX.to_string() } })
        };
        let ranges: Vec<Value> = prefixes.iter().map(range).collect();
        let answer = self.read("kv/txn", &json!({ "success": ranges })).map_err(|failure| failure.error)?;
        let responses = answer["responses"].as_array().filter(|responses| responses.len() == prefixes.len());
        let revision = number(&answer["header"]["revision"]);
        let (Some(responses), Some(revision)) = (responses, revision) else {
            return Err(malformed());
        };
        let kvs = responses.iter().filter_map(|response| response["response_range"]["kvs"].as_array());
        Ok((kvs.flatten().filter_map(Entry::of).collect(), revision))
    }

    /// Starts a stream of answers, which lasts until [`Gateway::close`] or an error. `quiet` is the longest wait for an
    /// answer.
    pub(super) fn stream(&self, method: &str, body: String, quiet: Duration) -> Result<Answers, EtcdError> {
        let answered = self.try_each(true, |at| {
            let token = self.token_if_needed(at)?;
            let (endpoint, request) = self.request(at, method, token.as_deref())?;
            let request = request
                .config()
                .timeout_global(None)
                .timeout_recv_response(Some(REQUEST_TIMEOUT))
                .timeout_per_read(Some(quiet))
                .build();
            let mut response = request.send(&body).map_err(|error| self.failure_of(endpoint, error))?;
            let status = response.status();
            if status.is_success() {
                return Ok(response.into_body().into_reader());
            }
            let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
            let text = text.unwrap_or_default();
            match serde_json::from_str(&text) {
                Ok(answer) => Err(refusal(endpoint, &answer)),
                Err(_) => Err(Failure { progress: Progress::Refused, ..no_json(endpoint, status, &text) }),
            }
        });
        let reader = answered.map_err(|failure| failure.error)?;
        Ok(Answers { reader: BufReader::new(reader), line: Vec::new() })
    }

    /// Stops all requests, and wakes threads that wait for answers.
    pub(super) fn close(&self) {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the agent's lock, so that no other agent is made.
        self.is_closed.store(true, Ordering::Relaxed);
        agent.take().into_iter().for_each(|agent| agent.shutdown());
    }

    /// Keeps keys alive for `ttl` from now on, under a new lease if their lease has expired. If `rewrites`, writes the
    /// keys even if the lease is still alive.
    pub(super) fn keep_alive(
        &self,
        lease: Option<String>,
        pairs: &[(String, String)],
        ttl: Duration,
        rewrites: bool,
    ) -> Option<String> {
        let kept = match lease {
            Some(id) => {
                let kept = self.read("lease/keepalive", &json!({ "ID": id })).ok()?;
                kept["result"]["TTL"].as_str().is_some_and(|left| left != "0").then_some(id)
            }
            None => None,
        };
        let id = match kept {
            Some(id) if !rewrites => return Some(id),
            Some(id) => id,
            None => self.grant(ttl).ok()?,
        };
        for (key, value) in pairs {
            let put = json!({ "key": encode_text(key), "value": encode_text(value), "lease": id });
            self.send("kv/put", &put).ok()?;
        }
        Some(id)
    }

    /// Creates a key that expires after `ttl`. If the key exists, returns its value instead. Overwrites a key without a
    /// lease, because an operator must have written it.
    pub(super) fn create(&self, key: &str, value: &str, ttl: Duration) -> Result<Option<String>, EtcdError> {
        let (lease, encoded) = (self.grant(ttl)?, encode_text(key));
        let create_if = |compare: Value| {
            let creation = json!({
                "compare": [compare],
                "success": [{ "request_put": { "key": encoded, "value": encode_text(value), "lease": lease } }],
                "failure": [{ "request_range": { "key": encoded } }],
            });
            let made = self.send("kv/txn", &creation).map_err(|failure| failure.error)?;
            let is_made = made["succeeded"].as_bool() == Some(true);
            Ok((!is_made).then(|| made["responses"][0]["response_range"]["kvs"][0].clone()))
        };
        let mut found = create_if(json!({ "key": encoded, "target": "CREATE", "create_revision": "0" }))?;
        if let Some(unleased) = found.as_ref().filter(|pair| number(&pair["lease"]).is_none_or(|id| id == 0))
        {
            let written_at = number(&unleased["mod_revision"]).unwrap_or_default();
            tracing::warn!("overwriting key {key} in etcd: the key has no lease, so it was written by hand");
            found = create_if(
                json!({ "key": encoded, "target": "MOD", "mod_revision": written_at.to_string() }),
            )?;
        }
        let Some(found) = found else { return Ok(None) };
        self.revoke(Some(lease));
        Ok(Some(decode_text(&found["value"]).unwrap_or_default()))
    }

    fn grant(&self, ttl: Duration) -> Result<String, EtcdError> {
        let granted = self.send("lease/grant", &json!({ "TTL": ttl.as_secs().to_string() }));
        let granted = granted.map_err(|failure| failure.error)?;
        Ok(granted["ID"].as_str().ok_or_else(malformed)?.to_owned())
    }

    /// Revokes the lease of a member's keys, so that etcd removes them.
    pub(super) fn revoke(&self, lease: Option<String>) {
        // If that fails, the lease expires by itself.
        lease.into_iter().for_each(|id| drop(self.send("lease/revoke", &json!({ "ID": id }))));
    }

    /// Sends a request. Returns the answer, and the value of its `Date` header.
    pub(super) fn send_dated(&self, method: &str, body: &Value) -> Result<(Value, String), EtcdError> {
        let answer = self.send(method, body).map_err(|failure| failure.error)?;
        let date = self.date.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok((answer, date))
    }

    /// Sends a request to the endpoint that answered last; tries other endpoints only if the request did not arrive.
    fn send(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        self.try_each(false, |at| self.post(at, method, body, self.token_if_needed(at)?.as_deref()))
    }

    /// Sends a request that is harmless to repeat; also tries other endpoints if it may have arrived.
    fn read(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        self.try_each(true, |at| self.post(at, method, body, self.token_if_needed(at)?.as_deref()))
    }

    /// Calls `ask` with the number of an endpoint, until one has answered or all have failed.
    fn try_each<T>(&self, may_repeat: bool, ask: impl Fn(usize) -> Result<T, Failure>) -> Result<T, Failure> {
        let (mut tried, mut logins) = (Vec::new(), 0);
        loop {
            let (at, asked) = (self.endpoints.choose(&tried), Instant::now());
            let failure = match ask(at) {
                Ok(answer) => {
                    self.endpoints.note_answer(at);
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            if matches!(
                failure.error.fault,
                EtcdFault::Certificate | EtcdFault::CommonName | EtcdFault::Foreign
            ) {
                *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
            let may_try_another = match failure.progress {
                Progress::NotSent => {
                    self.endpoints.note_failure(at, asked);
                    true
                }
                Progress::Unauthenticated => {
                    *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    logins += 1;
                    if logins > LOGINS_MAX {
                        return Err(failure);
                    }
                    continue;
                }
                Progress::Unknown if failure.error.fault == EtcdFault::Unreachable => {
                    self.endpoints.note_failure(at, asked);
                    // Each endpoint that hangs costs the whole time limit.
                    may_repeat && self.endpoints.has_good()
                }
                Progress::Refused | Progress::Unknown => return Err(failure),
            };
            tried.push(at);
            if !may_try_another || tried.len() > self.address.endpoints().len() {
                return Err(failure);
            }
        }
    }

    fn token_if_needed(&self, at: usize) -> Result<Option<String>, Failure> {
        self.address.user().map(|user| self.token(at, user)).transpose()
    }

    fn token(&self, at: usize, user: &User) -> Result<String, Failure> {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = &*token {
            return Ok(token.clone());
        }
        let password = password(user).map_err(Failure::not_sent)?;
        let answer =
            self.post(at, "auth/authenticate", &json!({ "name": user.name, "password": password }), None);
        // Nothing else has been sent yet.
        let refused = |failure: Failure| match failure.error.fault {
            EtcdFault::Unreachable => Failure { progress: Progress::NotSent, ..failure },
            _ if failure.progress == Progress::NotSent => failure,
            _ => Failure::not_sent(failure.error),
        };
        let answer = answer.map_err(refused)?;
        let none = || Failure::new(Progress::Refused, EtcdFault::Foreign, "it returned no token".to_owned());
        let given = answer["token"].as_str().ok_or_else(none)?;
        Ok(token.insert(given.to_owned()).clone())
    }

    /// Returns the name of an endpoint, and a request to it without its body.
    fn request(&self, at: usize, method: &str, token: Option<&str>) -> Result<(&str, Request), Failure> {
        let endpoint = &self.address.endpoints()[at];
        let scheme = if self.address.tls().is_some() { "https" } else { "http" };
        let mut request = self.agent()?.post(format!("{scheme}://{endpoint}/v3/{method}"));
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        Ok((endpoint, request.header("Content-Type", "application/json")))
    }

    fn post(&self, at: usize, method: &str, body: &Value, token: Option<&str>) -> Result<Value, Failure> {
        let (endpoint, request) = self.request(at, method, token)?;
        let sent = request.send(body.to_string());
        let mut response = sent.map_err(|error| self.failure_of(endpoint, error))?;
        let status = response.status();
        if let Some(date) = response.headers().get("date").and_then(|date| date.to_str().ok()) {
            date.clone_into(&mut self.date.lock().unwrap_or_else(PoisonError::into_inner));
        }
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| self.failure_of(endpoint, error))?;
        let answer: Value = serde_json::from_str(&text).map_err(|_| no_json(endpoint, status, &text))?;
        match status.is_success() {
            true => Ok(answer),
            false => Err(refusal(endpoint, &answer)),
        }
    }

    fn failure_of(&self, endpoint: &str, error: ureq::Error) -> Failure {
        use std::io::ErrorKind;
        let text = match &error {
            ureq::Error::Io(error) => format!("{endpoint}: {error}"),
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                format!("{endpoint}: no connection within {} s", CONNECT_TIMEOUT.as_secs())
            }
            ureq::Error::Timeout(_) => {
                format!("{endpoint}: no answer within {} s", REQUEST_TIMEOUT.as_secs())
            }
            error => format!("{endpoint}: {error}"),
        };
        match error {
            ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                Failure::new(Progress::NotSent, EtcdFault::Unreachable, text)
            }
            ureq::Error::Rustls(error) => tls_failure(endpoint, &error),
            ureq::Error::Io(error) => match error.get_ref().and_then(|inner| inner.downcast_ref()) {
                Some(error) => tls_failure(endpoint, error),
                None if error.kind() == ErrorKind::ConnectionRefused || is_lookup_failure(&error) => {
                    Failure::new(Progress::NotSent, EtcdFault::Unreachable, text)
                }
                None if is_disconnect(error.kind()) => self.disconnect_failure(endpoint, text),
                None => Failure::new(Progress::Unknown, EtcdFault::Unreachable, text),
            },
            ureq::Error::Protocol(_) | ureq::Error::BodyExceedsLimit(_) => {
                Failure::new(Progress::Unknown, EtcdFault::Foreign, text)
            }
            _ => Failure::new(Progress::Unknown, EtcdFault::Unreachable, text),
        }
    }

    /// Returns the failure of a connection that ended while in use; finds the server's reason if it concerns
    /// certificates.
    fn disconnect_failure(&self, endpoint: &str, mut text: String) -> Failure {
        let reason = self.address.tls().and_then(|files| tls::end_reason(files, endpoint, CONNECT_TIMEOUT));
        if let Some(error) = reason {
            // An earlier connection may have been reused, and its request executed.
            return Failure { progress: Progress::Unknown, ..tls_failure(endpoint, &error) };
        }
        text += match self.address.tls() {
            Some(_) => " (an etcd without TLS ends connections in this way; leave out ca)",
            None => " (an etcd that needs TLS ends connections in this way; add ?ca=FILE to its address)",
        };
        Failure::new(Progress::Unknown, EtcdFault::Unreachable, text)
    }
}

/// Returns true if a host name has no address. The standard library reports this only in the error's text.
fn is_lookup_failure(error: &std::io::Error) -> bool {
    error.to_string().starts_with("failed to lookup address information")
}

fn is_disconnect(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn password(user: &User) -> Result<String, EtcdError> {
    match &user.password {
        Password::Plain(password) => Ok(password.clone()),
        Password::File(file) => {
            let text =
                String::from_utf8(tls::read(file)?).map_err(|_| tls::file_error(file, "it is not text"))?;
            match text.lines().next() {
                Some(line) if !line.is_empty() => Ok(line.to_owned()),
                _ => Err(tls::file_error(file, "its first line is empty; it must be the password")),
            }
        }
    }
}

/// Returns the failure of a TLS connection. etcd executed nothing if the handshake failed; if the connection broke
/// later, etcd may have executed the request.
fn tls_failure(endpoint: &str, error: &rustls::Error) -> Failure {
    let text = format!("{endpoint}: {error}");
    match error {
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::AlertReceived(_)
        | rustls::Error::NoCertificatesPresented
        | rustls::Error::UnsupportedNameType => Failure::new(Progress::NotSent, EtcdFault::Certificate, text),
        // Not TLS.
        rustls::Error::InvalidMessage(_) => Failure::new(Progress::NotSent, EtcdFault::Foreign, text),
        _ => Failure::new(Progress::Unknown, EtcdFault::Certificate, text),
    }
}

/// Returns the failure of an answer that is not JSON.
fn no_json(endpoint: &str, status: ureq::http::StatusCode, text: &str) -> Failure {
    // A server without this interface has done nothing.
    let progress = if status.is_client_error() { Progress::Refused } else { Progress::Unknown };
    let line = text.trim().lines().next().unwrap_or_default();
    let fault = match line.starts_with("CommonName of client") {
        true => EtcdFault::CommonName,
        false => EtcdFault::Foreign,
    };
    let text = format!("{endpoint} answers {status}: {}", line.chars().take(120).collect::<String>());
    Failure::new(progress, fault, text)
}

/// Returns the failure that etcd reports. After an unknown error, etcd may have executed the request.
fn refusal(endpoint: &str, answer: &Value) -> Failure {
    let reason =
        answer["error"].as_str().or(answer["message"].as_str()).unwrap_or("an error without a message");
    let is = |known: &[&str]| known.iter().any(|known| reason.contains(known));
    let (progress, fault) = match () {
        () if is(&["invalid auth token", "revision of auth store is old"]) => {
            (Progress::Unauthenticated, EtcdFault::User)
        }
        () if is(&["authentication is not enabled"]) => (Progress::Refused, EtcdFault::NoUsers),
        () if is(&["permission denied", "user name is empty", "authentication"]) => {
            (Progress::Refused, EtcdFault::User)
        }
        () if is(&["space exceeded"]) => (Progress::Refused, EtcdFault::Full),
        () => (Progress::Unknown, EtcdFault::Unreachable),
    };
    Failure::new(progress, fault, format!("{endpoint}: {reason}"))
}

fn encode_text(text: &str) -> String {
    STANDARD.encode(text)
}

fn decode_text(encoded: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(encoded.as_str().unwrap_or_default()).ok()?).ok()
}

pub(super) fn number(value: &Value) -> Option<u64> {
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
            json!({ "key": encode_text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0" })
        }
        Compare::Present(key) => {
            json!({ "key": encode_text(key), "target": "CREATE", "result": "GREATER", "create_revision": "0" })
        }
        Compare::WrittenAt(key, at) => {
            json!({ "key": encode_text(key), "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string() })
        }
        Compare::Holds(key, value) => {
            json!({ "key": encode_text(key), "target": "VALUE", "result": "EQUAL", "value": encode_text(value) })
        }
    }
}

fn step(step: &Step) -> Value {
    match step {
        Step::Put(key, value) => {
            json!({ "request_put": { "key": encode_text(key), "value": encode_text(value) } })
        }
        Step::Delete(key) => json!({ "request_delete_range": { "key": encode_text(key) } }),
        Step::Get(key) => json!({ "request_range": { "key": encode_text(key) } }),
        Step::List { prefix, after, limit } => {
            let (from, end) = range_of(prefix);
            let from = after.as_ref().map_or(from, |after| encode_text(&format!("{after}\0")));
            json!({ "request_range": { "key": from, "range_end": end, "limit": limit.to_string() } })
        }
    }
}

/// Returns the first key with this prefix, and the key after the last one, as etcd's requests name a range.
pub(super) fn range_of(prefix: &str) -> (String, String) {
    // Prefixes end with a slash, and the next character follows the range.
    let end = match prefix.strip_suffix('/') {
        Some(rest) => format!("{rest}0"),
        None => format!("{prefix}\u{10ffff}"),
    };
    (encode_text(prefix), encode_text(&end))
}

/// Returns true if the transaction writes nothing, so that it is harmless to repeat.
fn reads_only(transaction: &Transaction) -> bool {
    let mut steps = transaction.then.iter().chain(&transaction.otherwise);
    steps.all(|step| matches!(step, Step::Get(_) | Step::List { .. }))
}

/// Returns the error for a malformed answer.
fn malformed() -> EtcdError {
    EtcdError { fault: EtcdFault::Foreign, reason: MALFORMED.to_owned() }
}

/// Returns the failure of a transaction whose result is malformed. etcd may have executed it.
fn malformed_result() -> StoreFailure {
    StoreFailure { may_be_done: true, is_full: false, has_others: false, reason: MALFORMED.to_owned() }
}

/// Decodes the results of all transactions of a request.
fn decode_all(transactions: &[Transaction], answer: &Value) -> Vec<Result<Stored, StoreFailure>> {
    let decode_one = |(index, transaction): (usize, &Transaction)| {
        let mut inner = answer["responses"][index]["response_txn"].clone();
        if !inner.is_object() {
            return Err(malformed_result());
        }
        // Only the whole answer has the cluster and the revision.
        inner["header"] = answer["header"].clone();
        decode(transaction, &inner).ok_or_else(malformed_result)
    };
    transactions.iter().enumerate().map(decode_one).collect()
}

/// Decodes a result, which is untrusted; returns `None` if it is malformed.
fn decode(transaction: &Transaction, answer: &Value) -> Option<Stored> {
    let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
    let branch = if succeeded { &transaction.then } else { &transaction.otherwise };
    let none = Vec::new();
    let responses = answer["responses"].as_array().unwrap_or(&none);
    if responses.len() != branch.len() {
        return None;
    }
    let read: Option<Vec<Vec<Pair>>> = responses.iter().map(pairs).collect();
    let header = &answer["header"];
    Some(Stored {
        succeeded,
        read: read?,
        revision: number(&header["revision"])?,
        cluster: number(&header["cluster_id"])?,
    })
}

/// Decodes text lossily. Bytes that are not text come from another program; they must not hide the other keys.
fn decode_lossy(encoded: &Value) -> Option<String> {
    let bytes = STANDARD.decode(encoded.as_str().unwrap_or_default()).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn pairs(response: &Value) -> Option<Vec<Pair>> {
    let none = Vec::new();
    let found = response["response_range"]["kvs"].as_array().unwrap_or(&none);
    let pair = |pair: &Value| {
        Some(Pair {
            key: decode_lossy(&pair["key"])?,
            value: decode_lossy(&pair["value"])?,
            written_at: number(&pair["mod_revision"])?,
        })
    };
    found.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batched_results_are_matched_to_transactions() {
        let get = |key: &str| Transaction { then: vec![Step::Get(key.to_owned())], ..Transaction::default() };
        let inner = |value: &str| {
            let kvs = json!([{ "key": encode_text("k"), "value": encode_text(value), "mod_revision": "4" }]);
            json!({ "response_txn": { "succeeded": true, "responses": [{ "response_range": { "kvs": kvs } }] } })
        };
        let answer = json!({
            "header": { "cluster_id": "7", "revision": "5" },
            "succeeded": true,
            "responses": [inner("a"), inner("b"), {}],
        });
        let decoded = decode_all(&[get("k"), get("k"), get("k")], &answer);
        let value = |index: usize| decoded[index].as_ref().unwrap().read[0][0].value.clone();
        assert_eq!([value(0), value(1)], ["a", "b"]);
        assert!(decoded[2].as_ref().is_err_and(|failure| failure.may_be_done));
    }

    #[test]
    fn results_are_decoded_and_malformed_ones_refused() {
        let get = Transaction { then: vec![Step::Get("k".to_owned())], ..Transaction::default() };
        let mut answer = json!({
            "header": { "cluster_id": "14841639068965178418", "revision": "5", "raft_term": "2" },
            "succeeded": true,
            "responses": [{ "response_range": { "kvs": [
                { "key": encode_text("k"), "value": encode_text("v"), "mod_revision": "4", "create_revision": "4" },
            ], "count": "1" } }],
        });
        let stored = decode(&get, &answer).unwrap();
        let pair = Pair { key: "k".to_owned(), value: "v".to_owned(), written_at: 4 };
        assert_eq!((stored.succeeded, stored.read, stored.revision), (true, vec![vec![pair]], 5));
        let kvs = &mut answer["responses"][0]["response_range"]["kvs"];
        kvs.as_array_mut().unwrap().push(json!({ "key": STANDARD.encode(b"k\xff"), "value": STANDARD.encode(b"\xff"), "mod_revision": "5" }));
        let foreign = Pair { key: "k\u{fffd}".to_owned(), value: "\u{fffd}".to_owned(), written_at: 5 };
        assert_eq!(decode(&get, &answer).unwrap().read[0][1], foreign, "other keys stay visible");
        for wrong in [json!({}), json!([]), json!({ "header": answer["header"], "succeeded": true })] {
            assert_eq!(decode(&get, &wrong), None, "{wrong}");
        }
    }
}
