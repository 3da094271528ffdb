//! The secret that the nodes of a cluster share, and its file.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of a secret.
const BYTES: usize = 32;
/// Hexadecimal digits of a secret in a file.
const DIGITS: usize = 2 * BYTES;
/// Maximum length of a file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// Maximum number of secrets in a file: the current secret, and the previous or next secret.
const SECRETS_MAX: usize = 2;
/// Mode bits that give other users access.
const OTHERS: u32 = 0o077;

/// The secret of a cluster: 256 random bits. The `Debug` output does not contain these bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; BYTES]);

impl Secret {
    /// Creates a secret from the system's random numbers. Fails if the system provides none.
    pub fn new() -> io::Result<Secret> {
        let mut bytes = [0; BYTES];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
        debug_assert_eq!(filled, BYTES, "getrandom fills up to 256 bytes at once");
        Ok(Secret(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Writes the secret to a new file that only the owner of the file may read. Fails with `AlreadyExists` if the file
    /// exists.
    pub fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = file.write_all(format!("{digits}\n").as_bytes()).and_then(|()| file.sync_all());
        // Removes a partly written file.
        written.inspect_err(|_| drop(std::fs::remove_file(path)))
    }

    fn parse(digits: &str) -> Option<Secret> {
        let digits = digits.as_bytes();
        let mut bytes = [0; BYTES];
        if digits.len() != DIGITS {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| (digit as char).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Some(Secret(bytes))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The secrets of a cluster: one, or two while a secret is being replaced. This end dials with the first secret, and
/// accepts incoming connections that use any of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Secrets(Vec<Secret>);

/// The reason why [`Secrets::read`] failed.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret in {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// Other users may read or write the file.
    #[error("the secret in {} is not secret: other users may access the file (mode {mode:04o}; use 600)", path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Mode bits of the file.
        mode: u32,
    },
    /// Another user owns the file.
    #[error("the secret in {} belongs to user {uid}, not to the user of this process; chown it", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// User id of the owner of the file.
        uid: u32,
    },
    /// The file contains no secret, too many secrets, or a line that is not a secret.
    #[error("{} contains no valid secret: {what}; create one with `halite secret new FILE`", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of the defect. It never quotes the file, whose content is secret.
        what: String,
    },
}

impl Secrets {
    /// Reads the secrets from a file: one or two lines of 64 hexadecimal digits. Ignores empty lines and lines that
    /// begin with `#`. Fails if other users may access the file.
    pub fn read(path: &Path) -> Result<Secrets, SecretError> {
        let unreadable = |source| SecretError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let (mode, uid) = (metadata.mode() & 0o7777, metadata.uid());
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            return Err(SecretError::Foreign { path: path.to_owned(), uid });
        }
        if mode & OTHERS != 0 {
            return Err(SecretError::Open { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(unreadable)?;
        Secrets::parse(&text).map_err(|what| SecretError::Malformed { path: path.to_owned(), what })
    }

    fn parse(text: &str) -> Result<Secrets, String> {
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut secrets = Vec::new();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let malformed = || format!("line {number} is not {DIGITS} hexadecimal digits");
            secrets.push(Secret::parse(line).ok_or_else(malformed)?);
        }
        match secrets.len() {
            0 => Err("it is empty".to_owned()),
            1..=SECRETS_MAX => Ok(Secrets(secrets)),
            count => Err(format!("it contains {count} secrets; the maximum is {SECRETS_MAX}")),
        }
    }

    /// Creates a set of at least one secret.
    #[cfg(test)]
    pub(super) fn of<const N: usize>(secrets: [Secret; N]) -> Secrets {
        Secrets(secrets.into())
    }

    /// Returns the secret with which this end dials.
    pub(super) fn first(&self) -> &Secret {
        &self.0[0]
    }

    pub(super) fn all(&self) -> &[Secret] {
        &self.0
    }
}

impl From<Secret> for Secrets {
    fn from(secret: Secret) -> Secrets {
        Secrets(vec![secret])
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_file_must_be_readable_only_by_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        let secret = Secret::new().unwrap();
        secret.write_new(&path).unwrap();
        assert_eq!(Secrets::read(&path).unwrap(), Secrets::from(secret.clone()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let error = secret.write_new(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "an existing secret is not overwritten");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = Secrets::read(&path).unwrap_err().to_string();
        assert!(error.contains("mode 0640"), "{error}");
    }

    #[test]
    fn errors_of_secret_files_do_not_quote_the_file() {
        let [one, two] = ["0".repeat(64), "aB".repeat(32)];
        let parsed = Secrets::parse(&format!("# since May\n{one}\n\n  {two}\n")).unwrap();
        assert_eq!(parsed.0, [Secret([0; 32]), Secret([0xab; 32])]);
        let three = format!("{one}\n{two}\n{one}");
        assert_eq!(Secrets::parse(&three).unwrap_err(), "it contains 3 secrets; the maximum is 2");
        assert_eq!(Secrets::parse("\n# none").unwrap_err(), "it is empty");
        let wrong = Secrets::parse("swordfish").unwrap_err();
        assert_eq!(wrong, "line 1 is not 64 hexadecimal digits");
        assert!(Secrets::parse(&"é".repeat(32)).is_err());
        assert_eq!(format!("{parsed:?}"), "Secrets([Secret, Secret])");
    }
}
