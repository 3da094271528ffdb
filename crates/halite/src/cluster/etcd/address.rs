//! The address of etcd, with the credentials of the node, as one line of configuration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use halite_tier::message::NamesAt;

const PREFIX: &str = "/halite";
/// First parts of the cluster's keys, which follow the prefix.
const HEADINGS: [&str; 8] = ["closed", "founding", "homes", "members", "move", "names", "numbers", "places"];
const FORM: &str = "etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...][/PREFIX][?ca=FILE&cert=FILE&key=FILE&password-file=FILE]";

/// Address of the etcd that has the directory of names:
/// `etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...][/PREFIX][?ca=FILE&cert=FILE&key=FILE&password-file=FILE]`.
///
/// Clusters with different prefixes do not see each other; the default is `/halite`. `ca` turns on TLS: a PEM file with
/// the authorities that sign etcd's certificate. `cert` and `key` are the node's own certificate and its key, for an
/// etcd that asks for a certificate. Paths are absolute, because commands read the same files as nodes. A node reads
/// the files again when a connection fails.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    endpoints: Vec<String>,
    user: Option<User>,
    prefix: String,
    tls: Option<TlsFiles>,
}

/// The user for requests to etcd.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) password: Password,
}

/// Source of the password.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Password {
    Plain(String),
    /// The first line of this file.
    File(PathBuf),
}

/// The files for TLS connections to etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TlsFiles {
    pub(super) ca: PathBuf,
    /// The node's certificate, and its key.
    pub(super) own: Option<(PathBuf, PathBuf)>,
}

/// An invalid etcd address. The error message shows the address without its password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is not of the form {FORM}: {reason}")]
pub struct BadEtcdAddress {
    text: String,
    reason: String,
}

impl FromStr for EtcdAddress {
    type Err = BadEtcdAddress;

    fn from_str(text: &str) -> Result<EtcdAddress, BadEtcdAddress> {
        parse(text).map_err(|reason| BadEtcdAddress { text: without_password(text), reason })
    }
}

fn parse(text: &str) -> Result<EtcdAddress, String> {
    let rest = text.strip_prefix("etcd://").ok_or_else(|| scheme_error(text))?;
    // A password may contain any of the separators that follow.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, rest),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let (hosts, prefix) = match rest.split_once('/') {
        Some((hosts, prefix)) if !prefix.is_empty() => (hosts, format!("/{prefix}")),
        Some((hosts, _)) => (hosts, PREFIX.to_owned()),
        None => (rest, PREFIX.to_owned()),
    };
    if prefix.ends_with('/') {
        return Err("the prefix ends with a slash".to_owned());
    }
    if let Some(heading) = prefix.split('/').skip(2).find(|part| HEADINGS.contains(part)) {
        return Err(format!(
            "the prefix contains {heading:?}, under which the cluster with a shorter prefix has keys"
        ));
    }
    let endpoints: Vec<String> = hosts.split(',').map(str::to_owned).collect();
    if let Some(wrong) = endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
        return Err(format!("{wrong:?} is not of the form HOST:PORT"));
    }
    let files = Files::parse(query.unwrap_or_default())?;
    let user = user_of(user, files.password)?;
    let tls = match (files.ca, files.cert, files.key) {
        (None, None, None) => None,
        (None, ..) => return Err("cert and key need ca".to_owned()),
        (Some(ca), Some(cert), Some(key)) => Some(TlsFiles { ca, own: Some((cert, key)) }),
        (Some(ca), None, None) => Some(TlsFiles { ca, own: None }),
        (Some(_), ..) => return Err("cert and key need each other; give both".to_owned()),
    };
    Ok(EtcdAddress { endpoints, user, prefix, tls })
}

/// Explains how to write an address that has no or another scheme.
fn scheme_error(text: &str) -> String {
    let instead = match text.split_once("://") {
        Some(("https", _)) => "; for TLS, write etcd://HOST:PORT?ca=FILE",
        Some(("http", _)) => "; for HTTP without TLS, write etcd://HOST:PORT",
        _ => "",
    };
    format!("the address does not begin with etcd://{instead}")
}

fn is_endpoint(endpoint: &str) -> bool {
    let port = endpoint.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
    matches!(port, Some((host, Ok(_))) if !host.is_empty()) && !endpoint.contains(char::is_whitespace)
}

fn user_of(user: Option<&str>, file: Option<PathBuf>) -> Result<Option<User>, String> {
    let Some(user) = user else {
        return match file {
            Some(_) => Err("a password-file has no effect without a USER".to_owned()),
            None => Ok(None),
        };
    };
    let (name, password) = match (user.split_once(':'), file) {
        (Some(_), Some(_)) => return Err("the address has both a password and a password-file".to_owned()),
        (Some((name, password)), None) => (name, Password::Plain(password.to_owned())),
        (None, Some(file)) => (user, Password::File(file)),
        (None, None) => return Err("the user has no password and no password-file".to_owned()),
    };
    match name.is_empty() {
        true => Err("the user has no name".to_owned()),
        false => Ok(Some(User { name: name.to_owned(), password })),
    }
}

/// The files in the query of the address, the part after `?`.
#[derive(Default)]
struct Files {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    password: Option<PathBuf>,
}

impl Files {
    fn parse(query: &str) -> Result<Files, String> {
        let mut files = Files::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (word, file) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is not of the form WORD=FILE"))?;
            let place = match word {
                "ca" => &mut files.ca,
                "cert" => &mut files.cert,
                "key" => &mut files.key,
                "password-file" => &mut files.password,
                _ => return Err(format!("{word:?} is not one of ca, cert, key, password-file")),
            };
            if !Path::new(file).is_absolute() {
                return Err(format!("{file:?}, given for {word}, is not an absolute path"));
            }
            if place.replace(PathBuf::from(file)).is_some() {
                return Err(format!("{word} is given twice"));
            }
        }
        Ok(files)
    }
}

/// Returns an address for display, without the password.
fn without_password(text: &str) -> String {
    let Some((before, host)) = text.rsplit_once('@') else { return text.to_owned() };
    let (scheme, user) = match before.split_once("://") {
        Some((scheme, user)) if scheme.chars().all(|letter| letter.is_ascii_alphabetic()) => (scheme, user),
        _ => ("etcd", before),
    };
    let name = user.split_once(':').map_or(user, |(name, _)| name);
    format!("{scheme}://{name}:...@{host}")
}

/// Formats the address with the password, for a file that only its owner reads.
impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|user| match &user.password {
            Password::Plain(password) => format!("{}:{password}@", user.name),
            Password::File(_) => format!("{}@", user.name),
        });
        self.write(f, &user.unwrap_or_default())
    }
}

/// Formats the address without the password.
impl fmt::Debug for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl EtcdAddress {
    fn write(&self, f: &mut fmt::Formatter<'_>, user: &str) -> fmt::Result {
        write!(f, "etcd://{user}{}{}", self.endpoints.join(","), self.prefix)?;
        let mut files: Vec<(&str, &Path)> = Vec::new();
        if let Some(tls) = &self.tls {
            files.push(("ca", &tls.ca));
            if let Some((cert, key)) = &tls.own {
                files.extend([("cert", cert.as_path()), ("key", key.as_path())]);
            }
        }
        if let Some(User { password: Password::File(file), .. }) = &self.user {
            files.push(("password-file", file));
        }
        for (index, (word, file)) in files.into_iter().enumerate() {
            write!(f, "{}{word}={}", if index == 0 { '?' } else { '&' }, file.display())?;
        }
        Ok(())
    }

    /// Returns true if the address contains the password itself and not the name of a password file. Nodes do not send
    /// such an address to other nodes.
    pub fn has_password(&self) -> bool {
        matches!(&self.user, Some(User { password: Password::Plain(_), .. }))
    }

    /// Returns the address in the form that nodes send to each other.
    pub(crate) fn names_at(&self) -> NamesAt {
        NamesAt { address: self.to_string(), prefix: self.prefix.clone() }
    }

    /// Returns the prefix of all keys of the cluster.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the same address with `endpoint` as its only endpoint.
    pub(super) fn only(&self, endpoint: &str) -> EtcdAddress {
        EtcdAddress { endpoints: vec![endpoint.to_owned()], ..self.clone() }
    }

    pub(super) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    pub(super) fn user(&self) -> Option<&User> {
        self.user.as_ref()
    }

    pub(super) fn tls(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_debug_hides_passwords() {
        for text in [
            "etcd://a:2379/halite",
            "etcd://a:1,[::1]:2/x/y",
            "etcd://a:1/names",
            "etcd://u:p@w@h:1/halite",
            "etcd://u:p?w/@h:1/halite",
            "etcd://a:1/halite?ca=/ca.pem",
            "etcd://u@a:1/x?ca=/ca.pem&cert=/c&key=/k&password-file=/p",
        ] {
            let address: EtcdAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let shown = format!("{address:?}");
            assert!(!shown.contains("p@w") && !shown.contains("p?w"), "{shown}");
        }
        assert_eq!("etcd://a:1".parse::<EtcdAddress>().unwrap().to_string(), "etcd://a:1/halite");
    }

    #[test]
    fn errors_of_addresses_show_no_password() {
        for (wrong, why) in [
            ("", "begin with"),
            ("a:1", "begin with"),
            ("http://a:1", "write etcd://HOST:PORT"),
            ("https://u:secret@a:1", "https://u:...@a:1"),
            ("https://a:1", "write etcd://HOST:PORT?ca=FILE"),
            ("etcd://", "HOST:PORT"),
            ("etcd://a", "HOST:PORT"),
            ("etcd://a:x", "HOST:PORT"),
            ("etcd://a:1,", "HOST:PORT"),
            ("etcd://u@a:1", "no password"),
            ("etcd://u:secret@a:1?password-file=/p", "a password and a password-file"),
            ("etcd://u:secret@a", "HOST:PORT"),
            ("etcd://:secret@a:1", "no name"),
            ("etcd://a:1/x/", "slash"),
            ("etcd://a:1/x/names", "shorter prefix"),
            ("etcd://a:1/x/places/y", "shorter prefix"),
            ("etcd://a:1?password-file=/p", "without a USER"),
            ("etcd://a:1?cert=/c&key=/k", "need ca"),
            ("etcd://a:1?ca=/c&key=/k", "need each other"),
            ("etcd://a:1?ca=ca.pem", "absolute"),
            ("etcd://a:1?ca=/a&ca=/b", "twice"),
            ("etcd://a:1?tls", "WORD=FILE"),
            ("etcd://a:1?cacert=/c", "not one of ca"),
        ] {
            let said = wrong.parse::<EtcdAddress>().unwrap_err().to_string();
            assert!(said.contains(why) && !said.contains("secret"), "{wrong}: {said}");
        }
    }
}
