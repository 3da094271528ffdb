//! The principals as which Unix users of this host act in attached sessions.
//!
//! Users and groups are read from `/etc/passwd` and `/etc/group`, without a lookup over the network, which could take
//! seconds and give other principals when the network is down.

use std::fmt;
use std::str::FromStr;

use halite_tier::ids::Principal;

/// A rule that gives a Unix user, or the members of a group, a principal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrincipalRule {
    /// The user or group to which the rule applies.
    pub of: UnixName,
    /// Name of the principal that the rule assigns.
    pub principal: String,
}

/// A Unix user or group of this host, by name or number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnixName {
    /// A user, by name or number.
    User(String),
    /// A group, by name or number.
    Group(String),
}

/// The reason why a text is not a [`PrincipalRule`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPrincipalRule {
    /// The text does not name a user or group and a principal.
    #[error("expected user.NAME=PRINCIPAL or group.NAME=PRINCIPAL")]
    Malformed,
    /// The name of the principal is empty or too long.
    #[error("a principal's name has 1 to {} bytes, not {len}", Principal::BYTES_MAX)]
    BadPrincipal {
        /// Length of the name in bytes.
        len: usize,
    },
}

impl FromStr for PrincipalRule {
    type Err = BadPrincipalRule;

    fn from_str(text: &str) -> Result<PrincipalRule, BadPrincipalRule> {
        let (of, principal) = text.split_once('=').ok_or(BadPrincipalRule::Malformed)?;
        let (kind, name) = of.split_once('.').ok_or(BadPrincipalRule::Malformed)?;
        let of = match kind {
            "user" if !name.is_empty() => UnixName::User(name.to_owned()),
            "group" if !name.is_empty() => UnixName::Group(name.to_owned()),
            _ => return Err(BadPrincipalRule::Malformed),
        };
        match principal.len() {
            1..=Principal::BYTES_MAX => Ok(PrincipalRule { of, principal: principal.to_owned() }),
            len => Err(BadPrincipalRule::BadPrincipal { len }),
        }
    }
}

impl fmt::Display for PrincipalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match &self.of {
            UnixName::User(name) => ("user", name),
            UnixName::Group(name) => ("group", name),
        };
        write!(f, "{kind}.{name}={}", self.principal)
    }
}

/// Returns the user's name from `/etc/passwd`, else `uid-1000`.
pub(crate) fn user_name(uid: u32) -> String {
    User::find(&read("/etc/passwd"), uid).map_or_else(|| format!("uid-{uid}"), |user| user.name)
}

/// Returns the principal of a Unix user: that of the first rule for the user, else that of the first rule for one of its
/// groups, else the user's name.
pub(crate) fn principal_of(uid: u32, rules: &[PrincipalRule]) -> Principal {
    let has_groups = rules.iter().any(|rule| matches!(rule.of, UnixName::Group(_)));
    let groups = if has_groups { read("/etc/group") } else { String::new() };
    apply_rules(uid, rules, &read("/etc/passwd"), &groups)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

fn apply_rules(uid: u32, rules: &[PrincipalRule], passwd: &str, groups: &str) -> Principal {
    let user = User::find(passwd, uid);
    let number = uid.to_string();
    let is_user = |rule: &&PrincipalRule| match &rule.of {
        UnixName::User(name) => *name == number || user.as_ref().is_some_and(|user| user.name == *name),
        UnixName::Group(_) => false,
    };
    let is_member = |rule: &&PrincipalRule| match &rule.of {
        UnixName::User(_) => false,
        UnixName::Group(name) => user.as_ref().is_some_and(|user| user.is_in(name, groups)),
    };
    if let Some(rule) = rules.iter().find(is_user).or_else(|| rules.iter().find(is_member)) {
        return Principal(rule.principal.as_str().into());
    }
    match user {
        Some(User { name, .. }) if name.len() <= Principal::BYTES_MAX => Principal(name.into()),
        _ => Principal(format!("uid-{uid}").into()),
    }
}

/// A line of `/etc/passwd`.
struct User {
    name: String,
    /// Number of the user's own group.
    gid: String,
}

impl User {
    fn find(passwd: &str, uid: u32) -> Option<User> {
        let uid = uid.to_string();
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            (fields.nth(1)? == uid).then_some(())?;
            Some(User { name: name.to_owned(), gid: fields.next().unwrap_or_default().to_owned() })
        })
    }

    /// Returns true if the user is in the group with this name or number, by the lines of `/etc/group`.
    fn is_in(&self, group: &str, groups: &str) -> bool {
        self.gid == group
            || groups.lines().any(|line| {
                let mut fields = line.split(':');
                let (name, gid) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
                let mut members = fields.next().unwrap_or_default().split(',');
                (name == group || gid == group)
                    && !name.is_empty()
                    && (self.gid == gid || members.any(|member| member == self.name))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nada:x:1000:7::/home/ada:/bin/sh\nbob:x:7:1000::/:/bin/sh\ngarbage\n::\n:x:8:\n";
    const GROUPS: &str = "staff:x:7:\ndev:x:30:root,bob\nother:x:1000:\n:x:31:ada\ngarbage\n";

    #[test]
    fn user_rules_precede_group_rules() {
        let rules: Vec<PrincipalRule> =
            ["group.dev=team", "group.staff=ops", "user.root=admin", "user.9=nine"]
                .map(|rule| rule.parse().unwrap())
                .into();
        let principal = |uid, rules: &[PrincipalRule]| apply_rules(uid, rules, PASSWD, GROUPS).to_string();
        let found = [0, 1000, 7, 8, 9].map(|uid| principal(uid, &rules));
        assert_eq!(found, ["admin", "ops", "team", "uid-8", "nine"]);
        assert_eq!([1000, 7, 9].map(|uid| principal(uid, &[])), ["ada", "bob", "uid-9"]);
        for wrong in ["ada=a", "user.=a", "user.ada", "host.a=b", "user.ada="] {
            assert!(wrong.parse::<PrincipalRule>().is_err(), "{wrong}");
        }
        assert_eq!(rules[1].to_string().parse(), Ok(rules[1].clone()));
    }
}
