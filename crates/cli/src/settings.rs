//! The configuration file: defaults for flags and variables that are not given.
//!
//! The keys are the names of the `HALITE_*` variables without `HALITE_`, in lower case. So each flag that has a
//! variable has a key. A command reads the keys of its own flags, so one file serves all commands.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::num::ParseIntError;
use std::path::{Path, PathBuf};

use clap::builder::OsStr;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// Maximum length of a file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Prefix of variables.
const PREFIX: &str = "HALITE_";
/// Keys whose value may be a table, which stands for the list `NAME=VALUE,...` of the flag.
const TABLES: [&str; 2] = ["quotas", "principals"];
/// Keys whose value may be an array, which stands for the list `A,B,...` of the flag.
const ARRAYS: [&str; 1] = ["low_priority"];
/// The argument that names the file; it has no key.
const CONFIG: &str = "config";

/// The contents of a configuration file.
#[derive(Clone, Debug)]
pub struct Settings {
    path: PathBuf,
    values: BTreeMap<String, String>,
}

/// The reason why a configuration file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read configuration file {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is too long.
    #[error("configuration file {} has more than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not TOML.
    #[error("configuration file {} is not TOML: {source}", path.display())]
    NotToml {
        /// Path of the file.
        path: PathBuf,
        /// Position in the file, and the reason.
        source: Box<toml::de::Error>,
    },
    /// No flag has this key.
    #[error("configuration file {} has the unknown key {key:?}{}", path.display(), key_suggestion(nearest, known))]
    UnknownKey {
        /// Path of the file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The most similar key, if there is one.
        nearest: Option<String>,
        /// All valid keys.
        known: Vec<String>,
    },
    /// The type of a value fits no flag.
    #[error("configuration file {}: {key} is {kind}; it must be a string, a number or a boolean", path.display())]
    WrongKind {
        /// Path of the file.
        path: PathBuf,
        /// The key.
        key: String,
        /// TOML's name of the type.
        kind: &'static str,
    },
    /// No command accepts the value.
    #[error("configuration file {}: {key} = {value:?} is invalid: {reason}", path.display())]
    BadValue {
        /// Path of the file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value, unless it may hold a password.
        value: String,
        /// The reason, with the accepted values.
        reason: String,
    },
}

fn key_suggestion(nearest: &Option<String>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!("; did you mean {nearest:?}?"),
        None => format!("; keys are {}", known.join(", ")),
    }
}

impl Settings {
    /// Reads the configuration file that the command line or the environment names; `None` if they name none.
    pub fn find(
        command: &Command,
        words: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> Result<Option<Settings>, SettingsError> {
        // Other errors are reported later, when the whole line is parsed.
        let matches = command.clone().ignore_errors(true).try_get_matches_from(words).ok();
        let path = matches.and_then(|matches| matches.get_one::<PathBuf>(CONFIG).cloned());
        let settings = path.map(|path| Settings::read(&path, &keys(command))).transpose()?;
        settings.map(|settings| settings.checked(command)).transpose()
    }

    /// Checks the values against the flags of all commands, so that a file is valid for all commands or for none.
    fn checked(self, command: &Command) -> Result<Settings, SettingsError> {
        let mut built = command.clone();
        built.build();
        let refused = |(key, value): (&String, &String)| {
            let reason = refusal(&built, key, value)?;
            let (path, key, value) = (self.path.clone(), key.clone(), shown(value).to_owned());
            Some(SettingsError::BadValue { path, key, value, reason })
        };
        match self.values.iter().find_map(refused) {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    fn read(path: &Path, known: &[String]) -> Result<Settings, SettingsError> {
        let unreadable = |source| SettingsError::Unreadable { path: path.to_owned(), source };
        let mut text = String::new();
        let file = File::open(path).map_err(unreadable)?;
        let len = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
        if len as u64 > FILE_BYTES_MAX {
            return Err(SettingsError::TooLong { path: path.to_owned() });
        }
        Settings::parse(path, &text, known)
    }

    fn parse(path: &Path, text: &str, known: &[String]) -> Result<Settings, SettingsError> {
        let table: toml::Table = text
            .parse()
            .map_err(|source| SettingsError::NotToml { path: path.to_owned(), source: Box::new(source) })?;
        let mut values = BTreeMap::new();
        for (key, value) in table {
            if !known.contains(&key) {
                let (path, nearest) = (path.to_owned(), nearest(&key, known));
                return Err(SettingsError::UnknownKey { path, key, nearest, known: known.to_vec() });
            }
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                toml::Value::Table(table) if TABLES.contains(&key.as_str()) => {
                    pairs(path, &key, &table)?.join(",")
                }
                toml::Value::Array(array) if array.is_empty() && ARRAYS.contains(&key.as_str()) => continue,
                toml::Value::Array(array) if ARRAYS.contains(&key.as_str()) => {
                    let item = |item: &toml::Value| {
                        item.as_str().map(str::to_owned).ok_or_else(|| wrong_kind(path, &key, item))
                    };
                    array.iter().map(item).collect::<Result<Vec<_>, _>>()?.join(",")
                }
                other => return Err(wrong_kind(path, &key, &other)),
            };
            values.insert(key, value);
        }
        Ok(Settings { path: path.to_owned(), values })
    }

    /// Returns `command` with the values of the file as defaults.
    pub fn apply(&self, command: Command) -> Command {
        let command = command.mut_args(|arg| match self.value_of(&arg) {
            Some(value) => arg.required(false).default_value(OsStr::from(value.to_owned())),
            None => arg,
        });
        command.mut_subcommands(|command| self.apply(command))
    }

    fn value_of(&self, arg: &Arg) -> Option<&str> {
        key_of(arg).and_then(|key| self.values.get(&key)).map(String::as_str)
    }

    /// If `error` is about a value that this file gave, returns a text that names the file and the key.
    pub fn source_of_error(&self, error: &clap::Error) -> Option<String> {
        let (flag, value) = subject_of(error)?;
        let (key, _) = self
            .values
            .iter()
            .find(|(key, given)| key.replace('_', "-").ends_with(flag) && *given == value)?;
        Some(format!("{} says {key} = {:?}", self.path.display(), shown(value)))
    }
}

fn wrong_kind(path: &Path, key: &str, value: &toml::Value) -> SettingsError {
    SettingsError::WrongKind { path: path.to_owned(), key: key.to_owned(), kind: value.type_str() }
}

/// Returns the entries of a table as `NAME=VALUE`; the name of an entry of an inner table is `TABLE.NAME`.
fn pairs(path: &Path, key: &str, table: &toml::Table) -> Result<Vec<String>, SettingsError> {
    let mut found = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::String(text) => found.push(format!("{name}={text}")),
            toml::Value::Integer(number) => found.push(format!("{name}={number}")),
            toml::Value::Table(inner) => {
                let inner = pairs(path, &format!("{key}.{name}"), inner)?;
                found.extend(inner.into_iter().map(|pair| format!("{name}.{pair}")));
            }
            other => return Err(wrong_kind(path, &format!("{key}.{name}"), other)),
        }
    }
    Ok(found)
}

/// Returns the flag, without dashes, and the invalid value of an error.
fn subject_of(error: &clap::Error) -> Option<(&str, &str)> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (argument, value) = (text(ContextKind::InvalidArg)?, text(ContextKind::InvalidValue)?);
    Some((argument.strip_prefix("--")?.split(' ').next()?, value))
}

/// Returns `text`, the text of `error`, but hides an address in it that may contain a password.
pub fn without_password(error: &clap::Error, text: &str) -> String {
    match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => text.replacen(value, shown(value), 1),
        _ => text.to_owned(),
    }
}

/// If `error` is about a value that an environment variable gave, returns a text that names the variable.
pub fn variable_of_error(
    command: &Command,
    error: &clap::Error,
    environment: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let (flag, value) = subject_of(error)?;
    let arg = args(command).into_iter().find(|arg| arg.get_long() == Some(flag))?;
    let variable = variable_of(&key_of(arg)?);
    (environment(&variable)? == value).then(|| format!("set by {variable}"))
}

/// Returns the reason why no command accepts `value` for `key`; `None` if a command accepts it. `command` must be
/// built.
fn refusal(command: &Command, key: &str, value: &str) -> Option<String> {
    let args_of_key = args(command).into_iter().filter(|arg| key_of(arg).as_deref() == Some(key));
    let refusals: Option<Vec<String>> = args_of_key.map(|arg| refusal_of_arg(arg, value)).collect();
    refusals?.into_iter().next()
}

fn refusal_of_arg(arg: &Arg, value: &str) -> Option<String> {
    let name = arg.get_id().as_str().to_owned();
    let mut probe = Arg::new(name.clone())
        .long(name.clone())
        .value_parser(arg.get_value_parser().clone())
        .action(ArgAction::Set);
    if let Some(delimiter) = arg.get_value_delimiter() {
        probe = probe.value_delimiter(delimiter).action(ArgAction::Append);
    }
    let words = ["value".to_owned(), format!("--{name}={value}")];
    let error = Command::new("value").arg(probe).try_get_matches_from(words).err()?;
    let allowed = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(allowed)) => format!("allowed are {}", allowed.join(", ")),
        _ => "a value is missing".to_owned(),
    };
    Some(match std::error::Error::source(&error) {
        Some(source) if source.is::<ParseIntError>() => "expected an integer".to_owned(),
        Some(source) => source.to_string(),
        None => allowed,
    })
}

/// Returns the value to show: hides an address that may contain a password.
fn shown(value: &str) -> &str {
    if value.contains('@') { "..." } else { value }
}

/// Returns the variables with values that no command accepts, each with the reason.
pub fn refused_variables(command: &Command, environment: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut built = command.clone();
    built.build();
    let refused = |key: &String| {
        let variable = variable_of(key);
        let value = environment(&variable)?;
        let reason = refusal(&built, key, &value)?;
        Some(format!("{variable}={:?} is invalid: {reason}", shown(&value)))
    };
    keys(command).iter().filter_map(refused).collect()
}

fn variable_of(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase())
}

/// A setting and its source.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Setting {
    /// Key of the setting in a file.
    pub key: String,
    /// The value; `None` if commands have different defaults, or none.
    pub value: Option<String>,
    /// Source of the value: a flag, a variable, a file, or `default`.
    pub source: String,
}

/// Returns all settings with their sources: the command line, the environment, the file or the default.
pub fn effective(
    command: &Command,
    matches: &ArgMatches,
    settings: Option<&Settings>,
    environment: impl Fn(&str) -> Option<String>,
) -> Vec<Setting> {
    let mut found: BTreeMap<String, Setting> = BTreeMap::new();
    for arg in args(command) {
        let Some(key) = key_of(arg) else { continue };
        let variable = variable_of(&key);
        let given = matches
            .try_contains_id(arg.get_id().as_str())
            .is_ok_and(|_| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine));
        let from_file = settings.and_then(|settings| Some((settings.value_of(arg)?, settings)));
        let (value, source) = if given {
            let raw = matches.get_raw(arg.get_id().as_str()).and_then(|mut values| values.next());
            let flag = arg.get_long().unwrap_or(arg.get_id().as_str());
            (raw.map(|value| value.to_string_lossy().into_owned()), format!("--{flag}"))
        } else if let Some(value) = environment(&variable) {
            (Some(value), variable)
        } else if let Some((value, settings)) = from_file {
            (Some(value.to_owned()), settings.path.display().to_string())
        } else {
            let default = arg.get_default_values().first();
            (default.map(|value| value.to_string_lossy().into_owned()), "default".to_owned())
        };
        found.entry(key.clone()).or_insert(Setting { key, value, source });
    }
    found.into_values().collect()
}

/// A `HALITE_*` variable in the environment that belongs to no flag.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the environment has the unknown variable {variable}{}", suggestion(nearest))]
pub struct UnknownVariable {
    /// Name of the variable.
    pub variable: String,
    /// The most similar variable, if there is one.
    pub nearest: Option<String>,
    /// True if the similarity makes a misspelling very likely.
    pub is_misspelt: bool,
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |nearest| format!("; did you mean {nearest}?"))
}

/// Minimum similarity of a probable misspelling.
const MISSPELT_SIMILARITY_MIN: f64 = 0.92;

/// Returns the names that begin with `HALITE_` but are not variables of this program.
pub fn unknown_variables(command: &Command, names: impl IntoIterator<Item = String>) -> Vec<UnknownVariable> {
    let mut known = keys(command);
    known.push(CONFIG.to_owned());
    let mut found: Vec<UnknownVariable> = names
        .into_iter()
        .filter_map(|variable| {
            let key = variable.strip_prefix(PREFIX)?.to_lowercase();
            let nearest = nearest(&key, &known);
            let is_misspelt = nearest
                .as_ref()
                .is_some_and(|other| strsim::jaro_winkler(&key, other) >= MISSPELT_SIMILARITY_MIN);
            let nearest = nearest.map(|key| format!("{PREFIX}{}", key.to_uppercase()));
            (!known.contains(&key)).then_some(UnknownVariable { variable, nearest, is_misspelt })
        })
        .collect();
    found.sort_by(|one, next| one.variable.cmp(&next.variable));
    found
}

fn args(command: &Command) -> Vec<&Arg> {
    let below = command.get_subcommands().flat_map(args);
    command.get_arguments().chain(below).collect()
}

fn keys(command: &Command) -> Vec<String> {
    let mut keys: Vec<String> = args(command).into_iter().filter_map(key_of).collect();
    keys.sort();
    keys.dedup();
    keys
}

fn key_of(arg: &Arg) -> Option<String> {
    let variable = arg.get_env()?.to_str()?;
    (arg.get_id() != CONFIG).then(|| variable.strip_prefix(PREFIX).map(str::to_lowercase)).flatten()
}

/// Returns the most similar known key, if it is similar enough.
fn nearest(key: &str, known: &[String]) -> Option<String> {
    let similar = |other: &String| strsim::jaro_winkler(&key.to_lowercase().replace('-', "_"), other);
    let best = known.iter().max_by(|one, other| similar(one).total_cmp(&similar(other)))?;
    (similar(best) > 0.75).then(|| best.clone())
}
